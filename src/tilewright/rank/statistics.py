"""Statistical features of generated kernels (GTuner Sec. 3.3; what Ansor's are to it).

Goes in: schedules of a group and a `GpuMachine`. Comes out: a matrix, a row for each schedule and a
column for each line of `STATISTICS`, the same for every schema, and the logarithm of the seconds
that the GPU time model foretells (model/gpu/time.py). Kinds of columns:

    kernel       the schema, decisions that have no size, vector width, what is written out
    arithmetic   products of a block, functions of the group by kind
    buffer       of input, weights, what is read beside them, result (rank/footprints.py)
    hybrid       problem, tiles and analytical features of CNNOpt's models (rank/features.py)
    time         the parts of the time model

Sizes and counts are log2(1 + value), so that a network sees ratios; signs are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from tilewright.errors import InputError
from tilewright.kernels.gpu.columns import Array, Batch, Counts, Tiling
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.registry import FALLBACK, OWN, schema_named
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.model.gpu.time import COSTS, parts_of
from tilewright.ops.group import Group
from tilewright.rank.counts import batches_of, count
from tilewright.rank.features import FEATURES, SECTORS, Feature, View, problem_of
from tilewright.rank.footprints import BUFFERS, Footprint, footprints, tiling_of
from tilewright.rank.graph_features import FUNCTION_KINDS, functions_of
from tilewright.schedule.gpu import GpuSchedule

VERSION = 2  # of the table's meaning: a model of another version is refused
SCHEMAS = tuple(schema.name for schema in OWN if schema.measured)  # columns, in this order
INTRINSICS = tuple(dict.fromkeys(name for schema in OWN for name in schema.measured))
MOST = 64.0  # beyond this no logarithm means anything


class Measure(View):
    """What the formulas speak of: a view of rank/features.py, with tilings and footprints."""

    def __init__(self, batch: Batch, machine: GpuMachine) -> None:
        if not _is_measured(batch.schema, batch.intrinsic):
            raise InputError(
                f'statistics know nothing of the schema {batch.schema!r} by {batch.intrinsic}, '
                f'only of {", ".join(SCHEMAS)}; rank its schedules by the time model'
            )
        self.batch, self.machine = batch, machine
        self.done: Counts = count(batch) if schema_named(batch.schema).work else _generated(batch)
        self.problem = problem_of(batch.group)

    @cached_property
    def tiling(self) -> Tiling:
        return tiling_of(self.batch)

    @cached_property
    def buffers(self) -> dict[str, Footprint]:
        return footprints(self.batch, self.tiling, self.done.blocks)

    @cached_property
    def functions(self) -> dict[str, float]:
        """Functions of all stages, by kind."""
        found = dict.fromkeys((*FUNCTION_KINDS, 'other'), 0.0)
        for stage in self.batch.group.stages:
            for kind, number in functions_of(stage).items():
                found[kind] += number * stage.points
        return found

    @cached_property
    def times(self) -> dict[str, Array]:
        """Seconds in all and by part, as model/gpu/time.py has them."""
        compulsory = float(self.batch.group.compulsory_bytes)
        parts = parts_of(self.done, self.held, self.busiest, self.machine, compulsory, COSTS)
        names = ('seconds', 'launch', 'throughput', 'latency', 'join', 'l2', 'dram')
        rows = len(self.batch)
        return {
            name: np.broadcast_to(np.asarray(part, float), rows)
            for name, part in zip(names, parts, strict=True)
        }

    def decision(self, name: str) -> Array:
        column = self.batch.tiles.get(name)
        return np.zeros(len(self.batch)) if column is None else np.asarray(column)

    def full(self, value: float) -> Array:
        return np.full(len(self.batch), float(value))

    @cached_property
    def unrolled(self) -> Array:
        """Products of a thread in one piece: what a compiler may write out."""
        found = self.full(1)
        for size in (*self.tiling.thread.values(), *self.tiling.piece.values()):
            found = found * size
        return found


def _generated(batch: Batch) -> Counts:
    """Counts of schemas that the model has none for, from their kernels: every element of the group
    is read once, and written once.
    """
    group, rows = batch.group, len(batch)
    modules = [generate(group, batch.schedule(row)) for row in range(rows)]
    mains = [module.steps[0].kernel for module in modules]
    blocks = np.array([int(np.prod(kernel.grid)) for kernel in mains])
    points = group.compulsory_bytes / 4 / blocks
    none, one = np.zeros(rows), np.ones(rows, int)
    threads = np.array([kernel.threads for kernel in mains])
    base = count(replace(batch, schema=FALLBACK.name, tiles={'threads': threads}))
    return replace(
        base, blocks=blocks, threads=threads,
        shared_bytes=np.array([kernel.shared_bytes for kernel in mains]), split=one,
        products=points / 32, reads=points / 32, wavefronts=points / 32, copies=none,
        copied=4 * points, other=none, stored=4.0 * group.output.size / blocks,
        extra_kernels=np.array([len(module.steps) - 1 for module in modules]),
    )  # fmt: skip


def is_known(schedule: GpuSchedule) -> bool:
    """Whether there are statistics of its kernels."""
    return _is_measured(schedule.schema, schedule.intrinsic)


def _is_measured(schema: str, intrinsic: str) -> bool:
    """Other schemas and intrinsics came after the data."""
    return schema in SCHEMAS and intrinsic in schema_named(schema).measured


@dataclass(frozen=True)
class Statistic:
    """A column: its name, its kind, its formula in words, and the function that computes it."""

    name: str
    kind: str
    formula: str
    of: Callable[[Measure], Array]


def _log(values: Array) -> Array:
    return np.sign(values) * np.log2(1 + np.abs(values))


def _sized(name: str, kind: str, formula: str, of: Callable[[Measure], Array]) -> Statistic:
    return Statistic(name, kind, f'log2(1 + {formula})', lambda m: _log(of(m)))


def _is(schema: str) -> Statistic:
    return Statistic(
        f'is_{schema}', 'kernel', f'1 for the schema {schema}',
        lambda m: m.full(m.batch.schema == schema),
    )  # fmt: skip


def _by(intrinsic: str) -> Statistic:
    return Statistic(
        f'by_{intrinsic}', 'kernel', f'1 for the intrinsic {intrinsic}',
        lambda m: m.full(m.batch.intrinsic == intrinsic),
    )  # fmt: skip


def _decision(name: str, formula: str) -> Statistic:
    return _sized(name, 'kernel', formula, lambda m: m.decision(name))


def _functions(kind: str) -> Statistic:
    names = ', '.join(FUNCTION_KINDS.get(kind, ('every other',)))
    return _sized(
        f'flops_{kind}', 'arithmetic', f'functions of all stages and points: {names}',
        lambda m: m.full(m.functions[kind]),
    )  # fmt: skip


_FOOTPRINTS: dict[str, tuple[str, Callable[[Footprint], Array]]] = {
    'bytes': ('bytes of the tensor', lambda f: f.bytes),
    'block_bytes': ('distinct bytes that a block touches', lambda f: f.block_bytes),
    'lines': ('lines of 128 bytes that a block touches', lambda f: f.lines),
    'line_use': (
        'bytes of these lines for each byte that is used',
        lambda f: 128 * f.lines / np.maximum(f.block_bytes, 1),
    ),
    'uses': ('accesses of a block for each element', lambda f: f.uses),
    'passes': ('bytes that all blocks touch over those of the tensor', lambda f: f.passes),
    'thread_bytes': ('distinct bytes of a thread in a step', lambda f: f.thread_bytes),
    'thread_uses': ('products of a thread for each of these', lambda f: f.thread_uses),
    'lane_stride': ('elements between neighbouring lanes', lambda f: f.lane_stride),
    'step_stride': ('elements between steps of the inner reduction', lambda f: f.step_stride),
}


def _buffer(buffer: str, name: str) -> Statistic:
    formula, of = _FOOTPRINTS[name]
    text = {'beside': 'what other stages read'}.get(buffer, buffer)
    return _sized(
        f'{buffer}_{name}', 'buffer', f'{text}: {formula}', lambda m: of(m.buffers[buffer])
    )


def _hybrid(feature: Feature) -> Statistic:
    if feature.formula.startswith('log2'):
        return Statistic(feature.name, 'hybrid', feature.formula, feature.of)
    return _sized(feature.name, 'hybrid', feature.formula, feature.of)


def _time(name: str) -> Statistic:
    return Statistic(
        f'model_{name}', 'time', f'log2(1 ns + ns of {name}), by model/gpu/time.py',
        lambda m: np.log2(1 + 1e9 * m.times[name]),
    )  # fmt: skip


STATISTICS: tuple[Statistic, ...] = (
    *(_is(schema) for schema in SCHEMAS),
    *(_by(intrinsic) for intrinsic in INTRINSICS),
    _decision('joint', 'joint: windows and channels are one dimension of a piece'),
    _decision('join', 'join: how parts of a split are added up (CNNOpt\'s kernels)'),
    _decision('shared', 'shared: a depthwise image lies in shared memory'),
    _decision('queue', 'queue: products of a warpgroup under way'),
    _decision('gap', 'gap: floats between rows of a patch'),
    _decision('late', 'late: a later piece is asked for behind the products of this one'),
    _decision('bulk', 'bulk: one thread asks for the whole of a piece'),
    _sized('vector', 'kernel', 'elements of the widest load', lambda m: m.tiling.vector),
    _sized('point_lanes', 'kernel', 'threads that share the reduction of an output',
           lambda m: m.tiling.lanes),
    _sized('unrolled', 'kernel', 'products of a thread in one piece', lambda m: m.unrolled),
    _sized('threads', 'kernel', 'threads of a block', lambda m: m.done.threads),
    _sized('extra_kernels', 'kernel', 'kernels of a call beside the main one',
           lambda m: m.done.extra_kernels),
    _sized('stage_count', 'arithmetic', 'stages of the group',
           lambda m: m.full(len(m.batch.group.stages))),
    _sized('flops', 'arithmetic', 'operations of the main stage',
           lambda m: m.full(m.batch.group.flops)),
    *(_functions(kind) for kind in (*FUNCTION_KINDS, 'other')),
    _sized('block_products', 'arithmetic', 'warp multiply-adds of a block',
           lambda m: m.done.products),
    _sized('block_matrix', 'arithmetic', 'matrix instructions of a block', lambda m: m.matrix),
    _sized('block_reads', 'arithmetic', 'warp loads from shared memory', lambda m: m.done.reads),
    _sized('block_wavefronts', 'arithmetic', 'cycles of these loads', lambda m: m.done.wavefronts),
    _sized('block_copies', 'arithmetic', 'warp copies to shared memory', lambda m: m.done.copies),
    _sized('block_copied', 'arithmetic', 'bytes of these copies', lambda m: m.done.copied),
    _sized('block_other', 'arithmetic', 'further warp instructions', lambda m: m.done.other),
    _sized('block_stored', 'arithmetic', 'bytes of results', lambda m: m.done.stored),
    _sized('global_bytes', 'arithmetic', 'bytes between L2 and multiprocessors',
           lambda m: m.done.global_bytes),
    _sized('extra_bytes', 'arithmetic', 'bytes of the kernels beside',
           lambda m: m.done.extra_bytes),
    *(_buffer(buffer, name) for buffer in BUFFERS for name in _FOOTPRINTS),
    # Figures of the device are the same in every row: GTuner's model is of one GPU.
    *(_hybrid(f) for f in FEATURES if f.group not in ('device', SECTORS)),
    *(_time(name) for name in
      ('seconds', 'launch', 'throughput', 'latency', 'join', 'l2', 'dram')),
)  # fmt: skip
NAMES = tuple(s.name for s in STATISTICS)


def statistics_of(batch: Batch, machine: GpuMachine) -> tuple[Array, Array]:
    """[Batch, GpuMachine] -> [rows x statistics as float32, log of the model's seconds]"""
    measure = Measure(batch, machine)
    with np.errstate(divide='ignore', invalid='ignore', over='ignore'):
        columns = [np.broadcast_to(s.of(measure), len(batch)) for s in STATISTICS]
    # A group without products has ratios to nothing.
    x = np.nan_to_num(np.stack(columns, 1), nan=0.0, posinf=MOST, neginf=-MOST)
    return np.clip(x, -MOST, MOST).astype(np.float32), np.log(measure.times['seconds'])


def statistics_for(
    group: Group, machine: GpuMachine, schedules: Sequence[GpuSchedule]
) -> tuple[Array, Array]:
    """The same for schedules of any schemas, in their order."""
    x = np.empty((len(schedules), len(STATISTICS)), np.float32)
    base = np.empty(len(schedules))
    for batch, places in batches_of(group, schedules):
        x[places], base[places] = statistics_of(batch, machine)
    return x, base


@cache
def probe() -> tuple[float, ...]:
    """Statistics of fixed schedules of a fixed GPU: should a formula change, and with it what a
    model was trained on, loading it tells.
    """
    machine = known_gpu('h200')
    found = [
        statistics_for(
            one.group, machine, [GpuSchedule.of(schema.name, one.intrinsic, **one.decisions)]
        )
        for schema in OWN
        for one in schema.probes
        if one.statistics
    ]
    return tuple(float(f'{v:.6g}') for x, base in found for v in (*x[0].tolist(), float(base[0])))
