"""Poolings over any number of axes: the largest of a window and its place, means, norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import build, reduce
from tilewright.graph.lowering.given import FLOATS, NUMBERS, Given, Operator
from tilewright.graph.lowering.result import MAX_FILLED, Result, check_elements, filled, known, view
from tilewright.graph.lowering.windows import Window, axis_names, windows
from tilewright.ops.dtypes import is_float
from tilewright.ops.stage import (
    Access,
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

X = read(0)


def _image(given: Given) -> Result:
    x = given.input(0)
    if len(x.shape) < 3:
        raise ModelError(f'{list(x.shape)} is no image; give [n, c, ..]')
    return x


def _windows(given: Given, x: Result) -> tuple[Window, ...]:
    taps = given.node.attributes.get('kernel_shape')
    if not isinstance(taps, tuple):
        raise ModelError('it needs the attribute kernel_shape')
    ceil = bool(given.int('ceil_mode', 0))
    found = windows(given, x.shape[2:], given.ints('kernel_shape', len(x.shape) - 2, 1), ceil)
    for window in found:
        if max(window.before, window.after) >= window.span:
            raise ModelError(
                f'its padding of {max(window.before, window.after)} is as wide as its window of '
                f'{window.span}; some windows would hold nothing'
            )
    return found


class _Pool:
    """The parts that poolings share: iterators, and a stage that reduces every window."""

    def __init__(self, x: Result, over: Sequence[Window]) -> None:
        self.x, self.over = x, over
        self.image, self.taps = axis_names(len(over))
        self.shape = (*x.shape[:2], *(w.out for w in over))
        self.dims = tuple(
            Dim(d, s) for d, s in zip(('n', 'c', *self.image), self.shape, strict=True)
        )
        self.here = tuple(var(d.name) for d in self.dims)
        self.window = tuple(
            Dim(d, w.taps, 'reduction') for d, w in zip(self.taps, over, strict=True)
        )
        inside = (w.index(o, t) for w, o, t in zip(over, self.image, self.taps, strict=True))
        self.reads = Access('In', (var('n'), var('c'), *inside))

    def stage(
        self, word: str, out: str, expr: Expr, combiner: str, pad_value: float, *others: Access
    ) -> Stage:
        domain = (*self.dims, *self.window)
        return Stage(
            word, domain, Access(out, self.here), (self.reads, *others), expr, combiner, pad_value
        )

    def label(self, word: str) -> str:
        def joined(numbers: Sequence[int]) -> str:
            return 'x'.join(map(str, numbers))

        return (
            f'{word}-{joined(self.x.shape)}k{joined([w.taps for w in self.over])}'
            f's{joined([w.stride for w in self.over])}p{joined([w.before for w in self.over])}'
            f'd{joined([w.dilation for w in self.over])}'
        )


def _max_pool(given: Given) -> Result | tuple[Result, ...]:
    x = _image(given)
    pool = _Pool(x, _windows(given, x))
    if 0 in pool.shape:
        found = filled(pool.shape, 0, x.dtype)
        return found, filled(pool.shape, 0, 'i64')
    stage = pool.stage('max_pool', 'Out', X, 'max', -math.inf)
    largest = build(pool.label('maxpool'), {'In': x}, [stage], x.dtype)
    if len(given.node.outputs) < 2:
        return largest
    return largest, _places(pool, largest, bool(given.int('storage_order', 0)))


def _places(pool: _Pool, largest: Result, by_columns: bool) -> Result:
    """Where in the flat input the largest of each window is, the first of equals.

    NaN is the largest where there is one; a window of the least numbers does not point into the
    border, which holds them too.
    """
    x, spatial = pool.x, pool.x.shape[2:]
    sizes = spatial if not by_columns else tuple(reversed(spatial))
    places = list(zip(pool.image, pool.taps, pool.over, strict=True))
    place = call('add', call('mul', index('n'), whole(x.shape[1])), index('c'))
    found = call('eq', X, read(1))
    if is_float(x.dtype):
        found = call('or', found, call('isnan', X))
    for size, (out, tap, w) in zip(sizes, reversed(places) if by_columns else places, strict=True):
        step = call('add', call('mul', index(out), whole(w.stride)),
                    call('mul', index(tap), whole(w.dilation)))  # fmt: skip
        step = call('sub', step, whole(w.before))
        place = call('add', call('mul', place, whole(size)), step)
        if w.leaves:
            inside = call('and', call('ge', step, whole(0)), call('lt', step, whole(size)))
            found = call('and', found, inside)
    # A dilated window may lie in the border with all its taps: the last place then, inside too.
    chosen = call('where', found, place, whole(math.prod(x.shape) - 1))
    stage = pool.stage('place', 'Out', chosen, 'min', -math.inf, Access('Largest', pool.here))
    return build(pool.label('maxpool-places'), {'In': x, 'Largest': largest}, [stage], 'i64')


def _average_pool(given: Given) -> Result:
    x = _image(given)
    pool = _Pool(x, _windows(given, x))
    if 0 in pool.shape:
        return filled(pool.shape, 0, x.dtype)
    padding_counts = bool(given.int('count_include_pad', 0))
    check_elements(pool.shape[2:], 'the result', MAX_FILLED)
    # Of a dilated window all taps may lie in the border: the mean of nothing is 0, not 0 / 0.
    counts = [np.maximum(w.counts(padding_counts), 1) for w in pool.over]
    total = pool.stage('sum_pool', 'Sum', X, 'sum', 0.0)
    here = Access('Sum', pool.here)
    operands: dict[str, Result] = {'In': x}
    label = pool.label('avgpool')
    if all((row == row[0]).all() for row in counts):
        share = const(1.0 / math.prod(int(row[0]) for row in counts))
        mean = Stage('mean', pool.dims, Access('Out', pool.here), (here,), call('mul', X, share))
    else:
        operands['Count'] = known(functools.reduce(np.multiply.outer, counts), x.dtype)
        at = Access('Count', tuple(map(var, pool.image)))
        expr = call('div', X, read(1))
        mean = Stage('mean', pool.dims, Access('Out', pool.here), (here, at), expr)
    return build(label, operands, [total, mean], x.dtype)


def _norm(power: int) -> tuple[Expr, Expr]:
    """Before and after the sum of an Lp norm."""
    if power < 1:
        raise ModelError(f'its p is {power}; it must be 1 or more')
    if power == 1:
        return call('abs', X), X
    if power == 2:
        return call('mul', X, X), call('sqrt', X)
    raised = call('pow', call('abs', X), const(power))
    return raised, call('pow', X, const(1.0 / power))


def _lp_pool(given: Given) -> Result:
    x = _image(given)
    pool = _Pool(x, _windows(given, x))
    if 0 in pool.shape:
        return filled(pool.shape, 0, x.dtype)
    before, after = _norm(given.int('p', 2))
    total = pool.stage('norm_pool', 'Sum', before, 'sum', 0.0)
    root = Stage('root', pool.dims, Access('Out', pool.here), (Access('Sum', pool.here),), after)
    return build(pool.label('lppool'), {'In': x}, [total, root], x.dtype)


def _over_all(given: Given, word: str, combiner: str, before: Expr, after: Expr | None) -> Result:
    """One value for each channel."""
    x = _image(given)
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
    if 0 in x.shape:
        raise ModelError(f'{list(x.shape)} has no elements to reduce')
    axes = range(2, len(x.shape))
    return view(reduce(word, x, tuple(axes), combiner, before, after), shape)


def _global_average(given: Given) -> Result:
    count = math.prod(_image(given).shape[2:])
    return _over_all(given, 'global_average', 'sum', X, call('mul', X, const(1.0 / max(1, count))))


def _global_max(given: Given) -> Result:
    return _over_all(given, 'global_max', 'max', X, None)


def _global_lp(given: Given) -> Result:
    before, after = _norm(given.int('p', 2))
    return _over_all(given, 'global_lp', 'sum', before, after)


OPERATORS: dict[str, Operator] = {
    'MaxPool': Operator(_max_pool, NUMBERS),
    'AveragePool': Operator(_average_pool, FLOATS),
    'LpPool': Operator(_lp_pool, FLOATS),
    'GlobalAveragePool': Operator(_global_average, FLOATS),
    'GlobalMaxPool': Operator(_global_max, NUMBERS),
    'GlobalLpPool': Operator(_global_lp, FLOATS),
}
