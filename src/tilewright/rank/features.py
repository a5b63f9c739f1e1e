"""Features of schedules: one table, from group, schedules and machine (CNNOpt Sec. 4.1).

Goes in: a `Batch` and a `GpuMachine`. Comes out: a matrix, a row for each schedule and a column for
each feature of `FEATURES`, the same for every schema. Each feature is a line of the table: a name,
its formula and the function that computes it; `tilewright model show` prints them. Groups:

    problem      sizes of the convolution
    tiles        outputs of a thread, lanes of a warp, warps of a block, outputs of a block
    analytical   transactions at each level, resident blocks, waves and tail, registers, intensity,
                 times at each limit, and DeepCuts' ratios (PUL)
    sectors      transactions of 32 bytes: of stores, under rows of results and of staged input
    device       figures of the GPU; a model of one GPU alone leaves them out

Times are logarithms (base 2) of microseconds; products of trees with sizes are avoided in this way.
`analytical_s` is the model that learned ones start from: they learn its logarithmic error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from tilewright.kernels.gpu.columns import TILE_FIELDS, Array, Batch, Counts
from tilewright.kernels.gpu.registry import OWN
from tilewright.kernels.gpu.schema import kind_name
from tilewright.kernels.gpu.work import WARP
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.model.gpu.occupancy import QUARTERS, RESERVED_BYTES, SHARED_BYTES, WARP_REGISTERS
from tilewright.model.gpu.pul import SHARED_LATENCY
from tilewright.ops.group import Group
from tilewright.rank.counts import count

VERSION = 3  # of the table's meaning: a model of another version is refused
# By kind, a schedule whose features are written into models.
_PROBES = {
    kind_name(schema.name, probe.intrinsic): (schema, probe)
    for schema in OWN
    for probe in schema.probes
    if probe.features
}
COPY_CYCLES = 500.0  # until a piece has been copied from memory, and the barrier behind it
CHAIN_CYCLES = 4.0  # between dependent instructions of one warp
LAUNCH_US = 2.0
OVERLAP = 1.5
SECTOR = 8  # floats of a transaction of global memory, 32 bytes
WIDEST_STORE = 4  # floats that a thread stores at once
SECTORS = 'sectors'  # the group of features that count them


class View:
    """What the formulas of features speak of, for the schedules of one batch."""

    def __init__(self, batch: Batch, machine: GpuMachine) -> None:
        self.batch, self.machine = batch, machine
        self.done: Counts = count(batch)
        self.problem = problem_of(batch.group)

    @cached_property
    def limits(self) -> dict[str, Array]:
        """Resident blocks of a multiprocessor by each limit (model/gpu/occupancy.py)."""
        m, d = self.machine, self.done
        per_warp = _up(d.registers * m.warp, WARP_REGISTERS) * WARP_REGISTERS
        return {
            'threads': m.threads // (d.warps * m.warp),
            'registers': m.registers // QUARTERS // np.maximum(per_warp, 1) * QUARTERS // d.warps,
            'shared': self._by_shared(d.shared_bytes),
        }

    def _by_shared(self, wanted: Array) -> Array:
        reserved = RESERVED_BYTES if self.machine.capability >= (8, 0) else 0
        taken = _up(wanted, SHARED_BYTES) * SHARED_BYTES + reserved
        return np.where(
            wanted > 0, self.machine.shared_bytes // np.maximum(taken, 1), self.machine.blocks
        )

    @cached_property
    def held(self) -> Array:
        """Resident blocks; what does not fit by the estimate of its registers counts as one."""
        least = np.minimum.reduce([*self.limits.values()])
        return np.maximum(np.minimum(least, self.machine.blocks), 1)

    @cached_property
    def copying(self) -> Array:
        """Resident blocks where 32 channels of a block's outputs lie in shared memory before they
        are added to the result, as CNNOpt's RS kernel does.
        """
        d = self.done
        outputs = 4 * WARP * d.tiles['block_y'] * d.tiles['block_x']
        by = self._by_shared(np.maximum(d.shared_bytes, outputs))
        return np.maximum(np.minimum(self.held, by), 1)

    @cached_property
    def busiest(self) -> Array:
        return _up(self.done.blocks, self.machine.multiprocessors)

    @cached_property
    def waves(self) -> Array:
        return self.done.blocks / (self.machine.multiprocessors * self.held)

    @cached_property
    def matrix(self) -> Array:
        """Matrix instructions of a block: of warps, or what those of warpgroups amount to."""
        return np.where(self.done.wide > 0, self.done.wide, self.done.matrix)

    @cached_property
    def flops(self) -> Array:
        """Operations of a block: 64 of a warp's multiply-add; three m16n8k8 are one of 2048."""
        return 64 * self.done.products + 2048 * self.matrix / 3

    @property
    def cycle_us(self) -> float:
        return 1e-3 / self.machine.clock_ghz

    @cached_property
    def fma_us(self) -> Array:
        d, lanes = self.done, self.machine.fp32_lanes / self.machine.warp
        return self.busiest * (d.products / lanes + 2 * self.matrix) * self.cycle_us

    @cached_property
    def shared_us(self) -> Array:
        return self.busiest * self.done.wavefronts * self.cycle_us

    @cached_property
    def issue_us(self) -> Array:
        return self.busiest * self.done.instructions / 4 * self.cycle_us

    @cached_property
    def latency_us(self) -> Array:
        """Of one block alone: for each piece its copy, and the chain of one warp's instructions."""
        d = self.done
        piece = COPY_CYCLES + CHAIN_CYCLES * d.instructions / d.warps / d.pieces
        return np.ceil(self.waves) * d.pieces * piece * self.cycle_us

    @cached_property
    def wave_us(self) -> Array:
        """Latency and throughput of the waves, one after the other."""
        d, lanes = self.done, self.machine.fp32_lanes / self.machine.warp
        each = np.maximum(d.products / lanes + 2 * self.matrix, d.wavefronts)
        return self.latency_us + np.ceil(self.waves) * self.held * each * self.cycle_us

    @cached_property
    def l2_us(self) -> Array:
        return self.done.global_bytes / self.machine.l2_gbps / 1e3

    @cached_property
    def memory_us(self) -> Array:
        compulsory = self.batch.group.compulsory_bytes / self.machine.global_gbps / 1e3
        return np.full(len(self.batch), compulsory)

    @cached_property
    def result_us(self) -> Array:
        """Results of every part of a split, to memory."""
        return self.done.blocks * self.done.stored / self.machine.global_gbps / 1e3

    @cached_property
    def store_width(self) -> Array:
        """Results that a thread stores at once: neighbours along x, aligned in every row; one where
        parts of a split are added up.
        """
        wide = np.gcd(np.gcd(self.outputs_x('thread'), self.problem['w']), WIDEST_STORE)
        return np.where(self.done.split > 1, 1, wide)

    @cached_property
    def store_sectors(self) -> Array:
        """Sectors that one store of a warp touches: a lane has its own, unless its outputs along x
        are fewer than a sector holds.
        """
        along_x = self.at_least_one('lanes_x') * np.minimum(self.outputs_x('thread') / SECTOR, 1)
        return self.at_least_one('lanes_k') * self.at_least_one('lanes_y') * np.maximum(along_x, 1)

    @cached_property
    def store_us(self) -> Array:
        """Sectors of all stores, at the bandwidth of L2."""
        outputs = self.at_least_one('thread_k') * self.at_least_one('thread_y')
        stores = self.done.warps * outputs * self.outputs_x('thread') / self.store_width
        sectors = self.done.blocks * stores * self.store_sectors
        return 4 * SECTOR * sectors / self.machine.l2_gbps / 1e3

    @cached_property
    def rows_us(self) -> Array:
        """Sectors under the rows of every block's results, to memory."""
        rows = self.at_least_one('block_k') * self.at_least_one('block_y')
        sectors = self.done.blocks * rows * _sectors(self.outputs_x('block'), self.problem['w'])
        return 4 * SECTOR * sectors / self.machine.global_gbps / 1e3

    @cached_property
    def staged(self) -> tuple[Array, Array]:
        """(columns of the input that a block stages, sectors under them)."""
        width = (self.problem['w'] - 1) * self.problem['stride'] + self.problem['s']
        columns = np.clip(self.done.staged_columns, 1, width).astype(np.int64)
        return columns, _sectors(columns, width)

    @cached_property
    def load_us(self) -> Array:
        """Sectors under the rows of every block's input, at the bandwidth of L2."""
        d = self.done
        rows = d.blocks * d.staged_rows * d.depth * d.pieces
        return 4 * SECTOR * rows * self.staged[1] / self.machine.l2_gbps / 1e3

    def at_least_one(self, name: str) -> Array:
        return np.maximum(self.tile(name), 1).astype(np.int64)

    def outputs_x(self, level: str) -> Array:
        """Outputs of a thread or block along x, as far as there are so many."""
        return np.minimum(self.at_least_one(f'{level}_x'), self.problem['w'])

    @cached_property
    def least_us(self) -> Array:
        """The group's arithmetic at the machine's peak."""
        return np.full(len(self.batch), self.batch.group.flops / self.machine.peak_gflops / 1e3)

    @cached_property
    def analytical_us(self) -> Array:
        parts = (self.wave_us, self.l2_us, self.memory_us, self.result_us)
        return LAUNCH_US + sum(part**OVERLAP for part in parts) ** (1 / OVERLAP)

    def tile(self, name: str) -> Array:
        return self.done.tiles[name]

    def sized(self, name: str) -> Array:
        return np.full(len(self.batch), float(self.problem[name]))


