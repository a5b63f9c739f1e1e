"""What the functions of expressions mean, in numpy.

Goes in: an expression, the arrays it reads and their dtypes. Comes out: its values, floats as
float64, whole numbers in the dtype of ops/dtypes.py, wrapping as they do in C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.ops.dtypes import NUMPY, TRUTHS, dtype_of, is_float, operand_dtype
from tilewright.ops.stage import Expr

_FUNCTIONS = {
    'add': np.add,
    'sub': np.subtract,
    'mul': np.multiply,
    'max': np.maximum,
    'min': np.minimum,
    'neg': np.negative,
    'exp': np.exp,
    'expm1': np.expm1,
    'tanh': np.tanh,
    'sigmoid': lambda x: 1.0 / (1.0 + np.exp(-x)),
    'sqrt': np.sqrt,
    'abs': np.abs,
    'floor': np.floor,
    'ceil': np.ceil,
    'round': np.rint,
    'sign': np.sign,
    'log': np.log,
    'log1p': np.log1p,
    'erf': np.vectorize(math.erf, otypes=[np.float64]),
    'sin': np.sin,
    'cos': np.cos,
    'tan': np.tan,
    'asin': np.arcsin,
    'acos': np.arccos,
    'atan': np.arctan,
    'sinh': np.sinh,
    'cosh': np.cosh,
    'asinh': np.arcsinh,
    'acosh': np.arccosh,
    'atanh': np.arctanh,
    'mod': np.mod,
    'fmod': np.fmod,
    'eq': np.equal,
    'lt': np.less,
    'le': np.less_equal,
    'gt': np.greater,
    'ge': np.greater_equal,
    'and': np.logical_and,
    'or': np.logical_or,
    'xor': np.logical_xor,
    'not': np.logical_not,
    'isnan': np.isnan,
    'isinf': np.isinf,
    'bit_and': np.bitwise_and,
    'bit_or': np.bitwise_or,
    'bit_xor': np.bitwise_xor,
    'bit_not': np.bitwise_not,
    'shl': np.left_shift,
    'shr': np.right_shift,
}
_WHOLE_ALREADY = frozenset({'floor', 'ceil', 'round'})


def evaluate(
    expr: Expr,
    operands: Sequence[np.ndarray],
    dtypes: Sequence[str],
    iterators: Mapping[str, np.ndarray],
) -> np.ndarray:
    """The values of an expression, of any shape that broadcasts to its domain."""
    kind = _numpy(dtype_of(expr, dtypes))
    if expr.op == 'read':
        return operands[int(expr.value)]
    if expr.op in ('const', 'whole'):
        return np.asarray(expr.value)
    if expr.op == 'index':
        return iterators[expr.name]
    args = [evaluate(a, operands, dtypes, iterators) for a in expr.args]
    if expr.op == 'cast':
        # To f32 it rounds: what decides between two whole numbers is what kernels decide by.
        return args[0].astype(np.float32 if expr.name == 'f32' else kind).astype(kind)
    within = operand_dtype(expr, dtypes)
    if expr.op == 'where':
        return np.where(args[0].astype(bool), *(a.astype(_numpy(within)) for a in args[1:]))
    args = [a.astype(_numpy(within)) for a in args]
    if not is_float(within):
        return _of_whole(expr.op, args).astype(kind, copy=False)
    if expr.op == 'div':
        return np.divide(*args)
    if expr.op == 'pow':
        # One exponent for all elements makes numpy take a root for 0.5, which differs at -0 and
        # -inf.
        return np.power(*(np.array(a) for a in np.broadcast_arrays(*args)))
    return _FUNCTIONS[expr.op](*args)


def _of_whole(op: str, args: list[np.ndarray]) -> np.ndarray:
    """Functions that mean something else for whole numbers."""
    if op in _WHOLE_ALREADY:
        return args[0]
    if op in ('isnan', 'isinf'):
        return np.zeros_like(args[0], bool)
    if op == 'div':
        a, b = np.broadcast_arrays(*args)
        quotient = np.floor_divide(a, b, out=np.zeros_like(a), where=b != 0)
        uneven = (b != 0) & (quotient * b != a) & ((a < 0) != (b < 0))
        return quotient + uneven.astype(quotient.dtype)
    if op == 'pow':
        a, b = np.broadcast_arrays(*args)
        negative = b < 0
        return np.where(negative, 0, np.power(a, np.where(negative, 0, b)))
    if op in ('shl', 'shr'):
        a, b = np.broadcast_arrays(*args)
        bits = 8 * a.dtype.itemsize
        beyond = (b < 0) | (b >= bits)
        return np.where(beyond, 0, _FUNCTIONS[op](a, np.where(beyond, 0, b)))
    if op in TRUTHS and args[0].dtype == bool and op in ('lt', 'le', 'gt', 'ge'):
        args = [a.astype(np.int8) for a in args]
    return _FUNCTIONS[op](*args)


def _numpy(dtype: str) -> type:
    return np.float64 if is_float(dtype) else NUMPY[dtype]
