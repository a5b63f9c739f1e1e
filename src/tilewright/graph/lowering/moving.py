"""Operators that move elements: repetition, concatenation, slices, borders, other orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import (
    broadcast,
    gather,
    group_of,
    label_of,
    names_of,
    pointwise,
    transpose,
)
from tilewright.graph.lowering.given import ANY, Given, Operator, axis_of
from tilewright.graph.lowering.result import (
    Part,
    Result,
    Unsupported,
    check_elements,
    filled,
    join,
    view,
)
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import MAX_TABLE, Access, Affine, Dim, Stage, Table, affine, read, var


def _expand(given: Given) -> Result:
    x, wanted = given.input(0), given.whole_numbers(1)
    return expand(x, broadcast([x.shape, wanted]))


def expand(x: Result, shape: Sequence[int]) -> Result:
    """The tensor repeated along dimensions where it has one element."""
    check_elements(shape, 'the result')
    if math.prod(shape) == math.prod(x.shape):
        return view(x, shape)
    return pointwise('expand', read(0), [x], x.dtype, shape)


def _tile(given: Given) -> Result:
    x, repeats = given.input(0), given.whole_numbers(1)
    if len(repeats) != len(x.shape) or any(r < 0 for r in repeats):
        raise ModelError(f'repeats are {list(repeats)}; give {len(x.shape)} numbers from 0 on')
    shape = [size * r for size, r in zip(x.shape, repeats, strict=True)]
    check_elements(shape, 'the result')
    if 0 in shape:
        return filled(shape, 0, x.dtype)
    sizes, write = {}, []
    for axis, (size, repeat) in enumerate(zip(x.shape, repeats, strict=True)):
        if repeat > 1:
            sizes[f'r{axis}'] = repeat
        sizes[f'd{axis}'] = size
        turns = ((f'r{axis}', size),) if repeat > 1 else ()
        write.append(affine(*turns, (f'd{axis}', 1)))
    return gather('tile', x, [var(f'd{i}') for i in range(len(shape))], sizes, write=write)


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
        names = names_of(r.shape)
        here = tuple(map(var, names))
        domain = tuple(Dim(d, size) for d, size in zip(names, r.shape, strict=True))
        stage = Stage('copy', domain, Access('Out', here), (Access('In', here),), read(0))
        group = group_of(label_of('copy', r.shape), {'In': r}, [stage], r.dtype)
        parts.append(Part(into_slice(group, axis, offset, extent), {'In': r}))
        offset += r.shape[axis]
    return join(parts)


def _concat(given: Given) -> Result:
    inputs = given.all()
    axis = axis_of(given.int('axis'), len(inputs[0].shape))
    for r in inputs:
        rest = [(*s[:axis], *s[axis + 1 :]) for s in (r.shape, inputs[0].shape)]
        if rest[0] != rest[1] or len(r.shape) != len(inputs[0].shape):
            raise ModelError(
                f'{list(inputs[0].shape)} and {list(r.shape)} cannot be joined along axis {axis}'
            )
        if r.dtype != inputs[0].dtype:
            raise ModelError(f'{inputs[0].dtype} and {r.dtype} cannot be joined')
    return concat(inputs, axis)


def _split(given: Given) -> tuple[Result, ...]:
    x, count = given.input(0), len(given.node.outputs)
    axis = axis_of(given.int('axis', 0), len(x.shape))
    size = x.shape[axis]
    if given.has(1):
        sizes = given.whole_numbers(1)
    else:
        each = -(-size // given.int('num_outputs', count))
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
    names = names_of(x.shape)
    places: list[Affine | Table] = []
    for axis, name in enumerate(names):
        chosen = kept.get(axis, range(x.shape[axis]))
        if chosen.step > 0 or len(chosen) == 1:
            places.append(affine((name, max(chosen.step, 1)), const=chosen[0]))
        else:
            places.append(table(chosen, name))
    return gather('slice', x, places, dict(zip(names, shape, strict=True)))


def table(positions: Sequence[int] | np.ndarray, name: str) -> Table:
    """The index of an axis whose positions are listed."""
    if len(positions) > MAX_TABLE:
        raise Unsupported(f'over {len(positions)} positions of one axis, of at most {MAX_TABLE}')
    return Table(tuple(int(p) for p in positions), var(name))


def _slice(given: Given) -> Result:
    x = given.input(0)
    rank = len(x.shape)
    starts, ends = given.whole_numbers(1), given.whole_numbers(2)
    axes = given.axes(3, rank)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = given.whole_numbers(4) if given.has(4) else (1,) * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps) <= rank or 0 in steps:
        raise ModelError(
            f'starts {list(starts)}, ends {list(ends)}, axes {list(axes)} and steps {list(steps)} '
            f'do not fit together'
        )
    kept = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        kept[axis] = range(*slice(start, end, step).indices(x.shape[axis]))
    return slices(x, kept)


def _pad(given: Given) -> Result:
    x, rank = given.input(0), len(given.input(0).shape)
    mode = given.text('mode', 'constant', ('constant', 'reflect', 'edge', 'wrap'))
    axes = given.axes(3, rank)
    axes = tuple(range(rank)) if axes is None else axes
    pads = given.whole_numbers(1)
    if len(pads) != 2 * len(axes):
        raise ModelError(f'pads are {list(pads)}; give {2 * len(axes)} numbers')
    value = given.array(2).item() if given.has(2) else 0
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
    names, places = names_of(x.shape), []
    for axis, name in enumerate(names):
        before, after = around.get(axis, (0, 0))
        if mode == 'constant' or not (before or after):
            places.append(affine((name, 1), const=-before))
        else:
            places.append(table(_bordered(x.shape[axis], before, after, mode), name))
    return gather('pad', x, places, dict(zip(names, shape, strict=True)), value)


def _bordered(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Where the elements of a padded axis come from."""
    kept = np.arange(max(0, -before), size - max(0, -after))
    if not kept.size:
        raise ModelError(f'an axis of {size} cut by {before} and {after} has nothing to repeat')
    pads = (max(0, before), max(0, after))
    return np.pad(kept, pads, mode='edge' if mode == 'reflect' and size == 1 else mode)  # pyright: ignore


