"""Pooling as a description: a window that is reduced by its maximum or its mean.

    max    Out[n, c, h, w] max= In[n, c, H, W]
    mean   Out[n, c, h, w]  =  sum of In[n, c, H, W] / Count[h, w]

with H = h*sh + r*dh - pt and W = w*sw + s*dw - pl. Where all windows hold as many elements, Count
is a number. Else it is a stage: a window over ones, as large as the image, or as the padded image
if padding counts. It reads no input, so that it is computed once, ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import SpecError
from tilewright.ops.convolution import MAX_ELEMENTS, Pair, _padding, _pair, _whole
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import pointwise
from tilewright.ops.stage import Access, Affine, Dim, Stage, affine, call, const, read, var


@dataclass(frozen=True, slots=True)
class Axis:
    """One image axis of a pooling: `size` elements, `taps` of which are reduced."""

    name: str
    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int
    ceil: bool

    def __post_init__(self) -> None:
        span = (self.taps - 1) * self.dilation + 1
        if max(self.before, self.after) >= span:
            raise SpecError(
                f'padding of {max(self.before, self.after)} in {self.name} with a window that '
                f'spans {span}: a window would see padding only; use less than the span'
            )
        if span > self.size + self.before + self.after:
            raise SpecError(
                f'the window spans {span} in {self.name} but the padded image has only '
                f'{self.size + self.before + self.after}; enlarge the image or the padding'
            )

    @property
    def out(self) -> int:
        """Windows; with `ceil` one more where some elements are left, if it begins in the image."""
        room = self.size + self.before + self.after - (self.taps - 1) * self.dilation - 1
        count = (-(-room // self.stride) if self.ceil else room // self.stride) + 1
        if self.ceil and (count - 1) * self.stride >= self.size + self.before:
            count -= 1
        return count

    def index(self, out: str, tap: str, const: int) -> Affine:
        return affine((out, self.stride), (tap, self.dilation), const=const)

    def whole(self, padding_counts: bool) -> bool:
        """Whether every window has all its taps among the elements that count."""
        first = 0 if padding_counts else -self.before
        last = (self.out - 1) * self.stride + (self.taps - 1) * self.dilation - self.before
        return first >= 0 and last < self.size + (self.after if padding_counts else 0)


@dataclass(frozen=True, slots=True)
class Pool2d:
    """A pooling's numbers, normalised and checked."""

    n: int
    c: int
    h: Axis
    w: Axis

    @classmethod
    def of(cls, *, n, c, h, w, window, stride, pad, dilation, ceil) -> Pool2d:
        taps = _pair('window', window, 1)
        steps = _pair('stride', window if stride is None else stride, 1)
        spread, (top, left, bottom, right) = _pair('dilation', dilation, 1), _padding(pad)
        rows, columns = _whole('h', h, 1), _whole('w', w, 1)
        down = Axis('height', rows, taps[0], steps[0], spread[0], top, bottom, bool(ceil))
        across = Axis('width', columns, taps[1], steps[1], spread[1], left, right, bool(ceil))
        made = cls(_whole('n', n, 1), _whole('c', c, 1), down, across)
        if math.prod(made.shape) > MAX_ELEMENTS:
            raise SpecError(f'the image would have more than {MAX_ELEMENTS} elements, the limit')
        return made

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n, self.c, self.h.size, self.w.size

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.n, self.c, self.h.out, self.w.out

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(Dim(d, size) for d, size in zip('nchw', self.out_shape, strict=True))

    @property
    def window(self) -> tuple[Dim, ...]:
        return Dim('r', self.h.taps, 'reduction'), Dim('s', self.w.taps, 'reduction')

    def label(self, kind: str) -> str:
        h, w = self.h, self.w
        return (
            f'{kind}-n{self.n}c{self.c}h{h.size}w{w.size}o{h.out}x{w.out}k{h.taps}x{w.taps}'
            f's{h.stride}x{w.stride}p{h.before},{w.before}d{h.dilation}x{w.dilation}'
        )

    def reduce(self, name: str, out: str, combiner: str, pad_value: float) -> Stage:
        row, column = self.h.index('h', 'r', -self.h.before), self.w.index('w', 's', -self.w.before)
        return Stage(
            name,
            (*self.dims, *self.window),
            Access(out, tuple(var(d.name) for d in self.dims)),
            (Access('In', (var('n'), var('c'), row, column)),),
            read(0),
            combiner,
            pad_value,
        )

    def tensors(self) -> tuple[Tensor, Tensor]:
        dims = ('n', 'c', 'h', 'w')
        return Tensor('In', dims, self.shape), Tensor('Out', dims, self.out_shape, 'output')


