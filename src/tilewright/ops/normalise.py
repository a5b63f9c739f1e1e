"""Normalisations: operators that are no single nest, as several stages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Stage, affine, call, const, read, var


def lrn(
    *, n: int = 1, c: int, h: int, w: int, size: int = 5, alpha: float = 1e-4, beta: float = 0.75,
    k: float = 1.0,
) -> Group:  # fmt: skip
    """Local response normalisation across channels (AlexNet Sec. 3.3, scaled as ONNX and Caffe do).

    Sum[n, c, h, w] += In[n, c + j - (size - 1) / 2, h, w]^2   over `size` channels
    Out = In * (k + alpha / size * Sum)^-beta
    """
    size, taps = _whole('size', size, 1), Dim('j', _whole('size', size, 1), 'reduction')
    shape = tuple(_whole(name, v, 1) for name, v in zip('nchw', (n, c, h, w), strict=True))
    dims = tuple(Dim(d, extent) for d, extent in zip('nchw', shape, strict=True))
    here = tuple(var(d.name) for d in dims)
    channel = affine(('c', 1), ('j', 1), const=-((size - 1) // 2))
    squares = Stage(
        'squares',
        (*dims, taps),
        Access('Sum', here),
        (Access('In', (var('n'), channel, var('h'), var('w'))),),
        call('mul', read(0), read(0)),
        'sum',
    )
    base = call('add', const(k), call('mul', const(alpha / size), read(0)))
    scale = Stage(
        'scale', dims, Access('Out', here), (Access('Sum', here), Access('In', here)),
        call('mul', read(1), call('pow', base, const(-beta))),
    )  # fmt: skip
    names = ('n', 'c', 'h', 'w')
    tensors = (
        Tensor('In', names, shape),
        Tensor('Sum', names, shape, 'inner'),
        Tensor('Out', names, shape, 'output'),
    )
    label = f'lrn-n{n}c{c}h{h}w{w}size{size}a{alpha:g}b{beta:g}k{k:g}'
    return Group(label, tensors, (squares, scale), (('Sum', 'register'),))


def softmax(*, shape: Sequence[int], axis: int = 1, dims: Sequence[str] | None = None) -> Group:
    """exp(In - Peak) / Total along an axis, its maximum taken off first, in three stages.

    `dims` names the dimensions; 'd0', 'd1', .. if not given.
    """
    sizes = tuple(_whole('a size', size, 1) for size in shape)
    if not 0 <= axis < len(sizes):
        raise SpecError(f'softmax along axis {axis} of {len(sizes)} dimensions; count from 0')
    names = tuple(dims) if dims is not None else tuple(f'd{i}' for i in range(len(sizes)))
    if len(names) != len(sizes):
        raise SpecError(f'softmax: {names} names {len(names)} of {len(sizes)} dimensions')
    along = names[axis]
    flat = [Dim(d, size) for d, size in zip(names, sizes, strict=True)]
    # One value for each line; a single line has a dimension of one point to stand in.
    lines = [d for d in flat if d.name != along] or [Dim('line', 1)]
    reduced = (*lines, Dim(along, sizes[axis], 'reduction'))
    everywhere, line = tuple(map(var, names)), tuple(var(d.name) for d in lines)
    shifted = call('exp', call('sub', read(0), read(1)))
    peak = Stage(
        'peak', reduced, Access('Peak', line), (Access('In', everywhere),), read(0), 'max',
        -math.inf,
    )  # fmt: skip
    total = Stage(
        'total', reduced, Access('Total', line),
        (Access('In', everywhere), Access('Peak', line)), shifted, 'sum',
    )  # fmt: skip
    read_line = line if len(sizes) > 1 else (affine(),)
    divide = Stage(
        'divide', tuple(flat), Access('Out', everywhere),
        (Access('In', everywhere), Access('Peak', read_line), Access('Total', read_line)),
        call('div', shifted, read(2)),
    )  # fmt: skip
    lengths = tuple(d.size for d in lines)
    tensors = (
        Tensor('In', names, sizes),
        *(Tensor(t, tuple(d.name for d in lines), lengths, 'inner') for t in ('Peak', 'Total')),
        Tensor('Out', names, sizes, 'output'),
    )
    label = f'softmax-{"x".join(map(str, sizes))}@{axis}'
    return Group(label, tensors, (peak, total, divide))
