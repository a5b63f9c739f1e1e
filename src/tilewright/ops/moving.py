"""Operators that move elements and compute nothing: other orders, slices, borders, gathering.

Each is one stage that reads its input at other indices than it writes. Where an index is not an
affine function (steps backwards, reflected borders), it is a table; where a tensor holds it, it is
a lookup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.errors import SpecError
from tilewright.ops.describe import Shape, group_of, label_of, names_of
from tilewright.ops.group import Group
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Lookup,
    Stage,
    Table,
    access,
    affine,
    read,
    var,
)

BORDERS = ('constant', 'reflect', 'edge', 'wrap')


def move(
    word: str,
    shape: Shape,
    index: Sequence[Affine | Table],
    sizes: Mapping[str, int],
    *,
    pad_value: float = 0.0,
    write: Sequence[Affine] | None = None,
    dtype: str = 'f32',
) -> Group:
    """Out[d0, d1, ..] = In[index], over the dimensions that `sizes` names, in its order."""
    target = tuple(write) if write is not None else tuple(map(var, sizes))
    stage = Stage(
        word, _domain(sizes), Access('Out', target), (access('In', *index),), read(0), None,
        pad_value,
    )  # fmt: skip
    return group_of(label_of(word, shape), [stage], {'In': shape}, dtype)


def _domain(sizes: Mapping[str, int]) -> tuple[Dim, ...]:
    return tuple(Dim(name, size) for name, size in sizes.items())


def positions(places: Sequence[int] | np.ndarray, name: str) -> Table:
    """The index of an axis whose positions are listed."""
    return Table(tuple(int(p) for p in places), var(name))


def transpose(shape: Shape, order: Sequence[int], dtype: str = 'f32') -> Group:
    """Another layout: dimension i of Out is dimension order[i] of In (NCHW to NHWC: 0, 2, 3, 1)."""
    if sorted(order) != list(range(len(shape))):
        raise SpecError(f'order {tuple(order)} must name each of {len(shape)} dimensions once')
    names = names_of(shape)
    sizes = {names[i]: shape[i] for i in order}
    return move('transpose', shape, [var(name) for name in names], sizes, dtype=dtype)


def slices(shape: Shape, kept: Mapping[int, range], dtype: str = 'f32') -> Group:
    """The elements at these positions of some axes; steps may be negative."""
    places: list[Affine | Table] = []
    sizes = {}
    for axis, name in enumerate(names_of(shape)):
        chosen = kept.get(axis, range(shape[axis]))
        sizes[name] = len(chosen)
        if chosen.step > 0 or len(chosen) == 1:
            places.append(affine((name, max(chosen.step, 1)), const=chosen[0]))
        else:
            places.append(positions(chosen, name))
    return move('slice', shape, places, sizes, dtype=dtype)


def pad(
    shape: Shape,
    around: Mapping[int, tuple[int, int]],
    mode: str = 'constant',
    value: float = 0.0,
    dtype: str = 'f32',
) -> Group:
    """So many elements before and after, along some axes; negative ones are cut away.

    mode  'constant': `value`; 'reflect': mirrored, the border not twice; 'edge': the border again;
          'wrap': from the other side
    """
    if mode not in BORDERS:
        raise SpecError(f'border {mode!r} is not known; use one of {", ".join(BORDERS)}')
    places, sizes = [], {}
    for axis, name in enumerate(names_of(shape)):
        before, after = around.get(axis, (0, 0))
        sizes[name] = shape[axis] + before + after
        if mode == 'constant' or not (before or after):
            places.append(affine((name, 1), const=-before))
        else:
            places.append(positions(bordered(shape[axis], before, after, mode), name))
    return move('pad', shape, places, sizes, pad_value=value, dtype=dtype)


def bordered(size: int, before: int, after: int, mode: str) -> np.ndarray:
    """Where the elements of a padded axis come from."""
    kept = np.arange(max(0, -before), size - max(0, -after))
    if not kept.size:
        raise SpecError(f'an axis of {size} cut by {before} and {after} has nothing to repeat')
    pads = (max(0, before), max(0, after))
    return np.pad(kept, pads, mode='edge' if mode == 'reflect' and size == 1 else mode)  # pyright: ignore


def tile(shape: Shape, repeats: Sequence[int], dtype: str = 'f32') -> Group:
    """In so many times along every axis."""
    sizes, write = {}, []
    for axis, (size, repeat) in enumerate(zip(shape, repeats, strict=True)):
        if repeat > 1:
            sizes[f'r{axis}'] = repeat
        sizes[f'd{axis}'] = size
        turns = ((f'r{axis}', size),) if repeat > 1 else ()
        write.append(affine(*turns, (f'd{axis}', 1)))
    index = [var(f'd{i}') for i in range(len(shape))]
    return move('tile', shape, index, sizes, write=write, dtype=dtype)


def take(shape: Shape, places: Sequence[int] | np.ndarray, dtype: str = 'f32') -> Group:
    """[before, rows, after]: the rows at positions that are known now."""
    sizes = {'b': shape[0], 'j': len(places), 'a': shape[2]}
    index = [var('b'), positions(places, 'j'), var('a')]
    return move('gather', shape, index, sizes, dtype=dtype)


def gather(shape: Shape, count: int, dtype: str = 'f32', index_dtype: str = 'i64') -> Group:
    """[before, rows, after] or [rows, after]: the rows at `count` positions that the tensor Indices
    holds.
    """
    before = {'b': shape[0]} if len(shape) == 3 else {}
    sizes = {**before, 'j': count, 'a': shape[-1]}
    looked = access('In', *map(var, before), Lookup(1), var('a'))
    return _looked_up(
        'gather', shape, (count,), sizes, (looked, Access('Indices', (var('j'),))), dtype,
        index_dtype,
    )  # fmt: skip


def gather_elements(
    shape: Shape, axis: int, index_shape: Shape, dtype: str = 'f32', index_dtype: str = 'i64'
) -> Group:
    """Out[i, j, k] = In[Indices[i, j, k], j, k], where the axis is the first."""
    names = [f'd{i}' for i in range(len(shape))]
    here = tuple(map(var, names))
    looked = access('In', *(Lookup(1) if i == axis else at for i, at in enumerate(here)))
    return _looked_up(
        'gather_elements', shape, index_shape, dict(zip(names, index_shape, strict=True)),
        (looked, Access('Indices', here)), dtype, index_dtype,
    )  # fmt: skip


def gather_nd(
    shape: Shape, index_shape: Shape, dtype: str = 'f32', index_dtype: str = 'i64'
) -> Group:
    """Out[b, j, a] = In[b, Indices[b, j, 0], Indices[b, j, 1], .., a]."""
    batch, count, width = index_shape
    looked = access('In', var('b'), *(Lookup(1 + i) for i in range(width)), var('a'))
    picks = [Access('Indices', (var('b'), var('j'), affine(const=i))) for i in range(width)]
    sizes = {'b': batch, 'j': count, 'a': shape[-1]}
    return _looked_up('gather_nd', shape, index_shape, sizes, (looked, *picks), dtype, index_dtype)


def _looked_up(
    word: str, shape: Shape, index_shape: Shape, sizes: Mapping[str, int],
    reads: tuple[Access, ...], dtype: str, index_dtype: str,
) -> Group:  # fmt: skip
    stage = Stage(word, _domain(sizes), Access('Out', tuple(map(var, sizes))), reads, read(0))
    return group_of(
        label_of(word, shape, index_shape), [stage], {'In': shape, 'Indices': index_shape}, dtype,
        {'Indices': index_dtype},
    )  # fmt: skip
