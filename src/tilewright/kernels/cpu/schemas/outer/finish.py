"""What follows sums, where micro-kernels can compute it: one number for each lane or result added,
then limits.

Goes in: a group, the operands of its epilogue. Comes out: a `Finished`, or None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.kernels.cpu.pointwise import Operand
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr
from tilewright.ops.stored import Stored


@dataclass(frozen=True, slots=True)
class Finished:
    """What micro-kernels make of complete sums (`micro.Finish`), and of which operands."""

    bias: str = ''
    more: str = ''
    low: float | None = None
    high: float | None = None
    stored: Stored | None = None


def read_finish(
    group: Group,
    operands: Sequence[Operand],
    is_bias: Callable[[Operand], bool],
    is_more: Callable[[Operand], bool],
) -> Finished | None:
    """What is added comes before limits, a bias before all else; None where something is not so."""
    left, made = iter(operands), Finished()
    own = {stage.write.tensor for stage in group.stages}
    for stage in group.epilogue:
        expr, mine = stage.expr, [a.tensor in own for a in stage.reads]
        if expr.op == 'add' and sorted(mine) == [False, True] and _reads_both(expr):
            item = next(left)
            if made.low is not None or made.high is not None or made.more:
                return None
            if is_bias(item) and not made.bias:
                made = replace(made, bias=item.name)
            elif is_more(item):
                made = replace(made, more=item.name)
            else:
                return None
        elif mine == [True]:
            found = _limited(expr, made)
            if found is None:
                return None
            made = found
        else:
            return None
    return made


def _reads_both(expr: Expr) -> bool:
    return sorted(a.value for a in expr.args if a.op == 'read') == [0, 1]


def _limited(expr: Expr, made: Finished) -> Finished | None:
    """An expression that cuts its argument off, below before above."""
    if expr.op == 'read':
        return made
    if expr.op not in ('max', 'min') or expr.args[1].op not in ('const', 'whole'):
        return None
    inner = _limited(expr.args[0], made)
    if inner is None or inner.high is not None or (expr.op == 'max' and inner.low is not None):
        return None
    limit = float(expr.args[1].value)
    if not math.isfinite(limit):
        return None
    return replace(inner, **{'low' if expr.op == 'max' else 'high': limit})
