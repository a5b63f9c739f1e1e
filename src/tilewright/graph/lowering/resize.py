"""Resize: which axes change, to which sizes, by which neighbours (ops/resize.py)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.moving import check_table
from tilewright.graph.lowering.reader import ANY, NodeReader, Operator, axis_of
from tilewright.graph.lowering.result import (
    Result,
    Unsupported,
    check_elements,
    compute,
    filled,
    known,
    view,
)
from tilewright.ops.resize import COORDINATES, ROUNDINGS, Resized, interpolate, nearest
from tilewright.ops.stage import MAX_TABLE, call, const, read


def _resize(node: NodeReader) -> Result:
    x, mode = node.input(0), node.text('mode', 'nearest', ('nearest', 'linear', 'cubic'))
    where = node.text('coordinate_transformation_mode', 'half_pixel', COORDINATES)
    axes = _axes(node, x.shape, where)
    shape = [axes[i].out if i in axes else size for i, size in enumerate(x.shape)]
    check_elements(shape, 'the result')
    if 0 in shape or 0 in x.shape:
        return filled(shape, 0, x.dtype)
    changed = {
        i: axis for i, axis in axes.items()
        if (axis.size, axis.scale) != (axis.out, 1.0) or where == 'tf_crop_and_resize'
    }  # fmt: skip
    if mode == 'nearest':
        result = _nearest(node, x, changed, where)
    elif x.dtype not in ('f32', 'f64'):
        raise Unsupported(f'with mode {mode!r} of {x.dtype}')
    else:
        result = x
        for i, axis in changed.items():
            result = _interpolate(node, result, i, axis, mode, where)
    return _outside(node, result, changed, where)


def _axes(node: NodeReader, shape: Sequence[int], where: str) -> dict[int, Resized]:
    """The axes that scales or sizes name, with their new sizes."""
    rank = len(shape)
    named = node.raw('axes', tuple(range(rank)))
    if not isinstance(named, tuple):
        raise ModelError(f'its axes are {named!r}; they must be whole numbers')
    axes = [axis_of(int(a), rank) for a in named]
    scales = node.array(2).astype(float).ravel() if node.has(2) else np.zeros(0)
    sizes = node.whole_numbers(3) if node.has(3) else ()
    if len(sizes or scales) != len(axes) or (scales.size and not (scales > 0).all()):
        raise ModelError(
            f'it needs {len(axes)} scales above 0 or as many sizes; it has {scales.tolist()} and '
            f'{list(sizes)}'
        )
    region = np.tile([[0.0], [1.0]], len(axes))
    if where == 'tf_crop_and_resize':
        region = node.array(1).astype(float).reshape(2, -1)
        if region.shape[1] != len(axes):
            raise ModelError(f'its region has {region.size} numbers, not {2 * len(axes)}')
    if sizes:
        wanted = _kept_aspect(node, [shape[a] for a in axes], sizes)
        scales = [w / max(1, shape[a]) for w, a in zip(wanted, axes, strict=True)]
    else:
        spans = region[1] - region[0]
        wanted = [
            math.floor(shape[a] * span * scale)
            for a, span, scale in zip(axes, spans, scales, strict=True)
        ]
    if any(w < 0 for w in wanted):
        raise ModelError(f'it makes sizes {wanted}; they are at least 0')
    if any(w > MAX_TABLE for w in wanted):
        raise Unsupported(f'to {wanted}, of at most {MAX_TABLE} along an axis')
    return {
        a: Resized(shape[a], int(w), float(s), float(low), float(high))
        for a, w, s, low, high in zip(axes, wanted, scales, *region, strict=True)
    }


def _kept_aspect(node: NodeReader, shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    policy = node.text(
        'keep_aspect_ratio_policy', 'stretch', ('stretch', 'not_larger', 'not_smaller')
    )
    if policy == 'stretch':
        return list(sizes)
    shares = [size / max(1, have) for size, have in zip(sizes, shape, strict=True)]
    scale = min(shares) if policy == 'not_larger' else max(shares)
    return [math.floor(scale * have + 0.5) for have in shape]


def _nearest(node: NodeReader, x: Result, axes: dict[int, Resized], where: str) -> Result:
    rounding = node.text('nearest_mode', 'round_prefer_floor', tuple(ROUNDINGS))
    if not axes:
        return x
    places = {i: axis.nearest(where, rounding) for i, axis in axes.items()}
    return compute(nearest(x.shape, places, x.dtype), {'In': x})


def _interpolate(
    node: NodeReader, x: Result, i: int, axis: Resized, mode: str, where: str
) -> Result:
    places, weights = axis.neighbours(
        where, mode, cubic_a=node.float('cubic_coeff_a', -0.75),
        antialias=bool(node.int('antialias', 0)),
        exclude_outside=bool(node.int('exclude_outside', 0)),
    )  # fmt: skip
    check_table(places.size)
    group = interpolate(mode, x.shape, i, places, x.dtype)
    return compute(group, {'In': x, 'Weight': known(weights, x.dtype)})


def _outside(node: NodeReader, result: Result, axes: dict[int, Resized], where: str) -> Result:
    """What was cropped from beyond the input has a value of its own."""
    if where != 'tf_crop_and_resize':
        return result
    value = const(node.float('extrapolation_value', 0.0))
    for i, axis in axes.items():
        at = axis.coordinates(where)
        outside = (at < 0) | (at > axis.size - 1)
        if outside.any():
            shape = [axis.out if d == i else 1 for d in range(len(result.shape))]
            mask = view(known(outside, 'bool'), shape)
            expr = call('where', read(1), value, read(0))
            result = pointwise('outside', expr, [result, mask], result.dtype)
    return result


OPERATORS: dict[str, Operator] = {
    'Resize': Operator(_resize, ANY, (1, 2, 3)),
}
