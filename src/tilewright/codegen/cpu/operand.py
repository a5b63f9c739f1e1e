"""How the broadcast operand lies in memory: in place, or copied into a padded buffer per tile.

The buffer of a tile has one *split* dimension for each tensor dimension. Where an iterator steps
through a tensor dimension by q > 1 (a strided convolution), the buffer keeps the q phases apart,

    x = q*w + d*s   ->   phase (d*s) % q, position w + (d*s) // q

so that neighbouring pixels are neighbours in memory whatever the stride, and phases that no step
of the window touches are not copied at all. Indices outside the tensor are copied as zeros, once,
so that no inner loop has to know about padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.codegen.cpu.contraction import Contraction
from tilewright.codegen.cpu.writer import Writer, total
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Affine
from tilewright.schedule.schedule import Schedule

# Rows of the buffer are multiples of this. Rows that are not cost 1-4% on Neoverse-N1.
ROW_FLOATS = 4


@dataclass(frozen=True, slots=True)
class Split:
    """One dimension of the buffer: `count` positions of each of `phases`, `stride` floats apart."""

    axis: int
    factor: int
    phases: tuple[int, ...]
    count: int
    stride: int


@dataclass(frozen=True)
class Operand:
    """Addresses of the broadcast operand, in floats from a base pointer.

    strides: by iterator, for those that loops or pixels step through; steps: one offset for every
    unrolled reduction point, in the order of `contraction.unrolled`; size: floats of the buffer
    (0 in place).
    """

    strides: dict[str, int]
    steps: tuple[int, ...]
    size: int
    splits: tuple[Split, ...]


def packed_tile(schedule: Schedule, part: Mapping[str, int]) -> dict[str, int]:
    """The tile of the broadcast operand that is copied at once, for the part of one thread."""
    index = [level.name for level in schedule.levels].index(schedule.pack)
    return {d: min([part[d], *(v.tile[d] for v in schedule.levels[index:])]) for d in part}


def lane_of(contraction: Contraction, schedule: Schedule) -> str:
    """The pixel dimension whose neighbours lie side by side in the packed tile ('' if none)."""
    return max(contraction.pixels, key=lambda d: schedule.reg.tile[d], default='')


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
    return Operand(strides, steps, 0, ())


def buffered(contraction: Contraction, tile: Mapping[str, int], lane: str) -> Operand:
    """A buffer for tiles of at most `tile`, with the positions of iterator `lane` innermost."""
    points = steps_of(contraction)
    order = sorted(
        range(len(contraction.a.index)), key=lambda t: lane in contraction.a.index[t].names
    )
    splits: list[Split] = []
    stride = 1
    for axis in reversed(order):
        expression = contraction.a.index[axis]
        factor = _factor(expression, contraction)
        phases = sorted({_offset(expression, point) % factor for point in points})
        count = (expression.extent(tile) - 1) // factor + 1
        if stride == 1:  # rows begin where a vector may
            count = -(-count // ROW_FLOATS) * ROW_FLOATS
        splits.append(Split(axis, factor, tuple(phases), count, stride))
        stride *= count * len(phases)
    strides: dict[str, int] = {}
    for split in splits:
        for name, coefficient in contraction.a.index[split.axis].terms:
            if name not in contraction.unrolled:
                step = split.stride * (coefficient // split.factor)
                strides[name] = strides.get(name, 0) + step
    steps = []
    for point in points:
        place = 0
        for split in splits:
            offset = _offset(contraction.a.index[split.axis], point)
            phase = split.phases.index(offset % split.factor)
            place += split.stride * (phase * split.count + offset // split.factor)
        steps.append(place)
    return Operand(strides, tuple(steps), stride, tuple(reversed(splits)))


def _factor(expression: Affine, contraction: Contraction) -> int:
    """The common step of the iterators that are not unrolled: 1 where they do not agree."""
    steps = {c for name, c in expression.terms if name not in contraction.unrolled}
    return steps.pop() if len(steps) == 1 else 1


def _offset(expression: Affine, point: Mapping[str, int]) -> int:
    return sum(c * point.get(name, 0) for name, c in expression.terms)


def write_pack(writer: Writer, operand: Operand, tensor: Tensor) -> None:
    """A C function that fills the buffer: `from` first indices, `extent` how many of each axis."""
    writer.open(
        'static void pack_tile(const float *restrict source, float *restrict buffer, '
        'const long *from, const long *extent)'
    )
    names = 'ijklmnop'
    outer, inner = operand.splits[:-1], operand.splits[-1]
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
        places.append(f'{letter} * {split.stride}')
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
    for number, phase in enumerate(inner.phases):
        place = total([*places, str(number * inner.count * inner.stride)])
        writer.line(
            f'copy_row(source + ({row}), buffer + {place}, from[{inner.axis}] + {phase}, '
            f'inside ? {tensor.shape[inner.axis]} : 0, (extent[{inner.axis}] - 1) / '
            f'{inner.factor} + 1, {tensor.strides[inner.axis]}, {inner.factor});'
        )
    writer.close(writer.depth)
    writer.line()


COPY_ROW = """\
/* buffer[x] = source[(from + x * factor) * stride], zero where that index is not below `size`. */
static inline void copy_row(const float *restrict source, float *restrict buffer, long from,
                            long size, long count, long stride, long factor)
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
            buffer[x] = s[x];
    else
        for (long x = low; x < high; x++)
            buffer[x] = s[x * stride * factor];
    for (long x = high; x < count; x++)
        buffer[x] = 0.0f;
}
"""
