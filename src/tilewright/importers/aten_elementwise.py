"""ATen's element-wise operators as ONNX nodes. [Call] -> [Value]"""

from __future__ import annotations

import math
from typing import Any

from tilewright.graph.graph import Value
from tilewright.importers.aten_call import FLOATS, Call, Handler, UnsupportedError


def _unary(op: str, **attributes: Any) -> Handler:
    """An operator of one tensor, computed in the dtype of its result."""
    return lambda call: call.done(op, call.operand('self', call.result.dtype), **attributes)


_OF_TRUTH = {'Add': 'Or', 'Mul': 'And', 'Max': 'Or', 'Min': 'And'}


def _binary(op: str) -> Handler:
    def handler(call: Call) -> Value:
        dtype = call.result.dtype
        if dtype == 'bool':
            if op not in _OF_TRUTH:
                raise UnsupportedError('on bool')
            return call.done(_OF_TRUTH[op], *(call.operand(n, 'bool') for n in ('self', 'other')))
        left, right = call.operand('self', dtype), call.operand('other', dtype)
        if call.arguments.get('alpha', 1) != 1:
            right = call.made('Mul', right, right, call.number(call['alpha'], dtype))
        return call.done(op, left, right)

    return handler


def _comparison(op: str, negated: bool = False) -> Handler:
    def handler(call: Call) -> Value:
        dtype = call.common_dtype('self', 'other')
        inputs = [call.operand(name, dtype) for name in ('self', 'other')]
        found = call.done(op, *inputs)
        return call.made('Not', found, found) if negated else found

    return handler


def _logical(op: str) -> Handler:
    return lambda call: call.done(op, *(call.operand(n, 'bool') for n in ('self', 'other')))


def _bitwise(word: str) -> Handler:
    """Bits of whole numbers, or truth values."""

    def handler(call: Call) -> Value:
        dtype = call.result.dtype
        op = word if dtype == 'bool' else f'Bitwise{word}'
        names = ('self',) if word == 'Not' else ('self', 'other')
        return call.done(op, *(call.operand(n, dtype) for n in names))

    return handler


def _reciprocal_root(call: Call) -> Value:
    x = call.operand('self', call.result.dtype)
    return call.done('Reciprocal', call.made('Sqrt', call.result, x))


def _power_of(base: float) -> Handler:
    return lambda call: call.done(
        'Pow', call.number(base, call.result.dtype), call.operand('self', call.result.dtype)
    )


def _scaled_log(base: float) -> Handler:
    def handler(call: Call) -> Value:
        x = call.operand('self', call.result.dtype)
        return call.done('Div', call.made('Log', x, x), call.number(math.log(base), x.dtype))

    return handler


def _pow(call: Call) -> Value:
    dtype = call.result.dtype
    base, exponent = call.operand('self', dtype), call['exponent']
    if exponent == 2:
        return call.done('Mul', base, base)
    return call.done('Pow', base, call.operand('exponent', dtype))


def _div(call: Call) -> Value:
    """True division, or rounded towards zero or minus infinity."""
    mode, dtype = call.arguments.get('rounding_mode'), call.result.dtype
    left, right = call.operand('self', dtype), call.operand('other', dtype)
    if mode == 'floor':
        return _floored(call, left, right)
    found = call.done('Div', left, right)
    return _truncated(call, found) if mode == 'trunc' and dtype in FLOATS else found


def _floored(call: Call, left: Value, right: Value) -> Value:
    """The quotient rounded down. Floats as PyTorch does: of 1 and 0.1, which is a little more than
    a tenth, it is 9, although their quotient rounds to 10.
    """
    result = call.result
    if result.dtype not in FLOATS:
        rest = call.made('Mod', result, left, right, fmod=0)
        return call.done('Div', call.made('Sub', result, left, rest), right)
    rest, apart = _rest(call, left, right)
    whole = call.made('Div', result, call.made('Sub', result, left, rest), right)
    down = call.made(
        'Sub', result, call.made('Round', result, whole), call.cast(apart, right.dtype)
    )
    by_zero = Value(call.emit('Equal', right, call.number(0, right.dtype)), right.shape, 'bool')
    return call.done('Where', by_zero, call.made('Div', result, left, right), down)


