"""The reference, executed from a group's description: the oracle of every test.

Goes in: a group and its arrays by tensor name. Comes out: the output array; floats are float64,
whole numbers and truth values have their own dtype and are exact.

Each access becomes a strided view with one axis for every iterator that it uses, over a copy that
is padded so that no index falls outside; a table is applied to its axis first, unless that copy
would be large: then, as for a lookup, one fancy index over the iterators takes what is read.
Sequential dimensions are taken step by step.
Reduction dimensions that share an index expression
with another iterator (the window of a convolution) are looped over, and others of which one array
would have more than `MOST_POINTS`; the rest is one einsum or reduction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright.errors import ArrayError
from tilewright.ops.dtypes import NUMPY, is_float, limits
from tilewright.ops.evaluate import evaluate
from tilewright.ops.group import Group
from tilewright.ops.sequence import in_turns, unrolled
from tilewright.ops.stage import Access, Affine, Stage

MOST_POINTS = 1 << 24  # of an expression that is computed at once: 128 MB of float64
_COMBINE = {'sum': np.add, 'max': np.maximum, 'min': np.minimum, 'prod': np.multiply}
View = tuple[np.ndarray, tuple[str, ...]]  # values, the iterator of each axis


def reference(group: Group, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """[Group, arrays] -> output: float64, or the whole numbers of the output's dtype."""
    values = {}
    for tensor in group.tensors:
        kind = np.float64 if is_float(tensor.dtype) else NUMPY[tensor.dtype]
        if tensor.role in ('inner', 'output'):
            values[tensor.name] = np.zeros(tensor.shape, kind)
            continue
        if tensor.name not in arrays:
            raise ArrayError(f'{group.label} needs {tensor.name} of shape {tensor.shape}')
        array = np.asarray(arrays[tensor.name])
        if array.shape != tensor.shape:
            raise ArrayError(f'{tensor.name} has shape {array.shape}, expected {tensor.shape}')
        values[tensor.name] = np.asarray(array, kind)
    with np.errstate(all='ignore'):
        for run in in_turns(group.stages):
            for stage in unrolled(run):
                _run(group, stage, values)
    return values[group.output.name]


def _run(group: Group, stage: Stage, values: dict[str, np.ndarray]) -> None:
    padded = [_pad(group, stage, a, values[a.tensor]) for a in stage.reads]
    target, dtypes = values[stage.write.tensor], group.read_dtypes(stage)
    looped = _looped(stage)
    inner = tuple(d for d in stage.reduction if d not in looped)
    result: np.ndarray | None = None
    for point in itertools.product(*(range(stage.sizes[d]) for d in looped)):
        fixed = dict(zip(looped, point, strict=True))
        views = _views(group, stage, padded, fixed)
        if stage.is_product_sum:
            part = _product_sum(stage, views, fixed, target.dtype)
        else:
            part = _reduce(stage, views, inner, fixed, dtypes, target.dtype)
        result = part if result is None else _COMBINE[stage.combiner or 'sum'](result, part)
    assert result is not None
    _store(target, stage, np.asarray(result))


def _looped(stage: Stage) -> tuple[str, ...]:
    """Reduction dimensions that share an index expression with another iterator; and, of a sum that
    is not an einsum, those that would make one array of all points too large.
    """
    shared = {
        name
        for access in stage.reads
        for expression in access.index
        if len(expression.terms) > 1
        for name in expression.names
    }
    looped = [d for d in stage.reduction if d in shared]
    points = math.prod(size for name, size in stage.sizes.items() if name not in looped)
    for d in stage.reduction:
        if points > MOST_POINTS and not stage.is_product_sum and d not in shared:
            looped.append(d)
            points //= stage.sizes[d]
    return tuple(looped)


