"""How the broadcast operand lies in memory: in place, or copied into a padded buffer per tile.

The buffer of a tile has one *split* dimension for each tensor dimension. Where an iterator steps
through a tensor dimension by q > 1 (a strided convolution), the buffer keeps the q phases apart,

    x = q*w + d*s   ->   phase (d*s) % q, position w + (d*s) // q

so that neighbouring pixels are neighbours in memory whatever the stride, and phases that no step
of the window touches are not copied at all. Indices outside the tensor are copied as zeros, once,
so that no inner loop has to know about padding.

Where no window slides over the pixels (1x1 convolutions, matrix products) the buffer is cut into
*strips*, one for each register tile, and the pixels of a strip lie inside its channels,

    [c][h][w]   ->   [h / H][w / W][c][H][W]      register tiles of H x W pixels

so that a micro-kernel reads one run of memory from its first channel to its last: the panels of
matrix products (Goto and van de Geijn, 2008).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.kernels.cpu.contraction import Contraction
from tilewright.kernels.cpu.front import Front
from tilewright.kernels.cpu.nest import every
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Affine
from tilewright.schedule.schedule import Schedule

# Rows of the buffer are multiples of this. Rows that are not cost 1-4% on Neoverse-N1.
ROW_FLOATS = 4
LINE_FLOATS = 16
# Rows of different channels lie far apart, which no hardware prefetcher follows: while one row is
# copied, the one so many rows behind it is asked for. Y5 of MOpt's table: 9.4 ms without, 9.0 with.
ROWS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class Split:
    """One dimension of the buffer: `count` positions of each of `phases`, `stride` floats apart.

    Behind every `strip` positions begins a new strip, `pitch` floats from the one before (0 of
    them: there are no strips).
    """

    axis: int
    factor: int
    phases: tuple[int, ...]
    count: int
    stride: int
    strip: int = 0
    pitch: int = 0

    def place(self, position: str) -> str:
        """A C expression: floats from the first position to this one, of the first phase."""
        if not self.strip:
            return scaled(position, self.stride)
        inside = scaled(f'{position} % {self.strip}', self.stride) if self.strip > 1 else ''
        return total([f'{position} / {self.strip} * {self.pitch}', inside])


@dataclass(frozen=True)
class Operand:
    """Addresses of the broadcast operand, in floats from a base pointer.

    strides: by iterator, for those that loops or pixels step through, within a strip; steps: one
    offset for every unrolled reduction point, in the order of `contraction.unrolled`; size: floats
    of the buffer (0 in place); strips: by iterator that is cut into strips, how long they are and
    how far apart.
    """

    strides: dict[str, int]
    steps: tuple[int, ...]
    size: int
    splits: tuple[Split, ...]
    strips: dict[str, tuple[int, int]]

    def start(self, name: str, index: str) -> str:
        """A C expression: floats to `index`, the first of a register tile, along an iterator."""
        if name not in self.strips:
            return scaled(index, self.strides.get(name, 0))
        strip, pitch = self.strips[name]
        return scaled(index if strip == 1 else f'{index} / {strip}', pitch)


def packed_tile(schedule: Schedule, part: Mapping[str, int]) -> dict[str, int]:
    """The tile of the broadcast operand that is copied at once, for the part of one thread."""
    index = [level.name for level in schedule.levels].index(schedule.pack)
    held = dict(part)
    for level in schedule.levels[index:]:
        tile = level.tile
        for name, size in held.items():
            if tile[name] < size:
                held[name] = tile[name]
    return held


def lane_of(contraction: Contraction, schedule: Schedule) -> str:
    """The pixel dimension whose neighbours lie side by side in the packed tile ('' if none)."""
    return max(reversed(contraction.pixels), key=lambda d: schedule.reg.tile[d], default='')


def steps_of(contraction: Contraction) -> list[dict[str, int]]:
    """The unrolled reduction points, innermost last."""
    sizes, names = contraction.stage.sizes, contraction.unrolled
    ranges = (range(sizes[d]) for d in names)
    return [dict(zip(names, point, strict=True)) for point in itertools.product(*ranges)]


def reads_outside(group: Group, contraction: Contraction) -> bool:
    """Whether some index of the broadcast operand falls outside its tensor."""
    tensor, sizes = group.tensor(contraction.a.tensor), contraction.stage.sizes
    return any(
        e.const < 0 or e.const + e.extent(sizes) > extent
        for e, extent in zip(contraction.a.index, tensor.shape, strict=True)
    )


def rows_in_place(group: Group, contraction: Contraction) -> bool:
    """Whether micro-kernels may walk along rows of the broadcast operand where they lie: the rows
    of a matrix product. A copy would have the same lines, and gain nothing.
    """
    legal = group.stages[0] is group.main and not reads_outside(group, contraction)
    return legal and in_place(group, contraction).strides.get(contraction.loop) == 1


def in_place(group: Group, contraction: Contraction) -> Operand:
    """The operand where it lies."""
    tensor = group.tensor(contraction.a.tensor)
    strides: dict[str, int] = {}
    for expression, step in zip(contraction.a.index, tensor.strides, strict=True):
        for name, coefficient in expression.terms:
            strides[name] = strides.get(name, 0) + step * coefficient
    steps = tuple(
        sum(strides.get(d, 0) * i for d, i in point.items()) for point in steps_of(contraction)
    )
    return Operand(strides, steps, 0, (), {})


def buffer_of(contraction: Contraction, schedule: Schedule, part: Mapping[str, int]) -> Operand:
    """The buffer that this schedule copies tiles into, for the part of one thread."""
    tile, rooms = packed_tile(schedule, part), every(schedule)
    room = {d: max(size, rooms.get(d, 0)) for d, size in tile.items()}
    return buffered(
        contraction, room, lane_of(contraction, schedule), strips_of(contraction, schedule, tile)
    )


def strips_of(
    contraction: Contraction, schedule: Schedule, tile: Mapping[str, int]
) -> dict[str, int]:
    """The pixel dimensions whose buffer is cut into strips, and the length of each strip.

    None where a window slides over the lane dimension, or where a tile inside the buffer ends in
    the middle of a register tile, so that register tiles would not begin at strips.
    """
    lane, reg = lane_of(contraction, schedule), schedule.reg.tile
    free = contraction.sliding_alone
    if lane not in free or not contraction.loop:
        return {}
    index = [level.name for level in schedule.levels].index(schedule.pack)
    for level in schedule.levels[1:index]:
        if any(level.tile[d] % reg[d] and level.tile[d] < tile[d] for d in free):
            return {}
    return {d: reg[d] for d in free}


def buffered(
    contraction: Contraction, tile: Mapping[str, int], lane: str, strips: Mapping[str, int],
    unit: int = ROW_FLOATS, phases: bool = True,
) -> Operand:  # fmt: skip
    """A buffer for tiles of at most `tile`, with the positions of iterator `lane` innermost, in
    rows of whole units. Without `phases` those of a stride are not kept apart.
    """
    sizes = contraction.stage.sizes
    unrolled = tuple((d, sizes[d]) for d in contraction.unrolled)
    return _buffered(
        contraction.a.index, unrolled, contraction.loop, tuple(tile.items()), lane,
        tuple(strips.items()), unit, phases,
    )  # fmt: skip


# A model asks for the same buffer several times in a row, and a wide filter has many steps.
@lru_cache(maxsize=64)
def _buffered(
    index: tuple[Affine, ...],
    unrolled: tuple[tuple[str, int], ...],
    loop: str,
    tiles: tuple[tuple[str, int], ...],
    lane: str,
    cuts: tuple[tuple[str, int], ...],
    unit: int,
    apart: bool,
) -> Operand:
    tile, strips, names = dict(tiles), dict(cuts), {d for d, _ in unrolled}
    offsets = [_offsets(expression, unrolled) for expression in index]
    order = sorted(range(len(index)), key=lambda t: lane in index[t].names)
    cut = {t: d for t in order for d in strips if d in index[t].names}
    made: dict[int, Split] = {}
    stride = 1
    for axis in (
        *(t for t in reversed(order) if t in cut),
        *(t for t in reversed(order) if t not in cut),
    ):
        expression = index[axis]
        factor = _factor(expression, names) if apart else 1
        phases = sorted({offset % factor for offset in offsets[axis]})
        count = (expression.extent(tile) - 1) // factor + 1
        held = strips[cut[axis]] if axis in cut else count
        if stride == 1:  # rows begin where a vector may
            held = -(-held // unit) * unit
        if loop in expression.names and not cut:
            stride = odd_lines(stride)
        made[axis] = Split(axis, factor, tuple(phases), held if axis not in cut else count, stride)
        stride *= held * len(phases)
    stride = odd_lines(stride) if cut else stride
    for axis in (t for t in reversed(order) if t in cut):
        strip = strips[cut[axis]]
        made[axis] = replace(made[axis], strip=strip, pitch=stride)
        stride *= -(-made[axis].count // strip)
    splits = [made[axis] for axis in reversed(order)]
    pitches = {cut[t]: (made[t].strip, made[t].pitch) for t in cut}
    strides: dict[str, int] = {}
    for split in splits:
        for name, coefficient in index[split.axis].terms:
            if name not in names:
                step = split.stride * (coefficient // split.factor)
                strides[name] = strides.get(name, 0) + step
    steps = [0] * math.prod(size for _, size in unrolled)
    for split in splits:
        phase = {offset: number for number, offset in enumerate(split.phases)}
        for step, offset in enumerate(offsets[split.axis]):
            position, rest = divmod(offset, split.factor)
            steps[step] += split.stride * (phase[rest] * split.count + position)
    return Operand(strides, tuple(steps), stride, tuple(reversed(splits)), pitches)


def odd_lines(floats: int) -> int:
    """So many floats or a few more: an odd number of cache lines, if it is some lines at all.

    A micro-kernel walks over the channels of a tile. With an even number of lines between them they
    share half of the sets of a cache or fewer. Worth up to 1.7% on a Neoverse-N1 (docs/model.md).
    Strips are filled channel by channel, all of them at once, and with a power of two between them
    they would share a single set; loads would wait for stores whose addresses look the same.
    """
    lines = -(-floats // LINE_FLOATS)
    return (lines | 1) * LINE_FLOATS if lines > 2 else floats


def _factor(expression: Affine, unrolled: Set[str]) -> int:
    """The common step of the iterators that are not unrolled: 1 where they do not agree."""
    steps = {c for name, c in expression.terms if name not in unrolled}
    return steps.pop() if len(steps) == 1 else 1


@lru_cache(maxsize=256)
def _offsets(expression: Affine, unrolled: tuple[tuple[str, int], ...]) -> tuple[int, ...]:
    """What each unrolled point adds to an index, in the order of `steps_of`."""
    found = [0]
    for name, size in unrolled:
        step = sum(c for other, c in expression.terms if other == name)
        found = [place + step * i for place in found for i in range(size)]
    return tuple(found)


def write_pack(
    writer: Writer, operand: Operand, tensor: Tensor, front: Front | None = None, lanes: int = 1
) -> None:
    """A C function that fills the buffer: `from` first indices, `extent` how many of each axis.

    What `front` computes of neighbours is computed in vectors of `lanes`.
    """
    last = operand.splits[-1]
    together = last.strip if tensor.strides[last.axis] * last.factor == 1 else 1
    write_copies(writer, bool(operand.strips), front, together, lanes)
    writer.open(
        'static void pack_tile(const float *restrict source, float *restrict buffer, '
        f'const long *from, const long *extent{front.pointers if front else ""})'
    )
    outer, inner = operand.splits[:-1], operand.splits[-1]
    letters, places, row = open_rows(writer, operand, tensor)
    if front:
        axes = {split.axis: f'{letter}_at' for letter, split in zip(letters, outer, strict=True)}
        front.write_numbers(writer, axes)
    numbers = front.arguments if front else ''
    ahead = ROWS_AHEAD * tensor.strides[outer[-1].axis] if outer else 0
    for number, phase in enumerate(inner.phases):
        place = total([*places, str(number * inner.count * inner.stride)])
        arguments = (
            f'source + ({row}), buffer + {place}, from[{inner.axis}] + {phase}, '
            f'inside ? {tensor.shape[inner.axis]} : 0, (extent[{inner.axis}] - 1) / '
            f'{inner.factor} + 1, {tensor.strides[inner.axis]}, {inner.factor}'
        )
        if inner.strip:
            strips = f'{inner.strip}, {inner.pitch}, {ahead}'
            writer.line(f'copy_strips({arguments}, {strips}{numbers});')
        else:
            writer.line(f'copy_row({arguments}{numbers});')
    writer.close(writer.depth)
    writer.line()


def open_rows(writer: Writer, operand: Operand, tensor: Tensor) -> tuple[str, list[str], str]:
    """The loops around the rows of a tile, and `inside`, whether a row is one of the tensor.

    Comes out: the loops' letters, and where a row lies in the buffer and in the tensor.
    """
    names = 'ijklmnop'
    outer = operand.splits[:-1]
    places = []
    for letter, split in zip(names, outer, strict=False):
        count = f'{letter}_count'
        writer.line(f'const long {count} = (extent[{split.axis}] - 1) / {split.factor} + 1;')
        phase = '0'
        if len(split.phases) > 1 or split.phases != (0,):
            table = ', '.join(map(str, split.phases))
            writer.line(f'static const long {letter}_phases[] = {{{table}}};')
            writer.open(f'for (long {letter}p = 0; {letter}p < {len(split.phases)}; {letter}p++)')
            phase = f'{letter}_phases[{letter}p]'
            places.append(f'{letter}p * {split.count * split.stride}')
        writer.open(f'for (long {letter} = 0; {letter} < {count}; {letter}++)')
        index = f'from[{split.axis}] + {letter} * {split.factor} + {phase}'
        writer.line(f'const long {letter}_at = {index};')
        places.append(split.place(letter))
    letters = names[: len(outer)]
    axes = [split.axis for split in outer]
    inside = ' && '.join(
        f'(unsigned long){letter}_at < {tensor.shape[axis]}ul'
        for letter, axis in zip(letters, axes, strict=True)
    )
    row = total(
        [
            f'{letter}_at * {tensor.strides[axis]}'
            for letter, axis in zip(letters, axes, strict=True)
        ]
    )
    writer.line(f'const int inside = {inside or "1"};')
    return letters, places, row


def write_copies(
    writer: Writer, strips: bool, front: Front | None, together: int, lanes: int
) -> None:
    """The C functions that copy one row; through `front`, where there is one, `together` elements
    of a strip at a time.
    """
    parameters = front.parameters if front else ''
    arguments = front.arguments if front else ''
    call = ''
    if front:
        front.write_function(writer)
        call = front.write_strip(writer, together, lanes) if strips else ''
    for text in (_COPY_ROW, _COPY_STRIPS)[: 1 + strips]:
        if call:
            text = text.replace(_STRIP_LOOP, f'            {call}\n')
        for element in _ELEMENTS:
            text = text.replace(f'@{element}@', front.element(element) if front else element)
        text = text.replace('@parameters@', parameters).replace('@arguments@', arguments)
        writer.lines += [*text.splitlines(), '']


_ELEMENTS = ('s[x]', 's[x * stride * factor]', 's[i * factor * stride]')

_COPY_ROW = """\
/* buffer[x] = source[(from + x * factor) * stride], zero where that index is not below `size`. */
static inline void copy_row(const float *restrict source, float *restrict buffer, long from,
                            long size, long count, long stride, long factor@parameters@)
{
    long low = from < 0 ? (-from + factor - 1) / factor : 0;
    long high = size > from ? (size - from + factor - 1) / factor : 0;
    low = min_long(low, count);
    high = min_long(high, count);
    if (high < low)
        high = low;
    for (long x = 0; x < low; x++)
        buffer[x] = 0.0f;
    const float *restrict s = source + from * stride;
    if (stride * factor == 1)
        for (long x = low; x < high; x++)
            buffer[x] = @s[x]@;
    else
        for (long x = low; x < high; x++)
            buffer[x] = @s[x * stride * factor]@;
    for (long x = high; x < count; x++)
        buffer[x] = 0.0f;
}
"""

_STRIP_LOOP = """\
            for (long i = 0; i < strip; i++)
                buffer[i] = @s[i * factor * stride]@;
"""

_COPY_STRIPS = """\
/* copy_row, with every `strip` elements `pitch` floats apart. Asks for what lies `ahead` floats
   behind: the same piece of a later row. */
static inline __attribute__((always_inline)) void copy_strips(
    const float *restrict source, float *restrict buffer, long from, long size, long count,
    long stride, long factor, long strip, long pitch, long ahead@parameters@)
{
    const int inside = from >= 0 && from + (count - 1) * factor < size;
    for (long x = 0; x < count; x += strip, buffer += pitch) {
        const float *restrict s = source + (from + x * factor) * stride;
        __builtin_prefetch(s + ahead);
        if (inside && x + strip <= count)
            for (long i = 0; i < strip; i++)
                buffer[i] = @s[i * factor * stride]@;
        else
            copy_row(source, buffer, from + x * factor, size, min_long(strip, count - x), stride,
                     factor@arguments@);
    }
}
"""
