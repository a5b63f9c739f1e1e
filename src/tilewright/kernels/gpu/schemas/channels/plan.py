"""What the channels schema decides before it writes a line, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `ChannelsPlan`. code.py says what the decisions mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.language import LARGEST_CLUSTER, Array
from tilewright.kernels.gpu.product import ProductPlan, require
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.dtypes import DTYPES, HALVES
from tilewright.ops.group import Group
from tilewright.ops.integer import SMALL, is_integer_products
from tilewright.schedule.gpu import GpuSchedule

NAME = 'channels'
HALF_INTRINSICS = ('mma_half', 'wgmma_half')
BYTE_INTRINSICS = ('mma_int8', 'wgmma_int8')
CHUNK_BYTES = 16  # by which rows of shared memory are ordered
WORD_BYTES = 4
WARPGROUP = 128
ROW_BYTES = (32, 64, 128)  # of a row in shared memory; the longest has all banks
STEP_WORDS = 8  # of a row that a matrix instruction multiplies


@dataclass(frozen=True)
class ChannelsPlan(ProductPlan):
    """Everything that is decided before a line is written."""

    bp: int
    bk: int
    tp: int
    tk: int
    kb: int
    stages: int
    split: int
    queue: int
    bulk: bool
    near: bool
    wide: bool
    cluster: bool

    @property
    def kind(self) -> str:
        """What matrix units multiply: 'f16', 'bf16', or 8-bit numbers such as 'u8_i8'."""
        a, b = (self.group.tensor(x.tensor).dtype for x in (self.contraction.a, self.contraction.b))
        return a if a == b and a in HALVES else f'{a}_{b}'

    @property
    def item(self) -> int:
        """Bytes of a factor."""
        return DTYPES[self.group.tensor(self.contraction.a.tensor).dtype]

    @property
    def whole(self) -> bool:
        """Whether sums are whole numbers, which stand in the place of floats."""
        return self.item == 1

    @property
    def per_word(self) -> int:
        return WORD_BYTES // self.item

    @property
    def words(self) -> int:
        """Of a row of a piece."""
        return self.kb // self.per_word

    @property
    def pad(self) -> int:
        """What stands for every factor outside the image: its zero point."""
        return int(self.group.main.pad_value)

    @property
    def team(self) -> int:
        """Threads that multiply together."""
        return WARPGROUP if self.wide else WARP

    @property
    def threads(self) -> int:
        return (self.bk // self.tk) * (self.bp // self.tp) * self.team

    @property
    def sums(self) -> tuple[int, int]:
        """Sums of a thread: tiles of 64 or 16 rows, and of each of them."""
        return self.tp // (64 if self.wide else 16), self.tk // 2

    @property
    def chunk(self) -> int:
        """Elements of sixteen bytes."""
        return CHUNK_BYTES // self.item

    @property
    def chunks(self) -> int:
        """Chunks of a row of a piece."""
        return self.kb // self.chunk

    @property
    def unit(self) -> int:
        """Channels that are copied at once: sixteen bytes of them, or eight."""
        return _unit(self.group, self.contraction)

    @property
    def units(self) -> int:
        """Units of a row of a piece."""
        return self.kb // self.unit

    @property
    def storing(self) -> int:
        """Threads that deal out the results of a tile: in a cluster those of all its blocks."""
        return self.threads * (self.split if self.cluster else 1)

    @property
    def rows(self) -> list[tuple[str, int]]:
        return [(d, self.sizes[d]) for d in self.contraction.pixels]

    @property
    def points(self) -> int:
        return math.prod(size for _, size in self.rows)

    @property
    def row_tiles(self) -> int:
        return -(-self.points // self.bp)

    @property
    def column_tiles(self) -> int:
        return -(-self.columns // self.bk)

    @property
    def tiles(self) -> int:
        return self.row_tiles * self.column_tiles * self.groups

    @property
    def depth(self) -> int:
        """Units of all channels and window points."""
        return self.window_points * self.channels // self.unit

    @property
    def iterations(self) -> int:
        return -(-self.depth // self.units)

    @property
    def ahead(self) -> int:
        """Pieces that are asked for before they are multiplied."""
        return self.stages - self.queue

    @property
    def tile_floats(self) -> tuple[int, int]:
        """Words of a piece in shared memory: rows, columns."""
        return self.bp * self.words, self.bk * self.words

    @property
    def pitch(self) -> int:
        """Floats between two rows of results in shared memory: two of four rows share no bank."""
        return (self.bk + 23) // 32 * 32 + 8

    @property
    def shared_floats(self) -> int:
        """Pieces in flight, and in their place, once all are multiplied, the block's results."""
        return max(self.stages * sum(self.tile_floats), self.bp * self.pitch)

    @property
    def packed(self) -> Array:
        """The constant operand as pieces of it lie in shared memory, several elements a word."""
        sizes = (self.groups, self.column_tiles, self.iterations, self.bk, self.words)
        names = ('g_', 'tile', 'piece', 'row', 'word')
        return Array(f'{self.contraction.b.tensor}_packed', names, sizes)

    def place(self, row: str, unit: str) -> str:
        """Where a unit of a row lies in shared memory, in floats."""
        per_chunk = self.chunk // self.unit
        chunk = f'({unit} / {per_chunk} ^ {self.turned(row)})' if per_chunk > 1 else (
            f'({unit} ^ {self.turned(row)})'
        )  # fmt: skip
        rest = f' + {unit} % {per_chunk} * {self.unit // self.per_word}' if per_chunk > 1 else ''
        return f'{row} * {self.words} + {chunk} * 4{rest}'

    def turned(self, row: str) -> str:
        """By what the number of a chunk is changed in a row, so that eight rows share no bank."""
        apart = ROW_BYTES[-1] // (self.kb * self.item)
        return f'({row} / {apart} % {self.chunks})' if apart > 1 else f'({row} % {self.chunks})'


