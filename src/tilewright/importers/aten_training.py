"""What ATen's operators are while a module is trained, as ONNX nodes."""

from __future__ import annotations

import math

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import Call, Handler, UnsupportedError
from tilewright.importers.aten_windows import Pieces, filled


def _training_norm(call: Call) -> Pieces:
    """By the statistics of this batch, and the running ones after it.

    PyTorch moves the running variance towards the one of a sample, n / (n - 1) times that of ONNX,
    and counts what is new where ONNX counts what is kept.
    """
    x = call.value('input')
    if not call['training'] or call.used(1) or call.used(2):
        raise UnsupportedError('that keeps its statistics')
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
    statistics = (Value(name, (c,), x.dtype) for name in (new_mean, new_variance))
    return Value(made, x.shape, x.dtype), None, None, *statistics


def _dropout(call: Call) -> Pieces:
    """Names what it is; only training says what it draws from."""
    x, result = call.value('input'), call.result
    if not call['train']:
        return x, None
    if call.used(1):
        raise UnsupportedError('whose mask is read')
    ratio, training = call.number(float(call['p']), x.dtype), call.number(True, 'bool')
    return Value(call.emit('Dropout', x, ratio, training), result.shape, x.dtype), None


HANDLERS: dict[str, Handler] = {
    '_native_batch_norm_legit_functional.default': _training_norm,
    'native_dropout.default': _dropout,
}
