"""A first estimate of a GPU schedule's time: what a block does, how many run at once, what limits.

Goes in: a group, a schedule, a machine. Comes out: an `Estimate` with bytes at each level,
occupancy, waves and a time for every resource. No constant was fitted. The parts are those of
CNNOpt Sec. 4.1 (transactions, occupancy, waves and tail), with blocks of one multiprocessor sharing
its units:

    T = rounds * pieces * latency / pieces in flight  +  max over resources of
        ceil(blocks / multiprocessors) * (work of a block) / (rate of one multiprocessor * fed)

`fed` is below one where too few warps are resident to keep the units busy (Little's law).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tilewright.codegen.gpu import cnnopt_plan, patch, tiled
from tilewright.codegen.gpu.generate import generate
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu_bounds import compute_gflops
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OVERHEAD_REGISTERS = 32  # addresses, loop counters, operands in flight
PIECE_SECONDS = 0.7e-6  # from a request to memory to the product that needs it
LAUNCH_SECONDS = 1.5e-6  # a kernel of a graph, from the end of the one before
# Warps of a multiprocessor that keep its units busy.
WARPS_NEEDED = {'fma': 16, 'mma_tf32x3': 8, 'wgmma_tf32x3': 4}
# Share of the peak of matrix units that synchronous instructions reach.
REACHED = {'mma_tf32x3': 0.5, 'wgmma_tf32x3': 0.7}
SHARED_BYTES_PER_CYCLE = 128


@dataclass(frozen=True, slots=True)
class Demand:
    """What one block of the main kernel needs. Counts are floats unless a name says otherwise."""

    blocks: int
    threads: int
    registers: int  # of a thread
    pieces: int  # rounds of copying and multiplying
    flight: int  # pieces under way at once
    products: int  # multiply-adds, those of padding included
    copied: int  # from global memory
    shared_read: int
    joined_bytes: int = 0  # of the whole call: partial sums written and read again
    kernels: int = 1


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds by resource; `limit` is the largest of them."""

    seconds: float
    limit: str
    breakdown: dict[str, float]
    blocks: int
    resident: int  # blocks of a multiprocessor
    resident_by: str
    occupancy: float
    waves: float
    l2_bytes: int
    dram_bytes: int
    shared_bytes: int

    def to_json(self) -> dict:
        return asdict(self)


