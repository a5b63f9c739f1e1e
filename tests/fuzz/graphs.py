"""A network while it is drawn and while it shrinks: nodes, inputs with data, constants, outputs.

Goes in: nodes one by one. Comes out: an ONNX `ModelProto` with the data it is run on. A value's
array is known as soon as its node is added, since the oracle computes every node alone: shapes,
element types and magnitudes follow from the arrays, and no shape rule is written down here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

# Operators that came after the opset that models are written in otherwise.
OPSET = 21
LATER = {
    'Attention': 23, 'RMSNormalization': 23, 'RotaryEmbedding': 23, 'Swish': 24, 'CumProd': 26,
}  # fmt: skip
IR_VERSION = 10

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Node:
    """One operator on named values; an input that is left out is ''. A graph is of one opset."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    opset: int = OPSET

    def proto(self) -> onnx.NodeProto:
        given: dict[str, Any] = {n: v for n, v in self.attributes.items() if v is not None}
        return helper.make_node(self.op, self.inputs, self.outputs, name=self.outputs[0], **given)

    def __str__(self) -> str:
        shown = ', '.join(
            f'{name}={numpy_helper.to_array(value).tolist()}'
            if isinstance(value, onnx.TensorProto) else f'{name}={value}'
            for name, value in self.attributes.items()
        )  # fmt: skip
        made = ', '.join(self.outputs)
        return f'{made} = {self.op}({", ".join(self.inputs)}){"  " * bool(shown)}{shown}'


@dataclass(frozen=True)
class Net:
    """A graph and the data it is run on. `values` are all arrays, as the oracle computes them."""

    nodes: tuple[Node, ...]
    inputs: Arrays
    constants: Arrays
    outputs: tuple[str, ...]
    values: Arrays

    def pruned(self) -> Net:
        """Without nodes, inputs and constants that no output needs."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed & set(node.outputs):
                kept.append(node)
                needed |= set(node.inputs)
        return replace(
            self,
            nodes=tuple(reversed(kept)),
            inputs={name: a for name, a in self.inputs.items() if name in needed},
            constants={name: a for name, a in self.constants.items() if name in needed},
        )

    @property
    def pairs(self) -> set[tuple[str, str]]:
        """Every (producer, consumer) that stands in the graph."""
        made = {name: node.op for node in self.nodes for name in node.outputs}
        return {
            (made[name], node.op) for node in self.nodes for name in node.inputs if name in made
        }

    def proto(self) -> onnx.ModelProto:
        return model_of(self.nodes, self.inputs, self.constants, self.outputs, self.values)

    def __str__(self) -> str:
        lines = [f'input {n}: {_shown(a)}' for n, a in self.inputs.items()]
        lines += [f'constant {n}: {_shown(a)}' for n, a in self.constants.items()]
        lines += [
            f'{node}  # {", ".join(_shown(self.values[n], 0) for n in node.outputs if n)}'
            for node in self.nodes
        ]
        return '\n'.join([*lines, f'outputs {", ".join(self.outputs)}'])


def _shown(array: np.ndarray, most: int = 12) -> str:
    text = f'{array.dtype}{list(array.shape)}'
    return f'{text} = {array.ravel().tolist()}' if array.size <= most else text


def model_of(
    nodes: Sequence[Node],
    inputs: Arrays,
    constants: Arrays,
    outputs: Iterable[str],
    types: Arrays | None = None,
) -> onnx.ModelProto:
    """The model; outputs of which no array is known have no type in it."""

    def info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        return helper.make_tensor_value_info(name, kind, array.shape)

    opset = max((node.opset for node in nodes), default=OPSET)
    if opset == OPSET:
        opset = max([opset, *(LATER.get(node.op, 0) for node in nodes)])
    graph = helper.make_graph(
        [node.proto() for node in nodes],
        'drawn',
        [info(name, array) for name, array in inputs.items()],
        [
            info(name, types[name]) if types is not None else onnx.ValueInfoProto(name=name)
            for name in outputs
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid('', opset)], ir_version=IR_VERSION
    )


def save(net: Net, path: Path) -> None:
    """The model as .onnx, and its inputs beside it as .npz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(net.proto().SerializeToString())
    arrays: dict[str, Any] = {f'in_{n}': a for n, a in net.inputs.items()}
    np.savez(path.with_suffix('.npz'), **arrays)


def load(path: Path) -> tuple[tuple[Node, ...], Arrays, Arrays, tuple[str, ...]]:
    """Nodes, inputs, constants and outputs of what `save` wrote."""
    model = onnx.load_from_string(path.read_bytes())
    nodes = tuple(
        Node(
            proto.op_type, tuple(proto.input), tuple(proto.output),
            {a.name: helper.get_attribute_value(a) for a in proto.attribute},
            min(OPSET, model.opset_import[0].version),
        )
        for proto in model.graph.node
    )  # fmt: skip
    with np.load(path.with_suffix('.npz')) as data:
        inputs = {name[3:]: data[name] for name in data.files}
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return nodes, inputs, constants, tuple(o.name for o in model.graph.output)
