"""Reductions over axes: sums, norms, extremes and where they are, running sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import build, label_of, names_of, pointwise, reduce
from tilewright.graph.lowering.elementwise import convert, mul
from tilewright.graph.lowering.given import ANY, FLOATS, NUMBERS, Given, Lowering, Operator, axis_of
from tilewright.graph.lowering.result import Result, Unsupported, filled, view
from tilewright.ops.dtypes import is_float, limits
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
    var,
    whole,
)

X = read(0)
# A running sum is written as a window as long as its axis: work that grows with the square.
MAX_RUNNING = 1 << 13


def _axes(given: Given) -> tuple[int, ...]:
    """The axes to be reduced over, in order; all of them where none is named."""
    rank = len(given.input(0).shape)
    axes = given.axes(1, rank)
    if not axes:
        return () if given.int('noop_with_empty_axes', 0) else tuple(range(rank))
    return tuple(sorted(axes))


def _kept(given: Given, axes: Sequence[int]) -> tuple[int, ...]:
    """The shape of the result, with or without the axes that are gone."""
    shape = given.input(0).shape
    if given.int('keepdims', 1):
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _reduction(
    combiner: str,
    empty: Callable[[str], float],
    before: Callable[[str], Expr] | None = None,
    after: Callable[[int], Expr] | None = None,
) -> Lowering:
    """A lowering; `empty` is the value of nothing, `before` and `after` what else happens."""

    def lower(given: Given) -> Result:
        x, axes = given.input(0), _axes(given)
        shape = _kept(given, axes)
        if 0 in x.shape:
            return filled(shape, 0 if 0 in shape else empty(x.dtype), x.dtype)
        word = given.node.op.lower()
        first = before(x.dtype) if before else X
        count = math.prod(x.shape[i] for i in axes)
        last = after(count) if after else None
        if not axes:
            expr = last and _through(last, first)
            return pointwise(word, expr or first, [x], x.dtype)
        if x.dtype == 'bool':  # combined as numbers
            found = reduce(word, convert(x, 'u8'), axes, combiner, first, last)
            return view(convert(found, 'bool'), shape)
        return view(reduce(word, x, axes, combiner, first, last), shape)

    return lower


def _through(outer: Expr, inner: Expr) -> Expr:
    """outer(inner(x))"""
    if outer.op == 'read':
        return inner
    return Expr(outer.op, tuple(_through(a, inner) for a in outer.args), outer.value, outer.name)


def _least(dtype: str) -> float:
    return -math.inf if is_float(dtype) else limits(dtype)[0]


def _largest(dtype: str) -> float:
    return math.inf if is_float(dtype) else limits(dtype)[1]


def _log_sum_exp(given: Given) -> Result:
    """log of the sum of exponentials, the largest taken off first."""
    x, axes = given.input(0), _axes(given)
    shape = _kept(given, axes)
    if 0 in x.shape:
        return filled(shape, 0 if 0 in shape else -math.inf, x.dtype)
    if not axes:
        return x
    names = names_of(x.shape)
    everywhere = tuple(map(var, names))
    kept = [Dim(names[i], size) for i, size in enumerate(x.shape) if i not in axes]
    lines = tuple(kept or [Dim('one', 1)])
    over = tuple(Dim(names[i], x.shape[i], 'reduction') for i in axes)
    here = tuple(var(d.name) for d in lines)
    # Where all are -inf there is nothing to take off: -inf - -inf is no number.
    finite = call('where', call('isinf', read(1)), const(0.0), read(1))
    shifted = call('exp', call('sub', X, finite))
    place = here if kept else (affine(),)
    stages = [
        Stage('peak', (*lines, *over), Access('Peak', here), (Access('In', everywhere),), X, 'max',
              -math.inf),
        Stage('total', (*lines, *over), Access('Total', here),
              (Access('In', everywhere), Access('Peak', place)), shifted, 'sum'),
        Stage('finish', lines, Access('Out', here), (Access('Total', here), Access('Peak', here)),
              call('add', call('log', X), finite)),
    ]  # fmt: skip
    return view(build(label_of('logsumexp', x.shape), {'In': x}, stages, x.dtype), shape)


def arg_extreme(x: Result, axis: int, combiner: str, last: bool) -> Result:
    """Where along an axis the extreme is: the first place, or the last; the axis is gone.

    NaN is the extreme where there is one, as in numpy: it equals nothing, so it is asked for.
    """
    names = names_of(x.shape)
    along, size = names[axis], x.shape[axis]
    kept = [Dim(d, s) for d, s in zip(names, x.shape, strict=True) if d != along]
    lines = tuple(kept or [Dim('one', 1)])
    domain = (*lines, Dim(along, size, 'reduction'))
    everywhere, here = tuple(map(var, names)), tuple(var(d.name) for d in lines)
    place: tuple[Affine, ...] = here if kept else (affine(),)
    found = call('eq', X, read(1))
    if is_float(x.dtype):
        found = call('or', found, call('isnan', X))
    at = call('where', found, index(along), whole(-1 if last else size))
    stages = [
        Stage('extreme', domain, Access('Peak', here), (Access('In', everywhere),), X, combiner),
        Stage('place', domain, Access('Out', here),
              (Access('In', everywhere), Access('Peak', place)), at, 'max' if last else 'min'),
    ]  # fmt: skip
    label = label_of(f'arg{combiner}', x.shape) + f'@{axis}'
    result = build(label, {'In': x}, stages, 'i64', {'Peak': x.dtype})
    return view(result, tuple(d.size for d in kept))


def _arg(combiner: str) -> Lowering:
    def lower(given: Given) -> Result:
        x = given.input(0)
        axis = axis_of(given.int('axis', 0), len(x.shape))
        if 0 in x.shape:
            raise ModelError(f'{list(x.shape)} has no extreme')
        found = arg_extreme(x, axis, combiner, bool(given.int('select_last_index', 0)))
        return view(found, _kept(given, (axis,)))

    return lower


def _running(combiner: str) -> Lowering:
    """Out[i] = In[0] + .. + In[i]: a window over the axis that reaches back to its start.

    What lies before the start reads as the value that changes nothing.
    """

    def lower(given: Given) -> Result:
        x = given.input(0)
        axis = axis_of(int(given.array(1).reshape(())), len(x.shape))
        size = x.shape[axis]
        if 0 in x.shape:
            return x
        if size > MAX_RUNNING:
            raise Unsupported(f'over {size} elements, of at most {MAX_RUNNING}')
        names = names_of(x.shape)
        exclusive = given.int('exclusive', 0)
        first = exclusive if given.int('reverse', 0) else 1 - size - exclusive
        window = affine((names[axis], 1), ('j', 1), const=first)
        place = tuple(window if i == axis else var(d) for i, d in enumerate(names))
        dims = tuple(Dim(d, s) for d, s in zip(names, x.shape, strict=True))
        stage = Stage(
            given.node.op.lower(), (*dims, Dim('j', size, 'reduction')),
            Access('Out', tuple(map(var, names))), (Access('In', place),), X, combiner,
            0.0 if combiner == 'sum' else 1.0,
        )  # fmt: skip
        return build(label_of(f'running_{combiner}', x.shape), {'In': x}, [stage], x.dtype)

    return lower


def _zero(dtype: str) -> float:
    return 0.0


def _one(dtype: str) -> float:
    return 1.0


OPERATORS: dict[str, Operator] = {
    'ReduceSum': Operator(_reduction('sum', _zero), NUMBERS, (1,)),
    'ReduceProd': Operator(_reduction('prod', _one), NUMBERS, (1,)),
    'ReduceMax': Operator(_reduction('max', _least), ANY, (1,)),
    'ReduceMin': Operator(_reduction('min', _largest), ANY, (1,)),
    'ReduceMean': Operator(
        _reduction('sum', lambda dtype: math.nan, None, lambda n: call('div', X, whole(n))),
        NUMBERS, (1,),
    ),
    'ReduceL1': Operator(
        _reduction('sum', _zero, lambda dtype: call('abs', X)), NUMBERS, (1,)
    ),
    'ReduceL2': Operator(
        _reduction('sum', _zero, lambda dtype: mul(X, X), lambda n: call('sqrt', X)), FLOATS, (1,)
    ),
    'ReduceSumSquare': Operator(_reduction('sum', _zero, lambda dtype: mul(X, X)), NUMBERS, (1,)),
    'ReduceLogSum': Operator(
        _reduction('sum', lambda dtype: -math.inf, None, lambda n: call('log', X)), FLOATS, (1,)
    ),
    'ReduceLogSumExp': Operator(_log_sum_exp, FLOATS, (1,)),
    'ArgMax': Operator(_arg('max'), NUMBERS),
    'ArgMin': Operator(_arg('min'), NUMBERS),
    'CumSum': Operator(_running('sum'), NUMBERS, (1,)),
    'CumProd': Operator(_running('prod'), NUMBERS, (1,)),
}  # fmt: skip
