"""Matrix multiplication: the second operator, C[i, j] += A[i, k] * B[k, j]."""

from __future__ import annotations

from tilewright.ops.convolution import whole_number
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Stage, call, read, var


def matmul(*, m: int, n: int, k: int) -> Group:
    """C (m x n) = A (m x k) times constant B (k x n)."""
    m, n, k = whole_number('m', m, 1), whole_number('n', n, 1), whole_number('k', k, 1)
    stage = Stage(
        'matmul',
        (Dim('i', m), Dim('j', n), Dim('k', k, 'reduction')),
        Access('C', (var('i'), var('j'))),
        (Access('A', (var('i'), var('k'))), Access('B', (var('k'), var('j')))),
        call('mul', read(0), read(1)),
        'sum',
    )
    tensors = (
        Tensor('A', ('i', 'k'), (m, k)),
        Tensor('B', ('k', 'j'), (k, n), 'constant'),
        Tensor('C', ('i', 'j'), (m, n), 'output'),
    )
    return Group(f'matmul-m{m}n{n}k{k}', tensors, (stage,))