def _rest(call: Call, left: Value, right: Value) -> tuple[Value, Value]:
    """What division towards zero leaves, and whether it has the other sign than the divisor."""
    rest = call.made('Mod', call.result, left, right, fmod=1)
    zero = call.number(0, rest.dtype)
    shape = call.result.shape
    below, negative = (
        Value(call.emit('Less', value, zero), value.shape, 'bool') for value in (rest, right)
    )
    other = call.emit('Xor', below, negative)
    some = call.emit('Not', call.emit('Equal', rest, zero))
    return rest, Value(call.emit('And', some, other), shape, 'bool')


def _truncated(call: Call, x: Value) -> Value:
    lower = call.made('Floor', x, call.made('Abs', x, x))
    return call.made('Mul', x, lower, call.made('Sign', x, x))


def _trunc(call: Call) -> Value:
    x = call.value('self')
    return _truncated(call, x) if x.dtype in FLOATS else call.made('Identity', x, x)


def _remainder(fmod: int) -> Handler:
    """The remainder with the divisor's sign, or with the dividend's (fmod)."""

    def handler(call: Call) -> Value:
        dtype = call.result.dtype
        left, right = call.operand('self', dtype), call.operand('other', dtype)
        if fmod or dtype not in FLOATS:
            return call.done('Mod', left, right, fmod=fmod)
        rest, apart = _rest(call, left, right)
        return call.done('Where', apart, call.made('Add', rest, rest, right), rest)

    return handler


def _clamp(call: Call) -> Value:
    dtype = call.result.dtype
    x = call.operand('self', dtype)
    for name, op in (('min', 'Max'), ('max', 'Min')):
        if call.has(name):
            x = call.made(op, call.result, x, call.operand(name, dtype))
    return call.made('Identity', x, x)


def _hardtanh(call: Call) -> Value:
    x = call.value('self')
    low, high = (call.number(call[name], x.dtype) for name in ('min_val', 'max_val'))
    return call.done('Clip', x, low, high)


def _gelu(call: Call) -> Value:
    return call.done('Gelu', call.value('self'), approximate=call['approximate'])


def _elu(call: Call) -> Value:
    """scale * (max(0, x) + min(0, alpha * (exp(input_scale * x) - 1)))"""
    x, alpha = call.value('self'), float(call['alpha'])
    scale, inner = float(call['scale']), float(call['input_scale'])
    if inner == 1:
        y = call.made('Elu', x, x, alpha=alpha)
    elif math.isclose(inner * alpha, 1):
        y = call.made('Celu', x, x, alpha=alpha)
    else:
        raise UnsupportedError(f'with input_scale {inner}')
    return y if scale == 1 else call.made('Mul', x, y, call.number(scale, x.dtype))


def _leaky_relu(call: Call) -> Value:
    return call.done('LeakyRelu', call.value('self'), alpha=float(call['negative_slope']))


def _where(call: Call) -> Value:
    dtype = call.result.dtype
    chosen = [call.operand(name, dtype) for name in ('self', 'other')]
    return call.done('Where', call.operand('condition', 'bool'), *chosen)


def _masked_fill(call: Call) -> Value:
    dtype = call.result.dtype
    inputs = [call.operand(name, dtype) for name in ('value', 'self')]
    return call.done('Where', call.operand('mask', 'bool'), *inputs)


def _round(call: Call) -> Value:
    if call.arguments.get('decimals', 0):
        raise UnsupportedError(f'to {call["decimals"]} decimals')
    return call.done('Round', call.value('self'))


def _same(call: Call) -> Value:
    """The value itself, in the dtype of the result."""
    return call.cast(call.value('self'), call.result.dtype)


def _threshold(call: Call) -> Value:
    x = call.value('self')
    low, value = (call.number(call[name], x.dtype) for name in ('threshold', 'value'))
    above = Value(call.emit('Greater', x, low), x.shape, 'bool')
    return call.done('Where', above, x, value)


