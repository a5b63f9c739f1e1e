"""Operators that move elements and compute nothing: slices, borders, gathering, repeating.

Each is one stage that reads its input at other indices than it writes. Where an index is no affine
function (steps backwards, reflected borders), it is a table.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import (
    MAX_TABLE,
    Access,
    Affine,
    Dim,
    Lookup,
    Stage,
    Table,
    access,
    affine,
    literal,
    read,
    var,
)

Index = Affine | Table | Lookup
BORDERS = ('constant', 'reflect', 'edge', 'wrap')


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(_whole('a size', size, 1) for size in shape)


def _dims(sizes: Sequence[int], letter: str = 'd') -> tuple[Dim, ...]:
    return tuple(Dim(f'{letter}{i}', size) for i, size in enumerate(sizes))


def _text(sizes: Sequence[int]) -> str:
    return 'x'.join(map(str, sizes))


def _moved(
    word: str, label: str, shape: Sequence[int], out: Sequence[int], places: Sequence[Index],
    dtype: str, pad: float = 0.0, others: Sequence[tuple[Tensor, Access]] = (),
) -> Group:  # fmt: skip
    """Out[d0, d1, ..] = In[places]; further inputs are what lookups read."""
    dims = _dims(out)
    reads = (access('In', *places), *(a for _, a in others))
    stage = Stage(
        word, dims, Access('Out', tuple(var(d.name) for d in dims)), reads, read(0), pad_value=pad
    )
    tensors = (
        Tensor('In', tuple(f'a{i}' for i in range(len(shape))), tuple(shape), dtype=dtype),
        *(t for t, _ in others),
        Tensor('Out', tuple(d.name for d in dims), tuple(out), 'output', dtype),
    )
    return Group(label if dtype == 'f32' else f'{label}:{dtype}', tensors, (stage,))


def slice_(
    shape: Sequence[int], starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int], *,
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Out[i, ..] = In[start + i * step, ..]; steps may be negative, all of it lies inside In."""
    given, out = _sizes(shape), _sizes(sizes)
    places: list[Index] = []
    for axis, (first, step, size) in enumerate(zip(starts, steps, out, strict=True)):
        last = first + step * (size - 1)
        if not step or not (0 <= first < given[axis] and 0 <= last < given[axis]):
            raise SpecError(
                f'slice of axis {axis}: {size} elements from {first} by {step} are not inside '
                f'{given[axis]}; give positions in the tensor'
            )
        name = f'd{axis}'
        if size == 1:
            places.append(affine(const=first))
        elif step > 0:
            places.append(affine((name, step), const=first))
        elif size <= MAX_TABLE:
            places.append(Table(tuple(range(first, first + step * size, step)), var(name)))
        else:
            raise SpecError(f'axis {axis} is reversed and has {size} elements; {MAX_TABLE} at most')
    label = f'slice-{_text(given)}to{_text(out)}@{_text(starts)}s{_text(steps)}'
    return _moved('slice', label, given, out, places, dtype)


def pad(
    shape: Sequence[int], before: Sequence[int], after: Sequence[int], mode: str = 'constant',
    value: float = 0.0, *, dtype: str = 'f32',
) -> Group:  # fmt: skip
    """In with so many elements more on either side of every axis, or fewer (negative numbers).

    mode  'constant': `value`; 'reflect': mirrored, the border not twice; 'edge': the border again;
          'wrap': from the other side
    """
    given = _sizes(shape)
    if mode not in BORDERS:
        raise SpecError(f'border {mode!r} is not known; use one of {", ".join(BORDERS)}')
    out, places = [], []
    for axis, (size, low, high) in enumerate(zip(given, before, after, strict=True)):
        length = size + low + high
        if length < 1:
            raise SpecError(
                f'axis {axis}: {size} elements with borders of {low} and {high}: none left'
            )
        out.append(length)
        name = f'd{axis}'
        if (low <= 0 and high <= 0) or mode == 'constant':
            places.append(affine((name, 1), const=-low) if length > 1 else affine(const=-low))
        else:
            at = np.arange(-low, size + high)
            places.append(Table(tuple(int(i) for i in _bordered(at, size, mode)), var(name)))
    label = f'pad-{_text(given)}@{_text(before)},{_text(after)}{mode}{value:g}'
    return _moved('pad', label, given, out, places, dtype, value)


def _bordered(at: np.ndarray, size: int, mode: str) -> np.ndarray:
    """Positions outside an axis, by what stands for them."""
    if mode == 'edge':
        return np.clip(at, 0, size - 1)
    if mode == 'wrap' or size == 1:
        return at % size
    turned = at % (2 * size - 2)
    return np.where(turned < size, turned, 2 * size - 2 - turned)


