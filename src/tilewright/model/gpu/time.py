"""The time of one GPU schedule, from what its blocks do: transactions, occupancy, waves and tail.

Goes in: a group, a schedule (counts of each schema: kernels/gpu/work.py), a machine. Comes
out: a `GpuPrediction` with its parts. It ranks; absolute times are right within some ten percent.

    throughput   cycles that a block keeps a multiprocessor busy: multiply-adds, matrix
                 instructions, reads of shared memory and instructions started, by a p-norm
    latency      cycles that a block takes alone: for each piece a barrier and the chain of one
                 warp's instructions, or the copy of a later piece where that takes longer
    wave         of r resident blocks: between latency and r times throughput, whichever is longer
    join         parts of a split: a fence, an atomic, and the last block's reads, one after another
    L2, DRAM     bytes of all blocks at L2's bandwidth; compulsory bytes, and those that kernels of
                 a call leave for each other, at memory's where L2 cannot hold them

`Costs` were set by least absolute logarithmic error on 9,573 schedules of all schemas, 176 random
problems and an H200 (`python -m tilewright_lab.scripts.gpu_model fit`, docs/gpu_model.md),
`bulk_overlap` by hand, and are cycles: other machines use the same.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.registry import BESIDE, schema_named
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.occupancy import Occupancy, Waves, occupancy, waves
from tilewright.model.gpu.staged import staged_time
from tilewright.model.gpu.transactions import memory_bytes, work
from tilewright.ops.front import has_front, without_front
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.gpu import GpuSchedule

Number = Any  # a number, or an array of numbers
Counts = Any  # a `Work`, or something with its fields as arrays

SCHEDULERS = 4  # warp instructions that a multiprocessor starts in a cycle
WAVE_OVERLAP = 6.0  # exponent of the norm between latency and throughput of a wave
CHAIN_WARPS = 16  # warps that run beside each other without slowing one another


@dataclass(frozen=True, slots=True)
class Costs:
    """What the model does not derive.

    launch_s        a kernel in a graph: started, its first blocks placed, its last one gone
    matrix_cycles   one m16n8k8 product of a warp, three of them for one of fp32
    wide_cycles     as much of a product by a warpgroup
    turn_cycles     until the products of a warpgroup's step have arrived
    overlap         exponent of the norm that joins resources
    copy_latency    cycles until a copy from L2 has arrived
    step_cycles     barrier, waiting for copies and addresses of each piece
    chain_cycles    between two dependent instructions of one warp, beside others
    join_cycles     partial sums out, fence, atomic, and the last block's first read
    join_bytes      of partial sums that the last block reads in a cycle
    bulk_overlap    as `overlap`, of multiprocessors and memories where columns come beside products

    Kernels whose sums pass through shared memory have costs of their own (staged.py).
    """

    launch_s: float = 3.77e-6
    matrix_cycles: float = 1.79
    overlap: float = 1.30
    copy_latency: float = 648.0
    step_cycles: float = 257.0
    chain_cycles: float = 2.30
    join_cycles: float = 83.0
    join_bytes: float = 29.2
    wide_cycles: float = 0.839
    turn_cycles: float = 95.4
    bulk_overlap: float = 3.0


COSTS = Costs()


@dataclass(frozen=True, slots=True)
class GpuPrediction:
    """Seconds of one call, and its parts; they overlap, so that their sum is more.

    throughput_s, latency_s   of all waves, if nothing else held them up
    """

    seconds: float
    launch_s: float
    throughput_s: float
    latency_s: float
    join_s: float
    l2_s: float
    dram_s: float
    occupancy: Occupancy
    waves: Waves
    work: Work

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by resource."""
        return {
            'launch': self.launch_s, 'throughput': self.throughput_s, 'latency': self.latency_s,
            'join': self.join_s, 'L2': self.l2_s, 'DRAM': self.dram_s,
        }  # fmt: skip

    @property
    def by(self) -> str:
        """The part that is longest."""
        parts = self.parts
        return max(parts, key=lambda name: parts[name])

    @property
    def limit(self) -> str:
        """The same, by the name that every prediction has."""
        return self.by

    def to_json(self) -> dict:
        return asdict(self) | {'by': self.by}


def predict_gpu(
    group: Group, schedule: GpuSchedule, machine: GpuMachine, registers: int | None = None
) -> GpuPrediction:
    """[Group, GpuSchedule, GpuMachine] -> [GpuPrediction]

    `registers` of a thread are those that the compiler told, where it was asked; raises
    ScheduleError where a block does not fit the machine. What comes before the products is a kernel
    of its own where the schema does not apply it.
    """
    if has_front(group) and not schema_named(schedule.schema).front:
        products = predict_gpu(without_front(group), schedule, machine, registers)
        before = _front_alone(group, machine)
        return replace(
            products, seconds=products.seconds + before.seconds,
            launch_s=products.launch_s + before.launch_s,
        )  # fmt: skip
    moved = memory_bytes(group, schedule, machine)
    return time_of(work(group, schedule, registers), machine, moved)


