"""What a block of the patch and strip schemas takes and does, counted from its plan."""

from __future__ import annotations

import math

import numpy as np

from tilewright.kernels.gpu.columns import Batch, Tiling, boxed, contraction_of, reduced
from tilewright.kernels.gpu.schemas.patch import warp as patch_warp
from tilewright.kernels.gpu.schemas.patch import warpgroup as patch_warpgroup
from tilewright.kernels.gpu.schemas.patch.code import generate
from tilewright.kernels.gpu.schemas.patch.plan import STEP, STRIP, UNROLLED, plan
from tilewright.kernels.gpu.work import (
    ADDED,
    BANKS_BYTES,
    CUT_INSTRUCTIONS,
    WARP,
    Need,
    Work,
    matrix_code,
)
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 45  # beside operands and sums: addresses, bounds, counters
MIXED_REGISTERS = 30  # of a warpgroup in TF32 and bf16, which keeps two steps of pixels
ANEW = 2  # instructions for each sum of a piece that is added in fp32, and begun anew
CUT_CODE = 40  # instructions for the 64 pixels of a warpgroup's step: reads, cuts, three products


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    module, p = generate(group, schedule), plan(group, schedule)
    main = module.steps[-1].kernel  # behind what packs an operand that is computed
    tk, tp = schedule['tk'], schedule['tp']
    steps = p.depth // STEP
    if p.wide:
        other = MIXED_REGISTERS if p.mixed else OTHER_REGISTERS
        registers = (
            (2 if p.fresh else 1) * tk * tp // 128 + (32 if p.mixed else 16) * (tp // 64) + other
        )
        code = (steps if steps <= UNROLLED else 4) * (tp // 64) * CUT_CODE
    else:
        registers = tk * tp // 32 + (tp // 8 * 2 + tk // 16 * 4) * 2 + OTHER_REGISTERS
        registers += tp // 2 if p.fresh else 0
        written = steps if p.window_points <= patch_warp.UNROLLED else p.kb // 8
        code = (4 if p.joint else written) * matrix_code(tk, tp)
    sizes = p.sizes | ({} if p.strip is None else {STRIP: p.strip.pixels})
    tiles = zip(p.tile, p.grid, strict=True)
    waste = math.prod(count * extent / sizes[d] for (d, extent), (_, count) in tiles)
    return Need(
        main.threads, main.shared_bytes, registers, math.prod(main.grid), schedule['split'], waste,
        code,
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]"""
    p, wanted = plan(group, schedule), need(group, schedule)
    warps = p.threads // WARP
    pieces = -(-p.iterations // p.split)
    steps = pieces * p.depth / STEP  # of a team
    if p.wide:
        tiles = p.tp / 64
        # A product of bf16 takes as long, and as many bytes, as one of TF32 with half the depths.
        products = pieces * (p.steps + 2 * p.pairs) if p.mixed else steps * 3
        matrix, turns = warps * products * tiles, pieces * p.pairs if p.mixed else steps
        wide = warps / 4 * products * tiles * p.bk / 2
        reads = warps * steps * 4 * tiles
        # The matrix units read the columns of a step from shared memory themselves.
        wavefronts = reads + warps / 4 * products * tiles * p.bk * STEP * 4 / BANKS_BYTES
    else:
        across, down = p.tp // 8, p.tk // 16
        matrix, wide, turns = warps * steps * 3 * across * down, 0.0, 0.0
        reads = warps * steps * (across * 2 + down * 4)
        wavefronts = reads
    other = reads * CUT_INSTRUCTIONS
    if p.fresh:
        other += ANEW * warps * pieces * p.tk * p.tp / 128 if p.wide else ADDED * matrix
    weights = patch_warpgroup.shared_weights(p) if p.wide else p.depth * p.bk
    tile = 4.0 * p.bk * p.bp
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, pieces, 0.0, matrix, reads, wavefronts,
        pieces * (p.kb * p.copied / WARP + (0 if p.bulk else weights / (4 * WARP))),
        4.0 * pieces * (p.kb * p.plane + weights), other, tile, tile,
        wide=wide, turns=turns, bulk=p.bulk, extra_kernels=int(p.moving),
        extra_bytes=8.0 * p.packed.elements if p.moving else 0.0,
    )  # fmt: skip


def tiling(batch: Batch) -> Tiling:
    """[Batch] -> [Tiling] of patches and strips; a strip's pixels are the box around them."""
    c = contraction_of(batch.group)
    sizes = c.stage.sizes
    if 'bp' in batch.tiles:
        tile = boxed(batch.column('bp'), [(d, sizes[d]) for d in c.pixels])
    else:
        tile = {d: np.minimum(batch.column(f'b{d.rstrip("_")}'), sizes[d]) for d in c.pixels}
    bk, tk, tp = (batch.column(name) for name in ('bk', 'tk', 'tp'))
    wide = batch.intrinsic.startswith('wgmma')
    columns = np.maximum(tk // (2 if wide else 8), 1)
    pixels = np.maximum(tp // (64 if wide else 4), 1)
    share, piece = reduced(batch, c, batch.column('kb'))
    return Tiling(
        {c.vector: np.minimum(bk, sizes[c.vector]), **tile},
        {c.vector: columns, **boxed(pixels, [(d, sizes[d]) for d in c.pixels])}, share, piece,
        {c.pixels[-1]: np.ones(len(batch), int)}, np.full(len(batch), 4),
        np.ones(len(batch), int),
    )  # fmt: skip
