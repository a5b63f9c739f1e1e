"""What the fft schema decides before it writes a line, and where it applies.

Goes in: a group and a schedule. Comes out: an `FftPlan`: tiles of the image, and the products
between the transforms as a group of their own with a schedule of its own, which other schemas
compute (as in schemas/winograd/plan.py). code.py says what the decisions mean.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.schemas.winograd.plan import (
    PRODUCTS,
    PointsPlan,
    of_product,
    product_group,
)
from tilewright.ops.fft import SIZES, FftGeometry, geometry, why_not_filter
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

NAME = 'fft'
TRIED = 4  # lengths of transforms that a search may choose from
SHARED_BYTES = 48 << 10  # what every GPU has for a block
MOST_TILES = 16  # of a block: points of so many lie side by side

FftPlan = PointsPlan[FftGeometry]


def why_not(group: Group) -> str:
    """Why this schema cannot compute a group; '' where it can."""
    reason = why_not_filter(group)
    if reason:
        return reason
    groups = group.main.sizes.get('g', 1)
    return f'{group.label} has {groups} groups' if groups > 1 else ''


def outputs(group: Group, size: int) -> tuple[int, int]:
    """Rows and columns of outputs of a tile."""
    return size - group.main.sizes['r'] + 1, size - group.main.sizes['s'] + 1


def sizes_of(group: Group) -> list[int]:
    """Lengths of transforms with the fewest products; none where the schema does not apply."""
    if why_not(group):
        return []
    found = [n for n in SIZES if min(outputs(group, n)) >= 1]
    return sorted(found, key=lambda n: -geometry(group, outputs(group, n)).saving)[:TRIED]


def block_tiles(size: int) -> int:
    """Tiles of one block of a transform: as many as shared memory holds, a power of two."""
    tiles = MOST_TILES
    while 4 * size * size * (tiles + 1) > SHARED_BYTES:
        tiles //= 2
    return tiles


def plan(group: Group, schedule: GpuSchedule) -> FftPlan:
    """[Group, GpuSchedule] -> [FftPlan]; raises ScheduleError where it does not fit.

    Whether the decisions of the product are legal is said by its own schema.
    """
    reason = why_not(group)
    if reason:
        raise ScheduleError(
            f'{group.label}: fft on GPUs computes convolutions with filters from 5x5 on, stride 1, '
            f'dilation 1 and one group: {reason}; use another schema'
        )
    size = schedule['size']
    if size not in SIZES or min(outputs(group, size)) < 1:
        shown = ', '.join(str(n) for n in SIZES if min(outputs(group, n)) >= 1)
        raise ScheduleError(f'{group.label}: size is {size}; choose one of {shown}')
    if schedule.intrinsic not in PRODUCTS:
        raise ScheduleError(
            f'{group.label}: fft multiplies by one of {", ".join(PRODUCTS)}, not by '
            f'{schedule.intrinsic}'
        )
    return replace(cut(group, size), schedule=of_product(schedule, 'size'))


@lru_cache(maxsize=256)
def cut(group: Group, size: int) -> FftPlan:
    """What all schedules with the same tiles have in common."""
    shape = geometry(group, outputs(group, size))
    return FftPlan(
        group, gpu_epilogue(group), shape, product_group(group, shape), GpuSchedule(NAME)
    )
