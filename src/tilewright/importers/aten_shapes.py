"""ATen's operators that move elements, reduce or make tensors, as ONNX nodes. [Call] -> [Value]"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.graph.graph import DTYPES, Value
from tilewright.importers.aten_call import Call, Handler, UnsupportedError, axes_of, axis_of

_FAR = 2**31 - 1


def _in_result_shape(call: Call) -> Value:
    """View, reshape, squeeze and unsqueeze: the same elements in the shape of the result."""
    return call.reshaped(call.value('self'), call.result.shape)


def _permuted(call: Call, order: Sequence[int]) -> Value:
    if list(order) == sorted(order):
        return call.value('self')
    return call.done('Transpose', call.value('self'), perm=tuple(order))


def _permute(call: Call) -> Value:
    rank = len(call.value('self').shape)
    return _permuted(call, [axis_of(d, rank) for d in call['dims']])


def _transpose(call: Call) -> Value:
    rank = len(call.value('self').shape)
    order = list(range(rank))
    if rank:
        a, b = axis_of(call['dim0'], rank), axis_of(call['dim1'], rank)
        order[a], order[b] = b, a
    return _permuted(call, order)


def _expand(call: Call) -> Value:
    return call.done('Expand', call.value('self'), call.constant(list(call.result.shape)))


def _repeat(call: Call) -> Value:
    x, repeats = call.value('self'), call['repeats']
    whole = call.reshaped(x, (1,) * (len(repeats) - len(x.shape)) + x.shape)
    return call.done('Tile', whole, call.constant(list(repeats)))


def cut(call: Call, x: Value, axis: int, start: int, end: int, step: int = 1) -> str:
    parts = (call.constant([number]) for number in (start, end, axis, step))
    return call.emit('Slice', x, *parts)


def _slice(call: Call) -> Value:
    x, result = call.value('self'), call.result
    axis = axis_of(call['dim'], len(x.shape))
    size = x.shape[axis]
    start, end = call.arguments.get('start'), call.arguments.get('end')
    first = min(max(start + size if start is not None and start < 0 else start or 0, 0), size)
    last = size if end is None else min(max(end + size if end < 0 else end, first), size)
    if (first, last, call['step']) == (0, size, 1):
        return x
    return Value(cut(call, x, axis, first, last, call['step']), result.shape, result.dtype)


def _select(call: Call) -> Value:
    x, result = call.value('self'), call.result
    axis = axis_of(call['dim'], len(x.shape))
    place = call['index'] % x.shape[axis]
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    one = Value(cut(call, x, axis, place, place + 1), shape, x.dtype)
    return call.reshaped(one, result.shape)


def _cat(call: Call) -> Value:
    dtype = call.result.dtype
    # An empty tensor of one axis joins anything, and adds nothing.
    given = [call.typed(argument) for argument in call['tensors']]
    kept = [call.cast(value, dtype) for value in given if value.shape != (0,)]
    return call.done('Concat', *kept, axis=axis_of(call['dim'], len(call.result.shape)))


def _split(call: Call) -> tuple[Value, ...]:
    x, axis = call.value('self'), axis_of(call['dim'], len(call.value('self').shape))
    sizes = list(call['split_sizes'])
    names = call.emit_many('Split', len(sizes), x, call.constant(sizes), axis=axis)
    return tuple(
        Value(name, (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
        for name, size in zip(names, sizes, strict=True)
    )


def _padded(call: Call, mode: str, value: Value | None = None) -> Value:
    """PyTorch lists paddings from the last axis on, before and after."""
    x, pads = call.value('self'), list(call['pad' if mode == 'constant' else 'padding'])
    rank = len(x.shape)
    before, after = [0] * rank, [0] * rank
    for number in range(len(pads) // 2):
        before[rank - 1 - number] = pads[2 * number]
        after[rank - 1 - number] = pads[2 * number + 1]
    return call.done('Pad', x, call.constant([*before, *after]), value, mode=mode)


def _constant_pad(call: Call) -> Value:
    dtype = call.value('self').dtype
    return _padded(call, 'constant', call.number(call.arguments.get('value') or 0, dtype))


def _flip(call: Call) -> Value:
    x = call.value('self')
    axes = axes_of(call['dims'], len(x.shape)) if call['dims'] else []
    count = len(axes)
    parts = ([-1] * count, [-_FAR] * count, axes, [-1] * count)
    return call.done('Slice', x, *map(call.constant, parts)) if axes else x


def _index_select(call: Call) -> Value:
    x = call.value('self')
    return call.done('Gather', x, call.value('index'), axis=axis_of(call['dim'], len(x.shape)))


def _gather(call: Call) -> Value:
    x = call.value('self')
    axis = axis_of(call['dim'], len(x.shape))
    return call.done('GatherElements', x, call.value('index'), axis=axis)


def _top(call: Call, count: int, largest: bool) -> tuple[Value, ...]:
    """Values and places of the largest or smallest along an axis, in order."""
    x = call.value('self')
    result = call.result
    if not x.shape:
        return x, Value(call.constant(0), (), 'i64')
    values, places = call.emit_many(
        'TopK', 2, x, call.constant([count]), axis=axis_of(call['dim'], len(x.shape)),
        largest=int(largest),
    )  # fmt: skip
    return Value(values, result.shape, x.dtype), Value(places, result.shape, 'i64')


def _sort(call: Call) -> tuple[Value, ...]:
    shape = call.value('self').shape
    count = shape[axis_of(call['dim'], len(shape))] if shape else 1
    return _top(call, count, call['descending'])


def _index(call: Call) -> Value:
    """x[:, i, j]: whole-number indices of axes that lie side by side."""
    x = call.value('self')
    places, axes = joint_places(call, x)
    first, last = axes[0], axes[-1] + 1
    joined = (*x.shape[:first], math.prod(x.shape[first:last]), *x.shape[last:])
    return call.done('Gather', call.reshaped(x, joined), places, axis=first)


def joint_places(call: Call, x: Value) -> tuple[Value, list[int]]:
    """Indices of some axes of x as one index of these axes joined, and the axes."""
    given = call['indices']
    axes = [axis for axis, index in enumerate(given) if index is not None]
    places = [call.typed(given[axis]) for axis in axes]
    if any(place.dtype == 'bool' for place in places):
        raise UnsupportedError('by truth values')
    if axes != list(range(axes[0], axes[-1] + 1)):
        raise UnsupportedError('of axes that do not lie side by side')
    if len(axes) == 1:
        return places[0], axes
    # Axes side by side are one axis, and their indices one number: i * size + j.
    shape = np.broadcast_shapes(*(place.shape for place in places))
    total = None
    for axis, place in zip(axes, places, strict=True):
        size = call.number(x.shape[axis], 'i64')
        # Negative indices count from the end of their own axis.
        found = Value(call.emit('Mod', call.cast(place, 'i64'), size), place.shape, 'i64')
        if total is not None:
            found = Value(call.emit('Add', call.emit('Mul', total, size), found), shape, 'i64')
        total = found
    assert total is not None
    return total, axes


def _reduction(op: str) -> Handler:
    def handler(call: Call) -> Value:
        x = call.operand('self', call.result.dtype)
        rank = len(x.shape)
        axes = axes_of(call.arguments.get('dim'), rank)
        keep = int(bool(call.arguments.get('keepdim')))
        if not axes:
            return x
        if op == 'ReduceMean' and keep and rank == 4 and axes == [2, 3]:
            return call.done('GlobalAveragePool', x)
        return call.done(op, x, call.constant(axes), keepdims=keep)

    return handler


def _norm(call: Call) -> Value:
    """The norm of vectors: of order 1 or 2, or the largest magnitude."""
    order = call['ord']
    ops = {1: 'ReduceL1', 2: 'ReduceL2', math.inf: 'ReduceMax'}
    if order not in ops:
        raise UnsupportedError(f'of order {order}')
    x = call.operand('self', call.result.dtype)
    axes, keep = axes_of(call.arguments.get('dim'), len(x.shape)), int(bool(call['keepdim']))
    x = call.made('Abs', x, x) if order == math.inf or not axes else x
    return call.done(ops[order], x, call.constant(axes), keepdims=keep) if axes else x


def _extreme(op: str, place: str) -> Handler:
    """The largest or smallest along an axis, and where it is."""

    def handler(call: Call) -> tuple[Value | None, ...]:
        x = call.value('self')
        if not x.shape:
            raise UnsupportedError('of a number')
        axis, keep = axis_of(call['dim'], len(x.shape)), int(call['keepdim'])
        found = call.done(op, x, call.constant([axis]), keepdims=keep)
        if not call.used(1):
            return found, None
        where = call.emit(place, x, axis=axis, keepdims=keep)
        return found, Value(where, found.shape, 'i64')

    return handler


def _place(op: str) -> Handler:
    def handler(call: Call) -> Value:
        x, dim = call.value('self'), call.arguments.get('dim')
        if dim is None:
            flat = call.reshaped(x, (math.prod(x.shape),))
            made = Value(call.emit(op, flat, axis=0, keepdims=0), (), 'i64')
            return call.reshaped(made, call.result.shape)
        axis = axis_of(dim, len(x.shape))
        return call.done(op, x, axis=axis, keepdims=int(call['keepdim']))

    return handler


def _variance(call: Call) -> Value:
    x = call.value('self')
    axes = axes_of(call.arguments.get('dim'), len(x.shape))
    correction = call.arguments.get('correction')
    count = math.prod(x.shape[axis] for axis in axes)
    left = count - (1 if correction is None else correction)
    if left <= 0:
        raise UnsupportedError(f'of {count} elements with correction {correction}')
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.shape))
    mean = call.emit('ReduceMean', x, call.constant(axes), keepdims=1)
    apart = call.made('Sub', x, x, Value(mean, kept, x.dtype))
    squares = call.emit(
        'ReduceSumSquare', apart, call.constant(axes), keepdims=int(bool(call['keepdim']))
    )
    return call.done('Div', squares, call.number(left, x.dtype))


def _running(op: str) -> Handler:
    def handler(call: Call) -> Value:
        x = call.operand('self', call.result.dtype)
        return call.done(op, x, call.number(axis_of(call['dim'], len(x.shape)), 'i64'))

    return handler


def _truth(op: str) -> Handler:
    """Any and all of truth values, as the largest and the smallest of 0 and 1."""

    def handler(call: Call) -> Value:
        x = call.cast(call.operand('self', 'bool'), 'i32')
        axes = axes_of(call.arguments.get('dim'), len(x.shape))
        keep = int(bool(call.arguments.get('keepdim')))
        made = call.emit(op, x, call.constant(axes), keepdims=keep) if axes else x.name
        return call.cast(Value(made, call.result.shape, 'i32'), 'bool')

    return handler


def _known(call: Call, array: Any) -> Value:
    result = call.result
    made = np.broadcast_to(np.asarray(array, DTYPES[result.dtype]), result.shape)
    return Value(call.constant(made, result.dtype), result.shape, result.dtype)


def _arange(call: Call) -> Value:
    start, step = call.arguments.get('start', 0), call.arguments.get('step', 1)
    return _known(call, start + step * np.arange(call.result.shape[0]))


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(
        (
            'view.default', 'reshape.default', '_unsafe_view.default', 'squeeze.default',
            'squeeze.dim', 'squeeze.dims', 'unsqueeze.default', 'flatten.using_ints',
        ),
        _in_result_shape,
    ),
    'permute.default': _permute,
    'transpose.int': _transpose,
    't.default': lambda call: _permuted(call, range(len(call.result.shape))[::-1]),
    'expand.default': _expand,
    'repeat.default': _repeat,
    'slice.Tensor': _slice,
    'select.int': _select,
    'cat.default': _cat,
    'split_with_sizes.default': _split,
    'constant_pad_nd.default': _constant_pad,
    **{f'reflection_pad{n}d.default': lambda call: _padded(call, 'reflect') for n in (1, 2, 3)},
    **{f'replication_pad{n}d.default': lambda call: _padded(call, 'edge') for n in (1, 2, 3)},
    'flip.default': _flip,
    'index_select.default': _index_select,
    'gather.default': _gather,
    'index.Tensor': _index,
    'topk.default': lambda call: _top(call, call['k'], call['largest']),
    'sort.default': _sort,
    'sort.stable': _sort,
    'mean.dim': _reduction('ReduceMean'),
    'mean.default': _reduction('ReduceMean'),
    'sum.dim_IntList': _reduction('ReduceSum'),
    'sum.default': _reduction('ReduceSum'),
    'prod.default': _reduction('ReduceProd'),
    'prod.dim_int': _reduction('ReduceProd'),
    'amax.default': _reduction('ReduceMax'),
    'amin.default': _reduction('ReduceMin'),
    'max.default': _reduction('ReduceMax'),
    'min.default': _reduction('ReduceMin'),
    'max.dim': _extreme('ReduceMax', 'ArgMax'),
    'min.dim': _extreme('ReduceMin', 'ArgMin'),
    'argmax.default': _place('ArgMax'),
    'argmin.default': _place('ArgMin'),
    'var.correction': _variance,
    'linalg_vector_norm.default': _norm,
    'cumsum.default': _running('CumSum'),
    'cumprod.default': _running('CumProd'),
    'any.default': _truth('ReduceMax'),
    'any.dim': _truth('ReduceMax'),
    'any.dims': _truth('ReduceMax'),
    'all.default': _truth('ReduceMin'),
    'all.dim': _truth('ReduceMin'),
    'all.dims': _truth('ReduceMin'),
    'full.default': lambda call: _known(call, call['fill_value']),
    'full_like.default': lambda call: _known(call, call['fill_value']),
    # What nobody has written to yet: PyTorch itself leaves open what is there.
    'empty.memory_format': lambda call: _known(call, 0),
    'zeros.default': lambda call: _known(call, 0),
    'ones.default': lambda call: _known(call, 1),
    'zeros_like.default': lambda call: _known(call, 0),
    'ones_like.default': lambda call: _known(call, 1),
    'scalar_tensor.default': lambda call: _known(call, call['s']),
    'arange.start_step': _arange,
    'arange.start': _arange,
    'arange.default': _arange,
}  # fmt: skip
