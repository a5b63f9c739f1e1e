"""What a block of the channels schema takes and does, counted from its plan."""

from __future__ import annotations

import math

from tilewright.kernels.gpu.schemas.channels.plan import (
    STEP_WORDS,
    WORD_BYTES,
    ChannelsPlan,
    plan,
)
from tilewright.kernels.gpu.schemas.channels.store import Store
from tilewright.kernels.gpu.work import BANKS_BYTES, WARP, Need, Work
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 40  # beside operands and sums: addresses, bounds, counters
ROW_REGISTERS = 3  # of each row that a thread copies
REUSED = 2.0  # times that a row which is kept near serves
CHUNK_INSTRUCTIONS = 6  # to copy a chunk: address and bounds of its window point


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    return _need(plan(group, schedule))


def _need(p: ChannelsPlan) -> Need:
    fragments = 0 if p.wide else p.tp // 16 * 4 + p.tk // 8 * 2
    copied = p.bp * p.units // p.threads
    store = Store.of(p)
    registers = math.prod(p.sums) + fragments + ROW_REGISTERS * copied + OTHER_REGISTERS
    shared = p.shared_floats + 2 * p.stages * p.bulk + sum(count for _, count in store.shared)
    computed = p.tiles * p.bk * p.bp * p.iterations * p.units
    return Need(
        p.threads, 4 * shared, registers, p.tiles * p.split,
        p.split, computed / (p.points * p.columns * p.groups * p.depth),
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]; a product of 16 x 8 x 16 halves, or of twice as many bytes,
    takes as long as one of TF32 with half the depth.
    """
    p = plan(group, schedule)
    wanted = _need(p)
    warps = p.threads // WARP
    pieces = -(-p.iterations // p.split)
    steps = pieces * p.words / STEP_WORDS
    products = steps * (p.bp / 16) * (p.bk / 8)
    if p.wide:
        teams = p.threads / 128
        matrix, wide = warps * steps * (p.tp / 64), products
        turns = float(pieces) if p.queue == 1 else 0.0  # else a later piece's products go on
        reads = 0.0
        # The matrix units read both operands from shared memory themselves, columns for each team.
        wavefronts = (
            steps * STEP_WORDS * WORD_BYTES * (p.bp + teams * p.tp / 64 * p.bk) / BANKS_BYTES
        )
    else:
        matrix, wide, turns = products, 0.0, 0.0
        reads = warps * steps * (p.tp // 16 * 4 + p.tk // 8 * 2)
        wavefronts = reads
    chunks = pieces * p.units * p.bp / WARP
    # Of rows that stay in the first cache, neighbouring window points find most.
    reused = REUSED if p.near and p.window_points > 1 else 1.0
    weights = 0.0 if p.bulk else pieces * p.chunks * p.bk / WARP
    result = float(DTYPES[p.group.output.dtype] * p.bk * p.bp)
    # Results pass through shared memory once.
    passed = 2 * 4.0 * p.bk * p.bp / BANKS_BYTES
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, pieces, 0.0, matrix, reads + passed / 2, wavefronts + passed,
        chunks + weights, float(p.item) * p.kb * pieces * (p.bp / reused + p.bk),
        chunks * CHUNK_INSTRUCTIONS, result, 4.0 * p.bk * p.bp, wide=wide, turns=turns, bulk=p.bulk,
        staged=True, cluster=p.cluster,
    )  # fmt: skip
