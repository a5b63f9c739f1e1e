"""Resize: nearest elements by tables of positions, others as sums of weighted neighbours.

The standard's interpolations are separable, so every axis that changes is one stage,

    Out[.., o, ..] += In[.., place[o, j], ..] * Weight[o, j]      over J neighbours

and linear, cubic, and their antialiased forms differ in places and weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import build, gather, label_of, names_of, pointwise
from tilewright.graph.lowering.given import ANY, Given, Operator, axis_of
from tilewright.graph.lowering.moving import table
from tilewright.graph.lowering.result import (
    Result,
    Unsupported,
    check_elements,
    filled,
    known,
    view,
)
from tilewright.ops.stage import (
    MAX_TABLE,
    Access,
    Dim,
    Stage,
    Table,
    access,
    affine,
    call,
    const,
    read,
    var,
)

COORDINATES = (
    'half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric',
    'tf_crop_and_resize', 'tf_half_pixel_for_nn',
)  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """One axis: `size` elements become `out`; scale as given, region of interest as shares."""

    size: int
    out: int
    scale: float
    start: float
    end: float

    def coordinates(self, mode: str) -> np.ndarray:
        """Where in the input every output lies."""
        x = np.arange(self.out, dtype=np.float64)
        if mode == 'align_corners':
            width = self.scale * self.size
            return np.zeros(1) if width == 1 else x * (self.size - 1) / (width - 1)
        if mode == 'asymmetric':
            return x / self.scale
        if mode == 'tf_half_pixel_for_nn':
            return (x + 0.5) / self.scale
        if mode == 'pytorch_half_pixel' and self.out == 1:
            return np.zeros(1)
        if mode == 'tf_crop_and_resize':
            if self.out == 1:
                return np.full(1, (self.end - self.start) * (self.size - 1) / 2)
            step = (self.end - self.start) * (self.size - 1) / (self.out - 1)
            return self.start * (self.size - 1) + x * step
        moved = (x + 0.5) / self.scale - 0.5
        if mode == 'half_pixel_symmetric':
            # Keeps the centre where the output is not exactly as long as the scale says.
            adjustment = self.out / (self.scale * self.size)
            moved += self.size / 2 * (1 - adjustment)
        return moved


def _resize(given: Given) -> Result:
    x, mode = given.input(0), given.text('mode', 'nearest', ('nearest', 'linear', 'cubic'))
    where = given.text('coordinate_transformation_mode', 'half_pixel', COORDINATES)
    axes = _axes(given, x.shape, where)
    shape = [axes[i].out if i in axes else size for i, size in enumerate(x.shape)]
    check_elements(shape, 'the result')
    if 0 in shape or 0 in x.shape:
        return filled(shape, 0, x.dtype)
    changed = {
        i: axis for i, axis in axes.items()
        if (axis.size, axis.scale) != (axis.out, 1.0) or where == 'tf_crop_and_resize'
    }  # fmt: skip
    if mode == 'nearest':
        result = _nearest(given, x, changed, where)
    elif x.dtype not in ('f32', 'f64'):
        raise Unsupported(f'with mode {mode!r} of {x.dtype}')
    else:
        result = x
        for i, axis in changed.items():
            result = _interpolate(given, result, i, axis, mode, where)
    return _outside(given, result, changed, where)


def _axes(given: Given, shape: Sequence[int], where: str) -> dict[int, _Axis]:
    """The axes that scales or sizes name, with their new sizes."""
    rank = len(shape)
    named = given.node.attributes.get('axes', tuple(range(rank)))
    if not isinstance(named, tuple):
        raise ModelError(f'its axes are {named!r}; they must be whole numbers')
    axes = [axis_of(int(a), rank) for a in named]
    scales = given.array(2).astype(float).ravel() if given.has(2) else np.zeros(0)
    sizes = given.whole_numbers(3) if given.has(3) else ()
    if len(sizes or scales) != len(axes) or (scales.size and not (scales > 0).all()):
        raise ModelError(
            f'it needs {len(axes)} scales above 0 or as many sizes; it has {scales.tolist()} and '
            f'{list(sizes)}'
        )
    region = np.tile([[0.0], [1.0]], len(axes))
    if where == 'tf_crop_and_resize':
        region = given.array(1).astype(float).reshape(2, -1)
        if region.shape[1] != len(axes):
            raise ModelError(f'its region has {region.size} numbers, not {2 * len(axes)}')
    if sizes:
        wanted = _kept_aspect(given, [shape[a] for a in axes], sizes)
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
        a: _Axis(shape[a], int(w), float(s), float(low), float(high))
        for a, w, s, low, high in zip(axes, wanted, scales, *region, strict=True)
    }


def _kept_aspect(given: Given, shape: Sequence[int], sizes: Sequence[int]) -> list[int]:
    policy = given.text(
        'keep_aspect_ratio_policy', 'stretch', ('stretch', 'not_larger', 'not_smaller')
    )
    if policy == 'stretch':
        return list(sizes)
    shares = [size / max(1, have) for size, have in zip(sizes, shape, strict=True)]
    scale = min(shares) if policy == 'not_larger' else max(shares)
    return [math.floor(scale * have + 0.5) for have in shape]


def _nearest(given: Given, x: Result, axes: dict[int, _Axis], where: str) -> Result:
    mode = given.text(
        'nearest_mode', 'round_prefer_floor',
        ('round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil'),
    )  # fmt: skip
    if not axes:
        return x
    names, places, sizes = names_of(x.shape), [], {}
    for i, name in enumerate(names):
        sizes[name] = axes[i].out if i in axes else x.shape[i]
        if i not in axes:
            places.append(var(name))
            continue
        at = axes[i].coordinates(where)
        rounded = {
            'round_prefer_floor': lambda at: np.ceil(at - 0.5),
            'round_prefer_ceil': lambda at: np.floor(at + 0.5),
            'floor': np.floor,
            'ceil': np.ceil,
        }[mode](at)
        places.append(table(np.clip(rounded, 0, x.shape[i] - 1).astype(int).tolist(), name))
    return gather('nearest', x, places, sizes)


def _interpolate(given: Given, x: Result, i: int, axis: _Axis, mode: str, where: str) -> Result:
    places, weights = _neighbours(given, axis, mode, where)
    count = weights.shape[1]
    if places.size > MAX_TABLE:
        raise Unsupported(f'over {places.size} positions of one axis, of at most {MAX_TABLE}')
    names = names_of(x.shape)
    along = names[i]
    sizes = [axis.out if d == along else s for d, s in zip(names, x.shape, strict=True)]
    picked = Table(tuple(places.ravel().tolist()), affine((along, count), ('j', 1)))
    at = access('In', *(picked if d == along else var(d) for d in names))
    dims = tuple(Dim(d, s) for d, s in zip(names, sizes, strict=True))
    stage = Stage(
        'interpolate', (*dims, Dim('j', count, 'reduction')), Access('Out', tuple(map(var, names))),
        (at, Access('Weight', (var(along), var('j')))), call('mul', read(0), read(1)), 'sum',
    )  # fmt: skip
    label = f'{label_of(mode, x.shape)}to{axis.out}@{i}'
    operands = {'In': x, 'Weight': known(weights, x.dtype)}
    return build(label, operands, [stage], x.dtype)


def _neighbours(given: Given, axis: _Axis, mode: str, where: str) -> tuple[np.ndarray, np.ndarray]:
    """[out, J] places in the input, and their weights."""
    at = axis.coordinates(where)
    # An antialiasing filter is stretched until it covers what an output stands for.
    stretch = max(1.0, 1.0 / axis.scale) if given.int('antialias', 0) else 1.0
    reach = (1 if mode == 'linear' else 2) * stretch
    first = np.floor(at - reach).astype(int) + 1
    count = math.ceil(2 * reach) + (stretch > 1)
    places = first[:, None] + np.arange(count)
    distance = np.abs(places - at[:, None]) / stretch
    if mode == 'linear':
        weights = np.maximum(0.0, 1.0 - distance)
    else:
        weights = _cubic(distance, given.float('cubic_coeff_a', -0.75))
    if stretch > 1:
        weights /= weights.sum(1, keepdims=True)
    inside = (places >= 0) & (places < axis.size)
    if given.int('exclude_outside', 0):
        weights = np.where(inside, weights, 0.0)
        weights /= weights.sum(1, keepdims=True)
    return np.clip(places, 0, axis.size - 1), weights


def _cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel, Eq. 4 of the paper the standard cites."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _outside(given: Given, result: Result, axes: dict[int, _Axis], where: str) -> Result:
    """What was cropped from beyond the input has a value of its own."""
    if where != 'tf_crop_and_resize':
        return result
    value = const(given.float('extrapolation_value', 0.0))
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
