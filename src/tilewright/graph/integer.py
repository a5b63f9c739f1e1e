"""Convolutions and products between quantised tensors, on their integers.

    x -> DequantizeLinear -> Conv(.., DequantizeLinear(w)) -> Relu -> QuantizeLinear -> y
    x -> QLinearConv(.., w, ..) -> Clip -> y

Goes in: a graph as tools for quantisation write them (QDQ). Comes out: one in which a Conv, Gemm or
MatMul whose factors are dequantised reads what is stored. Sums are exact, and the scales behind
them are one multiplication by a float, as ONNX Runtime has it; where no QuantizeLinear follows, the
sums are dequantised by the product of both scales. Rounding is monotone, so that an activation that
cuts off is one of integers. Where DequantizeLinear and QuantizeLinear stand around an operator that
moves or compares elements, with the same scale, it takes the integers themselves; tensors of
several scales are stored anew before they are concatenated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.graph.dead import drop_dead
from tilewright.graph.graph import DTYPES, Graph, Node, fresh_name
from tilewright.graph.lowering.types import ELEMENT_TYPES

SMALL = (np.dtype(np.uint8), np.dtype(np.int8))
# Operators that give elements of their first input, whatever these stand for.
_MOVES = ('MaxPool', 'Reshape', 'Flatten', 'Transpose', 'Squeeze', 'Unsqueeze', 'Slice')
# Operators that store their results, and which of their inputs is the zero point of that.
_STORE = {'QLinearConv': 7, 'QLinearMatMul': 7, 'com.microsoft::QLinearAdd': 7}
# How far a bias's scale may be from the product of both others, in float32.
SAME_SCALE = 1e-5


@dataclass(frozen=True, slots=True)
class _Stored:
    """A value as it is stored: its name, its scale and its zero point, which are constants, and the
    axis along which there are several of them.
    """

    name: str
    scale: str
    zero: str
    axis: Any = 1


def on_integers(graph: Graph) -> Graph:
    """[Graph] -> [Graph]"""
    if not any(node.op == 'DequantizeLinear' for node in graph.nodes):
        return graph
    graph = _with_zero_points(graph)
    rewriting = _Rewriting(graph, set(graph.names), dict(graph.constants))
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes += rewriting.rewritten(node)
    made = replace(graph, nodes=tuple(nodes), constants=rewriting.constants)
    return _apart(drop_dead(made))


def _with_zero_points(graph: Graph) -> Graph:
    """Zero points that are left out, which are 0, as constants."""
    constants, taken, nodes = dict(graph.constants), set(graph.names), []
    kinds: dict[str, np.dtype] = {v.name: np.dtype(DTYPES[v.dtype]) for v in graph.inputs}
    kinds |= {name: array.dtype for name, array in constants.items()}
    for node in graph.nodes:
        kind = _stored_kind(node, kinds)
        quantises = node.op in ('QuantizeLinear', 'DequantizeLinear')
        if kind is not None and quantises and kind in SMALL and not (*node.inputs, '', '')[2]:
            scale, zero = node.inputs[1], fresh_name(f'{node.outputs[0]}/zero', taken)
            if scale in constants:
                constants[zero] = np.zeros_like(constants[scale], kind)
                kinds[zero] = kind
                node = replace(node, inputs=(*node.inputs[:2], zero))
        if kind is not None and node.op != 'DequantizeLinear':
            kinds[node.outputs[0]] = kind
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _stored_kind(node: Node, kinds: Mapping[str, np.dtype]) -> np.dtype | None:
    """What a node stores or, dequantising, reads; None where that is not known or nothing."""
    if node.op == 'QuantizeLinear':
        zero = (*node.inputs, '')[2]
        if not zero:
            named: Any = node.attributes.get('output_dtype', 0)
            return np.dtype(DTYPES[ELEMENT_TYPES.get(named, 'u8')])
        return kinds.get(zero)
    if node.op in _STORE:
        return kinds.get((*node.inputs, *[''] * 8)[_STORE[node.op]])
    return kinds.get(node.inputs[0]) if node.op in ('DequantizeLinear', *_MOVES) else None


@dataclass
class _Rewriting:
    """What became of the nodes so far. `gone` are nodes whose work an earlier one does."""

    graph: Graph
    taken: set[str]
    constants: dict[str, np.ndarray]
    gone: set[str] = field(default_factory=set)

    def rewritten(self, node: Node) -> list[Node]:
        """The nodes in the place of this one."""
        if node.outputs[0] in self.gone:
            return []
        if node.op in _MOVES:
            return self._moved(node)
        if node.op == 'Add':
            return self._added(node)
        if node.op == 'Concat':
            return self._joined(node)
        if node.op not in ('Conv', 'Gemm', 'MatMul'):
            return [node]
        image = self._stored(node.inputs[0])
        weights = self._stored(node.inputs[1])
        if image is None or weights is None or weights.name not in self.constants:
            return [node]
        return self._product(node, image, weights) or [node]

    def _stored(self, value: str) -> _Stored | None:
        """What a dequantised value is stored as, where scale and zero point are known."""
        node = self.graph.producers.get(value)
        if node is None or node.op != 'DequantizeLinear' or node.attributes.get('block_size', 0):
            return None
        name, scale, zero = (*node.inputs, '')[:3]
        known = scale in self.constants and zero in self.constants
        if not known or self.constants[zero].dtype not in SMALL:
            return None
        return _Stored(name, scale, zero, node.attributes.get('axis', 1))

    def _product(self, node: Node, image: _Stored, weights: _Stored) -> list[Node]:
        """A Conv, Gemm or MatMul on integers, and what cuts its result off; [] where it stays."""
        array, conv = self.constants[weights.name], node.op == 'Conv'
        attributes = dict(node.attributes)
        if self.constants[image.scale].size != 1 or self.constants[image.zero].size != 1:
            return []
        channels = 0 if conv or attributes.get('transB', 0) else array.ndim - 1
        if not self._is_along(weights, channels, array.shape):
            return []
        if node.op == 'Gemm':
            usual = {'alpha': 1.0, 'beta': 1.0, 'transA': 0}
            if any(attributes.get(name, value) != value for name, value in usual.items()):
                return []
            if channels == 0:
                turned = np.ascontiguousarray(array.T)
                weights = replace(weights, name=self._constant(f'{weights.name}/turned', turned))
            attributes = {}
        bias = node.inputs[2] if len(node.inputs) > 2 else ''
        sums = self._bias(bias, image, weights, array.shape[channels]) if bias else ''
        if sums is None:
            return []
        end = self._quantised(node.outputs[0])
        if end is None:
            return self._dequantised(node, attributes, image, weights, sums)
        quantise, cut = end
        inputs = (
            image.name, image.scale, image.zero, weights.name, weights.scale, weights.zero,
            *quantise.inputs[1:3], *filter(None, [sums]),
        )  # fmt: skip
        op = 'QLinearConv' if conv else 'QLinearMatMul'
        return self._ended(op, node, inputs, attributes, quantise, cut)

    def _is_along(self, stored: _Stored, axis: int, shape: tuple[int, ...]) -> bool:
        """Whether a scale and a zero point are of a tensor, or of the channels along an axis."""
        sizes = {self.constants[name].size for name in (stored.scale, stored.zero)}
        return sizes == {1} or (
            sizes <= {1, shape[axis]} and stored.axis in (axis, axis - len(shape))
        )

    def _bias(self, bias: str, image: _Stored, weights: _Stored, channels: int) -> str | None:
        """The integers of a bias, whose scale is the product of both others; None: it has none."""
        node = self.graph.producers.get(bias)
        if node is None or node.op != 'DequantizeLinear':
            return None
        name, *others = (*node.inputs, '')[:3]
        array, (scale, zero) = self.constants.get(name), map(self.constants.get, others)
        if array is None or array.dtype != np.int32 or array.shape != (channels,) or scale is None:
            return None
        product = self._scale(image, weights)
        if scale.size not in (1, product.size) or (zero is not None and zero.any()):
            return None
        near = np.allclose(scale.ravel(), product.ravel(), rtol=SAME_SCALE, atol=0)
        return name if near else None

    def _scale(self, image: _Stored, weights: _Stored) -> np.ndarray:
        return self.constants[image.scale] * self.constants[weights.scale]

    def _quantised(self, value: str) -> tuple[Node, Node | None] | None:
        """The QuantizeLinear that alone reads a value, and what cuts off before it."""
        node = self._only_reader(value)
        cut = None
        if node is not None and self._cuts(node):
            cut, node = node, self._only_reader(node.outputs[0])
        if node is None or node.op != 'QuantizeLinear' or len(node.inputs) < 3:
            return None
        known = [self.constants.get(name) for name in node.inputs[1:]]
        if any(array is None or array.size != 1 for array in known):
            return None
        zero = self.constants[node.inputs[2]]
        return (node, cut) if zero.dtype in SMALL else None

    def _cuts(self, node: Node) -> bool:
        known = all(name in self.constants for name in node.inputs[1:] if name)
        return node.op in ('Relu', 'Clip') and known

    def _only_reader(self, value: str) -> Node | None:
        readers = self.graph.readers.get(value, ())
        alone = len(readers) == 1 and readers[0].inputs.count(value) == 1
        first = alone and readers[0].inputs[0] == value
        return readers[0] if first and not self.graph.is_output(value) else None

    def _limits(self, quantise: Node, cut: Node) -> tuple[np.ndarray, np.ndarray]:
        """What an activation cuts off at, as stored numbers."""
        scale, zero = (self.constants[name] for name in quantise.inputs[1:3])
        ends = np.iinfo(zero.dtype)
        given = [self.constants[name] if name else None for name in (*cut.inputs[1:], '', '')[:2]]
        if cut.op == 'Relu':
            given = [np.zeros((), np.float32), None]
        made = []
        for bound, end in zip(given, (ends.min, ends.max), strict=True):
            if bound is None:
                made.append(np.array(end, zero.dtype))
                continue
            stored = np.rint(bound.reshape(()) / scale.reshape(())) + zero.reshape(())
            made.append(np.clip(stored, ends.min, ends.max).astype(zero.dtype))
        return made[0], made[1]

    def _dequantised(
        self, node: Node, attributes: Mapping, image: _Stored, weights: _Stored, bias: str
    ) -> list[Node]:
        """The sums, times both scales: what no QuantizeLinear follows."""
        op = 'ConvInteger' if node.op == 'Conv' else 'MatMulInteger'
        sums = fresh_name(f'{node.outputs[0]}/sums', self.taken)
        inputs = (image.name, weights.name, image.zero, weights.zero, *filter(None, [bias]))
        product = self._scale(image, weights)
        if product.size == 1:
            product = product.reshape(())
        scale = self._constant(f'{node.outputs[0]}/scale', product)
        axis = {'axis': 1 if node.op == 'Conv' else -1}
        return [
            Node(op, node.name, inputs, (sums,), dict(attributes)),
            Node('DequantizeLinear', f'{node.name}/scale', (sums, scale), node.outputs, axis),
        ]

    def _added(self, node: Node) -> list[Node]:
        """A sum of two stored tensors, stored again, and what cuts it off."""
        stored = [self._stored(name) for name in node.inputs]
        end = self._quantised(node.outputs[0])
        if end is None or None in stored:
            return [node]
        one = [self.constants[n].size == 1 for s in stored if s for n in (s.scale, s.zero)]
        if not all(one):
            return [node]
        inputs = [n for s in stored if s for n in (s.name, s.scale, s.zero)]
        return self._ended(
            'com.microsoft::QLinearAdd', node, (*inputs, *end[0].inputs[1:3]), {}, *end
        )

    def _ended(
        self, op: str, node: Node, inputs: tuple[str, ...], attributes: Mapping, quantise: Node,
        cut: Node | None,
    ) -> list[Node]:  # fmt: skip
        """A node that stores what it computes, cut off at the limits of an activation."""
        self.gone.add(quantise.outputs[0])
        if cut is None:
            return [Node(op, node.name, inputs, quantise.outputs, dict(attributes))]
        self.gone.add(cut.outputs[0])
        whole = fresh_name(f'{quantise.outputs[0]}/whole', self.taken)
        made = Node(op, node.name, inputs, (whole,), dict(attributes))
        low, high = (
            self._constant(f'{quantise.outputs[0]}/{side}', bound)
            for side, bound in zip(('low', 'high'), self._limits(quantise, cut), strict=True)
        )
        return [made, Node('Clip', cut.name, (whole, low, high), quantise.outputs)]

    def _moved(self, node: Node) -> list[Node]:
        """An operator that gives elements of its input, on what is stored."""
        stored = self._stored(node.inputs[0])
        if stored is None or len([name for name in node.outputs if name]) != 1:
            return [node]
        end = self._quantised(node.outputs[0])
        if end is None or end[1] is not None:
            return [node]
        same = all(
            np.array_equal(self.constants[a], self.constants[b]) and self.constants[a].size == 1
            for a, b in zip((stored.scale, stored.zero), end[0].inputs[1:], strict=True)
        )
        if not same or self.constants[stored.zero].dtype != self.constants[end[0].inputs[2]].dtype:
            return [node]
        self.gone.add(end[0].outputs[0])
        inputs = (stored.name, *node.inputs[1:])
        return [replace(node, inputs=inputs, outputs=end[0].outputs)]

    def _joined(self, node: Node) -> list[Node]:
        """A concatenation of stored tensors, each stored as the result is before it is copied: what
        has the same scale is copied as it is.
        """
        end, stored = self._quantised(node.outputs[0]), [self._stored(v) for v in node.inputs]
        if end is None or end[1] is not None or None in stored:
            return [node]
        quantise, made, parts = end[0], [], []
        wanted = [self.constants[name] for name in quantise.inputs[1:3]]
        for value, one in zip(node.inputs, stored, strict=True):
            assert one is not None
            have = [self.constants[name] for name in (one.scale, one.zero)]
            if all(
                a.dtype == b.dtype and np.array_equal(a, b)
                for a, b in zip(have, wanted, strict=True)
            ):
                parts.append(one.name)
                continue
            parts.append(fresh_name(f'{value}/stored', self.taken))
            again = replace(quantise, name=parts[-1], inputs=(value, *quantise.inputs[1:]))
            made.append(replace(again, outputs=(parts[-1],)))
        self.gone.add(quantise.outputs[0])
        return [*made, replace(node, inputs=tuple(parts), outputs=quantise.outputs)]

    def _constant(self, name: str, array: np.ndarray) -> str:
        made = fresh_name(name, self.taken)
        self.constants[made] = array
        return made


def _apart(graph: Graph) -> Graph:
    """Every reader with a DequantizeLinear of its own, which can join it: what is stored is small,
    and dequantised again in no time.
    """
    shared = {
        node.outputs[0]: node
        for node in graph.nodes
        if node.op == 'DequantizeLinear'
        and len(graph.readers.get(node.outputs[0], ())) > 1
        and not graph.is_output(node.outputs[0])
    }
    taken, nodes = set(graph.names), []
    for node in graph.nodes:
        if node.outputs[0] in shared:
            continue
        copies = {}
        for value in dict.fromkeys(name for name in node.inputs if name in shared):
            name = copies[value] = fresh_name(value, taken)
            nodes.append(replace(shared[value], name=name, outputs=(name,)))
        nodes.append(replace(node, inputs=tuple(copies.get(v, v) for v in node.inputs)))
    return replace(graph, nodes=tuple(nodes))
