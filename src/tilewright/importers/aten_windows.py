"""ATen's convolutions, poolings, normalisations, matrix products and resizing as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import Call, Handler, UnsupportedError, spread

Pieces = tuple[Value | None, ...]


def convolution_attributes(call: Call, weight: Value) -> dict:
    axes = len(weight.shape) - 2
    pads = spread(call['padding'], axes)
    return {
        'kernel_shape': weight.shape[2:], 'strides': spread(call['stride'], axes),
        'pads': (*pads, *pads), 'dilations': spread(call['dilation'], axes),
        'group': call['groups'],
    }  # fmt: skip


def _convolution(call: Call) -> Value:
    x, weight = call.value('input'), call.value('weight')
    bias = call.value('bias') if call.has('bias') else None
    attributes = convolution_attributes(call, weight)
    if call['transposed']:
        more = spread(call['output_padding'], len(weight.shape) - 2)
        return call.done('ConvTranspose', x, weight, bias, **attributes, output_padding=more)
    return call.done('Conv', x, weight, bias, **attributes)


def _linear(call: Call) -> Value:
    x, weight = call.value('input'), call.value('weight')
    bias = call.value('bias') if call.has('bias') else None
    c, k = x.shape[-1], weight.shape[0]
    if len(x.shape) > 2 and weight.name in call.emitter.constants:
        # In the shape that what follows has, so that it can join the product.
        turned = call.emit('Transpose', weight, perm=(1, 0))
        made = call.emit('MatMul', x, turned)
        return call.done('Add', made, bias) if bias else call.made('Identity', call.result, made)
    rows = call.reshaped(x, (math.prod(x.shape[:-1]), c))
    made = call.emit('Gemm', rows, weight, bias, transB=1)
    return call.reshaped(Value(made, (rows.shape[0], k), x.dtype), call.result.shape)


def _addmm(call: Call) -> Value:
    alpha, beta = float(call['alpha']), float(call['beta'])
    inputs = [call.value(name) for name in ('mat1', 'mat2', 'self')]
    return call.done('Gemm', *inputs, alpha=alpha, beta=beta)


def _product(left: str, right: str) -> Handler:
    return lambda call: call.done('MatMul', call.value(left), call.value(right))


def batched(call: Call, x: Value, axes: int) -> Value:
    """[n, c, ..]: poolings of PyTorch also take images without a batch."""
    return x if len(x.shape) == axes + 2 else call.reshaped(x, (1, *x.shape))


def pool_attributes(call: Call, axes: int) -> dict:
    window = spread(call['kernel_size'], axes)
    pads = spread(call['padding'], axes)
    return {
        'kernel_shape': window,
        'strides': spread(call['stride'], axes) if call.arguments.get('stride') else window,
        'pads': (*pads, *pads),
        'ceil_mode': int(call['ceil_mode']),
    }


def _max_pool(axes: int) -> Handler:
    def handler(call: Call) -> Pieces:
        x = batched(call, call.value('self'), axes)
        attributes = pool_attributes(call, axes) | {'dilations': spread(call['dilation'], axes)}
        result = call.result
        if not call.used(1):
            made = Value(call.emit('MaxPool', x, **attributes), result.shape, result.dtype)
            return in_shape(call, made, x, result), None
        largest, places = call.emit_many('MaxPool', 2, x, **attributes)
        # ONNX counts places through the whole tensor, PyTorch within each image.
        image = call.number(math.prod(x.shape[2:]), 'i64')
        within = call.emit('Mod', places, image)
        return (
            in_shape(call, Value(largest, result.shape, result.dtype), x, result),
            in_shape(call, Value(within, result.shape, 'i64'), x, call.result_of(1)),
        )

    return handler


def in_shape(call: Call, made: Value, x: Value, result: Value) -> Value:
    """A pooled value, without the batch that `batched` added."""
    if len(result.shape) == len(x.shape):
        return made
    whole = Value(made.name, (1, *result.shape), made.dtype)
    return call.reshaped(whole, result.shape)


def _average_pool(axes: int) -> Handler:
    def handler(call: Call) -> Value:
        x, result = batched(call, call.value('self'), axes), call.result
        attributes = pool_attributes(call, axes)
        divisor = call.arguments.get('divisor_override')
        if divisor is None:
            counted = int(call['count_include_pad'])
            made = call.emit('AveragePool', x, **attributes, count_include_pad=counted)
            return in_shape(call, Value(made, result.shape, result.dtype), x, result)
        # Every window is divided by the same number: pad with zeros so that all are whole.
        window, strides = attributes['kernel_shape'], attributes['strides']
        before = attributes['pads'][:axes]
        after = [
            max(0, (out - 1) * stride + size - have - first)
            for out, stride, size, have, first in zip(
                result.shape[-axes:], strides, window, x.shape[2:], before, strict=True
            )
        ]
        padded = call.emit('Pad', x, call.constant([0, 0, *before, 0, 0, *after]))
        mean = call.emit('AveragePool', padded, kernel_shape=window, strides=strides)
        # A stride may leave a last window that PyTorch's rounding down leaves out.
        factor = call.number(math.prod(window) / divisor, result.dtype)
        total = Value(call.emit('Mul', mean, factor), result.shape, result.dtype)
        return in_shape(call, total, x, result)

    return handler


def _parts(size: int, out: int) -> list[tuple[int, int]]:
    """Where each window of an adaptive pooling begins and ends."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


