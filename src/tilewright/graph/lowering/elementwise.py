"""Element by element: arithmetic, comparisons, logic, activations, casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.given import ANY, NUMBERS, WHOLE, Given, Lowering, Operator
from tilewright.graph.lowering.result import Known, Result, Unsupported
from tilewright.graph.lowering.types import ELEMENT_TYPES
from tilewright.ops.dtypes import DTYPES as GENERATED
from tilewright.ops.dtypes import is_float
from tilewright.ops.stage import Expr, call, cast, const, literal, read

SELU_ALPHA, SELU_GAMMA = 1.6732631921768188, 1.0507010221481323


def add(a: Expr, b: Expr) -> Expr:
    return call('add', a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return call('sub', a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return call('mul', a, b)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return call('where', condition, a, b)


X = read(0)
ZERO, ONE = const(0.0), const(1.0)


def softplus(x: Expr) -> Expr:
    """log(1 + e^x), where e^x may be too large: max(x, 0) + log(1 + e^-|x|)."""
    return add(call('max', x, ZERO), call('log1p', call('exp', call('neg', call('abs', x)))))


def _elu(given: Given) -> Expr:
    alpha = const(given.float('alpha', 1.0))
    return where(call('lt', X, ZERO), mul(alpha, call('expm1', X)), X)


def _selu(given: Given) -> Expr:
    alpha, gamma = given.float('alpha', SELU_ALPHA), given.float('gamma', SELU_GAMMA)
    low = mul(const(alpha), call('expm1', X))
    return mul(const(gamma), where(call('gt', X, ZERO), X, low))


def _celu(given: Given) -> Expr:
    alpha = const(given.float('alpha', 1.0))
    low = mul(alpha, call('expm1', call('div', X, alpha)))
    return add(call('max', X, ZERO), call('min', low, ZERO))


def _gelu(given: Given) -> Expr:
    if given.text('approximate', 'none', ('none', 'tanh')) == 'none':
        inner = call('erf', mul(X, const(math.sqrt(0.5))))
    else:
        cubed = mul(X, add(ONE, mul(const(0.044715), mul(X, X))))
        inner = call('tanh', mul(const(math.sqrt(2 / math.pi)), cubed))
    return mul(mul(const(0.5), X), add(inner, ONE))


def _hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    line = add(mul(x, const(alpha)), const(beta))
    return call('max', call('min', line, ONE), ZERO)


def _shrink(given: Given) -> Expr:
    dtype = given.input(0).dtype
    bound, bias = given.float('lambd', 0.5), given.float('bias', 0.0)
    if bias.is_integer() or is_float(dtype):
        lower, upper = sub(X, literal(bias, dtype)), add(X, literal(bias, dtype))
    else:  # a fraction counts before the result is a whole number
        wide = cast(X, 'f64')
        lower, upper = (cast(call(f, wide, const(bias)), dtype) for f in ('sub', 'add'))
    above = where(call('gt', X, const(bound)), lower, literal(0, dtype))
    return where(call('lt', X, const(-bound)), upper, above)


def _is_inf(given: Given) -> Expr:
    found = call('isinf', X)
    if not given.int('detect_positive', 1):
        found = call('and', found, call('lt', X, ZERO))
    if not given.int('detect_negative', 1):
        found = call('and', found, call('gt', X, ZERO))
    return found


def _swish(given: Given) -> Expr:
    alpha = given.float('alpha', 1.0)
    return mul(X, call('sigmoid', X if alpha == 1.0 else mul(const(alpha), X)))


# operator -> its expression of one value
_UNARY: dict[str, Callable[[Given], Expr]] = {
    'Relu': lambda given: call('max', X, literal(0, given.input(0).dtype)),
    'LeakyRelu': lambda given: where(
        call('lt', X, ZERO), mul(X, const(given.float('alpha', 0.01))), X
    ),
    'Elu': _elu,
    'Selu': _selu,
    'Celu': _celu,
    'Gelu': _gelu,
    'HardSigmoid': lambda given: _hard_sigmoid(
        X, given.float('alpha', 0.2), given.float('beta', 0.5)
    ),
    'HardSwish': lambda given: mul(X, _hard_sigmoid(X, 1 / 6, 0.5)),
    'Swish': _swish,
    'Softplus': lambda given: softplus(X),
    'Softsign': lambda given: call('div', X, add(ONE, call('abs', X))),
    'Mish': lambda given: mul(X, call('tanh', softplus(X))),
    'ThresholdedRelu': lambda given: where(
        call('gt', X, const(given.float('alpha', 1.0))), X, ZERO
    ),
    'Reciprocal': lambda given: call('div', ONE, X),
    **{
        name: lambda given, word=word: call(word, X)
        for name, word in {
            'Sigmoid': 'sigmoid', 'Tanh': 'tanh', 'Exp': 'exp', 'Log': 'log', 'Sqrt': 'sqrt',
            'Erf': 'erf', 'Floor': 'floor', 'Ceil': 'ceil', 'Round': 'round', 'Sin': 'sin',
            'Cos': 'cos', 'Tan': 'tan', 'Asin': 'asin', 'Acos': 'acos', 'Atan': 'atan',
            'Sinh': 'sinh', 'Cosh': 'cosh', 'Asinh': 'asinh', 'Acosh': 'acosh', 'Atanh': 'atanh',
        }.items()
    },
}  # fmt: skip
_UNARY_NUMBERS: dict[str, Callable[[Given], Expr]] = {
    'Abs': lambda given: call('abs', X),
    'Neg': lambda given: call('neg', X),
    'Sign': lambda given: call('sign', X),
    'Shrink': _shrink,
}
_UNARY_TRUTH: dict[str, Callable[[Given], Expr]] = {
    'IsNaN': lambda given: call('isnan', X),
    'IsInf': _is_inf,
    'Not': lambda given: call('not', X),
}


def _unary(expr: Callable[[Given], Expr], dtype: str | None = None) -> Lowering:
    def lower(given: Given) -> Result:
        x = given.input(0)
        return pointwise(given.node.op.lower(), expr(given), [x], dtype or x.dtype)

    return lower


def _same_dtypes(inputs: Sequence[Result]) -> str:
    """The one dtype of all inputs."""
    found = list(dict.fromkeys(r.dtype for r in inputs))
    if len(found) > 1:
        raise Unsupported(f'with inputs of {" and ".join(found)}')
    return found[0]


def _binary(function: str, dtype: str | None = None) -> Lowering:
    def lower(given: Given) -> Result:
        inputs = [given.input(0), given.input(1)]
        kind = _same_dtypes(inputs)
        return pointwise(function, call(function, X, read(1)), inputs, dtype or kind)

    return lower


def _variadic(function: str) -> Lowering:
    """All inputs, eight at a time: an expression should not grow with a file."""

    def lower(given: Given) -> Result:
        first, *rest = given.all()
        dtype = _same_dtypes([first, *rest])
        while rest:
            now, rest, expr = [first, *rest[:7]], rest[7:], X
            for number in range(1, len(now)):
                expr = call(function, expr, read(number))
            first = pointwise(function, expr, now, dtype)
        return first

    return lower


def _mean(given: Given) -> Result:
    total = _variadic('add')(given)
    assert not isinstance(total, tuple)
    return pointwise('mean', call('div', X, const(len(given))), [total], total.dtype)


def _pow(given: Given) -> Result:
    base, exponent = given.input(0), given.input(1)
    if isinstance(exponent, Known) and exponent.array.size == 1:
        power = exponent.array.item()
        if power == 2 and len(exponent.shape) <= len(base.shape):
            return pointwise('square', mul(X, X), [base], base.dtype)
    return pointwise('pow', call('pow', X, read(1)), [base, exponent], base.dtype)


def _mod(given: Given) -> Result:
    inputs = [given.input(0), given.input(1)]
    function = 'fmod' if given.int('fmod', 0) else 'mod'
    return pointwise(function, call(function, X, read(1)), inputs, _same_dtypes(inputs))


def _shift(given: Given) -> Result:
    """By any number: what is shifted out on the right leaves the sign."""
    inputs = [given.input(0), given.input(1)]
    dtype, by = _same_dtypes(inputs), read(1)
    if given.text('direction', '', ('LEFT', 'RIGHT')) == 'LEFT':
        return pointwise('shl', call('shl', X, by), inputs, dtype)
    if dtype[0] == 'i':
        width = literal(8 * GENERATED[dtype], dtype)
        beyond = call('or', call('lt', by, literal(0, dtype)), call('ge', by, width))
        by = where(beyond, literal(8 * GENERATED[dtype] - 1, dtype), by)
    return pointwise('shr', call('shr', X, by), inputs, dtype)


def _prelu(given: Given) -> Result:
    inputs = [given.input(0), given.input(1)]
    dtype = _same_dtypes(inputs)
    expr = where(call('lt', X, literal(0, dtype)), mul(X, read(1)), X)
    return pointwise('prelu', expr, inputs, dtype)


def _clip(given: Given) -> Result:
    x, expr, inputs = given.input(0), X, [given.input(0)]
    for number, function in ((1, 'max'), (2, 'min')):
        bound = given.optional(number)
        if bound is not None:
            inputs.append(_as_dtype(bound, x.dtype))
            expr = call(function, expr, read(len(inputs) - 1))
    return x if expr is X else pointwise('clip', expr, inputs, x.dtype)


def _as_dtype(result: Result, dtype: str) -> Result:
    """Limits that were attributes are float32, whatever they limit."""
    return convert(result, dtype) if isinstance(result, Known) else result


def _where(given: Given) -> Result:
    inputs = [given.input(0), given.input(1), given.input(2)]
    dtype = _same_dtypes(inputs[1:])
    return pointwise('where', where(X, read(1), read(2)), inputs, dtype)


def convert(x: Result, dtype: str) -> Result:
    """The same values in another dtype."""
    if x.dtype == dtype:
        return x
    if isinstance(x, Known) and not {x.dtype, dtype} <= set(GENERATED):
        with np.errstate(all='ignore'):
            return Known(x.array.astype(DTYPES[dtype]))
    for kind in (x.dtype, dtype):
        if kind not in GENERATED:
            raise Unsupported(f'of {x.dtype} to {dtype}')
    expr = call('not', call('eq', X, literal(0, x.dtype))) if dtype == 'bool' else X
    return pointwise('cast', expr, [x], dtype)


def _cast(given: Given) -> Result:
    number = given.int('to')
    if number not in ELEMENT_TYPES:
        raise Unsupported(f'to element type {number}')
    return convert(given.input(0), ELEMENT_TYPES[number])


def _cast_like(given: Given) -> Result:
    return convert(given.input(0), given.input(1).dtype)


OPERATORS: dict[str, Operator] = {
    **{name: Operator(_unary(expr)) for name, expr in _UNARY.items()},
    'Relu': Operator(_unary(_UNARY['Relu']), NUMBERS),
    **{name: Operator(_unary(expr), NUMBERS) for name, expr in _UNARY_NUMBERS.items()},
    **{name: Operator(_unary(expr, 'bool'), ANY) for name, expr in _UNARY_TRUTH.items()},
    **{
        name: Operator(_binary(function), NUMBERS)
        for name, function in {'Add': 'add', 'Sub': 'sub', 'Mul': 'mul', 'Div': 'div'}.items()
    },
    **{
        name: Operator(_binary(function, 'bool'), ANY)
        for name, function in {
            'Equal': 'eq', 'Less': 'lt', 'LessOrEqual': 'le', 'Greater': 'gt',
            'GreaterOrEqual': 'ge',
        }.items()
    },
    **{
        name: Operator(_binary(function, 'bool'), ('bool',))
        for name, function in {'And': 'and', 'Or': 'or', 'Xor': 'xor'}.items()
    },
    **{
        name: Operator(_binary(function), WHOLE)
        for name, function in {
            'BitwiseAnd': 'bit_and', 'BitwiseOr': 'bit_or', 'BitwiseXor': 'bit_xor',
        }.items()
    },
    'BitwiseNot': Operator(_unary(lambda given: call('bit_not', X)), WHOLE),
    'BitShift': Operator(_shift, WHOLE),
    'Sum': Operator(_variadic('add')),
    'Max': Operator(_variadic('max'), NUMBERS),
    'Min': Operator(_variadic('min'), NUMBERS),
    'Mean': Operator(_mean),
    'Pow': Operator(_pow, NUMBERS),
    'Mod': Operator(_mod, NUMBERS),
    'PRelu': Operator(_prelu, NUMBERS),
    'Clip': Operator(_clip, NUMBERS),
    'Where': Operator(_where, ANY),
    'Cast': Operator(_cast, ANY, converts=True),
    'CastLike': Operator(_cast_like, ANY, converts=True),
}  # fmt: skip
