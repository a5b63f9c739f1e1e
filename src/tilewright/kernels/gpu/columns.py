"""Schedules of one group and schema as columns: what learned models look at, many at once.

A `Batch` has a column of whole numbers for each decision. `Counts` are the fields of
kernels/gpu/work.py's `Work` as arrays, and the tiles by level; a `Tiling` says how many outputs of
the main stage a block and a thread have along each iterator, for rank/footprints.py. A schema may
fill them from its own formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import InputError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.gpu import GpuSchedule

Array = np.ndarray
Sizes = Mapping[str, Array]
LEVELS = ('thread', 'lanes', 'warps', 'block')
TILE_FIELDS = tuple(f'{level}_{dim}' for level in LEVELS for dim in 'kyx')


@dataclass(frozen=True)
class Batch:
    """Schedules of one group: `tiles` has a column of whole numbers for each decision."""

    group: Group
    schema: str
    intrinsic: str
    tiles: Mapping[str, Array] = field(repr=False)

    def __post_init__(self) -> None:
        lengths = {name: len(column) for name, column in self.tiles.items()}
        if not lengths or len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
            raise InputError(
                f'{self.group.label}: the columns of a batch have {lengths} rows; give each as '
                f'many, at least one'
            )

    def __len__(self) -> int:
        return len(next(iter(self.tiles.values())))

    def schedule(self, row: int) -> GpuSchedule:
        tiles = tuple((name, int(column[row])) for name, column in self.tiles.items())
        return GpuSchedule(self.schema, tiles, self.intrinsic)

    def take(self, rows: Array) -> Batch:
        tiles = {name: column[rows] for name, column in self.tiles.items()}
        return Batch(self.group, self.schema, self.intrinsic, tiles)

    def column(self, name: str, default: int = 1) -> Array:
        """The values of a decision; `default` where schedules do not name it."""
        column = self.tiles.get(name)
        return np.full(len(self), default) if column is None else np.asarray(column)


@dataclass(frozen=True)
class Counts:
    """Fields of `Work` as arrays, and what its schema says of tiles.

    tiles     outputs of a thread, lanes of a warp, warps of a block and outputs of a block, along
              channels (k), rows (y) and columns (x); 0 where a schema has no such level
    staged    rows and columns of the input that a block copies for each channel; 0 likewise
    depth     channels that are staged at once
    """

    blocks: Array
    split: Array
    threads: Array
    registers: Array
    shared_bytes: Array
    stages: Array
    pieces: Array
    products: Array
    matrix: Array
    reads: Array
    wavefronts: Array
    copies: Array
    copied: Array
    other: Array
    stored: Array
    joined: Array
    extra_kernels: Array
    extra_bytes: Array
    wide: Array
    turns: Array
    tiles: Mapping[str, Array]
    staged_rows: Array
    staged_columns: Array
    depth: Array

    @property
    def warps(self) -> Array:
        return -(-self.threads // WARP)

    @property
    def instructions(self) -> Array:
        return self.products + self.matrix + self.reads + self.copies + self.other

    @property
    def global_bytes(self) -> Array:
        joined = np.where(self.split > 1, 2 * self.joined, 0.0)
        return self.blocks * (self.copied + self.stored / self.split + joined) + self.extra_bytes


@dataclass(frozen=True)
class Tiling:
    """By iterator of the main stage, an array each; iterators that are not named count as 1.

    block    outputs of a block            thread   outputs of a thread
    share    of the reduction, what one block computes
    piece    of the reduction, what is in shared memory (or in one thread's hands) at once
    lane     outputs between neighbouring lanes; 0 along the others
    vector   elements of the widest load   lanes    threads that share the reduction of an output
    """

    block: Sizes
    thread: Sizes
    share: Sizes
    piece: Sizes
    lane: Sizes
    vector: Array
    lanes: Array


def ceil_div(n: Array | int, by: Array | int) -> Array:
    """n / by, rounded up; what is divided by nothing stays as it is."""
    return -(-n // np.maximum(by, 1))


def whole(stage: Stage, names: Sequence[str], rows: int) -> dict[str, Array]:
    """The full size of some iterators, for every schedule."""
    return {name: np.full(rows, stage.sizes[name]) for name in names}


def boxed(count: Array, dims: Sequence[tuple[str, int]]) -> dict[str, Array]:
    """The box around so many neighbouring points, the last dimension fastest."""
    found = {}
    for name, size in reversed(dims):
        found[name] = np.clip(count, 1, size)
        count = ceil_div(count, np.full(len(count), size))
    return found


def contraction_of(group: Group) -> Contraction:
    return contract(group, vector_candidates(group, moving=True)[0])


def reduced(batch: Batch, c: Contraction, depth: Array) -> tuple[Sizes, Sizes]:
    """(share, piece) where pieces are `depth` channels under whole windows."""
    rows, sizes = len(batch), c.stage.sizes
    windows = whole(c.stage, (*c.outer, *c.unrolled), rows)
    if not c.loop:
        return windows, windows
    share = ceil_div(sizes[c.loop], batch.column('split'))
    return windows | {c.loop: share}, windows | {c.loop: np.minimum(depth, share)}


def point_tiling(batch: Batch, threads: Array | None = None) -> Tiling:
    """One thread, or some lanes, for each point in the order of the result; `threads` of a block
    are the decision of that name unless they are given.
    """
    stage, rows = batch.group.main, len(batch)
    length = math.prod(stage.sizes[d] for d in stage.reduction)
    lanes = np.minimum(batch.column('lanes'), length)
    owners = ceil_div(batch.column('threads', 0) if threads is None else threads, lanes)
    points = [(d, stage.sizes[d]) for d in stage.write.names]
    reduction = whole(stage, stage.reduction, rows)
    last = stage.write.names[-1] if stage.write.names else ''
    inner = stage.reduction[-1] if stage.reduction else ''
    shared = (lanes > 1) & bool(inner)
    lane = {name: side for name, side in ((last, ~shared * 1), (inner, shared * 1)) if name}
    piece = {
        name: ceil_div(size, np.where(shared, lanes, 1)) if name == inner else size
        for name, size in reduction.items()
    }
    return Tiling(boxed(owners, points), {}, reduction, piece, lane, np.ones(rows, int), lanes)
