"""Concatenations and slices: fewer copies, the same results."""

from __future__ import annotations

import graphs
import numpy as np
import pytest

from tilewright.graph.concat import Box, concat, copy_of
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import fuse


def same(before, after) -> None:
    inputs = graphs.inputs_of(before)
    want, got = evaluate(before, inputs), evaluate(after, inputs)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def copies(program) -> int:
    return sum(copy_of(task) is not None for task in program.tasks)


@pytest.mark.parametrize(
    ('start', 'sizes', 'shape', 'run', 'element'),
    [
        ((0, 2, 0, 0), (1, 3, 4, 4), (1, 8, 4, 4), True, 32),
        ((0, 2, 0, 0), (2, 3, 4, 4), (2, 8, 4, 4), False, 32),
        ((1, 0), (1, 5), (3, 5), True, 5),
        ((0, 1), (1, 4), (1, 5), True, 1),
        ((0, 1), (3, 4), (3, 5), False, 1),
        ((0, 3), (3, 1), (3, 5), False, 3),
        ((2, 3), (1, 1), (3, 5), True, 13),
    ],
)
def test_boxes_that_are_one_run_of_memory(start, sizes, shape, run, element):
    box = Box(start, sizes, shape)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    inside = numbers[tuple(slice(a, a + n) for a, n in zip(start, sizes, strict=True))].ravel()
    assert inside[0] == box.element == element
    assert bool(np.all(np.diff(inside) == 1)) == box.is_run == run


def test_branches_write_into_the_result():
    program = graphs.lowered(graphs.branches())
    made = concat(program)
    assert (copies(program), copies(made)) == (3, 0)
    assert made.inside == {'r0': ('y', 0), 'r2': ('y', 100), 'p': ('y', 250)}
    same(program, made)


def test_branches_of_a_batch_write_their_slices():
    program = fuse(graphs.lowered(graphs.branches(batch=2)), lambda _: 0.0)
    made = concat(program)
    assert (copies(program), copies(made)) == (3, 0)
    assert not made.inside
    parts = [task for task in made.tasks if task.result == 'y']
    assert len(parts) == 3
    assert all(task.writes_part for task in parts)
    same(program, made)


def test_a_concatenation_that_begins_another_lies_in_it():
    program = graphs.lowered(graphs.dense_block())
    made = concat(program)
    assert copies(made) == 0
    roots = {made.place(f'j{i}') for i in range(1, 4)}
    assert roots == {('all', 0)}
    same(program, made)


def test_nested_concatenations():
    nodes = [
        graphs.node('Neg', 'x', 'a'),
        graphs.node('Abs', 'x', 'b'),
        graphs.node('Concat', 'a b', 'c', axis=1),
        graphs.node('Relu', 'c', 'd'),
        graphs.node('Concat', 'c d', 'e', axis=1),
        graphs.node('Neg', 'e', 'y'),
    ]
    program = graphs.lowered(graphs.graph({'x': (1, 2, 3)}, 'y', nodes))
    made = concat(program)
    assert copies(made) == 0
    assert made.place('b') == ('e', 6)
    same(program, made)


def test_slices_are_read_where_they_are():
    nodes = [
        graphs.node('Relu', 'x', 'a'),
        graphs.node('Split', 'a', 'b c', axis=1, num_outputs=2),
        graphs.node('Neg', 'b', 'd'),
        graphs.node('Add', 'c d', 'y'),
    ]
    program = graphs.lowered(graphs.graph({'x': (1, 6, 2, 2)}, 'y', nodes))
    made = concat(program)
    assert (copies(program), copies(made)) == (2, 0)
    assert made.inside == {'b': ('a', 0), 'c': ('a', 12)}
    same(program, made)


@pytest.mark.parametrize('which', ['input', 'output', 'twice', 'constant'])
def test_what_cannot_lie_inside_is_copied(which):
    parts = {'input': 'x a', 'output': 'a b', 'twice': 'a a', 'constant': 'k a'}[which]
    nodes = [
        graphs.node('Neg', 'x', 'a'),
        graphs.node('Abs', 'x', 'b'),
        graphs.node('Concat', parts, 'c', axis=1),
        graphs.node('Neg', 'c', 'y'),
    ]
    outputs = 'a y' if which == 'output' else 'y'
    program = graphs.lowered(
        graphs.graph({'x': (1, 2, 3)}, outputs, nodes, k=graphs.floats(1, 2, 3))
    )
    made = concat(program)
    assert (copies(program), copies(made)) == (2, 1)
    same(program, made)


def test_parts_of_one_result_in_another_order_are_copied():
    """a b and b a cannot both be runs of the same memory."""
    nodes = [
        graphs.node('Neg', 'x', 'a'),
        graphs.node('Abs', 'x', 'b'),
        graphs.node('Concat', 'a b', 'c', axis=1),
        graphs.node('Concat', 'b a', 'd', axis=1),
        graphs.node('Add', 'c d', 'y'),
    ]
    program = graphs.lowered(graphs.graph({'x': (1, 2, 3)}, 'y', nodes))
    made = concat(program)
    assert copies(made) == 2
    same(program, made)


@pytest.mark.parametrize('indices', [[2, 0, 3, 1], [2, 2, 2, 1], [3, 2, 1, 0], [0, 1, 2, 3]])
@pytest.mark.parametrize('before', [True, False])
def test_a_permutation_is_not_a_box(indices, before):
    """As many positions as the axis has elements need not be all of them in their order."""
    gather = graphs.node('Gather', 'a i' if before else 'x i', 'y' if before else 'a', axis=1)
    relu = graphs.node('Relu', 'x' if before else 'a', 'a' if before else 'y')
    nodes = [relu, gather] if before else [gather, relu]
    program = graphs.lowered(graphs.graph({'x': (3, 4)}, 'y', nodes, i=np.array(indices)))
    for made in (concat(program), concat(fuse(program, lambda _: 0.0))):
        same(program, made)
