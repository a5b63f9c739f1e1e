"""Means and 1x1 convolutions change places: the same results, and only where the cost says so."""

from __future__ import annotations

import graphs
import pytest

from tilewright.graph.pool_order import order_pools


def products(group) -> float:
    """A cost by which the number of products decides."""
    return float(group.main.flops) if group.main.is_product_sum else 0.0


def means(group) -> float:
    """A cost by which the number of elements that are averaged decides."""
    return 0.0 if group.main.is_product_sum else float(group.main.flops)


def made_of(graph) -> list[str]:
    return [node.op for node in graph.nodes]


def transition(mean='AveragePool', bias=True, outputs='y', conv=None, **attributes):
    if mean == 'AveragePool' and 'kernel_shape' not in attributes:
        attributes |= {'kernel_shape': (2, 2), 'strides': (2, 2)}
    nodes = [
        graphs.node('Relu', 'x', 'r'),
        graphs.node('Conv', 'r w b' if bias else 'r w', 'c', **(conv or {})),
        graphs.node(mean, 'c', 'm', **attributes),
        graphs.node('Neg', 'm', 'y'),
    ]
    weights = graphs.floats(4, 6, 1, 1) if not conv else graphs.floats(4, 6 // conv['group'], 1, 1)
    return graphs.graph({'x': (2, 6, 6, 8)}, outputs, nodes, w=weights, b=graphs.floats(4))


def pooled(bias=True, **attributes):
    nodes = [
        graphs.node('AveragePool', 'x', 'm', kernel_shape=(3, 3), **attributes),
        graphs.node('Conv', 'm w b' if bias else 'm w', 'y'),
    ]
    return graphs.graph(
        {'x': (2, 6, 6, 8)}, 'y', nodes, w=graphs.floats(4, 6, 1, 1), b=graphs.floats(4)
    )


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('mean', ['AveragePool', 'GlobalAveragePool'])
def test_a_mean_comes_before_the_products(mean, bias):
    graph = transition(mean, bias)
    made = order_pools(graph, products)
    assert made_of(made) == ['Relu', mean, 'Conv', 'Neg']
    graphs.assert_same(graph, made)


def test_products_of_groups_move_too():
    graph = transition(conv={'group': 2})
    made = order_pools(graph, products)
    assert made_of(made) == ['Relu', 'AveragePool', 'Conv', 'Neg']
    graphs.assert_same(graph, made)


@pytest.mark.parametrize('bias', [False, True])
@pytest.mark.parametrize('counted', [0, 1])
def test_fewer_channels_are_averaged(bias, counted):
    graph = pooled(bias, pads=(1, 1, 1, 1), count_include_pad=counted)
    made = order_pools(graph, means)
    assert made_of(made) == ['Conv', 'AveragePool', 'Add'][: 2 + bias]
    graphs.assert_same(graph, made)


def test_a_bias_stays_where_every_window_is_whole():
    graph = pooled()
    made = order_pools(graph, means)
    assert made_of(made) == ['Conv', 'AveragePool']
    graphs.assert_same(graph, made)


@pytest.mark.parametrize(
    'graph',
    [
        transition(pads=(1, 1, 1, 1), kernel_shape=(3, 3)),  # a bias beside padding
        transition(ceil_mode=1, kernel_shape=(3, 3), strides=(2, 2)),
        transition(outputs='y c'),  # somebody sees what lies between
        transition('MaxPool', kernel_shape=(2, 2)),
        transition(conv={'group': 1, 'strides': (2, 2)}),
        transition(conv={'group': 1, 'pads': (1, 1, 1, 1)}),
    ],
)
def test_what_is_not_alike_stays(graph):
    assert order_pools(graph, products) is graph


def test_the_cost_decides():
    assert made_of(order_pools(transition(), means)) == ['Relu', 'Conv', 'AveragePool', 'Neg']
    assert made_of(order_pools(pooled(), products)) == ['AveragePool', 'Conv']


def test_names_that_are_taken():
    nodes = [
        graphs.node('AveragePool', 'x', 'm', kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        graphs.node('Conv', 'm w b', 'y'),
        graphs.node('Neg', 'x', 'y/between'),
        graphs.node('Neg', 'y/between', 'y/bias'),
    ]
    graph = graphs.graph(
        {'x': (1, 6, 6, 8)}, 'y y/bias', nodes, w=graphs.floats(4, 6, 1, 1), b=graphs.floats(4)
    )
    made = order_pools(graph, means)
    assert made_of(made) == ['Conv', 'AveragePool', 'Add', 'Neg', 'Neg']
    graphs.assert_same(graph, made)
