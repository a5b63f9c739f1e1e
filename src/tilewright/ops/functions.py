"""Functions of one element and of several, as expressions: activations, comparisons, patterns.

Each function returns the `Expr` that `ops.elementwise` applies element by element; read 0 is the
first operand. Numbers that an operator takes as attributes are arguments here.
"""

from __future__ import annotations

import math

from tilewright.ops.dtypes import DTYPES, is_float
from tilewright.ops.stage import Expr, call, cast, const, index, literal, read, whole

SELU_ALPHA, SELU_GAMMA = 1.6732631921768188, 1.0507010221481323
X, ZERO, ONE = read(0), const(0.0), const(1.0)


def add(a: Expr, b: Expr) -> Expr:
    return call('add', a, b)


def sub(a: Expr, b: Expr) -> Expr:
    return call('sub', a, b)


def mul(a: Expr, b: Expr) -> Expr:
    return call('mul', a, b)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return call('where', condition, a, b)


def relu(dtype: str = 'f32') -> Expr:
    return call('max', X, literal(0, dtype))


def leaky_relu(alpha: float = 0.01) -> Expr:
    return where(call('lt', X, ZERO), mul(X, const(alpha)), X)


def prelu(dtype: str = 'f32') -> Expr:
    """Read 1 is the slope below zero."""
    return where(call('lt', X, literal(0, dtype)), mul(X, read(1)), X)


def thresholded_relu(alpha: float = 1.0) -> Expr:
    return where(call('gt', X, const(alpha)), X, ZERO)


def elu(alpha: float = 1.0) -> Expr:
    return where(call('lt', X, ZERO), mul(const(alpha), call('expm1', X)), X)


def selu(alpha: float = SELU_ALPHA, gamma: float = SELU_GAMMA) -> Expr:
    low = mul(const(alpha), call('expm1', X))
    return mul(const(gamma), where(call('gt', X, ZERO), X, low))


def celu(alpha: float = 1.0) -> Expr:
    low = mul(const(alpha), call('expm1', call('div', X, const(alpha))))
    return add(call('max', X, ZERO), call('min', low, ZERO))


def gelu(tanh: bool = False) -> Expr:
    """By the error function, or by its approximation with the hyperbolic tangent."""
    if tanh:
        cubed = mul(X, add(ONE, mul(const(0.044715), mul(X, X))))
        inner = call('tanh', mul(const(math.sqrt(2 / math.pi)), cubed))
    else:
        inner = call('erf', mul(X, const(math.sqrt(0.5))))
    return mul(mul(const(0.5), X), add(inner, ONE))


def hard_sigmoid(alpha: float = 0.2, beta: float = 0.5) -> Expr:
    line = add(mul(X, const(alpha)), const(beta))
    return call('max', call('min', line, ONE), ZERO)


def hard_swish() -> Expr:
    return mul(X, hard_sigmoid(1 / 6, 0.5))


def swish(alpha: float = 1.0) -> Expr:
    return mul(X, call('sigmoid', X if alpha == 1.0 else mul(const(alpha), X)))


def softplus() -> Expr:
    """log(1 + e^x), where e^x may be too large: max(x, 0) + log(1 + e^-|x|)."""
    return add(call('max', X, ZERO), call('log1p', call('exp', call('neg', call('abs', X)))))


def softsign() -> Expr:
    return call('div', X, add(ONE, call('abs', X)))


def mish() -> Expr:
    return mul(X, call('tanh', softplus()))


def shrink(dtype: str = 'f32', bound: float = 0.5, bias: float = 0.0) -> Expr:
    """What lies beyond +-bound, moved towards zero by the bias; else zero."""
    if bias.is_integer() or is_float(dtype):
        lower, upper = sub(X, literal(bias, dtype)), add(X, literal(bias, dtype))
    else:  # a fraction counts before the result is a whole number
        wide = cast(X, 'f64')
        lower, upper = (cast(call(f, wide, const(bias)), dtype) for f in ('sub', 'add'))
    above = where(call('gt', X, const(bound)), lower, literal(0, dtype))
    return where(call('lt', X, const(-bound)), upper, above)


def is_inf(positive: bool = True, negative: bool = True) -> Expr:
    found = call('isinf', X)
    if not positive:
        found = call('and', found, call('lt', X, ZERO))
    if not negative:
        found = call('and', found, call('gt', X, ZERO))
    return found


def is_true(dtype: str) -> Expr:
    """As a truth value: everything but zero is true."""
    return call('not', call('eq', X, literal(0, dtype)))


def shift_right(dtype: str) -> Expr:
    """By any number, read 1: what is shifted out on the right leaves the sign."""
    by = read(1)
    if dtype[0] == 'i':
        bits = 8 * DTYPES[dtype]
        beyond = call('or', call('lt', by, literal(0, dtype)), call('ge', by, literal(bits, dtype)))
        by = where(beyond, literal(bits - 1, dtype), by)
    return call('shr', X, by)


def one_hot(along: str, depth: int, dtype: str) -> Expr:
    """Read 1 where the iterator `along` is the place that read 0 names, else read 2."""
    wrapped = where(call('lt', X, literal(0, dtype)), add(X, literal(depth, dtype)), X)
    return where(call('eq', wrapped, index(along)), read(1), read(2))


def triangle(row: str, column: str, diagonal: int, upper: bool, dtype: str) -> Expr:
    """The elements of a matrix on one side of a diagonal, else zero."""
    limit = add(index(row), whole(diagonal))
    kept = call('ge' if upper else 'le', index(column), limit)
    return where(kept, X, literal(0, dtype))
