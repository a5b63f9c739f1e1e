"""What the windows schema decides: depthwise convolutions and pooling of f16 in NHWC.

    Out[n, h, w, k] += In[n, h*sh + r*dh - ph, w*sw + s*dw - pw, k] * Ker[k, 0, r, s]
    Out[n, h, w, k] max= In[..]       or min, or the sum, without weights

Goes in: a group with such a main stage, and a schedule. Comes out: a `WindowsPlan`. A register tile
is some pixels of a row times a vector of eight channels. An image is read where it lies: which
columns of a tile are outside is known when code is generated, and rows outside are a row of the
number that changes nothing.

Taps are added in f16, so that a multiply-add takes eight numbers: of t taps with random signs the
expected error is 2^-11 sqrt(t / 24) of the result's deviation, for 3 x 3 less than what rounding
the result takes. What follows is computed in f16, too, where that gives the same numbers
(kernels/cpu/half_epilogue.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.half_epilogue import (
    LANES,
    HalfEpilogue,
    plan_half_epilogue,
    why_no_epilogue,
)
from tilewright.kernels.cpu.schema import Work
from tilewright.kernels.cpu.schemas.channelwise.plan import Slide, slide
from tilewright.kernels.cpu.space import cuts_up_to, even_cuts, register_order, whole_tile
from tilewright.machine.isa import ISAS, half_isa
from tilewright.ops.group import Group, Tensor
from tilewright.ops.parts import parts
from tilewright.ops.stage import COMBINERS, Access, read
from tilewright.schedule.schedule import Level, Schedule

PIXELS = (8, 6, 4)  # of a register tile
LINE = 32  # f16 of a cache line: threads have whole ones


@dataclass(frozen=True, slots=True)
class Tile:
    """Pixels of a row that one function computes.

    base     the first column of the image that they read
    columns  for every pixel and tap its column from there on, None outside
    """

    first: int
    base: int
    columns: tuple[tuple[int | None, ...], ...]


@dataclass(frozen=True)
class WindowsPlan:
    """Everything that is decided before a line is written."""

    group: Group
    schedule: Schedule
    batch: str
    down: Slide
    across: Slide
    channel: str
    image: Tensor
    weights: Access | None
    epilogue: HalfEpilogue

    @property
    def combiner(self) -> str:
        return self.group.main.combiner or 'sum'

    @property
    def size(self) -> int:
        return self.group.main.sizes[self.channel]

    @property
    def channels(self) -> int:
        """Channels in whole vectors: what weights have room for."""
        return -(-self.size // LANES) * LANES

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


def tile_at(across: Slide, first: int, count: int) -> Tile:
    """The tile of `count` pixels from `first` on."""
    taps = [
        [(first + i) * across.stride - across.before + s * across.dilation
         for s in range(across.taps)]
        for i in range(count)
    ]  # fmt: skip
    inside = [x for row in taps for x in row if 0 <= x < across.extent]
    base = min(inside, default=0)
    columns = tuple(
        tuple(x - base if 0 <= x < across.extent else None for x in row) for row in taps
    )
    return Tile(first, base, columns)


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a machine with f16."""
    found = window_roles(group) if group.half == 'f16' and parts(group) == (group,) else None
    if found is None or group.stages[0] is not group.main:
        return f'{group.label} is not a window of f16 over every channel alone, channels innermost'
    return why_no_epilogue(group, found[3])


def window_factors(group: Group, dtype: str = 'f16') -> tuple[Access, Access | None] | None:
    """(image, weights) of products, the image alone of maxima and sums."""
    stage = group.main
    if stage.combiner in ('max', 'min', 'sum') and stage.expr == read(0) and len(stage.reads) == 1:
        if stage.pad_value != COMBINERS[stage.combiner]:
            return None
        return stage.reads[0], None
    if not stage.is_product_sum or len(stage.reads) != 2 or stage.pad_value != 0:
        return None
    image, weights = stage.reads
    if group.tensor(image.tensor).role == 'constant':
        image, weights = weights, image
    kept = group.tensor(weights.tensor)
    return (image, weights) if (kept.role, kept.dtype) == ('constant', dtype) else None


