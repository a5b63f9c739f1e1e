"""What the tiled schema decides before it writes a line, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `TiledPlan`. code.py says what the decisions mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.front import Front
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import gpu_epilogue, gpu_front
from tilewright.kernels.gpu.language import Array
from tilewright.kernels.gpu.product import BlockedPlan, product_of, require
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group, row_major_strides
from tilewright.schedule.gpu import GpuSchedule

MOST_TILES = 65535  # blocks along the second dimension of a grid
INTRINSICS = ('fma', 'mma_tf32x3')


@dataclass(frozen=True)
class TiledPlan(BlockedPlan):
    """Everything that is decided before a line is written."""

    bp: int
    matrix: bool
    front: Front | None
    fresh: bool = False

    @property
    def image(self) -> str:
        """The tensor that rows are gathered from."""
        return self.front.source if self.front else self.contraction.a.tensor

    @property
    def threads(self) -> int:
        owners = (self.bk // self.tk) * (self.bp // self.tp)
        return owners * WARP if self.matrix else owners

    @property
    def own(self) -> tuple[int, int]:
        """Columns and rows whose sums one thread holds."""
        return (self.tk // 8, self.tp // 4) if self.matrix else (self.tk, self.tp)

    @property
    def run(self) -> int:
        """Rows of a thread that lie side by side."""
        return 2 if self.matrix else 4

    @property
    def pitch(self) -> tuple[int, int]:
        """Floats between two depths in shared memory: columns, rows.

        Eight lanes times four depths read one fragment of a matrix instruction: eight more floats
        put them into 32 different banks.
        """
        extra = 8 if self.matrix else 0
        return self.bk + extra, self.bp + extra

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [(d, self.sizes[d]) for d in self.contraction.pixels]

    @property
    def points(self) -> int:
        return math.prod(size for _, size in self.rows)

    @property
    def per_window(self) -> int:
        """Pieces of one window point, where each piece lies inside one."""
        return -(-self.channels // self.kb)

    @property
    def depth(self) -> int:
        """Rows of the packed operand, those that only fill up the last piece included."""
        if self.joint:
            return -(-self.window_points * self.channels // self.kb) * self.kb
        return self.window_points * self.per_window * self.kb

    @property
    def iterations(self) -> int:
        return self.depth // self.kb

    @property
    def row_tiles(self) -> int:
        return -(-self.points // self.bp)

    @cached_property
    def direct(self) -> bool:
        """Whether a computed operand lies in memory as it would be packed."""
        c = self.contraction
        if not self.moving or self.windows or c.b.tensor == self.image:
            return False
        if self.depth != self.channels or self.column_tiles * self.bk != self.columns:
            return False
        names = [*(d for d, _ in self.batch), *([c.loop] if c.loop else []), c.vector]
        packed = row_major_strides(tuple(self.sizes[d] for d in names))
        strides, const = access_strides(self.group, c.b)
        return const == 0 and all(
            strides.get(d, 0) == step or self.sizes[d] == 1
            for d, step in zip(names, packed, strict=True)
        )

    @property
    def packed(self) -> Array:
        """The operand of columns: [batch][depth][columns]; its own tensor where that is so."""
        if self.direct:
            return pieces.argument(self.group.tensor(self.contraction.b.tensor))
        sizes = (self.groups, self.depth, self.column_tiles * self.bk)
        return Array(f'{self.contraction.b.tensor}_packed', ('g', 'e', 'k'), sizes)

    @property
    def tiles(self) -> int:
        return self.row_tiles * self.column_tiles * self.groups


def plan(group: Group, schedule: GpuSchedule) -> TiledPlan:
    """[Group, GpuSchedule] -> [TiledPlan]; raises ScheduleError where the schedule is not legal."""
    contraction = product_of(group, 'tiled', moving=True)
    if contraction.columns:
        raise ScheduleError(f'{group.label}: further columns {contraction.columns} are not tiled')
    numbers = {n: schedule[n] for n in ('bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split')}
    matrix = schedule.intrinsic == 'mma_tf32x3'
    p = TiledPlan(
        group, contraction, gpu_epilogue(group), **numbers, joint=bool(schedule['joint']),
        matrix=matrix, front=gpu_front(group), fresh=bool(dict(schedule.tiles).get('fresh')),
    )  # fmt: skip
    unit = 16 if matrix else 4
    tiles = (p.bk, p.bp, p.tk, p.tp)
    require(
        group,
        schedule,
        [
            (f'the intrinsic is one of {INTRINSICS}', schedule.intrinsic in INTRINSICS),
            ('every decision is at least 1', min(numbers.values()) >= 1),
            ('tk divides bk and tp divides bp', not (p.bk % max(p.tk, 1) or p.bp % max(p.tp, 1))),
            (f'bk, bp, tk and tp are multiples of {unit}', not any(n % unit for n in tiles)),
            ('kb is a multiple of 8 for matrix instructions', not matrix or p.kb % 8 == 0),
            ('fresh is for matrix instructions', matrix or not p.fresh),
            ('joint is 0 where the image is changed as it is copied', not (p.joint and p.front)),
        ],
    )
    require(
        group,
        schedule,
        [
            (
                'the threads of a block load whole rows',
                p.threads % p.bp == 0 or p.bp % p.threads == 0,
            ),
            ('every thread loads as much', p.kb * p.bp % p.threads == 0),
            (f'split is at most the {p.iterations} pieces', p.split <= p.iterations),
            (
                f'there are at most {MOST_TILES} tiles of columns',
                p.column_tiles * p.groups <= MOST_TILES,
            ),
        ],
    )
    return p
