"""Parallel convolutions as one: fewer tasks, the same results, and only where the cost says so."""

from __future__ import annotations

import graphs
import pytest

from tilewright.graph.combine import combine
from tilewright.graph.concat import concat, copy_of


def fewer(group) -> float:
    """A cost by which the number of kernels decides; copies are free."""
    return float(group.main.is_product_sum)


def parallel(first='Relu', second='Relu', outputs='y', bias=True, strides=(1, 1)):
    nodes = [
        graphs.node('Conv', 'x w0 b0' if bias else 'x w0', 'c0'),
        graphs.node(first, 'c0', 'r0'),
        graphs.node('Conv', 'x w1', 'c1', strides=strides),
        graphs.node(second, 'c1', 'r1'),
        graphs.node('Neg', 'r0', 'n0'),
        graphs.node('Concat', 'n0 r1', 'y', axis=1),
    ]
    return graphs.graph(
        {'x': (1, 3, 4, 4)}, outputs, nodes, w0=graphs.floats(4, 3, 1, 1),
        w1=graphs.floats(2, 3, 1, 1), b0=graphs.floats(4),
    )  # fmt: skip


def convolutions(graph) -> int:
    return sum(node.op == 'Conv' for node in graph.nodes)


@pytest.mark.parametrize('bias', [False, True])
def test_branches_with_the_same_window_become_one(bias):
    graph = parallel(bias=bias)
    made = combine(graph, fewer)
    assert [node.op for node in made.nodes] == ['Conv', 'Relu', 'Split', 'Neg', 'Concat']
    conv = made.nodes[0]
    assert made.constants[conv.inputs[1]].shape == (6, 3, 1, 1)
    assert not {'w0', 'w1'} & set(made.constants)
    graphs.assert_same(graph, made)


def test_slices_of_the_result_are_not_copied():
    program = concat(graphs.lowered(combine(parallel(), fewer)))
    # r0 is read where it is; r1 goes into the concatenation, which is a copy.
    assert sum(copy_of(task) is not None for task in program.tasks) == 1


def test_different_activations_stay_apart():
    graph = parallel(second='Tanh')
    assert combine(graph, fewer) is graph


def test_other_windows_stay_apart():
    nodes = [
        graphs.node('Conv', 'x w0', 'a'),
        graphs.node('Conv', 'x w1', 'b', pads=(1, 1, 1, 1)),
        graphs.node('Add', 'a b', 'y'),
    ]
    graph = graphs.graph({'x': (1, 3, 4, 4)}, 'y', nodes, w0=graphs.floats(2, 3, 1, 1),
                         w1=graphs.floats(2, 3, 3, 3))  # fmt: skip
    assert combine(graph, fewer) is graph


def test_results_of_the_network_stay():
    graph = parallel(outputs='r0 y')
    assert convolutions(combine(graph, fewer)) == 2
    graphs.assert_same(graph, combine(graph, fewer))


def test_three_branches_of_an_inception_block():
    graph = graphs.branches()
    made = combine(graph, fewer)
    assert (convolutions(graph), convolutions(made)) == (4, 3)
    graphs.assert_same(graph, made)


def test_nothing_is_joined_where_copies_cost_more():
    graph = parallel()

    def dear(group) -> float:
        return 1.0 if group.main.is_product_sum else 10.0

    assert combine(graph, dear) is graph
    assert combine(graph, lambda group: 0.0) is graph
