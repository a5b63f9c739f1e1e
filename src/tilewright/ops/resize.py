"""Resizing: every axis by itself, each result a weighted sum of a few elements.

    nearest   Out[.., i, ..] = In[.., position[i], ..]
    others    Out[.., i, ..] = sum over t of In[.., position[i, t], ..] * Weight[i, t]

Goes in: for every axis its `Taps`, which `taps` makes from the attributes of ONNX's Resize. Comes
out: a group with one stage for each axis that changes; the weights are constants named W0, W1, ..
by axis. Positions are tables, computed ahead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Stage, Table, access, affine, call, read, var

COORDINATES = (
    'half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric',
    'tf_crop_and_resize',
)  # fmt: skip
NEAREST = ('round_prefer_floor', 'round_prefer_ceil', 'floor', 'ceil')


@dataclass(frozen=True, slots=True)
class Taps:
    """One axis: which elements every result is made of, and how much of each.

    positions  [results][taps]; weights: the same shape, or None where there is one tap of weight 1
    """

    positions: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...] | None = None

    @property
    def size(self) -> int:
        return len(self.positions)

    @property
    def count(self) -> int:
        return len(self.positions[0])


def taps(
    size: int,
    out: int,
    scale: float | None = None,
    *,
    mode: str = 'nearest',
    coordinate: str = 'half_pixel',
    nearest: str = 'round_prefer_floor',
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: tuple[float, float] = (0.0, 1.0),
    extrapolation: float | None = None,
) -> Taps:
    """The taps of one axis, from the attributes of ONNX's Resize.

    scale          results for each element; out / size where not given
    extrapolation  with 'tf_crop_and_resize': results outside the image have no taps inside it, so
                   that they read a border (position -1)
    """
    size, out = _whole('size', size, 1), _whole('out', out, 1)
    ratio = out / size if scale is None else float(scale)
    if not ratio > 0 or not math.isfinite(ratio):
        raise SpecError(f'scale is {ratio}; it must be positive')
    if mode not in ('nearest', 'linear', 'cubic'):
        raise SpecError(f"resizing is 'nearest', 'linear' or 'cubic', not {mode!r}")
    at = _coordinates(size, out, ratio, coordinate, roi)
    outside = np.zeros(out, bool)
    if coordinate == 'tf_crop_and_resize' and extrapolation is not None:
        outside = (at < 0) | (at > size - 1)
    if mode == 'nearest':
        chosen = np.clip(_nearest(at, nearest), 0, size - 1)
        return Taps(tuple((-1 if o else int(i),) for i, o in zip(chosen, outside, strict=True)))
    positions, weights = _weighted(at, ratio, mode, cubic_a, antialias)
    if exclude_outside:
        weights = np.where((positions < 0) | (positions >= size), 0.0, weights)
        weights = weights / weights.sum(1, keepdims=True)
    positions = np.clip(positions, 0, size - 1)
    positions[outside] = -1
    weights[outside] = 1.0 / weights.shape[1]
    return Taps(
        tuple(tuple(map(int, row)) for row in positions),
        tuple(tuple(map(float, row)) for row in weights),
    )


def _coordinates(
    size: int, out: int, scale: float, mode: str, roi: tuple[float, float]
) -> np.ndarray:
    """Where each result lies among the elements."""
    x = np.arange(out, dtype=np.float64)
    if mode == 'half_pixel':
        return (x + 0.5) / scale - 0.5
    if mode == 'half_pixel_symmetric':
        adjustment = out / (scale * size)
        return size / 2 * (1 - adjustment) + (x + 0.5) / scale - 0.5
    if mode == 'pytorch_half_pixel':
        return (x + 0.5) / scale - 0.5 if out > 1 else np.full(1, -0.5)
    if mode == 'align_corners':
        # The scale that is given counts, and need not be whole.
        length = scale * size
        return x * (size - 1) / (length - 1) if length != 1 else np.zeros(out)
    if mode == 'asymmetric':
        return x / scale
    if mode == 'tf_crop_and_resize':
        low, high = roi
        if out == 1:
            return np.full(1, 0.5 * (low + high) * (size - 1))
        return low * (size - 1) + x * (high - low) * (size - 1) / (out - 1)
    raise SpecError(f'coordinates {mode!r} are not known; use one of {", ".join(COORDINATES)}')


def _nearest(at: np.ndarray, mode: str) -> np.ndarray:
    if mode == 'round_prefer_floor':
        return np.ceil(at - 0.5)
    if mode == 'round_prefer_ceil':
        return np.floor(at + 0.5)
    if mode == 'floor':
        return np.floor(at)
    if mode == 'ceil':
        return np.ceil(at)
    raise SpecError(f'nearest {mode!r} is not known; use one of {", ".join(NEAREST)}')


def _weighted(
    at: np.ndarray, scale: float, mode: str, cubic_a: float, antialias: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(positions, weights) of [results][taps]; positions may be outside.

    When an image shrinks and `antialias` is set, filters are as much wider (Pillow's way).
    """
    stretch = min(scale, 1.0) if antialias else 1.0
    reach = {'linear': 1, 'cubic': 2}[mode] / stretch
    last = math.ceil(reach)
    offsets = np.arange(1 - last, last + 1)
    base = np.floor(at)
    rest = at - base
    distance = np.abs(offsets[None, :] - rest[:, None]) * stretch
    weights = _filter(distance, mode, cubic_a)
    if antialias:
        weights = weights / weights.sum(1, keepdims=True)
    used = weights.any(0)
    positions = base[:, None].astype(np.int64) + offsets[None, :]
    return positions[:, used], weights[:, used]


