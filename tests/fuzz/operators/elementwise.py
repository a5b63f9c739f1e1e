"""Element by element: arithmetic, comparisons, logic, activations, casts."""

from __future__ import annotations

import numpy as np
from onnx import helper

from ..draw import ANY, FLOATS, NUMBERS, WHOLE, Draw, MisfitError, Row, Step


def _plain(draw: Draw, x: str) -> Step:
    return Step([x])


def _within(low: float, high: float):
    """Of values between two limits."""

    def make(draw: Draw, x: str) -> Step:
        array = draw.values[x]
        if not draw.special and not (array.min() > low and array.max() < high):
            raise MisfitError('outside its domain')
        return Step([x])

    return make


def _away_from_zero(draw: Draw, x: str) -> Step:
    if not draw.special and np.abs(draw.values[x]).min() < 0.05:
        raise MisfitError('too near to zero')
    return Step([x])


def _attributes(**ranges: tuple[float, float]):
    """Floats drawn from ranges; now and then the default instead."""

    def make(draw: Draw, x: str) -> Step:
        drawn = {
            name: round(draw.rng.uniform(low, high), 2)
            for name, (low, high) in ranges.items()
            if draw.chance(0.7)
        }
        return Step([x], drawn)

    return make


def _gelu(draw: Draw, x: str) -> Step:
    return Step([x], {'approximate': draw.pick(('none', 'tanh'))})


def _is_inf(draw: Draw, x: str) -> Step:
    return Step([x], {n: draw.int(0, 1) for n in ('detect_positive', 'detect_negative')})


