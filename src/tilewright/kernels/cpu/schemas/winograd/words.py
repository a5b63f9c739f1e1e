"""The loops of the Winograd schema in words, as code.py writes them, and what people call it."""

from __future__ import annotations

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.winograd.plan import product, tile
from tilewright.kernels.cpu.words import behind, loop_line, quantity
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import Axis, TileGeometry
from tilewright.ops.winograd import geometry
from tilewright.schedule.schedule import Level, Schedule


def winograd_title(group: Group, schedule: Schedule) -> str:
    """'Winograd F(4x4, 3x3)'"""
    sizes, (rows, columns) = group.main.sizes, tile(schedule)
    return f'Winograd F({rows}x{columns}, {sizes["r"]}x{sizes["s"]})'


def winograd_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks of tiles, transformed, multiplied point by point, and transformed back."""
    return points_lines(group, schedule, product(group, schedule), geometry(group, tile(schedule)))


def points_lines(
    group: Group, schedule: Schedule, stage: Stage, shape: TileGeometry[Axis]
) -> list[str]:
    """The same for any schema that multiplies at points."""
    options = dict(schedule.options)
    reg, l1, l2, l3 = schedule.levels
    part = part_extents(stage, schedule)
    lines, depth = [], 0

    def loops(level: Level, inside: dict[str, int], names: tuple[str, ...]) -> None:
        nonlocal depth
        for name in level.order:
            if name in names and level.tile[name] < inside[name]:
                lines.append('  ' * depth + loop_line(group, level, name, inside[name]))
                depth += 1

    def say(text: str) -> None:
        lines.append('  ' * depth + text)

    loops(l3, part, tuple(part))
    down, across = shape.down, shape.across
    say(
        f'transform tiles of {down.length} x {across.length} inputs, one for '
        f'{down.m} x {across.m} outputs '
        f'({shape.saving:.2f} times fewer products)'
    )
    loops(l2, l3.tile, ('k',))
    outside = depth
    loops(l1, l2.tile, ('t',))
    loops(reg, l1.tile, ('k',))
    say(
        f'micro-kernels: at most {options["run"]} tiles x {quantity(group, "k", reg.tile["k"])}, '
        f'loop over {quantity(group, "c", stage.sizes["c"])}'
    )
    depth = outside
    say('transform back and store the results' + behind(group))
    return lines
