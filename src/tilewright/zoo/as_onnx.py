"""A network of the zoo as an ONNX model: opset 21, weights as initialisers, nothing folded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tilewright.graph.graph import Node
from tilewright.version import VERSION
from tilewright.zoo.as_graph import to_graph
from tilewright.zoo.layers import INPUT, OUTPUT, Network

OPSET, IR_VERSION = 21, 10


def to_onnx(network: Network, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """[Network, arrays by name] -> the model; input 'image', output 'scores'."""
    graph = to_graph(network, weights)
    nodes = [_node(node) for node in graph.nodes]
    image, scores = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in ((INPUT, network.shape), (OUTPUT, network.shape_of(network.output)))
    )
    tensors = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
    made = helper.make_graph(nodes, network.name, [image], [scores], tensors)
    return helper.make_model(
        made, opset_imports=[helper.make_opsetid('', OPSET)], ir_version=IR_VERSION,
        producer_name='tilewright', producer_version=VERSION,
    )  # fmt: skip


def _node(node: Node) -> NodeProto:
    attributes: dict[str, Any] = dict(node.attributes)
    return helper.make_node(node.op, node.inputs, node.outputs, name=node.name, **attributes)
