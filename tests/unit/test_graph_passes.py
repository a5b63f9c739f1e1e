"""Passes over graphs: what they remove, and that results stay what they were."""

from __future__ import annotations

import numpy as np
from onnx_graphs import f32, graph, node, run

from tilewright.graph.dead import drop_dead
from tilewright.graph.fold import fold
from tilewright.graph.graph import Graph
from tilewright.graph.simplify import simplify


def ops(made: Graph) -> list[str]:
    return [n.op for n in made.nodes]


def same(before: Graph, after: Graph, **inputs: np.ndarray) -> None:
    want, found = run(before, **inputs), run(after, **inputs)
    assert list(want) == list(found)
    for name in want:
        np.testing.assert_array_equal(found[name], want[name])


def test_dead_nodes_and_constants_go() -> None:
    made = graph([node('Exp', 'x', 'a'), node('Add', 'a w', 'b'), node('Relu', 'x')], w=f32(4))
    kept = drop_dead(made)
    assert ops(kept) == ['Relu']
    assert not kept.constants
    assert kept.inputs == made.inputs


def test_what_is_constant_is_folded() -> None:
    made = graph([
        node('Transpose', 'w', 't', perm=(1, 0)), node('Shape', 'x', 's'),
        node('Slice', 's zero one', 'n'), node('Concat', 'n minus', 'to', axis=0),
        node('Reshape', 'x to', 'r'), node('MatMul', 'r t'),
    ], w=f32(5, 12), zero=[0], one=[1], minus=[-1])  # fmt: skip
    folded = fold(made)
    assert ops(folded) == ['Reshape', 'MatMul']
    assert folded.constants['to'].tolist() == [2, -1]
    assert folded.constants['t'].shape == (12, 5)
    same(made, folded, x=f32(2, 3, 4))


def test_a_graph_that_is_constant_altogether() -> None:
    made = graph([node('Neg', 'w', 'a'), node('Abs', 'a')], w=f32(3))
    folded = fold(made)
    assert ops(folded) == []
    same(made, folded, x=f32(2, 3, 4))


def test_nodes_that_change_nothing_go() -> None:
    made = graph([
        node('Identity', 'x', 'a'), node('Dropout', 'a', 'b'), node('Cast', 'b', 'c', to=1),
        node('Transpose', 'c', 'd', perm=(0, 1, 2)), node('Reshape', 'd same', 'e'),
        node('Pad', 'e none', 'f'), node('Slice', 'f first last', 'g'), node('Relu', 'g'),
        node('Identity', 'y', 'z'),
    ], outputs=('z', 'a'), same=[2, 3, 4], none=[0] * 6, first=[0], last=[9])  # fmt: skip
    simple = simplify(made)
    assert ops(simple) == ['Relu']
    assert simple.outputs == (('z', 'y'), ('a', 'x'))
    assert not simple.constants
    same(made, simple, x=f32(2, 3, 4))


def test_backwards_is_not_nothing() -> None:
    made = graph([node('Slice', 'x first last axes step')],
                 first=[-1], last=[-9], axes=[0], step=[-1])  # fmt: skip
    assert ops(simplify(made)) == ['Slice']
    x = f32(2, 3, 4)
    np.testing.assert_array_equal(run(made, x=x)['y'], x[::-1])


def test_transpositions_are_joined() -> None:
    made = graph([
        node('Transpose', 'x', 'a', perm=(1, 2, 0)), node('Transpose', 'a', 'b', perm=(1, 2, 0)),
        node('Transpose', 'b', 'c', perm=(1, 2, 0)), node('Transpose', 'a', 'd'), node('Neg', 'c'),
    ], outputs=('y', 'd'))  # fmt: skip
    simple = simplify(made)
    assert ops(simple) == ['Transpose', 'Neg']
    assert simple.nodes[0].attributes['perm'] == (0, 2, 1)
    same(made, simple, x=f32(2, 3, 4))


def test_reshapes_are_joined() -> None:
    made = graph([
        node('Flatten', 'x', 'a'), node('Unsqueeze', 'a axes', 'b'), node('Squeeze', 'b axes', 'c'),
        node('Reshape', 'c to', 'd'), node('Neg', 'd'), node('Reshape', 'a back', 'e'),
    ], outputs=('y', 'e'), axes=[1], to=[4, 6], back=[2, 3, 4])  # fmt: skip
    simple = simplify(made)
    assert ops(simple) == ['Reshape', 'Neg']
    assert simple.nodes[0].inputs[0] == 'x'
    assert dict(simple.outputs)['e'] == 'x'
    same(made, simple, x=f32(2, 3, 4))


def test_values_that_are_read_twice_keep_their_reader() -> None:
    made = graph([
        node('Reshape', 'x to', 'a'), node('Reshape', 'a back', 'b'), node('Exp', 'a', 'c'),
        node('Add', 'b c'),
    ], to=[4, 6], back=[24, 1])  # fmt: skip
    made = graph([*made.nodes[:3], node('Flatten', 'c', 'd', axis=0), node('MatMul', 'd b')],
                 **made.constants)  # fmt: skip
    simple = simplify(made)
    assert ops(simple) == ['Reshape', 'Reshape', 'Exp', 'Flatten', 'MatMul']
    assert [n.inputs[0] for n in simple.nodes[:2]] == ['x', 'x']
    same(made, simple, x=f32(2, 3, 4))
