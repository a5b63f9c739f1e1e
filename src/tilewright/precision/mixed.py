"""A model of which some units are integers, as ONNX's QDQ form.

Goes in: a calibrated model, its units, which of them are integers. Comes out: the model in which
no float is rounded for floats alone:

    x -> Q -> DQ -> Conv -> Q -> DQ -> y       becomes, where only floats read y,
    x -> Q -> DQ -> Conv -> y

ONNX Runtime's tool leaves activations out that only cut off, since storing cuts off, too; where a
pair goes, its activation comes back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.precision.calibrate import Calibrated
from tilewright.precision.layers import DEQUANTISED
from tilewright.precision.units import Units

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


def mixed_model(calibrated: Calibrated, units: Units, integers: tuple[bool, ...]) -> ModelProto:
    """[Calibrated, Units, choice] -> [ModelProto]"""
    from onnx import ModelProto

    if not any(integers):
        plain = ModelProto()
        plain.CopyFrom(calibrated.model)
        return plain
    floats = set(units.floats(integers)) | set(calibrated.options.exclude)
    made = calibrated.quantised(sorted(floats))
    small = {node.name for node in calibrated.model.graph.node} - floats
    before = {name: node for node in calibrated.model.graph.node for name in node.output}
    there = {node.name for node in made.graph.node}
    readers: dict[str, list[NodeProto]] = {}
    for node in made.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    renamed: dict[str, str] = {}
    nodes: dict[int, list[NodeProto]] = {}  # what stands in the place of a node
    for store in made.graph.node:
        back = readers.get(store.output[0], []) if store.op_type == 'QuantizeLinear' else []
        ends = [node.output[0] for node in back]
        if not back or any(r.name in small for end in ends for r in readers.get(end, [])):
            continue
        value = next((e[: -len(DEQUANTISED)] for e in ends if e.endswith(DEQUANTISED)), ends[0])
        cut, result = before.get(value), store.input[0]
        nodes[id(store)] = []
        if cut is not None and cut.name not in there:
            again = type(cut)()
            again.CopyFrom(cut)
            again.input[0], again.output[0] = result, f'{value}/kept'
            nodes[id(store)], result = [again], again.output[0]
        for node, end in zip(back, ends, strict=True):
            nodes[id(node)] = []
            renamed[end] = result
    kept = [new for node in made.graph.node for new in nodes.get(id(node), [node])]
    outputs = {value.name for value in made.graph.output}
    # Results keep their names: whoever computes them takes these on.
    names = {result: end for end, result in renamed.items() if end in outputs}
    final = {**{end: names.get(r, r) for end, r in renamed.items()}, **names}
    for node in kept:
        for field in (node.input, node.output):
            for index, name in enumerate(field):
                field[index] = final.get(name, name)
    copies = [type(node).FromString(node.SerializeToString()) for node in kept]
    del made.graph.node[:]
    made.graph.node.extend(copies)
    read = {name for node in copies for name in node.input}
    unused = [tensor for tensor in made.graph.initializer if tensor.name not in read]
    for tensor in unused:
        made.graph.initializer.remove(tensor)
    # The tool drops limits of an activation that nobody else has: they come back with it.
    have = {tensor.name for tensor in made.graph.initializer}
    have |= {name for node in copies for name in node.output}
    lost = (t for t in calibrated.model.graph.initializer if t.name in read - have)
    made.graph.initializer.extend(lost)
    return made
