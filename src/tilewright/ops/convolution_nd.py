"""Convolutions over images of one, two or three dimensions, in the forms that frameworks have.

    Out[n, k, d, h, w] += In[n, c, D, H, W] * Ker[k, c, t, r, s]

with every image axis as in ops/convolution.py, which describes those of two. One of a single
dimension is that of a single row, byte for byte; it is described with its own axes, so that tensors
keep their shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import SpecError
from tilewright.ops.convolution import MAX_ELEMENTS, _whole, conv2d
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import ACTIVATIONS, check_activation, pointwise
from tilewright.ops.stage import Access, Affine, Dim, Stage, affine, call, read, var

IMAGE, TAPS = ('d', 'h', 'w'), ('t', 'r', 's')


@dataclass(frozen=True, slots=True)
class Window:
    """One image axis of a convolution."""

    name: str
    tap: str
    size: int
    taps: int
    stride: int
    before: int
    after: int
    dilation: int

    def __post_init__(self) -> None:
        span = (self.taps - 1) * self.dilation + 1
        if span > self.size + self.before + self.after:
            raise SpecError(
                f'the filter spans {span} along {self.name} but the padded image has only '
                f'{self.size + self.before + self.after}; enlarge the image or the padding'
            )

    @property
    def out(self) -> int:
        span = (self.taps - 1) * self.dilation + 1
        return (self.size + self.before + self.after - span) // self.stride + 1

    @property
    def place(self) -> Affine:
        return affine((self.name, self.stride), (self.tap, self.dilation), const=-self.before)


def conv(
    shape: Sequence[int],
    kernel_shape: Sequence[int],
    stride: Sequence[int] | None = None,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    *,
    groups: int = 1,
    bias: bool = False,
    activation: str | None = None,
    kernel_role: str = 'constant',
) -> Group:
    """In [n, c, image] with Ker [k, c / groups, window], and Bias [k]; padding before and after.

    kernel_role  'input' where the weights are computed as well
    """
    check_activation(activation)
    sizes = tuple(_whole('a size', size, 1) for size in shape)
    kernel = tuple(_whole('a size', size, 1) for size in kernel_shape)
    rank = len(sizes) - 2
    if not 1 <= rank <= 3 or len(kernel) != rank + 2:
        raise SpecError(f'a convolution of {sizes} by {kernel}; images have 1, 2 or 3 dimensions')
    groups = _whole('groups', groups, 1)
    if sizes[1] != groups * kernel[1] or kernel[0] % groups:
        raise SpecError(
            f'{sizes[1]} channels in {groups} groups by filters of {kernel[1]} channels and '
            f'{kernel[0]} results: groups must divide both'
        )
    numbers = [
        _numbers('stride', stride, rank, 1, 1), _numbers('padding', before, rank, 0, 0),
        _numbers('padding', after, rank, 0, 0), _numbers('dilation', dilation, rank, 1, 1),
    ]  # fmt: skip
    axes = tuple(
        Window(*own)
        for own in zip(
            IMAGE[3 - rank :], TAPS[3 - rank :], sizes[2:], kernel[2:], *numbers, strict=True
        )
    )
    if rank == 2 and kernel_role == 'constant':
        h, w = axes
        return conv2d(
            n=sizes[0], c=sizes[1], h=h.size, w=w.size, k=kernel[0], r=h.taps, s=w.taps,
            stride=(h.stride, w.stride), pad=(h.before, w.before, h.after, w.after),
            dilation=(h.dilation, w.dilation), groups=groups, bias=bias, activation=activation,
        )  # fmt: skip
    out_shape = (sizes[0], kernel[0], *(a.out for a in axes))
    for elements in (math.prod(sizes), math.prod(kernel), math.prod(out_shape)):
        if elements > MAX_ELEMENTS:
            raise SpecError(f'a tensor would have {elements} elements; the limit is {MAX_ELEMENTS}')
    return _described(sizes, kernel, out_shape, axes, groups, bias, activation, kernel_role)


def _numbers(
    name: str, value: Sequence[int] | None, rank: int, least: int, default: int
) -> tuple[int, ...]:
    numbers = tuple(value) if value else (default,) * rank
    if len(numbers) != rank:
        raise SpecError(f'{name} is {numbers}; an image of {rank} dimensions needs {rank} numbers')
    return tuple(_whole(name, number, least) for number in numbers)


def _described(
    sizes: tuple[int, ...], kernel: tuple[int, ...], out_shape: tuple[int, ...],
    axes: tuple[Window, ...], groups: int, bias: bool, activation: str | None, kernel_role: str,
) -> Group:  # fmt: skip
    in_group, out_group = sizes[1] // groups, kernel[0] // groups
    image = tuple(Dim(a.name, a.out) for a in axes)
    if groups == 1:
        channels, depth = (Dim('k', kernel[0]),), (Dim('c', sizes[1], 'reduction'),)
        out_index, in_index, ker_index = var('k'), var('c'), var('c')
    elif in_group == out_group == 1:
        channels, depth = (Dim('k', kernel[0]),), ()
        out_index, in_index, ker_index = var('k'), var('k'), Affine(())
    else:
        channels = (Dim('g', groups), Dim('k', out_group))
        depth = (Dim('c', in_group, 'reduction'),)
        out_index = affine(('g', out_group), ('k', 1))
        in_index, ker_index = affine(('g', in_group), ('c', 1)), var('c')
    window = tuple(Dim(a.tap, a.taps, 'reduction') for a in axes)
    after = ['bias'] * bool(bias) + ([activation] if activation else [])
    inner = [f'Acc{position}' for position in range(len(after))]
    stops = [*inner, 'Out']
    pixels = tuple(var(a.name) for a in axes)
    main = Stage(
        'conv', (Dim('n', sizes[0]), *channels, *image, *depth, *window),
        Access(stops[0], (var('n'), out_index, *pixels)),
        (
            Access('In', (var('n'), in_index, *(a.place for a in axes))),
            Access('Ker', (out_index, ker_index, *(var(a.tap) for a in axes))),
        ),
        call('mul', read(0), read(1)), 'sum',
    )  # fmt: skip
    flat = (Dim('n', sizes[0]), Dim('k', kernel[0]), *image)
    stages = [main]
    for source, out, name in zip(stops, stops[1:], after, strict=False):
        others = (Access('Bias', (var('k'),)),) if name == 'bias' else ()
        expr = call('add', read(0), read(1)) if others else ACTIVATIONS[name]
        stages.append(pointwise(name, flat, out, source, expr, *others))
    names = tuple(a.name for a in axes)
    tensors = (
        Tensor('In', ('n', 'c', *names), sizes),
        Tensor('Ker', ('k', 'c', *(a.tap for a in axes)), kernel, kernel_role),
        *([Tensor('Bias', ('k',), (kernel[0],), 'constant')] if bias else []),
        *(Tensor(name, ('n', 'k', *names), out_shape, 'inner') for name in inner),
        Tensor('Out', ('n', 'k', *names), out_shape, 'output'),
    )
    text = ','.join(
        f'{a.name}{a.size}o{a.out}k{a.taps}s{a.stride}p{a.before}d{a.dilation}' for a in axes
    )
    label = f'conv{len(axes)}d-g{groups}n{sizes[0]}c{sizes[1]}k{kernel[0]}{text}'
    label += ''.join(f'+{name}' for name in after)
    return Group(label, tensors, tuple(stages), tuple((name, 'register') for name in inner))
