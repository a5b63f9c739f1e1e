"""Nodes that change nothing, or undo each other.

x -> Identity -> Conv                     x -> Conv
x -> Transpose(p) -> Transpose(q)         x -> Transpose(p of q), or x
x -> Squeeze -> Reshape -> Flatten        x -> Reshape
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.graph.dead import drop_dead
from tilewright.graph.graph import Graph, Node
from tilewright.graph.lower import types
from tilewright.graph.lowering.result import Result

# Operators that are the identity where their result has the type of their input.
RESHAPES = ('Reshape', 'Flatten', 'Squeeze', 'Unsqueeze')
SAME_ELEMENTS = ('Identity', 'Dropout', 'Cast', 'CastLike', 'Expand', 'Pad', 'Slice', *RESHAPES)


def simplify(graph: Graph) -> Graph:
    """[Graph] -> [Graph]"""
    rewriting = _Rewriting(graph, types(graph))
    nodes = [made for node in graph.nodes if (made := rewriting.rewrite(node)) is not None]
    outputs = tuple((name, rewriting.source(value)) for name, value in graph.outputs)
    constants = {**graph.constants, **rewriting.shapes}
    return drop_dead(replace(graph, nodes=tuple(nodes), constants=constants, outputs=outputs))


@dataclass
class _Rewriting:
    """What became of the values so far."""

    graph: Graph
    types: Mapping[str, Result]
    same: dict[str, str] = field(default_factory=dict)
    made: dict[str, Node] = field(default_factory=dict)
    shapes: dict[str, np.ndarray] = field(default_factory=dict)

    def source(self, value: str) -> str:
        """The value that this one is now."""
        return self.same.get(value, value)

    def rewrite(self, node: Node) -> Node | None:
        """The node as it reads now; None where its output is a value that exists already."""
        node = replace(node, inputs=tuple(map(self.source, node.inputs)))
        before = self.made.get(node.inputs[0]) if node.inputs else None
        if before is not None and node.op == before.op == 'Transpose':
            node = self._transposed(before, node)
        elif before is not None and node.op in RESHAPES and before.op in RESHAPES:
            node = self._reshaped(before, node)
        if self._changes_nothing(node):
            self.same[node.outputs[0]] = node.inputs[0]
            return None
        self.made.update(dict.fromkeys(filter(None, node.outputs), node))
        return node

    def _changes_nothing(self, node: Node) -> bool:
        if not node.inputs or len([name for name in node.outputs if name]) != 1:
            return False
        given, result = self.types[node.inputs[0]], self.types[node.outputs[0]]
        if (given.shape, given.dtype) != (result.shape, result.dtype):
            return False
        if node.op == 'Transpose':
            return self._order(node) == tuple(range(len(given.shape)))
        if node.op == 'Slice':
            # Backwards it keeps the shape and not the elements.
            steps = self.graph.constants.get(node.inputs[4]) if len(node.inputs) > 4 else None
            return len(node.inputs) <= 4 or (steps is not None and bool((steps > 0).all()))
        if node.op == 'Pad':
            pads = self.graph.constants.get(node.inputs[1])
            return pads is not None and not pads.any()
        return node.op in SAME_ELEMENTS

    def _order(self, node: Node) -> tuple[int, ...]:
        rank = len(self.types[node.inputs[0]].shape)
        order = node.attributes.get('perm', tuple(reversed(range(rank))))
        assert isinstance(order, tuple)
        return tuple(int(i) for i in order)

    def _transposed(self, first: Node, second: Node) -> Node:
        """Dimension i of the result is dimension p[q[i]] of the source."""
        p, q = self._order(first), self._order(second)
        order = tuple(p[i] for i in q)
        return replace(second, inputs=first.inputs[:1], attributes={'perm': order})

    def _reshaped(self, first: Node, second: Node) -> Node:
        """One Reshape of the source, to the shape of the result."""
        shape = self.types[second.outputs[0]].shape
        name = f'{second.outputs[0]}/shape'
        while name in self.types or name in self.shapes:
            name += "'"
        self.shapes[name] = np.array(shape, np.int64)
        inputs = (first.inputs[0], name)
        return Node('Reshape', second.name, inputs, second.outputs, {'allowzero': 1})
