"""The parts of a model that have one type each: a convolution or product and what follows it.

Goes in: a calibrated model. Comes out: units in the order of their products, each with the names
of its nodes, and how many numbers pass from one unit to another. A node that is no product belongs
to the last unit that it reads from, where kernels join it, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

PRODUCTS = ('Conv', 'ConvTranspose', 'Gemm', 'MatMul')


@dataclass(frozen=True, slots=True)
class Unit:
    """`name` is that of its product, `nodes` are all of its nodes, `values` what they make, `work`
    multiply-adds.
    """

    name: str
    op: str
    nodes: tuple[str, ...]
    values: tuple[str, ...]
    work: float


@dataclass(frozen=True, slots=True)
class Units:
    """`edges`: (unit, unit that reads from it, numbers that pass)."""

    units: tuple[Unit, ...]
    edges: tuple[tuple[int, int, int], ...]
    outside: tuple[str, ...]  # nodes before any product, which stay floats

    def floats(self, integers: tuple[bool, ...]) -> list[str]:
        """The nodes that stay floats where these units are integers."""
        left = [unit.nodes for unit, x in zip(self.units, integers, strict=True) if not x]
        return [*self.outside, *(name for nodes in left for name in nodes)]


def units_of(model: ModelProto, excluded: tuple[str, ...] = ()) -> Units:
    """[ModelProto] -> [Units]; products that are excluded make none."""
    known = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    infos = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in infos}
    place: dict[str, int] = {}  # value -> unit
    products, members, outside = [], [], []
    edges: dict[tuple[int, int, str], int] = {}
    for node in model.graph.node:
        read = [name for name in node.input if name in place]
        weights = [known[name] for name in node.input[1:2] if name in known]
        if node.op_type in PRODUCTS and weights and node.name not in excluded:
            at = len(products)
            size = math.prod(shapes.get(node.output[0], [1]))
            outputs = weights[0][0] if node.op_type.startswith('Conv') else weights[0][-1]
            products.append((node, size * math.prod(weights[0]) / max(outputs, 1)))
            members.append([])
        elif read:
            at = max(place[name] for name in read)
        else:
            outside.append(node.name)
            continue
        members[at].append(node.name)
        for name in read:
            if place[name] != at:
                edges[place[name], at, name] = math.prod(shapes.get(name, [0]))
        place.update(dict.fromkeys(node.output, at))
    made = [tuple(name for name, at in place.items() if at == i) for i in range(len(products))]
    units = tuple(
        Unit(node.name, node.op_type, tuple(names), values, work)
        for (node, work), names, values in zip(products, members, made, strict=True)
    )
    return Units(units, tuple((i, j, n) for (i, j, _), n in edges.items()), tuple(outside))
