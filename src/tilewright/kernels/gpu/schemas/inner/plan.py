"""What the schema of inner products decides before it writes a line, and which schedules are legal.

Goes in: a group whose main stage sums products of two computed operands, both of them contiguous
along what is summed up, and a schedule. Comes out: an `InnerPlan`. The roles of dimensions, for the
weights of a convolution, Grad[k, c, r, s] += Up[n, k, h, w] * In[n, c, h + r - 1, w + s - 1]:

    tall     dimensions of one operand alone     k
    wide     of the other one alone              c
    depth    what is summed up, flattened        n h w
    apart    a product of its own for each       r s, since they shift what is read; groups

Both operands are copied to shared memory as they lie, so that nothing is packed, and an element
outside its tensor becomes a zero. Decisions of a schedule:

    bk bp      tall and wide elements of a block       tk tp   of a warp
    kb stages  depth of a piece, pieces in flight      split   blocks that share a tile's depth
    joint      1: what shifts an operand is among its own dimensions instead (few channels), so that
               bounds are looked at for every element
    fresh      1: matrix units begin every eight depths at zero, and their sums are added in fp32;
               0 where it is not said
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.pointwise import Epilogue, access_strides
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.product import require
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

MOST_TILES = 65535  # blocks along the second and third dimension of a grid
MOST_STEP = 2  # elements between neighbours in depth: a convolution with stride 2
INTRINSIC = 'mma_tf32x3'
DECISIONS = ('bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split', 'joint')

Sizes = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Operand:
    """One side of the product: its own dimensions, where elements lie, and what may be outside."""

    access: Access
    own: Sizes
    strides: dict[str, int]
    const: int
    tests: tuple[str, ...]
    bounded: frozenset[str]

    @property
    def count(self) -> int:
        return math.prod(size for _, size in self.own)

    @property
    def each(self) -> bool:
        """Whether its own dimensions decide what is outside."""
        return not self.bounded.isdisjoint(name for name, _ in self.own)

    def fours(self, depth: Sizes, apart: Sizes) -> bool:
        """Whether four neighbours in depth are copied at once."""
        *outer, (name, size) = depth
        others = [self.strides.get(d, 0) for d, _ in (*self.own, *apart, *outer)]
        return (
            not self.tests
            and self.strides[name] == 1
            and not any(n % 4 for n in (size, self.const, *others))
        )


@dataclass(frozen=True)
class Roles:
    """Both operands, what is summed up, and what the grid has a product of its own for."""

    tall: Operand
    wide: Operand
    depth: Sizes
    apart: Sizes


@lru_cache(maxsize=256)
def roles(group: Group, joint: bool = False) -> Roles | None:
    """The roles of a group's dimensions; None where operands do not lie so, or nothing is joint."""
    stage = group.main
    if not group.is_plain or not stage.is_product_sum or parts(group) != (group,):
        return None
    if stage.pad_value != 0 or len(stage.reads) != 2 or not stage.reduction:
        return None
    first, second = stage.reads
    if group.tensor(second.tensor).role == 'constant':
        return None  # what is known ahead is packed ahead
    last = stage.write.index[-1].names
    if any(name in first.names and name not in second.names for name in last):
        first, second = second, first
    shifting = _shifting(stage.reads, stage.reduction)
    if joint and not any(stage.sizes[d] > 1 for d in shifting):
        return None
    shifting = set() if joint else shifting
    both = {
        d for d in stage.parallel
        if d in shifting or (d in first.names) == (d in second.names)
    }  # fmt: skip
    sizes = stage.sizes
    strides = [access_strides(group, access)[0] for access in (first, second)]
    depth = sorted(
        stage.reduction, key=lambda d: tuple(-abs(one.get(d, 0)) for one in strides)
    )  # fmt: skip
    if any(not 1 <= one.get(depth[-1], 0) <= MOST_STEP for one in strides):
        return None
    tall, wide = (_operand(group, access, both) for access in (first, second))
    bounded = tall.bounded | wide.bounded
    if tall.count == 1 or wide.count == 1 or (not joint and (tall.each or wide.each)):
        return None
    apart = tuple((d, sizes[d]) for d in stage.parallel if d in both)
    return Roles(tall, wide, _merged([(d, sizes[d]) for d in depth], strides, bounded), apart)


def _shifting(reads: Iterable[Access], reduction: Iterable[str]) -> set[str]:
    """Dimensions that share an index with one that is summed up."""
    return {
        name
        for access in reads
        for index in access.index
        if set(index.names) & set(reduction)
        for name in index.names
        if name not in reduction
    }