def _filter(x: np.ndarray, mode: str, a: float) -> np.ndarray:
    """Weights by distance (Keys, 1981, for the cubic ones)."""
    if mode == 'linear':
        return np.clip(1.0 - x, 0.0, None)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def resize(
    shape: Sequence[int], axes: Sequence[Taps | None], *, extrapolation: float = 0.0,
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Out: In with every axis resized that has taps. Weights are constants W0, W1, .. by axis."""
    sizes = tuple(_whole('a size', size, 1) for size in shape)
    if len(axes) != len(sizes):
        raise SpecError(
            f'{len(axes)} axes for a tensor of {len(sizes)}; give None for unchanged ones'
        )
    plain = {
        axis: Table(tuple(p[0] for p in item.positions), var(f'd{axis}'))
        for axis, item in enumerate(axes)
        if item is not None and item.weights is None
    }
    mixed = [axis for axis, item in enumerate(axes) if item is not None and item.weights]
    label = f'resize-{"x".join(map(str, sizes))}'
    label += f'to{"x".join(str(t.size if t else s) for t, s in zip(axes, sizes, strict=True))}'
    names = tuple(f'd{i}' for i in range(len(sizes)))
    stages, tensors = [], [Tensor('In', names, sizes, dtype=dtype)]
    source, now = 'In', list(sizes)
    steps: list[int | None] = [*mixed] or [None]
    for number, axis in enumerate(steps):
        # Outer axes first: their sums run along rows. Whatever is only chosen goes with the first.
        chosen = plain if number == 0 else {}
        for other, table in chosen.items():
            now[other] = len(table.values)
        places = [chosen.get(i, var(n)) for i, n in enumerate(names)]
        reads, expr, over = [], read(0), ()
        if axis is not None:
            item = axes[axis]
            assert item is not None
            assert item.weights is not None
            now[axis] = item.size
            flat = tuple(p for row in item.positions for p in row)
            places[axis] = Table(flat, affine((f'd{axis}', item.count), ('t', 1)))
            reads = [Access(f'W{axis}', (var(f'd{axis}'), var('t')))]
            expr, over = call('mul', read(0), read(1)), (Dim('t', item.count, 'reduction'),)
            tensors.append(
                Tensor(f'W{axis}', (f'd{axis}', 't'), (item.size, item.count), 'constant', dtype)
            )
        last = number + 1 == len(steps)
        out = 'Out' if last else f'Acc{number}'
        dims = tuple(Dim(n, s) for n, s in zip(names, now, strict=True))
        stages.append(
            Stage(
                f'resize{number}',
                (*dims, *over),
                Access(out, tuple(map(var, names))),
                (access(source, *places), *reads),
                expr,
                'sum' if over else None,
                extrapolation,
            )
        )
        tensors.append(Tensor(out, names, tuple(now), 'output' if last else 'inner', dtype))
        source = out
    return Group(label if dtype == 'f32' else f'{label}:{dtype}', tuple(tensors), tuple(stages))


def resize_weights(axes: Sequence[Taps | None]) -> dict[str, np.ndarray]:
    """The constants of `resize`, by name, in float64."""
    return {
        f'W{axis}': np.array(item.weights)
        for axis, item in enumerate(axes)
        if item is not None and item.weights
    }