def _adaptive_average(axes: int) -> Handler:
    """A matrix along each axis whose rows average the windows; one average where all are equal."""

    def handler(call: Call) -> Value:
        x, result = batched(call, call.value('self'), axes), call.result
        sizes, wanted = x.shape[2:], result.shape[-axes:]
        if all(w == 1 for w in wanted):
            made = call.emit('GlobalAveragePool', x)
            return in_shape(call, Value(made, result.shape, result.dtype), x, result)
        if all(w and s % w == 0 for s, w in zip(sizes, wanted, strict=True)):
            window = tuple(s // w for s, w in zip(sizes, wanted, strict=True))
            made = call.emit('AveragePool', x, kernel_shape=window, strides=window)
            return in_shape(call, Value(made, result.shape, result.dtype), x, result)
        lead = math.prod(x.shape[:2])
        for axis, (size, out) in enumerate(zip(sizes, wanted, strict=True)):
            rows = np.zeros((out, size))
            for row, (first, last) in zip(rows, _parts(size, out), strict=True):
                row[first:last] = 1 / (last - first)
            before = lead * math.prod(wanted[:axis])
            inner = math.prod(sizes[axis + 1 :])
            stacked = call.reshaped(x, (before, size, inner))
            made = call.emit('MatMul', call.constant(rows, x.dtype), stacked)
            x = Value(made, (before, out, inner), x.dtype)
        return call.reshaped(x, result.shape)

    return handler


def _adaptive_max(axes: int) -> Handler:
    """Windows side by side, the last element of short ones repeated; then the largest of each."""

    def handler(call: Call) -> Pieces:
        x, result = call.value('self'), call.result
        sizes, wanted = x.shape[-axes:], result.shape[-axes:]
        lead, count = math.prod(x.shape[:-axes]), math.prod(wanted)
        # [windows, elements of a window] -> place in the image
        table = np.zeros((1, 1), np.int64)
        for size, out in zip(sizes, wanted, strict=True):
            parts = _parts(size, out)
            widest = max((last - first for first, last in parts), default=1)
            along = [[min(first + i, last - 1) for i in range(widest)] for first, last in parts]
            along = np.array(along, np.int64).reshape(out, widest)
            table = (size * table[:, None, :, None] + along[None, :, None, :]).reshape(
                len(table) * out, -1
            )
        flat = call.reshaped(x, (lead, math.prod(sizes)))
        windows = call.emit('Gather', flat, call.constant(table), axis=1)
        largest = call.emit('ReduceMax', windows, call.constant([2]), keepdims=0)
        found = call.reshaped(Value(largest, (lead, count), x.dtype), result.shape)
        if not call.used(1):
            return found, None
        chosen = call.emit('ArgMax', windows, axis=2, keepdims=1)
        places = call.constant(np.broadcast_to(table, (lead, *table.shape)))
        where = Value(call.emit('GatherElements', places, chosen, axis=2), (lead, count, 1), 'i64')
        return found, call.reshaped(where, result.shape)

    return handler


def filled(call: Call, name: str, c: int, value: float, dtype: str) -> Value:
    """A tensor argument that may be left out."""
    if call.has(name):
        return call.value(name)
    return Value(call.constant(np.full(c, value), dtype), (c,), dtype)


def _batch_norm(call: Call) -> Pieces:
    x = call.value('input')
    c = x.shape[1]
    scale, shift = (
        filled(call, name, c, value, x.dtype) for name, value in (('weight', 1.0), ('bias', 0.0))
    )
    mean, variance = call.value('running_mean'), call.value('running_var')
    made = call.done(
        'BatchNormalization', x, scale, shift, mean, variance, epsilon=float(call['eps'])
    )
    return made, None, None


def _statistics_norm(call: Call) -> Pieces:
    """Normalisation by the statistics of this batch: with a batch of one, of each instance."""
    x = call.value('input')
    if x.shape[0] != 1 or call.used(1) or call.used(2):
        raise UnsupportedError('in training mode')
    c = x.shape[1]
    scale, shift = (
        filled(call, name, c, value, x.dtype) for name, value in (('weight', 1.0), ('bias', 0.0))
    )
    made = call.done('InstanceNormalization', x, scale, shift, epsilon=float(call['eps']))
    return made, None, None


def _group_norm(call: Call) -> Pieces:
    x, c = call.value('input'), call['C']
    scale, shift = (
        filled(call, name, c, value, x.dtype) for name, value in (('weight', 1.0), ('bias', 0.0))
    )
    made = call.done(
        'GroupNormalization', x, scale, shift, epsilon=float(call['eps']), num_groups=call['group']
    )
    return made, None, None


def _layer_norm(call: Call) -> Pieces:
    x, shape = call.value('input'), tuple(call['normalized_shape'])
    scale = (
        call.value('weight')
        if call.has('weight')
        else Value(call.constant(np.ones(shape), x.dtype), shape, x.dtype)
    )
    shift = call.value('bias') if call.has('bias') else None
    count = 3 if call.used(1) or call.used(2) else 1
    made = call.emit_many(
        'LayerNormalization', count, x, scale, shift, axis=len(x.shape) - len(shape),
        epsilon=float(call['eps']),
    )  # fmt: skip
    kinds = [call.result_of(number) for number in range(count)]
    found = [Value(n, kind.shape, kind.dtype) for n, kind in zip(made, kinds, strict=True)]
    return (*found, *(None,) * (3 - count))


def _softmax(op: str) -> Handler:
    def handler(call: Call) -> Value:
        x = call.operand('self', call.result.dtype)
        if not x.shape:
            return call.reshaped(call.made(op, x, call.reshaped(x, (1,)), axis=0), ())
        return call.done(op, x, axis=call['dim'] % len(x.shape))

    return handler


def _upsample(mode: str, axes: int) -> Handler:
    """Sizes or factors are given; places of pixels as PyTorch has them."""

    def handler(call: Call) -> Value:
        x = call.value('input')
        aligned = bool(call.arguments.get('align_corners'))
        if mode == 'nearest':
            places = {'coordinate_transformation_mode': 'asymmetric', 'nearest_mode': 'floor'}
        else:
            name = 'align_corners' if aligned else 'half_pixel'
            places = {'coordinate_transformation_mode': name}
            places |= {'cubic_coeff_a': -0.75} if mode == 'cubic' else {}
        factors = call.arguments.get('scale_factors')
        if factors and not aligned:
            scales = call.constant([1.0, 1.0, *factors], 'f32')
            return call.done('Resize', x, None, scales, mode=mode, **places)
        sizes = call.constant(list(call.result.shape))
        return call.done('Resize', x, None, None, sizes, mode=mode, **places)

    return handler


def _pixel_shuffle(op: str, argument: str) -> Callable[[Call], Value]:
    def handler(call: Call) -> Value:
        x = call.value('self')
        if len(x.shape) != 4:
            raise UnsupportedError(f'of rank {len(x.shape)}')
        mode = {'mode': 'CRD'} if op == 'DepthToSpace' else {}
        return call.done(op, x, blocksize=call[argument], **mode)

    return handler


def _each(name: str, make: Callable[[int], Handler], axes: Sequence[int]) -> dict[str, Handler]:
    return {name.format(n): make(n) for n in axes}


HANDLERS: dict[str, Handler] = {
    'convolution.default': _convolution,
    'linear.default': _linear,
    'addmm.default': _addmm,
    'mm.default': _product('self', 'mat2'),
    'bmm.default': _product('self', 'mat2'),
    **_each('max_pool{}d_with_indices.default', _max_pool, (2, 3)),
    **_each('avg_pool{}d.default', _average_pool, (1, 2, 3)),
    **_each('_adaptive_avg_pool{}d.default', _adaptive_average, (2, 3)),
    'adaptive_avg_pool1d.default': _adaptive_average(1),
    **_each('adaptive_max_pool{}d.default', _adaptive_max, (2, 3)),
    '_native_batch_norm_legit_no_training.default': _batch_norm,
    '_native_batch_norm_legit.no_stats': _statistics_norm,
    'native_group_norm.default': _group_norm,
    'native_layer_norm.default': _layer_norm,
    '_softmax.default': _softmax('Softmax'),
    '_log_softmax.default': _softmax('LogSoftmax'),
    **_each('upsample_nearest{}d.vec', lambda axes: _upsample('nearest', axes), (1, 2, 3)),
    'upsample_linear1d.vec': _upsample('linear', 1),
    'upsample_bilinear2d.vec': _upsample('linear', 2),
    'upsample_trilinear3d.vec': _upsample('linear', 3),
    'upsample_bicubic2d.vec': _upsample('cubic', 2),
    'pixel_shuffle.default': _pixel_shuffle('DepthToSpace', 'upscale_factor'),
}
