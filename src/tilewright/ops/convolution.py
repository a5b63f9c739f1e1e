"""conv2d in all its forms, as a description: dense, strided, dilated, grouped, depthwise.

Goes in: sizes as in the public face (h, w are input sizes, c is all input channels).
Comes out: a `Group` whose main stage is one of

    dense      n k h w | c r s    Out[n,k,h,w]        += In[n, c, H, W]      * Ker[k, c, r, s]
    grouped    n g k h w | c r s  Out[n, g*Kg+k, h,w] += In[n, g*Cg+c, H, W] * Ker[g*Kg+k, c, r, s]
    depthwise  n k h w | r s      Out[n,k,h,w]        += In[n, k, H, W]      * Ker[k, 0, r, s]

with H = h*sh + r*dh - pt and W = w*sw + s*dw - pl, and bias and activation as further stages.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import SpecError
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import ACTIVATIONS, check_activation, pointwise
from tilewright.ops.stage import Access, Affine, Dim, Stage, affine, call, read, var

Pair = int | Sequence[int]
MAX_ELEMENTS = 2**31 - 1


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, '__index__'):
        raise SpecError(f'{name} is {value!r}; it must be a whole number of at least {least}')
    number = operator.index(value)
    if number < least:
        raise SpecError(f'{name} is {number}; it must be at least {least}')
    return number


def _pair(name: str, value: Pair, least: int) -> tuple[int, int]:
    if isinstance(value, Sequence):
        if len(value) != 2:
            raise SpecError(f'{name} is {tuple(value)}; give one number or (height, width)')
        return _whole(f'{name} (height)', value[0], least), _whole(
            f'{name} (width)', value[1], least
        )
    number = _whole(name, value, least)
    return number, number


def _padding(value: Pair) -> tuple[int, int, int, int]:
    if isinstance(value, Sequence) and len(value) == 4:
        top, left, bottom, right = (
            _whole(f'pad ({side})', v, 0)
            for side, v in zip(('top', 'left', 'bottom', 'right'), value, strict=True)
        )
        return top, left, bottom, right
    if isinstance(value, Sequence) and len(value) != 2:
        raise SpecError(
            f'pad is {tuple(value)}; give one number, (height, width) or (top, left, bottom, right)'
        )
    ph, pw = _pair('pad', value, 0)
    return ph, pw, ph, pw


@dataclass(frozen=True, slots=True)
class Conv2d:
    """A convolution's numbers, normalised and checked."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: tuple[int, int]
    pad: tuple[int, int, int, int]
    dilation: tuple[int, int]
    groups: int
    bias: bool
    activation: str | None

    @classmethod
    def of(cls, *, n, c, h, w, k, r, s, stride, pad, dilation, groups, bias, activation) -> Conv2d:
        given = zip('nchwkrs', (n, c, h, w, k, r, s), strict=True)
        sizes = {name: _whole(name, value, 1) for name, value in given}
        conv = cls(
            **sizes,
            stride=_pair('stride', stride, 1),
            pad=_padding(pad),
            dilation=_pair('dilation', dilation, 1),
            groups=_whole('groups', groups, 1),
            bias=bool(bias),
            activation=activation,
        )
        conv._check()
        return conv

    def _check(self) -> None:
        check_activation(self.activation)
        for name, channels in (('c', self.c), ('k', self.k)):
            if channels % self.groups:
                raise SpecError(
                    f'groups={self.groups} does not divide {name}={channels}; '
                    f'choose groups that divide both c and k'
                )
        for axis, size, taps, dilation, before, after in (
            ('height', self.h, self.r, self.dilation[0], self.pad[0], self.pad[2]),
            ('width', self.w, self.s, self.dilation[1], self.pad[1], self.pad[3]),
        ):
            span, padded = (taps - 1) * dilation + 1, size + before + after
            if span > padded:
                raise SpecError(
                    f'the filter spans {span} in {axis} but the padded image has only {padded}; '
                    f'enlarge the image or the padding, or use a smaller filter or dilation'
                )
        for name, elements in (
            ('input', self.n * self.c * self.h * self.w),
            ('output', self.n * self.k * self.out_h * self.out_w),
            ('filter', self.k * (self.c // self.groups) * self.r * self.s),
        ):
            if elements > MAX_ELEMENTS:
                raise SpecError(
                    f'the {name} would have {elements} elements; the limit is {MAX_ELEMENTS}'
                )

    @property
    def out_h(self) -> int:
        span = (self.r - 1) * self.dilation[0] + 1
        return (self.h + self.pad[0] + self.pad[2] - span) // self.stride[0] + 1

    @property
    def out_w(self) -> int:
        span = (self.s - 1) * self.dilation[1] + 1
        return (self.w + self.pad[1] + self.pad[3] - span) // self.stride[1] + 1

    @property
    def is_depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.c == self.k

    @property
    def label(self) -> str:
        """Canonical notation, benchdnn's with the epilogue appended; `tw.parse` reads it back."""
        groups = f'g{self.groups}' if self.groups > 1 else ''
        text = (
            f'{groups}mb{self.n}ic{self.c}ih{self.h}iw{self.w}oc{self.k}oh{self.out_h}ow{self.out_w}'
            f'kh{self.r}kw{self.s}sh{self.stride[0]}sw{self.stride[1]}'
            f'ph{self.pad[0]}pw{self.pad[1]}dh{self.dilation[0] - 1}dw{self.dilation[1] - 1}'
        )
        text += '+bias' if self.bias else ''
        return text + (f'+{self.activation}' if self.activation else '')


def conv2d(
    *,
    n: int = 1,
    c: int,
    h: int,
    w: int,
    k: int,
    r: int,
    s: int,
    stride: Pair = 1,
    pad: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
    bias: bool = False,
    activation: str | None = None,
) -> Group:
    """A 2-D convolution. h, w: input sizes; c, k: all channels in and out; dilation 1 = dense.

    stride, dilation: int or (h, w); pad: int, (h, w) or (top, left, bottom, right).
    """
    return describe(
        Conv2d.of(
            n=n, c=c, h=h, w=w, k=k, r=r, s=s, stride=stride, pad=pad, dilation=dilation,
            groups=groups, bias=bias, activation=activation,
        )
    )  # fmt: skip


def describe(conv: Conv2d) -> Group:
    """[Conv2d] -> [Group]"""
    image = (Dim('h', conv.out_h), Dim('w', conv.out_w))
    window = (Dim('r', conv.r, 'reduction'), Dim('s', conv.s, 'reduction'))
    row = affine(('h', conv.stride[0]), ('r', conv.dilation[0]), const=-conv.pad[0])
    column = affine(('w', conv.stride[1]), ('s', conv.dilation[1]), const=-conv.pad[1])
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
    parallel = (Dim('n', conv.n), *channels, *image)
    after = ['bias'] * conv.bias + ([conv.activation] if conv.activation else [])
    inner = [f'Acc{position}' for position in range(len(after))]
    stops = [*inner, 'Out']
    out_shape = (conv.n, conv.k, conv.out_h, conv.out_w)
    main = Stage(
        'conv2d',
        (*parallel, *depth, *window),
        Access(stops[0], (var('n'), out_index, var('h'), var('w'))),
        (
            Access('In', (var('n'), in_index, row, column)),
            Access('Ker', (out_index, ker_index, var('r'), var('s'))),
        ),
        call('mul', read(0), read(1)),
        'sum',
    )
    flat = (Dim('n', conv.n), Dim('k', conv.k), *image)
    stages, tensors = [main], []
    for source, out, name in zip(stops, stops[1:], after, strict=False):
        if name == 'bias':
            expr, others = call('add', read(0), read(1)), (Access('Bias', (var('k'),)),)
            tensors.append(Tensor('Bias', ('k',), (conv.k,), 'constant'))
        else:
            expr, others = ACTIVATIONS[name], ()
        stages.append(pointwise(name, flat, out, source, expr, *others))
    tensors = [
        Tensor('In', ('n', 'c', 'h', 'w'), (conv.n, conv.c, conv.h, conv.w)),
        Tensor('Ker', ('k', 'c', 'r', 's'), (conv.k, in_group, conv.r, conv.s), 'constant'),
        *tensors,
        *(Tensor(name, ('n', 'k', 'h', 'w'), out_shape, 'inner') for name in inner),
        Tensor('Out', ('n', 'k', 'h', 'w'), out_shape, 'output'),
    ]
    storage = tuple((name, 'register') for name in inner)
    return Group(conv.label, tuple(tensors), tuple(stages), storage)
