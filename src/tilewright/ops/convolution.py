"""Convolutions in all their forms, as a description: dense, strided, dilated, grouped, depthwise.

Goes in: sizes as in the public face (h, w are input sizes, c is all input channels).
Comes out: a `Group` whose main stage, here of two axes, is one of

    dense      n k h w | c r s    Out[n,k,h,w]        += In[n, c, H, W]      * Ker[k, c, r, s]
    grouped    n g k h w | c r s  Out[n, g*Kg+k, h,w] += In[n, g*Cg+c, H, W] * Ker[g*Kg+k, c, r, s]
    depthwise  n k h w | r s      Out[n,k,h,w]        += In[n, k, H, W]      * Ker[k, 0, r, s]

with H = h*sh + r*dh - pt and W = w*sw + s*dw - pl, and bias and activation as further stages. One
axis has w and s alone, three have d and t before h and r.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import SpecError
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import ACTIVATIONS, check_activation, pointwise
from tilewright.ops.stage import Access, Affine, Dim, Stage, affine, call, read, var
from tilewright.ops.windows import Window, axis_names

Numbers = int | Sequence[int]
MAX_ELEMENTS = 2**31 - 1
DECONV = 'deconv:'  # in front of the label of a transposed convolution
AXIS_WORDS = {'d': 'depth', 'h': 'height', 'w': 'width'}
SIDES = {'depth': ('front', 'back'), 'height': ('top', 'bottom'), 'width': ('left', 'right')}


def whole_number(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, '__index__'):
        raise SpecError(f'{name} is {value!r}; it must be a whole number of at least {least}')
    number = operator.index(value)
    if number < least:
        raise SpecError(f'{name} is {number}; it must be at least {least}')
    return number


def axis_words(rank: int) -> tuple[str, ...]:
    """What people call the axes."""
    return tuple(AXIS_WORDS.get(name, name) for name in axis_names(rank)[0])


def each_axis(name: str, value: Numbers, rank: int, least: int) -> tuple[int, ...]:
    """One number for each axis."""
    if not isinstance(value, Sequence):
        return (whole_number(name, value, least),) * rank
    words = axis_words(rank)
    if len(value) != rank:
        raise SpecError(f'{name} is {tuple(value)}; give one number or ({", ".join(words)})')
    return tuple(whole_number(f'{name} ({w})', v, least) for w, v in zip(words, value, strict=True))


def padding_of(value: Numbers, rank: int) -> tuple[int, ...]:
    """Before every axis, then behind every axis."""
    if not isinstance(value, Sequence) or len(value) == rank:
        return 2 * each_axis('pad', value, rank, 0)
    words = axis_words(rank)
    sides = [SIDES.get(word, (word, word))[end] for end in (0, 1) for word in words]
    if len(value) != len(sides):
        raise SpecError(
            f'pad is {tuple(value)}; give one number, ({", ".join(words)}) or ({", ".join(sides)})'
        )
    return tuple(whole_number(f'pad ({w})', v, 0) for w, v in zip(sides, value, strict=True))


@dataclass(frozen=True, slots=True)
class Convolution:
    """The numbers of a convolution over any axes, normalised and checked.

    size, taps  of the image and of the filter, for each axis
    pad         before every axis, then behind every axis; of a transposed convolution what is cut
                off from its output: less behind it, below 0 even, where there is output padding
    """

    n: int
    c: int
    k: int
    size: tuple[int, ...]
    taps: tuple[int, ...]
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    bias: bool = False
    activation: str | None = None
    transposed: bool = False

    def __post_init__(self) -> None:
        check_activation(self.activation)
        for name, channels in (('c', self.c), ('k', self.k)):
            if channels % self.groups:
                raise SpecError(
                    f'groups={self.groups} does not divide {name}={channels}; '
                    f'choose groups that divide both c and k'
                )
        for axis, window in zip(axis_words(self.rank), self.windows, strict=True):
            padded = window.size + window.before + window.after
            if self.transposed and window.out < 1:
                raise SpecError(
                    f'the padding leaves {window.out} of the output in {axis}; enlarge the image '
                    f'or the filter, or use less padding'
                )
            if not self.transposed and window.span > padded:
                raise SpecError(
                    f'the filter spans {window.span} in {axis} but the padded image has only '
                    f'{padded}; enlarge the image or the padding, or use a smaller filter or '
                    f'dilation'
                )
        for name, elements in (
            ('input', self.n * self.c * math.prod(self.size)),
            ('output', self.n * self.k * math.prod(self.out)),
            ('filter', self.k * (self.c // self.groups) * math.prod(self.taps)),
        ):
            if elements > MAX_ELEMENTS:
                raise SpecError(
                    f'the {name} would have {elements} elements; the limit is {MAX_ELEMENTS}'
                )

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def windows(self) -> tuple[Window, ...]:
        """One for each axis; `out` are the sizes of the output."""
        rank, made = self.rank, []
        rows = zip(
            self.size, self.taps, self.stride, self.dilation, self.pad[:rank], self.pad[rank:],
            strict=True,
        )  # fmt: skip
        for size, taps, stride, dilation, before, after in rows:
            span = (taps - 1) * dilation + 1
            if self.transposed:
                out = (size - 1) * stride + span - before - after
            else:
                out = (size + before + after - span) // stride + 1
            made.append(Window(size, taps, stride, dilation, before, after, out))
        return tuple(made)

    @property
    def out(self) -> tuple[int, ...]:
        """Output sizes."""
        return tuple(window.out for window in self.windows)

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.c == self.k

    @property
    def label(self) -> str:
        """Canonical notation, benchdnn's with the epilogue appended; `tw.parse` reads it back."""
        names, _ = axis_names(self.rank)

        def fields(kind: str, values: Iterable[int]) -> str:
            return ''.join(f'{kind}{name}{v}' for name, v in zip(names, values, strict=True))

        text = DECONV if self.transposed else ''
        text += f'g{self.groups}' if self.groups > 1 else ''
        text += f'mb{self.n}ic{self.c}{fields("i", self.size)}oc{self.k}{fields("o", self.out)}'
        text += fields('k', self.taps) + fields('s', self.stride)
        text += fields('p', self.pad[: self.rank]) + fields('d', (d - 1 for d in self.dilation))
        text += '+bias' if self.bias else ''
        return text + (f'+{self.activation}' if self.activation else '')