_UNARY = {
    'abs': 'Abs', 'acos': 'Acos', 'acosh': 'Acosh', 'asin': 'Asin', 'asinh': 'Asinh',
    'atan': 'Atan', 'atanh': 'Atanh', 'ceil': 'Ceil', 'cos': 'Cos', 'cosh': 'Cosh', 'erf': 'Erf',
    'exp': 'Exp', 'floor': 'Floor', 'hardsigmoid': 'HardSigmoid', 'hardswish': 'HardSwish',
    'log': 'Log', 'mish': 'Mish', 'neg': 'Neg', 'reciprocal': 'Reciprocal', 'relu': 'Relu',
    'sigmoid': 'Sigmoid', 'sign': 'Sign', 'sin': 'Sin', 'sinh': 'Sinh', 'sqrt': 'Sqrt',
    'tan': 'Tan', 'tanh': 'Tanh',
}  # fmt: skip
_OVERLOADS = ('Tensor', 'Scalar')
_BINARY = {'add': 'Add', 'sub': 'Sub', 'mul': 'Mul'}
_COMPARED = {
    'eq': ('Equal', False), 'ne': ('Equal', True), 'lt': ('Less', False), 'gt': ('Greater', False),
    'le': ('LessOrEqual', False), 'ge': ('GreaterOrEqual', False),
}  # fmt: skip
HANDLERS: dict[str, Handler] = {
    **{f'{name}.default': _unary(op) for name, op in _UNARY.items()},
    'hardsigmoid.default': _unary('HardSigmoid', alpha=1 / 6, beta=0.5),
    **{f'{name}.{o}': _binary(op) for name, op in _BINARY.items() for o in _OVERLOADS},
    'maximum.default': _binary('Max'),
    'minimum.default': _binary('Min'),
    **{f'{n}.{o}': _comparison(op, no) for n, (op, no) in _COMPARED.items() for o in _OVERLOADS},
    'logical_and.default': _logical('And'),
    'logical_or.default': _logical('Or'),
    'logical_xor.default': _logical('Xor'),
    'logical_not.default': lambda call: call.done('Not', call.operand('self', 'bool')),
    **{f'bitwise_{w.lower()}.{o}': _bitwise(w) for w in ('And', 'Or', 'Xor') for o in _OVERLOADS},
    'bitwise_not.default': _bitwise('Not'),
    'isnan.default': lambda call: call.done('IsNaN', call.value('self')),
    'isinf.default': lambda call: call.done('IsInf', call.value('self')),
    'rsqrt.default': _reciprocal_root,
    'log1p.default': _unary('tilewright::Log1p'),
    'expm1.default': _unary('tilewright::Expm1'),
    'exp2.default': _power_of(2.0),
    'log2.default': _scaled_log(2.0),
    'log10.default': _scaled_log(10.0),
    'pow.Tensor_Scalar': _pow,
    'pow.Tensor_Tensor': _pow,
    'pow.Scalar': _pow,
    'div.Tensor': _div,
    'div.Scalar': _div,
    'div.Tensor_mode': _div,
    'div.Scalar_mode': _div,
    'trunc.default': _trunc,
    'fmod.Tensor': _remainder(1),
    'fmod.Scalar': _remainder(1),
    'remainder.Tensor': _remainder(0),
    'remainder.Scalar': _remainder(0),
    'clamp.default': _clamp,
    'clamp.Tensor': _clamp,
    'clamp_min.default': _clamp,
    'clamp_max.default': _clamp,
    'hardtanh.default': _hardtanh,
    'gelu.default': _gelu,
    'elu.default': _elu,
    'leaky_relu.default': _leaky_relu,
    'threshold.default': _threshold,
    'round.default': _round,
    'where.self': _where,
    'copy.default': lambda call: call.done(
        'Expand', call.operand('src', call.result.dtype), call.constant(list(call.result.shape))
    ),
    'masked_fill.Scalar': _masked_fill,
    'masked_fill.Tensor': _masked_fill,
    '_to_copy.default': _same,
    'clone.default': _same,
    'alias.default': _same,
    'detach.default': _same,
    'lift_fresh_copy.default': _same,
    'contiguous.default': _same,
    'dropout.default': lambda call: call.value('input'),
}
