"""What the channelwise schema decides: depthwise convolutions of 8-bit numbers in NHWC.

    Out[n, h, w, k] += In[n, h*sh + r*dh - ph, w*sw + s*dw - pw, k] * Ker[k, 0, r, s]

Goes in: a group with such a main stage, and a schedule. Comes out: a `ChannelwisePlan`. A register
tile is some pixels of a row times some vectors of channels. Rows of the image are copied, with
their border, so that no tap has to ask where it lies; for every row of the result, taps that lie
below each other are put into words (`Isa.dots`), so that a multiply-add takes several of them:

    words[x, k] = In[y, x, k], In[y + dh, x, k], ..        Out[w, k] += words[w*sw + s*dw, k] . Ker
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.bounded import NearValue, near_value, with_near
from tilewright.kernels.cpu.pointwise import Epilogue
from tilewright.kernels.cpu.schemas.dot.plan import moved_epilogue, vector_epilogue
from tilewright.kernels.cpu.space import even_cuts, register_order, whole_tile
from tilewright.kernels.cpu.whole_vectors import WholeValue
from tilewright.machine.isa import ISAS
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group, Tensor
from tilewright.ops.integer import IN_BYTES, factors, is_integer_products
from tilewright.ops.parts import parts
from tilewright.ops.stage import Affine
from tilewright.schedule.schedule import Level, Schedule

TILES = ((4, 4), (4, 2), (4, 1), (2, 2))  # pixels, vectors
PAIR = 2  # numbers in a word of 16-bit numbers


@dataclass(frozen=True, slots=True)
class Slide:
    """How a window slides along an axis: iterators of result and window, and its numbers."""

    out: str
    tap: str
    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    extent: int

    @property
    def span(self) -> int:
        return (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class ChannelwisePlan:
    """Everything that is decided before a line is written."""

    group: Group
    schedule: Schedule
    batch: str
    down: Slide
    across: Slide
    channel: str
    products: int
    flips: bool
    epilogue: Epilogue
    vector: WholeValue | None = None  # where tiles make words in registers (unpacked.py, ..)
    near: NearValue | None = None  # what follows sums that are small as weights are packed

    @property
    def tile_pixels(self) -> list[int]:
        """Pixels of tiles: those of the schedule, and what is left at the end of a row."""
        pixels = self.schedule.reg.tile[self.across.out]
        return sorted({pixels, self.across.size % pixels or pixels})

    @property
    def image(self) -> Tensor:
        return self.group.tensor(factors(self.group)[0].tensor)

    @property
    def terms(self) -> list[tuple[tuple[int, int], ...]]:
        """The taps of every word that a window has, (row, column) of each: those below each other;
        where registers make pairs, what is left of an odd number of rows are pairs side by side.
        """
        taps, rows = self.across.taps, range(0, self.down.taps, self.products)
        pairs = self.vector is not None and self.products == PAIR
        if not pairs or self.down.taps % PAIR == 0:
            return [
                tuple((r, s) for r in range(first, min(first + self.products, self.down.taps)))
                for first in rows for s in range(taps)
            ]  # fmt: skip
        below = [((r, s), (r + 1, s)) for r in rows[:-1] for s in range(taps)]
        last = self.down.taps - 1
        return below + [
            tuple((last, s) for s in range(first, min(first + PAIR, taps)))
            for first in range(0, taps, PAIR)
        ]

    @property
    def chunk(self) -> int:
        """Channels of a tile that interleaves bytes: as many as a vector has bytes."""
        return ISAS[self.schedule.isa].vector_bytes

    @property
    def lanes(self) -> int:
        return ISAS[self.schedule.isa].lanes

    @property
    def channels(self) -> int:
        """Channels in whole vectors: what rows and weights have room for."""
        size = self.group.main.sizes[self.channel]
        width = self.schedule.reg.tile[self.channel]
        return -(-size // width) * width

    @property
    def row_bytes(self) -> int:
        """A copied row of the image; whole vectors are read behind its last pixel."""
        beyond = 64 if self.vector else 0
        return -(-self.positions * self.image.shape[3] // 64) * 64 + beyond

    @property
    def positions(self) -> int:
        """Pixels of a row of the image that windows touch, its border with them."""
        return (self.across.size - 1) * self.across.stride + self.across.span

    @property
    def word_rows(self) -> int:
        """Rows of words that the taps below each other make."""
        return -(-self.down.taps // self.products)

    @property
    def row_words(self) -> int:
        """Words of such a row, and what vectors read behind the last pixel."""
        return -(-(self.positions * self.image.shape[3] + self.channels) // 16) * 16


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can."""
    if is_integer_products(group) and parts(group) == (group,) and _roles(group):
        return ''
    return f'{group.label} is not a depthwise convolution of 8-bit numbers with channels innermost'