def _up(n: Array, by: Array | int) -> Array:
    return -(-n // by)


def _sectors(run: Array, pitch: int) -> Array:
    """Sectors under `run` neighbouring floats, in the mean over the places where they begin:
    multiples of what `run` and the length of a row have in common.
    """
    step = np.gcd(np.gcd(run, pitch), SECTOR)
    return (run + SECTOR - step) / SECTOR


def problem_of(group: Group) -> dict[str, int]:
    """Sizes of a group's main stage; 1 for dimensions that it has not got."""
    stage = group.main
    sizes = {name: stage.sizes.get(name, 1) for name in ('n', 'k', 'h', 'w', 'c', 'r', 's')}
    steps = [
        expression.coefficient(name)
        for read in stage.reads
        for expression in read.index
        for name in ('h', 'w')
        if name in expression.names and len(expression.names) > 1
    ]
    return sizes | {'stride': max(steps, default=1)}


@dataclass(frozen=True)
class Feature:
    """A column: its name, its formula in words, and the function of a view that computes it."""

    name: str
    group: str
    formula: str
    of: Callable[[View], Array]


def _log(values: Array) -> Array:
    return np.log2(np.maximum(values, 1e-9))


def _problem(name: str) -> Feature:
    text = {'stride': 'the larger step along h and w'}.get(name, f'size of {name}')
    return Feature(name, 'problem', text, lambda v: v.sized(name))


_LEVELS = {
    'thread': 'outputs of a thread', 'lanes': 'threads of a warp', 'warps': 'warps of a block',
    'block': 'outputs of a block',
}  # fmt: skip


def _tile(name: str) -> Feature:
    level, dim = name.split('_')
    return Feature(name, 'tiles', f'{_LEVELS[level]} along {dim}', lambda v: v.tile(name))


def _time(name: str, formula: str, group: str = 'analytical') -> Feature:
    return Feature(name, group, f'log2 us: {formula}', lambda v: _log(getattr(v, name)))


def _share(
    name: str, formula: str, of: Callable[[View], Array], group: str = 'analytical'
) -> Feature:
    return Feature(name, group, formula, of)


# Features of the device: fields of `GpuMachine`.
_FIGURES = {
    'multiprocessors': 'multiprocessors', 'clock_ghz': 'clock in GHz',
    'fp32_lanes': 'multiply-adds of a multiprocessor in a cycle',
    'machine_threads': 'threads that are resident on a multiprocessor',
    'machine_shared': 'bytes of shared memory of a multiprocessor',
    'l2_bytes': 'bytes of L2', 'global_gbps': 'bandwidth of memory, GB/s',
    'l2_gbps': 'bandwidth of L2, GB/s', 'shared_gbps': 'bandwidth of shared memory, GB/s',
}  # fmt: skip
_FIELDS = {'machine_threads': 'threads', 'machine_shared': 'shared_bytes'}


def _device(name: str, formula: str) -> Feature:
    field = _FIELDS.get(name, name)
    return Feature(
        name, 'device', formula, lambda v: np.full(len(v.batch), float(getattr(v.machine, field)))
    )


FEATURES: tuple[Feature, ...] = (
    *(_problem(name) for name in ('k', 'h', 'w', 'c', 'r', 'stride')),
    *(_tile(name) for name in TILE_FIELDS),
    Feature('split', 'tiles', 'parts of the reduction', lambda v: v.done.split),
    Feature('depth', 'tiles', 'channels staged at once', lambda v: v.done.depth),
    Feature('stages', 'tiles', 'pieces in flight', lambda v: v.done.stages),
    Feature(
        'matrix', 'tiles', '0 multiply-adds, 1 matrix instructions of warps, 2 of warpgroups',
        lambda v: (v.done.matrix > 0) * 1 + (v.done.wide > 0),
    ),
    _share('pixels', 'outputs of a block along y times x',
           lambda v: v.tile('block_y') * v.tile('block_x')),
    _share('outputs', 'outputs of a thread',
           lambda v: v.tile('thread_k') * np.maximum(v.tile('thread_y'), 1) * v.tile('thread_x')),
    _share('column_blocks', 'blocks along k', lambda v: v.sized('k') / np.maximum(
        v.tile('block_k'), 1)),
    _share('registers', 'of a thread: operands and sums (Eqs. 2-3), and the rest',
           lambda v: v.done.registers),
    _share('shared_bytes', 'of a block', lambda v: v.done.shared_bytes),
    _share('warps', 'of a block', lambda v: v.done.warps),
    _share('pieces', 'steps of a block, each with a barrier', lambda v: v.done.pieces),
    _share('by_registers', 'resident blocks if registers were the only limit',
           lambda v: v.limits['registers']),
    _share('by_shared', 'resident blocks if shared memory were', lambda v: v.limits['shared']),
    _share('by_threads', 'resident blocks if threads were', lambda v: v.limits['threads']),
    _share('resident', 'resident blocks of a multiprocessor: the least of these',
           lambda v: v.held),
    _share('resident_copying', 'the same with 32 channels of outputs in shared memory',
           lambda v: v.copying),
    _share('occupancy', 'resident warps over those that fit',
           lambda v: v.held * v.done.warps * v.machine.warp / v.machine.threads),
    _share('concurrent', 'warps that a multiprocessor has: min(resident, blocks / '
           'multiprocessors) x warps',
           lambda v: np.minimum(v.done.blocks / v.machine.multiprocessors, v.held) * v.done.warps),
    _share('blocks', 'log2 of all blocks', lambda v: _log(v.done.blocks)),
    _share('tile_blocks', 'log2 of blocks over split', lambda v: _log(v.done.blocks /
                                                                     v.done.split)),
    _share('busiest', 'blocks of the busiest multiprocessor', lambda v: v.busiest),
    _share('waves', 'blocks / (multiprocessors x resident)', lambda v: v.waves),
    _share('whole_waves', 'waves, rounded up', lambda v: np.ceil(v.waves)),
    _share('tail', 'waves / whole waves', lambda v: v.waves / np.ceil(v.waves)),
    _share('balance', 'blocks / (multiprocessors x busiest): WBRatio of PUL',
           lambda v: v.done.blocks / v.machine.multiprocessors / v.busiest),
    _share('intensity', 'flop of a block over bytes that it copies; OI of PUL',
           lambda v: v.flops / v.done.copied),
    _share('global_ratio', 'GMRatio of PUL: min(1, intensity over that of the machine)',
           lambda v: np.minimum(1, v.flops / v.done.copied
                                / (v.machine.peak_gflops / v.machine.global_gbps))),
    _share('shared_ratio', 'SMRatio of PUL: min(1, flop of a lane for each read / latency)',
           lambda v: np.minimum(1, v.flops / v.machine.warp
                                / v.done.reads / SHARED_LATENCY)),
    _share('products_per_read', 'products over elements read from shared memory',
           lambda v: (v.done.products + v.done.matrix) / v.done.wavefronts),
    _share('products_per_load', 'products over warp loads from shared memory',
           lambda v: (v.done.products + v.done.matrix) / v.done.reads),
    _share('products_per_copy', 'products over warp copies',
           lambda v: (v.done.products + v.done.matrix) / np.maximum(v.done.copies, 1e-9)),
    _share('piece_products', 'log2 of products of a warp for each piece',
           lambda v: _log((v.done.products + v.done.matrix) / v.done.warps / v.done.pieces)),
    _share('piece_copies', 'warp copies of a warp for each piece',
           lambda v: v.done.copies / v.done.warps / v.done.pieces),
    _share('staged_rows', 'rows of the input that a block stages', lambda v: v.done.staged_rows),
    _share('staged_columns', 'columns of the input that a block stages',
           lambda v: v.done.staged_columns),
    _share('halo', 'staged pixels over outputs',
           lambda v: v.done.staged_rows * v.done.staged_columns
           / np.maximum(v.tile('block_y') * v.tile('block_x'), 1)),
    _share('row_use', 'staged columns over whole transactions of 32',
           lambda v: v.done.staged_columns / (WARP * np.maximum(_up(v.done.staged_columns, WARP),
                                                                 1))),
    _share('copy_ratio', '32 channels of outputs over staged bytes',
           lambda v: 4 * WARP * v.tile('block_y') * v.tile('block_x')
           / np.maximum(v.done.shared_bytes, 1)),
    _time('fma_us', 'products of the busiest multiprocessor'),
    _time('shared_us', 'wavefronts of shared memory there'),
    _time('issue_us', 'instructions there, four a cycle'),
    _time('latency_us', 'waves x pieces x (copy + chain of a warp)'),
    _time('wave_us', 'the same, and what resident blocks compute'),
    _time('l2_us', 'bytes of all blocks at the bandwidth of L2'),
    _time('memory_us', 'compulsory bytes at the bandwidth of memory'),
    _time('result_us', 'results of every part, to memory'),
    _time('least_us', 'arithmetic at peak'),
    _time('analytical_us', 'launch, and the norm of waves, L2, memory and results'),
    _share('shared_share', 'shared_us / fma_us', lambda v: v.shared_us / v.fma_us),
    _share('l2_share', 'l2_us / fma_us', lambda v: v.l2_us / v.fma_us),
    _share('latency_share', 'latency_us / fma_us', lambda v: v.latency_us / v.fma_us),
    _share('result_share', 'result_us / fma_us', lambda v: v.result_us / v.fma_us),
    _share('memory_share', 'memory_us / fma_us', lambda v: v.memory_us / v.fma_us),
    _share('idle_share', 'fma_us / least_us', lambda v: v.fma_us / v.least_us),
    _share('store_width', 'results that a thread stores at once', lambda v: v.store_width,
           SECTORS),
    _share('store_use', 'outputs of a row of a block over those of its sectors of 32 bytes',
           lambda v: v.outputs_x('block')
           / (SECTOR * _sectors(v.outputs_x('block'), v.problem['w'])), SECTORS),
    _share('store_sectors', 'sectors of one store of a warp', lambda v: v.store_sectors, SECTORS),
    _time('store_us', 'sectors of all stores at the bandwidth of L2', SECTORS),
    _share('store_share', 'store_us / fma_us', lambda v: v.store_us / v.fma_us, SECTORS),
    _time('rows_us', 'sectors under the rows of results, to memory', SECTORS),
    _share('rows_share', 'rows_us / fma_us', lambda v: v.rows_us / v.fma_us, SECTORS),
    _share('load_use', 'staged columns over those of their sectors',
           lambda v: v.staged[0] / (SECTOR * v.staged[1]), SECTORS),
    _time('load_us', 'sectors under the staged rows at the bandwidth of L2', SECTORS),
    *(_device(name, formula) for name, formula in _FIGURES.items()),
)  # fmt: skip
NAMES = tuple(f.name for f in FEATURES)
DEVICE = tuple(f.name for f in FEATURES if f.group == 'device')


def matrix_of(batch: Batch, machine: GpuMachine) -> tuple[Array, Array]:
    """[Batch, GpuMachine] -> [rows x features as float32, log of analytical seconds]"""
    view = View(batch, machine)
    columns = [np.broadcast_to(f.of(view), len(batch)).astype(np.float32) for f in FEATURES]
    return np.stack(columns, 1), np.log(1e-6 * view.analytical_us)


@cache
def probe(kinds: tuple[str, ...] = tuple(_PROBES)) -> tuple[float, ...]:
    """Features of fixed schedules of some kinds, on a fixed GPU, in a row."""
    found: list[float] = []
    for kind in sorted(set(kinds) & set(_PROBES)):
        schema, fixed = _PROBES[kind]
        columns = {name: np.array([value]) for name, value in fixed.decisions.items()}
        batch = Batch(fixed.group, schema.name, fixed.intrinsic, columns)
        x, base = matrix_of(batch, known_gpu('h200'))
        found += [*x[0].tolist(), float(base[0])]
    return tuple(float(f'{value:.6g}') for value in found)
