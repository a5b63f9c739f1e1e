"""Operators that look at a tensor otherwise, or say how it looks: no element moves."""

from __future__ import annotations

import math

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.reader import ANY, NodeReader, Operator
from tilewright.graph.lowering.result import Known, Result, Unsupported, filled, known, view

# A view asks nothing of its elements.
UNTOUCHED = (*ANY, 'f16')


def _same(node: NodeReader) -> Result:
    return node.input(0)


def _dropout(node: NodeReader) -> Result | tuple[Result, ...]:
    x = node.input(0)
    if node.has(2) and node.array(2).any():
        raise Unsupported('in training mode')
    if len(node.outputs) < 2:
        return x
    return x, filled(x.shape, True, 'bool')


def _reshape(node: NodeReader) -> Result:
    x, wanted = node.input(0), list(node.whole_numbers(1))
    if not node.int('allowzero', 0):
        wanted = [
            x.shape[i] if size == 0 and i < len(x.shape) else size for i, size in enumerate(wanted)
        ]
    if wanted.count(-1) == 1:
        rest = -math.prod(wanted)
        if rest == 0 or math.prod(x.shape) % rest:
            raise ModelError(f'{list(x.shape)} cannot be reshaped to {wanted}')
        wanted[wanted.index(-1)] = math.prod(x.shape) // rest
    if any(size < 0 for size in wanted) or math.prod(wanted) != math.prod(x.shape):
        raise ModelError(f'{list(x.shape)} cannot be reshaped to {wanted}')
    return view(x, wanted)


def _flatten(node: NodeReader) -> Result:
    x, axis = node.input(0), node.int('axis', 1)
    rank = len(x.shape)
    if not -rank <= axis <= rank:
        raise ModelError(f'axis {axis} is none of {rank} dimensions')
    at = axis + rank if axis < 0 else axis
    return view(x, (math.prod(x.shape[:at]), math.prod(x.shape[at:])))


def _squeeze(node: NodeReader) -> Result:
    x = node.input(0)
    axes = node.axes(1, len(x.shape))
    if axes is None:
        axes = tuple(i for i, size in enumerate(x.shape) if size == 1)
    if any(x.shape[i] != 1 for i in axes):
        raise ModelError(f'{list(x.shape)} has no size 1 at all of the axes {list(axes)}')
    return view(x, [size for i, size in enumerate(x.shape) if i not in axes])


def _unsqueeze(node: NodeReader) -> Result:
    x = node.input(0)
    axes = node.axes(1, len(x.shape) + len(node.whole_numbers(1)))
    rest = iter(x.shape)
    rank = len(x.shape) + len(axes or ())
    return view(x, [1 if i in (axes or ()) else next(rest) for i in range(rank)])


def _shape(node: NodeReader) -> Result:
    shape = node.input(0).shape
    start = node.int('start', 0)
    end = node.int('end', len(shape))
    return known(shape[_clamped(start, len(shape)) : _clamped(end, len(shape))], 'i64')


def _clamped(position: int, rank: int) -> int:
    return min(max(position + rank if position < 0 else position, 0), rank)


def _size(node: NodeReader) -> Result:
    return Known(np.array(math.prod(node.input(0).shape), np.int64))


OPERATORS: dict[str, Operator] = {
    'Identity': Operator(_same, UNTOUCHED),
    'Dropout': Operator(_dropout, UNTOUCHED, (2,), 'as the identity'),
    'Reshape': Operator(_reshape, UNTOUCHED, (1,)),
    'Flatten': Operator(_flatten, UNTOUCHED),
    'Squeeze': Operator(_squeeze, UNTOUCHED, (1,)),
    'Unsqueeze': Operator(_unsqueeze, UNTOUCHED, (1,)),
    'Shape': Operator(_shape, UNTOUCHED),
    'Size': Operator(_size, UNTOUCHED),
}
