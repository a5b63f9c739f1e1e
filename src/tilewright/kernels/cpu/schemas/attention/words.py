"""The loops of the attention schema in words, as code.py writes them."""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.attention.plan import AttentionPlan, plan_attention
from tilewright.machine.machine import bytes_text
from tilewright.ops.attention import DEPTH, KEY, ROW
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def attention_lines(group: Group, schedule: Schedule) -> list[str]:
    """Loops over stacked points, blocks of rows and blocks of keys."""
    return attention_words(plan_attention(group, schedule))


def attention_words(p: AttentionPlan) -> list[str]:
    """The loops of a plan."""
    lines = [f'for each of {p.size(d)} ({d}):' for d in p.packed_by]
    lines = ['  ' * depth + line for depth, line in enumerate(lines)]
    depth = len(lines)
    if not p.direct:
        size = bytes_text(4 * p.size(KEY) * (p.size(DEPTH) + p.columns))
        lines.append('  ' * depth + f'pack {p.size(KEY)} keys and what they weigh ({size})')
    for name in p.sharing:
        lines.append('  ' * depth + f'for each of {p.size(name)} ({name}), which share them:')
        depth += 1
    lines.append('  ' * depth + f'for each block of {p.rows} rows of {p.size(ROW)}:')
    seen = ' that one of them sees' if p.form.causal is not None else ''
    lines.append('  ' * (depth + 1) + f'for each block of {p.keys} keys of {p.size(KEY)}{seen}:')
    through = ''.join(f', {s.name}' for s in p.form.between)
    how = 'in place' if p.direct else f'micro-kernels of {p.high} x {p.width}'
    size = bytes_text(4 * p.rows * p.pitch)
    lines.append('  ' * (depth + 2) + f'scores, {how}, kept in a cache ({size}){through}')
    lines.append('  ' * (depth + 2) + 'their maximum and sum so far, sums scaled where it grew')
    lines.append('  ' * (depth + 2) + f'sums of what they weigh, {how}')
    lines.append('  ' * (depth + 1) + 'store the sums, divided by the total')
    return lines