def _roles(group: Group) -> tuple[str, Slide, Slide, str] | None:
    """(batch, rows, columns, channel), where the accesses are those of the module's first lines."""
    stage = group.main
    image, weights = factors(group)
    shape = group.tensor(image.tensor).shape
    write, read = stage.write.index, image.index
    if len(shape) != 4 or len(write) != 4 or group.tensor(weights.tensor).role != 'constant':
        return None
    if group.tensor(weights.tensor).dtype != 'i8':
        return None
    if any(len(e.terms) != 1 or e.terms[0][1] != 1 or e.const for e in write):
        return None
    batch, row, column, channel = (e.names[0] for e in write)
    if read[0] != write[0] or read[3] != write[3] or {batch, row, column} & set(weights.names):
        return None
    down, across = slide(group, read[1], row, shape[1]), slide(group, read[2], column, shape[2])
    if down is None or across is None or channel not in weights.names:
        return None
    if set(stage.reduction) != {down.tap, across.tap} - {''}:
        return None
    return batch, down, across, channel


def slide(group: Group, index: Affine, out: str, extent: int) -> Slide | None:
    """How a window slides along an axis of so many elements; None where it is read otherwise."""
    sizes = group.main.sizes
    taps = [n for n in index.names if n != out]
    if out not in index.names or len(taps) > 1 or index.const > 0:
        return None
    tap = taps[0] if taps else ''
    count, dilation = (sizes[tap], index.coefficient(tap)) if tap else (1, 1)
    stride = index.coefficient(out)
    return Slide(out, tap, sizes[out], count, stride, dilation, -index.const, extent)


def plan_channelwise(group: Group, schedule: Schedule) -> ChannelwisePlan:
    """[Group, Schedule] -> [ChannelwisePlan]"""
    roles = None if why_not(group) else _roles(group)
    if roles is None:
        raise ScheduleError(why_not(group))
    batch, down, across, channel = roles
    if schedule.reg.tile.get(channel, 1) % ISAS[schedule.isa].lanes or schedule.vector != channel:
        raise ScheduleError(f'{group.label}: {channel} has to be tiled by whole vectors')
    if any(name != down.out for name, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only {down.out} is cut between threads')
    isa = ISAS[schedule.isa]
    dot = isa.dot(schedule.dtype)
    if dot is None:
        raise ScheduleError(f'{group.label}: {schedule.isa} has no products of {schedule.dtype}')
    flips = dot.products == IN_BYTES and group.tensor(factors(group)[0].tensor).dtype != dot.dtype
    epilogue = moved_epilogue(group, {channel: 1} if flips else None)
    vector = None
    if schedule.reg.tile[channel] == isa.vector_bytes and interleaves(schedule.isa, dot.dtype):
        sizes = {**group.main.sizes, channel: 1}
        moving = (d for item in epilogue.operands for d, step in item.strides if step)
        each = all(sizes[d] == 1 for d in moving)
        # Whole vectors of operands are read: those that are packed have room behind their end.
        given = {t.name for t in group.with_role('input')}
        each &= not any(i.tensor in given and i.stride(channel) for i in epilogue.operands)
        vector = vector_epilogue(group, epilogue, schedule) if each else None
    on_neon, near = isa.arch == 'aarch64', None
    if vector and not vector.in_fours and not (on_neon and is_float(group.output.dtype)):
        vector = None
    if vector and on_neon:
        items = epilogue.operands[: -1 if flips else None]
        near = near_value(group, items, len(epilogue.operands), channel)
        epilogue = replace(epilogue, operands=with_near(epilogue.operands, near))
    return ChannelwisePlan(
        group, schedule, batch, down, across, channel, dot.products, flips, epilogue, vector, near
    )


def interleaves(isa: str, dtype: str) -> bool:
    """Whether tiles make words in registers (unpacked.py, paired.py, interleaved.py)."""
    ways = (('x86_64', 16, 'u8'), ('x86_64', 8, 'i16'), ('aarch64', 4, 'i8'))
    return (ISAS[isa].arch, ISAS[isa].lanes, dtype) in ways


def channelwise_choices(group: Group, isa: str, dtype: str, threads: int) -> Iterator[Schedule]:
    """Some register tiles, with rows cut between threads; words hold numbers of `dtype`."""
    roles = _roles(group)
    if roles is None:
        return
    stage, (_, down, across, channel) = group.main, roles
    lanes, order = ISAS[isa].lanes, register_order(stage)
    most = -(-stage.sizes[channel] // lanes)
    for pixels, vectors in TILES:
        tile = dict.fromkeys(stage.sizes, 1)
        tile |= {across.out: min(pixels, across.size), channel: lanes * min(vectors, most)}
        if vectors == 4 and interleaves(isa, dtype):
            tile[channel] = 4 * lanes  # whole chunks, however few channels there are
        levels = (Level.of('reg', order, tile), Level.of('l1', order, whole_tile(stage, tile)))
        cut = even_cuts(stage, threads, (down.out,))[0]
        yield Schedule('channelwise', isa, channel, levels, cut, dtype=dtype, accumulation='i32')


def draw_channelwise(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any of the choices, in words of any of the set's products."""
    if why_not(group):
        return None
    dtype = random.choice(ISAS[isa].dots).dtype
    return random.choice(
        list(channelwise_choices(group, isa, dtype, random.randint(1, most_threads)))
    )
