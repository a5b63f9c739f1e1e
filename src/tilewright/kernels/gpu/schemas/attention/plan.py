"""What is decided before a line of an attention kernel is written: tiles, pitches, shared memory.

Goes in: a group that ops/attention.py reads as an attention, and a schedule. Comes out: an
`AttentionPlan`, or a ScheduleError that says which decision is not legal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ScheduleError, SpecError
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.product import require
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.attention import COLUMN, DEPTH, KEY, ROW, Attention, read_attention
from tilewright.ops.group import Group
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'attention'
FOUR, EIGHT = 4, 8
# Depths of one step: of a float4, or of a matrix instruction.
STEPS = {'fma': FOUR, 'mma_tf32x3': EIGHT, 'mma_half': 16}
INTRINSICS = tuple(STEPS)
ROWS, KEYS = 16, 8  # of a tile of scores of a matrix instruction; columns are as many as keys
LARGEST_HEAD = 256  # depth or columns: sums of a row stay in registers


@dataclass(frozen=True)
class AttentionPlan:
    """Blocks of `rows` by `keys`; `lanes` threads share a row, a thread has `own` rows.

    sharing  warps that have the same rows, each its share of the keys of a block
    wide   operands are copied, and results stored, four (halves: eight) at a time where they lie
           side by side
    """

    group: Group
    form: Attention
    rows: int
    keys: int
    own: int
    lanes: int
    wide: bool
    intrinsic: str
    sharing: int

    @property
    def matrix(self) -> bool:
        return self.intrinsic != 'fma'

    @property
    def halves(self) -> bool:
        """Whether operands lie in shared memory as they are, two halves in each word."""
        return self.intrinsic == 'mma_half'

    def size(self, name: str) -> int:
        return self.form.sizes[name]

    def dtype(self, access: Access) -> str:
        return self.group.tensor(access.tensor).dtype

    @property
    def stack(self) -> list[tuple[str, int]]:
        return [(d, self.size(d)) for d in self.form.stack]

    @property
    def row_tiles(self) -> int:
        return -(-self.size(ROW) // self.rows)

    @property
    def blocks(self) -> int:
        return self.row_tiles * math.prod(size for _, size in self.stack)

    @property
    def apart(self) -> int:
        """Rows between two of a thread."""
        return self.rows // self.own

    @property
    def threads(self) -> int:
        return self.apart * self.lanes * self.sharing

    @property
    def scores(self) -> int:
        """Keys whose scores a thread computes, for each of its rows."""
        return self.keys // self.lanes

    @property
    def depth(self) -> int:
        """Numbers of a row of queries or keys, zeros behind it included."""
        unit = STEPS[self.intrinsic]
        return -(-self.size(DEPTH) // unit) * unit

    @property
    def fours(self) -> int:
        """Runs of four columns that a thread sums up."""
        return -(-self.size(COLUMN) // (FOUR * self.lanes))

    @property
    def columns(self) -> int:
        if self.matrix:
            unit = STEPS[self.intrinsic]
            return -(-self.size(COLUMN) // unit) * unit
        return self.fours * FOUR * self.lanes

    @property
    def depth_pitch(self) -> int:
        """Words from one row of queries or keys to the next."""
        return spread(self.depth // 2 if self.halves else self.depth)

    @property
    def column_pitch(self) -> int:
        words = self.columns // 2 if self.halves else self.columns
        return spread(words) if self.matrix else words

    @property
    def ragged(self) -> bool:
        """Whether some block has keys that a row does not see, or that are not there."""
        return self.form.causal is not None or self.size(KEY) % self.keys > 0

    @property
    def share(self) -> str:
        """What a row's sums are multiplied by; `whole` is the total of its weights."""
        return 'whole == 0.0f ? 0.0f : 1.0f / whole' if self.form.guarded else '1.0f / whole'

    @property
    def weight_pitch(self) -> int:
        return spread(self.keys)

    @property
    def shared(self) -> tuple[tuple[str, int], ...]:
        """(array, floats) of shared memory."""
        operands = (
            ('q_tile', self.rows * self.depth_pitch),
            ('k_tile', self.keys * self.depth_pitch),
            ('v_tile', self.keys * self.column_pitch),
        )
        if self.matrix:
            values = self.own // EIGHT * (2 + self.columns // FOUR)
            slots = self.apart * (self.sharing - 1) * WARP
            return (*operands, *([('parts', slots * values)] if slots else []))
        return (
            *operands,
            ('weights', self.rows * self.weight_pitch),
            ('tops', self.rows * self.lanes),
        )

    @property
    def key_blocks(self) -> float:
        """Blocks of keys that a block of rows looks at, in the mean."""
        whole = -(-self.size(KEY) // self.keys)
        if self.form.causal is None:
            return whole
        ends = [
            min(self.size(KEY), max(tile * self.rows + self.rows + self.form.causal, 0))
            for tile in range(self.row_tiles)
        ]
        return max(sum(-(-end // self.keys) for end in ends) / len(ends), 1.0)

    def strides(self, access: Access) -> tuple[dict[str, int], int]:
        """(elements between neighbours along each iterator, those before the first)."""
        found, const = access_strides(self.group, access)
        return {name: found.get(name, 0) for name in (*self.form.sizes,)}, const

    def is_wide(self, access: Access, along: str, run: int = FOUR) -> bool:
        """Whether rows of an operand, or of the result, may be moved `run` elements at a time."""
        return (
            self.wide
            and self.size(along) % run == 0
            and pieces.aligned(self.group, access, along, run)
        )

    def copied(self, access: Access, along: str) -> int:
        """Elements of an operand that a thread copies at once."""
        run = EIGHT if self.halves else FOUR
        return run if self.is_wide(access, along, run) else 1


def spread(floats: int) -> int:
    """Floats from one row to the next: an odd number of fours, so that rows differ in banks."""
    fours = -(-floats // FOUR)
    return FOUR * (fours + 1 - fours % 2)


def plan(group: Group, schedule: GpuSchedule) -> AttentionPlan:
    """[Group, GpuSchedule] -> [AttentionPlan]; ScheduleError where the schedule is not legal."""
    try:
        form = read_attention(group)
    except SpecError as error:
        raise ScheduleError(f'{error}; use another schema') from None
    bi, bj, ti, lanes, wide = (schedule[n] for n in ('bi', 'bj', 'ti', 'lanes', 'wide'))
    share = dict(schedule.tiles).get('share', 1)
    step = STEPS.get(schedule.intrinsic, FOUR)
    matrix, halves = step > FOUR, schedule.intrinsic == 'mma_half'
    operands = {group.tensor(a.tensor).dtype for a in (form.queries, form.keys, form.columns)}
    head = max(form.sizes[DEPTH], form.sizes[COLUMN])
    require(
        group,
        schedule,
        [
            (f'the intrinsic is one of {INTRINSICS}', schedule.intrinsic in INTRINSICS),
            ('a warp has 16 or 32 rows', not matrix or (ti in (16, 32) and lanes == WARP)),
            (f'heads have at most {LARGEST_HEAD} elements', head <= LARGEST_HEAD),
            ('ti divides bi', ti >= 1 and bi >= 1 and bi % ti == 0),
            ('lanes is a power of two from 4 on', lanes >= FOUR and not lanes & (lanes - 1)),
            (
                'lanes divides bj, and the depth of a matrix instruction its shares',
                bj >= FOUR and bj % (step * max(share, 1) if matrix else max(lanes, 1)) == 0,
            ),
            ('mma_half takes operands of one half type', not halves or operands == {group.half}),
            ('wide is 0 or 1', wide in (0, 1)),
            ('rows are shared by 1, 2 or 4 warps', share in ((1, 2, 4) if matrix else (1,))),
        ],
    )
    return AttentionPlan(group, form, bi, bj, ti, lanes, wide == 1, schedule.intrinsic, share)
