"""A network of the zoo as an ONNX model: opset 21, weights as initialisers, nothing folded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.version import VERSION
from tilewright.zoo.layers import INPUT, OUTPUT, Layer, Network

OPSET, IR_VERSION = 21, 10
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


def to_onnx(network: Network, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """[Network, arrays by name] -> the model; input 'image', output 'scores'."""
    constants = dict(weights)
    if any(layer.kind == 'relu6' for layer in network.layers):
        constants |= {'zero': np.array(0, np.float32), 'six': np.array(6, np.float32)}
    nodes = [_node(layer, network, constants) for layer in network.layers]
    image, scores = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in ((INPUT, network.shape), (OUTPUT, network.shape_of(network.output)))
    )
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, network.name, [image], [scores], tensors)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid('', OPSET)], ir_version=IR_VERSION,
        producer_name='tilewright', producer_version=VERSION,
    )  # fmt: skip


def _node(layer: Layer, network: Network, constants: Mapping[str, np.ndarray]) -> NodeProto:
    """One node; its output is the layer's name, or the model's output."""
    names = (f'{layer.name}.{name}' for name in _WEIGHTS.get(layer.kind, ()))
    inputs = [*layer.sources, *(name for name in names if name in constants)]
    op, attributes = _operator(layer)
    if op == 'Clip':
        inputs += ['zero', 'six']
    output = OUTPUT if layer.name == network.output else layer.name
    return helper.make_node(op, inputs, [output], name=layer.name, **attributes)


def _operator(layer: Layer) -> tuple[str, dict]:
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
