"""Convolutions over one, two or more axes, and transposed ones.

One axis is two, one of which has one row. Two axes are `ops.convolution`, which has the fastest
schemas; more are a nest of their own:

    n g k d h w | c t r s
      Out[n, g*K + k, d, h, w] += In[n, g*C + c, D, H, W] * Ker[g*K + k, c, t, r, s]

A transposed convolution is a dense one followed by a rearrangement. With o + p = s*q + a, output o
has the taps r with r*d = a modulo s, which read input q - (r*d - a) / s: for every residue a a
convolution of stride 1. All of them are computed as one, with residues as further channels:

    V[n, k, a, q] += In[n, c, q + t - E] * Taps[k, a, c, t]      Out[n, k, o] = V[n, k, a(o), q(o)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import build, group_of
from tilewright.graph.lowering.given import FLOATS, Given, Operator
from tilewright.graph.lowering.moving import table
from tilewright.graph.lowering.result import (
    Result,
    Unsupported,
    check_elements,
    compute,
    filled,
    view,
)
from tilewright.graph.lowering.windows import AUTO_PAD, MAX_WINDOW, Window, axis_names, windows
from tilewright.ops.convolution import conv2d
from tilewright.ops.stage import (
    MAX_TABLE,
    Access,
    Dim,
    Stage,
    Table,
    access,
    affine,
    call,
    read,
    var,
)


def convolve(
    x: Result, kernel: Result, bias: Result | None, over: Sequence[Window], groups: int
) -> Result:
    """A convolution; `over` has a window for each axis of the image behind [n, c]."""
    if len(over) == 1:
        row = Window(1, 1, 1, 1, 0, 0, 1)
        made = convolve(_row(x), _row(kernel), bias, (row, *over), groups)
        return view(made, (*made.shape[:2], made.shape[3]))
    if len(over) > 2:
        return _nest(x, kernel, bias, over, groups)
    h, w = over
    group = conv2d(
        n=x.shape[0], c=x.shape[1], h=h.size, w=w.size, k=kernel.shape[0], r=h.taps, s=w.taps,
        stride=(h.stride, w.stride), dilation=(h.dilation, w.dilation),
        pad=(h.before, w.before, h.after, w.after), groups=groups, bias=bias is not None,
    )  # fmt: skip
    if x.dtype != 'f32':
        tensors = tuple(replace(t, dtype=x.dtype) for t in group.tensors)
        group = replace(group, tensors=tensors, label=f'{group.label}-{x.dtype}')
    operands = {'In': x, 'Ker': kernel}
    return compute(group, operands if bias is None else {**operands, 'Bias': bias})


def _row(result: Result) -> Result:
    """[n, c, w] as an image of one row."""
    n, c, w = result.shape
    return view(result, (n, c, 1, w))


def _nest(
    x: Result, kernel: Result, bias: Result | None, over: Sequence[Window], groups: int
) -> Result:
    image, taps = axis_names(len(over))
    c, k = x.shape[1] // groups, kernel.shape[0] // groups
    shape = tuple(Dim(d, w.out) for d, w in zip(image, over, strict=True))
    reduced = tuple(Dim(d, w.taps, 'reduction') for d, w in zip(taps, over, strict=True))
    channel = (Dim('g', groups), Dim('k', k)) if groups > 1 else (Dim('k', k),)
    out_k = affine(('g', k), ('k', 1)) if groups > 1 else var('k')
    in_c = affine(('g', c), ('c', 1)) if groups > 1 else var('c')
    inside = (w.index(o, t) for w, o, t in zip(over, image, taps, strict=True))
    here = tuple(map(var, image))
    target = 'Out' if bias is None else 'Acc0'
    stages = [
        Stage(
            'convolution',
            (Dim('n', x.shape[0]), *channel, *shape, Dim('c', c, 'reduction'), *reduced),
            Access(target, (var('n'), out_k, *here)),
            (Access('In', (var('n'), in_c, *inside)),
             Access('Ker', (out_k, var('c'), *map(var, taps)))),
            call('mul', read(0), read(1)),
            'sum',
        )
    ]  # fmt: skip
    operands = {'In': x, 'Ker': kernel}
    if bias is not None:
        operands['Bias'] = bias
        stages.append(Stage(
            'bias', (Dim('n', x.shape[0]), Dim('k', k * groups), *shape),
            Access('Out', (var('n'), var('k'), *here)),
            (Access('Acc0', (var('n'), var('k'), *here)), Access('Bias', (var('k'),))),
            call('add', read(0), read(1)),
        ))  # fmt: skip
    sizes = 'x'.join(map(str, x.shape))
    windows_text = ','.join(f'k{w.taps}s{w.stride}p{w.before}d{w.dilation}' for w in over)
    label = f'conv{len(over)}d-{sizes}to{k * groups}g{groups}-{windows_text}'
    return compute(group_of(label, operands, stages, x.dtype), operands)


def _operands(given: Given) -> tuple[Result, Result, Result | None, int]:
    """Image, kernel, bias and number of groups, checked as far as both operators share it."""
    x, kernel, bias = given.input(0), given.input(1), given.optional(2)
    groups = given.int('group', 1)
    rank = len(x.shape) - 2
    if rank < 1 or len(kernel.shape) != rank + 2:
        raise ModelError(f'{list(x.shape)} and a kernel of {list(kernel.shape)} do not fit')
    if any(r is not None and r.dtype != x.dtype for r in (kernel, bias)):
        raise ModelError(f'its kernel or bias has another dtype than its image, {x.dtype}')
    if given.ints('kernel_shape', rank, 0) not in ((0,) * rank, kernel.shape[2:]):
        raise ModelError(
            f'its kernel_shape is {list(given.ints("kernel_shape", rank, 0))}, its kernel has '
            f'{list(kernel.shape[2:])}'
        )
    if groups < 1 or x.shape[1] % groups or kernel.shape[0] % groups:
        raise ModelError(
            f'its {x.shape[1]} channels and a kernel of {list(kernel.shape)} do not divide into '
            f'{groups} groups'
        )
    return x, kernel, bias, groups


def _conv(given: Given) -> Result:
    x, kernel, bias, groups = _operands(given)
    if x.shape[1] // groups != kernel.shape[1] or (bias and bias.shape != (kernel.shape[0],)):
        raise ModelError(
            f'{list(x.shape)}, a kernel of {list(kernel.shape)} and {groups} groups do not fit'
        )
    over = windows(given, x.shape[2:], kernel.shape[2:])
    if 0 in x.shape:
        return filled((x.shape[0], kernel.shape[0], *(w.out for w in over)), 0, x.dtype)
    return convolve(x, kernel, bias, over, groups)


def _conv_transpose(given: Given) -> Result:
    x, kernel, bias, groups = _operands(given)
    if x.shape[1] != kernel.shape[0] or (bias and bias.shape != (kernel.shape[1] * groups,)):
        raise ModelError(
            f'{list(x.shape)}, a kernel of {list(kernel.shape)} and {groups} groups do not fit'
        )
    over = _spread(given, x.shape[2:], kernel.shape[2:])
    shape = (x.shape[0], kernel.shape[1] * groups, *(w.out for w in over))
    check_elements(shape, 'the result')
    if 0 in (*x.shape, *shape):
        return filled(shape, 0, x.dtype)
    if any(max(w.out, w.stride * (w.span + w.stride)) > MAX_TABLE for w in over):
        raise Unsupported(f'to {list(shape)}, of at most {MAX_TABLE} along an axis')
    dense, places = _taps(kernel, over, groups), [_place(w) for w in over]
    inner = []
    for w, taps, (_, q) in zip(over, dense.shape[2:], places, strict=True):
        after = max(0, q[-1] + 1 - w.size)
        inner.append(Window(w.size, taps, 1, 1, taps - 1, after, w.size + after))
    made = convolve(x, dense, None, inner, groups)
    strides = [w.stride for w in over]
    split = view(made, (x.shape[0], shape[1], *strides, *made.shape[2:]))
    image, _ = axis_names(len(over))
    residues = [table(a, d) for (a, _), d in zip(places, image, strict=True)]
    quotients = [table(q, d) for (_, q), d in zip(places, image, strict=True)]
    dims = ('n', 'k', *image)
    here = tuple(map(var, dims))
    reads = [access('In', var('n'), var('k'), *residues, *quotients)]
    operands: dict[str, Result] = {'In': split}
    if bias is not None:
        reads.append(Access('Bias', (var('k'),)))
        operands['Bias'] = bias
    expr = read(0) if bias is None else call('add', read(0), read(1))
    domain = tuple(Dim(d, s) for d, s in zip(dims, shape, strict=True))
    stage = Stage('interleave', domain, Access('Out', here), tuple(reads), expr)
    label = f'interleave-{"x".join(map(str, split.shape))}to{"x".join(map(str, shape))}'
    return build(label, operands, [stage], x.dtype)


def _spread(given: Given, sizes: Sequence[int], taps: Sequence[int]) -> tuple[Window, ...]:
    """Windows of a transposed convolution: `out` is its output, `before` is cut off from it."""
    rank = len(sizes)
    strides, dilations = given.ints('strides', rank, 1), given.ints('dilations', rank, 1)
    pads, extra = given.ints('pads', 2 * rank, 0), given.ints('output_padding', rank, 0)
    wanted = given.ints('output_shape', rank, -1)
    auto = given.text('auto_pad', 'NOTSET', AUTO_PAD)
    for name, numbers, least in (('strides', strides, 1), ('dilations', dilations, 1),
                                 ('pads', pads, 0), ('output_padding', extra, 0)):  # fmt: skip
        if any(not least <= n <= MAX_WINDOW for n in numbers):
            raise ModelError(
                f'its {name} are {list(numbers)}; they must be from {least} to {MAX_WINDOW}'
            )
    made = []
    for i in range(rank):
        whole = strides[i] * (sizes[i] - 1) + extra[i] + (taps[i] - 1) * dilations[i] + 1
        before, after = pads[i], pads[i + rank]
        if wanted[i] >= 0 or auto.startswith('SAME'):
            out = wanted[i] if wanted[i] >= 0 else sizes[i] * strides[i]
            total = max(0, whole - out)
            before = total // 2 if auto == 'SAME_UPPER' else total - total // 2
        else:
            out = whole - before - after if auto == 'NOTSET' else whole
            before = before if auto == 'NOTSET' else 0
        if out < 0:
            raise ModelError(f'its pads {list(pads)} leave nothing of {whole} elements')
        made.append(Window(sizes[i], taps[i], strides[i], dilations[i], before, after, out))
    return tuple(made)


def _place(window: Window) -> tuple[list[int], list[int]]:
    """For every output o: the residue and the quotient of o + before by the stride."""
    numbers = range(window.before, window.before + window.out)
    return [o % window.stride for o in numbers], [o // window.stride for o in numbers]


def _taps(kernel: Result, over: Sequence[Window], groups: int) -> Result:
    """[c, k, r, ..] as [(k, a, ..), c, t, ..]: taps of each residue, zeros where it has none."""
    channels, k = kernel.shape[0] // groups, kernel.shape[1]
    _, names = axis_names(len(over))
    lengths = [(w.taps - 1) * w.dilation // w.stride + 1 for w in over]
    index: list = [affine(('g', channels), ('c', 1)), var('k')]
    for i, (window, length) in enumerate(zip(over, lengths, strict=True)):
        # Tap t reads e = length - 1 - t inputs back: r * dilation = stride * e + residue.
        places = []
        for residue in range(window.stride):
            for t in range(length):
                r, rest = divmod(window.stride * (length - 1 - t) + residue, window.dilation)
                places.append(r if rest == 0 and r < window.taps else -1)
        index.append(Table(tuple(places), affine((f'a{i}', length), (names[i], 1))))
    residues = {f'a{i}': w.stride for i, w in enumerate(over)}
    sizes = {'g': groups, 'k': k, **residues, 'c': channels}
    sizes |= dict(zip(names, lengths, strict=True))
    stage = Stage(
        'taps', tuple(Dim(d, s) for d, s in sizes.items()),
        Access('Out', tuple(map(var, sizes))), (access('In', *index),), read(0),
    )  # fmt: skip
    label = f'taps-{"x".join(map(str, sizes.values()))}'
    made = build(label, {'In': kernel}, [stage], kernel.dtype)
    count = groups * k * math.prod(w.stride for w in over)
    return view(made, (count, channels, *lengths))


OPERATORS: dict[str, Operator] = {
    'Conv': Operator(_conv, FLOATS),
    'ConvTranspose': Operator(_conv_transpose, FLOATS),
}
