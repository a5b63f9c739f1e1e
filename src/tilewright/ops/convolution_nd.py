"""Convolutions over any number of axes, and transposed ones, whose work is a dense convolution.

Two axes are `ops.convolution`, which has the fastest schemas, and one is two, of which one has one
row; more are a nest of their own:

    n g k d h w | c t r s
      Out[n, g*K + k, d, h, w] += In[n, g*C + c, D, H, W] * Ker[g*K + k, c, t, r, s]

A transposed convolution is a dense one followed by a rearrangement. With o + p = s*q + a, output o
has the taps r with r*d = a modulo s, which read input q - (r*d - a) / s: for every residue a a
convolution of stride 1. All of them are computed as one, with residues as further channels:

    V[n, k, a, q] += In[n, c, q + t - E] * Taps[k, a, c, t]      Out[n, k, o] = V[n, k, a(o), q(o)]
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ops.convolution import conv2d
from tilewright.ops.describe import Shape, group_of, label_of, typed
from tilewright.ops.group import Group
from tilewright.ops.moving import positions
from tilewright.ops.stage import Access, Dim, Stage, Table, access, affine, call, read, var
from tilewright.ops.windows import Window, axis_names


def convolution(
    shape: Shape,
    filters: int,
    over: Sequence[Window],
    groups: int = 1,
    bias: bool = False,
    dtype: str = 'f32',
) -> Group:
    """An image [n, c, ..] of two axes or more by so many filters, with a window for each axis."""
    if len(over) > 2:
        return _nest(shape, filters, over, groups, bias, dtype)
    h, w = over
    group = conv2d(
        n=shape[0], c=shape[1], h=h.size, w=w.size, k=filters, r=h.taps, s=w.taps,
        stride=(h.stride, w.stride), dilation=(h.dilation, w.dilation),
        pad=(h.before, w.before, h.after, w.after), groups=groups, bias=bias,
    )  # fmt: skip
    return typed(group, dtype)


def _nest(
    shape: Shape, filters: int, over: Sequence[Window], groups: int, bias: bool, dtype: str
) -> Group:
    image, taps = axis_names(len(over))
    c, k = shape[1] // groups, filters // groups
    pixels = tuple(Dim(d, w.out) for d, w in zip(image, over, strict=True))
    reduced = tuple(Dim(d, w.taps, 'reduction') for d, w in zip(taps, over, strict=True))
    channel = (Dim('g', groups), Dim('k', k)) if groups > 1 else (Dim('k', k),)
    out_k = affine(('g', k), ('k', 1)) if groups > 1 else var('k')
    in_c = affine(('g', c), ('c', 1)) if groups > 1 else var('c')
    inside = (w.index(o, t) for w, o, t in zip(over, image, taps, strict=True))
    here = tuple(map(var, image))
    stages = [
        Stage(
            'convolution',
            (Dim('n', shape[0]), *channel, *pixels, Dim('c', c, 'reduction'), *reduced),
            Access('Acc0' if bias else 'Out', (var('n'), out_k, *here)),
            (Access('In', (var('n'), in_c, *inside)),
             Access('Ker', (out_k, var('c'), *map(var, taps)))),
            call('mul', read(0), read(1)),
            'sum',
        )
    ]  # fmt: skip
    shapes = {'In': shape, 'Ker': (filters, c, *(w.taps for w in over))}
    if bias:
        shapes['Bias'] = (filters,)
        stages.append(Stage(
            'bias', (Dim('n', shape[0]), Dim('k', filters), *pixels),
            Access('Out', (var('n'), var('k'), *here)),
            (Access('Acc0', (var('n'), var('k'), *here)), Access('Bias', (var('k'),))),
            call('add', read(0), read(1)),
        ))  # fmt: skip
    numbers = ','.join(f'k{w.taps}s{w.stride}p{w.before}d{w.dilation}' for w in over)
    label = f'{label_of(f"conv{len(over)}d", shape)}to{filters}g{groups}-{numbers}'
    return group_of(label, stages, shapes, dtype)


def transposed_taps(
    kernel: Shape, over: Sequence[Window], groups: int = 1, dtype: str = 'f32'
) -> Group:
    """[c, k, r, ..] as [g, k, a, .., c, t, ..]: taps of each residue, zeros where it has none."""
    channels = kernel[0] // groups
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
    sizes = {'g': groups, 'k': kernel[1], **residues, 'c': channels}
    sizes |= dict(zip(names, lengths, strict=True))
    stage = Stage(
        'taps', tuple(Dim(d, s) for d, s in sizes.items()),
        Access('Out', tuple(map(var, sizes))), (access('In', *index),), read(0),
    )  # fmt: skip
    return group_of(label_of('taps', tuple(sizes.values())), [stage], {'In': kernel}, dtype)


def transposed_windows(over: Sequence[Window]) -> tuple[Window, ...]:
    """The windows of the dense convolution of stride 1 that a transposed one is."""
    made = []
    for w in over:
        taps = (w.taps - 1) * w.dilation // w.stride + 1
        after = max(0, _quotients(w)[-1] + 1 - w.size)
        made.append(Window(w.size, taps, 1, 1, taps - 1, after, w.size + after))
    return tuple(made)


def interleave(
    shape: Shape, over: Sequence[Window], bias: bool = False, dtype: str = 'f32'
) -> Group:
    """[n, k, residues.., quotients..] of the dense convolution as [n, k, outputs..]."""
    image, _ = axis_names(len(over))
    residues = [
        positions([o % w.stride for o in _numbers(w)], d) for w, d in zip(over, image, strict=True)
    ]
    quotients = [positions(_quotients(w), d) for w, d in zip(over, image, strict=True)]
    dims, out = ('n', 'k', *image), (*shape[:2], *(w.out for w in over))
    reads = [access('In', var('n'), var('k'), *residues, *quotients)]
    shapes = {'In': shape}
    if bias:
        reads.append(Access('Bias', (var('k'),)))
        shapes['Bias'] = (shape[1],)
    stage = Stage(
        'interleave', tuple(Dim(d, s) for d, s in zip(dims, out, strict=True)),
        Access('Out', tuple(map(var, dims))), tuple(reads),
        call('add', read(0), read(1)) if bias else read(0),
    )  # fmt: skip
    label = f'{label_of("interleave", shape)}to{"x".join(map(str, out))}'
    return group_of(label, [stage], shapes, dtype)


def _numbers(window: Window) -> range:
    """o + before, for every output o."""
    return range(window.before, window.before + window.out)


def _quotients(window: Window) -> list[int]:
    return [o // window.stride for o in _numbers(window)]
