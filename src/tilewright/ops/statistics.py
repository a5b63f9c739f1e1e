"""Normalisations by mean and variance: of a batch (known), an instance, a group, a layer.

    Mean = sum of In / count;   Var = sum of (In - Mean)^2 / count
    Out  = (In - Mean) / sqrt(Var + eps) * Scale + Bias

The mean is taken off before squares are summed, as accuracy needs it; what is summed stays in the
first caches between the passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine, Dim, Expr, Stage, affine, call, const, read, var


def _sizes(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(_whole('a size', size, 1) for size in shape)


def _label(word: str, sizes: Sequence[int], *more: object) -> str:
    return '-'.join([word, 'x'.join(map(str, sizes)), *map(str, more)])


def batch_norm(shape: Sequence[int], eps: float = 1e-5, *, dtype: str = 'f32') -> Group:
    """Out = (In - Mean) / sqrt(Var + eps) * Scale + Bias with statistics of the channels (axis 1).

    Everything but In is constant and has one element for each channel.
    """
    sizes = _sizes(shape)
    channels = sizes[1] if len(sizes) > 1 else 1
    names = tuple(f'd{i}' for i in range(len(sizes)))
    dims = tuple(Dim(n, s) for n, s in zip(names, sizes, strict=True))
    here, line = tuple(map(var, names)), (var('d1') if len(sizes) > 1 else Affine(()),)
    scaled = call('div', read(1), call('sqrt', call('add', read(4), const(eps))))
    expr = call('add', call('mul', call('sub', read(0), read(3)), scaled), read(2))
    given = ('Scale', 'Bias', 'Mean', 'Var')
    stage = Stage(
        'batch_norm', dims, Access('Out', here),
        (Access('In', here), *(Access(name, line) for name in given)), expr,
    )  # fmt: skip
    tensors = (
        Tensor('In', names, sizes, dtype=dtype),
        *(Tensor(name, ('d1',), (channels,), 'constant', dtype) for name in given),
        Tensor('Out', names, sizes, 'output', dtype),
    )
    return Group(_label('batchnorm', sizes, f'{eps:g}'), tensors, (stage,))


def instance_norm(shape: Sequence[int], eps: float = 1e-5, *, dtype: str = 'f32') -> Group:
    """Statistics of every channel of every image; Scale and Bias have one element a channel."""
    sizes = _sizes(shape)
    if len(sizes) < 3:
        raise SpecError(f'{sizes} has no image; instances are [n, c, ..]')
    lines = [Dim('n', sizes[0]), Dim('c', sizes[1])]
    spread = [Dim(f'x{i}', s) for i, s in enumerate(sizes[2:])]
    where = tuple(var(d.name) for d in (*lines, *spread))
    return _normalised(
        _label('instancenorm', sizes, f'{eps:g}'), sizes, where, lines, spread, eps, dtype,
        scale=((var('c'),), (sizes[1],)), bias=((var('c'),), (sizes[1],)),
    )  # fmt: skip


def group_norm(
    shape: Sequence[int], groups: int, eps: float = 1e-5, *, dtype: str = 'f32'
) -> Group:
    """Statistics of groups of neighbouring channels; Scale and Bias have one element a channel."""
    sizes = _sizes(shape)
    if len(sizes) < 2 or sizes[1] % groups:
        raise SpecError(f'{groups} groups of the channels of {sizes}; choose a divisor')
    each = sizes[1] // groups
    lines = [Dim('n', sizes[0]), Dim('g', groups)]
    spread = [Dim('c', each), *(Dim(f'x{i}', s) for i, s in enumerate(sizes[2:]))]
    channel = affine(('g', each), ('c', 1))
    where = (var('n'), channel, *(var(d.name) for d in spread[1:]))
    return _normalised(
        _label('groupnorm', sizes, groups, f'{eps:g}'), sizes, where, lines, spread, eps, dtype,
        scale=((channel,), (sizes[1],)), bias=((channel,), (sizes[1],)),
    )  # fmt: skip


def layer_norm(
    shape: Sequence[int], axis: int = -1, eps: float = 1e-5, *, bias: bool = True,
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Statistics over `axis` and all behind it; Scale and Bias have the shape of these."""
    sizes = _sizes(shape)
    if not -len(sizes) <= axis < len(sizes):
        raise SpecError(f'axis {axis} is none of the {len(sizes)} of {sizes}')
    axis %= len(sizes)
    dims = [Dim(f'd{i}', s) for i, s in enumerate(sizes)]
    where = tuple(var(d.name) for d in dims)
    own = (where[axis:], sizes[axis:])
    return _normalised(
        _label('layernorm', sizes, axis, f'{eps:g}'), sizes, where, dims[:axis], dims[axis:], eps,
        dtype, scale=own, bias=own if bias else None,
    )  # fmt: skip


