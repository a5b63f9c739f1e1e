"""Reductions over axes: sums, norms, extremes and where they are, running sums; softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.elementwise import convert
from tilewright.graph.lowering.reader import (
    ANY,
    FLOATS,
    NUMBERS,
    Lowering,
    NodeReader,
    Operator,
    axis_of,
)
from tilewright.graph.lowering.result import Result, Unsupported, compute, filled, view
from tilewright.ops.describe import names_of
from tilewright.ops.functions import X
from tilewright.ops.normalise import log_softmax, softmax
from tilewright.ops.reduction import REDUCTIONS, arg_extreme, log_sum_exp, running
from tilewright.ops.stage import call, const, index

# A running sum is written as a window as long as its axis: work that grows with the square.
MAX_RUNNING = 1 << 13


def _axes(node: NodeReader) -> tuple[int, ...]:
    """The axes to be reduced over, in order; all of them where none is named."""
    rank = len(node.input(0).shape)
    axes = node.axes(1, rank)
    if not axes:
        return () if node.int('noop_with_empty_axes', 0) else tuple(range(rank))
    return tuple(sorted(axes))


def _kept(node: NodeReader, axes: Sequence[int]) -> tuple[int, ...]:
    """The shape of the result, with or without the axes that are gone."""
    shape = node.input(0).shape
    if node.int('keepdims', 1):
        return tuple(1 if i in axes else size for i, size in enumerate(shape))
    return tuple(size for i, size in enumerate(shape) if i not in axes)


def _reduction(kind: str) -> Lowering:
    described = REDUCTIONS[kind]

    def lower(node: NodeReader) -> Result:
        x, axes = node.input(0), _axes(node)
        shape = _kept(node, axes)
        if 0 in x.shape:
            return filled(shape, 0 if 0 in shape else described.empty(x.dtype), x.dtype)
        word = node.op.lower()
        if all(x.shape[axis] == 1 for axis in axes):
            one = described.of_one()
            return view(x if one == X else pointwise(word, one, [x], x.dtype), shape)
        numbers = convert(x, 'u8') if x.dtype == 'bool' else x  # truths are combined as numbers
        group = described.group(word, x.shape, axes, numbers.dtype)
        return view(convert(compute(group, {'In': numbers}), x.dtype), shape)

    return lower


def _log_sum_exp(node: NodeReader) -> Result:
    x, axes = node.input(0), _axes(node)
    shape = _kept(node, axes)
    if 0 in x.shape:
        return filled(shape, 0 if 0 in shape else -math.inf, x.dtype)
    if not axes:
        return x
    return view(compute(log_sum_exp(x.shape, axes, x.dtype), {'In': x}), shape)


def _arg(combiner: str) -> Lowering:
    def lower(node: NodeReader) -> Result:
        x = node.input(0)
        axis = axis_of(node.int('axis', 0), len(x.shape))
        if 0 in x.shape:
            raise ModelError(f'{list(x.shape)} has no extreme')
        last = bool(node.int('select_last_index', 0))
        found = compute(arg_extreme(x.shape, axis, combiner, last, x.dtype), {'In': x})
        return view(found, _kept(node, (axis,)))

    return lower


def _running(combiner: str) -> Lowering:
    def lower(node: NodeReader) -> Result:
        x = node.input(0)
        axis = axis_of(int(node.array(1).reshape(())), len(x.shape))
        if 0 in x.shape:
            return x
        if x.shape[axis] > MAX_RUNNING:
            raise Unsupported(f'over {x.shape[axis]} elements, of at most {MAX_RUNNING}')
        group = running(
            node.op.lower(), x.shape, axis, combiner, exclusive=bool(node.int('exclusive', 0)),
            reverse=bool(node.int('reverse', 0)), dtype=x.dtype,
        )  # fmt: skip
        return compute(group, {'In': x})

    return lower


def _along(node: NodeReader) -> tuple[Result, int]:
    x = node.input(0)
    return x, axis_of(node.int('axis', -1), len(x.shape))


def _softmax(node: NodeReader) -> Result:
    x, axis = _along(node)
    return x if 0 in x.shape else compute(softmax(x.shape, axis, x.dtype), {'In': x})


def _log_softmax(node: NodeReader) -> Result:
    x, axis = _along(node)
    return x if 0 in x.shape else compute(log_softmax(x.shape, axis, x.dtype), {'In': x})


def _hardmax(node: NodeReader) -> Result:
    """One where the largest is, the first of equals; else zero."""
    x, axis = _along(node)
    if 0 in x.shape:
        return x
    largest = compute(arg_extreme(x.shape, axis, 'max', dtype=x.dtype), {'In': x})
    spread = view(largest, [1 if i == axis else size for i, size in enumerate(x.shape)])
    here = call('eq', X, index(names_of(x.shape)[axis]))
    expr = call('where', here, const(1.0), const(0.0))
    return pointwise('hardmax', expr, [spread], x.dtype, x.shape)


SOFTMAX: dict[str, Operator] = {
    'Softmax': Operator(_softmax, FLOATS),
    'LogSoftmax': Operator(_log_softmax, FLOATS),
    'Hardmax': Operator(_hardmax, FLOATS),
}
OPERATORS: dict[str, Operator] = {
    'ReduceSum': Operator(_reduction('sum'), NUMBERS, (1,)),
    'ReduceProd': Operator(_reduction('prod'), NUMBERS, (1,)),
    'ReduceMax': Operator(_reduction('max'), ANY, (1,)),
    'ReduceMin': Operator(_reduction('min'), ANY, (1,)),
    'ReduceMean': Operator(_reduction('mean'), NUMBERS, (1,)),
    'ReduceL1': Operator(_reduction('l1'), NUMBERS, (1,)),
    'ReduceL2': Operator(_reduction('l2'), FLOATS, (1,)),
    'ReduceSumSquare': Operator(_reduction('sum_square'), NUMBERS, (1,)),
    'ReduceLogSum': Operator(_reduction('log_sum'), FLOATS, (1,)),
    'ReduceLogSumExp': Operator(_log_sum_exp, FLOATS, (1,)),
    'ArgMax': Operator(_arg('max'), NUMBERS),
    'ArgMin': Operator(_arg('min'), NUMBERS),
    'CumSum': Operator(_running('sum'), NUMBERS, (1,)),
    'CumProd': Operator(_running('prod'), NUMBERS, (1,)),
}
