"""Groups of f16 or bf16 whose results are quantised before they are stored.

    conv of f16 -> y: f16;  quantize(y) -> q: u8      becomes      conv+quantize -> q: u8

Goes in: a group. Comes out: how its last stage makes 8-bit numbers of floats (`Stored`), and the
group without that stage, which stores its own type. Kernels of f16 quantise in f16: numbers are
rounded from what f16 holds, so that a result may be one step away from the definition's. Kernels of
bf16 quantise the float32 that they would have rounded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tilewright.ops.dtypes import limits
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr, Stage

SMALLEST, LARGEST = 2.0**-14, 2.0**15  # of an inverse: numbers that f16 holds with all of its bits


@dataclass(frozen=True, slots=True)
class Stored:
    """saturate(round(x / scale) + zero), as a number of `dtype`."""

    dtype: str
    scale: float
    zero: int

    @property
    def inverse(self) -> float:
        """What numbers of f16 are multiplied by."""
        return float(np.float16(1 / self.scale))


def stored_stage(stage: Stage, dtype: str) -> Stored | None:
    """How a stage quantises the only value that it reads; None where it does something else, or by
    a scale that f16 does not hold.
    """
    alone = len(stage.reads) == 1 and dtype in ('u8', 'i8')
    found = _saturated(stage.expr, dtype) if alone else None
    if found is None or stage.combiner is not None or found.scale <= 0:
        return None
    return found if SMALLEST <= 1 / found.scale <= LARGEST else None


def _saturated(expr: Expr, dtype: str) -> Stored | None:
    """The numbers of cast(min(max(round(x / scale) + zero, low), high)): ops/integer.py."""
    low, high = limits(dtype)
    if expr.op != 'cast' or expr.name != dtype:
        return None
    expr = expr.args[0]
    for op, limit in (('min', high), ('max', low)):
        if expr.op != op or expr.args[1].op != 'const' or expr.args[1].value != limit:
            return None
        expr = expr.args[0]
    zero = 0.0
    if expr.op == 'add' and expr.args[1].op == 'const':
        zero, expr = float(expr.args[1].value), expr.args[0]
    if expr.op != 'round' or zero != int(zero) or not low <= zero <= high:
        return None
    expr = expr.args[0]
    if expr.op == 'cast' and expr.name == 'f32':
        expr = expr.args[0]
    by = expr.args[1] if expr.op == 'div' else expr
    if expr.op != 'div' or expr.args[0].op != 'read' or by.op != 'const':
        return None
    return Stored(dtype, float(by.value), int(zero))


@lru_cache(maxsize=1 << 10)
def as_stored(group: Group) -> tuple[Group, Stored | None]:
    """The group that stores f16 or bf16, and how that is quantised; the group itself where it is
    not, or where its operands are of another type.
    """
    if not group.epilogue or group.main.combiner is None or not group.half:
        return group, None
    last = group.epilogue[-1]
    found = stored_stage(last, group.output.dtype)
    if found is None or last is not group.stages[-1]:
        return group, None
    value, out = last.reads[0].tensor, group.output.name
    if last.reads[0].index != last.write.index or sum(
        a.tensor == value for s in group.stages for a in s.reads
    ) != 1:  # fmt: skip
        return group, None
    tensors = tuple(
        replace(t, dtype=group.half) if t.name == out else t
        for t in group.tensors
        if t.name != value
    )
    stages = tuple(
        replace(s, write=replace(s.write, tensor=out)) if s.write.tensor == value else s
        for s in group.stages[:-1]
    )
    storage = tuple((name, where) for name, where in group.storage if name != value)
    return Group(group.label, tensors, stages, storage), found
