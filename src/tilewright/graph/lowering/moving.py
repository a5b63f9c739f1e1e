"""Operators that move elements: repetition, concatenation, slices, borders, other orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import merged, pointwise, transpose
from tilewright.graph.lowering.reader import ANY, NodeReader, Operator, axis_of
from tilewright.graph.lowering.result import (
    Part,
    Result,
    Unsupported,
    check_elements,
    compute,
    filled,
    join,
    view,
)
from tilewright.ops import moving
from tilewright.ops.describe import broadcast
from tilewright.ops.elementwise import copy
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import MAX_TABLE, read


def _expand(node: NodeReader) -> Result:
    x, wanted = node.input(0), node.whole_numbers(1)
    return expand(x, broadcast([x.shape, wanted]))


def expand(x: Result, shape: Sequence[int]) -> Result:
    """The tensor repeated along dimensions where it has one element."""
    check_elements(shape, 'the result')
    if math.prod(shape) == math.prod(x.shape):
        return view(x, shape)
    return pointwise('expand', read(0), [x], x.dtype, shape)


def _tile(node: NodeReader) -> Result:
    x, repeats = node.input(0), node.whole_numbers(1)
    if len(repeats) != len(x.shape) or any(r < 0 for r in repeats):
        raise ModelError(f'repeats are {list(repeats)}; give {len(x.shape)} numbers from 0 on')
    shape = [size * r for size, r in zip(x.shape, repeats, strict=True)]
    check_elements(shape, 'the result')
    if 0 in shape:
        return filled(shape, 0, x.dtype)
    return compute(moving.tile(x.shape, repeats, x.dtype), {'In': x}) if shape else x


def concat(inputs: Sequence[Result], axis: int) -> Result:
    """The tensors one behind the other: copies, each into its slice of the result."""
    filled_ones = [r for r in inputs if r.shape[axis]] or inputs[:1]
    if len(filled_ones) == 1:
        return filled_ones[0]
    extent = sum(r.shape[axis] for r in filled_ones)
    shape = list(filled_ones[0].shape)
    shape[axis] = extent
    check_elements(shape, 'the result')
    if 0 in shape:
        return filled(shape, 0, filled_ones[0].dtype)
    parts, offset = [], 0
    for r in filled_ones:
        group = copy(r.shape, r.dtype)
        parts.append(Part(into_slice(group, axis, offset, extent), {'In': r}))
        offset += r.shape[axis]
    return join(parts)


def _concat(node: NodeReader) -> Result:
    inputs = node.all()
    axis = axis_of(node.int('axis'), len(inputs[0].shape))
    for r in inputs:
        rest = [(*s[:axis], *s[axis + 1 :]) for s in (r.shape, inputs[0].shape)]
        if rest[0] != rest[1] or len(r.shape) != len(inputs[0].shape):
            raise ModelError(
                f'{list(inputs[0].shape)} and {list(r.shape)} cannot be joined along axis {axis}'
            )
        if r.dtype != inputs[0].dtype:
            raise ModelError(f'{inputs[0].dtype} and {r.dtype} cannot be joined')
    return concat(inputs, axis)


def _split(node: NodeReader) -> tuple[Result, ...]:
    x, count = node.input(0), len(node.outputs)
    axis = axis_of(node.int('axis', 0), len(x.shape))
    size = x.shape[axis]
    if node.has(1):
        sizes = node.whole_numbers(1)
    else:
        each = -(-size // node.int('num_outputs', count))
        sizes = tuple(max(0, min(each, size - i * each)) for i in range(count))
    if len(sizes) != count or sum(sizes) != size or any(s < 0 for s in sizes):
        raise ModelError(f'{size} elements cannot be split into {list(sizes)}, {count} outputs')
    ends = itertools.accumulate(sizes)
    return tuple(
        slices(x, {axis: range(end - length, end)}) for end, length in zip(ends, sizes, strict=True)
    )


def slices(x: Result, kept: dict[int, range]) -> Result:
    """The elements at these positions of some axes."""
    shape = [len(kept[i]) if i in kept else size for i, size in enumerate(x.shape)]
    if shape == list(x.shape) and all(r.step > 0 or len(r) == 1 for r in kept.values()):
        return x
    if 0 in shape:
        return filled(shape, 0, x.dtype)
    for chosen in kept.values():
        if chosen.step < 0 and len(chosen) > 1:
            check_table(len(chosen))
    return compute(moving.slices(x.shape, kept, x.dtype), {'In': x})


def check_table(count: int) -> None:
    """Raise unless so many positions can be listed."""
    if count > MAX_TABLE:
        raise Unsupported(f'over {count} positions of one axis, of at most {MAX_TABLE}')


def _slice(node: NodeReader) -> Result:
    x = node.input(0)
    rank = len(x.shape)
    starts, ends = node.whole_numbers(1), node.whole_numbers(2)
    axes = node.axes(3, rank)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = node.whole_numbers(4) if node.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) <= rank or 0 in steps:
        raise ModelError(
            f'starts {list(starts)}, ends {list(ends)}, axes {list(axes)} and steps {list(steps)} '
            f'do not fit together'
        )
    kept = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        kept[axis] = range(*slice(start, end, step).indices(x.shape[axis]))
    return slices(x, kept)


def _pad(node: NodeReader) -> Result:
    x, rank = node.input(0), len(node.input(0).shape)
    mode = node.text('mode', 'constant', moving.BORDERS)
    axes = node.axes(3, rank)
    axes = tuple(range(rank)) if axes is None else axes
    pads = node.whole_numbers(1)
    if len(pads) != 2 * len(axes):
        raise ModelError(f'pads are {list(pads)}; give {2 * len(axes)} numbers')
    value = node.array(2).item() if node.has(2) else 0
    around = {a: (pads[i], pads[i + len(axes)]) for i, a in enumerate(axes)}
    return pad(x, around, mode, float(value))


def pad(
    x: Result, around: dict[int, tuple[int, int]], mode: str = 'constant', value: float = 0.0
) -> Result:
    """So many elements before and after, along some axes; negative ones are cut away."""
    shape = [size + sum(around.get(i, (0, 0))) for i, size in enumerate(x.shape)]
    if any(size < 0 for size in shape):
        raise ModelError(f'{list(x.shape)} with pads {around} has less than nothing left')
    check_elements(shape, 'the result')
    if 0 in shape or not any(any(pair) for pair in around.values()):
        return filled(shape, 0, x.dtype) if 0 in shape else x
    if 0 in x.shape:
        if mode != 'constant':
            raise ModelError(f'{list(x.shape)} has no elements that could be repeated')
        return filled(shape, value, x.dtype)
    if mode != 'constant':
        for axis, pair in around.items():
            if shape[axis] > MAX_TABLE and any(pair):
                rest = {a: other for a, other in around.items() if a != axis}
                return pad(_bordered(x, axis, pair, mode), rest, mode)
    return compute(moving.pad(x.shape, around, mode, value, x.dtype), {'In': x})


def _bordered(x: Result, axis: int, pair: tuple[int, int], mode: str) -> Result:
    """A long axis with repeated elements around it: only these come out of a table."""
    size = x.shape[axis]
    places = moving.bordered(size, *pair, mode)
    ends = [max(0, extra) for extra in pair]
    check_table(max(ends))
    first, last = int(places[ends[0]]), int(places[len(places) - 1 - ends[1]])
    parts = [slices(x, {axis: range(first, last + 1)})]
    if ends[0]:
        parts.insert(0, take(x, axis, places[: ends[0]]))
    if ends[1]:
        parts.append(take(x, axis, places[len(places) - ends[1] :]))
    return concat(parts, axis)


def take(x: Result, axis: int, places: np.ndarray) -> Result:
    """The elements at positions of an axis that are known now."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    rows = merged(x, before, (x.shape[axis],), after)
    taken = compute(moving.take(rows.shape, places, x.dtype), {'In': rows})
    return view(taken, (*before, len(places), *after))


