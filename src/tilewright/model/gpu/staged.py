"""The time of a kernel of the channels schema: parts that add up, fitted to what they took.

Goes in: a `Work` whose sums pass through shared memory before they are stored, and a machine. Comes
out: seconds in parts. At batch 1 such a kernel takes a few microseconds, in which hardly anything
hides anything else: first copies, a step for each piece, the way of the results out, and what the
blocks of a split wait for each other. So these add up, where the general model (time.py) lets them
overlap; L2 and memory bound the whole as they do there.

Blocks of a cluster lie in one group of multiprocessors (a GPC), in which some are left over. How
large the groups are is not known: of a mean one whole clusters fit, and of those that differ half a
cluster is left over on average. Where the last clusters find no place they run when others have
ended: on an H200 30 clusters of four run at once, and 32 take 1.7 times as long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine

GROUP = 16.5  # multiprocessors of a group, on average: 132 in 8 of them


@dataclass(frozen=True, slots=True)
class StagedCosts:
    """Fitted to 1,293 kernels of f16 at batch 1 and 242 at batch 16 and 32, on an H200: least mean
    deviation of logarithms (`python -m tilewright_lab.scripts.gpu_staged`).

    launch_s           a kernel in a graph
    first_cycles       of a wave: until the first piece has come, and the last result is stored
    step_cycles        of each piece: copies, barrier
    copy_cycles        until a piece has come, which those asked for ahead share
    turn_cycles        until a warpgroup's products have come, where it waits for them; this and
                       `copy_cycles` are those of time.py, not fitted
    wide_cycles        of a product of warpgroups, as much as a warp's m16n8k8
    instruction_cycles of a warp instruction, on one of the four schedulers
    result_cycles      of each result of a thread, through shared memory and the epilogue
    cluster_s          for 128 threads of a block that adds up with others of its cluster
    member_s           for each block of such a cluster
    split_s, byte_s    blocks that add up through memory, and each byte that they leave there
    overlap            exponent of the norm that joins a multiprocessor's time with those of L2 and
                       memory
    """

    launch_s: float = 0.8e-6
    first_cycles: float = 1138.0
    step_cycles: float = 430.0
    copy_cycles: float = 648.0
    turn_cycles: float = 95.4
    wide_cycles: float = 0.73
    instruction_cycles: float = 4.18
    result_cycles: float = 37.5
    cluster_s: float = 1.455e-6
    member_s: float = 31.5e-9
    split_s: float = 1.28e-6
    byte_s: float = 19.4e-12
    overlap: float = 4.2


STAGED = StagedCosts()
SCHEDULERS = 4
THREADS = 128  # of a warpgroup
WORD = 4  # bytes of a partial sum


@dataclass(frozen=True, slots=True)
class StagedTime:
    """Seconds of one call and its parts: work of the busiest multiprocessor, what it waits for."""

    seconds: float
    launch_s: float
    throughput_s: float
    latency_s: float
    join_s: float
    l2_s: float
    dram_s: float


def layers(done: Work, machine: GpuMachine, held: int) -> int:
    """How often `held` blocks are put on every multiprocessor until all have run."""
    size = done.split if done.cluster else 1
    whole = GROUP * held // size * size / GROUP
    places = machine.multiprocessors * min(
        whole if size > 1 else held, held - (size - 1) / 2 / GROUP
    )
    return math.ceil(done.blocks / max(places, 1.0) - 1e-9)  # whole numbers, but for rounding


def staged_time(
    done: Work, machine: GpuMachine, held: int, compulsory: float, costs: StagedCosts = STAGED
) -> StagedTime:
    """[Work, resident blocks of a multiprocessor, bytes through memory] -> [StagedTime]"""
    second = 1 / (machine.clock_ghz * 1e9)
    products = done.wide * costs.wide_cycles
    instructions = done.instructions / SCHEDULERS * costs.instruction_cycles
    results = done.joined / WORD / done.threads * costs.result_cycles
    busy = layers(done, machine, 1) * (products + instructions + results) * second
    waiting = costs.first_cycles + done.pieces * _step_cycles(done, costs)
    waiting += done.turns * costs.turn_cycles
    latency = layers(done, machine, held) * waiting * second
    l2 = done.global_bytes / machine.l2_gbps / 1e9
    # A cache that is walked through in order and is too small keeps nothing until the next call.
    dram = compulsory / machine.global_gbps / 1e9 if compulsory > machine.l2_bytes else 0.0
    join = _join_s(done, costs)
    power = costs.overlap
    whole = ((busy + latency) ** power + l2**power + dram**power) ** (1 / power)
    seconds = costs.launch_s + whole + join
    return StagedTime(seconds, costs.launch_s, busy, latency, join, l2, dram)


def _step_cycles(done: Work, costs: StagedCosts) -> float:
    """Of a piece: its step, or its share of a copy's time, whichever is longer, softly."""
    ahead = done.stages - 1
    if not ahead:
        return costs.step_cycles + costs.copy_cycles
    power = costs.overlap
    return (costs.step_cycles**power + (costs.copy_cycles / ahead) ** power) ** (1 / power)


def _join_s(done: Work, costs: StagedCosts) -> float:
    if done.split == 1:
        return 0.0
    if done.cluster:
        return costs.cluster_s * done.threads / THREADS + costs.member_s * done.split
    return costs.split_s + costs.byte_s * done.split * done.joined