def max_pool2d(
    *,
    n: int = 1,
    c: int,
    h: int,
    w: int,
    window: Pair,
    stride: Pair | None = None,
    pad: Pair = 0,
    dilation: Pair = 1,
    ceil: bool = False,
) -> Group:
    """The maximum of each window. stride: None is the window; ceil: also windows that reach out."""
    pool = Pool2d.of(
        n=n, c=c, h=h, w=w, window=window, stride=stride, pad=pad, dilation=dilation, ceil=ceil
    )
    stage = pool.reduce('max_pool', 'Out', 'max', -math.inf)
    return Group(pool.label('maxpool'), pool.tensors(), (stage,))


def average_pool2d(
    *,
    n: int = 1,
    c: int,
    h: int,
    w: int,
    window: Pair,
    stride: Pair | None = None,
    pad: Pair = 0,
    dilation: Pair = 1,
    ceil: bool = False,
    count_include_pad: bool = True,
) -> Group:
    """The mean of each window, over padding too if that counts; never over what lies behind it."""
    pool = Pool2d.of(
        n=n, c=c, h=h, w=w, window=window, stride=stride, pad=pad, dilation=dilation, ceil=ceil
    )
    label = pool.label('avgpool') + ('' if count_include_pad else '-inside')
    given, out = pool.tensors()
    total = pool.reduce('sum_pool', 'Sum', 'sum', 0.0)
    sums = Tensor('Sum', out.dims, out.shape, 'inner')
    if pool.h.whole(count_include_pad) and pool.w.whole(count_include_pad):
        share = const(1.0 / (pool.h.taps * pool.w.taps))
        mean = pointwise('mean', pool.dims, 'Out', 'Sum', call('mul', read(0), share))
        return Group(label, (given, sums, out), (total, mean), (('Sum', 'register'),))
    ones, count = _counting(pool, count_include_pad)
    mean = pointwise(
        'mean', pool.dims, 'Out', 'Sum', call('div', read(0), read(1)),
        Access('Count', (var('h'), var('w'))),
    )  # fmt: skip
    reach = tuple(d.size for d in ones.dims)
    tensors = (
        given,
        Tensor('Ones', ('y', 'x'), reach, 'inner'),
        Tensor('Count', ('h', 'w'), out.shape[2:], 'inner'),
        sums,
        out,
    )
    return Group(label, tensors, (ones, count, total, mean), (('Sum', 'register'),))


def _counting(pool: Pool2d, padding_counts: bool) -> tuple[Stage, Stage]:
    """Ones wherever an element counts, and how many of them each window holds."""
    axes = (pool.h, pool.w)
    reach = [a.size + (a.before + a.after if padding_counts else 0) for a in axes]
    offsets = [0 if padding_counts else -a.before for a in axes]
    places = (Dim('y', reach[0]), Dim('x', reach[1]))
    ones = Stage('ones', places, Access('Ones', (var('y'), var('x'))), (), const(1.0))
    count = Stage(
        'count',
        (*pool.dims[2:], *pool.window),
        Access('Count', (var('h'), var('w'))),
        (
            Access(
                'Ones',
                (pool.h.index('h', 'r', offsets[0]), pool.w.index('w', 's', offsets[1])),
            ),
        ),
        read(0),
        'sum',
    )
    return ones, count


def global_pool2d(*, n: int = 1, c: int, h: int, w: int, kind: str = 'average') -> Group:
    """One value for each channel: the mean or the maximum of its image, [n, c, 1, 1]."""
    if kind not in ('average', 'max'):
        raise SpecError(f"global pooling is 'average' or 'max', not {kind!r}")
    pool = average_pool2d if kind == 'average' else max_pool2d
    return pool(n=n, c=c, h=h, w=w, window=(h, w))