def convolution_of(
    size: Mapping[str, Any], taps: Mapping[str, Any], *, n: Any, c: Any, k: Any,
    stride: Numbers = 1, pad: Numbers = 0, dilation: Numbers = 1, groups: Any = 1,
    bias: bool = False, activation: str | None = None, output_padding: Numbers | None = None,
) -> Convolution:  # fmt: skip
    """[numbers as people give them] -> [Convolution]; with `output_padding` a transposed one.

    size, taps  of the image and of the filter, by the names of arguments
    """
    rank = len(size)
    lengths, width = (
        tuple(whole_number(name, value, 1) for name, value in given.items())
        for given in (size, taps)
    )
    around = padding_of(pad, rank)
    stride, dilation = (
        each_axis('stride', stride, rank, 1),
        each_axis('dilation', dilation, rank, 1),
    )
    if output_padding is not None:
        extra = each_axis('output_padding', output_padding, rank, 0)
        for axis, e, most in zip(axis_words(rank), extra, map(max, stride, dilation), strict=True):
            if e >= most:
                raise SpecError(
                    f'output_padding ({axis}) is {e}; it must be below {most}, the larger one of '
                    f'stride and dilation'
                )
        around = (*around[:rank], *(a - e for a, e in zip(around[rank:], extra, strict=True)))
    return Convolution(
        whole_number('n', n, 1), whole_number('c', c, 1), whole_number('k', k, 1), lengths, width,
        stride, around, dilation, whole_number('groups', groups, 1), bool(bias), activation,
        output_padding is not None,
    )  # fmt: skip


def conv2d(
    *,
    n: int = 1,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    stride: Numbers = 1,
    pad: Numbers = 0,
    dilation: Numbers = 1,
    groups: int = 1,
    bias: bool = False,
    activation: str | None = None,
) -> Group:
    """A 2-D convolution. h, w: input sizes; c, k: all channels in and out; dilation 1 = dense.

    stride, dilation: int or (h, w); pad: int, (h, w) or (top, left, bottom, right).
    """
    conv = convolution_of(
        {'h': h, 'w': w}, {'r': r, 's': s}, n=n, c=c, k=k, stride=stride, pad=pad,
        dilation=dilation, groups=groups, bias=bias, activation=activation,
    )  # fmt: skip
    return describe(conv)


def conv1d(
    *, n: int = 1, c: int, w: int, k: int, s: int, stride: Numbers = 1, pad: Numbers = 0,
    dilation: Numbers = 1, groups: int = 1, bias: bool = False, activation: str | None = None,
) -> Group:  # fmt: skip
    """A 1-D convolution of [n, c, w]. pad: int or (left, right); the rest as in `conv2d`."""
    conv = convolution_of(
        {'w': w}, {'s': s}, n=n, c=c, k=k, stride=stride, pad=pad, dilation=dilation,
        groups=groups, bias=bias, activation=activation,
    )  # fmt: skip
    return describe(conv)


