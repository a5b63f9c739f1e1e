"""Batch normalisation folded into the weights before it, at inference.

    y = conv(x, W) + b;  z = scale * (y - mean) / sqrt(var + eps) + shift
    z = conv(x, f W) + f (b - mean) + shift                with f = scale / sqrt(var + eps)

Goes in: a graph. Comes out: one in which a BatchNormalization behind a Conv, ConvTranspose or Gemm
with constant weights that nobody else reads is gone. Sums are formed in float64, once.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.graph.graph import Graph, Node

# operator -> the axis of its weights that runs over output channels; Gemm's follows from transB.
_CHANNEL_AXIS = {'Conv': 0, 'ConvTranspose': 1}


def fold_batch_norm(graph: Graph) -> Graph:
    """[Graph] -> [Graph]"""
    nodes = {id(node): node for node in graph.nodes}
    constants = dict(graph.constants)
    for norm in graph.nodes:
        if norm.op != 'BatchNormalization':
            continue
        source = graph.producers.get(norm.inputs[0])
        if source is None or not _foldable(graph, source, norm):
            continue
        made = _folded(graph, source, norm, constants)
        if made is None:
            continue
        nodes[id(source)] = made
        del nodes[id(norm)]
    return replace(graph, nodes=tuple(nodes.values()), constants=_used(graph, nodes, constants))


def _foldable(graph: Graph, source: Node, norm: Node) -> bool:
    if source.op not in (*_CHANNEL_AXIS, 'Gemm') or norm.attributes.get('training_mode', 0):
        return False
    if len([name for name in norm.outputs if name]) != 1:
        return False
    value = source.outputs[0]
    readers = graph.readers.get(value, ())
    alone = len(readers) == 1 and readers[0].inputs.count(value) == 1
    return alone and not graph.is_output(value)


@np.errstate(all='ignore')  # files may hold any bits for a number, a variance below 0 too
def _folded(
    graph: Graph, source: Node, norm: Node, constants: dict[str, np.ndarray]
) -> Node | None:
    """The source with scaled weights, which are added to `constants`; None where it cannot be."""
    image, kernel, bias_name, *_ = (*source.inputs, '')
    names = [kernel, *norm.inputs[1:5]]
    needed = [*names, *filter(None, [bias_name])]
    if len(names) != 5 or any(name not in graph.constants for name in needed):
        return None
    weights, scale, shift, mean, var = (graph.constants[name] for name in names)
    if weights.dtype.kind != 'f' or any(a.ndim != 1 for a in (scale, shift, mean, var)):
        return None
    channels = _channels(source, weights)
    if channels is None or any(a.shape != (channels,) for a in (scale, shift, mean, var)):
        return None
    epsilon = _number(norm, 'epsilon', 1e-5)
    factor = scale.astype(np.float64) / np.sqrt(var.astype(np.float64) + epsilon)
    bias = graph.constants[bias_name] if bias_name else np.zeros(channels)
    if source.op == 'Gemm':
        if bias.size != 1 and bias.shape not in ((channels,), (1, channels)):
            return None
        bias = np.broadcast_to(bias.reshape(-1), (channels,)) * _number(source, 'beta', 1.0)
    moved = factor * (bias.astype(np.float64) - mean) + shift
    prefix = norm.outputs[0]
    weights_name, moved_name = f'{prefix}/weights', f'{prefix}/bias'
    taken = {v.name for v in graph.inputs} | set(constants) | set(graph.producers)
    if weights_name in taken or moved_name in taken:
        return None
    constants[weights_name] = _scaled(source, weights, factor)
    constants[moved_name] = moved.astype(weights.dtype)
    attributes = {k: v for k, v in source.attributes.items() if k != 'beta'}
    return replace(
        source,
        inputs=(image, weights_name, moved_name),
        outputs=(norm.outputs[0],),
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