def is_priced(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> bool:
    """Whether the time model knows this schedule on the machine."""
    try:
        predict_gpu(group, schedule, machine)
    except ScheduleError:
        return False
    return True


@lru_cache(maxsize=64)
def _front_alone(group: Group, machine: GpuMachine) -> GpuPrediction:
    """What comes before the products, which is element-wise, and so one part."""
    return predict_gpu(parts(group)[0], BESIDE, machine)


def time_of(
    done: Work, machine: GpuMachine, compulsory: float, costs: Costs = COSTS
) -> GpuPrediction:
    """[Work, bytes that move through memory] -> [GpuPrediction]"""
    held = occupancy(machine, done.threads, done.registers, done.shared_bytes)
    grid = waves(machine, done.blocks, held.blocks)
    if done.staged:
        own = staged_time(done, machine, held.blocks, compulsory)
        return GpuPrediction(
            own.seconds, own.launch_s, own.throughput_s, own.latency_s, own.join_s, own.l2_s,
            own.dram_s, held, grid, done,
        )  # fmt: skip
    beside = done.bulk and (done.stages > 1 or held.blocks > 1)
    parts = parts_of(done, held.blocks, grid.busiest, machine, compulsory, costs, beside)
    seconds, launch, throughput, latency, join, l2, dram = (float(part) for part in parts)
    return GpuPrediction(
        seconds, launch, throughput, latency, join, l2, dram, held, grid, done
    )  # fmt: skip


def parts_of(
    done: Counts, held: Number, busiest: Number, machine: GpuMachine, compulsory: Number,
    costs: Costs, beside: bool = False,
) -> tuple[Number, ...]:  # fmt: skip
    """Seconds in all, and of launches, throughput, latency, join, L2 and DRAM.

    `held` blocks are resident on a multiprocessor, the busiest one has `busiest` of them. Columns
    come `beside` the products where one thread asks for them, and another piece or block is there
    to go on with. Numbers, or arrays of them for many schedules at once.
    """
    each, alone = throughput_cycles(done, costs), latency_cycles(done, costs)
    whole, rest = np.divmod(busiest, held)
    cycles = whole * _norm(WAVE_OVERLAP, alone, held * each)
    cycles = cycles + np.where(rest > 0, _norm(WAVE_OVERLAP, alone, rest * each), 0.0)
    join = join_cycles(done, costs)
    second = 1 / (machine.clock_ghz * 1e9)
    l2 = done.global_bytes / machine.l2_gbps / 1e9
    # A cache that is walked through in order and is too small keeps nothing until the next call.
    dram = np.where(compulsory > machine.l2_bytes, compulsory / machine.global_gbps / 1e9, 0.0)
    launch = costs.launch_s * (1 + done.extra_kernels)
    overlap = costs.bulk_overlap if beside else costs.overlap
    return (
        launch + _norm(overlap, (cycles + join) * second, l2, dram), launch,
        busiest * each * second, (whole + (rest > 0)) * alone * second, join * second, l2, dram,
    )  # fmt: skip


def _norm(power: float, *parts: Number) -> Number:
    return sum(part**power for part in parts) ** (1 / power)


def throughput_cycles(done: Counts, costs: Costs = COSTS) -> Number:
    """Cycles of a multiprocessor for one block among many."""
    warps = done.matrix * costs.matrix_cycles
    return _norm(
        costs.overlap,
        done.products / SCHEDULERS,
        np.where(done.wide > 0, done.wide * costs.wide_cycles, warps),
        done.wavefronts,
        done.instructions / SCHEDULERS,
    )


def latency_cycles(done: Counts, costs: Costs = COSTS) -> Number:
    """Cycles of one block that has a multiprocessor to itself.

    A matrix instruction counts twice in the chain: it waits for the one before it. What a warpgroup
    multiplies runs behind the next step's reads, and is waited for once in each step.
    """
    chain = (done.instructions + done.matrix) / done.warps / done.pieces
    slowed = np.maximum(1.0, done.warps / CHAIN_WARPS)
    computing = chain * costs.chain_cycles * slowed + costs.step_cycles
    computing = computing + done.turns / done.pieces * costs.turn_cycles
    if isinstance(done, Work) and done.waits is not None:
        return done.pieces * computing + (1 + done.waits) * costs.copy_latency
    piece = np.where(
        done.stages > 1,
        np.maximum(computing, costs.copy_latency / np.maximum(done.stages - 1, 1)),
        computing + costs.copy_latency,
    )
    return done.pieces * piece + costs.copy_latency


def join_cycles(done: Counts, costs: Costs = COSTS) -> Number:
    """What a split adds behind the last wave; extra kernels are counted with the launches.

    The last block of a tile reads the sums of all parts. In a cluster each reads its share of them,
    at the same rate; that rate was fitted to reads from the second cache, not from other blocks.
    """
    alone = (done.split == 1) | (done.extra_kernels > 0)
    beside = isinstance(done, Work) and done.cluster
    read = done.joined * (1 if beside else done.split)
    return np.where(alone, 0.0, costs.join_cycles + read / costs.join_bytes)
