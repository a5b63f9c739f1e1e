"""Quantised tensors with the sign that the machine multiplies: u8 as i8, or i8 as u8.

    QuantizeLinear(zero u8) -> x -> QLinearConv(.., zero u8, ..)     x of u8, zero point z
    QuantizeLinear(zero i8) -> x -> QLinearConv(.., zero i8, ..)     x of i8, zero point z - 128

Goes in: a graph with operators on integers (graph/integer.py), and what words of the machine hold
(`Isa.dots`). Comes out: one that computes the same. Numbers that are moved by 128 together with
their zero point stand for the same real numbers, and saturate at the same ones, so that kernels
read them in place where they had to be copied and moved. A tensor is moved where all nodes around
it name its zero point, or only move and compare elements and can be moved with it; inputs and
results of the graph stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.graph import Graph, Node, fresh_name

_BYTES = {'u8': np.dtype(np.uint8), 'i8': np.dtype(np.int8)}
# Operator -> (value, its zero point) among the inputs, and the zero point of its result.
_READS = {
    'DequantizeLinear': ((0, 2),),
    'QLinearConv': ((0, 2),),
    'QLinearMatMul': ((0, 2), (3, 5)),
    'com.microsoft::QLinearAdd': ((0, 2), (3, 5)),
    'ConvInteger': ((0, 2),),
    'MatMulInteger': ((0, 2), (1, 3)),
}
_WRITES = {
    'QuantizeLinear': 2, 'QLinearConv': 7, 'QLinearMatMul': 7, 'com.microsoft::QLinearAdd': 7,
}  # fmt: skip
# Operators whose result has elements of their inputs, and how many of these it has them of.
_MOVES = {
    'MaxPool': 1, 'Reshape': 1, 'Flatten': 1, 'Transpose': 1, 'Squeeze': 1, 'Unsqueeze': 1,
    'Slice': 1, 'Identity': 1, 'Clip': 3, 'Concat': None,
}  # fmt: skip


def with_sign(graph: Graph, words: str) -> Graph:
    """[Graph] -> [Graph]; `words` is what those of the machine hold."""
    if words not in _BYTES:
        return graph
    moved = _movable(graph, _BYTES['i8' if words == 'u8' else 'u8'])
    if not moved:
        return graph
    made = _Moving(graph, moved, _BYTES[words], set(graph.names), dict(graph.constants))
    nodes = tuple(made.node(node) for node in graph.nodes)
    return replace(graph, nodes=nodes, constants=made.constants)


def _movable(graph: Graph, dtype: np.dtype) -> set[str]:
    """The values of a dtype that may all be moved: the largest set of them."""
    found, inputs = set(), {value.name for value in graph.inputs}
    for node in graph.nodes:
        zero = _zero(graph, node, _WRITES.get(node.op))
        stored = zero is not None and zero.dtype == dtype
        if stored or (node.op in _MOVES and found & {*_elements(node)}):
            found |= {name for name in node.outputs if name}
    found -= {*inputs, *graph.constants, *(name for name in found if graph.is_output(name))}
    while True:
        kept = {v for v in found if _can_move(graph, v, found, dtype)}
        if kept == found:
            return found
        found = kept


def _zero(graph: Graph, node: Node, place: int | None) -> np.ndarray | None:
    """The zero point among a node's inputs, where it is known."""
    if place is None or place >= len(node.inputs):
        return None
    return graph.constants.get(node.inputs[place])


def _elements(node: Node) -> tuple[str, ...]:
    """The inputs that a result has elements of."""
    return tuple(name for name in node.inputs[: _MOVES[node.op]] if name)


def _can_move(graph: Graph, value: str, found: set[str], dtype: np.dtype) -> bool:
    writer = graph.producers[value]
    if writer.op in _MOVES and not _moves_along(graph, writer, found, dtype):
        return False
    for node in graph.readers.get(value, ()):
        if node.op in _MOVES:
            if value not in _elements(node) or not _moves_along(graph, node, found, dtype):
                return False
            continue
        places = [(at, zero) for at, zero in _READS.get(node.op, ()) if at < len(node.inputs)]
        named = [zero for at, zero in places if node.inputs[at] == value]
        zeros = [_zero(graph, node, zero) for zero in named]
        if len(named) != node.inputs.count(value) or any(z is None for z in zeros):
            return False
    return True


def _moves_along(graph: Graph, node: Node, found: set[str], dtype: np.dtype) -> bool:
    """Whether all that a node takes elements of, and its result, are moved or constant."""
    if len([name for name in node.outputs if name]) != 1 or node.outputs[0] not in found:
        return False
    known = (graph.constants.get(name) for name in _elements(node) if name not in found)
    return all(array is not None and array.dtype == dtype for array in known)


@dataclass
class _Moving:
    """Nodes with zero points, and constants that stand beside elements, moved by 128."""

    graph: Graph
    moved: set[str]
    dtype: np.dtype
    taken: set[str]
    constants: dict[str, np.ndarray]

    def node(self, node: Node) -> Node:
        inputs = list(node.inputs)
        places = [zero for at, zero in _READS.get(node.op, ()) if at < len(inputs)
                  and inputs[at] in self.moved]  # fmt: skip
        if node.outputs[0] in self.moved:
            if node.op in _WRITES:
                places.append(_WRITES[node.op])
            else:
                places += [i for i, name in enumerate(inputs[: _MOVES[node.op]])
                           if name in self.graph.constants]  # fmt: skip
        for place in dict.fromkeys(places):
            inputs[place] = self._constant(inputs[place])
        return replace(node, inputs=tuple(inputs)) if places else node

    def _constant(self, name: str) -> str:
        made = fresh_name(f'{name}/{self.dtype.name}', self.taken)
        raw = np.ascontiguousarray(self.graph.constants[name]).view(np.uint8)
        self.constants[made] = (raw ^ np.uint8(128)).view(self.dtype)
        return made
