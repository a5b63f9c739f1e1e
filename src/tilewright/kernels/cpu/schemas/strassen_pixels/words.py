"""The loops of Strassen along pixels in words, as code.py writes them."""

from __future__ import annotations

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.strassen_pixels.plan import plan_strassen_pixels
from tilewright.kernels.cpu.words import behind, loop_line, quantity
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.ops.strassen import PRODUCTS
from tilewright.schedule.schedule import Schedule


def strassen_pixels_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks that are added, tiles of channels, products, and what results are made of."""
    plan, part = plan_strassen_pixels(group, schedule), part_extents(group.main, schedule)
    shape, level, isa = plan.shape, schedule.levels[1], ISAS[schedule.isa]
    lines: list[str] = []
    depth = 0

    def add(text: str) -> None:
        lines.append('  ' * depth + text)

    for name in (shape.batch, shape.across.name):
        if name and level.tile[name] < part[name]:
            add(loop_line(group, level, name, part[name]))
            depth += 1
    add(f'add up halves of {quantity(group, shape.summed, plan.sizes[shape.summed])} and strips of '
        f'{plan.strip} neighbours, {4 * plan.buffer_floats >> 10} KiB')  # fmt: skip
    add(f'for each tile of {plan.most} channels of either half')
    depth += 1
    add(f'for each of {PRODUCTS} products, for each pair of strips')
    add(f'  micro-kernel: {plan.most} channels x {plan.wide} vectors of pixels, '
        f'{plan.most * plan.wide} accumulators in {isa.registers} {isa.name} registers, loop over '
        f'{quantity(group, shape.summed, plan.deep)}')  # fmt: skip
    add('add up products and store the results' + behind(group))
    return lines
