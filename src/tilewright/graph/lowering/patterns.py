"""Tensors that follow from where their elements are: sequences, constants, ones in a pattern."""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.graph import DTYPES, dtype_of
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.moving import slices
from tilewright.graph.lowering.reader import ANY, NUMBERS, NodeReader, Operator, axis_of
from tilewright.graph.lowering.result import (
    MAX_FILLED,
    Known,
    Result,
    Unsupported,
    check_elements,
    filled,
    view,
)
from tilewright.graph.lowering.shape import UNTOUCHED
from tilewright.graph.lowering.types import ELEMENT_TYPES, MAX_ELEMENTS
from tilewright.ops.describe import names_of
from tilewright.ops.functions import one_hot, triangle


def _range(node: NodeReader) -> Result:
    start, limit, delta = (node.array(i).reshape(()) for i in range(3))
    if not delta:
        raise ModelError('its delta is 0')
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    check_elements((count,), 'the result', MAX_FILLED)
    return Known((start + np.arange(count) * delta).astype(start.dtype))


def _constant_of_shape(node: NodeReader) -> Result:
    shape = node.whole_numbers(0)
    if any(size < 0 for size in shape):
        raise ModelError(f'shape {list(shape)} has a size below 0')
    value = node.raw('value', np.zeros(1, np.float32))
    if not isinstance(value, np.ndarray) or value.size != 1:
        raise ModelError('its value must be a tensor of one element')
    return filled(shape, value.reshape(()), dtype_of(value))


def _eye_like(node: NodeReader) -> Result:
    x = node.input(0)
    number = node.raw('dtype')
    dtype = ELEMENT_TYPES.get(number) if isinstance(number, int) else x.dtype
    if dtype is None or len(x.shape) != 2:
        raise Unsupported(f'of shape {list(x.shape)} and type {number}')
    check_elements(x.shape, 'the result', MAX_FILLED)
    return Known(np.eye(*x.shape, k=node.int('k', 0), dtype=DTYPES[dtype]))


def _one_hot(node: NodeReader) -> Result:
    places, depth = node.input(0), int(node.array(1).reshape(()))
    values = node.input(2)
    rank = len(places.shape) + 1
    axis = axis_of(node.int('axis', -1), rank)
    if depth < 1 or values.shape != (2,):
        raise ModelError(
            f'depth {depth} and {list(values.shape)} values; it needs 1 or more, and 2'
        )
    shape = (*places.shape[:axis], depth, *places.shape[axis:])
    check_elements(shape, 'the result')
    spread = view(places, (*places.shape[:axis], 1, *places.shape[axis:]))
    off, on = (slices(values, {0: range(i, i + 1)}) for i in (0, 1))
    expr = one_hot(names_of(shape)[axis], depth, places.dtype)
    return pointwise('onehot', expr, [spread, on, off], values.dtype, shape)


def _trilu(node: NodeReader) -> Result:
    x = node.input(0)
    k = int(node.array(1).reshape(())) if node.has(1) else 0
    if len(x.shape) < 2:
        raise ModelError(f'{list(x.shape)} is not a matrix')
    bound = min(max(k, -MAX_ELEMENTS), MAX_ELEMENTS)
    row, column = names_of(x.shape)[-2:]
    expr = triangle(row, column, bound, bool(node.int('upper', 1)), x.dtype)
    return pointwise('trilu', expr, [x], x.dtype)


OPERATORS: dict[str, Operator] = {
    'Range': Operator(_range, NUMBERS, (0, 1, 2)),
    'ConstantOfShape': Operator(_constant_of_shape, ('i64',), (0,)),
    'EyeLike': Operator(_eye_like, UNTOUCHED),
    'OneHot': Operator(_one_hot, NUMBERS, (1,)),
    'Trilu': Operator(_trilu, ANY, (1,)),
}
