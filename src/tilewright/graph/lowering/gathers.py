"""Elements at positions that a tensor holds: by tables where it is known, by lookups where not.

The largest along an axis, and elements that are written to positions, are found by comparing.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import flat, merged
from tilewright.graph.lowering.moving import pad, slices, take
from tilewright.graph.lowering.reader import ANY, NUMBERS, WHOLE, NodeReader, Operator, axis_of
from tilewright.graph.lowering.result import Known, Result, Unsupported, compute, filled, view
from tilewright.ops import moving, ranking
from tilewright.ops.stage import MAX_TABLE

# Elements are compared with each other: work that grows with the square of an axis.
MAX_COMPARED = 1 << 13


def _gather(node: NodeReader) -> Result:
    """Rows of an axis, [before, axis, after], in the order of the indices taken as one list."""
    x, indices = node.input(0), _indices(node)
    axis = axis_of(node.int('axis', 0), len(x.shape))
    before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    shape = (*before, *indices.shape, *after)
    if 0 in shape:
        return filled(shape, 0, x.dtype)
    if not size:
        raise ModelError(f'{list(x.shape)} has nothing to gather along axis {axis}')
    count = math.prod(indices.shape)
    if isinstance(indices, Known):
        positions = _positions(indices.array, size)
        run = _as_range(positions)
        if run is not None:
            return view(slices(x, {axis: run}), shape)
        if count <= MAX_TABLE:
            return view(take(x, axis, positions), shape)
    # A table stays as it is, so that its gradient is one; of one image what follows has its shape.
    plain = axis == 0 and len(x.shape) == 2 and shape[0] != 1
    rows = x if plain else merged(x, before, (size,), after)
    group = moving.gather(rows.shape, count, x.dtype, indices.dtype)
    chosen = view(flat(indices), (count,))
    return view(compute(group, {'In': rows, 'Indices': chosen}), shape)


def _indices(node: NodeReader) -> Result:
    indices = node.input(1)
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


def _gather_elements(node: NodeReader) -> Result:
    x, indices = node.input(0), _indices(node)
    axis = axis_of(node.int('axis', 0), len(x.shape))
    fits = len(indices.shape) == len(x.shape) and all(
        have >= want for i, (have, want) in enumerate(zip(x.shape, indices.shape, strict=False))
        if i != axis
    )  # fmt: skip
    if not fits:
        raise ModelError(f'indices of {list(indices.shape)} do not fit {list(x.shape)}')
    if 0 in indices.shape:
        return filled(indices.shape, 0, x.dtype)
    group = moving.gather_elements(x.shape, axis, indices.shape, x.dtype, indices.dtype)
    return compute(group, {'In': x, 'Indices': indices})


def _gather_nd(node: NodeReader) -> Result:
    x, indices, batch = node.input(0), _indices(node), node.int('batch_dims', 0)
    if not 0 <= batch < min(len(x.shape), len(indices.shape)):
        raise ModelError(f'batch_dims is {batch}; it must be less than both ranks')
    width = indices.shape[-1]
    if x.shape[:batch] != indices.shape[:batch] or not 1 <= width <= len(x.shape) - batch:
        raise ModelError(f'indices of {list(indices.shape)} do not fit {list(x.shape)}')
    lead, rest = indices.shape[batch:-1], x.shape[batch + width :]
    shape = (*x.shape[:batch], *lead, *rest)
    if 0 in (*shape, *x.shape):
        raise Unsupported('of empty tensors')
    blocks = math.prod(x.shape[:batch])
    data = view(x, (blocks, *x.shape[batch : batch + width], math.prod(rest)))
    chosen = view(indices, (blocks, math.prod(lead), width))
    group = moving.gather_nd(data.shape, chosen.shape, x.dtype, indices.dtype)
    return view(compute(group, {'In': data, 'Indices': chosen}), shape)


def _top_k(node: NodeReader) -> tuple[Result, Result]:
    x = node.input(0)
    axis, (count,) = axis_of(node.int('axis', -1), len(x.shape)), node.whole_numbers(1)
    size = x.shape[axis]
    if not 0 <= count <= size:
        raise ModelError(f'it asks for {count} of {size} elements')
    shape = tuple(count if i == axis else n for i, n in enumerate(x.shape))
    if 0 in shape or size == 1:
        first = filled(shape, 0, x.dtype) if 0 in shape else x
        return first, filled(shape, 0, 'i64')
    if size > MAX_COMPARED:
        raise Unsupported(f'of {size} elements, of at most {MAX_COMPARED}')
    largest = bool(node.int('largest', 1))
    places = compute(ranking.top_places(x.shape, axis, count, largest, x.dtype), {'In': x})
    found = moving.gather_elements(x.shape, axis, shape, x.dtype)
    return compute(found, {'In': x, 'Indices': places}), places


def _scatter_elements(node: NodeReader) -> Result:
    x, indices, updates = node.input(0), _indices(node), node.input(2)
    axis = axis_of(node.int('axis', 0), len(x.shape))
    how = node.text('reduction', 'none', ranking.SCATTERED)
    if len(indices.shape) != len(x.shape) or indices.shape != updates.shape:
        raise ModelError(
            f'indices of {list(indices.shape)} and updates of {list(updates.shape)} do not fit '
            f'{list(x.shape)}'
        )
    if 0 in indices.shape:
        return x
    if indices.shape[axis] > MAX_COMPARED:
        raise Unsupported(f'of {indices.shape[axis]} elements, of at most {MAX_COMPARED}')
    missing = {
        i: (0, have - want)
        for i, (have, want) in enumerate(zip(x.shape, indices.shape, strict=True)) if i != axis
    }  # fmt: skip
    if any(after < 0 for _, after in missing.values()):
        raise ModelError(f'indices of {list(indices.shape)} do not fit {list(x.shape)}')
    # An index behind the axis is nobody's.
    indices, updates = pad(indices, missing, value=x.shape[axis]), pad(updates, missing)
    group = ranking.scatter_elements(
        x.shape, axis, indices.shape[axis], how, x.dtype, indices.dtype
    )
    return compute(group, {'In': x, 'Indices': indices, 'Updates': updates})


OPERATORS: dict[str, Operator] = {
    'Gather': Operator(_gather, ANY),
    'GatherElements': Operator(_gather_elements, ANY),
    'GatherND': Operator(_gather_nd, ANY),
    'TopK': Operator(_top_k, NUMBERS, (1,), f'of at most {MAX_COMPARED} elements'),
    'ScatterElements': Operator(
        _scatter_elements, ANY, forms=f'of at most {MAX_COMPARED} updates along the axis'
    ),
}
