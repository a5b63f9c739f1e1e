"""Reductions over any axes of a tensor, and the places of largest and smallest elements.

    Acc[kept] combine= f(In[..]);   Out = g(Acc)

`log_sum_exp` takes the maximum off first, so that nothing overflows. The place of the largest
element is the least index at which the element equals the maximum; NaN counts as the largest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import (
    COMBINERS,
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    call,
    const,
    index,
    literal,
    read,
    var,
    whole,
)

# kind -> (function of every element, combiner, function of the result)
_KINDS: dict[str, tuple[Expr, str, Expr | None]] = {
    'sum': (read(0), 'sum', None),
    'mean': (read(0), 'sum', None),
    'max': (read(0), 'max', None),
    'min': (read(0), 'min', None),
    'prod': (read(0), 'prod', None),
    'l1': (call('abs', read(0)), 'sum', None),
    'l2': (call('mul', read(0), read(0)), 'sum', call('sqrt', read(0))),
    'sum_square': (call('mul', read(0), read(0)), 'sum', None),
    'log_sum': (read(0), 'sum', call('log', read(0))),
}
KINDS = (*_KINDS, 'log_sum_exp')


@dataclass(frozen=True, slots=True)
class Axes:
    """The shape of a reduction, normalised and checked."""

    sizes: tuple[int, ...]
    over: tuple[int, ...]
    keepdims: bool

    @classmethod
    def of(cls, shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> Axes:
        sizes = tuple(_whole('a size', size, 1) for size in shape)
        chosen = tuple(axes) or tuple(range(len(sizes)))
        if any(not -len(sizes) <= a < len(sizes) for a in chosen):
            raise SpecError(f'axes {tuple(axes)} are not all among the {len(sizes)} of {sizes}')
        over = tuple(sorted({a % len(sizes) for a in chosen} if sizes else ()))
        return cls(sizes, over, bool(keepdims))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f'd{i}' for i in range(len(self.sizes)))

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.sizes)) if i not in self.over)

    @property
    def count(self) -> int:
        return math.prod(self.sizes[i] for i in self.over)

    @property
    def domain(self) -> tuple[Dim, ...]:
        """Kept dimensions, then those that are reduced, in the order of the tensor."""
        names, sizes = self.names, self.sizes
        return (
            *(Dim(names[i], sizes[i]) for i in self.kept),
            *(Dim(names[i], sizes[i], 'reduction') for i in self.over),
        )

    @property
    def flat(self) -> tuple[Dim, ...]:
        return tuple(Dim(self.names[i], self.sizes[i]) for i in self.kept)

    @property
    def everywhere(self) -> tuple[Affine, ...]:
        return tuple(map(var, self.names))

    @property
    def here(self) -> tuple[Affine, ...]:
        """Where a result lies."""
        if not self.keepdims:
            return tuple(var(self.names[i]) for i in self.kept)
        return tuple(var(n) if i in self.kept else Affine(()) for i, n in enumerate(self.names))

    def result(self, name: str, role: str, dtype: str) -> Tensor:
        if self.keepdims:
            shape = tuple(s if i in self.kept else 1 for i, s in enumerate(self.sizes))
            return Tensor(name, self.names, shape, role, dtype)
        names = tuple(self.names[i] for i in self.kept)
        return Tensor(name, names, tuple(self.sizes[i] for i in self.kept), role, dtype)

    def reduce(self, name: str, out: str, combiner: str, expr: Expr, *others: Access) -> Stage:
        """`out` combine= expr(In, others...) over the axes."""
        return Stage(
            name, self.domain, Access(out, self.here), (Access('In', self.everywhere), *others),
            expr, combiner, COMBINERS[combiner],
        )  # fmt: skip

    def behind(self, name: str, out: str, source: str, expr: Expr, *others: Access) -> Stage:
        """`out` = expr(source, others...) for every result."""
        return Stage(
            name, self.flat, Access(out, self.here), (Access(source, self.here), *others), expr
        )

    def label(self, kind: str, dtype: str) -> str:
        over = ','.join(map(str, self.over))
        mark = '' if dtype == 'f32' else f':{dtype}'
        return f'{kind}-{"x".join(map(str, self.sizes))}@{over}{"" if self.keepdims else "-"}{mark}'


def reduce(
    kind: str,
    shape: Sequence[int],
    axes: Sequence[int] = (),
    *,
    keepdims: bool = True,
    dtype: str = 'f32',
) -> Group:
    """Out: one of `KINDS` of In over these axes, all of them if none is given."""
    if kind not in KINDS:
        raise SpecError(f'reduction {kind!r} is not known; use one of {", ".join(KINDS)}')
    form = Axes.of(shape, axes, keepdims)
    given = Tensor('In', form.names, form.sizes, dtype=dtype)
    out, label = form.result('Out', 'output', dtype), form.label(kind, dtype)
    if kind == 'log_sum_exp':
        return _log_sum_exp(form, given, out, label)
    first, combiner, last = _KINDS[kind]
    if kind == 'mean':
        last = (
            call('mul', read(0), const(1.0 / form.count))
            if is_float(dtype)
            else call('div', read(0), whole(form.count))
        )
    if last is None:
        return Group(label, (given, out), (form.reduce(kind, 'Out', combiner, first),))
    acc = form.result('Acc0', 'inner', dtype)
    stages = (
        form.reduce(kind, 'Acc0', combiner, first),
        form.behind('finish', 'Out', 'Acc0', last),
    )
    return Group(label, (given, acc, out), stages, (('Acc0', 'register'),))


def _log_sum_exp(form: Axes, given: Tensor, out: Tensor, label: str) -> Group:
    """Peak + log(sum of exp(In - Peak)); an infinite peak is not taken off, inf - inf is NaN."""
    peak, acc = form.result('Peak', 'inner', given.dtype), form.result('Acc0', 'inner', given.dtype)
    line = Access('Peak', form.here)
    finite = call('where', call('isinf', read(1)), const(0.0), read(1))
    stages = (
        form.reduce('peak', 'Peak', 'max', read(0)),
        form.reduce('total', 'Acc0', 'sum', call('exp', call('sub', read(0), finite)), line),
        form.behind('finish', 'Out', 'Acc0', call('add', call('log', read(0)), finite), line),
    )
    return Group(label, (given, peak, acc, out), stages, (('Acc0', 'register'),))


def arg(
    kind: str,
    shape: Sequence[int],
    axis: int,
    *,
    keepdims: bool = True,
    last: bool = False,
    dtype: str = 'f32',
) -> Group:
    """Out (i64): where along an axis the largest ('max') or smallest ('min') element is.

    Of several equal ones it is the first, or with `last` the last.
    """
    if kind not in ('max', 'min'):
        raise SpecError(f"places are those of 'max' or 'min', not of {kind!r}")
    form = Axes.of(shape, (axis,), keepdims)
    along, size = form.names[form.over[0]], form.count
    line = Access('Peak', form.here)
    found = call('eq', read(0), read(1))
    if is_float(dtype):
        found = call('or', found, call('isnan', read(0)))
    nowhere = whole(-1 if last else size)
    place = Stage(
        'place', form.domain, Access('Out', form.here), (Access('In', form.everywhere), line),
        call('where', found, index(along), nowhere), 'max' if last else 'min',
    )  # fmt: skip
    tensors = (
        Tensor('In', form.names, form.sizes, dtype=dtype),
        form.result('Peak', 'inner', dtype),
        form.result('Out', 'output', 'i64'),
    )
    label = form.label(f'arg{kind}{"-last" if last else ""}', dtype)
    return Group(label, tensors, (form.reduce('peak', 'Peak', kind, read(0)), place))


def cumulative_sum(
    shape: Sequence[int], axis: int, *, exclusive: bool = False, reverse: bool = False,
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Out[.., i, ..] = sum of In[.., j, ..] for j up to i (before it, from the end)."""
    form = Axes.of(shape, (axis,), True)
    name = form.names[form.over[0]]
    here = form.everywhere
    dims = tuple(Dim(n, s) for n, s in zip(form.names, form.sizes, strict=True))
    taps = Dim('j', form.count, 'reduction')
    place = tuple(var('j') if n == name else var(n) for n in form.names)
    order = ('lt' if exclusive else 'le') if not reverse else ('gt' if exclusive else 'ge')
    inside = call(order, index('j'), index(name))
    stage = Stage(
        'cumulative', (*dims, taps), Access('Out', here), (Access('In', place),),
        call('where', inside, read(0), literal(0, dtype)), 'sum',
    )  # fmt: skip
    tensors = (
        Tensor('In', form.names, form.sizes, dtype=dtype),
        Tensor('Out', form.names, form.sizes, 'output', dtype),
    )
    mark = f'{"-exclusive" if exclusive else ""}{"-reverse" if reverse else ""}'
    return Group(form.label(f'cumsum{mark}', dtype), tensors, (stage,))
