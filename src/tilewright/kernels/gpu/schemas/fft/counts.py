"""What the fft schema takes, does and is off by: its products', and what transforms add.

Errors are those of ops/fft_error.py; of matrix units, what schemas/winograd/counts.py says: a share
that is cut off every sum comes through the transforms as it is, what cuts differ by counts like
roundings.
"""

from __future__ import annotations

import math

from tilewright.kernels.gpu.matrix_units import cut_off, parts_of
from tilewright.kernels.gpu.schema import Detour, Shortcut
from tilewright.kernels.gpu.schemas.fft.plan import block_tiles, cut, plan, sizes_of, why_not
from tilewright.kernels.gpu.schemas.winograd.counts import TRANSFORMS, points_detour, points_work
from tilewright.kernels.gpu.schemas.winograd.plan import PRODUCTS
from tilewright.kernels.gpu.work import Need, Work
from tilewright.ops.epilogue_error import final_error
from tilewright.ops.fft import SIZES
from tilewright.ops.fft_error import transform_error
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

SECTOR = 8  # floats that memory moves at once: fewer neighbours waste the rest
LEAST_SAVING = 2.0  # times fewer products: with less, transforms cost as much


def need(group: Group, schedule: GpuSchedule) -> Need:
    """Of the products: blocks of the transforms are always the same."""
    p = plan(group, schedule)
    return PRODUCTS[schedule.intrinsic].count_need(p.product, p.schedule)


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """The products, and the kernels beside them."""
    waste = max(1.0, SECTOR / block_tiles(schedule['size']))
    return points_work(plan(group, schedule), schedule.intrinsic, registers, waste)


def detour(group: Group, schedule: GpuSchedule) -> Detour:
    """Fewer products, and what the kernels leave for each other, beside image and result."""
    return points_detour(plan(group, schedule))


def shortcut(group: Group) -> Shortcut | None:
    """With the tiles that move least, of those that save enough."""
    if why_not(group):
        return None

    def of(size: int) -> Shortcut:
        p = cut(group, size)
        between = (t for t in p.product.tensors if t.role != 'constant')
        weights = sum(t.bytes for t in p.product.with_role('constant'))
        return Shortcut(
            group.flops * (1 - 1 / p.shape.saving), 2 * sum(t.bytes for t in between) + weights,
            TRANSFORMS, tuple(PRODUCTS), p.shape.saving > LEAST_SAVING,
        )  # fmt: skip

    return min(map(of, sizes_of(group)), key=lambda s: (not s.many, s.moved_bytes))


def error(group: Group, schedule: GpuSchedule) -> float:
    """[Group, GpuSchedule] -> [share of the largest result]; inf where it cannot be computed."""
    tiles = dict(schedule.tiles)
    if tiles.get('size') not in SIZES or why_not(group):
        return math.inf
    shape = cut(group, tiles['size']).shape
    terms = math.ceil(shape.c / tiles.get('split', 1))
    parts = parts_of(schedule.intrinsic)
    if parts is None:
        return final_error(group, transform_error(shape, terms))
    spread = transform_error(shape, parts.additions * terms, parts.spread)
    return final_error(group, spread) + cut_off(parts, terms)
