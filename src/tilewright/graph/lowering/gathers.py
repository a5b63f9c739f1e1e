"""Elements at positions that a tensor holds: by tables where it is known, by lookups where not."""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import build, flat, gather, label_of, merged
from tilewright.graph.lowering.given import ANY, WHOLE, Given, Operator, axis_of
from tilewright.graph.lowering.moving import slices
from tilewright.graph.lowering.result import Known, Result, Unsupported, filled, view
from tilewright.ops.stage import (
    MAX_TABLE,
    Access,
    Dim,
    Lookup,
    Stage,
    Table,
    access,
    affine,
    read,
    var,
)


def _gather(given: Given) -> Result:
    """Rows of an axis, [before, axis, after], in the order of the indices taken as one list."""
    x, indices = given.input(0), _indices(given)
    axis = axis_of(given.int('axis', 0), len(x.shape))
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    shape = (*before, *indices.shape, *after)
    if 0 in shape:
        return filled(shape, 0, x.dtype)
    if not size:
        raise ModelError(f'{list(x.shape)} has nothing to gather along axis {axis}')
    rows = merged(x, before, (size,), after)
    count = math.prod(indices.shape)
    sizes = {'b': rows.shape[0], 'j': count, 'a': rows.shape[2]}
    if isinstance(indices, Known):
        positions = _positions(indices.array, size)
        run = _as_range(positions)
        if run is not None:
            return view(slices(x, {axis: run}), shape)
        if count <= MAX_TABLE:
            picked = Table(tuple(positions.tolist()), var('j'))
            return view(gather('gather', rows, [var('b'), picked, var('a')], sizes), shape)
    chosen = view(flat(indices), (count,))
    stage = Stage(
        'gather', tuple(Dim(d, s) for d, s in sizes.items()),
        Access('Out', tuple(map(var, sizes))),
        (access('In', var('b'), Lookup(1), var('a')), Access('Indices', (var('j'),))), read(0),
    )  # fmt: skip
    operands = {'In': rows, 'Indices': chosen}
    return view(build(label_of('gather', rows.shape, (count,)), operands, [stage], x.dtype), shape)


def _indices(given: Given) -> Result:
    indices = given.input(1)
    if indices.dtype not in WHOLE:
        raise ModelError(f'its indices are {indices.dtype}; they must be whole numbers')
    return indices


def _positions(indices: np.ndarray, size: int) -> np.ndarray:
    """Known indices, counted from 0."""
    positions = np.where(indices < 0, indices + size, indices).astype(np.int64).ravel()
    if positions.size and (positions.min() < 0 or positions.max() >= size):
        raise ModelError(f'an index is outside the {size} elements of its axis')
    return positions


def _as_range(positions: np.ndarray) -> range | None:
    """Positions at equal steps forwards, which are a slice."""
    if positions.size == 1:
        return range(int(positions[0]), int(positions[0]) + 1)
    steps = np.diff(positions)
    if steps[0] < 1 or (steps != steps[0]).any():
        return None
    return range(int(positions[0]), int(positions[-1]) + 1, int(steps[0]))


def _gather_elements(given: Given) -> Result:
    """Out[i, j, k] = In[indices[i, j, k], j, k], where the axis is the first."""
    x, indices = given.input(0), _indices(given)
    axis = axis_of(given.int('axis', 0), len(x.shape))
    fits = len(indices.shape) == len(x.shape) and all(
        have >= want for i, (have, want) in enumerate(zip(x.shape, indices.shape, strict=False))
        if i != axis
    )  # fmt: skip
    if not fits:
        raise ModelError(f'indices of {list(indices.shape)} do not fit {list(x.shape)}')
    if 0 in indices.shape:
        return filled(indices.shape, 0, x.dtype)
    names = [f'd{i}' for i in range(len(x.shape))]
    here = tuple(map(var, names))
    looked = access('In', *(Lookup(1) if i == axis else at for i, at in enumerate(here)))
    stage = Stage(
        'gather_elements', tuple(Dim(d, s) for d, s in zip(names, indices.shape, strict=True)),
        Access('Out', here), (looked, Access('Indices', here)), read(0),
    )  # fmt: skip
    label = label_of('gather_elements', x.shape, indices.shape)
    return build(label, {'In': x, 'Indices': indices}, [stage], x.dtype)


def _gather_nd(given: Given) -> Result:
    """Out[b, j, rest] = In[b, indices[b, j, 0], indices[b, j, 1], .., rest]."""
    x, indices, batch = given.input(0), _indices(given), given.int('batch_dims', 0)
    if not 0 <= batch < min(len(x.shape), len(indices.shape)):
        raise ModelError(f'batch_dims is {batch}; it must be less than both ranks')
    width = indices.shape[-1]
    if x.shape[:batch] != indices.shape[:batch] or not 1 <= width <= len(x.shape) - batch:
        raise ModelError(f'indices of {list(indices.shape)} do not fit {list(x.shape)}')
    lead, rest = indices.shape[batch:-1], x.shape[batch + width :]
    shape = (*x.shape[:batch], *lead, *rest)
    if 0 in (*shape, *x.shape):
        raise Unsupported('of empty tensors')
    sizes = {'b': math.prod(x.shape[:batch]), 'j': math.prod(lead), 'a': math.prod(rest)}
    data = view(x, (sizes['b'], *x.shape[batch : batch + width], sizes['a']))
    chosen = view(indices, (sizes['b'], sizes['j'], width))
    looked = access('In', var('b'), *(Lookup(1 + i) for i in range(width)), var('a'))
    picks = [Access('Indices', (var('b'), var('j'), affine(const=i))) for i in range(width)]
    stage = Stage(
        'gather_nd', tuple(Dim(d, s) for d, s in sizes.items()),
        Access('Out', tuple(map(var, sizes))), (looked, *picks), read(0),
    )  # fmt: skip
    label = label_of('gather_nd', data.shape, chosen.shape)
    return view(build(label, {'In': data, 'Indices': chosen}, [stage], x.dtype), shape)


OPERATORS: dict[str, Operator] = {
    'Gather': Operator(_gather, ANY),
    'GatherElements': Operator(_gather_elements, ANY),
    'GatherND': Operator(_gather_nd, ANY),
}