def _operand(group: Group, access: Access, both: set[str]) -> Operand:
    stage = group.main
    own = tuple((d, stage.sizes[d]) for d in stage.parallel if d in access.names and d not in both)
    strides, const = access_strides(group, access)
    shape = group.tensor(access.tensor).shape
    bounded = frozenset(
        name
        for index, extent in zip(access.index, shape, strict=True)
        if pieces.leaves(index, extent, stage.sizes)
        for name in index.names
    )
    tests = tuple(pieces.guards(group, access, stage.sizes))
    return Operand(access, own, strides, const, tests, bounded)


def _merged(
    depth: list[tuple[str, int]], strides: list[dict[str, int]], kept: frozenset[str]
) -> Sizes:
    """Neighbours that both operands walk as one under the name of the inner one."""
    found = [depth[-1]]
    for name, size in reversed(depth[:-1]):
        inner, length = found[0]
        alike = all(one.get(name, 0) == one.get(inner, 0) * length for one in strides)
        if alike and not {name, inner} & kept:
            found[0] = inner, length * size
        else:
            found.insert(0, (name, size))
    return tuple(found)


@dataclass(frozen=True)
class InnerPlan:
    """Everything that is decided before a line is written."""

    group: Group
    roles: Roles
    epilogue: Epilogue
    bk: int
    bp: int
    tk: int
    tp: int
    kb: int
    stages: int
    split: int
    fresh: bool = False

    @property
    def sides(self) -> tuple[tuple[str, Operand, int], ...]:
        """(letter, operand, elements of a block) of both operands."""
        return ('y', self.roles.tall, self.bk), ('x', self.roles.wide, self.bp)

    @property
    def threads(self) -> int:
        return (self.bk // self.tk) * (self.bp // self.tp) * WARP

    @property
    def own(self) -> tuple[int, int]:
        """Tall and wide elements whose sums one thread holds."""
        return self.tk // 8, self.tp // 4

    @property
    def pitch(self) -> int:
        """Floats between neighbours of an operand: four more put the eight rows and four depths of
        a fragment into 32 different banks.
        """
        return self.kb + 4

    @property
    def length(self) -> int:
        return math.prod(size for _, size in self.roles.depth)

    @property
    def iterations(self) -> int:
        return -(-self.length // self.kb)

    @property
    def share(self) -> int:
        """Pieces of a block."""
        return -(-self.iterations // self.split)

    @property
    def groups(self) -> int:
        return math.prod(size for _, size in self.roles.apart)

    @property
    def tiles(self) -> tuple[int, int]:
        return -(-self.roles.tall.count // self.bk), -(-self.roles.wide.count // self.bp)

    @property
    def results(self) -> int:
        return self.groups * self.roles.tall.count * self.roles.wide.count

    def run(self, operand: Operand) -> int:
        """Neighbours in depth that one copy takes."""
        return 4 if operand.fours(self.roles.depth, self.roles.apart) else 1


def plan(group: Group, schedule: GpuSchedule) -> InnerPlan:
    """[Group, GpuSchedule] -> [InnerPlan]; raises ScheduleError where it is not legal."""
    found = roles(group, bool(schedule['joint']))
    if found is None:
        raise ScheduleError(
            f'{group.label}: the inner schema needs products of two computed operands, both '
            f'contiguous along what is summed up'
        )
    numbers = [schedule[name] for name in DECISIONS[:-1]]
    fresh = bool(dict(schedule.tiles).get('fresh'))
    p = InnerPlan(group, found, gpu_epilogue(group), *numbers, fresh=fresh)
    require(
        group,
        schedule,
        [
            (f'the intrinsic is {INTRINSIC}', schedule.intrinsic == INTRINSIC),
            ('every decision is at least 1', min(numbers) >= 1),
            ('tk divides bk and tp divides bp', not (p.bk % max(p.tk, 1) or p.bp % max(p.tp, 1))),
            ('tk is a multiple of 16 and tp of 8', not (p.tk % 16 or p.tp % 8)),
            ('kb is a multiple of 8', p.kb % 8 == 0),
        ],
    )
    require(
        group,
        schedule,
        [
            ('threads copy whole runs of depth', p.threads % p.kb == 0),
            (f'split is at most the {p.iterations} pieces', p.split <= p.iterations),
            ('every block has pieces', (p.split - 1) * p.share < p.iterations),
            (f'a grid has at most {MOST_TILES} of them', p.tiles[1] * p.groups <= MOST_TILES),
        ],
    )
    return p
