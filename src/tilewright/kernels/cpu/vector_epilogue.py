"""Epilogues on vectors: the pointwise stages behind a sum, applied to lanes side by side.

Goes in: a group. Comes out: a C expression over the vector `value` and vectors `e0_v`, `e1_v` ..,
and the helpers that it needs. Operands and addresses are those of kernels/cpu/pointwise.py. Sums,
products, maxima, minima and choices by comparisons are written as vectors; a stage with other
functions goes through a helper that takes one lane at a time. Fronts (kernels/cpu/front.py) are
written by the same texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from tilewright.kernels.cpu.expression import Typed, number
from tilewright.kernels.cpu.pointwise import (
    Operand,
    plan_epilogue,
    typed_text,
    write_epilogue,
)
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr

_OPERATORS = {
    'add': '({} + {})',
    'sub': '({} - {})',
    'mul': '({} * {})',
    'div': '({} / {})',
    'neg': '(-{})',
    'max': 'vec_max({}, {})',
    'min': 'vec_min({}, {})',
    'where': 'vec_where({}, {}, {})',
}
# All bits of a lane, or none.
_MASKS = {
    'lt': '({} < {})',
    'le': '({} <= {})',
    'gt': '({} > {})',
    'ge': '({} >= {})',
    'eq': '({} == {})',
    'and': '({} & {})',
    'or': '({} | {})',
    'not': '(~{})',
}
_HELPERS = ('max', 'min', 'max_number', 'min_number', 'where')
_OF_MASKS = ('and', 'or', 'not')
# NaN comes out where it went in; on ARM that is one instruction.
_EXTREMES = {
    'max': ('vmaxq_f32(a, b)', '(a < b) | (b != b)'),
    'min': ('vminq_f32(a, b)', '(b < a) | (b != b)'),
}
# Of a vector and a number, which is no NaN: one instruction on x86, too, whose second operand comes
# out where either is NaN. Compilers make two of a comparison and a choice, one of them on the unit
# that transposes.
_BOUNDS = {'max': 'vmaxps', 'min': 'vminps'}
# Lanes -> what compilers define where there are such vectors, and the registers that hold them.
_VECTORS = {4: ('__AVX__', 'x'), 8: ('__AVX__', 'x'), 16: ('__AVX512F__', 'v')}
_OWN = re.compile(
    r'\b(row_v|zero_v|mask_v|vec_max|vec_min|vec_max_number|vec_min_number|vec_where|stage_\d+)\b'
)


@dataclass(frozen=True, slots=True)
class VectorEpilogue:
    """`expression` over `value` and the operands' vectors.

    called     helpers on vectors that it calls: 'max', 'min', 'max_number', 'min_number', 'where'
    helpers    C expressions of stages that go lane by lane, over `a0[i]`, `a1[i]` ..
    functions  what helpers call
    """

    expression: str
    operands: tuple[Operand, ...]
    called: tuple[str, ...] = ()
    helpers: tuple[tuple[str, int], ...] = ()
    functions: tuple[str, ...] = ()


@dataclass(slots=True)
class VectorTexts:
    """C texts of stages on vectors; collects the helpers that they call."""

    _called: dict[str, None] = field(default_factory=dict)
    _helpers: list[tuple[str, int]] = field(default_factory=list)
    _typed: Typed = field(default_factory=Typed)

    @classmethod
    def of(cls, near: bool) -> VectorTexts:
        """Texts whose functions are those of `Typed(near)`."""
        return cls(_typed=Typed(near))

    def text(self, expr: Expr, reads: list[str]) -> str:
        """The expression of a stage over the C texts of what it reads."""
        if _is_vector(expr):
            called = set(_called(expr))
            self._called |= dict.fromkeys(name for name in _HELPERS if name in called)
            return _text(expr, reads)
        lanes = [f'a{number}[i]' for number in range(len(reads))]
        self._helpers.append((typed_text(self._typed, expr, lanes), len(reads)))
        return f'stage_{len(self._helpers) - 1}({", ".join(reads)})'

    def epilogue(self, expression: str, operands: tuple[Operand, ...] = ()) -> VectorEpilogue:
        """An expression that was made of these texts, with all that they call."""
        functions = tuple(self._typed.functions)
        return VectorEpilogue(
            expression, operands, tuple(self._called), tuple(self._helpers), functions
        )


def plan_vector_epilogue(group: Group, near: bool = False) -> VectorEpilogue:
    """[Group] -> [VectorEpilogue]; ScheduleError where a stage is no epilogue. `near`: of results
    that are rounded so that functions may be off by little (`Typed`).
    """
    operands = plan_epilogue(group, text=lambda stage, texts: 'value').operands
    names = iter(item.name for item in operands)
    values = {group.main.write.tensor: 'value'}
    made, text = VectorTexts.of(near), 'value'
    for stage in group.epilogue:
        reads = [values.get(a.tensor) or f'{next(names)}_v' for a in stage.reads]
        text = values[stage.write.tensor] = made.text(stage.expr, reads)
    return made.epilogue(text, operands)


def _is_vector(expr: Expr) -> bool:
    """Whether an expression is one of vectors, with masks in its choices alone."""
    if expr.op in ('read', 'const', 'whole'):
        return True
    if expr.op == 'where':
        return _is_mask(expr.args[0]) and all(map(_is_vector, expr.args[1:]))
    return expr.op in _OPERATORS and all(map(_is_vector, expr.args))


def _is_mask(expr: Expr) -> bool:
    return expr.op in _MASKS and all(
        map(_is_mask if expr.op in _OF_MASKS else _is_vector, expr.args)
    )


def _is_bound(expr: Expr) -> bool:
    """Whether it is the larger or smaller of something and a number."""
    return expr.op in _BOUNDS and expr.args[1].op == 'const' and not math.isnan(expr.args[1].value)


def _called(expr: Expr) -> Iterator[str]:
    """The helpers on vectors that an expression calls."""
    if _is_bound(expr):
        yield f'{expr.op}_number'
    elif expr.op in (*_EXTREMES, 'where'):
        yield expr.op
    for each in expr.args:
        yield from _called(each)


def _text(expr: Expr, operands: list[str]) -> str:
    if expr.op == 'read':
        return operands[int(expr.value)]
    if expr.op in ('const', 'whole'):
        return f'({broadcast(number(expr.value, "f32"))})'
    pattern = _OPERATORS.get(expr.op) or _MASKS[expr.op]
    if _is_bound(expr):
        pattern = f'vec_{expr.op}_number({{}}, {{}})'
    return pattern.format(*(_text(a, operands) for a in expr.args))


def broadcast(scalar: str) -> str:
    """A number in every lane: minus zero changes none of them, plus zero would make -0 a 0."""
    return f'{scalar} - zero_v'


def vector_type(lanes: int) -> list[str]:
    """C lines: the vector of so many lanes, and one of zeros."""
    size = f'vector_size({4 * lanes}), aligned(4), may_alias'
    return [f'typedef float row_v __attribute__(({size}));', 'static const row_v zero_v;']


def renamed(lines: Iterable[str], prefix: str) -> list[str]:
    """C lines with names of their own for vectors and helpers: other functions may have them, too,
    for vectors of other lengths.
    """
    return [_renamed(line, prefix) for line in lines]


@lru_cache(maxsize=1 << 15)
def _renamed(line: str, prefix: str) -> str:
    """Kept, since kernels of other sizes have most lines again."""
    return _OWN.sub(rf'{prefix}_\1', line)


def write_functions(writer: Writer, epilogue: VectorEpilogue, lanes: int) -> None:
    """The helpers of an epilogue."""
    if epilogue.called:
        _write_called(writer, epilogue.called, lanes)
    write_epilogue(writer, epilogue.functions)
    for helper, (body, count) in enumerate(epilogue.helpers):
        arguments = ', '.join(f'row_v a{argument}' for argument in range(count))
        writer.open(f'static inline row_v stage_{helper}({arguments})')
        writer.line('row_v result = zero_v;')
        writer.line(f'for (int i = 0; i < {lanes}; i++)')
        writer.line(f'    result[i] = {body};')
        writer.line('return result;')
        writer.close()
        writer.line()


def _write_called(writer: Writer, wanted: tuple[str, ...], lanes: int) -> None:
    size = f'vector_size({4 * lanes}), aligned(4), may_alias'
    native = lanes == 4
    if native:
        writer.lines += ['#ifdef __ARM_NEON', '#include <arm_neon.h>', '#endif']
    writer.line(f'typedef int mask_v __attribute__(({size}));')
    writer.line()
    if 'where' in wanted:
        writer.open('static inline row_v vec_where(mask_v mask, row_v a, row_v b)')
        writer.line('return (row_v)((mask & (mask_v)a) | (~mask & (mask_v)b));')
        writer.close()
        writer.line()
    for op in (op for op in _BOUNDS if f'{op}_number' in wanted):
        _write_bound(writer, op, lanes)
    for op in (op for op in wanted if op in _EXTREMES):
        instruction, mask = _EXTREMES[op]
        writer.open(f'static inline row_v vec_{op}(row_v a, row_v b)')
        if native:
            writer.lines += ['#ifdef __ARM_NEON', f'    return {instruction};', '#else']
        writer.line(f'const mask_v mask = {mask};')
        writer.line('return (row_v)((mask & (mask_v)b) | (~mask & (mask_v)a));')
        if native:
            writer.lines.append('#endif')
        writer.close()
        writer.line()


def _write_bound(writer: Writer, op: str, lanes: int) -> None:
    """`vec_max_number` or `vec_min_number`."""
    writer.open(f'static inline row_v vec_{op}_number(row_v a, row_v number)')
    guard = '#if'
    if lanes in _VECTORS:
        flag, kind = _VECTORS[lanes]
        writer.lines.append(f'{guard} defined({flag})')
        writer.line('row_v result;')
        writer.line(
            f'__asm__("{_BOUNDS[op]} %2, %1, %0" : "={kind}"(result) : "{kind}"(number), '
            f'"{kind}"(a));'
        )
        writer.line('return result;')
        guard = '#elif'
    if lanes == 4:
        writer.lines.append(f'{guard} defined(__ARM_NEON)')
        writer.line(f'return {_EXTREMES[op][0].replace("b", "number")};')
        guard = '#elif'
    if guard == '#elif':
        writer.lines.append('#else')
    writer.line(f'const mask_v mask = {"a < number" if op == "max" else "number < a"};')
    writer.line('return (row_v)((mask & (mask_v)number) | (~mask & (mask_v)a));')
    if guard == '#elif':
        writer.lines.append('#endif')
    writer.close()
    writer.line()
