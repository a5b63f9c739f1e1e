"""ONNX files as graphs.

    path, bytes or ModelProto  --import_onnx-->  Graph at opset 21

Goes in: a model of opset 7 or later; `shapes` fixes sizes that the file leaves open. Comes out: a
checked graph in an order in which it can run. Operators are not looked at: what is not supported is
for graph/lower.py to say, all at once. Operators of other domains are called 'domain::Name'.

A file is never believed. What it says about sizes is checked against limits and against the data
that is there before anything is allocated, and whatever is wrong is one `ModelError`.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from tilewright.errors import ModelError
from tilewright.graph.graph import (
    Attribute,
    Body,
    Graph,
    Node,
    Value,
    dtype_of,
    fresh_name,
    in_order,
)
from tilewright.importers.onnx_opsets import NEWEST, OLDEST, modernise, unchanged
from tilewright.importers.onnx_tensors import array_of, element_type
from tilewright.importers.shapes import by_name, checked_shape, given_shapes

MAX_NODES = 1 << 16
MAX_BYTES = 2**31 - 1
_DEFAULT_DOMAIN = ('', 'ai.onnx')


@dataclass(frozen=True)
class _Source:
    """A parsed model: what messages call it, and where its external data may lie."""

    model: ModelProto
    name: str
    folder: Path | None


def import_onnx(
    model: str | os.PathLike | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Graph:
    """[ONNX] -> [Graph]

    shapes     input -> its shape: needed where the file has names or nothing instead of sizes
    constants  input -> its value, which is then fixed: needed where it decides shapes
    """
    return _importer(model, shapes, constants).graph()


@dataclass(frozen=True)
class Traced:
    """A graph, the model that it was read from, and node -> the number of the file's node that it
    is a part of: what it takes to run some nodes elsewhere, as the file has them. `folder` is where
    the model's external data may lie."""

    graph: Graph
    model: ModelProto
    numbers: Mapping[str, int]
    folder: Path | None = None


def import_traced(
    model: str | os.PathLike | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, np.ndarray] | None = None,
) -> Traced:
    """[ONNX] -> [Graph], with what each of its nodes was."""
    importer = _importer(model, shapes, constants)
    source = importer.source
    return Traced(importer.graph(), source.model, importer.numbers, source.folder)


def _importer(
    model: str | os.PathLike | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None,
    constants: Mapping[str, np.ndarray] | None,
) -> _Importer:
    source = _read(model)
    # Where bytes are no text, protobuf gives them as bytes.
    if not all(isinstance(text, str) for text in _texts(source.model)):
        raise ModelError(f'{source.name} has a name that is not text; the file is damaged')
    fixed = {name: np.asarray(array) for name, array in by_name('constants', constants).items()}
    return _Importer(source, given_shapes(shapes), fixed)


def _texts(model: ModelProto) -> Iterator[object]:
    """Every text of the model that is looked at."""
    for entry in model.opset_import:
        yield entry.domain
    yield from _graph_texts(model.graph)


def _graph_texts(graph: GraphProto) -> Iterator[object]:
    yield graph.name
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField('g'):
                yield from _graph_texts(attribute.g)
    for tensor in graph.initializer:
        yield tensor.name
        for item in tensor.external_data:
            yield from (item.key, item.value)
    for info in (*graph.input, *graph.output):
        yield info.name
        yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)


def _read(model: str | os.PathLike | bytes | ModelProto) -> _Source:
    if isinstance(model, ModelProto):
        return _Source(model, ' '.join(str(model.graph.name).split()) or 'the model', None)
    if isinstance(model, bytes):
        return _Source(_parse(model, 'the model'), 'the model', None)
    path = Path(model)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) and not path.is_dir():  # a device may have no end
            raise ModelError(f'{path} is not a plain file; save the model in one')
        if status.st_size > MAX_BYTES:
            raise ModelError(
                f'{path} has {status.st_size} bytes; the limit of the format is {MAX_BYTES}, '
                f'larger models keep their weights in a file beside them'
            )
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, 'strerror', None) or str(error)
        raise ModelError(f'{path} cannot be read: {reason}') from None
    return _Source(_parse(data, str(path)), str(path), path.resolve().parent)


