"""Pooling over images of one, two or three dimensions: maximum, mean, norm, and where maxima are.

The same descriptions as ops/pooling.py, which holds those of two dimensions, over any number of
axes: w | s, h w | r s, or d h w | t r s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import SpecError
from tilewright.ops.convolution import MAX_ELEMENTS, _whole
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import pointwise
from tilewright.ops.pooling import Axis, average_pool2d, max_pool2d
from tilewright.ops.reduction import reduce
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    call,
    const,
    index,
    read,
    var,
    whole,
)

IMAGE, TAPS = ('d', 'h', 'w'), ('t', 'r', 's')


@dataclass(frozen=True, slots=True)
class Pool:
    """A pooling's numbers, normalised and checked; `axes` are those of the image."""

    n: int
    c: int
    axes: tuple[Axis, ...]
    dtype: str

    @classmethod
    def of(
        cls, shape: Sequence[int], window: Sequence[int], stride: Sequence[int] | None,
        before: Sequence[int] | None, after: Sequence[int] | None,
        dilation: Sequence[int] | None, ceil: bool, dtype: str,
    ) -> Pool:  # fmt: skip
        sizes = tuple(_whole('a size', size, 1) for size in shape)
        rank = len(sizes) - 2
        if not 1 <= rank <= 3:
            raise SpecError(f'pooling of {sizes}; images have one, two or three dimensions')
        if math.prod(sizes) > MAX_ELEMENTS:
            raise SpecError(f'the image would have more than {MAX_ELEMENTS} elements, the limit')
        taps = _each('window', window, rank, 1)
        steps = _each('stride', stride, rank, 1) if stride else (1,) * rank
        spread = _each('dilation', dilation, rank, 1) if dilation else (1,) * rank
        low = _each('padding', before, rank, 0) if before else (0,) * rank
        high = _each('padding', after, rank, 0) if after else (0,) * rank
        axes = tuple(
            Axis(name, size, count, step, apart, first, last, bool(ceil))
            for name, size, count, step, apart, first, last in zip(
                IMAGE[3 - rank :], sizes[2:], taps, steps, spread, low, high, strict=True
            )
        )
        return cls(sizes[0], sizes[1], axes, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.n, self.c, *(a.size for a in self.axes)

    @property
    def out_shape(self) -> tuple[int, ...]:
        return self.n, self.c, *(a.out for a in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return 'n', 'c', *(a.name for a in self.axes)

    @property
    def taps(self) -> tuple[str, ...]:
        return TAPS[3 - len(self.axes) :]

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(Dim(d, size) for d, size in zip(self.names, self.out_shape, strict=True))

    @property
    def window(self) -> tuple[Dim, ...]:
        return tuple(Dim(t, a.taps, 'reduction') for t, a in zip(self.taps, self.axes, strict=True))

    @property
    def here(self) -> tuple[Affine, ...]:
        return tuple(map(var, self.names))

    def places(self, offsets: Sequence[int]) -> tuple[Affine, ...]:
        return tuple(
            a.index(a.name, t, offset)
            for a, t, offset in zip(self.axes, self.taps, offsets, strict=True)
        )

    @property
    def source(self) -> Access:
        """The element of the image under a tap."""
        return Access('In', (var('n'), var('c'), *self.places([-a.before for a in self.axes])))

    def reduce(
        self, name: str, out: str, combiner: str, pad: float, expr: Expr, *others: Access
    ) -> Stage:
        return Stage(
            name, (*self.dims, *self.window), Access(out, self.here), (self.source, *others), expr,
            combiner, pad,
        )  # fmt: skip

    def given(self) -> Tensor:
        return Tensor('In', self.names, self.shape, dtype=self.dtype)

    def result(self, name: str, role: str, dtype: str = '') -> Tensor:
        return Tensor(name, self.names, self.out_shape, role, dtype or self.dtype)

    def label(self, kind: str) -> str:
        axes = ','.join(
            f'{a.name}{a.size}o{a.out}k{a.taps}s{a.stride}p{a.before}d{a.dilation}'
            for a in self.axes
        )
        mark = '' if self.dtype == 'f32' else f':{self.dtype}'
        return f'{kind}-n{self.n}c{self.c}{axes}{mark}'

    @property
    def as_two(self) -> dict:
        """The arguments of a pooling of two dimensions."""
        h, w = self.axes
        return {
            'n': self.n, 'c': self.c, 'h': h.size, 'w': w.size, 'window': (h.taps, w.taps),
            'stride': (h.stride, w.stride), 'pad': (h.before, w.before, h.after, w.after),
            'dilation': (h.dilation, w.dilation), 'ceil': h.ceil,
        }  # fmt: skip


def _each(name: str, value: Sequence[int] | None, rank: int, least: int) -> tuple[int, ...]:
    numbers = tuple(value or ())
    if len(numbers) != rank:
        raise SpecError(f'{name} is {numbers}; an image of {rank} dimensions needs {rank} numbers')
    return tuple(_whole(name, number, least) for number in numbers)


def max_pool(
    shape: Sequence[int], window: Sequence[int], stride: Sequence[int] | None = None,
    before: Sequence[int] | None = None, after: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None, *, ceil: bool = False, dtype: str = 'f32',
) -> Group:  # fmt: skip
    """The maximum of each window of In [n, c, ..]. stride: 1 where not given, as in ONNX."""
    pool = Pool.of(shape, window, stride, before, after, dilation, ceil, dtype)
    if len(pool.axes) == 2 and dtype == 'f32':
        return max_pool2d(**pool.as_two)
    stage = pool.reduce('max_pool', 'Out', 'max', -math.inf, read(0))
    return Group(pool.label('maxpool'), (pool.given(), pool.result('Out', 'output')), (stage,))


def max_pool_indices(
    shape: Sequence[int], window: Sequence[int], stride: Sequence[int] | None = None,
    before: Sequence[int] | None = None, after: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None, *, ceil: bool = False, dtype: str = 'f32',
    column_major: bool = False, planes: bool = False,
) -> Group:  # fmt: skip
    """Out (i64): where the maximum of each window is, counted through all of In.

    column_major  images are counted column by column
    planes        counted from the beginning of each image, as PyTorch does
    """
    pool = Pool.of(shape, window, stride, before, after, dilation, ceil, dtype)
    axes = [(a, _position(a, t)) for a, t in zip(pool.axes, pool.taps, strict=True)]
    order = axes if not column_major else axes[::-1]
    place = whole(0)
    if not planes:
        place = call('add', call('mul', index('n'), whole(pool.c)), index('c'))
    for axis, at in order:
        place = call('add', call('mul', place, whole(axis.size)), at)
    found = call('eq', read(0), read(1))
    if is_float(dtype):
        found = call('or', found, call('isnan', read(0)))
    for axis, at in axes:  # a window of the least numbers must not point into the border
        if not axis.whole(False):
            inside = call('and', call('ge', at, whole(0)), call('lt', at, whole(axis.size)))
            found = call('and', found, inside)
    nowhere = whole(math.prod(pool.shape))
    stages = (
        pool.reduce('peak', 'Peak', 'max', -math.inf, read(0)),
        pool.reduce(
            'place', 'Out', 'min', -math.inf, call('where', found, place, nowhere),
            Access('Peak', pool.here),
        ),
    )  # fmt: skip
    tensors = (pool.given(), pool.result('Peak', 'inner'), pool.result('Out', 'output', 'i64'))
    mark = f'{"-columns" if column_major else ""}{"-planes" if planes else ""}'
    return Group(pool.label(f'maxplace{mark}'), tensors, stages)


def _position(axis: Axis, tap: str) -> Expr:
    """The place along an axis that a tap looks at, as an expression."""
    terms = call(
        'add', call('mul', index(axis.name), whole(axis.stride)),
        call('mul', index(tap), whole(axis.dilation)),
    )  # fmt: skip
    return call('sub', terms, whole(axis.before))


def average_pool(
    shape: Sequence[int], window: Sequence[int], stride: Sequence[int] | None = None,
    before: Sequence[int] | None = None, after: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None, *, ceil: bool = False, count_include_pad: bool = False,
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """The mean of each window, over padding too if that counts; never over what lies behind it."""
    pool = Pool.of(shape, window, stride, before, after, dilation, ceil, dtype)
    if len(pool.axes) == 2 and dtype == 'f32':
        return average_pool2d(**pool.as_two, count_include_pad=count_include_pad)
    label = pool.label('avgpool') + ('' if count_include_pad else '-inside')
    total = pool.reduce('sum_pool', 'Sum', 'sum', 0.0, read(0))
    given, sums, out = pool.given(), pool.result('Sum', 'inner'), pool.result('Out', 'output')
    if all(a.whole(count_include_pad) for a in pool.axes):
        share = const(1.0 / math.prod(a.taps for a in pool.axes))
        mean = pointwise('mean', pool.dims, 'Out', 'Sum', call('mul', read(0), share))
        return Group(label, (given, sums, out), (total, mean), (('Sum', 'register'),))
    # How many elements count, in every window: a window over ones, computed ahead.
    places = [f'y{i}' for i in range(len(pool.axes))]
    reach = [a.size + (a.before + a.after if count_include_pad else 0) for a in pool.axes]
    offsets = [0 if count_include_pad else -a.before for a in pool.axes]
    image = pool.here[2:]
    ones = Stage(
        'ones', tuple(Dim(p, s) for p, s in zip(places, reach, strict=True)),
        Access('Ones', tuple(map(var, places))), (), const(1.0),
    )  # fmt: skip
    count = Stage(
        'count', (*pool.dims[2:], *pool.window), Access('Count', image),
        (Access('Ones', pool.places(offsets)),), read(0), 'sum',
    )  # fmt: skip
    mean = pointwise(
        'mean', pool.dims, 'Out', 'Sum', call('div', read(0), read(1)), Access('Count', image)
    )
    tensors = (
        given,
        Tensor('Ones', tuple(places), tuple(reach), 'inner', dtype),
        Tensor('Count', pool.names[2:], pool.out_shape[2:], 'inner', dtype),
        sums,
        out,
    )
    return Group(label, tensors, (ones, count, total, mean), (('Sum', 'register'),))


def _power(p: float) -> tuple[Expr, Expr]:
    """(|x|^p, its inverse) as expressions of read 0."""
    if p == 1:
        return call('abs', read(0)), read(0)
    if p == 2:
        return call('mul', read(0), read(0)), call('sqrt', read(0))
    if not p > 0 or not math.isfinite(p):
        raise SpecError(f'a norm of order {p}; it must be positive')
    return call('pow', call('abs', read(0)), const(p)), call('pow', read(0), const(1.0 / p))


def lp_pool(
    shape: Sequence[int], window: Sequence[int], stride: Sequence[int] | None = None,
    before: Sequence[int] | None = None, after: Sequence[int] | None = None,
    dilation: Sequence[int] | None = None, *, p: float = 2, ceil: bool = False, dtype: str = 'f32',
) -> Group:  # fmt: skip
    """(sum of |x|^p)^(1/p) of each window."""
    pool = Pool.of(shape, window, stride, before, after, dilation, ceil, dtype)
    each, last = _power(p)
    stages = (
        pool.reduce('powers', 'Sum', 'sum', 0.0, each),
        pointwise('root', pool.dims, 'Out', 'Sum', last),
    )
    tensors = (pool.given(), pool.result('Sum', 'inner'), pool.result('Out', 'output'))
    return Group(pool.label(f'lp{p:g}pool'), tensors, stages, (('Sum', 'register'),))


def global_pool(
    shape: Sequence[int], kind: str = 'average', *, p: float = 2, dtype: str = 'f32'
) -> Group:
    """One value for each channel, [n, c, 1, ..]: 'average', 'max', or 'lp' of order p."""
    axes = range(2, len(shape))
    if len(shape) < 3:
        raise SpecError(f'{tuple(shape)} has no image; give [n, c, ..]')
    if kind in ('average', 'max'):
        return reduce('mean' if kind == 'average' else 'max', shape, axes, dtype=dtype)
    if kind != 'lp':
        raise SpecError(f"global pooling is 'average', 'max' or 'lp', not {kind!r}")
    return lp_pool(shape, shape[2:], p=p, dtype=dtype)
