"""The loops of the schema of pixels in words, as code.py writes them."""

from __future__ import annotations

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.pixels.plan import plan_pixels
from tilewright.kernels.cpu.words import behind, loop_line, quantity, steps_text
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def pixels_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks that are copied, tiles of channels, tiles of pixels, and what a tile does."""
    plan, part = plan_pixels(group, schedule), part_extents(group.main, schedule)
    shape, level, reg, isa = plan.shape, schedule.levels[1], schedule.reg, ISAS[schedule.isa]
    lines: list[str] = []

    def add(text: str) -> None:
        lines.append('  ' * depth + text)

    depth = 0
    for name in (shape.batch, plan.axis.name):
        if name and level.tile[name] < part[name]:
            add(loop_line(group, level, name, part[name]))
            depth += 1
    form = 'strips' if shape.flat else 'padded rows, columns of a stride apart'
    form += ', by the first tile of channels as it multiplies them' if plan.source_pitch else ''
    add(f'copy {quantity(group, shape.summed, plan.sizes[shape.summed])} of a tile of '
        f'{group.main.reads[0].tensor}, {4 * plan.buffer_floats >> 10} KiB, as {form}')  # fmt: skip
    for name in (shape.channels, shape.down.name, shape.across.name):
        if name and reg.tile[name] < min(part[name], level.tile[name]):
            add(loop_line(group, reg, name, min(part[name], level.tile[name])))
            depth += 1
    add(f'micro-kernel: {plan.most} channels x {plan.high * plan.wide} vectors of pixels, '
        f'{plan.most * plan.high * plan.wide} accumulators in {isa.registers} {isa.name} '
        f'registers')  # fmt: skip
    steps, rows = plan.steps()
    around = f', {rows} rows of a window' if rows > 1 else ''
    add(f'  inside: loop over {quantity(group, shape.summed, plan.sizes[shape.summed])}{around}, '
        f'{steps_text(len(steps))} unrolled')  # fmt: skip
    add('  store rows of results' + behind(group))
    return lines
