"""The loops of the schema of bytes in words, as code.py writes them."""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.byte_pairs.plan import UNIT, plan_byte_pairs
from tilewright.kernels.cpu.words import behind, quantity
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def byte_pairs_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks of runs that are packed, panels of channels, runs, and what a micro-kernel does."""
    plan, isa = plan_byte_pairs(group, schedule), ISAS[schedule.isa]
    pixels, panels = -(-plan.pixels // plan.tile_ways), -(-plan.panels // plan.k_ways)
    taps = f' for each of {plan.taps} points of the window' if plan.taps > 1 else ''
    return [
        f'for each block of {plan.block} runs of {plan.run} pixels, of {pixels} pixels:',
        f'  pack each run: {quantity(group, plan.term, plan.depth)}{taps}, in units of {UNIT}; '
        f'what is too large for sums in 16 bits goes to a list',
        f'  for each panel of {quantity(group, plan.channel, plan.width)} of {plan.size} '
        f'({panels} times):',
        '    for each run:',
        f'      micro-kernel: {plan.run} pixels x {plan.vectors} vectors of channels, '
        f'{plan.run * plan.vectors} accumulators in {isa.registers} {isa.name} registers',
        f'        inside: loop over {plan.units} units, then over the list',
        f'      store the results{behind(group)}',
    ]
