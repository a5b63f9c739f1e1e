"""The loops of the stencil schema in words, as code.py writes them."""

from __future__ import annotations

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.stencil.cover import stencil
from tilewright.kernels.cpu.words import behind, loop_line, quantity, steps_text
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def stencil_lines(group: Group, schedule: Schedule) -> list[str]:
    """Planes, tiles of rows, strips of vectors, and what a tile does."""
    shape, part, reg = stencil(group), part_extents(group.main, schedule), schedule.reg
    isa, lanes = ISAS[schedule.isa], dict(schedule.options)['lanes']
    lines: list[str] = []
    for name in (*shape.outer, shape.down.name, shape.across.name):
        if name and reg.tile[name] < part[name]:
            lines.append('  ' * len(lines) + loop_line(group, reg, name, part[name]))
    vectors = min(reg.tile[shape.across.name], -(-shape.across.size // lanes) * lanes) // lanes
    rows = min(reg.tile[shape.down.name], part[shape.down.name]) if shape.down.name else 1
    loops = ' and '.join(quantity(group, d, group.main.sizes[d]) for d in shape.loops)
    inside = [
        f'tile: {rows} x {vectors} vectors of {lanes} lanes, {rows * vectors} accumulators in '
        f'{isa.registers} {schedule.isa} registers',
        *([f'  inside: loop over {loops}'] if loops else []),
        f'  {steps_text(shape.taps)} unrolled; {shape.a.tensor} is read in place, vectors across '
        f'an edge are shifted',
        'store the results' + behind(group),
    ]
    return [*lines, *('  ' * len(lines) + text for text in inside)]
