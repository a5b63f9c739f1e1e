"""Batch normalisation and its like folded into weights: nodes are gone, the results stay."""

from __future__ import annotations

import graphs
import numpy as np
import pytest

from tilewright.graph.batch_norm import fold_batch_norm
from tilewright.graph.evaluate import evaluate

CHANNELS = 6
STATISTICS = {
    's': graphs.floats(CHANNELS, seed=3),
    'm': graphs.floats(CHANNELS, seed=4),
    'u': graphs.floats(CHANNELS, seed=5),
    'v': np.abs(graphs.floats(CHANNELS, seed=6)) + 0.5,
}
NORM = graphs.node('BatchNormalization', 'c s m u v', 'y', epsilon=1e-3)


def check(made, folded: bool = True) -> None:
    after = fold_batch_norm(made)
    assert any(n.op == 'BatchNormalization' for n in after.nodes) != folded
    one, other = graphs.lowered(made), graphs.lowered(after)
    inputs = graphs.inputs_of(one)
    want, got = evaluate(one, inputs), evaluate(other, inputs)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('groups', [1, 2])
@pytest.mark.parametrize('op', ['Conv', 'ConvTranspose'])
def test_convolutions(op, groups, bias):
    shape = (CHANNELS, 4 // groups, 3, 3) if op == 'Conv' else (4, CHANNELS // groups, 3, 3)
    inputs = 'x w b' if bias else 'x w'
    check(graphs.graph(
        {'x': (1, 4, 5, 5)}, 'y', [graphs.node(op, inputs, 'c', group=groups), NORM],
        w=graphs.floats(*shape), b=graphs.floats(CHANNELS), **STATISTICS,
    ))  # fmt: skip


@pytest.mark.parametrize('turned', [0, 1])
@pytest.mark.parametrize('bias', ['', 'b', 'one'])
def test_matrix_products(turned, bias):
    shape = (CHANNELS, 4) if turned else (4, CHANNELS)
    gemm = graphs.node('Gemm', f'x w {bias}'.strip(), 'c', transB=turned, alpha=0.5, beta=2.0)
    check(graphs.graph(
        {'x': (3, 4)}, 'y', [gemm, NORM], w=graphs.floats(*shape), b=graphs.floats(1, CHANNELS),
        one=graphs.floats(1), **STATISTICS,
    ))  # fmt: skip


@pytest.mark.parametrize('op', ['Conv', 'ConvTranspose', 'Gemm'])
def test_sums_and_factors_of_channels(op):
    """Bias, factor and sum as nodes of their own, as PaddleOCR's files have them."""
    ones = () if op == 'Gemm' else (1, 1)
    shape = {'Conv': (CHANNELS, 4, 3, 3), 'ConvTranspose': (4, CHANNELS, 3, 3)}.get(op, (4, 6))
    nodes = [
        graphs.node(op, 'x w', 'c'), graphs.node('Add', 'c b', 'd'),
        graphs.node('Mul', 's d', 'e'), graphs.node('Sub', 'b e', 'f'),
        graphs.node('Div', 'f t', 'g'), graphs.node('Relu', 'g', 'y'),
    ]  # fmt: skip
    made = graphs.graph(
        {'x': (3, 4, 5, 5) if ones else (3, 4)}, 'y', nodes, w=graphs.floats(*shape),
        b=graphs.floats(1, CHANNELS, *ones), s=graphs.floats(1, seed=2),
        t=2 + np.abs(graphs.floats(CHANNELS, *ones, seed=3)),
    )  # fmt: skip
    check(made)
    assert [n.op for n in fold_batch_norm(made).nodes] == [op, 'Relu']


@pytest.mark.parametrize('sizes', [(1, 1, 5, 5), (2, 1, 1, 1, 1), (3, 1, 1, 1)])
def test_sums_over_anything_but_channels_stay(sizes):
    nodes = [graphs.node('Conv', 'x w', 'c'), graphs.node('Add', 'c b', 'y')]
    made = graphs.graph({'x': (3, 4, 5, 5)}, 'y', nodes, w=graphs.floats(CHANNELS, 4, 1, 1),
                        b=graphs.floats(*sizes))  # fmt: skip
    assert [n.op for n in fold_batch_norm(made).nodes] == ['Conv', 'Add']


def test_what_was_folded_is_not_kept():
    made = fold_batch_norm(graphs.convolutions())
    assert set(made.constants) == {'w0', 'b0', 'b/weights', 'b/bias'}


def test_what_others_read_is_not_folded():
    nodes = [
        graphs.node('Conv', 'x w', 'c'),
        NORM,
        graphs.node('Add', 'c y', 'z'),
    ]
    check(graphs.graph({'x': (1, 4, 3, 3)}, 'z', nodes, w=graphs.floats(CHANNELS, 4, 1, 1),
                       **STATISTICS), folded=False)  # fmt: skip


def test_weights_that_are_not_known_are_not_folded():
    nodes = [graphs.node('Conv', 'x w', 'c'), NORM]
    check(graphs.graph({'x': (1, 4, 3, 3), 'w': (CHANNELS, 4, 1, 1)}, 'y', nodes, **STATISTICS),
          folded=False)  # fmt: skip


def test_a_normalisation_behind_anything_else_stays():
    nodes = [graphs.node('Relu', 'x', 'c'), NORM]
    check(graphs.graph({'x': (1, CHANNELS, 3, 3)}, 'y', nodes, **STATISTICS), folded=False)
