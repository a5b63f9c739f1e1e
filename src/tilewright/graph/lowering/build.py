"""Results from descriptions: constants joined with expressions, views in place of copies.

pointwise   an expression of results that broadcast
transpose   a view where the memory is the same
flat, merged    views
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.graph.lowering.result import Known, Result, compute, filled, view
from tilewright.ops import moving
from tilewright.ops.describe import broadcast
from tilewright.ops.dtypes import is_float
from tilewright.ops.elementwise import elementwise
from tilewright.ops.stage import Expr, literal, read, substituted

EXACT = 2**53


def flat(result: Result) -> Result:
    """A scalar as a tensor of one element: groups have no tensors without dimensions."""
    return result if result.shape else view(result, (1,))


def merged(result: Result, *runs: Sequence[int]) -> Result:
    """A view in which each run of sizes is one: merged(x, x.shape[:1], x.shape[1:])."""
    return view(result, [math.prod(run) for run in runs])


def pointwise(
    word: str, expr: Expr, operands: Sequence[Result], dtype: str, shape: Sequence[int] = ()
) -> Result:
    """Element by element: expr(operands[0], operands[1], ..), which broadcast, to `shape` too.

    Single known numbers become part of the expression. The iterators are those of `names_of`.
    """
    whole = broadcast([*(r.shape for r in operands), tuple(shape)])
    if 0 in whole:
        return filled(whole, 0, dtype)
    expr, kept = _inlined(expr, operands)
    bound = [flat(r) for r in kept]
    group = elementwise(
        expr, *(r.shape for r in bound), dtypes=[r.dtype for r in bound], out=dtype, name=word,
        shape=whole or (1,),
    )  # fmt: skip
    names = [t.name for t in group.with_role('input')]
    return view(compute(group, dict(zip(names, bound, strict=True))), whole)


def _inlined(expr: Expr, operands: Sequence[Result]) -> tuple[Expr, list[Result]]:
    """The expression with known single numbers in it, and the operands that remain."""
    varying = [r for r in operands if not isinstance(r, Known)]
    texts: list[Expr] = []
    kept: list[Result] = []
    for operand in operands:
        value = _number(operand, varying)
        if value is not None:
            texts.append(literal(value, operand.dtype))
            continue
        if operand not in kept:  # by identity
            kept.append(operand)
        texts.append(read(kept.index(operand)))
    return substituted(expr, texts), kept


def _number(operand: Result, varying: Sequence[Result]) -> float | None:
    """The number that an operand is, if it can stand in an expression without changing its type."""
    if not isinstance(operand, Known) or operand.array.size != 1 or operand.dtype == 'bool':
        return None
    if not any(r.dtype == operand.dtype for r in varying):
        return None
    value = operand.array.item()
    if is_float(operand.dtype):
        return value if math.isfinite(value) else None
    return value if abs(value) <= EXACT else None


def transpose(result: Result, order: Sequence[int]) -> Result:
    """Dimension i of the result is dimension order[i]; a view where the memory is the same."""
    shape = tuple(result.shape[i] for i in order)
    if 0 in shape:
        return filled(shape, 0, result.dtype)
    moved = [i for i in order if result.shape[i] > 1]
    if moved == sorted(moved):
        return view(result, shape)
    if isinstance(result, Known):  # weights can be large
        return Known(np.ascontiguousarray(result.array.transpose(order)))
    return compute(moving.transpose(result.shape, order, result.dtype), {'In': result})