def window_roles(
    group: Group, dtype: str = 'f16'
) -> tuple[str, Slide, Slide, str] | None:
    """(batch, rows, columns, channel), where the accesses are those of the module's first lines."""
    stage, found = group.main, window_factors(group, dtype)
    if found is None:
        return None
    image, weights = found
    tensor = group.tensor(image.tensor)
    write, index = stage.write.index, image.index
    if len(tensor.shape) != 4 or len(write) != 4 or tensor.dtype != dtype:
        return None
    if any(len(e.terms) != 1 or e.terms[0][1] != 1 or e.const for e in write):
        return None
    batch, row, column, channel = (e.names[0] for e in write)
    if index[0] != write[0] or index[3] != write[3]:
        return None
    if tensor.shape[3] != stage.sizes[channel] or tensor.shape[0] != stage.sizes[batch]:
        return None
    if group.tensor(stage.write.tensor).shape != tuple(stage.sizes[e.names[0]] for e in write):
        return None
    down = slide(group, index[1], row, tensor.shape[1])
    across = slide(group, index[2], column, tensor.shape[2])
    if down is None or across is None or min(down.dilation, across.dilation) < 1:
        return None
    if min(down.stride, across.stride) < 1:
        return None
    if set(stage.reduction) != {down.tap, across.tap} - {''}:
        return None
    of_weights = set(weights.names) if weights is not None else {channel}
    if {batch, row, column} & of_weights or channel not in of_weights:
        return None
    return batch, down, across, channel


def plan_windows(group: Group, schedule: Schedule) -> WindowsPlan:
    """[Group, Schedule] -> [WindowsPlan]"""
    reason = why_not(group)
    roles, found = window_roles(group), window_factors(group)
    if reason or roles is None or found is None:
        raise ScheduleError(reason)
    batch, down, across, channel = roles
    if ISAS[schedule.isa].dtype != 'f16':
        raise ScheduleError(f'{group.label}: {schedule.isa} has no arithmetic of f16')
    if schedule.reg.tile.get(channel, 1) % LANES or schedule.vector != channel:
        raise ScheduleError(f'{group.label}: {channel} has to be tiled by vectors of {LANES}')
    if any(name not in (down.out, channel) for name, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only {down.out} and {channel} are cut between threads')
    epilogue = plan_half_epilogue(group, channel, starts=group.main.combiner == 'sum', most=1)
    return WindowsPlan(
        group, schedule, batch, down, across, channel, group.tensor(found[0].tensor), found[1],
        epilogue,
    )  # fmt: skip


def _schedule(group: Group, isa: str, pixels: int, cut: tuple[tuple[str, int], ...]) -> Schedule:
    roles = window_roles(group)
    assert roles is not None
    stage, (_, _, across, channel) = group.main, roles
    order, tile = register_order(stage), dict.fromkeys(stage.sizes, 1)
    cuts = dict(cut).get(channel, 1)
    width = LINE if stage.sizes[channel] >= LINE * cuts else LANES
    tile |= {across.out: min(pixels, across.size), channel: width}
    levels = (Level.of('reg', order, tile), Level.of('l1', order, whole_tile(stage, tile)))
    return Schedule('windows', half_isa(isa), channel, levels, cut, dtype='f16')


def window_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """Some register tiles, with rows or channels cut between threads."""
    roles = window_roles(group)
    if roles is None or not half_isa(isa):
        return
    stage, (_, down, _, channel) = group.main, roles
    free = [down.out, *([channel] if stage.sizes[channel] >= LANES * threads else [])]
    for pixels in PIXELS:
        yield _schedule(group, isa, pixels, even_cuts(stage, threads, free)[0])


def draw_windows(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any number of pixels and any cut."""
    if not half_isa(isa) or why_not(group):
        return None
    roles = window_roles(group)
    assert roles is not None
    cuts = cuts_up_to(group.main, most_threads, (roles[1].out, roles[3]))
    return _schedule(group, isa, random.randint(1, 9), random.choice(cuts))


def counted_windows(group: Group, schedule: Schedule) -> Work:
    """Multiply-adds of words of two f16, and vectors that tiles load and store."""
    plan = plan_windows(group, schedule)
    stage = group.main
    rows = stage.sizes[plan.batch] * plan.down.size
    vectors = plan.channels // LANES
    taps = plan.down.taps * plan.across.taps
    loads = 0
    for tile in plan.tiles:
        columns = {x for row in tile.columns for x in row if x is not None}
        loads += plan.down.taps * len(columns) + taps * (plan.weights is not None)
        loads += len(tile.columns) * (1 + len(plan.epilogue.operands))
    return Work(group.flops / 2, group.compulsory_bytes, float(loads * rows * vectors))