def _transpose(node: NodeReader) -> Result:
    x = node.input(0)
    rank = len(x.shape)
    order = node.raw('perm', tuple(reversed(range(rank))))
    if not isinstance(order, tuple) or sorted(map(str, order)) != sorted(map(str, range(rank))):
        raise ModelError(f'its perm is {order!r}; it must name each of {rank} dimensions once')
    return transpose(x, [int(i) for i in order])


def _blocks(node: NodeReader) -> tuple[int, int, int, int, int, bool]:
    x, block = node.input(0), node.int('blocksize')
    if len(x.shape) != 4 or block < 1 or 0 in x.shape:
        raise ModelError(f'{list(x.shape)} has no blocks of {block}; give an image, [n, c, h, w]')
    n, c, h, w = x.shape
    return n, c, h, w, block, node.text('mode', 'DCR', ('DCR', 'CRD')) == 'DCR'


def _depth_to_space(node: NodeReader) -> Result:
    n, c, h, w, b, depth_first = _blocks(node)
    if c % (b * b):
        raise ModelError(f'{c} channels cannot be spread over blocks of {b} by {b}')
    k = c // (b * b)
    split, order = ((n, b, b, k, h, w), (0, 3, 4, 1, 5, 2)) if depth_first else (
        (n, k, b, b, h, w), (0, 1, 4, 2, 5, 3))  # fmt: skip
    return view(transpose(view(node.input(0), split), order), (n, k, h * b, w * b))


def _space_to_depth(node: NodeReader) -> Result:
    n, c, h, w, b, depth_first = _blocks(node)
    if h % b or w % b:
        raise ModelError(f'an image of {h} by {w} has no blocks of {b} by {b}')
    split = view(node.input(0), (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4)
    return view(transpose(split, order), (n, c * b * b, h // b, w // b))


def _center_crop_pad(node: NodeReader) -> Result:
    x = node.input(0)
    rank = len(x.shape)
    axes = node.raw('axes', tuple(range(rank)))
    wanted = node.whole_numbers(1)
    if not isinstance(axes, tuple) or len(axes) != len(wanted):
        raise ModelError(f'shape {list(wanted)} does not fit the axes {axes!r}')
    kept, around = {}, {}
    for a, size in zip(axes, wanted, strict=True):
        axis = axis_of(int(a), rank)
        have = x.shape[axis]
        if size < have:
            first = (have - size) // 2
            kept[axis] = range(first, first + size)
        elif size > have:
            before = (size - have) // 2
            around[axis] = (before, size - have - before)
    return pad(slices(x, kept), around)


OPERATORS: dict[str, Operator] = {
    'Expand': Operator(_expand, ANY, (1,)),
    'Tile': Operator(_tile, ANY, (1,)),
    'Concat': Operator(_concat, ANY),
    'Split': Operator(_split, ANY, (1,)),
    'Slice': Operator(_slice, ANY, (1, 2, 3, 4)),
    'Pad': Operator(_pad, ANY, (1, 2, 3)),
    'CenterCropPad': Operator(_center_crop_pad, ANY, (1,)),
    'Transpose': Operator(_transpose, ANY),
    'DepthToSpace': Operator(_depth_to_space, ANY),
    'SpaceToDepth': Operator(_space_to_depth, ANY),
}
