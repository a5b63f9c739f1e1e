"""Fully connected layers: a matrix product with constant weights, then bias and activation.

    Out[n, k] += In[n, c] * Ker[k, c]

The input is flat; an image in memory, [n, c, h, w], is the same bytes as [n, c*h*w].
"""

from __future__ import annotations

from tilewright.ops.convolution import whole_number
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import ACTIVATIONS, check_activation, pointwise
from tilewright.ops.stage import Access, Dim, Stage, call, read, var


def fully_connected(
    *, n: int = 1, c: int, k: int, bias: bool = False, activation: str | None = None
) -> Group:
    """`c` features in, `k` out; weights in [k, c] order, as frameworks store them."""
    n, c, k = whole_number('n', n, 1), whole_number('c', c, 1), whole_number('k', k, 1)
    check_activation(activation)
    flat = (Dim('n', n), Dim('k', k))
    here = (var('n'), var('k'))
    after = ['bias'] * bool(bias) + ([activation] if activation else [])
    inner = [f'Acc{position}' for position in range(len(after))]
    stops = [*inner, 'Out']
    stages = [
        Stage(
            'fully_connected',
            (*flat, Dim('c', c, 'reduction')),
            Access(stops[0], here),
            (Access('In', (var('n'), var('c'))), Access('Ker', (var('k'), var('c')))),
            call('mul', read(0), read(1)),
            'sum',
        )
    ]
    for source, out, name in zip(stops, stops[1:], after, strict=False):
        others = (Access('Bias', (var('k'),)),) if name == 'bias' else ()
        expr = call('add', read(0), read(1)) if others else ACTIVATIONS[name]
        stages.append(pointwise(name, flat, out, source, expr, *others))
    tensors = (
        Tensor('In', ('n', 'c'), (n, c)),
        Tensor('Ker', ('k', 'c'), (k, c), 'constant'),
        *([Tensor('Bias', ('k',), (k,), 'constant')] if bias else []),
        *(Tensor(name, ('n', 'k'), (n, k), 'inner') for name in inner),
        Tensor('Out', ('n', 'k'), (n, k), 'output'),
    )
    label = f'fc-n{n}c{c}k{k}' + ''.join(f'+{name}' for name in after)
    return Group(label, tensors, tuple(stages), tuple((name, 'register') for name in inner))
