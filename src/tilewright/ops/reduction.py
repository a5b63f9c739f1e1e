"""Reductions over axes: sums, norms, extremes and where they are, running sums.

    Total[line] combine= before(In[..]);   Out[line] = after(Total[line])

Results have one element for each line; the axes that were reduced over are gone, and where no other
is left one of size 1 stands in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.ops.describe import Shape, dims_of, group_of, label_of, names_of
from tilewright.ops.dtypes import DTYPES, is_float, limits
from tilewright.ops.group import Group
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    affine,
    call,
    const,
    index,
    read,
    substituted,
    var,
    whole,
)

X = read(0)


@dataclass(frozen=True)
class Lines:
    """A tensor seen as lines along some axes."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @cached_property
    def kept(self) -> tuple[Dim, ...]:
        return tuple(d for i, d in enumerate(dims_of(self.shape)) if i not in self.axes)

    @cached_property
    def dims(self) -> tuple[Dim, ...]:
        """One point for each line."""
        return self.kept or (Dim('one', 1),)

    @cached_property
    def domain(self) -> tuple[Dim, ...]:
        names = names_of(self.shape)
        return (*self.dims, *(Dim(names[i], self.shape[i], 'reduction') for i in self.axes))

    @property
    def here(self) -> tuple[Affine, ...]:
        """Where the result of a line is written."""
        return tuple(var(d.name) for d in self.dims)

    @property
    def place(self) -> tuple[Affine, ...]:
        """The same from a domain of elements, which has no dimension to stand in."""
        return self.here if self.kept else (affine(),)

    @property
    def source(self) -> Access:
        return Access('In', tuple(map(var, names_of(self.shape))))

    def reduce(
        self, word: str, out: str, expr: Expr, combiner: str, *others: Access, pad: float = 0.0
    ) -> Stage:
        """`out` combine= expr(In, others...) of every line."""
        reads = (self.source, *others)
        return Stage(word, self.domain, Access(out, self.here), reads, expr, combiner, pad)

    def finish(self, word: str, out: str, expr: Expr, *reads: Access) -> Stage:
        """`out` = expr(reads...) of every line."""
        return Stage(word, self.dims, Access(out, self.here), reads, expr)


def lines(shape: Shape, axes: Sequence[int]) -> Lines:
    return Lines(tuple(shape), tuple(axes))


def reduce(
    word: str,
    shape: Shape,
    axes: Sequence[int],
    combiner: str,
    before: Expr | None = None,
    after: Expr | None = None,
    dtype: str = 'f32',
) -> Group:
    """after(combine before(In) over axes).

    With `after`, whole numbers of 32 bits and fewer are combined in 64, so that the mean of large
    ones is right.
    """
    form = lines(shape, axes)
    stages = [form.reduce(word, 'Total' if after else 'Out', before or X, combiner)]
    if after:
        stages.append(form.finish('finish', 'Out', after, Access('Total', form.here)))
    label = f'{label_of(word, shape)}@{"".join(map(str, axes))}'
    narrow = not is_float(dtype) and DTYPES[dtype] < 8
    return group_of(
        label, stages, {'In': shape}, dtype, {'Total': 'i64'} if after and narrow else None
    )


def _zero(dtype: str) -> float:
    return 0.0


@dataclass(frozen=True)
class Reduction:
    """A reduction by name: `after` takes the number of elements, `empty` is the value of none."""

    combiner: str
    before: Expr = X
    after: Callable[[int], Expr] | None = None
    empty: Callable[[str], float] = _zero

    def group(self, word: str, shape: Shape, axes: Sequence[int], dtype: str = 'f32') -> Group:
        """What it computes over these axes, of which there is at least one."""
        last = self.after(math.prod(shape[i] for i in axes)) if self.after else None
        return reduce(word, shape, axes, self.combiner, self.before, last, dtype)

    def of_one(self) -> Expr:
        """What it makes of a single element."""
        return substituted(self.after(1), [self.before]) if self.after else self.before


def _least(dtype: str) -> float:
    return -math.inf if is_float(dtype) else limits(dtype)[0]


def _largest(dtype: str) -> float:
    return math.inf if is_float(dtype) else limits(dtype)[1]


_SQUARE = call('mul', X, X)
REDUCTIONS = {
    'sum': Reduction('sum'),
    'prod': Reduction('prod', empty=lambda dtype: 1.0),
    'max': Reduction('max', empty=_least),
    'min': Reduction('min', empty=_largest),
    'mean': Reduction('sum', X, lambda n: call('div', X, whole(n)), lambda dtype: math.nan),
    'l1': Reduction('sum', call('abs', X)),
    'l2': Reduction('sum', _SQUARE, lambda n: call('sqrt', X)),
    'sum_square': Reduction('sum', _SQUARE),
    'log_sum': Reduction('sum', X, lambda n: call('log', X), lambda dtype: -math.inf),
}


def log_sum_exp(shape: Shape, axes: Sequence[int], dtype: str = 'f32') -> Group:
    """log of the sum of exponentials, the largest taken off first."""
    form = lines(shape, axes)
    # Where all are -inf there is nothing to take off: -inf - -inf is not a number.
    finite = call('where', call('isinf', read(1)), const(0.0), read(1))
    shifted = call('exp', call('sub', X, finite))
    peak, total = Access('Peak', form.here), Access('Total', form.here)
    stages = [
        form.reduce('peak', 'Peak', X, 'max', pad=-math.inf),
        form.reduce('total', 'Total', shifted, 'sum', Access('Peak', form.place)),
        form.finish('finish', 'Out', call('add', call('log', X), finite), total, peak),
    ]
    return group_of(label_of('logsumexp', shape), stages, {'In': shape}, dtype)


def arg_extreme(
    shape: Shape, axis: int, combiner: str, last: bool = False, dtype: str = 'f32'
) -> Group:
    """Where along an axis the extreme is, as i64: the first place, or the last.

    NaN is the extreme where there is one, as in numpy: it equals nothing, so it is asked for.
    """
    form = lines(shape, (axis,))
    found = call('eq', X, read(1))
    if is_float(dtype):
        found = call('or', found, call('isnan', X))
    along = index(names_of(shape)[axis])
    at = call('where', found, along, whole(-1 if last else shape[axis]))
    stages = [
        form.reduce('extreme', 'Peak', X, combiner),
        form.reduce('place', 'Out', at, 'max' if last else 'min', Access('Peak', form.place)),
    ]
    label = label_of(f'arg{combiner}', shape) + f'@{axis}'
    return group_of(label, stages, {'In': shape}, 'i64', {'In': dtype, 'Peak': dtype})


def running(
    word: str,
    shape: Shape,
    axis: int,
    combiner: str,
    *,
    exclusive: bool = False,
    reverse: bool = False,
    dtype: str = 'f32',
) -> Group:
    """Out[i] = In[0] + .. + In[i]: a window over the axis that reaches back to its start.

    What lies before the start reads as the value that changes nothing.
    """
    names, size = names_of(shape), shape[axis]
    first = int(exclusive) if reverse else 1 - size - exclusive
    window = affine((names[axis], 1), ('j', 1), const=first)
    place = tuple(window if i == axis else var(d) for i, d in enumerate(names))
    stage = Stage(
        word, (*dims_of(shape), Dim('j', size, 'reduction')), Access('Out', tuple(map(var, names))),
        (Access('In', place),), X, combiner, 0.0 if combiner == 'sum' else 1.0,
    )  # fmt: skip
    return group_of(label_of(f'running_{combiner}', shape), [stage], {'In': shape}, dtype)
