"""The reference, executed from a group's description: the oracle of every test.

Goes in: a group and its arrays by tensor name. Comes out: the output array; floats are float64,
whole numbers and truth values have their own dtype and are exact.

Each access becomes a strided view with one axis for every iterator that it uses, over a copy that
is padded so that no index falls outside; a table is applied to its axis first, a lookup is one
fancy index over the iterators of both tensors. Sequential dimensions are taken step by step.
Reduction dimensions that share an index expression
with another iterator (the window of a convolution) are looped over; the rest is one einsum or
reduction.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from tilewright.errors import ArrayError
from tilewright.ops.dtypes import NUMPY, is_float, limits
from tilewright.ops.evaluate import evaluate
from tilewright.ops.group import Group
from tilewright.ops.sequence import in_turns, unrolled
from tilewright.ops.stage import Access, Stage

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
    """Reduction dimensions that share an index expression with another iterator."""
    shared = {
        name
        for access in stage.reads
        for expression in access.index
        if len(expression.terms) > 1
        for name in expression.names
    }
    return tuple(d for d in stage.reduction if d in shared)


def _pad(
    group: Group, stage: Stage, access: Access, array: np.ndarray
) -> tuple[np.ndarray, tuple[int, ...]]:
    """The tensor with its tables applied and its border filled, and where each index begins."""
    filler = _filler(stage.pad_value, group.tensor(access.tensor).dtype)
    tables = dict(access.tables)
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
        None if access.lookups else _view(source, access, stage, fixed)
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
        position = np.full((1,) * len(free), first)
        for name, coefficient in expression.terms:
            steps = coefficient * np.arange(stage.sizes[name])
            position = position + (
                coefficient * fixed[name]
                if name in fixed
                else _aligned(steps, (name,), free)
            )  # fmt: skip
        index.append(position)
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
