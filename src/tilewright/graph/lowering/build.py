"""Groups of stages over results: what all lowerings are made of.

build      stages -> Group -> Result      tensors follow from what the stages touch
pointwise  an expression of tensors that broadcast
copies, transposes, sums over axes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.result import (
    Known,
    Result,
    compute,
    filled,
    view,
)
from tilewright.ops.dtypes import DTYPES, is_float
from tilewright.ops.group import Group, Tensor
from tilewright.ops.parts import parts
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    access,
    literal,
    read,
    var,
)

EXACT = 2**53


def build(
    label: str,
    operands: Mapping[str, Result],
    stages: Sequence[Stage],
    dtype: str,
    inner: Mapping[str, str] | None = None,
) -> Result:
    """What the stages compute of the operands; see `group_of`."""
    return compute(group_of(label, operands, stages, dtype, inner), operands)


def group_of(
    label: str,
    operands: Mapping[str, Result],
    stages: Sequence[Stage],
    dtype: str,
    inner: Mapping[str, str] | None = None,
) -> Group:
    """The group of these stages, whose last one writes the output, of `dtype`.

    Shapes of what is written follow from the indices; `inner` gives the dtype of other tensors that
    are written, where it is not that of the output.
    """
    dims, shapes = {}, {}
    for stage in stages:
        for item in (*stage.reads, stage.write):
            dims[item.tensor] = tuple('_'.join(e.names) or 'one' for e in item.index)
        shapes[stage.write.tensor] = tuple(
            e.const + e.extent(stage.sizes) for e in stage.write.index
        )
    tensors = [
        Tensor(name, dims[name], result.shape, dtype=result.dtype)
        for name, result in operands.items()
    ]
    last = stages[-1].write.tensor
    for name, shape in shapes.items():
        kind = (inner or {}).get(name, dtype)
        role = 'output' if name == last else 'inner'
        tensors.append(Tensor(name, dims[name], shape, role, kind))
    group = Group(label, tuple(tensors), tuple(stages))
    held = [s.write.tensor for part in parts(group) for s in part.stages[:-1]]
    return replace(group, storage=tuple((name, 'register') for name in held))


def names_of(shape: Sequence[int]) -> tuple[str, ...]:
    """Names of dimensions: n c h w for four, as images have them, else d0 d1 .."""
    return tuple('nchw') if len(shape) == 4 else tuple(f'd{i}' for i in range(len(shape)))


def label_of(word: str, *shapes: Sequence[int]) -> str:
    return f'{word}-{",".join("x".join(map(str, shape)) for shape in shapes)}'


def flat(result: Result) -> Result:
    """A scalar as a tensor of one element: groups have no tensors without dimensions."""
    return result if result.shape else view(result, (1,))


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that all of these broadcast to, as in numpy."""
    rank, sizes = max(map(len, shapes)), []
    for axis in range(-rank, 0):
        found = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(found) > 1:
            raise ModelError(f'shapes {[list(s) for s in shapes if s]} do not broadcast')
        sizes.append(found.pop() if found else 1)
    return tuple(sizes)


def pointwise(
    word: str, expr: Expr, operands: Sequence[Result], dtype: str, shape: Sequence[int] = ()
) -> Result:
    """Element by element: expr(operands[0], operands[1], ..), which broadcast, to `shape` too.

    Single known numbers become part of the expression. The iterators are those of `names_of`.
    """
    whole = broadcast([*(r.shape for r in operands), tuple(shape)])
    if 0 in whole:
        return filled(whole, 0, dtype)
    sizes = whole or (1,)
    expr, given = _inlined(expr, operands)
    names = names_of(sizes)
    reads, bound = [], {}
    for number, operand in enumerate(map(flat, given)):
        name = f'In{number}' if len(given) > 1 else 'In'
        bound[name] = operand
        own = names[len(names) - len(operand.shape) :]
        reads.append(Access(name, tuple(
            Affine(()) if size == 1 and sizes[names.index(d)] > 1 else var(d)
            for d, size in zip(own, operand.shape, strict=True)
        )))  # fmt: skip
    domain = tuple(Dim(d, size) for d, size in zip(names, sizes, strict=True))
    stage = Stage(word, domain, Access('Out', tuple(map(var, names))), tuple(reads), expr)
    label = label_of(word, *(r.shape for r in bound.values())) if bound else label_of(word, sizes)
    return view(build(label, bound, [stage], dtype), whole)


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
    return substitute(expr, texts), kept


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


def substitute(expr: Expr, texts: Sequence[Expr]) -> Expr:
    """The expression with texts[i] in the place of read i."""
    if expr.op == 'read':
        return texts[int(expr.value)]
    return replace(expr, args=tuple(substitute(a, texts) for a in expr.args))


def gather(
    word: str,
    source: Result,
    index: Sequence,
    sizes: Mapping[str, int],
    pad_value: float = 0.0,
    write: Sequence[Affine] | None = None,
) -> Result:
    """Out[d0, d1, ..] = source[index], over the dimensions that `sizes` names, in its order."""
    if not source.shape and not sizes:
        return source  # a scalar has no place to be moved to
    domain = tuple(Dim(name, size) for name, size in sizes.items())
    target = tuple(write) if write is not None else tuple(map(var, sizes))
    stage = Stage(
        word, domain, Access('Out', target), (access('In', *index),), read(0), None, pad_value
    )
    return build(label_of(word, source.shape), {'In': source}, [stage], source.dtype)


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
    names = names_of(result.shape)
    index = [var(name) for name in names]
    return gather('transpose', result, index, {names[i]: result.shape[i] for i in order})


def reduce(
    word: str,
    source: Result,
    axes: Sequence[int],
    combiner: str,
    before: Expr | None = None,
    after: Expr | None = None,
) -> Result:
    """after(combine before(source) over axes), without these axes; there are elements.

    With `after`, whole numbers of 32 bits and fewer are combined in 64, so that the mean of large
    ones is right.
    """
    names = names_of(source.shape)
    kept = [
        Dim(n, s) for i, (n, s) in enumerate(zip(names, source.shape, strict=True)) if i not in axes
    ]
    lines = kept or [Dim('one', 1)]
    over = [Dim(names[i], source.shape[i], 'reduction') for i in axes]
    here = tuple(var(d.name) for d in lines)
    target = 'Total' if after else 'Out'
    stages = [
        Stage(word, (*lines, *over), Access(target, here),
              (Access('In', tuple(map(var, names))),), before or read(0), combiner)
    ]  # fmt: skip
    if after:
        stages.append(
            Stage('finish', tuple(lines), Access('Out', here), (Access('Total', here),), after)
        )
    label = f'{label_of(word, source.shape)}@{"".join(map(str, axes))}'
    narrow = not is_float(source.dtype) and DTYPES[source.dtype] < 8
    wide = {'Total': 'i64'} if after and narrow else None
    result = build(label, {'In': source}, stages, source.dtype, wide)
    return view(result, tuple(d.size for d in kept))


def merged(result: Result, *runs: Sequence[int]) -> Result:
    """A view in which each run of sizes is one: merged(x, x.shape[:1], x.shape[1:])."""
    return view(result, [math.prod(run) for run in runs])
