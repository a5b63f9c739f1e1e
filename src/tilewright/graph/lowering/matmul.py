"""Matrix products: two matrices, stacks of them, and Gemm with its scaling and its addend."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import flat, pointwise, transpose
from tilewright.graph.lowering.reader import NUMBERS, NodeReader, Operator
from tilewright.graph.lowering.result import Known, Result, compute, filled, view
from tilewright.ops.describe import broadcast, label_of, typed
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.functions import X, add, mul
from tilewright.ops.integer import integer_products
from tilewright.ops.matmul import matmul
from tilewright.ops.products import einsum, stacked_product
from tilewright.ops.stage import literal, read


def product(a: Result, b: Result, zero: int | None = None) -> Result:
    """[m, k] times [k, n]; with the `zero` point of `a` they are small whole numbers, in i32."""
    (m, k), (depth, n) = a.shape, b.shape
    if k != depth or (a.dtype != b.dtype and zero is None):
        raise ModelError(
            f'{a.dtype}{list(a.shape)} cannot be multiplied by {b.dtype}{list(b.shape)}'
        )
    if not m * n * k:
        return filled((m, n), 0, a.dtype if zero is None else 'i32')
    group = matmul(m=m, n=n, k=k)
    group = typed(group, a.dtype) if zero is None else integer_products(group, zero)
    return compute(group, {'A': a, 'B': b})


def _matmul(node: NodeReader) -> Result:
    a, b = node.input(0), node.input(1)
    if not a.shape or not b.shape or a.dtype != b.dtype:
        raise ModelError(
            f'{a.dtype}{list(a.shape)} cannot be multiplied by {b.dtype}{list(b.shape)}'
        )
    left = view(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = view(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    made = stacked(left, right)
    shape = list(made.shape)
    if len(b.shape) == 1:
        del shape[-1]
    if len(a.shape) == 1:
        del shape[-1 if len(b.shape) == 1 else -2]
    return view(made, shape)


def stacked(a: Result, b: Result, zero: int | None = None) -> Result:
    """[.., m, k] times [.., k, n]; a single right factor takes all rows of the left at once. With
    the `zero` point of `a` they are small whole numbers, in i32.

    The result has the shape that the graph knows, so that a bias behind it can join the product.
    """
    stack = broadcast([a.shape[:-2], b.shape[:-2]])
    (m, k), (depth, n) = a.shape[-2:], b.shape[-2:]
    if k != depth:
        raise ModelError(f'{list(a.shape)} cannot be multiplied by {list(b.shape)}')
    if 0 in (*stack, m, n, k):
        return filled((*stack, m, n), 0, a.dtype if zero is None else 'i32')
    if math.prod(b.shape[:-2]) == 1:
        a, b = view(a, (*stack, m, k)), view(b, (k, n))
        if not stack:
            return product(a, b, zero)
    group = stacked_product(a.shape, b.shape, a.dtype if zero is None else 'f32')
    return compute(group if zero is None else integer_products(group, zero), {'A': a, 'B': b})


def _gemm(node: NodeReader) -> Result:
    """alpha A B + beta C; a bias for each column joins the product, other addends follow it."""
    a, b, c = node.input(0), node.input(1), node.optional(2)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ModelError(f'{list(a.shape)} and {list(b.shape)} are not two matrices')
    if any(r is not None and r.dtype != a.dtype for r in (b, c)):
        raise ModelError(f'its operands have other dtypes than its first, {a.dtype}')
    alpha, beta = node.float('alpha', 1.0), node.float('beta', 1.0)
    a = transpose(a, (1, 0)) if node.int('transA', 0) else a
    by_columns = bool(node.int('transB', 0))
    m, k = a.shape
    n, depth = b.shape if by_columns else b.shape[::-1]
    if k != depth:
        raise ModelError(f'{list(node.input(0).shape)} cannot be multiplied by {list(b.shape)}')
    if c is not None and beta == 0:
        c = None
    if c is not None and broadcast([c.shape, (m, n)]) != (m, n):
        raise ModelError(f'its addend of {list(c.shape)} does not broadcast to {[m, n]}')
    joined = (
        c is not None and alpha == beta == 1 and by_columns and c.shape in ((n,), (1, n))
        and (n > 1 or m == 1) and isinstance(c, Known)
    )  # fmt: skip
    if 0 in (m, n, k):
        made = filled((m, n), 0, a.dtype)
    elif by_columns:
        group = typed(fully_connected(n=m, c=k, k=n, bias=joined), a.dtype)
        operands = {'In': a, 'Ker': b}
        if joined and c is not None:
            operands['Bias'] = view(c, (n,))
        made = compute(group, operands)
    else:
        made = product(a, b)
    return made if joined else _finished(made, c, alpha, beta)


def _finished(made: Result, c: Result | None, alpha: float, beta: float) -> Result:
    dtype, expr, inputs = made.dtype, X, [made]
    if alpha != 1:
        expr = mul(expr, literal(alpha, dtype))
    if c is not None:
        inputs.append(c)
        expr = add(expr, read(1) if beta == 1 else mul(read(1), literal(beta, dtype)))
    return made if expr is X else pointwise('gemm', expr, inputs, dtype)


def _einsum(node: NodeReader) -> Result:
    """A sum of products over letters."""
    inputs = node.all()
    if any(r.dtype != inputs[0].dtype for r in inputs):
        raise ModelError('its operands have different dtypes')
    terms, out = _equation(node.text('equation', ''), [len(r.shape) for r in inputs])
    sizes: dict[str, int] = {}
    for term, operand in zip(terms, inputs, strict=True):
        for name, size in zip(term, operand.shape, strict=True):
            spread = name.startswith('e') and len(name) > 1
            if sizes.get(name, 1) == 1 and (spread or name not in sizes):
                sizes[name] = size
            elif size != sizes[name] and not (spread and size == 1):
                raise ModelError(f'{name!r} of its equation has sizes {sizes[name]} and {size}')
    if len(set(out)) != len(out) or not set(out) <= set(sizes):
        raise ModelError(f'its equation gives {out}, which its operands do not determine')
    shape = [sizes[name] for name in out]
    if 0 in sizes.values():
        return filled(shape, 0, inputs[0].dtype)
    bound = [flat(r) for r in inputs]
    label = label_of('einsum', *(r.shape for r in inputs))
    group = einsum(label, [r.shape for r in bound], terms, out, sizes, inputs[0].dtype)
    return view(compute(group, {f'In{i}': r for i, r in enumerate(bound)}), shape)


def _equation(text: str, ranks: Sequence[int]) -> tuple[list[list[str]], list[str]]:
    """The names of the dimensions of every operand, and of the result; '...' is e0 e1 .."""
    left, arrow, right = text.replace(' ', '').partition('->')
    parts = left.split(',')
    if len(parts) != len(ranks):
        raise ModelError(f'its equation {text!r} is about {len(parts)} operands, not {len(ranks)}')
    dots = [rank - len(p.replace('...', '')) for p, rank in zip(parts, ranks, strict=True)]
    wide = max([d for d, p in zip(dots, parts, strict=True) if '...' in p], default=0)
    if not arrow:
        letters = left.replace('.', '').replace(',', '')
        right = ('...' if '...' in left else '') + ''.join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    terms = [_names(p, d, wide, text) for p, d in zip(parts, dots, strict=True)]
    return terms, _names(right, wide, wide, text)


def _names(term: str, dots: int, wide: int, text: str) -> list[str]:
    before, found, after = term.partition('...')
    letters = before + after
    if not (letters.isalpha() or not letters) or dots < 0 or (dots and not found):
        raise ModelError(f'its equation {text!r} does not fit its operands')
    return [*before, *(f'e{i}' for i in range(wide - dots, wide)), *after]


OPERATORS: dict[str, Operator] = {
    'MatMul': Operator(_matmul, NUMBERS),
    'Gemm': Operator(_gemm, NUMBERS),
    'Einsum': Operator(_einsum, NUMBERS),
}