def gather(
    shape: Sequence[int], axis: int, indices: np.ndarray | Sequence, *, dtype: str = 'f32'
) -> Group:
    """Out = numpy.take(In, indices, axis), with indices that are known now."""
    given, known = _sizes(shape), np.asarray(indices, np.int64)
    axis = _axis(axis, len(given))
    size = given[axis]
    if known.size and (known.min() < -size or known.max() >= size):
        raise SpecError(f'indices from {known.min()} to {known.max()} along an axis of {size}')
    flat = tuple(int(i) for i in (known % size).reshape(-1))
    out = (*given[:axis], *known.shape, *given[axis + 1 :])
    if not known.ndim:
        place: Index = affine(const=flat[0])
    else:
        steps = [math.prod(known.shape[i + 1 :]) for i in range(known.ndim)]
        terms = [(f'd{axis + i}', s) for i, s in enumerate(steps) if known.shape[i] > 1]
        place = Table(flat, affine(*terms))
    shift = known.ndim - 1
    places = [
        place if i == axis else var(f'd{i if i < axis else i + shift}') for i in range(len(given))
    ]
    label = f'gather-{_text(given)}@{axis}:{_text(known.shape)}:{_mark(flat)}'
    return _moved('gather', label, given, out, places, dtype)


def _mark(values: Sequence[int]) -> str:
    """A short name for numbers: themselves if there are few."""
    if len(values) <= 8:
        return ','.join(map(str, values))
    return f'{len(values)}from{values[0]}to{values[-1]}'


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise SpecError(f'axis {axis} is none of {rank}')
    return axis % rank


def gather_dynamic(
    shape: Sequence[int], axis: int, index_shape: Sequence[int], *, dtype: str = 'f32',
    index_dtype: str = 'i64',
) -> Group:  # fmt: skip
    """Out = numpy.take(In, Indices, axis); indices outside are brought to the nearest end."""
    given, chosen = _sizes(shape), _sizes(index_shape)
    axis = _axis(axis, len(given))
    out = (*given[:axis], *chosen, *given[axis + 1 :])
    shift = len(chosen) - 1
    places: list[Index] = [
        Lookup(1) if i == axis else var(f'd{i if i < axis else i + shift}')
        for i in range(len(given))
    ]
    own = tuple(var(f'd{axis + i}') for i in range(len(chosen)))
    indices = _index_tensor(chosen, index_dtype)
    label = f'gather-{_text(given)}@{axis}by{_text(chosen)}{index_dtype}'
    return _moved(
        'gather', label, given, out, places, dtype, others=[(indices, Access('Indices', own))]
    )


def _index_tensor(shape: tuple[int, ...], dtype: str) -> Tensor:
    return Tensor('Indices', tuple(f'i{n}' for n in range(len(shape))), shape, dtype=dtype)


def gather_elements(
    shape: Sequence[int], axis: int, index_shape: Sequence[int], *, dtype: str = 'f32',
    index_dtype: str = 'i64',
) -> Group:  # fmt: skip
    """Out[.., i, ..] = In[.., Indices[.., i, ..], ..], with the shape of Indices."""
    given, out = _sizes(shape), _sizes(index_shape)
    axis = _axis(axis, len(given))
    if len(out) != len(given) or any(
        o > s for n, (o, s) in enumerate(zip(out, given, strict=False)) if n != axis
    ):
        raise SpecError(f'indices of shape {out} do not fit into {given} beside axis {axis}')
    places: list[Index] = [Lookup(1) if i == axis else var(f'd{i}') for i in range(len(given))]
    own = Access('Indices', tuple(var(f'd{i}') for i in range(len(out))))
    label = f'gatherelements-{_text(given)}@{axis}by{_text(out)}{index_dtype}'
    return _moved(
        'gather', label, given, out, places, dtype, others=[(_index_tensor(out, index_dtype), own)]
    )


def gather_nd(
    shape: Sequence[int], index_shape: Sequence[int], *, batch_dims: int = 0, dtype: str = 'f32',
    index_dtype: str = 'i64',
) -> Group:  # fmt: skip
    """Out[b.., i.., s..] = In[b.., Indices[b.., i.., 0], Indices[b.., i.., 1], .., s..]."""
    given, chosen = _sizes(shape), _sizes(index_shape)
    depth, outer = chosen[-1], chosen[:-1]
    rest = given[batch_dims + depth :]
    if batch_dims + depth > len(given) or given[:batch_dims] != chosen[:batch_dims]:
        raise SpecError(f'indices {chosen} with {batch_dims} batch axes do not fit {given}')
    out = (*outer, *rest)
    places: list[Index] = [
        *(var(f'd{i}') for i in range(batch_dims)),
        *(Lookup(1 + i) for i in range(depth)),
        *(var(f'd{len(outer) + i}') for i in range(len(rest))),
    ]
    place = tuple(var(f'd{i}') for i in range(len(outer)))
    tensor = _index_tensor(chosen, index_dtype)
    dims = _dims(out)
    reads = (
        access('In', *places),
        *(Access('Indices', (*place, affine(const=i))) for i in range(depth)),
    )
    stage = Stage('gather', dims, Access('Out', tuple(var(d.name) for d in dims)), reads, read(0))
    tensors = (
        Tensor('In', tuple(f'a{i}' for i in range(len(given))), given, dtype=dtype),
        tensor,
        Tensor('Out', tuple(d.name for d in dims), out, 'output', dtype),
    )
    label = f'gathernd-{_text(given)}b{batch_dims}by{_text(chosen)}{index_dtype}:{dtype}'
    return Group(label, tensors, (stage,))


