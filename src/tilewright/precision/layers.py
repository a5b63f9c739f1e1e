"""Error by layer: what a quantised model computes beside the model of floats.

Goes in: a calibrated model, what was made of it, samples. Comes out: for every node whose result
is stored in 8 bits the relative error of that result, which holds what layers before it lost, too,
and of a node with weights the error of these alone. Errors are ||a - b|| / ||b|| over all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.fallback.sessions import Session
from tilewright.precision.calibrate import Calibrated
from tilewright.precision.samples import Sample

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# What ONNX Runtime's tool calls a value that was stored in 8 bits, and is a float again.
DEQUANTISED = '_DequantizeLinear_Output'


@dataclass(frozen=True, slots=True)
class LayerError:
    """One node. `low` and `high` are the range of its result; `weights` is None where it has none.

    error    of its result, against the model of floats
    weights  of its weights
    """

    name: str
    op: str
    low: float
    high: float
    error: float
    weights: float | None = None

    def to_json(self) -> dict:
        return asdict(self)


def layer_errors(
    calibrated: Calibrated, quantised: ModelProto, samples: Sequence[Sample], threads: int = 1
) -> tuple[LayerError, ...]:
    """[Calibrated, ModelProto, samples] -> errors, in the order of the nodes"""
    made = {n.output[0] for n in quantised.graph.node if n.op_type == 'DequantizeLinear'}
    results = _results(calibrated.model, made)
    plain = _with_outputs(calibrated.model, [value for _, value, _ in results])
    small = _with_outputs(quantised, [stored for *_, stored in results])
    sessions = [Session(model, threads, 'the model') for model in (plain, small)]
    sums = np.zeros((len(results), 2))
    for sample in samples:
        right, found = (session.run(sample) for session in sessions)
        for row, (_, value, stored) in enumerate(results):
            exact = right[value].astype(np.float64)
            sums[row] += ((found[stored] - exact) ** 2).sum(), (exact**2).sum()
    weights = _weight_errors(calibrated.model, quantised)
    rows = []
    for (node, value, _), (wrong, whole) in zip(results, sums, strict=True):
        ends = calibrated.range_of(value) or (0.0, 0.0)
        lost = weights.get(node.input[1]) if len(node.input) > 1 else None
        rows.append(LayerError(node.name, node.op_type, *ends, _ratio(wrong, whole), lost))
    return tuple(rows)


def _results(model: ModelProto, made: set[str]) -> list[tuple[NodeProto, str, str]]:
    """(node, its result, what that is called in the quantised model) for nodes of integers.

    An activation that only cuts off is no node of its own there: its result is that of the node
    before it. Results of the model keep their names.
    """
    readers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    outputs, done, found = {value.name for value in model.graph.output}, set(), []
    for node in model.graph.node:
        value = node.output[0]
        after = readers.get(value, [])
        if len(after) == 1 and after[0].op_type in ('Relu', 'Clip') and value not in outputs:
            value = after[0].output[0]
        stored = next((name for name in (f'{value}{DEQUANTISED}', value) if name in made), None)
        if stored is not None and value not in done:
            done.add(value)
            found.append((node, value, stored))
    return found


def _weight_errors(model: ModelProto, quantised: ModelProto) -> dict[str, float]:
    """weights -> their error"""
    from onnx import numpy_helper

    small = {tensor.name: tensor for tensor in quantised.graph.initializer}
    found = {}
    for tensor in model.graph.initializer:
        names = [f'{tensor.name}_{part}' for part in ('quantized', 'scale')]
        if small.keys() >= set(names):
            parts = (tensor, *(small[name] for name in names))
            found[tensor.name] = _weight_error(*map(numpy_helper.to_array, parts))
    return found


def _weight_error(right: np.ndarray, stored: np.ndarray, scale: np.ndarray) -> float:
    """Weights are symmetric, so that zero points are 0; scales are one, or of the axis they fit."""
    if scale.size > 1:
        axis = next(i for i, size in enumerate(right.shape) if size == scale.size)
        scale = scale.reshape([-1 if i == axis else 1 for i in range(right.ndim)])
    difference = stored.astype(np.float64) * scale - right
    return _ratio(float((difference**2).sum()), float((right.astype(np.float64) ** 2).sum()))


def _ratio(wrong: float, whole: float) -> float:
    return float(np.sqrt(wrong / whole)) if whole > 0 else float(np.sqrt(wrong))


def _with_outputs(model: ModelProto, names: Sequence[str]) -> ModelProto:
    """The model with further values among its results."""
    from onnx import ModelProto, ValueInfoProto

    made = ModelProto()
    made.CopyFrom(model)
    there = {value.name for value in made.graph.output}
    made.graph.output.extend(ValueInfoProto(name=n) for n in names if n not in there)
    return made


def layer_table(rows: Sequence[LayerError]) -> str:
    """The errors for people."""
    width = max([len(row.name) for row in rows] + [4])
    lines = [f'{"node".ljust(width)}  {"operator":18}  {"range":>21}    error  of weights']
    for row in rows:
        lost = '' if row.weights is None else f'{row.weights:11.5f}'
        lines.append(
            f'{row.name.ljust(width)}  {row.op:18}  {row.low:10.4g} {row.high:10.4g}  '
            f'{row.error:7.5f} {lost}'.rstrip()
        )
    return '\n'.join(lines)
