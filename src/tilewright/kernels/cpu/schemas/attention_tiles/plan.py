"""What the schema of attention in tiles decides before it writes a line.

Goes in: an attention group that multiplies bf16, and a schedule with schema 'attention_tiles',
which tiles as that of floats does (schemas/attention/plan.py). Comes out: a plan, or a
ScheduleError that says why the schedule is not legal.

Words hold two numbers: neighbours of a row's depth in the first product, two keys in the second.
Depth and keys are filled up to whole tiles of 16 words with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa.tiles import fits, row_tiles
from tilewright.kernels.cpu.schemas.attention.plan import SPARE, AttentionPlan
from tilewright.machine.isa import ISAS, TILE_ROWS
from tilewright.ops.attention import COLUMN, DEPTH, KEY, ROW, read_attention, why_no_attention
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

PRODUCTS = 2  # numbers of a word
WHOLE = PRODUCTS * TILE_ROWS  # numbers that a tile adds up at once
SOURCES = ('bf16', 'f32')  # what factors and results may be; floats are rounded as they are copied


@dataclass(frozen=True)
class TiledAttentionPlan(AttentionPlan):
    """Scores, weights and sums of a block in float32, factors in words."""

    @property
    def deep(self) -> int:
        """Words of a row or a key."""
        return -(-self.size(DEPTH) // WHOLE) * TILE_ROWS

    @property
    def key_words(self) -> int:
        """Words of all keys of a column."""
        return self.key_panels * self.width // PRODUCTS

    @property
    def weight_pitch(self) -> int:
        """Words from one row of weights to the next."""
        return self.keys // PRODUCTS + SPARE

    @property
    def buffers(self) -> tuple[tuple[str, int], ...]:
        return (
            ('k_panels', abi.aligned(self.key_panels * self.width * self.deep)),
            ('v_panels', abi.aligned(self.key_words * self.columns)),
            ('q_rows', abi.aligned(self.rows * self.deep)),
            ('scores', abi.aligned(self.rows * self.pitch)),
            ('weights', abi.aligned(self.rows * self.weight_pitch)),
            ('sums', abi.aligned(self.rows * self.columns)),
            ('peaks', abi.aligned(self.rows)),
            ('totals', abi.aligned(self.rows)),
        )


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a machine with tiles."""
    why = why_no_attention(group)
    if why:
        return why
    form = read_attention(group)
    used = [group.tensor(a.tensor) for a in (form.queries, form.keys, form.columns)]
    other = [t.name for t in (*used, group.output) if t.dtype not in SOURCES]
    if other or not any(t.dtype == 'bf16' for t in used):
        return f'{other or [t.name for t in used]} of {group.label} are not bf16'
    return ''


def plan_tiled_attention(group: Group, schedule: Schedule) -> TiledAttentionPlan:
    """[Group, Schedule] -> [TiledAttentionPlan]"""
    why = why_not(group)
    if why:
        raise ScheduleError(f'{why}; the schema of attention in tiles cannot compute it')
    form, isa = read_attention(group), ISAS[schedule.isa]
    label, reg = group.label, schedule.reg.tile
    if not isa.rows or set(reg) != set(form.values.sizes) or len(schedule.levels) < 2:
        raise ScheduleError(
            f'{label}: a schedule of {len(schedule.levels)} levels for {schedule.isa}; attention '
            f'in tiles needs tiles, and a block of rows and keys as its second level'
        )
    block = schedule.levels[1].tile
    high, width = reg[ROW], reg[COLUMN]
    if width % WHOLE or block[KEY] % width or block[ROW] % high:
        raise ScheduleError(
            f'{label}: blocks of {block[ROW]} rows and {block[KEY]} keys are not whole tiles of '
            f'{high} x {width}, or these not multiples of {WHOLE} keys'
        )
    if not fits(row_tiles((high,)), width // isa.lanes):
        raise ScheduleError(
            f'{label}: {high} x {width} sums are more than tiles hold: choose a smaller tile'
        )
    bad = [d for d, _ in schedule.parallel if d not in (*form.stack, ROW)]
    if bad:
        raise ScheduleError(f'{label}: {bad} cannot be cut between threads')
    return TiledAttentionPlan(
        group, schedule, form, False, isa.lanes, high, width, block[ROW], block[KEY]
    )
