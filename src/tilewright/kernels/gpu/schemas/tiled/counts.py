"""What a block of the tiled schema takes and does, counted from its plan."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu.columns import Batch, Tiling, boxed, contraction_of, reduced
from tilewright.kernels.gpu.schemas.tiled.plan import TiledPlan, plan
from tilewright.kernels.gpu.work import (
    ADDED,
    BANKS_BYTES,
    CUT_INSTRUCTIONS,
    TRANSACTION,
    WARP,
    Need,
    Work,
    matrix_code,
)
from tilewright.ops.group import Group
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

SCATTERED = 5  # lines of a warp's copy from which on looking them up is counted
SECTORS = 8  # of 32 bytes, that are read where one of four would do
OTHER_REGISTERS = 35  # beside operands and sums: addresses, bounds, counters


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    return _need(plan(group, schedule))


def _need(p: TiledPlan) -> Need:
    wide, long = p.pitch
    columns, rows = p.own
    # Matrix instructions read fragments of both operands, each cut into two parts.
    fragments = (p.tp // 8 * 2 + p.tk // 16 * 4) * 2 if p.matrix else p.tk + p.tp
    depth = p.depth / (p.window_points * p.channels)
    # Numbers of what comes before the products, for each depth that a thread copies.
    held = len(p.front.numbers) * max(1, p.kb * p.bp // p.threads) if p.front else 0
    return Need(
        p.threads, 4 * p.stages * p.kb * (wide + long),
        columns * rows + fragments + OTHER_REGISTERS + held + (rows * 2 if p.fresh else 0),
        p.tiles * p.split, p.split,
        depth * p.tiles * p.bk * p.bp / (p.points * p.columns * p.groups),
        p.kb * p.tk * p.tp if not p.matrix else p.kb // 8 * matrix_code(p.tk, p.tp),
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]"""
    p = plan(group, schedule)
    wanted = _need(p)
    warps = -(-p.threads // WARP)
    pieces = -(-p.iterations // p.split)
    depth = pieces * p.kb
    if p.matrix:
        across, down = p.tp // 8, p.tk // 16
        steps = warps * depth / 8
        matrix, products = steps * 3 * across * down, 0.0
        reads = steps * (across * 2 + down * 4)
        wavefronts, other = reads, reads * CUT_INSTRUCTIONS
        if p.fresh:
            other += ADDED * matrix
    else:
        lanes = min(WARP, p.bp // p.tp)
        matrix, products = 0.0, warps * depth * p.tk * p.tp
        reads = warps * depth * (p.tp + p.tk) / 4
        wavefronts = (
            warps
            * depth
            * (
                p.tp / 4 * max(1.0, lanes * 16 / BANKS_BYTES)
                + p.tk / 4 * max(1.0, WARP / lanes * 16 / BANKS_BYTES)
            )
        )
        other = 0.0
    if p.front:
        # Each element is read, computed with and written back by the thread that copied it; numbers
        # are read once for all rows of a thread.
        elements = depth * p.bp / WARP
        numbers = len(p.front.numbers) / max(1, p.bp // p.threads)
        reads, wavefronts = reads + 2 * elements, wavefronts + 2 * elements
        other += elements * (front_functions(group) + numbers)
    lines = _lines(p, p.contraction.a, p.rows)
    if lines >= SCATTERED:
        # Rows of a warp lie in as many lines, which the first cache looks up one by one.
        wavefronts += depth * p.bp / WARP * lines
    tile = 4.0 * p.bk * p.bp
    packs = p.moving and not p.direct  # reads every element, writes the packed ones
    # Of each 32 bytes that are read a warp may want as few as four.
    sectors = min(_lines(p, p.contraction.b, [(p.contraction.vector, p.columns)]), SECTORS)
    moved = 4.0 * p.packed.elements * (1 + sectors) if packs else 0.0
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, pieces, products, matrix, reads, wavefronts,
        depth * (p.bp / WARP + p.bk / (4 * WARP)), 4.0 * depth * (p.bp + p.bk), other, tile, tile,
        extra_kernels=int(packs), extra_bytes=moved,
    )  # fmt: skip


def _lines(p: TiledPlan, access: Access, dims: Sequence[tuple[str, int]]) -> int:
    """Lines of 128 bytes in which 32 neighbours of an operand lie."""
    strides, _ = access_strides(p.group, access)
    found = set()
    for number in range(min(WARP, math.prod(size for _, size in dims))):
        place, rest = 0, number
        for name, size in reversed(dims):
            place, rest = place + rest % size * strides.get(name, 0), rest // size
        found.add(place // TRANSACTION)
    return len(found)


def front_functions(group: Group) -> int:
    """Functions that are applied to each element of the image before the products."""
    before = group.stages[: group.stages.index(group.main)]
    return sum(len(list(stage.expr.functions())) for stage in before)


def tiling(batch: Batch) -> Tiling:
    """[Batch] -> [Tiling]"""
    c = contraction_of(batch.group)
    sizes = c.stage.sizes
    pixels = [(d, sizes[d]) for d in c.pixels]
    bk, bp, tk, tp = (batch.column(name) for name in ('bk', 'bp', 'tk', 'tp'))
    matrix = batch.intrinsic != 'fma'
    share, piece = reduced(batch, c, batch.column('kb'))
    if not matrix:
        own_k, own_p = tk, tp
    else:
        own_k, own_p = np.maximum(tk // 8, 1), np.maximum(tp // 4, 1)
    return Tiling(
        {c.vector: np.minimum(bk, sizes[c.vector]), **boxed(bp, pixels)},
        {c.vector: own_k, **boxed(own_p, pixels)}, share, piece,
        {c.pixels[-1]: np.ones(len(batch), int)} if c.pixels else {},
        np.full(len(batch), 4), np.ones(len(batch), int),
    )  # fmt: skip
