"""What a block of the general schema takes and does, and how many lanes keep a device busy."""

from __future__ import annotations

import math

from tilewright.kernels.gpu.module import with_own_dims
from tilewright.kernels.gpu.schemas.general.code import NAME, generate
from tilewright.kernels.gpu.schemas.general.run import RUN, has_runs
from tilewright.kernels.gpu.work import WARP, Need, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 30  # beside operands and sums: addresses, bounds, counters
INDEX_INSTRUCTIONS = 5  # of a product whose operands are addressed anew
CACHED = 8  # products of a thread for each four bytes that come from L2: the rest is found in L1
BUSY = 512  # threads of a multiprocessor that hide the latency of memory
FULL = 2048  # threads of a multiprocessor that ask for as many bytes as memory delivers
LONG = 64  # elements of a lane from which on a reduction is bound by that
MOST_LANES = 1024
MANY = 1 << 18  # results from which on four of a thread still fill a device


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    points = math.prod(group.main.sizes[d] for d in group.main.parallel)
    threads = schedule['threads']
    blocks = -(-points // max(threads, 1))
    return Need(threads, 0, OTHER_REGISTERS, blocks, 1, blocks * threads / points)


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """One thread for each point; operands come from the caches for every product."""
    kernel = generate(with_own_dims(group), schedule).steps[0].kernel
    blocks = math.prod(kernel.grid)
    products = max(group.flops / 2 / blocks, 1.0) / WARP
    index = INDEX_INSTRUCTIONS / dict(schedule.tiles).get('run', 1)
    outputs = 4.0 * math.prod(group.output.shape) / blocks
    return Work(
        blocks, 1, kernel.threads, registers or OTHER_REGISTERS, kernel.shared_bytes, 1,
        1, products, 0.0, 2 * products, 2 * products, 0.0, WARP * products / CACHED,
        index * products, outputs, 0.0,
    )  # fmt: skip


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """Lanes until the device is busy, and half and twice as many."""
    stage = group.main
    points = math.prod(stage.sizes[d] for d in stage.parallel)
    length = math.prod(stage.sizes[d] for d in stage.reduction)
    lanes = 1
    while (
        2 * lanes <= min(MOST_LANES, machine.threads_per_block)
        and points * lanes < machine.multiprocessors * (FULL if LONG * lanes < length else BUSY)
        and 4 * lanes < length
    ):
        lanes *= 2
    if lanes == 1 and points >= MANY and parts(group) == (group,) and has_runs(group):
        runs = (GpuSchedule.of(NAME, threads=128, run=RUN), GpuSchedule.of(NAME, threads=256))
        return tuple(s for s in runs if s['threads'] <= machine.threads_per_block)
    threads = max(min(256, machine.threads_per_block), lanes)
    wanted = [lanes, *(n for n in (2 * lanes, lanes // 2) if n >= 1)]
    return tuple(
        GpuSchedule.of(NAME, threads=max(min(128, threads), n), lanes=n)
        for n in wanted
        if n == 1 or n <= min(length, threads)
    )
