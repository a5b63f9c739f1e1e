"""What the blocks of many schedules do, counted at once: arrays in the place of one `Work`.

Goes in: a `Batch`, schedules of one group and one schema as columns of decisions. Comes out: a
`Counts`, the fields of model/gpu/transactions.py's `Work` as arrays, and the tiles by level. For
CNNOpt's two schemas the formulas of `Work` are evaluated on whole columns (a layer has thousands of
configurations, a training set tens of thousands); other schemas are counted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial

import numpy as np

from tilewright.errors import InputError
from tilewright.kernels.gpu.schemas.cnnopt.join import ATOMICS, SECOND_PASS
from tilewright.kernels.gpu.schemas.cnnopt.plan import DECISIONS, WARP, Axis, plan
from tilewright.kernels.gpu.space import OTHER_REGISTERS
from tilewright.model.gpu.transactions import Work, work
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

Array = np.ndarray
CNNOPT = ('rs', 's')


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


def batches_of(group: Group, schedules: Sequence[GpuSchedule]) -> list[tuple[Batch, Array]]:
    """Schedules of any schemas as batches, each with the places that its rows had."""
    kinds: dict[tuple, list[int]] = {}
    for place, s in enumerate(schedules):
        kinds.setdefault((s.schema, s.intrinsic, *(n for n, _ in s.tiles)), []).append(place)
    return [
        (
            Batch(
                group, schema, intrinsic,
                {n: np.array([schedules[p].tiles[i][1] for p in places])
                 for i, n in enumerate(names)},
            ),
            np.array(places),
        )
        for (schema, intrinsic, *names), places in kinds.items()
    ]  # fmt: skip


LEVELS = ('thread', 'lanes', 'warps', 'block')
TILE_FIELDS = tuple(f'{level}_{dim}' for level in LEVELS for dim in 'kyx')


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


def count(batch: Batch) -> Counts:
    """[Batch] -> [Counts]; raises ScheduleError where a schedule is not legal."""
    return _cnnopt(batch) if batch.schema in CNNOPT else _one_by_one(batch)


def _cnnopt(batch: Batch) -> Counts:
    group, rows = batch.group, batch.schema == 's'
    missing = [name for name in DECISIONS if name not in batch.tiles]
    if missing:
        raise InputError(f'a schedule of {batch.schema} also decides {", ".join(missing)}')
    sample = plan(group, batch.schedule(0))  # says whether the schema applies, and finds the axes
    d = {name: np.asarray(batch.tiles[name], np.int64) for name in DECISIONS}
    (rk, ry, rx), (tk, ty, tx), (wk, wy, wx) = (
        tuple(d[f'{level}{dim}'] for dim in 'kyx') for level in 'rtw'
    )
    bk, by, bx = rk * tk * wk, ry * ty * wy, rx * tx * wx
    cb, split, join = d['cb'], d['split'], d['join']
    taps, columns = sample.taps, sample.columns
    plane_y, plane_x = slice_of(sample.y, by), slice_of(sample.x, bx)
    slice_y = np.ones_like(ry) if rows else slice_of(sample.y, ry)
    slice_x = slice_of(sample.x, rx)
    warps = wk * wy * wx
    images = int(np.prod([size for _, size in sample.images]))
    tiles = _up(columns, bk) * _up(sample.y.outputs, by) * _up(sample.x.outputs, bx)
    pieces = _up(_up(sample.channels, cb), split)
    channels = pieces * cb
    inputs = ry * sample.y.taps * slice_x if rows else slice_y * slice_x
    weights = taps * rk * ry if rows else taps * rk
    unit, wide = np.where(bk % 4, 1, 4), np.where(rk % 4, 1, 4)
    result = 4.0 * bk * by * bx
    outputs = 4.0 * np.prod(group.output.shape)
    epilogue = bool(group.epilogue)
    atomics, second = (split > 1) & (join == ATOMICS), (split > 1) & (join == SECOND_PASS)
    none = np.zeros(len(batch))
    values = (
        bk, by, bx, rk, ry, rx, tk, ty, tx, wk, wy, wx,
    )  # fmt: skip
    names = ('block', 'thread', 'lanes', 'warps')
    levels = {f'{level}_{dim}': values[3 * i + j]
              for i, level in enumerate(names) for j, dim in enumerate('kyx')}  # fmt: skip
    return Counts(
        blocks=images * tiles * sample.groups * split, split=split, threads=WARP * warps,
        registers=rk * ry * rx + slice_y * slice_x + 1 + OTHER_REGISTERS[batch.schema],
        shared_bytes=4 * d['stages'] * cb * (plane_y * plane_x + taps * bk), stages=d['stages'],
        pieces=pieces, products=1.0 * warps * channels * taps * rk * ry * rx, matrix=none,
        reads=warps * channels * (inputs + weights / wide),
        wavefronts=1.0 * warps * channels * (_conflicts(sample.y, sample.x, d) * inputs + weights),
        copies=channels * (plane_y * plane_x / WARP + taps * bk / (unit * WARP)),
        copied=4.0 * channels * (plane_y * plane_x + taps * bk), other=none, stored=result,
        joined=np.where(atomics, result / 2, result),
        extra_kernels=np.where(atomics, 1 + epilogue, np.where(second, 1, 0)),
        extra_bytes=np.where(
            atomics, outputs * (1 + 2 * epilogue), np.where(second, outputs * (split + 1), 0.0)
        ),
        wide=none, turns=none, tiles=levels, staged_rows=plane_y, staged_columns=plane_x, depth=cb,
    )  # fmt: skip


def volumes(batch: Batch) -> tuple[Array, Array]:
    """Memory transactions (global to shared, shared to register) of whole calls by CNNOpt's model,
    as model/gpu/transactions.py's `cnnopt_volumes` has them for one schedule.
    """
    sample, done = plan(batch.group, batch.schedule(0)), count(batch)
    (rk, ry, rx), bk = (done.tiles[f'thread_{dim}'] for dim in 'kyx'), done.tiles['block_k']
    if sample.rows:
        reads = ry * (sample.y.taps * slice_of(sample.x, rx) + sample.taps * rk)
    else:
        reads = slice_of(sample.y, ry) * slice_of(sample.x, rx) + sample.taps * rk
    staged = _up(done.staged_rows * done.staged_columns, np.array(WARP))
    staged = staged + _up(bk * sample.taps, np.array(WARP))
    channels = done.blocks // done.split * sample.channels  # those of a split share the channels
    return staged * channels, reads * done.warps * channels


def _up(n: Array | int, by: Array) -> Array:
    return -(-n // by)


def slice_of(axis: Axis, outputs: Array) -> Array:
    """Inputs under neighbouring outputs, as `Axis.slice`."""
    return (outputs - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1


def _conflicts(y: Axis, x: Axis, d: Mapping[str, Array]) -> Array:
    """Cycles of one read of inputs by a warp: lanes at different places of one bank.

    They depend on few numbers, which are counted once for each combination.
    """
    pitch = slice_of(x, d['rx'] * d['tx'] * d['wx'])
    keys = np.stack([d['ty'], d['tx'], d['ry'] * y.stride * pitch, d['rx'] * x.stride], 1)
    distinct, back = np.unique(keys, axis=0, return_inverse=True)
    most = []
    for ty, tx, down, across in distinct.tolist():
        places = {i * down + j * across for i in range(ty) for j in range(tx)}
        most.append(max(np.bincount([place % WARP for place in places])))
    return np.array(most)[back.reshape(-1)]


# Which decision is which tile, in the other schemas.
_NAMES = {
    'tiled': {'thread_k': 'tk', 'thread_x': 'tp', 'block_k': 'bk', 'block_x': 'bp'},
    'patch': {
        'thread_k': 'tk', 'thread_x': 'tp', 'block_k': 'bk', 'block_y': 'bh', 'block_x': 'bw',
    },
    'depthwise': {
        'thread_y': 'th', 'thread_x': 'tw', 'block_k': 'bp', 'block_y': 'bh', 'block_x': 'bw',
    },
    'general': {'lanes_x': 'threads'},
}  # fmt: skip


@lru_cache(maxsize=64)
def _counter(group: Group) -> Callable[[GpuSchedule], Work]:
    """`work` of a group's schedules, remembered: a population is scored again every generation, and
    some schemas are counted from the source that they generate.
    """
    return lru_cache(maxsize=1 << 13)(partial(work, group))


def _one_by_one(batch: Batch) -> Counts:
    counted_once = _counter(batch.group)
    done = [counted_once(batch.schedule(row)) for row in range(len(batch))]
    none = np.zeros(len(batch))
    named = _NAMES.get(batch.schema, {})
    counted = {f.name for f in fields(Counts)} & {f.name for f in fields(Work)}
    return Counts(
        **{name: np.array([getattr(one, name) for one in done]) for name in counted},
        tiles={
            name: np.asarray(batch.tiles.get(named.get(name, ''), none)) for name in TILE_FIELDS
        },
        staged_rows=none, staged_columns=none, depth=np.asarray(batch.tiles.get('kb', none)),
    )  # fmt: skip
