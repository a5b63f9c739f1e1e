"""Expressions of any dtype in CUCL: kernels/cpu/expression.py with functions that devices have.

Goes in: expressions. Comes out: C texts, and `helpers`, the definitions of what they call.
Functions of floats go by the names without a suffix, which CUDA and OpenCL overload for floats and
doubles; in plain C they compute in double. Whole numbers have the same functions as on the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.kernels.cpu.expression import Typed
from tilewright.kernels.cpu.functions import INLINE, write_functions
from tilewright.kernels.cpu.writer import Writer
from tilewright.kernels.gpu.half import CONVERSIONS
from tilewright.kernels.gpu.quick import QUICK, QUICK_OPS
from tilewright.ops.dtypes import HALVES, is_float
from tilewright.ops.group import Group

# Kernels of one source may each bring what they need: what is there already is not defined again.
TYPES = """\
#ifndef TW_TYPES
#define TW_TYPES
typedef long int64_t;
typedef unsigned long uint64_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef signed char int8_t;
typedef unsigned char uint8_t;
#ifndef NAN
#define NAN (INFINITY - INFINITY)
#endif
#endif
"""
_LOOKUP = """\
#ifndef TW_LOOKUP
#define TW_LOOKUP
/* An index from data: negative ones count from the end; never outside. */
FUNCTION int lookup(long at, int size)
{
    at = at < 0 ? at + size : at;
    return (int)(at < 0 ? 0 : at >= size ? size - 1 : at);
}
#endif
"""
# A maximum with NaN is NaN. `max_number` is with a number that is not.
_FLOATS = """\
#ifndef TW_FUNCTIONS_{kind}
#define TW_FUNCTIONS_{kind}
FUNCTION {type} max_{kind}({type} a, {type} b) {{ return (a < b) | (b != b) ? b : a; }}
FUNCTION {type} min_{kind}({type} a, {type} b) {{ return (b < a) | (b != b) ? b : a; }}
FUNCTION {type} max_number_{kind}({type} x, {type} number) {{ return x < number ? number : x; }}
FUNCTION {type} min_number_{kind}({type} x, {type} number) {{ return x > number ? number : x; }}
FUNCTION {type} sign_{kind}({type} x) {{ return x > 0 ? 1 : x < 0 ? -1 : x + 0; }}
FUNCTION {type} sigmoid_{kind}({type} x) {{ return 1 / (1 + exp(-x)); }}
FUNCTION {type} mod_{kind}({type} a, {type} b)
{{
    const {type} rest = fmod(a, b);
    return rest == 0 ? copysign(rest, b) : (rest < 0) != (b < 0) ? rest + b : rest;
}}
/* x to the power of so many quarters, at most 28, a number. What is no whole power takes zero and
   infinity of either sign as positive ones. */
FUNCTION {type} quarters_{kind}({type} x, int quarters)
{{
    if (quarters & 3)
        x = x == -INFINITY ? INFINITY : x + 0;
    const {type} root = sqrt(x), square = x * x;
    return (quarters & 1 ? sqrt(root) : 1) * (quarters & 2 ? root : 1)
        * (quarters & 4 ? x : 1) * (quarters & 8 ? square : 1)
        * (quarters & 16 ? square * square : 1);
}}
#endif
"""
_OWN = ('max', 'min', 'max_number', 'min_number', 'sign', 'sigmoid', 'mod', 'quarters')
_KINDS = {'f32': 'float', 'f64': 'double'}
_RENAMED = {'round': 'rint', 'abs': 'fabs'}
_NAME = re.compile(r'(\w+)\(')
_WIDE = re.compile(r'\b(\d+)(u?)ll\b')


class GpuTyped(Typed):
    """C texts for devices; `helpers` defines what they call.

    quick   functions of floats as exact as results of half types need (quick.py)
    """

    def __init__(self, quick: bool = False) -> None:
        super().__init__()
        self.quick = quick

    @classmethod
    def of(cls, group: Group) -> GpuTyped:
        return cls(quick=bool(group.half))

    def _of_floats(self, op: str, dtype: str, args: list[str]) -> str:
        if op == 'isnan':
            return f'({args[0]} != {args[0]})'
        if op == 'isinf':
            return f'(fabs({args[0]}) == INFINITY)'
        if self.quick and dtype == 'f32' and op in QUICK_OPS:
            return self._function(f'quick_{op}', args)
        if op in ('add', 'sub', 'mul', 'div', 'neg'):
            return super()._of_floats(op, dtype, args)
        if op in _OWN:
            return self._function(f'{op}_{dtype}', args)
        call = f'{_RENAMED.get(op, op)}({", ".join(args)})'
        return f'(({_KINDS[dtype]}){call})'

    def loaded(self, element: str, dtype: str) -> str:
        """What an element of a dtype is as it is computed with."""
        return self._function(f'from_{dtype}', [element]) if dtype in HALVES else element

    def stored(self, value: str, dtype: str) -> str:
        """A value that was computed as an element of a dtype."""
        return self._function(f'to_{dtype}', [value]) if dtype in HALVES else value

    def helpers(self) -> str:
        """Definitions of what the texts call."""
        return definitions(self.functions)


def definitions(functions: Iterable[str]) -> str:
    """Types, and the functions of these names, what others need first."""
    names = list(functions)
    quick = any(n.startswith('quick_') for n in names)
    names = [n for n in names if not n.startswith('quick_')]
    halves = [dtype for dtype in HALVES if {f'from_{dtype}', f'to_{dtype}'} & {*names}]
    names = [n for n in names if n.partition('_')[2] not in halves]
    floats = sorted({n[-3:] for n in names if is_float(n[-3:])})
    whole = [n for n in names if not is_float(n[-3:]) and n != 'lookup']
    lines = Writer()
    write_functions(lines, whole)
    texts = [TYPES]
    texts += [CONVERSIONS[dtype] for dtype in halves] + [QUICK] * quick
    if 'lookup' in names:
        texts.append(_LOOKUP)
    texts += [_FLOATS.format(kind=kind, type=_KINDS[kind]) for kind in floats]
    if whole:
        texts.append(narrow(_guarded('\n'.join(lines.lines).replace(INLINE, 'FUNCTION'))))
    return '\n'.join(texts)


def _guarded(text: str) -> str:
    """Functions with a line between them -> the same, each unless it is there already."""
    found = []
    for function in text.strip('\n').split('\n\n'):
        name = _NAME.findall(function)[0]
        found.append(
            f'#ifndef TW_FUNCTION_{name}\n#define TW_FUNCTION_{name}\n{function}\n#endif\n'
        )
    return '\n'.join(found)


def narrow(text: str) -> str:
    """Numbers marked as long long, which OpenCL has not, as long, which has as many bits."""
    return _WIDE.sub(r'\1\2l', text)
