"""Poolings over any number of axes: the largest of a window and its place, means, norms.

    max    Out[n, c, h, w] max= In[n, c, H, W]
    mean   Out[n, c, h, w]  =  sum of In[n, c, H, W] / Count[h, w]

with H and W as the windows have them (ops/windows.py). Where all windows hold as many elements,
Count is a number, else a constant that `window_counts` computes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import SpecError
from tilewright.ops.describe import Shape, group_of
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group
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
from tilewright.ops.windows import Window, axis_names

X = read(0)


class _Pool:
    """The parts that poolings share: iterators, and a stage that reduces every window."""

    def __init__(self, shape: Shape, over: Sequence[Window]) -> None:
        self.shape, self.over = shape, over
        self.image, self.taps = axis_names(len(over))
        sizes = (*shape[:2], *(w.out for w in over))
        self.dims = tuple(Dim(d, s) for d, s in zip(('n', 'c', *self.image), sizes, strict=True))
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

    def finish(self, word: str, expr: Expr, *others: Access) -> Stage:
        reads = (Access('Sum', self.here), *others)
        return Stage(word, self.dims, Access('Out', self.here), reads, expr)

    def label(self, word: str) -> str:
        def joined(numbers: Sequence[int]) -> str:
            return 'x'.join(map(str, numbers))

        return (
            f'{word}-{joined(self.shape)}k{joined([w.taps for w in self.over])}'
            f's{joined([w.stride for w in self.over])}p{joined([w.before for w in self.over])}'
            f'd{joined([w.dilation for w in self.over])}'
        )


def max_pool(shape: Shape, over: Sequence[Window], dtype: str = 'f32') -> Group:
    """The maximum of each window over an image [n, c, ..]."""
    pool = _Pool(shape, over)
    stage = pool.stage('max_pool', 'Out', X, 'max', -math.inf)
    return group_of(pool.label('maxpool'), [stage], {'In': shape}, dtype)


def max_pool_places(
    shape: Shape, over: Sequence[Window], by_columns: bool = False, dtype: str = 'f32'
) -> Group:
    """Where in the flat input the largest of each window is, the first of equals, as i64.

    Reads the input and `Largest`, what `max_pool` computed. NaN is the largest where there is one;
    a window of the least numbers does not point into the border, which holds them too.
    """
    pool = _Pool(shape, over)
    sizes = tuple(reversed(shape[2:])) if by_columns else shape[2:]
    places = list(zip(pool.image, pool.taps, pool.over, strict=True))
    place = call('add', call('mul', index('n'), whole(shape[1])), index('c'))
    found = call('eq', X, read(1))
    if is_float(dtype):
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
    chosen = call('where', found, place, whole(math.prod(shape) - 1))
    stage = pool.stage('place', 'Out', chosen, 'min', -math.inf, Access('Largest', pool.here))
    shapes = {'In': shape, 'Largest': tuple(d.size for d in pool.dims)}
    kinds = {'In': dtype, 'Largest': dtype}
    return group_of(pool.label('maxpool-places'), [stage], shapes, 'i64', kinds)


def window_counts(over: Sequence[Window], padding_counts: bool) -> np.ndarray | int:
    """How many elements each window holds: one number where it is the same everywhere."""
    # Of a dilated window all taps may lie in the border: the mean of nothing is 0, not 0 / 0.
    counts = [np.maximum(w.counts(padding_counts), 1) for w in over]
    if all((row == row[0]).all() for row in counts):
        return math.prod(int(row[0]) for row in counts)
    return functools.reduce(np.multiply.outer, counts)


def average_pool(
    shape: Shape, over: Sequence[Window], counts: np.ndarray | int, dtype: str = 'f32'
) -> Group:
    """The mean of each window; counts that differ are its operand Count."""
    pool = _Pool(shape, over)
    total = pool.stage('sum_pool', 'Sum', X, 'sum', 0.0)
    shapes = {'In': shape}
    if isinstance(counts, int):
        mean = pool.finish('mean', call('mul', X, const(1.0 / counts)))
    else:
        shapes['Count'] = counts.shape
        at = Access('Count', tuple(map(var, pool.image)))
        mean = pool.finish('mean', call('div', X, read(1)), at)
    return group_of(pool.label('avgpool'), [total, mean], shapes, dtype)


def lp_pool(shape: Shape, over: Sequence[Window], power: int = 2, dtype: str = 'f32') -> Group:
    """The Lp norm of each window."""
    pool = _Pool(shape, over)
    before, after = norm(power)
    stages = [pool.stage('norm_pool', 'Sum', before, 'sum', 0.0), pool.finish('root', after)]
    return group_of(pool.label('lppool'), stages, {'In': shape}, dtype)


def norm(power: int) -> tuple[Expr, Expr]:
    """Before and after the sum of an Lp norm."""
    if power < 1:
        raise SpecError(f'its p is {power}; it must be 1 or more')
    if power == 1:
        return call('abs', X), X
    if power == 2:
        return call('mul', X, X), call('sqrt', X)
    raised = call('pow', call('abs', X), const(power))
    return raised, call('pow', X, const(1.0 / power))
