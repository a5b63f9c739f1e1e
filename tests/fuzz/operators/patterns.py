"""Tensors that follow from where their elements are: sequences, constants, ones in a pattern."""

from __future__ import annotations

import numpy as np
from onnx import helper, numpy_helper

from ..draw import ANY, NUMBERS, WHOLE, Draw, MisfitError, Row, Step


def _eye_like(draw: Draw, x: str) -> Step:
    if draw.values[x].ndim != 2:
        raise MisfitError('no matrix')
    attributes: dict[str, object] = {'k': draw.int(-2, 2)}
    if draw.chance(0.6):
        wanted = draw.pick(('float32', 'float32', 'float64', 'int64', 'int32', 'uint8'))
        attributes['dtype'] = int(helper.np_dtype_to_tensor_dtype(np.dtype(wanted)))
    return Step([x], attributes)


def _one_hot(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    if array.ndim > 4 or str(array.dtype) not in ('int64', 'int32', 'float32', 'uint8'):
        raise MisfitError('no indices')
    depth = draw.int(1, 6)
    kind = draw.pick(('float32', 'int64', 'int32'))
    values = draw.constant(draw.data((2,), kind))
    axis = draw.int(-array.ndim - 1, array.ndim)
    return Step([x, draw.constant(np.array(depth, np.int64)), values], {'axis': axis})


def _trilu(draw: Draw, x: str) -> Step:
    if draw.values[x].ndim < 2:
        raise MisfitError('no matrix')
    inputs = [x] if draw.chance(0.3) else [x, draw.constant(np.array(draw.int(-3, 3), np.int64))]
    return Step(inputs, {'upper': draw.int(0, 1)})


def _constant_of_shape(draw: Draw, x: str) -> Step:
    """Of a shape that is known: what `Shape` makes of a value."""
    array = draw.values[x]
    made_by = {name: node.op for node in draw.nodes for name in node.outputs}
    if array.dtype != np.int64 or array.ndim != 1 or made_by.get(x) != 'Shape':
        raise MisfitError('not known ahead')
    value = draw.data((1,), draw.dtype())
    return Step([x], {'value': numpy_helper.from_array(value, 'value')})


def _range(draw: Draw, x: str) -> Step:
    """From a number that is known: the size of a value."""
    made_by = {name: node.op for node in draw.nodes for name in node.outputs}
    if made_by.get(x) != 'Size':
        raise MisfitError('not known ahead')
    start, delta = draw.int(-3, 3), draw.pick((1, 2, 3))
    if draw.chance(0.3):
        limit = draw.constant(np.array(start - 3, np.int64))
        return Step([x, limit, draw.constant(np.array(-delta, np.int64))])
    return Step([
        draw.constant(np.array(start, np.int64)), x, draw.constant(np.array(delta, np.int64)),
    ])  # fmt: skip


ROWS = (
    Row('EyeLike', ANY, _eye_like),
    Row('OneHot', (*WHOLE, 'float32'), _one_hot),
    Row('Trilu', ANY, _trilu),
    Row('ConstantOfShape', ('int64',), _constant_of_shape),
    Row('Range', NUMBERS, _range),
)
