"""Matrix products in the forms that files have: with broadcasting, transposed, scaled, with a sum.

    product   numpy.matmul: any number of leading axes that broadcast, vectors on either side
    gemm      Out = alpha * A' B' + beta * Bias, either transposed, with a Bias that broadcasts

Operands that are constant are packed ahead; 'roles' says which are.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.elementwise import broadcast
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine, Dim, Expr, Stage, call, const, read, var

Roles = Sequence[str]


def product(
    a_shape: Sequence[int], b_shape: Sequence[int], *, roles: Roles = ('input', 'input'),
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Out = numpy.matmul(A, B)."""
    a = tuple(_whole('a size', size, 1) for size in a_shape)
    b = tuple(_whole('a size', size, 1) for size in b_shape)
    if len(a) < 1 or len(b) < 1:
        raise SpecError(f'a product of {a} and {b}; operands have at least one dimension')
    k = a[-1]
    if k != b[-2:][0]:
        raise SpecError(f'a product of {a} and {b}: {k} columns do not meet as many rows')
    batch = broadcast([a[:-2], b[:-2]]) if len(a) > 2 or len(b) > 2 else ()
    outer = tuple(f'b{i}' for i in range(len(batch)))
    rows = [('i', a[-2])] if len(a) > 1 else []
    columns = [('j', b[-1])] if len(b) > 1 else []
    parallel = [*zip(outer, batch, strict=True), *rows, *columns]

    def leading(shape: tuple[int, ...]) -> list[Affine]:
        own = outer[len(outer) - len(shape) :]
        sizes = batch[len(batch) - len(shape) :]
        return [
            var(n) if s > 1 or whole == 1 else Affine(())
            for n, s, whole in zip(own, shape, sizes, strict=True)
        ]

    a_index = [*leading(a[:-2]), *(var(n) for n, _ in rows), var('k')]
    b_index = [*leading(b[:-2]), var('k'), *(var(n) for n, _ in columns)]
    stage = Stage(
        'product', (*(Dim(n, s) for n, s in parallel), Dim('k', k, 'reduction')),
        Access('Out', tuple(var(n) for n, _ in parallel)),
        (Access('A', tuple(a_index)), Access('B', tuple(b_index))),
        call('mul', read(0), read(1)), 'sum',
    )  # fmt: skip
    tensors = (
        Tensor('A', tuple(f'a{i}' for i in range(len(a))), a, roles[0], dtype),
        Tensor('B', tuple(f'c{i}' for i in range(len(b))), b, roles[1], dtype),
        Tensor(
            'Out', tuple(n for n, _ in parallel), tuple(s for _, s in parallel), 'output', dtype
        ),
    )
    label = f'product-{"x".join(map(str, a))},{"x".join(map(str, b))}{_mark(roles, dtype)}'
    return Group(label, tensors, (stage,))


def gemm(
    m: int, n: int, k: int, *, trans_a: bool = False, trans_b: bool = False, alpha: float = 1.0,
    beta: float = 1.0, bias_shape: Sequence[int] | None = None,
    roles: Roles = ('input', 'constant', 'constant'), dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Out (m x n) = alpha * A (m x k) B (k x n) + beta * Bias; `trans`: stored the other way."""
    m, n, k = _whole('m', m, 1), _whole('n', n, 1), _whole('k', k, 1)
    here, flat = (var('i'), var('j')), (Dim('i', m), Dim('j', n))
    a_index, a_shape = (var('i'), var('k')), (m, k)
    b_index, b_shape = (var('k'), var('j')), (k, n)
    if trans_a:
        a_index, a_shape = a_index[::-1], a_shape[::-1]
    if trans_b:
        b_index, b_shape = b_index[::-1], b_shape[::-1]
    expr: Expr = read(0)
    if alpha != 1.0:
        expr = call('mul', expr, const(alpha))
    others: list[Access] = []
    tensors = [
        Tensor('A', ('k', 'i') if trans_a else ('i', 'k'), a_shape, roles[0], dtype),
        Tensor('B', ('j', 'k') if trans_b else ('k', 'j'), b_shape, roles[1], dtype),
    ]
    if bias_shape is not None:
        shape = tuple(_whole('a size', size, 1) for size in bias_shape)
        if len(shape) > 2 or broadcast([(m, n), shape]) != (m, n):
            raise SpecError(f'Bias of shape {shape} does not broadcast to {(m, n)}')
        own = here[2 - len(shape) :]
        index = (var(e.names[0]) if s > 1 else Affine(()) for e, s in zip(own, shape, strict=True))
        others.append(Access('Bias', tuple(index)))
        bias = read(1) if beta == 1.0 else call('mul', read(1), const(beta))
        expr = call('add', expr, bias)
        tensors.append(Tensor('Bias', tuple(e.names[0] for e in own), shape, roles[2], dtype))
    plain = expr == read(0)
    main = Stage(
        'gemm', (*flat, Dim('k', k, 'reduction')), Access('Out' if plain else 'Acc0', here),
        (Access('A', a_index), Access('B', b_index)), call('mul', read(0), read(1)), 'sum',
    )  # fmt: skip
    stages, storage = [main], ()
    if not plain:
        tensors.append(Tensor('Acc0', ('i', 'j'), (m, n), 'inner', dtype))
        stages.append(
            Stage('finish', flat, Access('Out', here), (Access('Acc0', here), *others), expr)
        )
        storage = (('Acc0', 'register'),)
    form = f'{"T" if trans_a else "N"}{"T" if trans_b else "N"}'
    label = f'gemm{form}-m{m}n{n}k{k}a{alpha:g}'
    if bias_shape is not None:
        label += f'b{beta:g}@{"x".join(map(str, bias_shape))}'
    out = Tensor('Out', ('i', 'j'), (m, n), 'output', dtype)
    return Group(label + _mark(roles, dtype), (*tensors, out), tuple(stages), storage)


def _mark(roles: Roles, dtype: str) -> str:
    kinds = ''.join('c' if role == 'constant' else 'v' for role in roles)
    return f'-{kinds}' + ('' if dtype == 'f32' else f':{dtype}')
