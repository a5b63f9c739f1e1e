"""Backends for ONNX's test runner: programs executed by the reference, or compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import ModelProto
from onnx.backend.base import Backend, BackendRep

from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower, shape_inputs
from tilewright.graph.program import Program
from tilewright.importers.onnx import import_onnx
from tilewright.machine.measure import load_machine
from tilewright.network.compile import compile

Execute = Callable[[Program, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class Prepared(BackendRep):
    """A model; node tests give what decides shapes as inputs, so that it is compiled for a call."""

    def __init__(self, model: ModelProto, execute: Execute) -> None:
        self.model, self.execute = model, execute

    def run(self, inputs: Sequence[np.ndarray], **kwargs: object) -> tuple[np.ndarray, ...]:
        names = [info.name for info in self.model.graph.input]
        given = dict(zip(names, map(np.asarray, inputs), strict=True))
        program = program_of(self.model, given)
        results = self.execute(program, {name: given[name] for name in program.inputs})
        return tuple(np.asarray(results[info.name]) for info in self.model.graph.output)


def program_of(model: ModelProto, given: Mapping[str, np.ndarray]) -> Program:
    """The program of a model for these inputs; those that decide shapes are fixed."""
    shapes = {name: array.shape for name, array in given.items()}
    graph = import_onnx(model, shapes)
    fixed = {name: given[name] for name in shape_inputs(graph)}
    return lower(import_onnx(model, shapes, fixed) if fixed else graph)


class ReferenceBackend(Backend):
    """Programs executed by graph/evaluate.py."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = 'CPU', **kwargs: object) -> BackendRep:
        return Prepared(model, evaluate)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == 'CPU'


class CompiledBackend(ReferenceBackend):
    """Programs compiled for this host, with every pass."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = 'CPU', **kwargs: object) -> BackendRep:
        return Prepared(model, _compiled)


def _compiled(program: Program, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    # Figures of the machine decide schedules, not results.
    machine, _ = load_machine(measure=False)
    return compile(program, machine=machine, threads=2).run(dict(inputs))