def conv3d(
    *, n: int = 1, c: int, d: int, h: int, w: int, k: int, t: int, r: int, s: int,
    stride: Numbers = 1, pad: Numbers = 0, dilation: Numbers = 1, groups: int = 1,
    bias: bool = False, activation: str | None = None,
) -> Group:  # fmt: skip
    """A 3-D convolution of [n, c, d, h, w] by filters of t x r x s.

    stride, dilation: int or (d, h, w); pad: int, (d, h, w) or (front, top, left, back, bottom,
    right); the rest as in `conv2d`.
    """
    conv = convolution_of(
        {'d': d, 'h': h, 'w': w}, {'t': t, 'r': r, 's': s}, n=n, c=c, k=k, stride=stride, pad=pad,
        dilation=dilation, groups=groups, bias=bias, activation=activation,
    )  # fmt: skip
    return describe(conv)


def describe(conv: Convolution) -> Group:
    """[Convolution] -> [Group]"""
    image, window = axis_names(conv.rank)
    pixels = tuple(Dim(name, size) for name, size in zip(image, conv.out, strict=True))
    reduced = tuple(Dim(name, t, 'reduction') for name, t in zip(window, conv.taps, strict=True))
    inside = tuple(x.index(o, t) for x, o, t in zip(conv.windows, image, window, strict=True))
    in_group, out_group = conv.c // conv.groups, conv.k // conv.groups
    if conv.groups == 1:
        channels: tuple[Dim, ...] = (Dim('k', conv.k),)
        depth: tuple[Dim, ...] = (Dim('c', conv.c, 'reduction'),)
        out_index, in_index, ker_index = var('k'), var('c'), var('c')
    elif conv.is_depthwise:
        channels, depth = (Dim('k', conv.k),), ()
        out_index, in_index, ker_index = var('k'), var('k'), Affine(())
    else:
        channels = (Dim('g', conv.groups), Dim('k', out_group))
        depth = (Dim('c', in_group, 'reduction'),)
        out_index = affine(('g', out_group), ('k', 1))
        in_index, ker_index = affine(('g', in_group), ('c', 1)), var('c')
    main = Stage(
        f'conv{conv.rank}d',
        (Dim('n', conv.n), *channels, *pixels, *depth, *reduced),
        Access('Out', (var('n'), out_index, *map(var, image))),
        (
            Access('In', (var('n'), in_index, *inside)),
            Access('Ker', (out_index, ker_index, *map(var, window))),
        ),
        call('mul', read(0), read(1)),
        'sum',
    )
    kernel = Tensor('Ker', ('k', 'c', *window), (conv.k, in_group, *conv.taps), 'constant')
    return with_epilogue(conv, main, kernel)


def with_epilogue(
    conv: Convolution, main: Stage, kernel: Tensor, wide: Sequence[int] | None = None
) -> Group:
    """The group of a convolution: `main`, which writes Out, then its bias and activation.

    wide  sizes of what `main` writes, where that is more than the output
    """
    image, _ = axis_names(conv.rank)
    out_dims, out_shape = ('n', 'k', *image), (conv.n, conv.k, *conv.out)
    flat = tuple(Dim(name, size) for name, size in zip(out_dims, out_shape, strict=True))
    after = ['bias'] * conv.bias + ([conv.activation] if conv.activation else [])
    after = after or ['crop'] * (wide is not None)
    inner = [f'Acc{position}' for position in range(len(after))]
    stops = [*inner, 'Out']
    stages = [replace(main, write=replace(main.write, tensor=stops[0]))]
    constants = [kernel]
    for source, out, name in zip(stops, stops[1:], after, strict=False):
        if name == 'bias':
            expr, others = call('add', read(0), read(1)), (Access('Bias', (var('k'),)),)
            constants.append(Tensor('Bias', ('k',), (conv.k,), 'constant'))
        else:
            expr, others = ACTIVATIONS.get(name, read(0)), ()
        stages.append(pointwise(name, flat, out, source, expr, *others))
    shapes = dict.fromkeys(inner, out_shape)
    if wide is not None:
        shapes['Acc0'] = (conv.n, conv.k, *wide)
    tensors = [
        Tensor('In', ('n', 'c', *image), (conv.n, conv.c, *conv.size)),
        *constants,
        *(Tensor(name, out_dims, shape, 'inner') for name, shape in shapes.items()),
        Tensor('Out', out_dims, out_shape, 'output'),
    ]
    storage = tuple((name, 'register') for name, shape in shapes.items() if shape == out_shape)
    return Group(conv.label, tuple(tensors), tuple(stages), storage)
