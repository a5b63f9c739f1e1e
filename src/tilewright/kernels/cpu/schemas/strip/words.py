"""The loops of the strip schema in words."""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.strip.plan import plan_strip, strip_pixels
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def strip_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks of register tiles, panels of weights, register tiles."""
    plan = plan_strip(group, schedule)
    panels, (runs, tiles) = plan.words.panels, strip_pixels(plan)
    blocks = -(-tiles // (plan.tiles * plan.block))
    lines = []
    if plan.copy:
        lines.append(f'copy rows with their border, {plan.copy.pitch} pixels each')
    lines += [
        f'for {runs} rows or strips of {tiles} tiles, {plan.rows} pixels each',
        f'  for {blocks} blocks of tiles, for {panels.width} of {panels.size} channels',
        f'    {plan.tiles} x {panels.vectors} tiles of sums, {plan.words.deep} words at once',
        '      meanwhile what follows the sums of the tiles before',
    ]
    return lines
