"""Transposed convolutions, cut into ordinary ones: one for each residue of the stride.

A transposed convolution spreads every element of In over a window of Out,

    Out[i * stride + t * dilation - before] += In[i] * Ker[t]

Seen from a result o = stride * q + residue, only taps with (residue + before - t * dilation)
divisible by the stride contribute, at neighbouring places of In: an ordinary convolution with some
of the taps, in reverse order, whose results lie `stride` apart. Along every axis there are as many
kinds of results as the stride; each combination is a `Piece`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import SpecError
from tilewright.ops.convolution import MAX_ELEMENTS, _whole
from tilewright.ops.convolution_nd import IMAGE, TAPS, _numbers
from tilewright.ops.group import Group, Tensor
from tilewright.ops.moving import fill
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Stage,
    Table,
    access,
    affine,
    call,
    read,
    var,
)


@dataclass(frozen=True, slots=True)
class Axis:
    """One image axis: sizes in and out, the window, and what is cut off before."""

    name: str
    tap: str
    size: int
    taps: int
    stride: int
    before: int
    dilation: int
    out: int

    def residue(self, residue: int) -> Part | None:
        """Results residue, residue + stride, ..; None where there are none."""
        count = -(-(self.out - residue) // self.stride)
        if count < 1:
            return None
        chosen = [
            t
            for t in range(self.taps)
            if (residue + self.before - t * self.dilation) % self.stride == 0
        ][::-1]
        if not chosen:
            return Part(self, residue, count, (), 0, 1)
        # Place of In under the first tap, and steps between taps, in elements of In.
        first = (residue + self.before - chosen[0] * self.dilation) // self.stride
        step = (chosen[0] - chosen[1]) * self.dilation // self.stride if len(chosen) > 1 else 1
        return Part(self, residue, count, tuple(chosen), first, step)


@dataclass(frozen=True, slots=True)
class Part:
    """The results of one residue along an axis: `count` of them, made with `taps` of the window."""

    axis: Axis
    residue: int
    count: int
    taps: tuple[int, ...]
    first: int
    step: int

    @property
    def written(self) -> Affine:
        if self.count == 1:
            return affine(const=self.residue)
        return affine((self.axis.name, self.axis.stride), const=self.residue)

    @property
    def source(self) -> Affine:
        terms = [(self.axis.name, 1)] * (self.count > 1) + [(self.axis.tap, self.step)]
        return affine(*terms, const=self.first)


@dataclass(frozen=True, slots=True)
class Piece:
    """A group that writes some elements of the result, all others being left as they are.

    kernel  computes the weights that it reads, Ker, from the whole Ker; None if it has no taps
    """

    group: Group
    kernel: Group | None


def output_size(
    size: int, taps: int, stride: int, before: int, after: int, dilation: int, extra: int
) -> int:
    """Results along an axis."""
    return stride * (size - 1) + extra + (taps - 1) * dilation + 1 - before - after


def conv_transpose(
    shape: Sequence[int],
    kernel_shape: Sequence[int],
    stride: Sequence[int] | None = None,
    before: Sequence[int] | None = None,
    after: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None,
    *,
    groups: int = 1,
    bias: bool = False,
) -> tuple[Piece, ...]:
    """In [n, c, image] with Ker [c, k / groups, window], and Bias [k].

    Every piece writes a part of Out; together they write all of it. A single one, where nothing is
    strided, writes all.
    """
    sizes = tuple(_whole('a size', size, 1) for size in shape)
    kernel = tuple(_whole('a size', size, 1) for size in kernel_shape)
    rank = len(sizes) - 2
    if not 1 <= rank <= 3 or len(kernel) != rank + 2:
        raise SpecError(f'a convolution of {sizes} by {kernel}; images have 1, 2 or 3 dimensions')
    if sizes[1] != kernel[0] or sizes[1] % groups:
        raise SpecError(
            f'{sizes[1]} channels in {groups} groups by filters of {kernel[0]}: the channels must '
            f'agree and groups divide them'
        )
    axes = []
    for name, tap, size, taps, step, low, high, extra, spread in zip(
        IMAGE[3 - rank :], TAPS[3 - rank :], sizes[2:], kernel[2:],
        _numbers('stride', stride, rank, 1, 1), _numbers('padding', before, rank, 0, 0),
        _numbers('padding', after, rank, 0, 0),
        _numbers('output padding', output_padding, rank, 0, 0),
        _numbers('dilation', dilation, rank, 1, 1), strict=True,
    ):  # fmt: skip
        out = output_size(size, taps, step, low, high, spread, extra)
        if out < 1:
            raise SpecError(f'the result would have {out} elements along {name}; use less padding')
        axes.append(Axis(name, tap, size, taps, step, low, spread, out))
    out_shape = (sizes[0], groups * kernel[1], *(a.out for a in axes))
    if math.prod(out_shape) > MAX_ELEMENTS:
        raise SpecError(f'the result would have more than {MAX_ELEMENTS} elements, the limit')
    pieces = []
    for residues in itertools.product(*(range(a.stride) for a in axes)):
        parts = [a.residue(r) for a, r in zip(axes, residues, strict=True)]
        kept = [p for p in parts if p is not None]
        if len(kept) == len(parts):
            pieces.append(_piece(sizes, kernel, out_shape, kept, groups, bias))
    return tuple(pieces)


def _piece(
    sizes: tuple[int, ...], kernel: tuple[int, ...], out_shape: tuple[int, ...],
    parts: Sequence[Part], groups: int, bias: bool,
) -> Piece:  # fmt: skip
    in_group, out_group = sizes[1] // groups, kernel[1]
    image = tuple(Dim(p.axis.name, p.count) for p in parts if p.count > 1)
    written = tuple(p.written for p in parts)
    names = tuple(p.axis.name for p in parts)
    mark = ','.join(
        f'{p.axis.name}{p.axis.size}o{p.axis.out}k{p.axis.taps}s{p.axis.stride}p{p.axis.before}'
        f'd{p.axis.dilation}r{p.residue}'
        for p in parts
    )
    label = f'deconv-g{groups}n{sizes[0]}c{sizes[1]}k{out_shape[1]}{mark}{"+bias" if bias else ""}'
    out = Tensor('Out', ('n', 'k', *names), out_shape, 'output')
    given = Tensor('In', ('n', 'c', *names), sizes)
    flat = (Dim('n', sizes[0]), Dim('k', out_shape[1]), *image)
    here = (var('n'), var('k'), *written)
    if not all(p.taps for p in parts):
        return Piece(_untouched(label, given, out, flat, here, bias), None)
    if groups == 1:
        channels, depth = (Dim('k', out_group),), (Dim('c', in_group, 'reduction'),)
        k_index, c_index, own = var('k'), var('c'), var('c')
    else:
        channels = (Dim('g', groups), Dim('k', out_group))
        depth = (Dim('c', in_group, 'reduction'),)
        k_index, c_index = affine(('g', out_group), ('k', 1)), affine(('g', in_group), ('c', 1))
        own = var('c')
    window = tuple(Dim(p.axis.tap, len(p.taps), 'reduction') for p in parts)
    taps = tuple(var(p.axis.tap) for p in parts)
    target = 'Acc0' if bias else 'Out'
    stages = [
        Stage(
            'deconv', (Dim('n', sizes[0]), *channels, *image, *depth, *window),
            Access(target, (var('n'), k_index, *written)),
            (
                Access('In', (var('n'), c_index, *(p.source for p in parts))),
                Access('Ker', (k_index, own, *taps)),
            ),
            call('mul', read(0), read(1)), 'sum',
        )
    ]  # fmt: skip
    small = (out_shape[1], in_group, *(len(p.taps) for p in parts))
    tensors = [given, Tensor('Ker', ('k', 'c', *(p.axis.tap for p in parts)), small, 'constant')]
    if bias:
        stages.append(
            Stage(
                'bias',
                flat,
                Access('Out', here),
                (Access('Acc0', here), Access('Bias', (var('k'),))),
                call('add', read(0), read(1)),
            )
        )
        tensors += [
            Tensor('Bias', ('k',), (out_shape[1],), 'constant'),
            Tensor('Acc0', ('n', 'k', *names), out_shape, 'inner'),
        ]
    storage = (('Acc0', 'register'),) if bias else ()
    group = Group(label, (*tensors, out), tuple(stages), storage)
    return Piece(group, _kernel(kernel, small, parts, groups))


def _untouched(
    label: str, given: Tensor, out: Tensor, flat: tuple[Dim, ...], here: tuple[Affine, ...],
    bias: bool,
) -> Group:  # fmt: skip
    """Results that no tap reaches: the bias, or zero."""
    if not bias:
        stage = Stage('zero', flat, Access('Out', here), (), fill((1,), 0.0).main.expr)
        return Group(label, (out,), (stage,))
    stage = Stage('bias', flat, Access('Out', here), (Access('Bias', (var('k'),)),), read(0))
    return Group(label, (Tensor('Bias', ('k',), (out.shape[1],), 'constant'), out), (stage,))


def _kernel(
    kernel: tuple[int, ...], small: tuple[int, ...], parts: Sequence[Part], groups: int
) -> Group:
    """The weights of a piece: [k, c / groups, taps] out of [c, k / groups, window]."""
    out_group, in_group = kernel[1], kernel[0] // groups
    dims = (
        Dim('g', groups), Dim('k', out_group), Dim('c', in_group),
        *(Dim(p.axis.tap, len(p.taps)) for p in parts),
    )  # fmt: skip
    place = access(
        'Ker', affine(('g', in_group), ('c', 1)), var('k'),
        *(Table(p.taps, var(p.axis.tap)) for p in parts),
    )  # fmt: skip
    taps = tuple(p.axis.tap for p in parts)
    written = Access('Out', (affine(('g', out_group), ('k', 1)), var('c'), *map(var, taps)))
    stage = Stage('kernel', dims, written, (place,), read(0))
    tensors = (
        Tensor('Ker', ('c', 'k', *taps), kernel),
        Tensor('Out', ('k', 'c', *taps), small, 'output'),
    )
    chosen = ';'.join(','.join(map(str, p.taps)) for p in parts)
    return Group(f'taps-{"x".join(map(str, kernel))}g{groups}@{chosen}', tensors, (stage,))
