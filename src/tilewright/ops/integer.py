"""Products of small whole numbers: descriptions with 8-bit operands and 32-bit sums.

Goes in: the group of a convolution or matrix product. Comes out: the same over whole numbers,

    Acc[n, k, h, w] += i32(In[n, c, H, W]) * i32(Ker[k, c, r, s])         In u8 or i8, Ker i8

Zero points stand around it, exactly. With x for what is stored, a for its zero point and weights w
that have none (they are constant, so that theirs is taken off ahead of time),

    sum (x - a) * w  =  sum x * w  -  a * sum w

where `sum w` is one number for every output channel, and goes into the bias: an image that is
padded with its zero point a (`Stage.pad_value`), which stands for 0, has every tap everywhere.

Processors multiply several small numbers that are neighbours in a word of 32 bits and add up their
products. In *words* the same sum is one of floats as far as memory and loops go,

    Acc[n, k, h, w] += In[n, H, W, c4] . Ker[k, c4, r, s]                 c4 = c / 4, rounded up

so that searches, models and loops of fp32 serve it (`in_words`): an element is four bytes, and a
multiply-add is an instruction. Products of f16 are in words of two in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tilewright.ops.dtypes import DTYPES, HALVES, NUMPY, is_float, limits
from tilewright.ops.functions import X, add
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Expr, Stage, call, cast, const, read

ACCUMULATION = 'i32'
SMALL = ('u8', 'i8')  # what integer kernels multiply
IN_BYTES = 4  # numbers of a word that are stored as they are multiplied
WORD_BYTES = 4
FEW_CHANNELS = 4  # of a column whose neighbours may share words with it
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
    rounded = call('round', cast(expr, 'f32'))
    moved = rounded if zero == const(0.0) else add(rounded, zero)
    return cast(call('min', call('max', moved, const(low)), const(high)), dtype)


def requantised(zero: Expr, dtype: str) -> Expr:
    """Read 0, a sum, times read 1, the scale of its channel, as a number of a quantised tensor."""
    return saturated(call('mul', cast(X, 'f32'), read(1)), zero, dtype)


@dataclass(frozen=True, slots=True)
class Words:
    """The sum of an integer group in words: `group` has the main stage alone, of floats.

    dim   the reduction whose neighbours share a word; `axis` of the image is indexed by it
    in_place   whether words of the image lie in memory as they are
    row   where words hold all channels of neighbouring columns: how these lie in the image
    """

    group: Group
    dim: str
    axis: int
    in_place: bool
    row: Row | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """Columns of an image, each with its `channels`, which are an axis of their own. A window has
    `taps` neighbouring columns, along the iterator `tap`, and the first begins `before` the image.
    """

    channels: int
    channel_axis: int
    tap: str
    taps: int
    before: int


@lru_cache(maxsize=256)
def in_words(group: Group, products: int) -> Words | None:
    """An integer group in words of so many numbers; None where no reduction can be cut into them.

    Beyond the last channel a word is filled up: weights are zero there.
    """
    image, weights = factors(group)
    stage = group.main
    kept = _stays(group, image, products)
    dims = [d for d in stage.reduction if _can_share(stage, image, weights, d, products, kept)]
    if not dims:
        return None
    last = image.index[-1].names
    dim = max(dims, key=lambda d: (d in last, stage.sizes[d]))

    def cut(access: Access) -> Access:
        return replace(access, index=tuple(_cut(e, dim, products) for e in access.index))

    axis = next(i for i, e in enumerate(image.index) if dim in e.names)
    tensors = []
    for access in (image, weights):
        tensor = group.tensor(access.tensor)
        sizes = (
            -(-size // products) if dim in e.names else size
            for size, e in zip(tensor.shape, access.index, strict=True)
        )
        tensors.append(replace(tensor, shape=tuple(sizes), dtype='f32'))
    result = replace(group.tensor(stage.write.tensor), role='output', dtype='f32')
    main = replace(
        stage,
        dims=tuple(
            replace(d, size=-(-d.size // products)) if d.name == dim else d for d in stage.dims
        ),
        reads=(cut(image), cut(weights)),
        expr=call('mul', read(0), read(1)),
        pad_value=0.0,
    )
    shape = group.tensor(image.tensor).shape
    whole = products * DTYPES[group.tensor(image.tensor).dtype] == WORD_BYTES
    in_place = whole and axis == len(shape) - 1 and shape[axis] % products == 0
    return Words(Group(group.label, (*tensors, result), (main,)), dim, axis, in_place)


@lru_cache(maxsize=256)
def in_rows(group: Group, products: int) -> Words | None:
    """An integer convolution of few channels in words of a row: all channels of a column, then
    those of the next. A window of 7 columns and 3 channels is 11 words of two instead of 14; None
    where windows would begin inside of a word. The image is to be copied, with its border.
    """
    image, weights = factors(group)
    stage, shape = group.main, group.tensor(image.tensor).shape
    pixels = set(stage.parallel) - set(weights.names)
    alone = {e.names[0] for e in weights.index if _is_iterator(e)}
    if len(alone) != len(weights.index):
        return None
    for axis, index in enumerate(image.index):
        steps = [(n, c) for n, c in index.terms if n in pixels]
        taps = [(n, c) for n, c in index.terms if n in stage.reduction]
        if len(index.terms) != 2 or len(steps) != 1 or len(taps) != 1 or taps[0][1] != 1:
            continue
        (pixel, step), tap = steps[0], taps[0][0]
        for number, other in enumerate(image.index):
            channel = other.names[0] if _is_iterator(other) else ''
            if channel not in stage.reduction or stage.sizes[channel] != shape[number]:
                continue
            channels, known = shape[number], {channel, tap} <= alone
            if not known or channels > FEW_CHANNELS or step * channels % products:
                continue
            if stage.sizes[tap] == 1 or any(
                n in e.names for n in (channel, tap) for e in image.index if e not in (index, other)
            ):
                continue
            row = Row(channels, number, tap, stage.sizes[tap], -index.const)
            return _of_rows(
                group, row, (axis, pixel, step * channels // products), channel, products
            )
    return None


def _is_iterator(index: Affine) -> bool:
    """Whether an index is one iterator as it is."""
    return len(index.terms) == 1 and index.terms[0][1] == 1 and not index.const


def _of_rows(
    group: Group, row: Row, along: tuple[int, str, int], channel: str, products: int
) -> Words:
    """The words of rows; `along`: the axis of columns, its pixels, and words from one to the next.
    The axis of channels stays, with one element.
    """
    (image, weights), stage, (axis, pixel, step) = factors(group), group.main, along
    count = -(-row.taps * row.channels // products)
    length = (stage.sizes[pixel] - 1) * step + count
    words = Affine(((pixel, step), (channel, 1)), 0)
    given, held = group.tensor(image.tensor), group.tensor(weights.tensor)
    shape, index = list(given.shape), list(image.index)
    shape[axis], index[axis] = length, words
    shape[row.channel_axis], index[row.channel_axis] = 1, Affine((), 0)
    place = [n for n, e in enumerate(weights.index) if row.tap in e.names]
    kept = [n for n in range(len(weights.index)) if n not in place]
    sizes = [count if channel in weights.index[n].names else held.shape[n] for n in kept]
    tensors = (
        replace(given, shape=tuple(shape), dtype='f32'),
        replace(held, dims=tuple(held.dims[n] for n in kept), shape=tuple(sizes), dtype='f32'),
        replace(group.tensor(stage.write.tensor), role='output', dtype='f32'),
    )
    lengths = {channel: count, row.tap: 1}
    main = replace(
        stage,
        dims=tuple(replace(d, size=lengths.get(d.name, d.size)) for d in stage.dims),
        reads=(
            replace(image, index=tuple(index)),
            replace(weights, index=tuple(weights.index[n] for n in kept)),
        ),
        expr=call('mul', read(0), read(1)),
        pad_value=0.0,
    )
    return Words(Group(group.label, tensors, (main,)), channel, axis, False, row)


def factors(group: Group) -> tuple[Access, Access]:
    """(image, weights): what is constant is weights, else the second."""
    first, second = group.main.reads
    swap = group.tensor(first.tensor).role == 'constant' != group.tensor(second.tensor).role
    return (second, first) if swap else (first, second)


def _can_share(
    stage: Stage, image: Access, weights: Access, dim: str, products: int, stays: bool
) -> bool:
    """Whether neighbours along a reduction may lie in one word, in both factors. Pixels may step
    over whole words in a row of f16 that is read in place (graph/half_rows.py).
    """
    pixels = set(stage.parallel) - set(weights.names)
    for access in (image, weights):
        found = [e for e in access.index if dim in e.names]
        if len(found) != 1 or found[0].coefficient(dim) != 1 or found[0].const % products:
            return False
        others = [(n, c) for n, c in found[0].terms if n != dim]
        steps = stays and access is image and found[0] is image.index[-1]
        if any(
            (n in pixels and not steps) or n in stage.reduction or c % products for n, c in others
        ):
            return False
        if others and stage.sizes[dim] % products:
            return False
    return True


def _stays(group: Group, image: Access, products: int) -> bool:
    """Whether an image of halves is read in place, and its rows are whole words."""
    tensor = group.tensor(image.tensor)
    inside = all(
        e.const >= 0 and e.const + e.extent(group.main.sizes) <= size
        for e, size in zip(image.index, tensor.shape, strict=True)
    )
    return tensor.dtype in HALVES and inside and tensor.shape[-1] % products == 0


def _cut(expression: Affine, dim: str, products: int) -> Affine:
    if dim not in expression.names:
        return expression
    terms = tuple((n, c if n == dim else c // products) for n, c in expression.terms)
    return Affine(terms, expression.const // products)
