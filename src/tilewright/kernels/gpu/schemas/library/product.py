"""Products of matrices as cuBLASLt knows them, read off a description by strides alone.

Dimensions of a sum of products fall into four classes: rows (of A and the result), columns (of B
and the result), depth (of A and B) and batches (of all). Dimensions of a class that lie behind each
other in every tensor count as one. Rows are the class that the result has side by side. A 1x1
convolution is such a product: pixels are rows, filters columns, images batches with one B for all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu.schemas.library.behind import Behind, Operand
from tilewright.kernels.gpu.schemas.library.calls import ProductCall
from tilewright.ops.group import Group, Tensor

LARGEST = 2**31 - 1  # what BLAS numbers sizes by
Strides = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Found:
    """A product, the tensors it reads, and the dimensions that are its rows, innermost last."""

    call: ProductCall
    operands: Mapping[str, Tensor]
    rows: tuple[str, ...]


def product_of(part: Group) -> Found:
    """[Group of one part] -> [Found] of the main stage; a ScheduleError says why there is none."""
    main = part.main
    if not main.is_product_sum or main.pad_value != 0 or part.stages[0] is not main:
        raise _no(part, 'is not a sum of products')
    strides = []
    for access in (main.write, *main.reads):
        found, const = access_strides(part, access)
        if const or any(e.const for e in access.index):
            raise _no(part, f'reads or writes {access.tensor} from another element than its first')
        shape = part.tensor(access.tensor).shape
        if any(e.extent(main.sizes) > s for e, s in zip(access.index, shape, strict=True)):
            raise _no(part, f'reads {access.tensor} outside of it')
        # What has one element is nowhere.
        strides.append({d: s for d, s in found.items() if main.sizes[d] > 1})
    out, first, second = strides
    left, right = (part.tensor(access.tensor) for access in main.reads)
    inner = next((d for d, s in out.items() if s == 1), None)
    if inner is not None and inner in first and inner in second:
        raise _no(part, 'has batches side by side')
    if inner is not None and inner in second:
        first, second, left, right = second, first, right, left
    if left.dtype != right.dtype:
        raise _no(part, f'multiplies {left.dtype} by {right.dtype}')
    call, rows = _call(part, out, first, second)
    result = part.tensor(main.write.tensor).dtype
    return Found(replace(call, dtype=left.dtype, result=result), {'a': left, 'b': right}, rows)


def _call(part: Group, out: Strides, a: Strides, b: Strides) -> tuple[ProductCall, tuple[str, ...]]:
    sizes = part.main.sizes
    depth = _ordered([d for d in sizes if sizes[d] > 1 and d not in out], a)
    if any(d not in a or d not in b for d in depth):
        raise _no(part, 'sums over one of its operands alone')
    rows, outer_rows = _run([d for d in out if d in a and d not in b], sizes, out, a)
    columns, outer_columns = _run([d for d in out if d in b and d not in a], sizes, out, b)
    if any(d not in a and d not in b for d in out):
        raise _no(part, 'repeats a result')
    batches = _ordered([*outer_rows, *outer_columns, *(d for d in out if d in a and d in b)], out)
    for dims, tensors in ((depth, (a, b)), (batches, (out, a, b))):
        if not _merge(dims, sizes, tensors):
            raise _no(part, f'has {" and ".join(dims)}, which do not lie behind each other')
    m, n, k, batch = (math.prod(sizes[d] for d in dims) for dims in (rows, columns, depth, batches))
    if rows and out[rows[-1]] != 1:
        raise _no(part, 'has no results side by side')
    transposed_a, lead_a = _layout(part, 'rows', rows, depth, m, k, a)
    transposed_b, lead_b = _layout(part, 'columns', depth, columns, k, n, b)
    lead_d = out[columns[-1]] if columns else max(m, 1)
    if lead_d < m or max(m, n, k, lead_a, lead_b, lead_d) > LARGEST:
        raise _no(part, 'has results that overlap, or more of them than BLAS counts')
    last = batches[-1] if batches else ''
    return (
        ProductCall(
            m=m, n=n, k=k, transposed=(transposed_a, transposed_b),
            leading=(lead_a, lead_b, lead_d), batch=batch,
            steps=(a.get(last, 0), b.get(last, 0), out.get(last, 0)),
        ),
        rows,
    )  # fmt: skip


def _ordered(dims: Sequence[str], strides: Strides) -> tuple[str, ...]:
    """The outermost first."""
    return tuple(sorted(dims, key=lambda d: -strides.get(d, 0)))


def _merge(dims: Sequence[str], sizes: Mapping[str, int], tensors: Sequence[Strides]) -> bool:
    """Whether these, the outermost first, count as one dimension in every tensor."""
    return all(
        t.get(outer, 0) == t.get(inner, 0) * sizes[inner]
        for outer, inner in itertools.pairwise(dims)
        for t in tensors
    )


def _run(
    dims: Sequence[str], sizes: Mapping[str, int], out: Strides, own: Strides
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(the innermost that count as one, the others), each with the outermost first."""
    order = _ordered(dims, out)
    start = next(s for s in range(len(order) + 1) if _merge(order[s:], sizes, (out, own)))
    return order[start:], order[:start]


def _layout(
    part: Group, what: str, down: Sequence[str], across: Sequence[str], height: int, width: int,
    strides: Strides,
) -> tuple[bool, int]:  # fmt: skip
    """(whether a matrix lies transposed, elements between its columns as it lies)."""
    one = strides[down[-1]] if down else 0
    other = strides[across[-1]] if across else 0
    if (not down or one == 1) and (not across or other >= height):
        return False, other or height
    if (not across or other == 1) and (not down or one >= width):
        return True, one or width
    raise _no(part, f'has {what} of an operand that are not side by side')


def fused_product(part: Group, found: Found, behind: Behind) -> dict[str, Operand]:
    """Operands by the words of the call: 'bias' and 'c'; a ScheduleError where there are others."""
    main, sizes, call = part.main, part.main.sizes, found.call
    out, _ = access_strides(part, main.write)
    axes = [next((n for n in e.names if sizes[n] > 1), None) for e in main.write.index]
    if any(len([n for n in e.names if sizes[n] > 1]) > 1 for e in main.write.index):
        raise _no(part, 'has an axis of two dimensions')
    words: dict[str, Operand] = {}
    for operand in behind.operands:
        steps = {d: s for d, s in zip(axes, operand.strides, strict=True) if d is not None}
        tensor = operand.tensor
        if tensor.size == call.m and all(
            s == (out[d] if d in found.rows else 0) for d, s in steps.items()
        ):
            word = 'bias'
        elif tensor.shape == part.output.shape and all(s == out[d] for d, s in steps.items()):
            word = 'c'
        else:
            raise _no(part, f'adds {tensor.name}, neither a bias of rows nor a whole result')
        if word == 'c' and tensor.dtype != part.output.dtype:
            raise _no(part, f'adds {tensor.name}, {tensor.dtype}, to {part.output.dtype}')
        if word == 'bias' and tensor.dtype != part.output.dtype and tensor.role != 'constant':
            raise _no(part, f'adds {tensor.name}, which is not rounded ahead of time')
        if word in words:
            raise _no(part, f'adds {tensor.name} and {words[word].tensor.name}, two alike')
        words[word] = operand
    return words


def _no(part: Group, why: str) -> ScheduleError:
    return ScheduleError(f'{part.label} {why}')
