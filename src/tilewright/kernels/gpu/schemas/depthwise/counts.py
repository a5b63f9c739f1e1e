"""What a block of the depthwise schema does, counted from its plan."""

from __future__ import annotations

import math

import numpy as np

from tilewright.kernels.gpu.columns import Batch, Tiling, boxed, whole
from tilewright.kernels.gpu.schemas.depthwise.plan import plan
from tilewright.kernels.gpu.work import WARP, Work
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 30  # beside operands and sums: addresses, bounds, counters


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]: a thread reads the rows under its outputs once each."""
    p = plan(group, schedule)
    warps = -(-p.threads // WARP)
    products = warps * p.th * p.tw * p.rows.taps * p.columns.taps
    reads = warps * p.rows.span(p.th) * p.columns.span(p.tw) / (4 if p.fours else 1)
    image = p.bp * p.block_rows * p.columns.span(p.bw * p.tw)
    sums = p.th * p.tw + p.columns.span(p.tw) + p.rows.taps * p.columns.taps
    return Work(
        math.prod(p.tiles), 1, p.threads, registers or sums + OTHER_REGISTERS,
        4 * p.shared_floats, 1, 1, float(products), 0.0, reads, reads,
        image / WARP if p.shared else 0.0, 4.0 * image, float(products),
        4.0 * p.threads * p.th * p.tw, 0.0,
    )  # fmt: skip


def tiling(batch: Batch) -> Tiling:
    """[Batch] -> [Tiling]"""
    p = plan(batch.group, batch.schedule(0))
    stage, rows = p.stage, len(batch)
    th, tw = batch.column('th'), batch.column('tw')
    block = {
        p.rows.out: np.minimum(th * batch.column('bh'), p.rows.outputs),
        p.columns.out: np.minimum(tw * batch.column('bw'), p.columns.outputs),
        **boxed(batch.column('bp'), p.planes),
    }
    reduction = whole(stage, stage.reduction, rows)
    fours = (p.columns.extent % 4 == 0) & (tw * p.columns.stride % 4 == 0)
    return Tiling(
        block, {p.rows.out: th, p.columns.out: tw}, reduction, reduction,
        {p.columns.out: tw}, np.where(fours, 4, 1), np.ones(rows, int),
    )  # fmt: skip