def _pad(
    group: Group, stage: Stage, access: Access, array: np.ndarray
) -> tuple[np.ndarray, tuple[int, ...]]:
    """The tensor with its tables applied and its border filled, and where each index begins; the
    tensor as it is, and nothing, where that would be large and `_gathered` is to read it.
    """
    filler = _filler(stage.pad_value, group.tensor(access.tensor).dtype)
    tables = dict(access.tables)
    lengths = [len(tables.get(axis, range(n))) for axis, n in enumerate(array.shape)]
    if tables and not access.lookups and math.prod(lengths) > MOST_POINTS:
        return array, ()
    for axis, positions in tables.items():
        at = np.asarray(positions)
        outside = (at < 0) | (at >= array.shape[axis])
        array = np.take(array, np.where(outside, 0, at), axis)
        array[(slice(None),) * axis + (outside,)] = filler
    widths = []
    for extent, expression in zip(array.shape, access.index, strict=True):
        last = expression.const + expression.extent(stage.sizes) - 1
        widths.append((max(0, -expression.const), max(0, last - extent + 1)))
    needed = any(map(any, widths))
    padded = np.pad(array, widths, constant_values=filler) if needed else array
    return padded, tuple(
        e.const + before for e, (before, _) in zip(access.index, widths, strict=True)
    )


def _filler(value: float, dtype: str) -> float | int:
    if is_float(dtype):
        return value
    low, high = limits(dtype)
    return int(min(max(value, low), high))


def _views(group: Group, stage: Stage, padded: list, fixed: dict[str, int]) -> list[View]:
    """The values that every access reads, one axis per iterator that is not fixed."""
    plain = [
        None
        if access.lookups
        else _view(source, access, stage, fixed)
        if len(source[1]) == len(access.index)
        else _gathered(group, stage, access, source[0], fixed)
        for source, access in zip(padded, stage.reads, strict=True)
    ]
    return [
        view if view is not None else _looked_up(group, stage, access, padded[n], plain, fixed)
        for n, (view, access) in enumerate(zip(plain, stage.reads, strict=True))
    ]


def _view(
    source: tuple[np.ndarray, tuple[int, ...]], access: Access, stage: Stage, fixed: dict[str, int]
) -> View:
    array, origin = source
    start = tuple(
        o + sum(c * fixed.get(n, 0) for n, c in e.terms)
        for o, e in zip(origin, access.index, strict=True)
    )
    free = tuple(n for n in access.names if n not in fixed)
    strides = tuple(
        sum(e.coefficient(n) * s for e, s in zip(access.index, array.strides, strict=True))
        for n in free
    )
    corner = array[tuple(slice(s, None) for s in start)]
    shape = tuple(stage.sizes[n] for n in free)
    return np.lib.stride_tricks.as_strided(corner, shape, strides, writeable=False), free


def _gathered(
    group: Group, stage: Stage, access: Access, array: np.ndarray, fixed: dict[str, int]
) -> View:
    """What an access reads, element by element: no copy of the tensor behind its tables."""
    free = tuple(n for n in access.names if n not in fixed)
    tables, index = dict(access.tables), []
    outside = np.zeros((1,) * len(free), bool)
    for axis, (expression, extent) in enumerate(zip(access.index, array.shape, strict=True)):
        at = _position(expression, stage, fixed, free)
        if axis in tables:
            table = np.asarray(tables[axis])
            beside = (at < 0) | (at >= len(table))
            at = np.where(beside, -1, table[np.where(beside, 0, at)])
        outside = outside | (at < 0) | (at >= extent)
        index.append(np.clip(at, 0, extent - 1))
    filler = _filler(stage.pad_value, group.tensor(access.tensor).dtype)
    found = np.where(outside, np.asarray(filler, array.dtype), array[tuple(index)])
    return np.broadcast_to(found, tuple(stage.sizes[n] for n in free)), free


def _position(
    expression: Affine, stage: Stage, fixed: dict[str, int], free: tuple[str, ...]
) -> np.ndarray:
    """Values of an index, one axis for each free iterator."""
    position = np.full((1,) * len(free), expression.const)
    for name, coefficient in expression.terms:
        if name in fixed:
            position = position + coefficient * fixed[name]
        else:
            steps = coefficient * np.arange(stage.sizes[name])
            position = position + _aligned(steps, (name,), free)
    return position


