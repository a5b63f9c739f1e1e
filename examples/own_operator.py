"""An operator that the package does not know: reference, traffic, schedule and code follow.

A batched matrix product, Out[n, i, j] += A[n, i, k] * B[n, k, j], with constant B.
"""

import numpy as np

import tilewright as tw
from tilewright.model.cpu.orders import order_classes
from tilewright.ops.group import Group, Tensor
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, Stage, call, read, var

n, i, j, k = (var(name) for name in 'nijk')
stage = Stage(
    'batched_matmul',
    (Dim('n', 4), Dim('i', 96), Dim('j', 128), Dim('k', 64, 'reduction')),
    Access('Out', (n, i, j)),
    (Access('A', (n, i, k)), Access('B', (n, k, j))),
    call('mul', read(0), read(1)),
    'sum',
)
tensors = (
    Tensor('A', ('n', 'i', 'k'), (4, 96, 64)),
    Tensor('B', ('n', 'k', 'j'), (4, 64, 128), 'constant'),
    Tensor('Out', ('n', 'i', 'j'), (4, 96, 128), 'output'),
)
group = Group('batched-matmul', tensors, (stage,))

print(f'{len(order_classes(stage))} classes of loop orders are worth considering')
plan = tw.optimize(group, measure=False)
print(plan.explain())

random = np.random.default_rng(0)
left = random.standard_normal((4, 96, 64), np.float32)
right = random.standard_normal((4, 64, 128), np.float32)
answer = plan.build(constants={'B': right})(left)
print('largest error', np.abs(answer - reference(group, {'A': left, 'B': right})).max())
