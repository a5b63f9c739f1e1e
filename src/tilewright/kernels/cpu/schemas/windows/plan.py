"""What the windows schema decides: depthwise convolutions and pooling of f16 in NHWC.

    Out[n, h, w, k] += In[n, h*sh + r*dh - ph, w*sw + s*dw - pw, k] * Ker[k, 0, r, s]
    Out[n, h, w, k] max= In[..]       or min, or the sum, without weights

Goes in: a group with such a main stage, and a schedule. Comes out: a `WindowsPlan`. A register tile
is some pixels of a row times a vector of eight channels. An image is read where it lies: which
columns of a tile are outside is known when code is generated, and rows outside are a row of the
number that changes nothing.

Taps are added in f16, so that a multiply-add takes eight numbers: of t taps with random signs the
expected error is 2^-11 sqrt(t / 24) of the result's deviation, for 3 x 3 less than what rounding
the result takes. What follows is computed in f16, too, where that gives the same numbers (`Native`),
else in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.pointwise import Operand, plan_epilogue
from tilewright.kernels.cpu.schema import Work
from tilewright.kernels.cpu.schemas.channelwise.plan import Slide, slide
from tilewright.kernels.cpu.space import cuts_up_to, even_cuts, register_order, whole_tile
from tilewright.kernels.cpu.vector_epilogue import VectorEpilogue, plan_vector_epilogue
from tilewright.machine.isa import ISAS, half_isa
from tilewright.ops.group import Group, Tensor
from tilewright.ops.parts import parts
from tilewright.ops.stage import COMBINERS, Access, Expr, read
from tilewright.schedule.schedule import Level, Schedule

LANES = 8  # f16 of a vector
PIXELS = (8, 6, 4)  # of a register tile
LINE = 32  # f16 of a cache line: threads have whole ones
KINDS = ('f32', 'f16')  # what may stand around the image
_ROUNDING = ('add', 'sub', 'mul')
_EXACT = ('max', 'min', 'neg')
# What a stage computes on vectors of f16; a maximum with NaN is NaN.
_NATIVE = {
    'add': '({} + {})',
    'sub': '({} - {})',
    'mul': '({} * {})',
    'max': 'vmaxq_f16({}, {})',
    'min': 'vminq_f16({}, {})',
    'neg': '(-{})',
}


@dataclass(frozen=True, slots=True)
class Native:
    """An epilogue in f16: at most one operation that rounds, so that f16 and float32 agree.

    bias        the operand that sums start from, '' for none; it is rounded to f16
    expression  over `value` and vectors of the operands, `e0_v` ..
    """

    bias: str
    expression: str


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
    operands: tuple[Operand, ...]
    native: Native | None
    vector: VectorEpilogue

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
    found = _roles(group) if group.half == 'f16' and parts(group) == (group,) else None
    if found is None or group.stages[0] is not group.main:
        return f'{group.label} is not a window of f16 over every channel alone, channels innermost'
    operands = plan_epilogue(group, text=lambda _stage, _texts: 'value').operands
    channel = found[3]
    if any(item.dtype not in KINDS or item.stride(channel) not in (0, 1) for item in operands):
        return f'what follows the windows of {group.label} does not lie along their channels'
    if group.output.dtype not in KINDS:
        return f'results of {group.label} are {group.output.dtype}, not f16 or f32'
    return ''


def _factors(group: Group) -> tuple[Access, Access | None] | None:
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
    return (image, weights) if (kept.role, kept.dtype) == ('constant', 'f16') else None


def _roles(group: Group) -> tuple[str, Slide, Slide, str] | None:
    """(batch, rows, columns, channel), where the accesses are those of the module's first lines."""
    stage, found = group.main, _factors(group)
    if found is None:
        return None
    image, weights = found
    tensor = group.tensor(image.tensor)
    write, index = stage.write.index, image.index
    if len(tensor.shape) != 4 or len(write) != 4 or tensor.dtype != 'f16':
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
    if weights is not None:
        if {batch, row, column} & set(weights.names) or channel not in weights.names:
            return None
    return batch, down, across, channel


