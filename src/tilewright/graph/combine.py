"""Parallel convolutions on one input as one: Inception's 1x1 branches.

    conv(x, W1) -> relu -> a;  conv(x, W2) -> relu -> b
    conv(x, [W1 W2]) -> relu -> split -> a, b

Goes in: a graph and `cost`, which says how many seconds a group takes. Comes out: a graph in which
convolutions that read the same value through the same windows are one, with the activation that
follows all of them, where that costs less: the image is read once, and few channels of each fill
whole registers together. The slices are places in the result (graph/concat.py), but a branch that
goes straight into a concatenation has to be copied there, which is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.lower import walk
from tilewright.graph.lowering.result import Computed, Known, Named, Result, View
from tilewright.ops.elementwise import copy
from tilewright.ops.group import Group

Cost = Callable[[Group], float]
# Functions of one value, given by the operator, its attributes and its other inputs.
_ACTIVATIONS = ('Relu', 'Clip', 'LeakyRelu', 'Sigmoid', 'Tanh', 'HardSwish', 'Elu')


@dataclass(frozen=True, slots=True)
class _Branch:
    """A convolution, the activation behind it if there is one, and the value that others read."""

    conv: Node
    activation: Node | None
    value: str


def combine(graph: Graph, cost: Cost) -> Graph:
    """[Graph] -> [Graph]"""
    found: dict[tuple, list[_Branch]] = {}
    for node in graph.nodes:
        if node.op == 'Conv' and _is_plain(graph, node):
            branch = _branch(graph, node)
            found.setdefault(_window(graph, branch), []).append(branch)
    wanted = [branches for branches in found.values() if len(branches) > 1]
    if not wanted:
        return graph
    lowered = Lowered(graph)
    for branches in wanted:
        if _pays(graph, branches, lowered, cost):
            graph = _combined(graph, branches)
    return graph


class Lowered:
    """The type of every value of a graph, and the group of those that one group computes."""

    def __init__(self, graph: Graph) -> None:
        self.groups: dict[str, Group] = {}
        self.types = walk(graph, self._hand)

    def _hand(self, _: Node, output: str, result: Result) -> Result:
        if isinstance(result, Known):
            return result
        made = result.of if isinstance(result, View) else result
        if isinstance(made, Computed) and len(made.parts) == 1:
            self.groups[output] = made.parts[0].group
        return Named(Value(output, result.shape, result.dtype))


def _is_plain(graph: Graph, node: Node) -> bool:
    known = all(name in graph.constants for name in node.inputs[1:] if name)
    return known and node.attributes.get('group', 1) == 1 and not graph.is_output(node.outputs[0])


def _branch(graph: Graph, conv: Node) -> _Branch:
    value = conv.outputs[0]
    readers = graph.readers.get(value, ())
    if len(readers) == 1:
        reader = readers[0]
        known = all(name in graph.constants for name in reader.inputs[1:] if name)
        seen = graph.is_output(reader.outputs[0])
        if reader.op in _ACTIVATIONS and known and reader.inputs[0] == value and not seen:
            return _Branch(conv, reader, reader.outputs[0])
    return _Branch(conv, None, value)


def _window(graph: Graph, branch: _Branch) -> tuple:
    """What must be the same for two convolutions to be one."""
    conv, then = branch.conv, branch.activation
    weights = graph.constants[conv.inputs[1]]
    attributes = repr(sorted((k, v) for k, v in conv.attributes.items() if not _is_default(k, v)))
    follows = (then.op, repr(sorted(then.attributes.items())), then.inputs[1:]) if then else None
    return conv.inputs[0], weights.shape[1:], str(weights.dtype), attributes, follows


def _is_default(name: str, value: object) -> bool:
    """Whether an attribute of a convolution says nothing that its weights and defaults do not."""
    usual = {'strides': {1}, 'dilations': {1}, 'pads': {0}}.get(name)
    if usual is not None:
        return isinstance(value, tuple) and set(value) == usual
    return name in ('kernel_shape', 'group') or (name, value) == ('auto_pad', 'NOTSET')


def _joined(graph: Graph, branches: Sequence[_Branch]) -> tuple[Node, dict[str, np.ndarray]]:
    """The one convolution, and its constants."""
    weights = [graph.constants[branch.conv.inputs[1]] for branch in branches]
    name = '+'.join(branch.conv.name for branch in branches)
    while any(value.startswith(f'{name}/') for value in graph.names):
        name += "'"
    constants = {f'{name}/weights': np.concatenate(weights)}
    biases = [branch.conv.inputs[2:3] for branch in branches]
    if any(any(bias) for bias in biases):
        constants[f'{name}/bias'] = np.concatenate(
            [
                graph.constants[bias[0]] if any(bias) else np.zeros(len(array), array.dtype)
                for bias, array in zip(biases, weights, strict=True)
            ]
        )
    first = branches[0].conv
    return replace(
        first, name=name, inputs=(first.inputs[0], *constants), outputs=(f'{name}/out',)
    ), constants


def _pays(graph: Graph, branches: Sequence[_Branch], lowered: Lowered, cost: Cost) -> bool:
    node, constants = _joined(graph, branches)
    image = lowered.types[node.inputs[0]]
    given = Value(node.inputs[0], image.shape, image.dtype)
    value = node.outputs[0]
    alone = Graph('joined', (given,), ((value, value),), (node,), constants)
    joined = Lowered(alone).groups.get(value)
    groups = [lowered.groups.get(branch.conv.outputs[0]) for branch in branches]
    if joined is None or None in groups:
        return False
    copies = sum(
        cost(copy(lowered.types[branch.value].shape))
        for branch in branches
        if any(reader.op == 'Concat' for reader in graph.readers.get(branch.value, ()))
    )
    return cost(joined) + copies < sum(cost(group) for group in groups if group is not None)


def _combined(graph: Graph, branches: Sequence[_Branch]) -> Graph:
    conv, constants = _joined(graph, branches)
    sizes = [len(graph.constants[branch.conv.inputs[1]]) for branch in branches]
    nodes, value = [conv], conv.outputs[0]
    then = branches[0].activation
    if then is not None:
        value = f'{conv.name}/active'
        nodes.append(
            replace(then, name=value, inputs=(conv.outputs[0], *then.inputs[1:]), outputs=(value,))
        )
    lengths = f'{conv.name}/sizes'
    constants[lengths] = np.array(sizes, np.int64)
    outputs = tuple(branch.value for branch in branches)
    nodes.append(Node('Split', f'{conv.name}/split', (value, lengths), outputs, {'axis': 1}))
    gone = {id(node) for b in branches for node in (b.conv, b.activation) if node is not None}
    first = next(i for i, node in enumerate(graph.nodes) if id(node) in gone)
    rest = tuple(node for node in graph.nodes[first:] if id(node) not in gone)
    made = (*graph.nodes[:first], *nodes, *rest)
    read = {name for node in made for name in node.inputs} | {v for _, v in graph.outputs}
    kept = {name: array for name, array in graph.constants.items() if name in read}
    return replace(graph, nodes=made, constants={**kept, **constants})
