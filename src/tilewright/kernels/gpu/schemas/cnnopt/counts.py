"""What a block of CNNOpt's kernels takes and does, counted from its plan.

columns.py has the same counts for many schedules at once.
"""

from __future__ import annotations

import math

from tilewright.kernels.gpu.schemas.cnnopt.join import ATOMICS, SECOND_PASS
from tilewright.kernels.gpu.schemas.cnnopt.plan import CnnoptPlan, plan
from tilewright.kernels.gpu.work import WARP, Need, Work
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule


def other_registers(rows: bool) -> int:
    """Beside operands and sums: addresses, bounds, counters; of the S kernel and of RS."""
    return 24 if rows else 20


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    return _need(plan(group, schedule))


def _need(p: CnnoptPlan) -> Need:
    blocks, stage = p.grid[0] * p.grid[1], p.group.main
    padded = blocks * math.prod(p.block) / math.prod(stage.sizes[d] for d in stage.parallel)
    return Need(
        p.threads, 4 * p.shared_floats, p.operands + other_registers(p.rows), blocks * p.split,
        p.split, padded * p.iterations * p.cb / p.channels,
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]"""
    p = plan(group, schedule)
    wanted = _need(p)
    warps = p.threads // WARP
    pieces = -(-p.iterations // p.split)
    channels = pieces * p.cb
    (rk, ry, rx), (rows, columns) = p.registers, p.plane
    inputs, weights = thread_reads(p)
    reads = warps * channels * (inputs + weights / (1 if rk % 4 else 4))
    weight_bytes = p.taps * p.block[0]
    unit = 1 if p.block[0] % 4 else 4
    result = 4.0 * math.prod(p.block)
    outputs = 4.0 * math.prod(group.output.shape)
    way = p.join if p.split > 1 else -1
    extra = {
        ATOMICS: (1 + bool(group.epilogue), outputs * (1 + 2 * bool(group.epilogue))),
        SECOND_PASS: (1, outputs * (p.split + 1)),
    }.get(way, (0, 0.0))
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, pieces, float(warps * channels * p.taps * rk * ry * rx), 0.0, reads,
        warps * channels * (_input_wavefronts(p) * inputs + weights),
        channels * (rows * columns / WARP + weight_bytes / (unit * WARP)),
        4.0 * channels * (rows * columns + weight_bytes), 0.0, result,
        result / (2 if way == ATOMICS else 1), *extra,
        least_reads=warps * channels * (inputs + weights) / 4,
        least_wavefronts=warps * channels
        * (inputs * len(_input_places(p)) + weights * p.lanes[0]) / WARP,
    )  # fmt: skip


def thread_reads(p: CnnoptPlan) -> tuple[int, int]:
    """Elements (inputs, weights) that a thread reads from shared memory for one channel.

    RS: each once. S: a row of inputs for each of R^y outputs and F_y taps, weights for each R^y.
    """
    k, y, _ = p.registers
    if p.rows:
        return y * p.y.taps * p.slice[1], p.taps * k * y
    return p.slice[0] * p.slice[1], p.taps * k


def _input_wavefronts(p: CnnoptPlan) -> int:
    """Cycles of one read of inputs by a warp: lanes along x and y that meet in one bank."""
    banks: dict[int, int] = {}
    for place in _input_places(p):
        banks[place % WARP] = banks.get(place % WARP, 0) + 1
    return max(banks.values())


def _input_places(p: CnnoptPlan) -> set[int]:
    """Words of shared memory that the lanes of a warp read at once."""
    (_, ty, tx), (_, ry, rx), pitch = p.lanes, p.registers, p.plane[1]
    return {y * ry * p.y.stride * pitch + x * rx * p.x.stride for y in range(ty) for x in range(tx)}