def _native(group: Group, channel: str, operands: tuple[Operand, ...]) -> Native | None:
    """The epilogue in f16, where at most one of its operations rounds beside adding a bias."""
    if group.output.dtype != 'f16':
        return None
    names = iter(operands)
    values = {group.main.write.tensor: 'value'}
    bias, text, rounded = '', 'value', 0
    for number, stage in enumerate(group.epilogue):
        reads, kinds = [], []
        for access in stage.reads:
            if access.tensor in values:
                reads.append(values[access.tensor])
                continue
            item = next(names)
            reads.append(f'{item.name}_v')
            kinds.append(item)
        starts = number == 0 and group.main.combiner == 'sum' and len(kinds) == 1
        if starts and stage.expr.op == 'add' and all(a.op == 'read' for a in stage.expr.args):
            item = kinds[0]
            moving = {d for d, step in item.strides if step and group.main.sizes[d] > 1}
            if len(stage.reads) == 2 and moving <= {channel} and item.stride(channel) == 1:
                role = group.tensor(item.tensor).role
                if role == 'constant' and item.dtype == 'f32':
                    bias = item.name
                    values[stage.write.tensor] = 'value'
                    continue
        if any(item.dtype != 'f16' for item in kinds):
            return None
        count = _rounding(stage.expr)
        if count is None:
            return None
        rounded += count
        text = values[stage.write.tensor] = _text(stage.expr, reads)
    return Native(bias, text) if rounded <= 1 else None


def _rounding(expr: Expr) -> int | None:
    """How many operations of an expression round; None where f16 does not do it."""
    if expr.op == 'read':
        return 0
    if expr.op in ('const', 'whole'):
        return 0 if float(np.float16(expr.value)) == expr.value else None
    if expr.op not in _NATIVE:
        return None
    counts = [_rounding(a) for a in expr.args]
    if any(c is None for c in counts):
        return None
    return sum(c for c in counts if c) + (expr.op in _ROUNDING)


def _text(expr: Expr, reads: list[str]) -> str:
    if expr.op == 'read':
        return reads[int(expr.value)]
    if expr.op in ('const', 'whole'):
        value = float(expr.value)
        number = repr(value) if math.isfinite(value) else f'{"-" if value < 0 else ""}INFINITY'
        return f'vdupq_n_f16((float16_t)({number}))'
    return _NATIVE[expr.op].format(*(_text(a, reads) for a in expr.args))


def plan_windows(group: Group, schedule: Schedule) -> WindowsPlan:
    """[Group, Schedule] -> [WindowsPlan]"""
    reason = why_not(group)
    roles, found = _roles(group), _factors(group)
    if reason or roles is None or found is None:
        raise ScheduleError(reason)
    batch, down, across, channel = roles
    if ISAS[schedule.isa].dtype != 'f16':
        raise ScheduleError(f'{group.label}: {schedule.isa} has no arithmetic of f16')
    if schedule.reg.tile.get(channel, 1) % LANES or schedule.vector != channel:
        raise ScheduleError(f'{group.label}: {channel} has to be tiled by vectors of {LANES}')
    if any(name not in (down.out, channel) for name, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only {down.out} and {channel} are cut between threads')
    operands = plan_epilogue(group, text=lambda _stage, _texts: 'value').operands
    return WindowsPlan(
        group, schedule, batch, down, across, channel, group.tensor(found[0].tensor), found[1],
        operands, _native(group, channel, operands), plan_vector_epilogue(group),
    )  # fmt: skip


def _schedule(group: Group, isa: str, pixels: int, cut: tuple[tuple[str, int], ...]) -> Schedule:
    roles = _roles(group)
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
    roles = _roles(group)
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
    roles = _roles(group)
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
        loads += len(tile.columns) * (1 + len(plan.operands))
    return Work(group.flops / 2, group.compulsory_bytes, float(loads * rows * vectors))
