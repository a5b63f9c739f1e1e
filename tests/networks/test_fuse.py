"""Fusion: fewer tasks, the same results, and only where the cost says so."""

from __future__ import annotations

import graphs
import numpy as np
import pytest

from tilewright.graph.batch_norm import fold_batch_norm
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import MOST_STAGES, fuse


def free(_) -> float:
    return 0.0


def same(before, after) -> None:
    inputs = graphs.inputs_of(before)
    want, got = evaluate(before, inputs), evaluate(after, inputs)
    assert want.keys() == got.keys()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


def test_residual_and_activation_join_the_convolution_before_them():
    program = graphs.lowered(fold_batch_norm(graphs.convolutions()))
    fused = fuse(program, free)
    assert [task.name for task in program.tasks] == [
        'Conv_c0',
        'Relu_a',
        'Conv_c1',
        'Add_z',
        'Relu_y',
    ]
    assert [task.name for task in fused.tasks] == ['Conv_c0', 'Conv_c1']
    last = fused.tasks[-1]
    assert last.result == 'y'
    assert set(last.operands.values()) >= {'a', 'x'}
    assert last.origin == ('Conv_c1', 'Add_z', 'Relu_y')
    assert last.group.main.is_product_sum
    same(program, fused)


def test_nothing_is_joined_where_it_costs_more():
    program = graphs.lowered(graphs.convolutions())

    def dear(group) -> float:
        return float(len(group.stages) ** 2)

    assert fuse(program, dear).tasks == program.tasks


def test_what_others_read_stays():
    nodes = [
        graphs.node('Conv', 'x w', 'c'),
        graphs.node('Relu', 'c', 'r'),
        graphs.node('MaxPool', 'c', 'p', kernel_shape=(1, 1)),
        graphs.node('Add', 'p r', 'y'),
    ]
    program = graphs.lowered(
        graphs.graph({'x': (1, 2, 3, 3)}, 'y', nodes, w=graphs.floats(2, 2, 1, 1))
    )
    fused = fuse(program, free)
    assert next(task.result for task in fused.tasks) == 'c'
    same(program, fused)


@pytest.mark.parametrize('op', ['Sigmoid', 'Erf'])
def test_what_reads_a_value_twice_joins_it(op):
    """SiLU and GELU as exporters write them behind a convolution are one task."""
    nodes = [
        graphs.node('Conv', 'x w', 'c'),
        graphs.node(op, 'c', 's'),
        graphs.node('Mul', 'c s', 'y'),
    ]
    program = graphs.lowered(
        graphs.graph({'x': (1, 2, 3, 3)}, 'y', nodes, w=graphs.floats(2, 2, 1, 1))
    )
    fused = fuse(program, free)
    assert [task.result for task in fused.tasks] == ['y']
    assert set(fused.tasks[0].operands.values()) == {'x', 'w'}
    same(program, fused)


def test_results_of_the_network_stay():
    nodes = [graphs.node('Conv', 'x w', 'c'), graphs.node('Relu', 'c', 'y')]
    program = graphs.lowered(
        graphs.graph({'x': (1, 2, 3, 3)}, 'c y', nodes, w=graphs.floats(2, 2, 1, 1))
    )
    assert fuse(program, free).tasks == program.tasks


def test_the_later_of_two_producers_takes_the_sum():
    """Its other operand is there by then, so nothing has to live longer."""
    nodes = [
        graphs.node('Conv', 'x w', 'a'),
        graphs.node('Conv', 'x v', 'b'),
        graphs.node('Add', 'a b', 'y'),
    ]
    program = graphs.lowered(graphs.graph(
        {'x': (1, 2, 3, 3)}, 'y', nodes, w=graphs.floats(2, 2, 1, 1), v=graphs.floats(2, 2, 1, 1)
    ))  # fmt: skip
    fused = fuse(program, free)
    assert [task.result for task in fused.tasks] == ['a', 'y']
    assert fused.tasks[1].origin == ('Conv_b', 'Add_y')
    same(program, fused)


@pytest.mark.parametrize('op', ['Sigmoid', 'Tanh', 'HardSwish', 'LeakyRelu', 'Elu'])
def test_chains_of_element_wise_tasks_become_one(op):
    nodes = [
        graphs.node('Mul', 'x s', 'a'),
        graphs.node(op, 'a', 'b'),
        graphs.node('Mul', 'a b', 'c'),
        graphs.node('Add', 'c x', 'y'),
    ]
    program = graphs.lowered(
        graphs.graph({'x': (1, 2, 3, 3)}, 'y', nodes, s=graphs.floats(2, 1, 1))
    )
    fused = fuse(program, free)
    assert len(fused.tasks) < len(program.tasks)
    same(program, fused)


def test_element_wise_tasks_move_into_a_pooling_behind_them():
    nodes = [
        graphs.node('Neg', 'x', 'a'),
        graphs.node('MaxPool', 'a', 'y', kernel_shape=(2, 2), strides=(2, 2)),
    ]
    program = graphs.lowered(graphs.graph({'x': (1, 2, 4, 4)}, 'y', nodes))
    fused = fuse(program, free)
    assert len(fused.tasks) == 1
    same(program, fused)


def test_a_long_chain_is_cut():
    """Joining all of it would take time that grows with the square of its length."""
    words = ('Neg', 'Abs', 'Relu')
    nodes = [
        graphs.node(words[n % 3], f'v{n - 1}' if n else 'x', f'v{n}')
        for n in range(3 * MOST_STAGES)
    ]
    program = graphs.lowered(graphs.graph({'x': (4,)}, nodes[-1].outputs[0], nodes))
    fused = fuse(program, free)
    assert len(program.tasks) == 3 * MOST_STAGES
    assert [len(task.group.stages) for task in fused.tasks] == [MOST_STAGES] * 3
    same(program, fused)


def test_the_rough_cost_joins_residuals_of_any_size():
    """The residual is read, not copied like the image of the convolution."""
    from tilewright.machine.detect import describe_host
    from tilewright.machine.measure import nominal_machine
    from tilewright.ops.compose import append
    from tilewright.ops.convolution import conv2d
    from tilewright.ops.elementwise import elementwise
    from tilewright.targets.cpu.cost import CpuCost

    cost = CpuCost(nominal_machine(describe_host(), 'portable'), 1)
    for size in (4, 14, 56, 112):
        conv = conv2d(c=64, h=size, w=size, k=256, r=1, s=1, bias=True)
        add = elementwise('add', (1, 256, size, size), (1, 256, size, size))
        joined = append(conv, add, 'In0')
        assert joined is not None
        assert cost(joined.group) < cost(conv) + cost(add)
