"""A network of the zoo as a graph of our own, which needs no other package: nothing is folded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.graph.graph import Attribute, Graph, Node, Value
from tilewright.zoo.layers import INPUT, OUTPUT, Layer, Network

_NAMES = {
    'relu': 'Relu', 'add': 'Add', 'flatten': 'Flatten', 'dropout': 'Dropout',
    'global_average': 'GlobalAveragePool',
}  # fmt: skip
# Names of weights in the order of the operator's inputs.
_WEIGHTS = {
    'conv': ('weight', 'bias'),
    'linear': ('weight', 'bias'),
    'batch_norm': ('scale', 'shift', 'mean', 'variance'),
}


def to_graph(network: Network, weights: Mapping[str, np.ndarray]) -> Graph:
    """[Network, arrays by name] -> [Graph]; input 'image', output 'scores'."""
    constants = dict(weights)
    if any(layer.kind == 'relu6' for layer in network.layers):
        constants |= {'zero': np.array(0, np.float32), 'six': np.array(6, np.float32)}
    nodes = tuple(_node(layer, network, constants) for layer in network.layers)
    image = Value(INPUT, network.shape)
    return Graph(network.name, (image,), ((OUTPUT, OUTPUT),), nodes, constants)


def _node(layer: Layer, network: Network, constants: Mapping[str, np.ndarray]) -> Node:
    """One node; its output is the layer's name, or the model's output."""
    names = (f'{layer.name}.{name}' for name in _WEIGHTS.get(layer.kind, ()))
    inputs = [*layer.sources, *(name for name in names if name in constants)]
    op, attributes = _operator(layer)
    if op == 'Clip':
        inputs += ['zero', 'six']
    output = OUTPUT if layer.name == network.output else layer.name
    return Node(op, layer.name, tuple(inputs), (output,), attributes)


def _operator(layer: Layer) -> tuple[str, dict[str, Attribute]]:
    """The operator of a layer and its attributes."""
    if layer.kind == 'conv':
        (ph, pw), stride = layer['pad'], layer['stride']
        return 'Conv', {
            'kernel_shape': layer['window'], 'strides': (stride, stride), 'pads': (ph, pw, ph, pw),
            'group': layer['groups'],
        }  # fmt: skip
    if layer.kind in ('max_pool', 'average_pool'):
        window, stride, pad = layer['window'], layer['stride'], layer['pad']
        return 'MaxPool' if layer.kind == 'max_pool' else 'AveragePool', {
            'kernel_shape': (window, window), 'strides': (stride, stride), 'pads': (pad,) * 4,
            'ceil_mode': int(layer['ceil']),
        }  # fmt: skip
    if layer.kind == 'batch_norm':
        return 'BatchNormalization', {'epsilon': layer['epsilon']}
    if layer.kind == 'lrn':
        return 'LRN', {key: layer[key] for key in ('size', 'alpha', 'beta', 'bias')}
    if layer.kind == 'leaky_relu':
        return 'LeakyRelu', {'alpha': layer['slope']}
    if layer.kind == 'linear':
        return 'Gemm', {'transB': 1}
    if layer.kind == 'softmax':
        return 'Softmax', {'axis': 1}
    if layer.kind == 'concat':
        return 'Concat', {'axis': 1}
    return ('Clip', {}) if layer.kind == 'relu6' else (_NAMES[layer.kind], {})
