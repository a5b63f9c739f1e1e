"""What the winograd schema decides before it writes a line, and where it applies.

Goes in: a group and a schedule. Comes out: a `WinogradPlan`: tiles of the image, and the products
between the transforms as a group of their own with a schedule of its own, which other schemas
compute. code.py says what the decisions mean.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Generic, TypeVar

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.pointwise import Epilogue
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.schemas.patch import PATCH
from tilewright.kernels.gpu.schemas.tiled import TILED
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Stage, call, read, var
from tilewright.ops.tiles import Axis, TileGeometry, why_not_constant
from tilewright.ops.winograd import Geometry, applies, geometry
from tilewright.schedule.gpu import GpuSchedule

NAME = 'winograd'
TILES = (2, 4)  # outputs of a tile each way; more lose too many digits, fewer save nothing
TAPS = 3
# What multiplies -> the schema of the products. Rows of a patch without a window lie side by side,
# and need not fill whole blocks.
PRODUCTS = {'fma': TILED, 'mma_tf32x3': PATCH, 'wgmma_tf32x3': PATCH, 'wgmma_tf32_bf16': PATCH}


G = TypeVar('G', bound=TileGeometry[Axis], covariant=True)


@dataclass(frozen=True)
class PointsPlan(Generic[G]):
    """Everything that is decided before a line is written, for any transforms."""

    group: Group
    epilogue: Epilogue
    shape: G
    product: Group
    schedule: GpuSchedule

    @property
    def tiles(self) -> int:
        """Tiles of all images."""
        return self.shape.n * self.shape.ph * self.shape.pw

    @property
    def image(self) -> Tensor:
        return self.group.tensor(self.group.main.reads[0].tensor)

    @property
    def weights(self) -> Tensor:
        return self.group.tensor(self.group.main.reads[1].tensor)


WinogradPlan = PointsPlan[Geometry]


def why_not(group: Group) -> str:
    """Why this schema cannot compute a group; '' where it can."""
    reason = applies(group, TILES[0]) or why_not_constant(group)
    if reason:
        return reason
    shape = geometry(group, TILES[0])
    found = {
        'filter': (shape.down.r, shape.across.r),
        'stride': (shape.down.stride, shape.across.stride),
    }
    if found != {'filter': (TAPS, TAPS), 'stride': (1, 1)}:
        return f'{group.label} has {found}'
    return f'{group.label} has {shape.g} groups' if shape.g > 1 else ''


def plan(group: Group, schedule: GpuSchedule) -> WinogradPlan:
    """[Group, GpuSchedule] -> [WinogradPlan]; raises ScheduleError where it does not fit.

    Whether the decisions of the product are legal is said by its own schema.
    """
    reason = why_not(group)
    if reason:
        raise ScheduleError(
            f'{group.label}: winograd on GPUs computes 3x3 convolutions with stride 1, dilation 1 '
            f'and one group: {reason}; use another schema'
        )
    m = schedule['m']
    if m not in TILES:
        raise ScheduleError(f'{group.label}: m is {m}; choose one of {TILES}')
    if schedule.intrinsic not in PRODUCTS:
        raise ScheduleError(
            f'{group.label}: winograd multiplies by one of {", ".join(PRODUCTS)}, not by '
            f'{schedule.intrinsic}'
        )
    return replace(cut(group, m), schedule=of_product(schedule))


@lru_cache(maxsize=256)
def cut(group: Group, m: int) -> WinogradPlan:
    """What all schedules with the same tiles have in common."""
    shape = geometry(group, m)
    return WinogradPlan(
        group, gpu_epilogue(group), shape, product_group(group, shape), GpuSchedule(NAME)
    )


def of_product(schedule: GpuSchedule, size: str = 'm') -> GpuSchedule:
    """The schedule of the products: all decisions but the size of tiles."""
    tiles = tuple((name, value) for name, value in schedule.tiles if name != size)
    return GpuSchedule(PRODUCTS[schedule.intrinsic].name, tiles, schedule.intrinsic)


def product_group(group: Group, shape: TileGeometry[Axis]) -> Group:
    """A matrix product for each point, (m + 2)^2 for F(m, 3): M[g,k,p] += V[g,c,p] U[g,k,c].

    g counts points, as groups of a convolution are counted; p counts tiles, as its pixels.
    """
    stage = group.main
    image, weights = (access.tensor for access in stage.reads)
    names = f'{image}_points', f'{weights}_points', f'{stage.write.tensor}_points'
    points, tiles = shape.t, shape.n * shape.ph * shape.pw
    v, u, made = (
        Tensor(names[0], ('g', 'c', 'p'), (points, shape.c, tiles)),
        Tensor(names[1], ('g', 'k', 'c'), (points, shape.k, shape.c), 'constant'),
        Tensor(names[2], ('g', 'k', 'p'), (points, shape.k, tiles), 'output'),
    )
    product = Stage(
        'points',
        (Dim('g', points), Dim('k', shape.k), Dim('p', tiles), Dim('c', shape.c, 'reduction')),
        Access(made.name, tuple(map(var, made.dims))),
        (Access(v.name, tuple(map(var, v.dims))), Access(u.name, tuple(map(var, u.dims)))),
        call('mul', read(0), read(1)),
        'sum',
    )
    return Group(f'{group.label}@{shape.name}', (v, u, made), (product,))


def result(group: Group) -> Access:
    """Where the main stage's values end up."""
    return replace(group.main.write, tensor=group.output.name)
