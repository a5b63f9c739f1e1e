"""Epilogues on vectors: the pointwise stages behind a stencil, applied to lanes side by side.

Goes in: a group. Comes out: a C expression over the vector `value` and vectors `e0_v`, `e1_v` ..,
and the helpers that it needs. Operands and addresses are those of codegen/cpu/pointwise.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cpu.pointwise import Operand, c_float, plan_epilogue
from tilewright.codegen.cpu.writer import Writer
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr

_OPERATORS = {
    'add': '({} + {})',
    'sub': '({} - {})',
    'mul': '({} * {})',
    'div': '({} / {})',
    'neg': '(-{})',
}
# A lane at a time: compilers know vector forms of the cheap ones, and call libm for the others.
_LANES = {
    'max': ('vec_max', 'fmaxf(a[i], b[i])'),
    'min': ('vec_min', 'fminf(a[i], b[i])'),
    'exp': ('vec_exp', 'expf(a[i])'),
    'tanh': ('vec_tanh', 'tanhf(a[i])'),
    'sigmoid': ('vec_sigmoid', '1.0f / (1.0f + expf(-a[i]))'),
    'sqrt': ('vec_sqrt', 'sqrtf(a[i])'),
    'abs': ('vec_abs', 'fabsf(a[i])'),
    'pow': ('vec_pow', 'powf(a[i], b[i])'),
}


@dataclass(frozen=True, slots=True)
class VectorEpilogue:
    """`expression` over `value` and the operands' vectors; `functions` that it calls, in order."""

    expression: str
    operands: tuple[Operand, ...]
    functions: tuple[str, ...]


def plan_vector_epilogue(group: Group) -> VectorEpilogue:
    """[Group] -> [VectorEpilogue]; ScheduleError where a stage is no epilogue."""
    operands = plan_epilogue(group).operands
    names = iter(item.name for item in operands)
    values = {group.main.write.tensor: 'value'}
    used: dict[str, None] = {}
    text = 'value'
    for stage in group.epilogue:
        reads = [values.get(a.tensor) or f'{next(names)}_v' for a in stage.reads]
        text = values[stage.write.tensor] = _text(stage.expr, reads, used)
    return VectorEpilogue(text, operands, tuple(used))


def _text(expr: Expr, operands: list[str], used: dict[str, None]) -> str:
    if expr.op == 'read':
        return operands[int(expr.value)]
    if expr.op == 'const':
        return f'(zero_v + {c_float(expr.value)})'
    args = [_text(a, operands, used) for a in expr.args]
    if expr.op in _OPERATORS:
        return _OPERATORS[expr.op].format(*args)
    used[expr.op] = None
    return f'{_LANES[expr.op][0]}({", ".join(args)})'


def write_functions(writer: Writer, epilogue: VectorEpilogue, lanes: int) -> None:
    """The helpers of an epilogue."""
    for op in epilogue.functions:
        name, body = _LANES[op]
        arguments = 'row_v a, row_v b' if 'b[i]' in body else 'row_v a'
        writer.open(f'static inline row_v {name}({arguments})')
        writer.line('row_v result = a;')
        writer.line(f'for (int i = 0; i < {lanes}; i++)')
        writer.line(f'    result[i] = {body};')
        writer.line('return result;')
        writer.close()
        writer.line()
