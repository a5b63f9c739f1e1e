"""What ATen has while a module is trained, backward operators among them, as nodes."""

from __future__ import annotations

import math
from typing import Any

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import Call, Handler, UnsupportedError, spread
from tilewright.importers.aten_windows import (
    Pieces,
    batched,
    convolution_attributes,
    filled,
    in_shape,
    pool_attributes,
)


def _training_norm(call: Call) -> Pieces:
    """By the statistics of this batch, and the running ones after it.

    PyTorch moves the running variance towards the one of a sample, n / (n - 1) times that of ONNX,
    and counts what is new where ONNX counts what is kept.
    """
    x = call.value('input')
    if not call['training']:
        raise UnsupportedError('by running statistics')
    c, kept = x.shape[1], 1.0 - float(call['momentum'])
    scale, shift = (
        filled(call, name, c, value, x.dtype) for name, value in (('weight', 1.0), ('bias', 0.0))
    )
    mean, variance = call.value('running_mean'), call.value('running_var')
    made, new_mean, moved = call.emit_many(
        'BatchNormalization', 3, x, scale, shift, mean, variance, epsilon=float(call['eps']),
        momentum=kept, training_mode=1,
    )  # fmt: skip
    count = math.prod(x.shape) // c
    share = call.number(count / max(1, count - 1), x.dtype)
    old = call.emit('Mul', variance, call.number(kept, x.dtype))
    new = call.emit('Mul', call.emit('Sub', moved, old), share)
    new_variance = call.emit('Add', old, new)
    statistics = [Value(name, (c,), x.dtype) for name in (new_mean, new_variance)]
    if not call.used(1) and not call.used(2):
        return Value(made, x.shape, x.dtype), None, None, *statistics
    axes = call.constant([0, *range(2, len(x.shape))])
    mean = call.emit('ReduceMean', x, axes, keepdims=1)
    off = call.emit('Sub', x, mean)
    power = call.emit('ReduceMean', call.emit('Mul', off, off), axes, keepdims=0)
    above = call.emit('Add', power, call.number(float(call['eps']), x.dtype))
    inverse = Value(call.emit('Reciprocal', call.emit('Sqrt', above)), (c,), x.dtype)
    flat = call.reshaped(Value(mean, (1, c, *(1 for _ in x.shape[2:])), x.dtype), (c,))
    return Value(made, x.shape, x.dtype), flat, inverse, *statistics


def _dropout(call: Call) -> Pieces:
    """Names what it is; only training says what it draws from."""
    x, result = call.value('input'), call.result
    if not call['train']:
        return x, None
    if call.used(1):
        raise UnsupportedError('whose mask is read')
    ratio, training = call.number(float(call['p']), x.dtype), call.number(True, 'bool')
    return Value(call.emit('Dropout', x, ratio, training), result.shape, x.dtype), None


def _derived(call: Call, of: str, x: Value, *others: Value, **attributes: Any) -> list[str]:
    """The gradients by the inputs of an operator, which its description gives."""
    inputs = (call.value('grad_output'), x, *others)
    return call.emit_many('tilewright::Gradient', 1 + len(others), *inputs, of=of, **attributes)


def _convolution_backward(call: Call) -> Pieces:
    x, weight, up = (call.value(name) for name in ('input', 'weight', 'grad_output'))
    if call['transposed']:
        raise UnsupportedError('of a transposed convolution')
    by_x, by_weight, by_bias = call['output_mask']
    data, kernel = _derived(call, 'Conv', x, weight, **convolution_attributes(call, weight))
    axes = call.constant([0, *range(2, len(x.shape))])
    return (
        Value(data, x.shape, x.dtype) if by_x else None,
        Value(kernel, weight.shape, x.dtype) if by_weight else None,
        Value(call.emit('ReduceSum', up, axes, keepdims=0), up.shape[1:2], x.dtype)
        if by_bias
        else None,
    )


def _max_pool_backward(call: Call) -> Value:
    """The places that PyTorch kept are those that the description finds."""
    x = batched(call, call.value('self'), 2)
    attributes = pool_attributes(call, 2) | {'dilations': spread(call['dilation'], 2)}
    (made,) = _derived(call, 'MaxPool', x, **attributes)
    return in_shape(call, Value(made, x.shape, x.dtype), x, call.result)


def _average_pool_backward(call: Call) -> Value:
    x = batched(call, call.value('self'), 2)
    if call.arguments.get('divisor_override') is not None:
        raise UnsupportedError('with a divisor of its own')
    counted = int(call['count_include_pad'])
    (made,) = _derived(
        call, 'AveragePool', x, **pool_attributes(call, 2), count_include_pad=counted
    )
    return in_shape(call, Value(made, x.shape, x.dtype), x, call.result)


HANDLERS: dict[str, Handler] = {
    'convolution_backward.default': _convolution_backward,
    'max_pool2d_with_indices_backward.default': _max_pool_backward,
    'avg_pool2d_backward.default': _average_pool_backward,
    '_native_batch_norm_legit_functional.default': _training_norm,
    'native_dropout.default': _dropout,
}
