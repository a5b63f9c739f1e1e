"""Poolings over any number of axes: the largest of a window and its place, means, norms."""

from __future__ import annotations

import math

from tilewright.errors import ModelError
from tilewright.graph.lowering.reader import FLOATS, NUMBERS, NodeReader, Operator
from tilewright.graph.lowering.result import (
    MAX_FILLED,
    Known,
    Result,
    check_elements,
    compute,
    filled,
    known,
    view,
)
from tilewright.graph.lowering.windows import windows
from tilewright.ops.functions import X
from tilewright.ops.pooling import (
    average_pool,
    lp_pool,
    max_pool,
    max_pool_places,
    norm,
    window_counts,
)
from tilewright.ops.reduction import reduce
from tilewright.ops.stage import Expr, call, const
from tilewright.ops.windows import Window


def _image(node: NodeReader) -> Result:
    x = node.input(0)
    if len(x.shape) < 3:
        raise ModelError(f'{list(x.shape)} is not an image; give [n, c, ..]')
    return x


def _windows(node: NodeReader, x: Result) -> tuple[Window, ...]:
    taps = node.raw('kernel_shape')
    if not isinstance(taps, tuple):
        raise ModelError('it needs the attribute kernel_shape')
    ceil = bool(node.int('ceil_mode', 0))
    found = windows(node, x.shape[2:], node.ints('kernel_shape', len(x.shape) - 2, 1), ceil)
    for window in found:
        if max(window.before, window.after) >= window.span:
            raise ModelError(
                f'its padding of {max(window.before, window.after)} is as wide as its window of '
                f'{window.span}; some windows would hold nothing'
            )
    return found


def _pooled(node: NodeReader) -> tuple[Result, tuple[Window, ...], Known | None]:
    """The image, its windows, and the result if it is empty."""
    x = _image(node)
    over = _windows(node, x)
    shape = (*x.shape[:2], *(w.out for w in over))
    return x, over, filled(shape, 0, x.dtype) if 0 in shape else None


def _max_pool(node: NodeReader) -> Result | tuple[Result, ...]:
    x, over, empty = _pooled(node)
    if empty:
        return empty, filled(empty.shape, 0, 'i64')
    largest = compute(max_pool(x.shape, over, x.dtype), {'In': x})
    if len(node.outputs) < 2:
        return largest
    places = max_pool_places(x.shape, over, bool(node.int('storage_order', 0)), x.dtype)
    return largest, compute(places, {'In': x, 'Largest': largest})


def _average_pool(node: NodeReader) -> Result:
    x, over, empty = _pooled(node)
    if empty:
        return empty
    check_elements([w.out for w in over], 'the result', MAX_FILLED)
    counts = window_counts(over, bool(node.int('count_include_pad', 0)))
    group = average_pool(x.shape, over, counts, x.dtype)
    same = isinstance(counts, int)
    return compute(group, {'In': x} if same else {'In': x, 'Count': known(counts, x.dtype)})


def _lp_pool(node: NodeReader) -> Result:
    x, over, empty = _pooled(node)
    return empty or compute(lp_pool(x.shape, over, node.int('p', 2), x.dtype), {'In': x})


def _over_all(
    node: NodeReader, word: str, combiner: str, before: Expr, after: Expr | None
) -> Result:
    """One value for each channel."""
    x = _image(node)
    shape = (*x.shape[:2], *(1 for _ in x.shape[2:]))
    if 0 in shape:
        return filled(shape, 0, x.dtype)
    if 0 in x.shape:
        raise ModelError(f'{list(x.shape)} has no elements to reduce')
    axes = range(2, len(x.shape))
    group = reduce(word, x.shape, axes, combiner, before, after, x.dtype)
    return view(compute(group, {'In': x}), shape)


def _global_average(node: NodeReader) -> Result:
    count = math.prod(_image(node).shape[2:])
    return _over_all(node, 'global_average', 'sum', X, call('mul', X, const(1.0 / max(1, count))))


def _global_max(node: NodeReader) -> Result:
    return _over_all(node, 'global_max', 'max', X, None)


def _global_lp(node: NodeReader) -> Result:
    before, after = norm(node.int('p', 2))
    return _over_all(node, 'global_lp', 'sum', before, after)


OPERATORS: dict[str, Operator] = {
    'MaxPool': Operator(_max_pool, NUMBERS),
    'AveragePool': Operator(_average_pool, FLOATS),
    'LpPool': Operator(_lp_pool, FLOATS),
    'GlobalAveragePool': Operator(_global_average, FLOATS),
    'GlobalMaxPool': Operator(_global_max, NUMBERS),
    'GlobalLpPool': Operator(_global_lp, FLOATS),
}
