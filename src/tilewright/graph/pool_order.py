"""Means of windows and 1x1 convolutions in the order that costs less.

    conv 1x1 (x) -> y;  mean 2x2 (y) -> z      becomes      mean 2x2 (x) -> y;  conv 1x1 (y) -> z
    mean 3x3 (x) -> y;  conv 1x1 (y) -> z      becomes      conv 1x1 (x) -> y;  mean 3x3 (y) -> z

Goes in: a graph and `cost`, which says how many seconds a group takes. Comes out: a graph that
computes the same but for rounding. A mean over pixels and a sum over channels are both linear, so
they may change places: DenseNet's transitions then have a quarter of the products, and Inception-v3
takes the means of fewer channels. A bias stays with the convolution where every window holds as
many pixels as it counts; where windows leave the image it is added behind the mean.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.combine import Cost, Lowered
from tilewright.graph.graph import Graph, Node, Value

_MEANS = ('AveragePool', 'GlobalAveragePool')


def order_pools(graph: Graph, cost: Cost) -> Graph:
    """[Graph] -> [Graph]"""
    types = None
    for second in graph.nodes:
        first = _only_producer(graph, second)
        if first is None or not _fit(graph, first, second):
            continue
        types = types or Lowered(graph).types
        given = types[first.inputs[0]]
        image = Value(first.inputs[0], given.shape, given.dtype)
        swapped, constants = _swapped(graph, first, second)
        now = _part(graph, image, (first, second))
        then = _part(replace(graph, constants={**graph.constants, **constants}), image, swapped)
        if _cost(then, cost) < _cost(now, cost):
            graph, types = _replaced(graph, (first, second), swapped, constants), None
    return graph


def _only_producer(graph: Graph, node: Node) -> Node | None:
    """The node that makes what this one reads first, if nobody else reads it."""
    value = node.inputs[0] if node.inputs else ''
    maker = graph.producers.get(value)
    if maker is None or graph.is_output(value) or len(graph.readers.get(value, ())) != 1:
        return None
    return maker if len(maker.outputs) == 1 and list(node.inputs).count(value) == 1 else None


def _fit(graph: Graph, first: Node, second: Node) -> bool:
    if first.op in _MEANS:
        return _is_pointwise(graph, second)
    means = second.op in _MEANS and _is_pointwise(graph, first)
    return means and (_stays_inside(second) or not _bias(first))


def _is_pointwise(graph: Graph, node: Node) -> bool:
    """Whether a node is a convolution of one pixel at a time, by weights that are known."""
    known = all(name in graph.constants for name in node.inputs[1:] if name)
    if node.op != 'Conv' or not known:
        return False
    weights = graph.constants[node.inputs[1]]
    return (
        set(weights.shape[2:]) == {1}
        and set(_numbers(node, 'strides')) <= {1}
        and set(_numbers(node, 'pads')) <= {0}
    )


def _stays_inside(mean: Node) -> bool:
    """Whether each window lies in the image, and so holds as many pixels as it counts."""
    return mean.op == 'GlobalAveragePool' or (
        set(_numbers(mean, 'pads')) <= {0}
        and not mean.attributes.get('ceil_mode')
        and mean.attributes.get('auto_pad', 'NOTSET') in ('NOTSET', 'VALID')
    )


def _numbers(node: Node, name: str) -> tuple[int, ...]:
    found = node.attributes.get(name, ())
    return tuple(int(n) for n in found) if isinstance(found, tuple) else ()


def _bias(conv: Node) -> str:
    return conv.inputs[2] if len(conv.inputs) > 2 else ''


def _swapped(graph: Graph, first: Node, second: Node) -> tuple[tuple[Node, ...], dict]:
    """Both nodes in the other order, with the constants that are new."""
    image, result = first.inputs[0], second.outputs[0]
    between = _unused(graph, f'{result}/between')
    conv = second if first.op in _MEANS else first
    mean = first if conv is second else second
    if conv is first or not _bias(conv) or _stays_inside(mean):
        return (
            replace(second, inputs=(image, *second.inputs[1:]), outputs=(between,)),
            replace(first, inputs=(between, *first.inputs[1:]), outputs=(result,)),
        ), {}
    plain, bias = _unused(graph, f'{result}/mean'), _unused(graph, f'{result}/bias')
    array = graph.constants[_bias(conv)]
    rank = graph.constants[conv.inputs[1]].ndim
    return (
        replace(conv, inputs=(image, conv.inputs[1]), outputs=(between,)),
        replace(mean, inputs=(between,), outputs=(plain,)),
        Node('Add', _unused(graph, f'{conv.name}/bias'), (plain, bias), (result,), {}),
    ), {bias: array.reshape(-1, *(1,) * (rank - 2))}


def _unused(graph: Graph, name: str) -> str:
    taken = {*graph.names, *(node.name for node in graph.nodes)}
    while name in taken:
        name += "'"
    return name


def _part(graph: Graph, image: Value, nodes: tuple[Node, ...]) -> Graph:
    """These nodes as a graph of their own."""
    read = {name for node in nodes for name in node.inputs}
    constants = {name: array for name, array in graph.constants.items() if name in read}
    result = nodes[-1].outputs[0]
    return Graph('part', (image,), ((result, result),), nodes, constants)


def _cost(part: Graph, cost: Cost) -> float:
    """What the sums of a part cost: a bias that is added behind them joins them."""
    groups = Lowered(part).groups
    return sum(cost(groups[node.outputs[0]]) for node in part.nodes if node.op != 'Add')


def _replaced(
    graph: Graph, old: tuple[Node, Node], new: tuple[Node, ...], constants: dict
) -> Graph:
    nodes: list[Node] = []
    for node in graph.nodes:
        if node is old[1]:
            nodes += new
        elif node is not old[0]:
            nodes.append(node)
    read = {name for node in nodes for name in node.inputs} | {v for _, v in graph.outputs}
    kept = {name: array for name, array in graph.constants.items() if name in read}
    return replace(graph, nodes=tuple(nodes), constants={**kept, **constants})
