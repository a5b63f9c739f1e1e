"""Elements that are written to: slices, masks and places of tensors, as nodes. [Call] -> [Value]

PyTorch makes values of assignments: `y[:, 2:] = x` is a tensor like y with a slice of it from x.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import Call, Handler, UnsupportedError, axis_of
from tilewright.importers.aten_shapes import cut, joint_places


def _scattered(call: Call, src: Value, axis: int, places: range) -> Value:
    """The tensor with these places of an axis taken from another one."""
    x, result = call.value('self'), call.result
    size = x.shape[axis]
    if not places:
        return x
    src = call.cast(src, x.dtype)
    if places.step == 1:
        parts: list[Value | str] = [src]
        if places.start:
            parts.insert(0, cut(call, x, axis, 0, places.start))
        if places.stop < size:
            parts.append(cut(call, x, axis, places.stop, size))
        return call.done('Concat', *parts, axis=axis)
    chosen = np.arange(size)
    chosen[list(places)] = size + np.arange(len(places))
    both = call.emit('Concat', x, src, axis=axis)
    return Value(
        call.emit('Gather', both, call.constant(chosen), axis=axis), result.shape, result.dtype
    )


def _slice_scatter(call: Call) -> Value:
    axis = axis_of(call['dim'], len(call.result.shape))
    given = slice(call.arguments.get('start'), call.arguments.get('end'), call['step'])
    places = range(call.result.shape[axis])[given]
    return _scattered(call, call.value('src'), axis, places)


def _select_scatter(call: Call) -> Value:
    shape = call.result.shape
    axis = axis_of(call['dim'], len(shape))
    src = call.reshaped(call.value('src'), (*shape[:axis], 1, *shape[axis + 1 :]))
    place = call['index'] % shape[axis]
    return _scattered(call, src, axis, range(place, place + 1))


def _index_put(call: Call) -> Value:
    """x[mask] = number, and x[:, i, j] = values or += values."""
    x, given, values = call.value('self'), call['indices'], call.value('values')
    mask = call.typed(given[0]) if len(given) == 1 and given[0] is not None else None
    values = call.cast(values, x.dtype)
    if mask is not None and mask.dtype == 'bool':
        if call['accumulate'] or math.prod(values.shape) != 1:
            raise UnsupportedError('of several numbers by truth values')
        spread = call.reshaped(mask, mask.shape + (1,) * (len(x.shape) - len(mask.shape)))
        return call.done('Where', spread, call.reshaped(values, ()), x)
    places, axes = joint_places(call, x)
    first, last = axes[0], axes[-1] + 1
    joined = (*x.shape[:first], math.prod(x.shape[first:last]), *x.shape[last:])
    count = math.prod(places.shape)
    whole = (*x.shape[:first], *places.shape, *x.shape[last:])
    lines = (*x.shape[:first], count, *x.shape[last:])
    if values.shape != whole:
        values = Value(call.emit('Expand', values, call.constant(list(whole))), whole, x.dtype)
    alone = tuple(count if axis == first else 1 for axis in range(len(joined)))
    spread = call.emit('Expand', call.reshaped(places, alone), call.constant(list(lines)))
    made = call.emit(
        'ScatterElements', call.reshaped(x, joined), spread, call.reshaped(values, lines),
        axis=first, reduction='add' if call['accumulate'] else 'none',
    )  # fmt: skip
    return call.reshaped(Value(made, joined, x.dtype), x.shape)


def _one_each(call: Call, places: Value, number: Value, axis: int) -> Value:
    """A number written to one place along an axis of each line."""
    x = call.value('self')
    along = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(x.shape))])
    here = call.emit('Equal', places, call.constant(along, places.dtype))
    return call.done('Where', here, number, x)


def _scatter_elements(argument: str, reduction: str = 'none') -> Handler:
    """Elements, or one number, written or added to places of an axis."""

    def handler(call: Call) -> Value:
        x, index = call.value('self'), call.value('index')
        if not x.shape or not index.shape:
            raise UnsupportedError('of a number')
        src, axis = call.operand(argument, x.dtype), axis_of(call['dim'], len(x.shape))
        if not src.shape:
            if index.shape == (*x.shape[:axis], 1, *x.shape[axis + 1 :]):
                return _one_each(call, index, src, axis)
            spread = call.emit('Expand', src, call.constant(list(index.shape)))
            src = Value(spread, index.shape, x.dtype)
        elif src.shape != index.shape:
            raise UnsupportedError('of a source that is larger than its index')
        return call.done('ScatterElements', x, index, src, axis=axis, reduction=reduction)

    return handler


HANDLERS: dict[str, Handler] = {
    'slice_scatter.default': _slice_scatter,
    'select_scatter.default': _select_scatter,
    'index_put.default': _index_put,
    'scatter.src': _scatter_elements('src'),
    'scatter.value': _scatter_elements('value'),
    'scatter_add.default': _scatter_elements('src', 'add'),
}
