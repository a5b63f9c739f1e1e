"""What stands behind a sum of products, as far as libraries know it: bias, residual, relu.

Goes in: a part of a group (ops/parts.py). Comes out: `Behind`, the operands that are added and
whether negative results become zero; or a ScheduleError with the function no library has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Expr, Stage, const


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that is added: elements between its neighbours along each axis of the result."""

    tensor: Tensor
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Behind:
    """Operands that are added to the sums, and whether `relu` follows."""

    operands: tuple[Operand, ...] = ()
    relu: bool = False


@dataclass(frozen=True, slots=True)
class _Value:
    """Sums so many times, and operands beside them."""

    sums: int
    operands: tuple[Operand, ...] = ()
    relu: bool = False


def behind(part: Group) -> Behind:
    """[Group of one part] -> [Behind]"""
    known = {part.main.write.tensor: _Value(1)}
    for stage in part.epilogue:
        reads = [
            known.get(access.tensor) or _Value(0, (_operand(part, stage, access),))
            for access in stage.reads
        ]
        known[stage.write.tensor] = _value(part, stage.expr, reads)
    last = known[part.output.name]
    if last.sums != 1:
        raise ScheduleError(f'{part.label}: its sums are read {last.sums} times behind them')
    return Behind(last.operands, last.relu)


def _value(part: Group, expr: Expr, reads: list[_Value]) -> _Value:
    if expr.op == 'read':
        return reads[int(expr.value)]
    if expr.op == 'add':
        left, right = (_value(part, argument, reads) for argument in expr.args)
        if not left.relu and not right.relu:
            return _Value(left.sums + right.sums, (*left.operands, *right.operands))
    zero = const(0.0)
    if expr.op == 'max' and zero in expr.args:
        kept = expr.args[1] if expr.args[0] == zero else expr.args[0]
        return replace(_value(part, kept, reads), relu=True)
    raise ScheduleError(f'{part.label}: no library has {expr.op!r} behind a sum as it stands here')


def _operand(part: Group, stage: Stage, access: Access) -> Operand:
    """A read of a stage whose result has the axes of the sums."""
    tensor = part.tensor(access.tensor)
    axes = {name: axis for axis, e in enumerate(stage.write.index) for name in e.names}
    strides = [0] * len(stage.write.index)
    for expression, step in zip(access.index, tensor.strides, strict=True):
        if expression.const or not access.is_affine or not set(expression.names) <= set(axes):
            raise ScheduleError(
                f'{part.label}: {tensor.name} is not read from its first element on'
            )
        for name, coefficient in expression.terms:
            # An axis of one element has no neighbours.
            if stage.sizes[name] > 1:
                strides[axes[name]] += coefficient * step
    return Operand(tensor, tuple(strides))
