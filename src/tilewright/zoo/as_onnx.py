"""A graph, such as a network of the zoo, as an ONNX model: weights as initialisers, nothing folded.

Operators of graphs mean what ONNX's default domain says at opset 21, so that nodes are copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, ValueInfoProto, defs, helper, numpy_helper

from tilewright.graph.graph import DTYPES, Graph, Node, Value, fresh_name
from tilewright.version import VERSION
from tilewright.zoo.as_graph import to_graph
from tilewright.zoo.layers import OUTPUT, Network

OPSET, IR_VERSION = 21, 10
_MADE_OF = {'tilewright::Log1p': ('Add', 'Log'), 'tilewright::Expm1': ('Exp', 'Sub')}


def to_onnx(network: Network, weights: Mapping[str, np.ndarray]) -> ModelProto:
    """[Network, arrays by name] -> the model; input 'image', output 'scores'."""
    scores = Value(OUTPUT, network.shape_of(network.output))
    return graph_to_onnx(to_graph(network, weights), [scores])


def graph_to_onnx(graph: Graph, outputs: Sequence[Value]) -> ModelProto:
    """[Graph, types of its outputs] -> the model; what an output is called is what callers see."""
    taken = set(graph.names)
    nodes = [made for node in graph.nodes for made in _nodes(node, taken)]
    nodes += [
        helper.make_node('Identity', [value], [name], name=f'{name}/output')
        for name, value in graph.outputs
        if name != value
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
    made = helper.make_graph(
        nodes, graph.name, [_info(v) for v in graph.inputs], [_info(v) for v in outputs], tensors
    )
    return helper.make_model(
        made, opset_imports=[helper.make_opsetid('', _opset_of(nodes))], ir_version=IR_VERSION,
        producer_name='tilewright', producer_version=VERSION,
    )  # fmt: skip


def _info(value: Value) -> ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[value.dtype]))
    return helper.make_tensor_value_info(value.name, kind, value.shape)


def _opset_of(nodes: Sequence[NodeProto]) -> int:
    """The one that graphs are written in, or the first that has all of their operators."""
    first: dict[str, int] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.domain:
            known = first.get(schema.name, schema.since_version)
            first[schema.name] = min(known, schema.since_version)
    return max([OPSET, *(first.get(node.op_type, OPSET) for node in nodes)])


def _nodes(node: Node, taken: set[str]) -> list[NodeProto]:
    """A node; one that ONNX has no operator for as those that it is made of."""
    if node.op not in _MADE_OF:
        return [_node(node)]
    (x,), (y,) = node.inputs, node.outputs
    first, then = _MADE_OF[node.op]
    number, one, inner = (fresh_name(f'{y}/{word}', taken) for word in ('number', 'one', 'inner'))
    between = [x, one] if first == 'Add' else [x]
    last = [inner, one] if then == 'Sub' else [inner]
    return [
        helper.make_node('Constant', [], [number], name=number, value_float=1.0),
        helper.make_node('CastLike', [number, x], [one], name=one),
        helper.make_node(first, between, [inner], name=inner),
        helper.make_node(then, last, [y], name=node.name),
    ]


def _node(node: Node) -> NodeProto:
    attributes: dict[str, Any] = {
        name: numpy_helper.from_array(given) if isinstance(given, np.ndarray) else given
        for name, given in node.attributes.items()
    }
    return helper.make_node(node.op, node.inputs, node.outputs, name=node.name, **attributes)
