"""What the tiled schema decides before it writes a line, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `TiledPlan`. code.py says what the decisions mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.pointwise import Epilogue
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

INTRINSICS = ('fma', 'mma_tf32x3')
WARP = 32


@dataclass(frozen=True)
class TiledPlan:
    """Everything that is decided before a line is written."""

    group: Group
    contraction: Contraction
    epilogue: Epilogue
    bk: int
    bp: int
    tk: int
    tp: int
    kb: int
    stages: int
    split: int
    joint: bool
    matrix: bool

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
    def sizes(self) -> dict[str, int]:
        return self.group.main.sizes

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [(d, self.sizes[d]) for d in self.contraction.pixels]

    @property
    def points(self) -> int:
        return math.prod(size for _, size in self.rows)

    @property
    def windows(self) -> list[tuple[str, int]]:
        c = self.contraction
        return [(d, self.sizes[d]) for d in (*c.outer, *c.unrolled)]

    @property
    def window_points(self) -> int:
        return math.prod(size for _, size in self.windows)

    @property
    def channels(self) -> int:
        return self.sizes[self.contraction.loop] if self.contraction.loop else 1

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
    def columns(self) -> int:
        return self.sizes[self.contraction.vector]

    @property
    def column_tiles(self) -> int:
        return -(-self.columns // self.bk)

    @property
    def row_tiles(self) -> int:
        return -(-self.points // self.bp)

    @property
    def batch(self) -> list[tuple[str, int]]:
        return [(d, self.sizes[d]) for d in self.contraction.batch]

    @property
    def groups(self) -> int:
        return math.prod(size for _, size in self.batch)

    @property
    def packed(self) -> str:
        return f'{self.contraction.b.tensor}_packed'

    @property
    def tiles(self) -> int:
        return self.row_tiles * self.column_tiles * self.groups


def plan(group: Group, schedule: GpuSchedule) -> TiledPlan:
    """[Group, GpuSchedule] -> [TiledPlan]; raises ScheduleError where the schedule is not legal."""
    candidates = vector_candidates(group)
    if not candidates:
        raise ScheduleError(f'{group.label}: the tiled schema needs a sum of products')
    contraction = contract(group, candidates[0])
    if contraction.columns:
        raise ScheduleError(f'{group.label}: further columns {contraction.columns} are not tiled')
    names = ('bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split')
    numbers = [schedule[name] for name in names]
    matrix = schedule.intrinsic == 'mma_tf32x3'
    bk, bp, tk, tp, kb, stages, split = numbers
    p = TiledPlan(
        group, contraction, gpu_epilogue(group), bk, bp, tk, tp, kb, stages, split,
        bool(schedule['joint']), matrix,
    )  # fmt: skip
    unit = 16 if matrix else 4
    wrong = [
        text
        for text, broken in (
            (f'the intrinsic is one of {INTRINSICS}', schedule.intrinsic not in INTRINSICS),
            ('every decision is at least 1', min(numbers) < 1),
            ('tk divides bk and tp divides bp', p.bk % max(p.tk, 1) or p.bp % max(p.tp, 1)),
            (f'bk, bp, tk and tp are multiples of {unit}', any(n % unit for n in numbers[:4])),
            ('kb is a multiple of 8 for matrix instructions', matrix and p.kb % 8),
        )
        if broken
    ]
    if not wrong:
        threads = p.threads
        wrong = [
            text
            for text, broken in (
                ('the threads of a block load whole rows', threads % p.bp and p.bp % threads),
                ('every thread loads as much', p.kb * p.bp % threads),
                (f'split is at most the {p.iterations} pieces', p.split > p.iterations),
            )
            if broken
        ]
    if wrong:
        raise ScheduleError(f'{group.label}: schedule {schedule.tiles}: it must be that {wrong[0]}')
    return p