def statistics(
    shape: Sequence[int], axis: int = -1, eps: float = 1e-5, *, result: str = 'mean',
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Out: the 'mean' over `axis` and all behind it, or 'inverse', 1 / sqrt(variance + eps)."""
    sizes = _sizes(shape)
    axis %= len(sizes)
    dims = [Dim(f'd{i}', s) for i, s in enumerate(sizes)]
    where = tuple(var(d.name) for d in dims)
    stages, inner = _moments(where, dims[:axis], dims[axis:], eps, dtype)
    *before, last = stages[:2] if result == 'mean' else stages
    lines = (*last.write.index, *(Affine(()) for _ in sizes[axis:]))
    written = {s.write.tensor for s in before}
    tensors = (
        Tensor('In', tuple(d.name for d in dims), sizes, dtype=dtype),
        *(t for t in inner if t.name in written),
        Tensor(
            'Out', tuple(d.name for d in dims), (*sizes[:axis], *(1 for _ in sizes[axis:])),
            'output', dtype,
        ),
    )  # fmt: skip
    label = _label(f'{result}-of', sizes, axis, f'{eps:g}')
    return Group(label, tensors, (*before, replace(last, write=Access('Out', lines))))


def _moments(
    where: tuple[Affine, ...], lines: Sequence[Dim], spread: Sequence[Dim], eps: float, dtype: str
) -> tuple[tuple[Stage, ...], tuple[Tensor, ...]]:
    """Stages that make Mean and Inverse = 1 / sqrt(variance + eps) of every line, and tensors."""
    count = math.prod(d.size for d in spread)
    over = tuple(Dim(d.name, d.size, 'reduction') for d in spread)
    flat, line = tuple(lines), tuple(var(d.name) for d in lines)
    share = call('mul', read(0), const(1.0 / count))
    apart = call('sub', read(0), read(1))
    stages = (
        Stage('sum', (*flat, *over), Access('Sum', line), (Access('In', where),), read(0), 'sum'),
        Stage('mean', flat, Access('Mean', line), (Access('Sum', line),), share),
        Stage(
            'squares', (*flat, *over), Access('Squares', line),
            (Access('In', where), Access('Mean', line)), call('mul', apart, apart), 'sum',
        ),
        Stage(
            'inverse', flat, Access('Inverse', line), (Access('Squares', line),),
            call('div', const(1.0), call('sqrt', call('add', share, const(eps)))),
        ),
    )  # fmt: skip
    names, lengths = tuple(d.name for d in lines), tuple(d.size for d in lines)
    inner = ('Sum', 'Mean', 'Squares', 'Inverse')
    return stages, tuple(Tensor(t, names, lengths, 'inner', dtype) for t in inner)


def _normalised(
    label: str, sizes: tuple[int, ...], where: tuple[Affine, ...], lines: Sequence[Dim],
    spread: Sequence[Dim], eps: float, dtype: str, *, scale: tuple, bias: tuple | None,
) -> Group:  # fmt: skip
    """The stages above, and Out = (In - Mean) * Inverse * Scale + Bias."""
    stages, inner = _moments(where, lines, spread, eps, dtype)
    line = tuple(var(d.name) for d in lines)
    weights = [('Scale', *scale)] + ([('Bias', *bias)] if bias else [])
    expr: Expr = call('mul', call('mul', call('sub', read(0), read(1)), read(2)), read(3))
    if bias:
        expr = call('add', expr, read(4))
    last = Stage(
        'normalise', (*lines, *spread), Access('Out', where),
        (
            Access('In', where), Access('Mean', line), Access('Inverse', line),
            *(Access(name, index) for name, index, _ in weights),
        ),
        expr,
    )  # fmt: skip
    names = tuple(f'd{i}' for i in range(len(sizes)))
    tensors = (
        Tensor('In', names, sizes, dtype=dtype),
        *(
            Tensor(name, tuple(f's{i}' for i in range(len(shape))), shape, 'constant', dtype)
            for name, _, shape in weights
        ),
        *inner,
        Tensor('Out', names, sizes, 'output', dtype),
    )
    storage = (('Sum', 'register'), ('Squares', 'register'))
    return Group(label, tensors, (*stages, last), storage)


def lp_normalise(shape: Sequence[int], axis: int = -1, p: int = 2, *, dtype: str = 'f32') -> Group:
    """Out = In / norm along an axis, p = 1 or 2; 0 where the norm is."""
    sizes = _sizes(shape)
    if p not in (1, 2):
        raise SpecError(f'the norm is of order {p}; it must be 1 or 2')
    axis %= len(sizes)
    dims = [Dim(f'd{i}', s) for i, s in enumerate(sizes)]
    where = tuple(var(d.name) for d in dims)
    flat = tuple(d for d in dims if d.name != f'd{axis}')
    line = tuple(var(d.name) for d in flat)
    over = Dim(f'd{axis}', sizes[axis], 'reduction')
    each = call('abs', read(0)) if p == 1 else call('mul', read(0), read(0))
    norm = read(0) if p == 1 else call('sqrt', read(0))
    zero = call('eq', read(1), const(0.0))
    stages = (
        Stage('sum', (*flat, over), Access('Sum', line), (Access('In', where),), each, 'sum'),
        Stage('norm', flat, Access('Norm', line), (Access('Sum', line),), norm),
        Stage(
            'divide', tuple(dims), Access('Out', where),
            (Access('In', where), Access('Norm', line)),
            call('where', zero, const(0.0), call('div', read(0), read(1))),
        ),
    )  # fmt: skip
    lengths = tuple(d.size for d in flat)
    names = tuple(d.name for d in flat)
    tensors = (
        Tensor('In', tuple(d.name for d in dims), sizes, dtype=dtype),
        Tensor('Sum', names, lengths, 'inner', dtype),
        Tensor('Norm', names, lengths, 'inner', dtype),
        Tensor('Out', tuple(d.name for d in dims), sizes, 'output', dtype),
    )
    label = _label(f'l{p}norm', sizes, axis)
    return Group(label, tensors, stages, (('Sum', 'register'),))
