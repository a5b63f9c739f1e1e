"""Element by element: arithmetic, comparisons, logic, activations, casts (ops/functions.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.reader import ANY, NUMBERS, WHOLE, Lowering, NodeReader, Operator
from tilewright.graph.lowering.result import Known, Result, Unsupported
from tilewright.graph.lowering.types import ELEMENT_TYPES
from tilewright.ops import functions
from tilewright.ops.dtypes import COMPUTED as GENERATED
from tilewright.ops.functions import ONE, SELU_ALPHA, SELU_GAMMA, X
from tilewright.ops.stage import Expr, call, const, read

# operator -> its expression of one value
_UNARY: dict[str, Callable[[NodeReader], Expr]] = {
    'LeakyRelu': lambda node: functions.leaky_relu(node.float('alpha', 0.01)),
    'Elu': lambda node: functions.elu(node.float('alpha', 1.0)),
    'Selu': lambda node: functions.selu(
        node.float('alpha', SELU_ALPHA), node.float('gamma', SELU_GAMMA)
    ),
    'Celu': lambda node: functions.celu(node.float('alpha', 1.0)),
    'Gelu': lambda node: functions.gelu(
        node.text('approximate', 'none', ('none', 'tanh')) == 'tanh'
    ),
    'HardSigmoid': lambda node: functions.hard_sigmoid(
        node.float('alpha', 0.2), node.float('beta', 0.5)
    ),
    'HardSwish': lambda node: functions.hard_swish(),
    'Swish': lambda node: functions.swish(node.float('alpha', 1.0)),
    'Softplus': lambda node: functions.softplus(),
    'Softsign': lambda node: functions.softsign(),
    'Mish': lambda node: functions.mish(),
    'ThresholdedRelu': lambda node: functions.thresholded_relu(node.float('alpha', 1.0)),
    'Reciprocal': lambda node: call('div', ONE, X),
    **{
        name: lambda node, word=word: call(word, X)
        for name, word in {
            'Sigmoid': 'sigmoid', 'Tanh': 'tanh', 'Exp': 'exp', 'Log': 'log', 'Sqrt': 'sqrt',
            'Erf': 'erf', 'Floor': 'floor', 'Ceil': 'ceil', 'Round': 'round', 'Sin': 'sin',
            'Cos': 'cos', 'Tan': 'tan', 'Asin': 'asin', 'Acos': 'acos', 'Atan': 'atan',
            'Sinh': 'sinh', 'Cosh': 'cosh', 'Asinh': 'asinh', 'Acosh': 'acosh', 'Atanh': 'atanh',
            'tilewright::Log1p': 'log1p', 'tilewright::Expm1': 'expm1',
        }.items()
    },
}  # fmt: skip
_UNARY_NUMBERS: dict[str, Callable[[NodeReader], Expr]] = {
    'Relu': lambda node: functions.relu(node.input(0).dtype),
    'Abs': lambda node: call('abs', X),
    'Neg': lambda node: call('neg', X),
    'Sign': lambda node: call('sign', X),
    'Shrink': lambda node: functions.shrink(
        node.input(0).dtype, node.float('lambd', 0.5), node.float('bias', 0.0)
    ),
}
_UNARY_TRUTH: dict[str, Callable[[NodeReader], Expr]] = {
    'IsNaN': lambda node: call('isnan', X),
    'IsInf': lambda node: functions.is_inf(
        bool(node.int('detect_positive', 1)), bool(node.int('detect_negative', 1))
    ),
    'Not': lambda node: call('not', X),
}


def _unary(expr: Callable[[NodeReader], Expr], dtype: str | None = None) -> Lowering:
    def lower(node: NodeReader) -> Result:
        x = node.input(0)
        return pointwise(node.op.lower(), expr(node), [x], dtype or x.dtype)

    return lower


def _same_dtypes(inputs: Sequence[Result]) -> str:
    """The one dtype of all inputs."""
    found = list(dict.fromkeys(r.dtype for r in inputs))
    if len(found) > 1:
        raise Unsupported(f'with inputs of {" and ".join(found)}')
    return found[0]


def _binary(function: str, dtype: str | None = None) -> Lowering:
    def lower(node: NodeReader) -> Result:
        return _of_two(node, function, call(function, X, read(1)), dtype)

    return lower


def _of_two(node: NodeReader, word: str, expr: Expr, dtype: str | None = None) -> Result:
    inputs = [node.input(0), node.input(1)]
    kind = _same_dtypes(inputs)
    return pointwise(word, expr, inputs, dtype or kind)


def _variadic(function: str) -> Lowering:
    """All inputs, eight at a time: an expression should not grow with a file."""

    def lower(node: NodeReader) -> Result:
        first, *rest = node.all()
        dtype = _same_dtypes([first, *rest])
        while rest:
            now, rest, expr = [first, *rest[:7]], rest[7:], X
            for number in range(1, len(now)):
                expr = call(function, expr, read(number))
            first = pointwise(function, expr, now, dtype)
        return first

    return lower


def _mean(node: NodeReader) -> Result:
    total = _variadic('add')(node)
    assert not isinstance(total, tuple)
    return pointwise('mean', call('div', X, const(len(node.inputs))), [total], total.dtype)


def _pow(node: NodeReader) -> Result:
    base, exponent = node.input(0), node.input(1)
    if isinstance(exponent, Known) and exponent.array.size == 1:
        power = exponent.array.item()
        if power == 2 and len(exponent.shape) <= len(base.shape):
            return pointwise('square', call('mul', X, X), [base], base.dtype)
    return pointwise('pow', call('pow', X, read(1)), [base, exponent], base.dtype)


def _mod(node: NodeReader) -> Result:
    function = 'fmod' if node.int('fmod', 0) else 'mod'
    return _of_two(node, function, call(function, X, read(1)))


def _shift(node: NodeReader) -> Result:
    if node.text('direction', '', ('LEFT', 'RIGHT')) == 'LEFT':
        return _of_two(node, 'shl', call('shl', X, read(1)))
    return _of_two(node, 'shr', functions.shift_right(node.input(0).dtype))


def _prelu(node: NodeReader) -> Result:
    return _of_two(node, 'prelu', functions.prelu(node.input(0).dtype))


def _clip(node: NodeReader) -> Result:
    x, expr, inputs = node.input(0), X, [node.input(0)]
    for number, function in ((1, 'max'), (2, 'min')):
        bound = node.optional(number)
        if bound is not None:
            # Limits that were attributes are float32, whatever they limit.
            inputs.append(convert(bound, x.dtype) if isinstance(bound, Known) else bound)
            expr = call(function, expr, read(len(inputs) - 1))
    return x if expr is X else pointwise('clip', expr, inputs, x.dtype)


def _where(node: NodeReader) -> Result:
    inputs = [node.input(0), node.input(1), node.input(2)]
    dtype = _same_dtypes(inputs[1:])
    return pointwise('where', functions.where(X, read(1), read(2)), inputs, dtype)


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
    expr = functions.is_true(x.dtype) if dtype == 'bool' else X
    return pointwise('cast', expr, [x], dtype)


def _cast(node: NodeReader) -> Result:
    number = node.int('to')
    if number not in ELEMENT_TYPES:
        raise Unsupported(f'to element type {number}')
    return convert(node.input(0), ELEMENT_TYPES[number])


def _cast_like(node: NodeReader) -> Result:
    return convert(node.input(0), node.input(1).dtype)


OPERATORS: dict[str, Operator] = {
    **{name: Operator(_unary(expr)) for name, expr in _UNARY.items()},
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
    'BitwiseNot': Operator(_unary(lambda node: call('bit_not', X)), WHOLE),
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
