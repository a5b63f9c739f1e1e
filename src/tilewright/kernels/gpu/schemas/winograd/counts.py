"""What the winograd schema takes, does and is off by: its products', and what transforms add.

Transforms amplify errors of the products at its points, by a factor of 32 for F(4, 3)
(ops/winograd_error.py), but not all of them. What an addition of a matrix unit cuts off in the mean
is proportional to the sum so far, and a sum of shares of every channel's product is still what the
transforms make a convolution of: that part comes through as it is. Amplified is what cuts differ
by: about as much as roundings do, so that 3/8 of the channels count as additions in fp32 (1/4 with
bf16), and the spread of what is left out of a product (kernels/gpu/matrix_units.py). Emulated units
(tests/unit/test_gpu_space.py) are off by 0.6 to 1.4 of this.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.kernels.gpu.matrix_units import cut_off, parts_of
from tilewright.kernels.gpu.schema import Detour, Shortcut
from tilewright.kernels.gpu.schemas.winograd.plan import (
    PRODUCTS,
    TILES,
    PointsPlan,
    plan,
    product_group,
    why_not,
)
from tilewright.kernels.gpu.work import Need, Work
from tilewright.ops.epilogue_error import final_error
from tilewright.ops.group import Group
from tilewright.ops.winograd import geometry
from tilewright.ops.winograd_error import transform_error
from tilewright.schedule.gpu import GpuSchedule

# With fewer tiles, some images of a network at batch 1, a product for each of 36 points is thin:
# its weights are read for two blocks of pixels.
MANY_TILES = 512
TRANSFORMS = 2  # kernels of a call beside the products: image to V, M to the result


def need(group: Group, schedule: GpuSchedule) -> Need:
    """Of the products: the transforms need less, and nothing that could be decided."""
    p = plan(group, schedule)
    return PRODUCTS[schedule.intrinsic].count_need(p.product, p.schedule)


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """The products, and the kernels beside them."""
    return points_work(plan(group, schedule), schedule.intrinsic, registers)


def points_work(p: PointsPlan, intrinsic: str, registers: int | None, waste: float = 1.0) -> Work:
    """The same for any transforms, which move `waste` times the bytes that they leave behind."""
    done = PRODUCTS[intrinsic].count_work(p.product, p.schedule, registers)
    beside = sum(t.bytes for t in p.group.tensors if t.role != 'inner') - p.weights.bytes
    moved = waste * sum(_between(p)) + beside
    return replace(done, extra_kernels=TRANSFORMS, extra_bytes=float(moved))


def _between(p: PointsPlan) -> tuple[int, int]:
    """Bytes of what is multiplied and of the products."""
    v, _, made = p.product.tensors
    return v.bytes, made.bytes


def detour(group: Group, schedule: GpuSchedule) -> Detour:
    """Fewer products, and what the kernels leave for each other, beside image and result."""
    return points_detour(plan(group, schedule))


def points_detour(p: PointsPlan) -> Detour:
    """The same for any transforms."""
    beside = p.image.bytes, p.group.output.bytes
    return Detour(p.product.flops, tuple(zip(_between(p), beside, strict=True)))


def shortcut(group: Group) -> Shortcut | None:
    """With the largest tiles."""
    if why_not(group):
        return None
    m = max(TILES)
    shape = geometry(group, m)
    between = product_group(group, shape).tensors
    return Shortcut(
        group.flops * (1 - 1 / shape.saving),
        2 * sum(t.bytes for t in between if t.role != 'constant'), TRANSFORMS, tuple(PRODUCTS),
        shape.n * shape.ph * shape.pw >= MANY_TILES,
    )  # fmt: skip


def error(group: Group, schedule: GpuSchedule) -> float:
    """[Group, GpuSchedule] -> [share of the largest result]; inf where it cannot be computed."""
    tiles = dict(schedule.tiles)
    if tiles.get('m') not in TILES or why_not(group):
        return math.inf
    shape = geometry(group, tiles['m'])
    terms = math.ceil(shape.c / tiles.get('split', 1))
    parts = parts_of(schedule.intrinsic)
    if parts is None:
        return final_error(group, transform_error(shape.down, shape.across, terms))
    amplified = transform_error(shape.down, shape.across, parts.additions * terms, parts.spread)
    # What is cut off a sum is a share of that sum: where an epilogue is flat, it is lost again.
    return final_error(group, amplified) + cut_off(parts, terms)
