"""Resizing: nearest elements by tables of positions, others as sums of weighted neighbours.

The standard's interpolations are separable, so every axis that changes is one stage,

    Out[.., o, ..] += In[.., place[o, j], ..] * Weight[o, j]      over J neighbours

and linear, cubic, and their antialiased forms differ in places and weights alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.ops.describe import Shape, group_of, label_of, names_of
from tilewright.ops.group import Group
from tilewright.ops.moving import move, positions
from tilewright.ops.stage import Access, Dim, Stage, Table, access, affine, call, read, var

COORDINATES = (
    'half_pixel', 'half_pixel_symmetric', 'pytorch_half_pixel', 'align_corners', 'asymmetric',
    'tf_crop_and_resize', 'tf_half_pixel_for_nn',
)  # fmt: skip
ROUNDINGS = {
    'round_prefer_floor': lambda at: np.ceil(at - 0.5),
    'round_prefer_ceil': lambda at: np.floor(at + 0.5),
    'floor': np.floor,
    'ceil': np.ceil,
}


@dataclass(frozen=True)
class Resized:
    """One axis: `size` elements become `out`; scale as given, region of interest as shares."""

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    def coordinates(self, mode: str) -> np.ndarray:
        """Where in the input every output lies; `mode` is one of `COORDINATES`."""
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

    def nearest(self, mode: str, rounding: str) -> np.ndarray:
        """The place of every output; `rounding` is one of `ROUNDINGS`."""
        rounded = ROUNDINGS[rounding](self.coordinates(mode))
        return np.clip(rounded, 0, self.size - 1).astype(int)

    def neighbours(
        self,
        mode: str,
        kind: str = 'linear',
        *,
        cubic_a: float = -0.75,
        antialias: bool = False,
        exclude_outside: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """[out, J] places in the input, and their weights; `kind` is 'linear' or 'cubic'."""
        at = self.coordinates(mode)
        # An antialiasing filter is stretched until it covers what an output stands for.
        stretch = max(1.0, 1.0 / self.scale) if antialias else 1.0
        reach = (1 if kind == 'linear' else 2) * stretch
        first = np.floor(at - reach).astype(int) + 1
        count = math.ceil(2 * reach) + (stretch > 1)
        places = first[:, None] + np.arange(count)
        distance = np.abs(places - at[:, None]) / stretch
        weights = np.maximum(0.0, 1.0 - distance) if kind == 'linear' else _keys(distance, cubic_a)
        if stretch > 1:
            weights /= weights.sum(1, keepdims=True)
        if exclude_outside:
            weights = np.where((places >= 0) & (places < self.size), weights, 0.0)
            weights /= weights.sum(1, keepdims=True)
        return np.clip(places, 0, self.size - 1), weights


def _keys(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel, Eq. 4 of the paper the standard cites."""
    d = distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def nearest(shape: Shape, places: Mapping[int, np.ndarray], dtype: str = 'f32') -> Group:
    """Out[i, ..] = In[places[0][i], ..], along the axes that have places."""
    index, sizes = [], {}
    for axis, name in enumerate(names_of(shape)):
        chosen = places.get(axis)
        sizes[name] = shape[axis] if chosen is None else len(chosen)
        index.append(var(name) if chosen is None else positions(chosen, name))
    return move('nearest', shape, index, sizes, dtype=dtype)


def interpolate(
    word: str, shape: Shape, axis: int, places: np.ndarray, dtype: str = 'f32'
) -> Group:
    """One axis by [out, J] places; the weights are the operand Weight, of the same shape."""
    out, count = places.shape
    names = names_of(shape)
    along = names[axis]
    picked = Table(tuple(places.ravel().tolist()), affine((along, count), ('j', 1)))
    dims = tuple(Dim(d, out if d == along else s) for d, s in zip(names, shape, strict=True))
    stage = Stage(
        'interpolate', (*dims, Dim('j', count, 'reduction')), Access('Out', tuple(map(var, names))),
        (access('In', *(picked if d == along else var(d) for d in names)),
         Access('Weight', (var(along), var('j')))),
        call('mul', read(0), read(1)), 'sum',
    )  # fmt: skip
    label = f'{label_of(word, shape)}to{out}@{axis}'
    return group_of(label, [stage], {'In': shape, 'Weight': places.shape}, dtype)
