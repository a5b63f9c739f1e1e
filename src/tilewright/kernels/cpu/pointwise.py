"""Epilogues in C: the pointwise stages behind the main one, applied as a value is stored.

Every operand of an epilogue stage is turned into an affine address over the *main* stage's
iterators, so that a bias, a residual of any shape or a per-pixel scale are all the same thing.
Expressions go by kernels/cpu/expression.py on a CPU (`typed_epilogue`) and by kernels/gpu/typed.py
on a GPU (kernels/gpu/epilogue.py): both know every function, and maxima let NaN through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.expression import Typed, narrowed
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.compose import placed
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Expr, Stage


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor read by the epilogue at an affine address over the main stage's iterators."""

    name: str
    tensor: str
    strides: tuple[tuple[str, int], ...]
    const: int
    dtype: str = 'f32'

    def stride(self, iterator: str) -> int:
        return dict(self.strides).get(iterator, 0)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """`value` is the accumulated sum; `expression` a C expression over it and the operands.

    `functions` are those that it calls, of kernels/cpu/functions.py or kernels/gpu/typed.py.
    """

    expression: str
    operands: tuple[Operand, ...]
    functions: tuple[str, ...] = ()


def typed_epilogue(group: Group) -> Epilogue:
    """[Group] -> [Epilogue] for a CPU: every function that expressions may have."""
    typed = Typed()

    def text(stage: Stage, texts: list[str]) -> str:
        made = typed.text(stage.expr, list(zip(texts, group.read_dtypes(stage), strict=True)), {})
        return typed.convert(*made, group.tensor(stage.write.tensor).dtype)

    planned = plan_epilogue(group, text)
    if not group.epilogue:  # the sum itself, which C does not convert to all types
        planned = replace(planned, expression=narrowed('value', group.output.dtype))
    return replace(planned, functions=tuple(typed.functions))


def typed_text(typed: Typed, expr: Expr, operands: list[str]) -> str:
    """A float32 expression over float32 operands."""
    text, dtype = typed.text(expr, [(operand, 'f32') for operand in operands], {})
    return typed.convert(text, dtype, 'f32')


def write_epilogue(writer: Writer, functions: tuple[str, ...]) -> None:
    """The definitions of the functions that an epilogue calls."""
    if functions:
        writer.line('#include <stdint.h>')
        writer.line()
        write_functions(writer, functions)


def plan_epilogue(group: Group, text: Callable[[Stage, list[str]], str]) -> Epilogue:
    """[Group] -> [Epilogue]; `text` writes a stage over the C texts of what it reads."""
    main = group.main
    axes = main.write.index
    value, operands = 'value', []
    values = {main.write.tensor: value}
    for stage in group.epilogue:
        place = axes_of(stage, axes)
        texts = []
        for access in stage.reads:
            if access.tensor in values:
                if access.index != stage.write.index:
                    raise ScheduleError(
                        f'stage {stage.name} reads {access.tensor} at another point than it '
                        f'writes; an epilogue has only the value at hand'
                    )
                texts.append(values[access.tensor])
                continue
            operand = _operand(group, access, place, f'e{len(operands)}')
            operands.append(operand)
            texts.append(f'{operand.name}[{operand.name}_at]')
        value = values[stage.write.tensor] = text(stage, texts)
    return Epilogue(value, tuple(operands))


def axes_of(stage: Stage, axes: tuple[Affine, ...]) -> dict[str, Affine]:
    """iterator of a pointwise stage -> index expression over the main stage's iterators.

    `axes` is where the main stage writes. A stage that writes every second element, say, has to do
    so by the same steps.
    """
    if stage.combiner is not None:
        raise ScheduleError(f'stage {stage.name} reduces; only pointwise stages can be an epilogue')
    place = {}
    for expression, axis in zip(stage.write.index, axes, strict=True):
        if not expression.terms and not axis.terms:
            continue
        if len(expression.terms) != 1:
            raise ScheduleError(f'stage {stage.name} does not write element by element')
        name, step = expression.terms[0]
        rest = axis.const - expression.const
        if any(c % step for _, c in axis.terms) or rest % step:
            raise ScheduleError(f'stage {stage.name} does not write element by element')
        place[name] = Affine(tuple((n, c // step) for n, c in axis.terms), rest // step)
    return place


def _operand(group: Group, access: Access, place: dict[str, Affine], name: str) -> Operand:
    tensor = group.tensor(access.tensor)
    strides: dict[str, int] = {}
    const = 0
    for expression, step in zip(access.index, tensor.strides, strict=True):
        at = placed(expression, place)
        const += step * at.const
        for term, factor in at.terms:
            strides[term] = strides.get(term, 0) + step * factor
    return Operand(name, access.tensor, tuple(strides.items()), const, tensor.dtype)


def access_strides(group: Group, access: Access) -> tuple[dict[str, int], int]:
    """(stride of every iterator, constant) of an access into its dense tensor, in elements."""
    strides: dict[str, int] = {}
    const = 0
    for expression, step in zip(access.index, group.tensor(access.tensor).strides, strict=True):
        const += step * expression.const
        for name, coefficient in expression.terms:
            strides[name] = strides.get(name, 0) + step * coefficient
    return strides, const
