"""Batch normalisation, and factors and sums by constants, folded into the weights before them.

    y = conv(x, W) + b;  z = scale * (y - mean) / sqrt(var + eps) + shift
    z = conv(x, f W) + f b + t        with f = scale / sqrt(var + eps), t = shift - f mean

Goes in: a graph, for inference. Comes out: one in which a BatchNormalization behind a Conv,
ConvTranspose or Gemm with constant weights that nobody else reads is gone, and so are additions and
multiplications by a number or by one for each channel, one after the other. Sums are formed in
float64, once for each node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tilewright.graph.graph import Graph, Node

# operator -> the axis of its weights that runs over output channels; Gemm's follows from transB.
_CHANNEL_AXIS = {'Conv': 0, 'ConvTranspose': 1}
_ARITHMETIC = ('Add', 'Sub', 'Mul', 'Div')


@dataclass(frozen=True, slots=True)
class ScaleAndShift:
    """What a node does to every channel: factor * x + shift."""

    factor: np.ndarray
    shift: np.ndarray


def fold_batch_norm(graph: Graph) -> Graph:
    """[Graph] -> [Graph]"""
    nodes = {id(node): node for node in graph.nodes}
    constants = dict(graph.constants)
    sources: dict[str, int] = {}  # value -> the node whose weights it is computed with
    for node in graph.nodes:
        if node.op in (*_CHANNEL_AXIS, 'Gemm') and node.outputs:
            sources[node.outputs[0]] = id(node)
            continue
        value = _scaled_value(graph, node)
        if value not in sources or not _foldable(graph, value, node):
            continue
        number = sources[value]
        made = _folded(graph, nodes[number], node, constants)
        if made is None:
            continue
        nodes[number] = made
        sources[made.outputs[0]] = number
        del nodes[id(node)]
    return replace(graph, nodes=tuple(nodes.values()), constants=_used(graph, nodes, constants))


def _scaled_value(graph: Graph, node: Node) -> str:
    """The value that a node may scale and shift; '' where it does something else."""
    if node.op == 'BatchNormalization':
        return node.inputs[0]
    if node.op in _ARITHMETIC and len(node.inputs) == 2:
        known = [name in graph.constants for name in node.inputs]
        if known == [False, True] or (known == [True, False] and node.op != 'Div'):
            return node.inputs[known[0]]
    return ''


def _foldable(graph: Graph, value: str, node: Node) -> bool:
    if node.attributes.get('training_mode', 0) or len([name for name in node.outputs if name]) != 1:
        return False
    readers = graph.readers.get(value, ())
    alone = len(readers) == 1 and readers[0].inputs.count(value) == 1
    return alone and not graph.is_output(value)


def _scale_and_shift(
    constants: Mapping[str, np.ndarray], node: Node, channels: int, rank: int
) -> ScaleAndShift | None:
    """None where the node's constants are not numbers for channels."""
    if node.op == 'BatchNormalization':
        names = node.inputs[1:5]
        if len(names) != 4 or any(name not in constants for name in names):
            return None
        if any(constants[name].shape != (channels,) for name in names):
            return None
        scale, shift, mean, var = (constants[name].astype(np.float64) for name in names)
        factor = scale / np.sqrt(var + _number(node, 'epsilon', 1e-5))
        return ScaleAndShift(factor, shift - factor * mean)
    first = node.inputs[0] in constants
    given = constants[node.inputs[not first]]
    shape = (*(1,) * (rank - given.ndim), *given.shape)
    if (given.size != 1 and shape != (1, channels, *(1,) * (rank - 2))) or given.ndim > rank:
        return None
    by = given.astype(np.float64).reshape(-1)
    one, zero = np.ones(1), np.zeros(1)
    return {
        'Add': ScaleAndShift(one, by),
        'Sub': ScaleAndShift(-one, by) if first else ScaleAndShift(one, -by),
        'Mul': ScaleAndShift(by, zero),
        'Div': ScaleAndShift(1 / by, zero),
    }[node.op]


@np.errstate(all='ignore')  # files may hold any bits for a number, a variance below 0 too
def _folded(
    graph: Graph, source: Node, node: Node, constants: dict[str, np.ndarray]
) -> Node | None:
    """The source with scaled weights, which are added to `constants`; None where it cannot be."""
    image, kernel, bias_name, *_ = (*source.inputs, '')
    if any(name not in constants for name in filter(None, [kernel, bias_name])):
        return None
    weights = constants[kernel]
    channels = _channels(source, weights)
    if weights.dtype.kind != 'f' or channels is None:
        return None
    found = _scale_and_shift(constants, node, channels, weights.ndim)
    if found is None:
        return None
    factor = np.broadcast_to(found.factor, (channels,))
    bias = constants[bias_name] if bias_name else np.zeros(channels)
    if source.op == 'Gemm':
        if bias.size != 1 and bias.shape not in ((channels,), (1, channels)):
            return None
        bias = np.broadcast_to(bias.reshape(-1), (channels,)) * _number(source, 'beta', 1.0)
    moved = factor * bias.astype(np.float64) + found.shift
    prefix = node.outputs[0]
    weights_name, moved_name = f'{prefix}/weights', f'{prefix}/bias'
    taken = {v.name for v in graph.inputs} | set(constants) | set(graph.producers)
    if weights_name in taken or moved_name in taken:
        return None
    constants[weights_name] = weights if (factor == 1).all() else _scaled(source, weights, factor)
    constants[moved_name] = moved.astype(weights.dtype)
    attributes = {k: v for k, v in source.attributes.items() if k != 'beta'}
    return replace(
        source,
        inputs=(image, weights_name, moved_name),
        outputs=(node.outputs[0],),
        attributes=attributes,
    )


def _channels(source: Node, weights: np.ndarray) -> int | None:
    sizes = list(weights.shape)
    if source.op == 'Gemm':
        return sizes[_number(source, 'transB', 0) == 0] if len(sizes) == 2 else None
    axis = _CHANNEL_AXIS[source.op]
    return sizes[axis] * (_groups(source) if axis else 1) if len(sizes) > 2 else None


def _number(node: Node, name: str, default: float) -> float:
    value = node.attributes.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def _groups(node: Node) -> int:
    return int(_number(node, 'group', 1))


def _scaled(source: Node, weights: np.ndarray, factor: np.ndarray) -> np.ndarray:
    if source.op == 'Gemm':
        by_row = bool(source.attributes.get('transB', 0))
        scaled = weights * (factor[:, None] if by_row else factor)
    elif source.op == 'Conv':
        scaled = weights * factor.reshape(-1, *[1] * (weights.ndim - 1))
    else:  # [c, k of a group, ..]: input channels of group g meet factors of group g
        groups = _groups(source)
        shape = (groups, weights.shape[0] // groups, *weights.shape[1:])
        by_group = factor.reshape(groups, 1, weights.shape[1], *[1] * (weights.ndim - 2))
        scaled = (weights.reshape(shape) * by_group).reshape(weights.shape)
    return np.ascontiguousarray(scaled.astype(weights.dtype))


def _used(
    graph: Graph, nodes: dict[int, Node], constants: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Constants that are still read: what was folded is not kept beside its result."""
    wanted = {name for node in nodes.values() for name in node.inputs}
    wanted |= {value for _, value in graph.outputs}
    return {name: array for name, array in constants.items() if name in wanted}