def _binary(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    other = draw.partner(array.shape, str(array.dtype))
    return Step([x, other] if draw.chance(0.6) else [other, x])


def _same(draw: Draw, x: str) -> Step:
    """Two numbers, seldom both the same value."""
    return Step([x, x]) if draw.chance(0.04) else _binary(draw, x)


def _divide(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    safe = str(array.dtype) in FLOATS and np.abs(array).min() > 0.05
    if safe and draw.chance(0.3):
        return Step([draw.partner(array.shape, str(array.dtype)), x])
    kind = str(array.dtype)
    divisor = draw.data(draw.pick(((), array.shape[-1:], array.shape)), kind, 'positive')
    if kind in WHOLE:
        if kind[0] != 'u' and array.min() < 0:
            raise MisfitError('C and Python round quotients of negative numbers otherwise')
        divisor = np.maximum(divisor, 1).astype(kind)
    elif draw.chance(0.3):
        divisor = -divisor
    return Step([x, draw.constant(divisor)])


def _mod(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    kind = str(array.dtype)
    divisor = draw.data(draw.pick(((), array.shape[-1:])), kind, 'positive')
    if kind in WHOLE:
        divisor = np.maximum(divisor, 1).astype(kind)
    fmod = int(kind in FLOATS or draw.chance(0.3))
    return Step([x, draw.constant(divisor)], {'fmod': fmod})


def _pow(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    kind = str(array.dtype)
    if kind in WHOLE:
        if np.abs(array.astype(float)).max() > 8:
            raise MisfitError('its power is too large')
        return Step([x, draw.constant(np.array(draw.int(0, 3), kind))])
    if array.min() > 0.05 and draw.chance(0.6):
        return Step([x, draw.partner(array.shape, kind)])
    exponent = np.array(draw.pick((2.0, 2.0, 3.0, 1.0, 0.0)), kind)
    return Step([x, draw.constant(exponent)])


def _variadic(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    count = draw.pick((0, 1, 1, 1, 2, 3, 9))
    others = [draw.partner(array.shape, str(array.dtype)) for _ in range(count)]
    names = [x, *others]
    draw.rng.shuffle(names)
    return Step(names)


def _shift(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    kind = str(array.dtype)
    if kind[0] != 'u':
        raise MisfitError('the standard shifts numbers without sign')
    by = draw.data(draw.pick(((), array.shape)), kind, 'any') % 4
    return Step([x, draw.constant(by.astype(kind))], {'direction': draw.pick(('LEFT', 'RIGHT'))})


def _prelu(draw: Draw, x: str) -> Step:
    array = draw.values[x]
    shape = tuple(1 if draw.chance(0.4) else s for s in array.shape)
    return Step([x, draw.operand(shape[draw.int(0, array.ndim) :], str(array.dtype))])


def _clip(draw: Draw, x: str) -> Step:
    kind = str(draw.values[x].dtype)
    low, high = (-1, 2) if kind in WHOLE and kind[0] != 'u' else (1, 3)
    if kind in FLOATS:
        low, high = -0.7, 0.9
    names = [x, draw.constant(np.array(low, kind)), draw.constant(np.array(high, kind))]
    left_out = draw.pick((0, 0, 1, 2))
    if left_out == 1:
        names[1] = ''
    return Step(names[:2] if left_out == 2 else names)


def _where_condition(draw: Draw, x: str) -> Step:
    kind = draw.dtype()
    shape = draw.values[x].shape
    return Step([x, draw.partner(shape, kind), draw.partner(shape, kind)])


def _where(draw: Draw, x: str) -> Step:
    """A truth value as the condition; others as one of the two that are chosen from."""
    array = draw.values[x]
    if array.dtype == bool and draw.chance(0.8):
        return _where_condition(draw, x)
    kind, shape = str(array.dtype), array.shape
    pair = [x, draw.partner(shape, kind)]
    draw.rng.shuffle(pair)
    return Step([draw.partner(shape, 'bool'), *pair])


def _cast(draw: Draw, x: str) -> Step:
    array, wanted = draw.values[x], draw.dtype()
    _check_cast(draw, array, wanted)
    return Step([x], {'to': int(helper.np_dtype_to_tensor_dtype(np.dtype(wanted)))})


def _cast_like(draw: Draw, x: str) -> Step:
    wanted = draw.dtype()
    _check_cast(draw, draw.values[x], wanted)
    return Step([x, draw.operand(draw.shape(1), wanted)])


def _check_cast(draw: Draw, array: np.ndarray, wanted: str) -> None:
    """A float outside a whole type's range has no defined value in it."""
    if array.dtype.kind == 'f' and wanted in WHOLE:
        limits = np.iinfo(wanted)
        low = -0.99 if wanted[0] == 'u' else float(limits.min)
        if not np.isfinite(array).all() or array.min() < low or array.max() > limits.max:
            raise MisfitError(f'{wanted} does not hold it')


UNARY = (
    'Sigmoid Tanh Exp Erf Floor Ceil Round Sin Cos Atan Sinh Cosh Asinh HardSwish Softplus '
    'Softsign Mish'
)
ROWS = (
    *(Row(name, FLOATS, _plain) for name in UNARY.split()),
    *(Row(name, NUMBERS, _plain) for name in ['Relu', 'Abs', 'Neg', 'Sign']),
    Row('IsNaN', FLOATS, _plain),
    Row('IsInf', FLOATS, _is_inf),
    Row('Not', ('bool',), _plain),
    Row('Log', FLOATS, _within(0.02, 1e9)),
    Row('Sqrt', FLOATS, _within(0.01, 1e9)),
    Row('Acos', FLOATS, _within(-0.98, 0.98)),
    Row('Asin', FLOATS, _within(-0.98, 0.98)),
    Row('Atanh', FLOATS, _within(-0.98, 0.98)),
    Row('Acosh', FLOATS, _within(1.02, 1e9)),
    Row('Tan', FLOATS, _within(-1.4, 1.4)),
    Row('Reciprocal', FLOATS, _away_from_zero),
    Row('LeakyRelu', FLOATS, _attributes(alpha=(-0.5, 0.5))),
    Row('Elu', FLOATS, _attributes(alpha=(0.1, 2))),
    Row('Selu', FLOATS, _attributes(alpha=(0.5, 2), gamma=(0.5, 2))),
    Row('Celu', FLOATS, _attributes(alpha=(0.3, 2))),
    Row('HardSigmoid', FLOATS, _attributes(alpha=(0.1, 0.6), beta=(0.1, 0.9))),
    Row('ThresholdedRelu', FLOATS, _attributes(alpha=(0.1, 1))),
    Row('Shrink', NUMBERS, _attributes(lambd=(0.1, 1), bias=(0.1, 1))),
    Row('Swish', FLOATS, _attributes(alpha=(0.3, 2))),
    Row('Gelu', FLOATS, _gelu),
    *(Row(name, NUMBERS, _same) for name in ('Add', 'Sub', 'Mul')),
    Row('Div', NUMBERS, _divide),
    Row('Mod', NUMBERS, _mod),
    Row('Pow', NUMBERS, _pow),
    Row('Equal', ANY, _same),
    *(Row(name, NUMBERS, _same) for name in ('Less', 'LessOrEqual', 'Greater', 'GreaterOrEqual')),
    *(Row(name, ('bool',), _same) for name in ('And', 'Or', 'Xor')),
    *(Row(name, WHOLE, _same) for name in ('BitwiseAnd', 'BitwiseOr', 'BitwiseXor')),
    Row('BitwiseNot', WHOLE, _plain),
    Row('BitShift', WHOLE, _shift),
    *(Row(name, FLOATS, _variadic) for name in ('Sum', 'Mean')),
    *(Row(name, NUMBERS, _variadic) for name in ('Max', 'Min')),
    Row('PRelu', NUMBERS, _prelu),
    Row('Clip', NUMBERS, _clip),
    Row('Where', ANY, _where),
    Row('Cast', ANY, _cast),
    Row('CastLike', ANY, _cast_like),
)
