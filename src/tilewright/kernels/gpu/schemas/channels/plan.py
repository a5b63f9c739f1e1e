"""What the channels schema decides before it writes a line, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `ChannelsPlan`. code.py says what the decisions mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.language import Array
from tilewright.kernels.gpu.product import ProductPlan, product_of, require
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

NAME = 'channels'
INTRINSICS = ('mma_half', 'wgmma_half')
CHUNK = 8  # elements of sixteen bytes, by which rows of shared memory are ordered
WARPGROUP = 128
ATOM = 64  # elements of the longest row in shared memory: 128 bytes, all banks


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

    @property
    def dtype(self) -> str:
        return self.group.half

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
    def chunks(self) -> int:
        """Chunks of a row of a piece."""
        return self.kb // CHUNK

    @property
    def unit(self) -> int:
        """Channels that are copied at once: eight, or four where there are no eight."""
        return unit_of(self.channels)

    @property
    def units(self) -> int:
        """Units of a row of a piece."""
        return self.kb // self.unit

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
        return self.bp * self.kb // 2, self.bk * self.kb // 2

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
        """The constant operand as pieces of it lie in shared memory, two elements a word."""
        sizes = (self.groups, self.column_tiles, self.iterations, self.bk, self.kb // 2)
        names = ('g_', 'tile', 'piece', 'row', 'word')
        return Array(f'{self.contraction.b.tensor}_packed', names, sizes)

    def place(self, row: str, unit: str) -> str:
        """Where a unit of a row lies in shared memory, in floats."""
        per_chunk = CHUNK // self.unit
        chunk = f'({unit} / {per_chunk} ^ {self.turned(row)})' if per_chunk > 1 else (
            f'({unit} ^ {self.turned(row)})'
        )  # fmt: skip
        rest = f' + {unit} % {per_chunk} * {self.unit // 2}' if per_chunk > 1 else ''
        return f'{row} * {self.kb // 2} + {chunk} * 4{rest}'

    def turned(self, row: str) -> str:
        """By what the number of a chunk is changed in a row, so that eight rows share no bank."""
        apart = ATOM // self.kb
        return f'({row} / {apart} % {self.chunks})' if apart > 1 else f'({row} % {self.chunks})'


def unit_of(channels: int) -> int:
    """Channels that are copied at once; 0 where sixteen bytes, or eight, are no whole channels."""
    return next((unit for unit in (CHUNK, CHUNK // 2) if channels % unit == 0), 0)


def is_served(group: Group) -> bool:
    """Whether the group is a sum of products of half types along contiguous channels."""
    return bool(group.half) and not why_not(group)


def why_not(group: Group) -> str:
    """What is in the way, or ''."""
    found = vector_candidates(group)
    if not found:
        return 'it is not a sum of products with a constant operand'
    c = _deepened(group, contract(group, found[0]))
    if c.columns or not c.loop:
        return 'it has further columns, or nothing to sum up'
    if {group.tensor(a.tensor).dtype for a in (c.a, c.b)} != {group.half}:
        return f'its factors are not both {group.half}'
    strides, const = access_strides(group, c.a)
    size = group.main.sizes[c.loop]
    unit = unit_of(size)
    if strides.get(c.loop) != 1 or not unit:
        return f'its {size} channels are not contiguous, or not a multiple of {CHUNK // 2}'
    others = [s for name, s in strides.items() if name != c.loop]
    if any(n % unit for n in (const, *others)):
        return f'its pixels do not begin at multiples of {2 * unit} bytes'
    return ''


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
    contraction = _deepened(group, product_of(group, NAME))
    reason = why_not(group) if group.half else 'it has no tensors of f16 or bf16'
    if reason:
        raise ScheduleError(f'{group.label}: the {NAME} schema does not apply: {reason}')
    numbers = {n: schedule[n] for n in ('bp', 'bk', 'tp', 'tk', 'kb', 'stages', 'split')}
    said = dict(schedule.tiles)
    wide = schedule.intrinsic == 'wgmma_half'
    p = ChannelsPlan(
        group, contraction, gpu_epilogue(group), **numbers, queue=said.get('queue', 1),
        bulk=bool(said.get('bulk', 0)), near=bool(said.get('near', 0)), wide=wide,
    )  # fmt: skip
    unit = 64 if wide else 16
    require(
        group,
        schedule,
        [
            (f'the intrinsic is one of {INTRINSICS}', schedule.intrinsic in INTRINSICS),
            ('every decision is at least 1', min(*numbers.values(), p.queue) >= 1),
            ('kb is 16, 32 or 64', p.kb in (16, 32, 64)),
            ('tk divides bk and tp divides bp', not (p.bk % max(p.tk, 1) or p.bp % max(p.tp, 1))),
            (f'bp and tp are multiples of {unit}', not (p.bp % unit or p.tp % unit)),
            ('bk and tk are multiples of 16', not (p.bk % 16 or p.tk % 16)),
            ('all columns belong to each warpgroup', not wide or p.tk == p.bk),
            ('a warpgroup has at most 256 columns', not wide or p.bk <= 256),
            ('queue is 1, or 2 with three stages or more', p.queue == 1 or p.stages > p.queue == 2),
            ('columns come in bulk for warpgroups alone', wide or not p.bulk),
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