def expand(shape: Sequence[int], to: Sequence[int], *, dtype: str = 'f32') -> Group:
    """In broadcast to a shape, as in numpy."""
    given, out = _sizes(shape), _sizes(to)
    own = range(len(out) - len(given), len(out))
    if len(given) > len(out) or any(s not in (1, out[i]) for i, s in zip(own, given, strict=False)):
        raise SpecError(f'{given} cannot be broadcast to {out}')
    places = [var(f'd{i}') if s > 1 else Affine(()) for i, s in zip(own, given, strict=True)]
    return _moved('expand', f'expand-{_text(given)}to{_text(out)}', given, out, places, dtype)


def tile(shape: Sequence[int], repeats: Sequence[int], *, dtype: str = 'f32') -> Group:
    """In so many times along every axis."""
    given, counts = _sizes(shape), _sizes(repeats)
    out = tuple(s * r for s, r in zip(given, counts, strict=True))
    places: list[Index] = []
    for axis, (size, count) in enumerate(zip(given, counts, strict=True)):
        if size == 1:
            places.append(Affine(()))
        elif count == 1:
            places.append(var(f'd{axis}'))
        else:
            places.append(Table(tuple(range(size)) * count, var(f'd{axis}')))
    return _moved('tile', f'tile-{_text(given)}by{_text(counts)}', given, out, places, dtype)


def fill(shape: Sequence[int], value: float, *, dtype: str = 'f32') -> Group:
    """Out = value everywhere; no input."""
    sizes = _sizes(shape)
    dims = _dims(sizes)
    here = tuple(var(d.name) for d in dims)
    stage = Stage('fill', dims, Access('Out', here), (), literal(value, dtype))
    out = Tensor('Out', tuple(d.name for d in dims), sizes, 'output', dtype)
    return Group(f'fill-{_text(sizes)}={value:g}:{dtype}', (out,), (stage,))


def depth_to_space(
    shape: Sequence[int], block: int, mode: str = 'DCR', *, dtype: str = 'f32'
) -> Group:
    """Channels into blocks of pixels; 'DCR': blocks vary slowest among channels, 'CRD': fastest.

    The iterators are n, c, h, y, w, x with rows h * block + y and columns w * block + x.
    """
    n, depth, h, w = _four(shape)
    b = _whole('block', block, 1)
    if depth % (b * b) or mode not in ('DCR', 'CRD'):
        raise SpecError(f'{depth} channels into blocks of {b} x {b} by {mode!r}; use DCR or CRD')
    c = depth // (b * b)
    channel = (
        affine(('y', b * c), ('x', c), ('c', 1))
        if mode == 'DCR'
        else affine(('c', b * b), ('y', b), ('x', 1))
    )
    out = (var('n'), var('c'), affine(('h', b), ('y', 1)), affine(('w', b), ('x', 1)))
    return _blocks(
        f'depthtospace{mode}', (n, depth, h, w), (n, c, h * b, w * b), b,
        (var('n'), channel, var('h'), var('w')), out, (n, c, h, w), dtype,
    )  # fmt: skip


def space_to_depth(shape: Sequence[int], block: int, *, dtype: str = 'f32') -> Group:
    """Blocks of pixels into channels, blocks varying slowest among them."""
    n, c, high, wide = _four(shape)
    b = _whole('block', block, 1)
    if high % b or wide % b:
        raise SpecError(f'an image of {high} x {wide} cannot be cut into blocks of {b} x {b}')
    h, w = high // b, wide // b
    places = (var('n'), var('c'), affine(('h', b), ('y', 1)), affine(('w', b), ('x', 1)))
    out = (var('n'), affine(('y', b * c), ('x', c), ('c', 1)), var('h'), var('w'))
    return _blocks(
        'spacetodepth', (n, c, high, wide), (n, c * b * b, h, w), b, places, out, (n, c, h, w),
        dtype,
    )  # fmt: skip


def _four(shape: Sequence[int]) -> tuple[int, int, int, int]:
    if len(shape) != 4:
        raise SpecError(f'{tuple(shape)} is not [n, c, h, w]')
    n, c, h, w = _sizes(shape)
    return n, c, h, w


def _blocks(
    word: str, shape: tuple[int, ...], out: tuple[int, ...], block: int,
    places: tuple[Affine, ...], written: tuple[Affine, ...], image: tuple[int, ...], dtype: str,
) -> Group:  # fmt: skip
    sizes = dict(zip('nchw', image, strict=True)) | {'y': block, 'x': block}
    dims = tuple(Dim(name, sizes[name]) for name in 'nchywx')
    stage = Stage('blocks', dims, Access('Out', written), (Access('In', places),), read(0))
    names = ('n', 'c', 'h', 'w')
    tensors = (Tensor('In', names, shape, dtype=dtype), Tensor('Out', names, out, 'output', dtype))
    label = f'{word}-{_text(shape)}b{block}'
    return Group(label if dtype == 'f32' else f'{label}:{dtype}', tensors, (stage,))
