"""The loops of the outer-product schema in words, as code.py writes them."""

from __future__ import annotations

import math

from tilewright.kernels.cpu.contraction import Contraction, contract
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.operand import reads_outside
from tilewright.kernels.cpu.words import behind, loop_line, quantity, steps_text
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import bytes_text
from tilewright.ops.group import Group
from tilewright.ops.stage import Access
from tilewright.schedule.schedule import Level, Schedule

# A level and its loops: (dimension, what it is cut from).
Band = tuple[Level, list[tuple[str, int]]]


def outer_lines(group: Group, schedule: Schedule) -> list[str]:
    """The nest around the micro-kernel, the copy of the input in its place, and the store."""
    contraction = contract(group, schedule.vector)
    part = part_extents(group.main, schedule)
    bands = _bands(group, schedule, part)
    copy_after = _copy_after(contraction, schedule, bands)
    lines, depth = [], 0
    if schedule.pack and copy_after == 0:
        lines.append(_copy_line(group, contraction, schedule, part))
    for level, loops in bands:
        for name, around in loops:
            lines.append('  ' * depth + loop_line(group, level, name, around))
            depth += 1
            if schedule.pack and depth == copy_after:
                lines.append('  ' * depth + _copy_line(group, contraction, schedule, part))
        if level.name != 'reg':
            lines.append('  ' * depth + _resident(group, level, part))
    indent = '  ' * depth
    return lines + [indent + text for text in _micro_lines(group, contraction, schedule)]


def _bands(group: Group, schedule: Schedule, part: dict[str, int]) -> list[Band]:
    """Loops that run more than once, by level; the micro-kernel has the innermost reductions."""
    largest, bands = dict(part), []
    for level in reversed(schedule.levels):
        loops = []
        for name in level.order:
            inside = level.name == 'reg' and name in group.main.reduction
            if level.tile[name] < largest[name] and not inside:
                loops.append((name, largest[name]))
                largest[name] = level.tile[name]
        bands.append((level, loops))
    return bands


def _copy_after(contraction: Contraction, schedule: Schedule, bands: list[Band]) -> int:
    """The number of loops outside the copy of the input: down to the last that moves it."""
    names = [level.name for level in schedule.levels]
    opened = moving = 0
    for level, loops in bands:
        if not schedule.pack or names.index(level.name) < names.index(schedule.pack):
            break
        for name, _ in loops:
            opened += 1
            if name in contraction.a.names:
                moving = opened
    return moving


def _copy_line(
    group: Group, contraction: Contraction, schedule: Schedule, part: dict[str, int]
) -> str:
    index = [level.name for level in schedule.levels].index(schedule.pack)
    tile = {d: min([part[d], *(v.tile[d] for v in schedule.levels[index:])]) for d in part}
    extents = contraction.a.extents(tile)
    shape = ' x '.join(map(str, extents))
    size = bytes_text(4 * math.prod(extents))
    padded = ', with its padding,' if reads_outside(group, contraction) else ''
    return f'copy a tile of {contraction.a.tensor}, {shape} ({size}){padded} into a buffer'


def _resident(group: Group, level: Level, part: dict[str, int]) -> str:
    """Bytes of each tensor in one tile, lines and padding not counted."""
    clipped = {d: min(size, part[d]) for d, size in level.tiles}
    sizes = ', '.join(
        f'{a.tensor} {bytes_text(4 * _touched(a, clipped))}' for a in group.main.accesses
    )
    return f'[tile in {level.name.upper()}: {sizes}]'


def _touched(access: Access, tile: dict[str, int]) -> int:
    """Elements under a tile: what an index ranges over, or fewer where it skips some."""
    return math.prod(
        min(
            (e.extent(tile) - 1) // (math.gcd(*(c for _, c in e.terms)) or 1) + 1,
            math.prod(tile[name] for name in e.names),
        )
        for e in access.index
    )


def _micro_lines(group: Group, contraction: Contraction, schedule: Schedule) -> list[str]:
    reg, sizes, isa = schedule.reg.tile, group.main.sizes, ISAS[schedule.isa]
    pixels = math.prod(reg[d] for d in contraction.pixels)
    vectors = reg[schedule.vector] // isa.lanes
    shape = ' x '.join(
        quantity(group, d, reg[d])
        for d in (*contraction.pixels, schedule.vector)
        if reg[d] > 1 or d == schedule.vector
    )
    lines = [
        f'micro-kernel: {shape}, {pixels * vectors} accumulators in {isa.registers} '
        f'{schedule.isa} registers'
    ]
    inner = schedule.levels[1].tile
    steps = math.prod(sizes[d] for d in contraction.unrolled)
    if contraction.outer:
        names = ' and '.join(quantity(group, d, inner[d]) for d in contraction.outer)
        lines.append(f'  called for each of {names}')
    if contraction.loop:
        count = quantity(
            group, contraction.loop, min(inner[contraction.loop], sizes[contraction.loop])
        )
        lines.append(f'  inside: loop over {count}, {steps_text(steps)} unrolled')
    else:
        lines.append(f'  inside: {steps_text(steps)} unrolled')
    cut = any(inner[d] < sizes[d] for d in contraction.reduction)
    lines.append(
        ('once the sums are complete, ' if cut else '') + 'store the results' + behind(group)
    )
    return lines