def _tiled(group: Group, schedule: GpuSchedule) -> Demand:
    p = tiled.plan(group, schedule)
    pieces = -(-p.iterations // p.split)
    warps = p.threads // tiled.WARP
    read = (p.tk + p.tp) * (warps if p.matrix else p.threads)
    # Lanes that read the same word are served once: eight rows of four columns in a warp.
    shared = read if p.matrix else read // 4
    depth = pieces * p.kb
    registers = math.prod(p.own) + sum(p.own) * (2 if p.matrix else 1) + OVERHEAD_REGISTERS
    return Demand(
        p.tiles * p.split, p.threads, registers, pieces, max(p.stages - 1, 1),
        depth * p.bk * p.bp, depth * (p.bk + p.bp), depth * shared,
        _joined(p.split, p.tiles * p.bk * p.bp),
    )  # fmt: skip


def _patch(group: Group, schedule: GpuSchedule) -> Demand:
    p = patch.plan(group, schedule)
    pieces = -(-p.iterations // p.split)
    depth = pieces * p.depth
    operands = 16 * (p.tp // 64) if p.wide else 2 * sum(p.own)
    return Demand(
        p.tiles * p.split, p.threads, math.prod(p.own) + operands + OVERHEAD_REGISTERS,
        pieces, max(p.stages - 1, 1), depth * p.bk * p.bp,
        pieces * p.kb * p.plane + depth * p.bk * (2 if p.wide else 1),
        depth * (p.tk + p.tp) * (p.threads // p.team),
        _joined(p.split, p.tiles * p.bk * p.bp),
    )  # fmt: skip


def _cnnopt(group: Group, schedule: GpuSchedule) -> Demand:
    p = cnnopt_plan.plan(group, schedule)
    pieces = -(-p.iterations // p.split)
    channels = pieces * p.cb
    rows, columns = p.plane
    rk, ry, _ = p.registers
    weights = rk * p.taps * (ry if p.rows else 1)
    inputs = math.prod(p.slice) if not p.rows else ry * p.y.taps * p.slice[1]
    blocks = math.prod(p.grid)
    return Demand(
        blocks, p.threads, p.operands + OVERHEAD_REGISTERS, pieces, max(p.stages - 1, 1),
        channels * p.taps * math.prod(p.block),
        channels * (rows * columns + p.taps * p.block[0]),
        channels * (weights + inputs) * p.threads // 4,
        _joined(p.split, blocks // p.split * math.prod(p.block)),
        1 + (p.split > 1 and p.join < 2),
    )  # fmt: skip


def _any(group: Group, schedule: GpuSchedule) -> Demand:
    """One thread for each point, operands from the caches each time."""
    kernel = max(generate(group, schedule).steps, key=lambda s: math.prod(s.kernel.grid)).kernel
    blocks = math.prod(kernel.grid)
    products = group.flops // 2 // blocks
    return Demand(blocks, kernel.threads, OVERHEAD_REGISTERS, 1, 1, products, 2 * products, 0)


def _joined(split: int, floats: int) -> int:
    return 8 * split * floats if split > 1 else 0


DEMANDS: dict[str, Callable[[Group, GpuSchedule], Demand]] = {
    'tiled': _tiled, 'patch': _patch, 'rs': _cnnopt, 's': _cnnopt,
}  # fmt: skip


def demand(group: Group, schedule: GpuSchedule) -> Demand:
    """What a block of this schedule needs; raises ScheduleError where it is not legal."""
    return DEMANDS.get(schedule.schema, _any)(group, schedule)


def _resident(machine: GpuMachine, d: Demand, shared_bytes: int) -> tuple[int, str]:
    """Blocks that a multiprocessor holds at once, and what keeps further ones out."""
    limits = {
        'threads': machine.threads // d.threads,
        'registers': machine.registers // (min(d.registers, 255) * d.threads),
        'shared memory': machine.shared_bytes // shared_bytes if shared_bytes else machine.blocks,
        'blocks': machine.blocks,
    }
    by = min(limits, key=lambda name: limits[name])
    return max(limits[by], 1), by


def estimate(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> Estimate:
    """[Group, GpuSchedule, GpuMachine] -> [Estimate]"""
    d = demand(group, schedule)
    kernels = generate(group, schedule).steps
    shared = max(step.kernel.shared_bytes for step in kernels)
    resident, by = _resident(machine, d, shared)
    at_once = min(resident, -(-d.blocks // machine.multiprocessors))
    warps = at_once * -(-d.threads // machine.warp)
    fed = min(1.0, warps / WARPS_NEEDED.get(schedule.intrinsic, 16))
    turns = -(-d.blocks // machine.multiprocessors)
    one = machine.multiprocessors
    peak = compute_gflops(machine, schedule.intrinsic) or machine.peak_gflops
    peak *= REACHED.get(schedule.intrinsic, 1.0) * 1e9 / one
    output = group.output.bytes
    copied = 4 * d.copied * d.blocks
    l2_bytes = copied + d.joined_bytes + output
    dram = group.compulsory_bytes
    moved = 0 if dram <= machine.l2_bytes else dram
    rate = machine.clock_ghz * 1e9 * SHARED_BYTES_PER_CYCLE
    breakdown = {
        'compute': turns * 2 * d.products / (peak * fed),
        'shared memory': turns * 4 * d.shared_read / (rate * fed),
        'L2': l2_bytes / (machine.l2_gbps * 1e9 * min(1.0, d.blocks / one)),
        'DRAM': moved / (machine.global_gbps * 1e9),
    }
    rounds = -(-d.blocks // (one * resident))
    breakdown['latency'] = rounds * (1 + d.pieces / d.flight) * PIECE_SECONDS
    breakdown['launch'] = d.kernels * LAUNCH_SECONDS
    busy = max(breakdown[name] for name in ('compute', 'shared memory', 'L2', 'DRAM'))
    total = busy + breakdown['latency'] + breakdown['launch']
    return Estimate(
        total, max(breakdown, key=lambda name: breakdown[name]), breakdown, d.blocks, resident, by,
        min(resident * d.threads, machine.threads) / machine.threads, d.blocks / (one * resident),
        l2_bytes, moved, 4 * d.shared_read * d.blocks,
    )  # fmt: skip
