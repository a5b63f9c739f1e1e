"""What the wide schema decides: depthwise convolutions and pooling of bf16 in NHWC.

    Out[n, h, w, k] += In[n, h*sh + r*dh - ph, w*sw + s*dw - pw, k] * Ker[k, 0, r, s]
    Out[n, h, w, k] max= In[..]       or min, or the sum, without weights

Goes in: a group with such a main stage, and a schedule. Comes out: a `WidePlan`. Register tiles are
those of f16 (schemas/windows): some pixels of a row times a vector of channels, whose columns
outside the image are known as code is generated. A vector is sixteen floats: bf16 are widened as
they are loaded, each once for all windows of the tile that it is in, and what follows sums is
computed and rounded as behind tiles (kernels/cpu/half_vectors.py). Weights are widened ahead.
Maxima and minima with nothing behind them are those of 16-bit numbers in the same order, 32 at
once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.half_vectors import MOST_LANES as LANES
from tilewright.kernels.cpu.half_vectors import HalfValue, half_value
from tilewright.kernels.cpu.schema import Work
from tilewright.kernels.cpu.schemas.channelwise.plan import Slide
from tilewright.kernels.cpu.schemas.windows.plan import (
    Tile,
    tile_at,
    window_factors,
    window_roles,
)
from tilewright.kernels.cpu.space import (
    cuts_up_to,
    even_cuts,
    largest_part,
    register_order,
    whole_tile,
)
from tilewright.machine.isa import ISAS, tile_isa
from tilewright.ops.group import Group, Tensor
from tilewright.ops.parts import parts
from tilewright.ops.stage import Access
from tilewright.schedule.schedule import Level, Schedule

PIXELS = (7, 8, 4)  # of a register tile
LINE = 32  # bf16 of a cache line: threads have whole ones


@dataclass(frozen=True)
class WidePlan:
    """Everything that is decided before a line is written."""

    group: Group
    schedule: Schedule
    batch: str
    down: Slide
    across: Slide
    channel: str
    image: Tensor
    weights: Access | None
    value: HalfValue

    @property
    def combiner(self) -> str:
        return self.group.main.combiner or 'sum'

    @property
    def size(self) -> int:
        return self.group.main.sizes[self.channel]

    @property
    def ordered(self) -> bool:
        """Whether it is a maximum or minimum alone, of the bits of lines of whole channels."""
        alone = not self.value.epilogue.operands and self.value.epilogue.expression == 'value'
        whole = self.schedule.reg.tile[self.channel] == LINE and self.size % LINE == 0
        return self.combiner != 'sum' and alone and whole and self.value.put == 'put_bf16'

    @property
    def leaves(self) -> bool:
        """Whether some row of a window lies outside the image."""
        down = self.down
        return down.before > 0 or (down.size - 1) * down.stride + down.span > (
            down.extent + down.before
        )

    @property
    def tiles(self) -> list[Tile]:
        """The tiles of a row."""
        across, pixels = self.across, self.schedule.reg.tile[self.across.out]
        return [
            tile_at(across, first, min(pixels, across.size - first))
            for first in range(0, across.size, pixels)
        ]


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a machine with tiles."""
    found = window_roles(group, 'bf16')
    if found is None or parts(group) != (group,) or group.stages[0] is not group.main:
        return f'{group.label} is not a window of bf16 over every channel alone, channels innermost'
    if group.main.sizes[found[3]] % LANES:
        return f'{group.label}: its channels are not whole vectors of {LANES}'
    known = all(s.is_affine and not set(s.expr.iterators()) for s in group.stages)
    if not known or half_value(group, found[3], ISAS['portable']) is None:
        return f'{group.label}: what follows its windows is not computed on vectors'
    return ''


def plan_wide(group: Group, schedule: Schedule) -> WidePlan:
    """[Group, Schedule] -> [WidePlan]"""
    reason = why_not(group)
    roles, found = window_roles(group, 'bf16'), window_factors(group, 'bf16')
    if reason or roles is None or found is None:
        raise ScheduleError(reason)
    batch, down, across, channel = roles
    isa = ISAS[schedule.isa]
    value = half_value(group, channel, isa) if isa.rows else None
    if value is None:
        raise ScheduleError(f'{group.label}: {schedule.isa} is not a row for bf16')
    if schedule.reg.tile.get(channel, 1) % LANES or schedule.vector != channel:
        raise ScheduleError(f'{group.label}: {channel} has to be tiled by vectors of {LANES}')
    if any(name not in (down.out, channel) for name, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only {down.out} and {channel} are cut between threads')
    image = group.tensor(found[0].tensor)
    return WidePlan(group, schedule, batch, down, across, channel, image, found[1], value)


def _schedule(group: Group, isa: str, pixels: int, cut: tuple[tuple[str, int], ...]) -> Schedule:
    roles = window_roles(group, 'bf16')
    assert roles is not None
    stage, (_, _, across, channel) = group.main, roles
    order, tile = register_order(stage), dict.fromkeys(stage.sizes, 1)
    cuts = dict(cut).get(channel, 1)
    width = LINE if stage.sizes[channel] >= LINE * cuts else LANES
    tile |= {across.out: min(pixels, across.size), channel: width}
    levels = (Level.of('reg', order, tile), Level.of('l1', order, whole_tile(stage, tile)))
    return Schedule(
        'wide', tile_isa(isa), channel, levels, cut, dtype='bf16', accumulation='f32'
    )  # fmt: skip


def wide_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """Some register tiles, with rows cut between threads, or channels where that is more even.

    Neighbouring tasks cut rows as well: what a thread reads it has made itself then.
    """
    roles = window_roles(group, 'bf16')
    if roles is None or not tile_isa(isa):
        return
    stage, (_, down, _, channel) = group.main, roles
    free = [down.out, *([channel] if stage.sizes[channel] >= LANES * threads else [])]
    cut = min(
        even_cuts(stage, threads, free),
        key=lambda cut: (largest_part(stage, cut), channel in dict(cut), len(cut), cut),
    )
    for pixels in PIXELS:
        yield _schedule(group, isa, pixels, cut)


def draw_wide(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any number of pixels and any cut."""
    if not tile_isa(isa) or why_not(group):
        return None
    roles = window_roles(group, 'bf16')
    assert roles is not None
    cuts = cuts_up_to(group.main, most_threads, (roles[1].out, roles[3]))
    return _schedule(group, isa, random.randint(1, 9), random.choice(cuts))


def counted_wide(group: Group, schedule: Schedule) -> Work:
    """Operations, and vectors that tiles load, each widened by two instructions, and store."""
    plan = plan_wide(group, schedule)
    rows = group.main.sizes[plan.batch] * plan.down.size
    loads = 0
    for tile in plan.tiles:
        columns = {x for row in tile.columns for x in row if x is not None}
        loads += plan.down.taps * len(columns)
        loads += len(tile.columns) * (1 + len(plan.value.epilogue.operands))
    return Work(group.flops, group.compulsory_bytes, float(loads * rows * plan.size // LANES))
