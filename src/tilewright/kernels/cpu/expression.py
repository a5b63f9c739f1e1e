"""Expressions in C, with their types: the meaning that ops/evaluate.py has in numpy.

Goes in: an expression, C texts and dtypes of what it reads. Comes out: a C expression and its
dtype, and the functions that it calls (kernels/cpu/functions.py). Whole numbers wrap around, as
they do in numpy; nothing that data can hold stops a process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.kernels.cpu.functions import known
from tilewright.ops.dtypes import dtype_of, is_float, limits, operand_dtype
from tilewright.ops.stage import Expr

C_TYPES = {
    'f32': 'float',
    'f64': 'double',
    'f16': '_Float16',
    'bf16': 'bf16_t',
    'i64': 'int64_t',
    'i32': 'int32_t',
    'i16': 'int16_t',
    'i8': 'int8_t',
    'u64': 'uint64_t',
    'u32': 'uint32_t',
    'u16': 'uint16_t',
    'u8': 'uint8_t',
    'bool': 'uint8_t',
}
_OPERATORS = {'add': '+', 'sub': '-', 'mul': '*', 'bit_and': '&', 'bit_or': '|', 'bit_xor': '^'}
_COMPARE = {'eq': '==', 'lt': '<', 'le': '<=', 'gt': '>', 'ge': '>='}
_LOGIC = {'and': '&', 'or': '|', 'xor': '^'}
# Functions of <math.h> that go by another name there.
_LIBRARY = {'round': 'rint', 'abs': 'fabs'}
# Functions of <math.h> that are called as they are.
_NAMED = frozenset(
    {
        'floor', 'ceil', 'round', 'log1p', 'expm1', 'erf', 'sin', 'cos', 'tan', 'asin', 'acos',
        'atan', 'sinh', 'cosh', 'asinh', 'acosh', 'atanh', 'sqrt', 'exp', 'log', 'tanh', 'pow',
        'fmod', 'abs',
    }
)  # fmt: skip


# What abi.py writes ahead of kernels with elements of bf16, which C has no arithmetic of: they are
# the upper halves of floats, rounded half to even.
BF16 = """\
#include <stdint.h>
typedef uint16_t bf16_t;
static inline __attribute__((always_inline)) float bf16_float(bf16_t x)
{
    const uint32_t bits = (uint32_t)x << 16;
    float made;
    memcpy(&made, &bits, 4);
    return made;
}
static inline __attribute__((always_inline)) bf16_t float_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (bf16_t)((bits & 0x7fffffff) > 0x7f800000 ? bits >> 16 | 0x40 : rounded);
}
"""


def widened(text: str, dtype: str) -> str:
    """An element that is stored as a half, as a float; others as they are."""
    return {'f16': f'(float){text}', 'bf16': f'bf16_float({text})'}.get(dtype, text)


def narrowed(text: str, dtype: str) -> str:
    """A float as it is stored in an element; C converts to all types but bf16."""
    return f'float_bf16({text})' if dtype == 'bf16' else text


class Typed:
    """C texts of expressions; collects the functions that they call.

    Results that are rounded to 16 bits are `near`: functions are then those whose errors are small
    beside that, where there are such.
    """

    def __init__(self, near: bool = False) -> None:
        self.functions: dict[str, None] = {}
        self._near = near

    def text(
        self, expr: Expr, reads: Sequence[tuple[str, str]], iterators: Mapping[str, str]
    ) -> tuple[str, str]:
        """(C expression, dtype); `reads` are pairs (C text, dtype)."""
        return self._text(expr, reads, iterators, dtype_of(expr, [d for _, d in reads]))

    def convert(self, text: str, dtype: str, to: str) -> str:
        """A value of one dtype as another."""
        if dtype == to:
            return text
        if dtype == 'bf16':
            return self.convert(widened(text, dtype), 'f32', to)
        if to == 'bf16':
            return narrowed(self.convert(text, dtype, 'f32'), to)
        if to == 'bool':
            return f'({text} != 0)'
        if is_float(dtype) and to not in ('f16', 'f32', 'f64', 'i64', 'u64'):
            text = f'(int64_t){text}'  # beyond a narrow type, conversion is defined this way only
        return f'({C_TYPES[to]}){text}'

    def combine(self, combiner: str, dtype: str, left: str, right: str) -> str:
        """The combiner applied to two values of a dtype."""
        op = {'sum': 'add', 'prod': 'mul'}.get(combiner, combiner)
        return self._call(op, dtype, [left, right])

    def _text(
        self, expr: Expr, reads: Sequence[tuple[str, str]], iterators: Mapping[str, str], to: str
    ) -> tuple[str, str]:
        """The expression; numbers and iterators, which have no dtype of their own, in `to`."""
        if expr.op == 'read':
            return reads[int(expr.value)]
        if expr.op in ('const', 'whole'):
            return number(expr.value, to), to
        if expr.op == 'index':
            return self.convert(iterators[expr.name], 'i64', to), to
        dtypes = [d for _, d in reads]
        made = dtype_of(expr, dtypes)
        if expr.op == 'cast':
            inner, dtype = self._text(
                expr.args[0], reads, iterators, dtype_of(expr.args[0], dtypes)
            )
            if dtype == 'f32' and _is_small(expr.args[0]):
                inner, dtype = f'(int32_t){inner}', 'i32'  # vectors have this conversion
            return self.convert(inner, dtype, made), made
        within = operand_dtype(expr, dtypes)
        if not set(expr.reads()) and to != made and (is_float(to) or not is_float(made)):
            made = within = to  # numbers alone: whatever is wanted
        args = [self.convert(*self._text(a, reads, iterators, within), within) for a in expr.args]
        if expr.op == 'where':
            condition, dtype = self._text(expr.args[0], reads, iterators, 'bool')
            return f'({self.convert(condition, dtype, "bool")} ? {args[1]} : {args[2]})', within
        special = self._special(expr, args, within)
        return special or self._call(expr.op, within, args), made

    def _special(self, expr: Expr, args: list[str], dtype: str) -> str:
        """Maxima with a number, and powers whose exponent is one; '' for all else."""
        if not is_float(dtype) or len(expr.args) != 2:
            return ''
        last = expr.args[1]
        if last.op != 'const' or math.isnan(last.value):
            return ''
        if expr.op in ('max', 'min'):
            return self._function(f'{expr.op}_number_{dtype}', args)
        quarters = abs(4 * last.value)
        if expr.op == 'pow' and quarters in range(1, 29):
            power = self._function(f'quarters_{dtype}', [args[0], str(int(quarters))])
            return f'({number(1.0, dtype)} / {power})' if last.value < 0 else power
        return ''

    def _call(self, op: str, dtype: str, args: list[str]) -> str:
        kind = C_TYPES[dtype]
        if op in _COMPARE:
            return f'({args[0]} {_COMPARE[op]} {args[1]})'
        if op in _LOGIC:
            left, right = (self.convert(a, dtype, 'bool') for a in args)
            return f'({left} {_LOGIC[op]} {right})'
        if op == 'not':
            return f'({args[0]} == 0)'
        if is_float(dtype):
            return self._of_floats(op, dtype, args)
        if op in ('isnan', 'isinf'):
            return '0'
        if op in ('floor', 'ceil', 'round'):
            return args[0]
        if op == 'bit_not':
            return f'({kind})~{args[0]}'
        if op == 'neg':
            return f'({kind})(0 - {_unsigned(args[0], dtype)})'
        if op == 'abs':
            if limits(dtype)[0] == 0:
                return args[0]  # what is negative would wrap around
            return self._call('max', dtype, [args[0], self._call('neg', dtype, args)])
        if op in _OPERATORS:
            left, right = (_unsigned(a, dtype) for a in args)
            return f'({kind})({left} {_OPERATORS[op]} {right})'
        return self._function(f'{op}_{dtype}', args)

    def _of_floats(self, op: str, dtype: str, args: list[str]) -> str:
        if op in ('add', 'sub', 'mul'):
            return f'({args[0]} {_OPERATORS[op]} {args[1]})'
        if op == 'div':
            return f'({args[0]} / {args[1]})'
        if op == 'neg':
            return f'(-{args[0]})'
        if op == 'isnan':
            return f'(isnan({args[0]}) != 0)'
        if op == 'isinf':
            return f'(isinf({args[0]}) != 0)'
        if self._near and known(f'{op}_near_{dtype}'):
            return self._function(f'{op}_near_{dtype}', args)
        if known(f'{op}_{dtype}'):
            return self._function(f'{op}_{dtype}', args)
        assert op in _NAMED, op
        return f'{_LIBRARY.get(op, op)}{"f" if dtype == "f32" else ""}({", ".join(args)})'

    def _function(self, name: str, args: list[str]) -> str:
        self.functions[name] = None
        return f'{name}({", ".join(args)})'


def _is_small(expr: Expr) -> bool:
    """Whether a value was cut off on both sides within what an i32 holds."""
    bounds = {expr.op: expr}
    if expr.op in ('min', 'max') and expr.args[0].op in ('min', 'max'):
        bounds[expr.args[0].op] = expr.args[0]
    found = [bounds[op].args[1] for op in ('min', 'max') if op in bounds]
    return len(found) == 2 and all(e.op == 'const' and abs(e.value) < 2**31 for e in found)


def number(value: float, dtype: str) -> str:
    """A number in C; infinite ones are the limits of whole numbers."""
    if is_float(dtype):
        mark = 'f' if dtype == 'f32' else ''
        if math.isnan(value):
            return 'NAN'
        if math.isinf(value):
            return 'INFINITY' if value > 0 else '-INFINITY'
        return f'{float(value)!r}{mark}'
    low, high = limits(dtype)
    whole = high if value == math.inf else low if value == -math.inf else int(value)
    whole = min(max(whole, low), high)
    if dtype == 'u64':
        return f'{whole}ull'
    if whole == -(1 << 63):
        return f'(-{(1 << 63) - 1}ll - 1)'
    return f'({C_TYPES[dtype]}){whole}ll' if whole >= 0 else f'({C_TYPES[dtype]})({whole}ll)'


def _unsigned(text: str, dtype: str) -> str:
    """An operand of arithmetic that wraps around."""
    wide = 'uint64_t' if dtype in ('i64', 'u64') else 'uint32_t'
    return f'({wide}){text}'
