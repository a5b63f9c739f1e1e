"""Products of small whole numbers: descriptions with 8-bit operands and 32-bit sums.

Goes in: the group of a convolution or matrix product. Comes out: the same over whole numbers,

    Acc[n, k, h, w] += i32(In[n, c, H, W]) * i32(Ker[k, c, r, s])         In u8 or i8, Ker i8

Zero points stand around it, exactly. With x for what is stored, a for its zero point and weights w
that have none (they are constant, so that theirs is taken off ahead of time),

    sum (x - a) * w  =  sum x * w  -  a * sum w

where `sum w` is one number for every output channel, and goes into the bias: an image that is
padded with its zero point a (`Stage.pad_value`), which stands for 0, has every tap everywhere.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.ops.dtypes import NUMPY, is_float, limits
from tilewright.ops.functions import X, add
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr, Stage, call, cast, const, read

ACCUMULATION = 'i32'
SMALL = ('u8', 'i8')  # what integer kernels multiply
INTEGER_PRODUCT = call('mul', cast(read(0), ACCUMULATION), cast(read(1), ACCUMULATION))


def integer_products(group: Group, pad: int = 0) -> Group:
    """The group over whole numbers; places outside the image are `pad`, its zero point."""
    main = replace(group.main, expr=INTEGER_PRODUCT, pad_value=float(pad))
    return replace(
        group,
        label=f'{group.label}-int',
        tensors=tuple(replace(t, dtype=ACCUMULATION) for t in group.tensors),
        stages=tuple(main if stage is group.main else stage for stage in group.stages),
    )


def is_integer_products(group: Group) -> bool:
    """Whether the main stage adds up products of 8-bit numbers, and all is found affinely."""
    return (
        not group.is_sequential
        and group.main.expr == INTEGER_PRODUCT
        and group.main.is_product_sum
        and all(group.tensor(a.tensor).dtype in SMALL for a in group.main.reads)
        and all(s.is_affine and not set(s.expr.iterators()) for s in group.stages)
    )


def can_follow(stage: Stage) -> bool:
    """Whether a stage may stand in the epilogue of an integer product."""
    return stage.combiner is None and stage.is_affine and not set(stage.expr.iterators())


def without_zero(weights: np.ndarray, zero: np.ndarray | int) -> np.ndarray:
    """Weights minus their zero point, in the smallest type that holds all of them."""
    moved = weights.astype(np.int32) - np.asarray(zero, np.int32)
    for dtype in ('i8', 'i16'):
        low, high = limits(dtype)
        if moved.size == 0 or (moved.min() >= low and moved.max() <= high):
            return moved.astype(NUMPY[dtype])
    return moved


def saturated(expr: Expr, zero: Expr, dtype: str) -> Expr:
    """A float as a number of a quantised tensor: rounded half to even, moved, cut off at limits."""
    assert not is_float(dtype)
    low, high = limits(dtype)
    moved = add(call('round', cast(expr, 'f32')), zero)
    return cast(call('min', call('max', moved, const(low)), const(high)), dtype)


def requantised(zero: Expr, dtype: str) -> Expr:
    """Read 0, a sum, times read 1, the scale of its channel, as a number of a quantised tensor."""
    return saturated(call('mul', cast(X, 'f32'), read(1)), zero, dtype)
