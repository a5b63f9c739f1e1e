"""Subgraphs of Loop, If and Scan: what they use from outside, and nodes ready for a session.

Goes in: a node as the file has it. Comes out: the names that its subgraphs capture; and the node
such that ONNX Runtime understands it in a model of its own:

- without the shapes that the file declares inside subgraphs. They are claims: exporters write those
  of one example, or 'no dimensions' for what they do not know. ONNX Runtime runs such files, but
  what it infers from the claims is wrong, and so would be kernels made for those shapes;
- with the external data of subgraphs read, since a session of bytes has no folder;
- with names for results that nobody wants: ONNX Runtime fails, or crashes, on a Loop or an If that
  leaves one out;
- with names inside subgraphs that nothing outside has. A file may use a name inside, and again for
  a node behind; in a model of some of its nodes, that one may be an input, and ONNX Runtime refuses
  the name inside, or takes the value outside for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from onnx import GraphProto, NodeProto, TensorProto, TypeProto, numpy_helper

from tilewright.graph.graph import fresh_name
from tilewright.importers.onnx_tensors import array_of


def captured(proto: NodeProto) -> set[str]:
    """The names that the subgraphs of a node use, but do not define."""
    found: set[str] = set()
    for graph in graphs_of(proto):
        found |= _free(graph)
    return found


def graphs_of(proto: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs of a node, not those inside them."""
    for attribute in proto.attribute:
        if attribute.HasField('g'):
            yield attribute.g
        yield from attribute.graphs


def _free(graph: GraphProto) -> set[str]:
    used = {name for node in graph.node for name in node.input if name}
    used |= {value.name for value in graph.output}
    for node in graph.node:
        used |= captured(node)
    made = {name for node in graph.node for name in node.output}
    made |= {value.name for value in graph.input} | {t.name for t in graph.initializer}
    made |= {tensor.values.name for tensor in graph.sparse_initializer}
    return used - made


def operators(nodes: Sequence[NodeProto]) -> set[tuple[str, str]]:
    """(domain, operator) of all nodes, those in subgraphs included."""
    found = {(node.domain, node.op_type) for node in nodes}
    for node in nodes:
        for graph in graphs_of(node):
            found |= operators(graph.node)
    return found


def ready(
    protos: Sequence[NodeProto], taken: Set[str], folder: Path | None
) -> tuple[NodeProto, ...]:
    """The nodes for a model of their own.

    taken   the names of that model's values
    folder  where external data may lie
    """
    inside = (name for proto in protos for graph in graphs_of(proto) for name in _all_names(graph))
    names = {*taken, *inside}
    return tuple(_ready(proto, taken, names, folder) for proto in protos)


def _ready(proto: NodeProto, taken: Set[str], names: set[str], folder: Path | None) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(proto)
    inner = list(graphs_of(made))
    for graph in inner:
        _rename(graph, {}, taken, names)
    if inner:
        _name_results(made, names)
    _plain(made, folder, f'{proto.op_type} {proto.name!r}')
    return made


def _name_results(proto: NodeProto, names: set[str]) -> None:
    for number, name in enumerate(proto.output):
        if not name:
            proto.output[number] = fresh_name('unused', names)


def _all_names(graph: GraphProto) -> Iterator[str]:
    yield from _defined(graph)
    for node in graph.node:
        yield from node.input
        for inner in graphs_of(node):
            yield from _all_names(inner)


def _defined(graph: GraphProto) -> Iterator[str]:
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        yield from (name for name in node.output if name)


def _rename(graph: GraphProto, outer: Mapping[str, str], taken: Set[str], names: set[str]) -> None:
    """Give what the graph defines new names where they are taken outside; `outer` are the names
    that were exchanged around it.
    """
    own = set(_defined(graph))
    new = {name: to for name, to in outer.items() if name not in own}
    new |= {name: fresh_name(name, names) for name in sorted(own & taken)}
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = new.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = new.get(sparse.values.name, sparse.values.name)
    around = {*taken, *own, *new.values()}
    for node in graph.node:
        for listed in (node.input, node.output):
            for number, name in enumerate(listed):
                listed[number] = new.get(name, name)
        inner = list(graphs_of(node))
        if inner:
            _name_results(node, names)
        for subgraph in inner:
            _rename(subgraph, new, around, names)


def _plain(proto: NodeProto, folder: Path | None, what: str) -> None:
    """Read external data and forget shapes, in the node and everything inside it."""
    for attribute in proto.attribute:
        for tensor in (attribute.t, *attribute.tensors):
            _read(tensor, folder, what)
    # A Loop's number of the iteration and its condition are made in the shapes declared here.
    kept = 2 if proto.op_type == 'Loop' else 0
    for graph in graphs_of(proto):
        for info in (*graph.input[kept:], *graph.output, *graph.value_info):
            _forget_shape(info.type)
        for tensor in graph.initializer:
            _read(tensor, folder, what)
        for node in graph.node:
            _plain(node, folder, what)


def _forget_shape(kind: TypeProto) -> None:
    which = kind.WhichOneof('value')
    if which == 'tensor_type':
        kind.tensor_type.ClearField('shape')
    elif which == 'sequence_type':
        _forget_shape(kind.sequence_type.elem_type)
    elif which == 'optional_type':
        _forget_shape(kind.optional_type.elem_type)


def _read(tensor: TensorProto, folder: Path | None, what: str) -> None:
    if tensor.data_location == TensorProto.EXTERNAL:
        name = tensor.name
        array = array_of(tensor, folder, f'tensor {name!r} in {what}')
        tensor.CopyFrom(numpy_helper.from_array(array, name))
