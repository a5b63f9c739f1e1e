"""Derivatives of expressions.

Goes in: an `Expr` and the number of a read. Comes out: the `Expr` of its partial derivative by that
read, over the same reads, or None where that is zero everywhere. Functions with steps (floor,
comparisons) have the derivative zero. At the edge of a maximum with a number (relu) it is zero, and
two values that are equal share it, as in PyTorch.

`product` and `total` leave out what changes nothing, so that the gradient of a sum of products is
again a product of two reads, which fast kernels know.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.errors import SpecError
from tilewright.ops.dtypes import is_float
from tilewright.ops.stage import Expr, call, const

ONE = const(1.0)
_STEPS = frozenset(
    {
        'floor', 'ceil', 'round', 'sign', 'eq', 'lt', 'le', 'gt', 'ge', 'and', 'or', 'xor', 'not',
        'isnan', 'isinf', 'bit_and', 'bit_or', 'bit_xor', 'bit_not', 'shl', 'shr',
    }
)  # fmt: skip


def derivative(expr: Expr, number: int) -> Expr | None:
    """d expr / d read `number`"""
    if expr.op == 'read':
        return ONE if int(expr.value) == number else None
    if not expr.args or expr.op in _STEPS or number not in set(expr.reads()):
        return None
    if expr.op == 'cast':
        return derivative(expr.args[0], number) if is_float(expr.name) else None
    inner = [derivative(a, number) for a in expr.args]
    if expr.op in _OF_ONE:
        return product(_OF_ONE[expr.op](expr.args[0], expr), inner[0])
    if expr.op == 'where':
        if inner[1] is None and inner[2] is None:
            return None
        return call('where', expr.args[0], *(e or const(0.0) for e in inner[1:]))
    if expr.op not in _OF_TWO:
        raise SpecError(f'{expr.op} has no derivative')
    a, b = expr.args
    partial = _OF_TWO[expr.op](a, b, expr)
    return total(*(product(p, e) for p, e in zip(partial, inner, strict=True) if e is not None))


def product(a: Expr | None, b: Expr | None) -> Expr | None:
    if a is None or b is None:
        return None
    if a == ONE or b == ONE:
        return b if a == ONE else a
    for one, other in ((a, b), (b, a)):
        if one == const(-1.0):
            return call('neg', other)
    return call('mul', a, b)


def total(*terms: Expr | None) -> Expr | None:
    found = None
    for term in terms:
        if term is not None:
            found = term if found is None else call('add', found, term)
    return found


def _squared(x: Expr) -> Expr:
    return call('mul', x, x)


def _over_root(x: Expr, sign: float, of: float) -> Expr:
    """1 / sqrt(sign x^2 + of)"""
    inside = call('add', call('mul', const(sign), _squared(x)), const(of))
    return call('div', ONE, call('sqrt', inside))


# f(x) -> f'(x), given x and f(x)
_OF_ONE: dict[str, Callable[[Expr, Expr], Expr]] = {
    'neg': lambda x, y: const(-1.0),
    'exp': lambda x, y: y,
    'expm1': lambda x, y: call('exp', x),
    'tanh': lambda x, y: call('sub', ONE, _squared(y)),
    'sigmoid': lambda x, y: call('mul', y, call('sub', ONE, y)),
    'sqrt': lambda x, y: call('div', const(0.5), y),
    'abs': lambda x, y: call('sign', x),
    'log': lambda x, y: call('div', ONE, x),
    'log1p': lambda x, y: call('div', ONE, call('add', ONE, x)),
    'erf': lambda x, y: call(
        'mul', const(2 / math.sqrt(math.pi)), call('exp', call('neg', _squared(x)))
    ),
    'sin': lambda x, y: call('cos', x),
    'cos': lambda x, y: call('neg', call('sin', x)),
    'tan': lambda x, y: call('add', ONE, _squared(y)),
    'asin': lambda x, y: _over_root(x, -1.0, 1.0),
    'acos': lambda x, y: call('neg', _over_root(x, -1.0, 1.0)),
    'atan': lambda x, y: call('div', ONE, call('add', ONE, _squared(x))),
    'sinh': lambda x, y: call('cosh', x),
    'cosh': lambda x, y: call('sinh', x),
    'asinh': lambda x, y: _over_root(x, 1.0, 1.0),
    'acosh': lambda x, y: _over_root(x, 1.0, -1.0),
    'atanh': lambda x, y: call('div', ONE, call('sub', ONE, _squared(x))),
}


def _extreme(order: str) -> Callable[[Expr, Expr, Expr], tuple[Expr, Expr]]:
    def partial(a: Expr, b: Expr, y: Expr) -> tuple[Expr, Expr]:
        both_vary = set(a.reads()) and set(b.reads())
        tie = call('where', call('eq', a, b), const(0.5), const(0.0)) if both_vary else const(0.0)
        return (
            call('where', call(order, a, b), ONE, tie),
            call('where', call(order, b, a), ONE, tie),
        )

    return partial


def _power(a: Expr, b: Expr, y: Expr) -> tuple[Expr, Expr]:
    if b.op == 'const':
        lower = a if b.value == 2.0 else call('pow', a, const(b.value - 1.0))
        return call('mul', b, lower), ONE
    less = call('pow', a, call('sub', b, ONE))
    # 0^b is constant in b, although log 0 is not finite.
    by_b = call('mul', y, call('log', a))
    return call('mul', b, less), call('where', call('eq', a, const(0.0)), const(0.0), by_b)


# f(a, b) -> (df / da, df / db), given a, b and f(a, b)
_OF_TWO: dict[str, Callable[[Expr, Expr, Expr], tuple[Expr, Expr]]] = {
    'add': lambda a, b, y: (ONE, ONE),
    'sub': lambda a, b, y: (ONE, const(-1.0)),
    'mul': lambda a, b, y: (b, a),
    'div': lambda a, b, y: (call('div', ONE, b), call('neg', call('div', y, b))),
    'max': _extreme('gt'),
    'min': _extreme('lt'),
    'pow': _power,
    'mod': lambda a, b, y: (ONE, call('neg', call('floor', call('div', a, b)))),
    'fmod': lambda a, b, y: (ONE, call('div', call('sub', y, a), b)),
}
