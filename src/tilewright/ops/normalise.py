"""Normalisations: operators that are no single nest, as several stages."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Expr, Stage, affine, call, const, read, var


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


def softmax(
    *, shape: Sequence[int], axis: int = 1, dims: Sequence[str] | None = None, dtype: str = 'f32'
) -> Group:
    """exp(In - Peak) / Total along an axis, its maximum taken off first, in three stages.

    `dims` names the dimensions; 'd0', 'd1', .. if not given.
    """
    shifted = call('exp', call('sub', read(0), read(1)))
    return _along('softmax', shape, axis, dims, dtype, 'divide', call('div', shifted, read(2)))


def log_softmax(
    *, shape: Sequence[int], axis: int = 1, dims: Sequence[str] | None = None, dtype: str = 'f32'
) -> Group:
    """In - Peak - log(Total) along an axis, in three stages."""
    last = call('sub', call('sub', read(0), read(1)), call('log', read(2)))
    return _along('logsoftmax', shape, axis, dims, dtype, 'subtract', last)


def _along(
    word: str, shape: Sequence[int], axis: int, dims: Sequence[str] | None, dtype: str,
    last: str, expr: Expr,
) -> Group:  # fmt: skip
    """Peak and Total = sum of exp(In - Peak) of every line, then `expr` of In and both."""
    sizes = tuple(_whole('a size', size, 1) for size in shape)
    if not 0 <= axis < len(sizes):
        raise SpecError(f'{word} along axis {axis} of {len(sizes)} dimensions; count from 0')
    names = tuple(dims) if dims is not None else tuple(f'd{i}' for i in range(len(sizes)))
    if len(names) != len(sizes):
        raise SpecError(f'{word}: {names} names {len(names)} of {len(sizes)} dimensions')
    along = names[axis]
    flat = [Dim(d, size) for d, size in zip(names, sizes, strict=True)]
    # One value for each line; a single line has a dimension of one point to stand in.
    lines = [d for d in flat if d.name != along] or [Dim('line', 1)]
    reduced = (*lines, Dim(along, sizes[axis], 'reduction'))
    everywhere, line = tuple(map(var, names)), tuple(var(d.name) for d in lines)
    peak = Stage(
        'peak', reduced, Access('Peak', line), (Access('In', everywhere),), read(0), 'max',
        -math.inf,
    )  # fmt: skip
    total = Stage(
        'total', reduced, Access('Total', line), (Access('In', everywhere), Access('Peak', line)),
        call('exp', call('sub', read(0), read(1))), 'sum',
    )  # fmt: skip
    read_line = line if len(sizes) > 1 else (affine(),)
    finish = Stage(
        last, tuple(flat), Access('Out', everywhere),
        (Access('In', everywhere), Access('Peak', read_line), Access('Total', read_line)), expr,
    )  # fmt: skip
    lengths = tuple(d.size for d in lines)
    inner = tuple(d.name for d in lines)
    tensors = (
        Tensor('In', names, sizes, dtype=dtype),
        *(Tensor(t, inner, lengths, 'inner', dtype) for t in ('Peak', 'Total')),
        Tensor('Out', names, sizes, 'output', dtype),
    )
    label = f'{word}-{"x".join(map(str, sizes))}@{axis}'
    return Group(label if dtype == 'f32' else f'{label}:{dtype}', tensors, (peak, total, finish))
