"""Convolutions over any number of axes, and transposed ones, whose work is a dense convolution.

These are descriptions for networks; layers are described in `ops.convolution` and
`ops.convolution_transposed`. One axis is two, of which one has one row, since two have the fastest
schemas.

A transposed convolution is a dense one followed by a rearrangement. With o + p = s*q + a, output o
has the taps r with r*d = a modulo s, which read input q - (r*d - a) / s: for every residue a a
convolution of stride 1. All of them are computed as one, with residues as further channels:

    V[n, k, a, q] += In[n, c, q + t - E] * Taps[k, a, c, t]      Out[n, k, o] = V[n, k, a(o), q(o)]
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ops.convolution import Convolution, describe
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
    around = (*(w.before for w in over), *(w.after for w in over))
    size, taps, stride, dilation = (
        tuple(getattr(w, name) for w in over) for name in ('size', 'taps', 'stride', 'dilation')
    )
    conv = Convolution(
        shape[0], shape[1], filters, size, taps, stride, around, dilation, groups, bias
    )
    return typed(describe(conv), dtype)


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