def _looked_up(
    group: Group, stage: Stage, access: Access, source: tuple[np.ndarray, tuple[int, ...]],
    views: list, fixed: dict[str, int],
) -> View:  # fmt: skip
    array, origin = source
    chosen = {axis: views[read] for axis, read in access.lookups}
    names = tuple(dict.fromkeys([*access.names, *(n for _, own in chosen.values() for n in own)]))
    free = tuple(n for n in names if n not in fixed)
    index = []
    for axis, (expression, first) in enumerate(zip(access.index, origin, strict=True)):
        if axis in chosen:
            extent = group.tensor(access.tensor).shape[axis]
            at = _aligned(*chosen[axis], free).astype(np.int64)
            index.append(np.clip(np.where(at < 0, at + extent, at), 0, extent - 1))
            continue
        index.append(_position(replace(expression, const=first), stage, fixed, free))
    shape = tuple(stage.sizes[n] for n in free)
    return np.broadcast_to(array[tuple(index)], shape), free


def _aligned(array: np.ndarray, names: tuple[str, ...], axes: tuple[str, ...]) -> np.ndarray:
    """The array with one axis for each of `axes`, of one point where it does not depend on it."""
    order = sorted(range(len(names)), key=lambda i: axes.index(names[i]))
    return array.transpose(order)[tuple(slice(None) if d in names else None for d in axes)]


def _product_sum(
    stage: Stage, views: list[View], fixed: dict[str, int], kind: np.dtype
) -> np.ndarray:
    letters = {d.name: chr(ord('a') + i) for i, d in enumerate(stage.dims)}
    terms = [''.join(letters[n] for n in names) for _, names in views]
    present = {n for _, names in views for n in names}
    kept = [n for n in stage.parallel if n in present]
    out = ''.join(letters[n] for n in kept)
    # Sums of small whole numbers are exact in float64, which libraries multiply.
    small = kind.kind in 'iu' and all(v.dtype.itemsize <= 2 for v, _ in views)
    factors = (v.astype(np.float64 if small else kind, copy=False) for v, _ in views)
    part = np.einsum(f'{",".join(terms)}->{out}', *factors, optimize=True)
    part = part.astype(np.int64).astype(kind) if small else part
    missing = [d for d in stage.reduction if d not in present and d not in fixed]
    for name in missing:  # reductions that nothing depends on repeat the same value
        part = part * stage.sizes[name]
    return _spread(part, tuple(kept), stage)


def _spread(array: np.ndarray, names: tuple[str, ...], stage: Stage) -> np.ndarray:
    """One axis for every parallel dimension, in the stage's order."""
    index = tuple(slice(None) if d in names else None for d in stage.parallel)
    return np.broadcast_to(array[index], tuple(stage.sizes[d] for d in stage.parallel))


def _reduce(
    stage: Stage, views: list[View], inner: tuple[str, ...], fixed: dict[str, int],
    dtypes: tuple[str, ...], kind: np.dtype,
) -> np.ndarray:  # fmt: skip
    axes = (*stage.parallel, *inner)
    operands = [_aligned(view, names, axes) for view, names in views]
    iterators = {
        d: np.asarray(fixed[d]) if d in fixed else _aligned(np.arange(stage.sizes[d]), (d,), axes)
        for d in set(stage.expr.iterators())
    }
    value = evaluate(stage.expr, operands, dtypes, iterators)
    value = np.broadcast_to(value, tuple(stage.sizes[d] for d in axes)).astype(kind, copy=False)
    if not inner:
        return value
    over = tuple(range(len(stage.parallel), len(axes)))
    return _COMBINE[stage.combiner or 'sum'].reduce(value, over, dtype=kind)


def _store(target: np.ndarray, stage: Stage, result: np.ndarray) -> None:
    """Scatter [parallel dims] into the result, whose indices may combine iterators (g, k)."""
    alone = [e.terms[0] for e in stage.write.index if len(e.terms) == 1 and e.const >= 0]
    if tuple(name for name, _ in alone) == stage.parallel and len(alone) == target.ndim:
        corner = [e.const for e in stage.write.index]
        steps = zip(corner, alone, result.shape, strict=True)
        target[tuple(slice(at, at + c * size, c) for at, (_, c), size in steps)] = result
        return
    index = []
    for expression in stage.write.index:
        position = np.full((1,) * len(stage.parallel), expression.const)
        for name, coefficient in expression.terms:
            axis = stage.parallel.index(name)
            shape = [1] * len(stage.parallel)
            shape[axis] = stage.sizes[name]
            position = position + coefficient * np.arange(stage.sizes[name]).reshape(shape)
        index.append(position)
    target[tuple(index)] = result