def _parse(data: bytes, name: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError, RecursionError):
        raise ModelError(f'{name} is no ONNX file, or is cut off or damaged') from None
    if not model.HasField('graph'):
        raise ModelError(f'{name} holds no graph; it is no ONNX file, or is cut off')
    return model


class _Importer:
    """The state of one import: names taken, constants and nodes so far."""

    def __init__(
        self, source: _Source, shapes: dict[str, tuple[int, ...]], fixed: dict[str, np.ndarray]
    ) -> None:
        self.source, self.shapes, self.fixed = source, shapes, fixed
        self.proto: GraphProto = source.model.graph
        self.constants: dict[str, np.ndarray] = {}
        self.nodes: list[Node] = []
        self.numbers: dict[str, int] = {}
        self.taken: set[str] = set()
        self.opset = 0
        self.batch: set[str] = set()  # names of a batch that nobody gives the size of

    def graph(self) -> Graph:
        self.opset = self._opset()
        if len(self.proto.node) > MAX_NODES:
            raise self._error(f'has {len(self.proto.node)} nodes; the limit is {MAX_NODES}')
        if self.proto.sparse_initializer:
            name = self.proto.sparse_initializer[0].values.name
            raise self._error(f'has sparse weights ({name!r}), which are not supported; save them '
                              f'dense')  # fmt: skip
        for node in self.proto.node:
            self.taken.update((node.name, *node.input, *node.output))
        for tensor in self.proto.initializer:
            self._constant(tensor.name, array_of(tensor, self.source.folder, self._of(tensor.name)))
        inputs = self._inputs()
        self._nodes()
        outputs = self._outputs()
        known = [*(value.name for value in inputs), *self.constants]
        nodes = in_order(self.nodes, known, self.source.name)
        return Graph(self.source.name, inputs, outputs, nodes, self.constants)

    def _error(self, text: str) -> ModelError:
        return ModelError(f'{self.source.name} {text}')

    def _of(self, tensor: str) -> str:
        return f'tensor {tensor!r} of {self.source.name}'

    def _opset(self) -> int:
        """The version of the default domain."""
        versions = [
            entry.version
            for entry in self.source.model.opset_import
            if entry.domain in _DEFAULT_DOMAIN
        ]
        if not versions:
            raise self._error('does not say which opset it is written in; it is damaged')
        version = max(versions)
        if version > NEWEST:
            raise self._error(f'is written in opset {version}; the newest known is {NEWEST}')
        operators = {n.op_type for n in self.proto.node if n.domain in _DEFAULT_DOMAIN}
        changed = sorted(operators - unchanged(operators, version))
        if changed:
            raise self._error(
                f'is written in opset {version}, in which {changed[0]} meant something else; '
                f'supported are {OLDEST} to {NEWEST}, onnx.version_converter converts others'
            )
        return version

    def _constant(self, name: str, array: np.ndarray) -> None:
        if not name or name in self.constants:
            raise self._error(f'defines the constant {name!r} twice')
        self.taken.add(name)
        self.constants[name] = array

    def _inputs(self) -> tuple[Value, ...]:
        """The values that callers give. Files before IR 4 list their constants among them."""
        given = [info for info in self.proto.input if info.name not in self.constants]
        names = [info.name for info in given]
        if len(set(names)) != len(names) or '' in names:
            raise self._error(f'names an input twice or not at all: {names}')
        for what, wanted in (('shapes', self.shapes), ('constants', self.fixed)):
            unknown = [name for name in wanted if name not in names]
            if unknown:
                raise self._error(
                    f'has no input {unknown[0]!r}, which {what} names; its inputs are '
                    f'{", ".join(map(repr, names)) or "none"}'
                )
        for name, array in self.fixed.items():
            self.shapes[name] = array.shape
        symbols, self.batch = self._symbols(given), self._free_batch(given)
        values = [self._input(info, symbols) for info in given]
        for value in values:
            if value.name in self.fixed:
                self._fix(value)
        return tuple(value for value in values if value.name not in self.fixed)

    def _fix(self, value: Value) -> None:
        array = self.fixed[value.name]
        if dtype_of(array) != value.dtype:
            raise self._error(
                f'has input {value.name!r} of {value.dtype}; constants gives it as {array.dtype}'
            )
        self._constant(value.name, array)

    def _symbols(self, inputs: Sequence[ValueInfoProto]) -> dict[str, int]:
        """Sizes of the names that stand for them, where `shapes` says how large they are."""
        found: dict[str, dict[int, None]] = {}
        for info in inputs:
            dims = info.type.tensor_type.shape.dim
            shape = self.shapes.get(info.name, ())
            for dim, size in zip(dims, shape, strict=False):
                if dim.dim_param:
                    found.setdefault(dim.dim_param, {})[size] = None
        # Some exporters call every size that they do not know '?'.
        for name, sizes in found.items():
            if len(sizes) > 1:
                warnings.warn(
                    f'{self.source.name} calls several sizes {name!r}, and shapes gives it as '
                    f'{" and as ".join(map(str, sizes))}: every input has the sizes given for it',
                    stacklevel=2,
                )
        return {name: next(iter(sizes)) for name, sizes in found.items() if len(sizes) == 1}

    def _free_batch(self, inputs: Sequence[ValueInfoProto]) -> set[str]:
        """Names that stand for the size of a batch: of first axes alone, never of others. '' is
        among them: a first axis may have no name.
        """
        shapes = [[dim.dim_param for dim in info.type.tensor_type.shape.dim] for info in inputs]
        return {'', *(s[0] for s in shapes if s)} - {name for s in shapes for name in s[1:] if name}

    def _input(self, info: ValueInfoProto, symbols: Mapping[str, int]) -> Value:
        kind, what = info.type.WhichOneof('value'), f'input {info.name!r} of {self.source.name}'
        if kind != 'tensor_type':
            word = (kind or 'no type').removesuffix('_type').replace('_', ' ')
            raise ModelError(f'{what} is of type {word}; only tensors are supported')
        tensor = info.type.tensor_type
        dtype = element_type(tensor.elem_type, what)
        has = (
            None
            if not tensor.HasField('shape')
            else [
                dim.dim_value
                if dim.HasField('dim_value') and dim.dim_value != -1  # which some write for 'any'
                else symbols.get(dim.dim_param, dim.dim_param)
                for dim in tensor.shape.dim
            ]
        )
        return Value(info.name, checked_shape(self._shape(info.name, has, what), what), dtype)

    def _shape(self, name: str, has: list[int | str] | None, what: str) -> tuple[int, ...]:
        """What the file says of a shape, and what the caller says, as one."""
        shown = '?' if has is None else f'[{", ".join(_shown(s) for s in has)}]'
        given = self.shapes.get(name)
        if given is None:
            if has is not None and len(has) > 1 and has[0] in self.batch:
                has = [1, *has[1:]]
            sizes = tuple(size for size in has or () if isinstance(size, int))
            if has is None or len(sizes) != len(has):
                raise ModelError(
                    f'{what} has shape {shown}, which is open; fix it with '
                    f'shapes={{{name!r}: (..)}} (--shape on the command line)'
                )
            return sizes
        fits = has is None or (
            len(given) == len(has)
            and all(not isinstance(h, int) or h == s for h, s in zip(has, given, strict=True))
        )
        if not fits:
            who = 'constants' if name in self.fixed else 'shapes'
            raise ModelError(f'{what} has shape {shown}; {who} gives it as {list(given)}')
        return given

    def _nodes(self) -> None:
        """Every node, its attributes as values, in today's form; constants join the others."""
        names: set[str] = set()
        for number, proto in enumerate(self.proto.node):
            node = self._node(proto, number)
            while node.name in names:
                node = replace(node, name=f'{node.name}#{number}')
            names.add(node.name)
            if node.op == 'Constant':
                self._constant(node.outputs[0], self._value(node))
                continue
            modern = modernise(node, self.opset, partial(fresh_name, taken=self.taken))
            self.nodes += modern.nodes
            self.numbers |= {made.name: number for made in modern.nodes}
            for name, array in modern.constants.items():
                self._constant(name, array)

    def _node(self, proto: NodeProto, number: int) -> Node:
        domain = '' if proto.domain in _DEFAULT_DOMAIN else f'{proto.domain}::'
        if not f'{domain}{proto.op_type}'.isprintable():
            raise self._error(f'has an operator {proto.op_type!r}; the file is damaged')
        outputs = _without_tail(proto.output)
        name = proto.name or (outputs[0] if outputs else f'{proto.op_type}_{number}')
        if not outputs or not proto.op_type:
            raise self._error(
                f'has a node {proto.op_type or "without operator"} {name!r} that gives nothing'
            )
        attributes = {}
        for attribute in proto.attribute:
            value = self._attribute(attribute, f'{proto.op_type} {name!r}')
            if value is not None:
                attributes[attribute.name] = value
        inputs = _without_tail(proto.input)
        bodies = [value for value in attributes.values() if isinstance(value, Body)]
        if bodies:
            attributes['captures'] = tuple(sorted(set().union(*(b.captures for b in bodies))))
            inputs += attributes['captures']
        return Node(domain + proto.op_type, name, inputs, outputs, attributes)

    def _body(self, proto: GraphProto) -> Body | None:
        """A subgraph; None where it holds what graphs cannot, and only its node is known."""
        try:
            constants = {
                t.name: array_of(t, self.source.folder, self._of(t.name)) for t in proto.initializer
            }
            nodes: list[Node] = []
            for number, inner in enumerate(proto.node):
                node = self._node(inner, number)
                if node.op == 'Constant':
                    constants[node.outputs[0]] = self._value(node)
                    continue
                modern = modernise(node, self.opset, partial(fresh_name, taken=self.taken))
                nodes += modern.nodes
                constants |= modern.constants
            inputs, outputs = (
                tuple(i.name for i in infos) for infos in (proto.input, proto.output)
            )
            body = Body(inputs, outputs, tuple(nodes), constants)
            known = {*inputs, *constants, *body.captures}
            return replace(body, nodes=in_order(nodes, known, self.source.name))
        except ModelError:
            return None

    def _attribute(self, proto: AttributeProto, where: str) -> Attribute | None:
        """The value of an attribute; what has no value here is left out."""
        kind = proto.type
        if kind == AttributeProto.INT:
            return proto.i
        if kind == AttributeProto.FLOAT:
            return proto.f
        if kind == AttributeProto.STRING:
            return _text(proto.s)
        if kind == AttributeProto.TENSOR:
            what = f'attribute {proto.name!r} of {where}'
            return array_of(proto.t, self.source.folder, what)
        if kind == AttributeProto.INTS:
            return tuple(proto.ints)
        if kind == AttributeProto.FLOATS:
            return tuple(proto.floats)
        if kind == AttributeProto.STRINGS:
            return tuple(map(_text, proto.strings))
        return self._body(proto.g) if kind == AttributeProto.GRAPH else None

    def _value(self, node: Node) -> np.ndarray:
        """What a Constant node holds."""
        for name, dtype in (
            ('value', None), ('value_float', np.float32), ('value_floats', np.float32),
            ('value_int', np.int64), ('value_ints', np.int64),
        ):  # fmt: skip
            value = node.attributes.get(name)
            if value is not None and not isinstance(value, str):
                try:
                    return np.asarray(value, dtype)
                except (TypeError, ValueError, OverflowError):
                    break
        raise self._error(
            f'has the constant {node.outputs[0]!r}, which is not a dense tensor of numbers'
        )

    def _outputs(self) -> tuple[tuple[str, str], ...]:
        names = [info.name for info in self.proto.output]
        if not names:
            raise self._error('has no output')
        if len(set(names)) != len(names):
            raise self._error(f'names an output twice: {names}')
        return tuple((name, name) for name in names)


def _without_tail(names: Iterable[str]) -> tuple[str, ...]:
    """Without optional inputs or outputs that are left out at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def _shown(size: int | str) -> str:
    """A size, or the name that stands for it."""
    return str(size) if str(size) and str(size).isprintable() else '?'


def _text(data: bytes) -> str:
    return data.decode('utf-8', 'replace')
