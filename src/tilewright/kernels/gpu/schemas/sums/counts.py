"""What a block of the schema of long sums takes and does, where it applies, and what it proposes.

Terms come from memory once, through the first cache where results that a thread keeps share them.
"""

from __future__ import annotations

import math

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.kernels.gpu.schemas.general.code import lanes_beside
from tilewright.kernels.gpu.schemas.general.run import RUN
from tilewright.kernels.gpu.schemas.sums.code import NAME, UNROLLED, SumsPlan, _varies, plan
from tilewright.kernels.gpu.work import WARP, Need, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 34  # beside sums: addresses, bounds, counters
DECODED = 6  # instructions to cut one dimension off a flat number
GUARDED = 4  # instructions of an index that may leave its tensor, and of an address
LEAST_LENGTH = 256  # terms of a sum from which on this is worth its barriers
BLOCKS = 2  # of a multiprocessor, that keep memory busy
MANY_RESULTS = 1 << 16


def applies(group: Group) -> bool:
    """Whether results are few and sums long; matrix products belong to other schemas."""
    stage = group.main
    if not stage.combiner or not group.is_plain or vector_candidates(group, moving=True):
        return False
    length = math.prod(stage.sizes[d] for d in stage.reduction)
    results = math.prod(stage.sizes[d] for d in stage.parallel)
    return length >= LEAST_LENGTH and results <= MANY_RESULTS


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    return _need(plan(group, schedule))


def _need(p: SumsPlan) -> Need:
    shared = 4 * p.threads * p.held
    computed = p.tiles * p.owners / p.results
    return Need(
        p.threads, shared, OTHER_REGISTERS + 2 * p.held, p.tiles * p.split, p.split, computed
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]"""
    p = plan(next(part for part in parts(group) if group.main in part.stages), schedule)
    wanted = _need(p)
    terms = p.share * p.owners / WARP  # of a warp, or runs of them, each for all that is kept
    loads = other = 0.0
    for read in p.piece.reads:
        times = math.prod(loop.size for loop in p.kept if _varies(read, loop.name))
        loads += terms * times
        other += terms * times * (GUARDED * len(read.tests) + 1)
    other += terms * (DECODED * (len(p.along) - 1) + 3)
    products = terms * p.held * p.run
    turns = math.ceil(p.share / p.lanes)
    joins = math.log2(p.lanes) * p.held * p.threads / WARP / 2
    moved = sum(4 * math.prod(group.tensor(r.tensor).shape) for r in p.piece.reads)
    stored = 4.0 * p.owners * p.held
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes, 1,
        1, products, 0.0, loads + 3 * joins, loads + 3 * joins, 0.0, moved / wanted.blocks,
        other, stored, stored, waits=turns / (UNROLLED if p.held == 1 else 1),
    )  # fmt: skip


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """Blocks until the device is full; neighbouring results beside each other where they lie so."""
    if len(parts(group)) > 1 or not applies(group):
        return ()
    threads = min(256, machine.threads_per_block)
    try:
        p = plan(group, GpuSchedule.of(NAME, threads=threads, owners=1, split=1))
    except ScheduleError:
        return ()
    owners = 1 if lanes_beside(p.piece) else min(32, 1 << (p.results - 1).bit_length())
    wanted = BLOCKS * machine.multiprocessors * (2048 // threads) // 2
    blocks = -(-p.results // owners)
    split = 1
    terms = p.length // RUN if p.has_runs else p.length
    while blocks * split < wanted and terms // (2 * split) >= 2 * threads // owners:
        split *= 2
    run = RUN if p.has_runs else 1
    return tuple(
        GpuSchedule.of(NAME, threads=threads, owners=owners, split=n, run=run)
        for n in dict.fromkeys((split, max(split // 2, 1)))
    )
