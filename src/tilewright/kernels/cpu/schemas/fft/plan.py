"""What the FFT schema decides before it writes a line: plans of Winograd's kind, other buffers.

Goes in: a convolution's group and a schedule with schema 'fft' over the dimensions of the batched
product (`ops.fft.matmul_stage`), with the options m (outputs of a tile), mw where columns differ,
and run (most tiles that a micro-kernel takes). Comes out: a `PointsPlan`, or a ScheduleError.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import why_no_products
from tilewright.kernels.cpu.schemas.winograd.plan import (
    Held,
    PointsPlan,
    check_levels,
    plan_points,
    tile,
    transform_lanes,
)
from tilewright.kernels.cpu.schemas.winograd.space import points_schedule
from tilewright.kernels.cpu.schemas.winograd.transform import Products, TileBuffers, odd_lines
from tilewright.kernels.cpu.space import Cut
from tilewright.machine.isa import ISAS
from tilewright.ops.fft import FftGeometry, applies, geometry, matmul_stage, why_not_filter
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import Tile
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class FftBuffers(TileBuffers):
    """V[point][tile][channel]: vectors of the input transform lie across channels."""

    shape: FftGeometry

    @property
    def tile_step(self) -> int:
        """Channels in whole vectors."""
        return -(-self.shape.c // self.lanes) * self.lanes

    @property
    def channel_step(self) -> int:
        return 1

    @property
    def v_stride(self) -> int:
        return odd_lines(self.tiles * self.tile_step)

    @property
    def work_floats(self) -> int:
        """One tile of one vector of channels."""
        return self.shape.down.length * self.shape.across.length * self.lanes


def why_not(group: Group) -> str:
    """Why no tile of outputs can be computed so; '' where one can."""
    return why_not_filter(group) or why_no_products(group)


def product(group: Group, schedule: Schedule) -> Stage:
    """The batched product, whose dimensions a schedule tiles."""
    return matmul_stage(group, tile(schedule))


def fft_schedule(
    group: Group, isa: str, m: Tile, run: int, vectors: int, k_panels: int,
    block: tuple[int, int, int], parallel: Cut = (),
) -> Schedule:  # fmt: skip
    """The schedule of these decisions: `block` is n, ph, pw; `k_panels` panels of k at once."""
    stage = matmul_stage(group, m)
    return points_schedule('fft', stage, isa, m, run, vectors, k_panels, block, parallel)


def plan_fft(group: Group, schedule: Schedule) -> PointsPlan:
    """[Group, Schedule] -> [PointsPlan]"""
    reason = applies(group, tile(schedule))
    if reason:
        raise ScheduleError(f'fft: {reason}; use the direct algorithm')
    stage, shape = product(group, schedule), geometry(group, tile(schedule))
    check_levels(group, schedule, stage)
    lanes = transform_lanes(ISAS[schedule.isa].lanes, shape.c)

    def hold(tiles: int, _columns: int, width: int) -> Held:
        # Outputs leave tile by tile: a row of one has enough neighbours.
        step = odd_lines(shape.t * width)
        return FftBuffers(tiles, 1, lanes, shape), (Products(0, step, width),), tiles * step

    return plan_points(group, schedule, shape, stage, hold)