def _transpose(given: Given) -> Result:
    x = given.input(0)
    rank = len(x.shape)
    order = given.node.attributes.get('perm', tuple(reversed(range(rank))))
    if not isinstance(order, tuple) or sorted(map(str, order)) != sorted(map(str, range(rank))):
        raise ModelError(f'its perm is {order!r}; it must name each of {rank} dimensions once')
    return transpose(x, [int(i) for i in order])


def _blocks(given: Given) -> tuple[int, int, int, int, int, bool]:
    x, block = given.input(0), given.int('blocksize')
    if len(x.shape) != 4 or block < 1 or 0 in x.shape:
        raise ModelError(f'{list(x.shape)} has no blocks of {block}; give an image, [n, c, h, w]')
    n, c, h, w = x.shape
    return n, c, h, w, block, given.text('mode', 'DCR', ('DCR', 'CRD')) == 'DCR'


def _depth_to_space(given: Given) -> Result:
    n, c, h, w, b, depth_first = _blocks(given)
    if c % (b * b):
        raise ModelError(f'{c} channels cannot be spread over blocks of {b} by {b}')
    k = c // (b * b)
    split, order = ((n, b, b, k, h, w), (0, 3, 4, 1, 5, 2)) if depth_first else (
        (n, k, b, b, h, w), (0, 1, 4, 2, 5, 3))  # fmt: skip
    return view(transpose(view(given.input(0), split), order), (n, k, h * b, w * b))


def _space_to_depth(given: Given) -> Result:
    n, c, h, w, b, depth_first = _blocks(given)
    if h % b or w % b:
        raise ModelError(f'an image of {h} by {w} has no blocks of {b} by {b}')
    split = view(given.input(0), (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4)
    return view(transpose(split, order), (n, c * b * b, h // b, w // b))


def _center_crop_pad(given: Given) -> Result:
    x = given.input(0)
    rank = len(x.shape)
    axes = given.node.attributes.get('axes', tuple(range(rank)))
    wanted = given.whole_numbers(1)
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
