"""Layouts over a whole program: blocked where it costs less, the same results, plain borders."""

from __future__ import annotations

import graphs
import numpy as np
import pytest

from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import fuse
from tilewright.graph.layout import assign_layouts, from_blocks
from tilewright.graph.program import Program
from tilewright.ops.group import Group


def chain() -> Program:
    """conv -> conv -> softmax over channels, which cannot be blocked -> conv; and a residual."""
    nodes = [
        graphs.node('Conv', 'x w0', 'a', pads=(1, 1, 1, 1)),
        graphs.node('Relu', 'a', 'r'),
        graphs.node('Conv', 'r w1', 'b'),
        graphs.node('Add', 'b r', 's'),
        graphs.node('Softmax', 's', 'p', axis=1),
        graphs.node('Conv', 'p w1', 'c'),
        graphs.node('Add', 'c s', 'y'),
    ]
    made = graphs.graph(
        {'x': (1, 3, 5, 6)}, 'y', nodes, w0=graphs.floats(8, 3, 3, 3), w1=graphs.floats(8, 8, 1, 1)
    )
    return fuse(graphs.lowered(made), lambda _: 0.0)


def blocks(group: Group) -> int:
    return sum(len(t.shape) == 5 for t in group.tensors)


def fond(group: Group) -> float:
    """A machine on which blocks are better: every blocked tensor saves something."""
    return 10.0 - blocks(group)


def same(before: Program, after: Program) -> None:
    inputs = graphs.inputs_of(before)
    want, got = evaluate(before, inputs), evaluate(after, inputs)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


def shapes(program: Program) -> set[int]:
    return {len(program.values[task.result].shape) for task in program.tasks}


def test_nothing_changes_where_nothing_is_saved():
    program = chain()
    assert assign_layouts(program, lambda _: 1.0) is program


@pytest.mark.parametrize('block', [2, 4, 8])
def test_blocked_inside_plain_at_the_border(block):
    program = chain()
    after = assign_layouts(program, fond, block)
    assert shapes(program) == {4}
    assert 5 in shapes(after)
    assert after.values['y'].shape == (1, 8, 5, 6)
    assert after.inputs == program.inputs
    same(program, after)
    results = graphs.quick(after).run(graphs.inputs_of(after))
    want = evaluate(program, graphs.inputs_of(program))
    np.testing.assert_allclose(results['y'], want['y'], rtol=1e-4, atol=1e-4)


def test_a_dear_conversion_is_not_made():
    program = chain()
    dear = from_blocks((1, 8, 5, 6), 8).digest

    def cost(group: Group) -> float:
        return 100.0 if group.digest == dear else fond(group)

    after = assign_layouts(program, cost, 8)
    assert all(task.group.digest != dear for task in after.tasks)
    same(program, after)


def test_a_conversion_is_made_once_for_all_who_need_it():
    nodes = [
        graphs.node('Conv', 'x w', 'a'),
        graphs.node('Conv', 'a v', 'b'),
        graphs.node('Softmax', 'a', 'p', axis=1),
        graphs.node('LogSoftmax', 'a', 'q', axis=1),
    ]
    made = graphs.graph(
        {'x': (1, 8, 4, 4)}, 'b p q', nodes,
        w=graphs.floats(8, 8, 1, 1), v=graphs.floats(8, 8, 1, 1, seed=1),
    )  # fmt: skip
    program = graphs.lowered(made)
    after = assign_layouts(program, lambda g: 100.0 - 60.0 * blocks(g) if g.main.combiner else 1.0)
    copies = [t for t in after.tasks if t.result.endswith('/plain')]
    assert len(copies) <= 1
    same(program, after)


def test_channels_that_blocks_do_not_divide_stay():
    nodes = [graphs.node('Conv', 'x w', 'a'), graphs.node('Conv', 'a v', 'y')]
    made = graphs.graph(
        {'x': (1, 4, 4, 4)}, 'y', nodes, w=graphs.floats(6, 4, 1, 1), v=graphs.floats(4, 6, 1, 1)
    )
    program = graphs.lowered(made)
    assert assign_layouts(program, fond, 8) is program
    same(program, assign_layouts(program, fond, 2))