def unit_of(channels: int, item: int) -> int:
    """Channels that are copied at once; 0 where sixteen bytes, or eight, are no whole channels."""
    most = CHUNK_BYTES // item
    return next((unit for unit in (most, most // 2) if channels % unit == 0), 0)


def is_served(group: Group) -> bool:
    """Whether the group is a sum of products of half types, or of 8-bit numbers, along contiguous
    channels.
    """
    return not why_not(group)


def _factor_types(group: Group) -> tuple[str, ...]:
    """What both factors may be; () where the schema has no products for a group's types."""
    if group.half:
        return (group.half,)
    read = {group.tensor(a.tensor).dtype for s in group.epilogue for a in s.reads}
    known = read <= {*SMALL, 'i32', 'f32'} and group.output.dtype in (*SMALL, 'i32', 'f32')
    return SMALL if known and is_integer_products(group) else ()


@lru_cache(maxsize=256)
def _roles(group: Group) -> Contraction | None:
    """The roles of a group's dimensions. What lies outside an image of 8-bit numbers is its zero
    point, which is copied as zeros are.
    """
    bare = replace(
        group,
        stages=tuple(
            replace(stage, pad_value=0.0) if stage is group.main else stage
            for stage in group.stages
        ),
    )
    plain = bare if group.main.pad_value and is_integer_products(group) else group
    found = vector_candidates(plain)
    return _deepened(group, contract(plain, found[0])) if found else None


@lru_cache(maxsize=256)
def why_not(group: Group) -> str:
    """What is in the way, or ''."""
    types = _factor_types(group)
    if not types:
        return 'it has no tensors of f16 or bf16, and no products of 8-bit numbers'
    c = _roles(group)
    if c is None:
        return 'it is not a sum of products with a constant operand'
    if c.columns or not c.loop:
        return 'it has further columns, or nothing to sum up'
    if not {group.tensor(a.tensor).dtype for a in (c.a, c.b)} <= {*types}:
        return f'its factors are not both {" or ".join(types)}'
    item = DTYPES[group.tensor(c.a.tensor).dtype]
    size = group.main.sizes[c.loop]
    if access_strides(group, c.a)[0].get(c.loop) != 1 or not unit_of(size, item):
        least = CHUNK_BYTES // 2 // item
        return f'its {size} channels are not contiguous, or not a multiple of {least}'
    if not _unit(group, c):
        return f'its pixels do not begin at multiples of {CHUNK_BYTES // 2} bytes'
    return ''


def _unit(group: Group, c: Contraction) -> int:
    """Channels that are copied at once: all that a copy reads begins at multiples of them."""
    strides, const = access_strides(group, c.a)
    others = (s for name, s in strides.items() if name != c.loop)
    item = DTYPES[group.tensor(c.a.tensor).dtype]
    return unit_of(math.gcd(group.main.sizes[c.loop], const, *others), item)


def _deepened(group: Group, c: Contraction) -> Contraction:
    """The roles with the reduction that is contiguous in the image as depth, where none is: rows of
    pixels and channels in one (graph/half_rows.py).
    """
    strides, _ = access_strides(group, c.a)
    beside = [d for d in c.unrolled if strides.get(d) == 1]
    if c.loop or not beside:
        return c
    return replace(c, loop=beside[0], unrolled=tuple(d for d in c.unrolled if d != beside[0]))


def plan(group: Group, schedule: GpuSchedule) -> ChannelsPlan:
    """[Group, GpuSchedule] -> [ChannelsPlan]; raises ScheduleError where it is not legal."""
    reason, contraction = why_not(group), _roles(group)
    if reason or contraction is None:
        raise ScheduleError(f'{group.label}: the {NAME} schema does not apply: {reason}')
    numbers = {n: schedule[n] for n in ('bp', 'bk', 'tp', 'tk', 'kb', 'stages', 'split')}
    said = dict(schedule.tiles)
    intrinsics = HALF_INTRINSICS if group.half else BYTE_INTRINSICS
    wide = schedule.intrinsic == intrinsics[1]
    p = ChannelsPlan(
        group, contraction, gpu_epilogue(group), **numbers, queue=said.get('queue', 1),
        bulk=bool(said.get('bulk', 0)), near=bool(said.get('near', 0)), wide=wide,
        cluster=bool(said.get('cluster', 0)),
    )  # fmt: skip
    unit, depths = 64 if wide else 16, tuple(size // p.item for size in ROW_BYTES)
    require(
        group,
        schedule,
        [
            (f'the intrinsic is one of {intrinsics}', schedule.intrinsic in intrinsics),
            ('every decision is at least 1', min(*numbers.values(), p.queue) >= 1),
            (f'kb is one of {depths}', p.kb in depths),
            ('tk divides bk and tp divides bp', not (p.bk % max(p.tk, 1) or p.bp % max(p.tp, 1))),
            (f'bp and tp are multiples of {unit}', not (p.bp % unit or p.tp % unit)),
            ('bk and tk are multiples of 16', not (p.bk % 16 or p.tk % 16)),
            ('all columns belong to each warpgroup', not wide or p.tk == p.bk),
            ('a warpgroup has at most 256 columns', not wide or p.bk <= 256),
            ('queue is 1, or 2 with three stages or more', p.queue == 1 or p.stages > p.queue == 2),
            ('columns come in bulk for warpgroups alone', wide or not p.bulk),
            (
                f'a cluster has 2 to {LARGEST_CLUSTER} blocks, of warpgroups',
                not p.cluster or (wide and 1 < p.split <= LARGEST_CLUSTER),
            ),
            ('at most 128 sums belong to a thread', math.prod(p.sums) <= 128),
        ],
    )
    copied = p.bp * p.units
    require(
        group,
        schedule,
        [
            ('every thread loads as much', p.threads <= 1024 and copied % p.threads == 0),
            ('a thread copies at most 16 rows', copied // p.threads <= 16),
            (f'split is at most the {p.iterations} pieces', p.split <= p.iterations),
        ],
    )
    return p
