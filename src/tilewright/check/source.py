"""The model that a network is compiled from, as a check needs it: to be computed, to be written.

Goes in: what `tw.compile` was given. Comes out: the right results by whoever knows the model best,
and the model as an ONNX file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.check.difference import Arrays
from tilewright.check.expected import (
    Expected,
    Whole,
    by_onnxruntime,
    by_program,
    by_torch,
    whole_model,
    with_outputs,
)
from tilewright.errors import MissingError, ModelError
from tilewright.graph.graph import Graph, Value
from tilewright.graph.lower import lower
from tilewright.graph.program import Program

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Source:
    """What was compiled.

    kind   'onnx': a path, bytes or ModelProto; 'torch': a module; 'ours': a Graph or Program
    read   the graph that it was read as, or the program that was given
    """

    kind: str
    model: Any
    read: Graph | Program
    shapes: Mapping[str, Sequence[int]] | None = None
    constants: Mapping[str, np.ndarray] | None = None
    example_inputs: Any = None
    threads: int = 1

    @cached_property
    def plain(self) -> Program:
        """The model, lowered with no pass."""
        return self.read if isinstance(self.read, Program) else lower(self.read)

    @cached_property
    def whole(self) -> Whole:
        """An ONNX model that stands alone."""
        return whole_model(self.model, self.shapes, self.constants)

    def right(self, arrays: Arrays, most_flops: float = math.inf) -> Expected | None:
        """The right results for these inputs; None where numpy has to do more than this."""
        try:
            if self.kind == 'onnx':
                return by_onnxruntime(self.whole, arrays, self.threads, self.plain.name)
            if self.kind == 'torch' and isinstance(self.read, Graph):
                return by_torch(self.model, self.read, arrays, self.shapes, self.example_inputs)
        except (MissingError, ModelError):
            pass  # it is not installed, or does not know an operator or dtype that we know
        if sum(task.group.flops for task in self.plain.tasks) > most_flops:
            return None
        return by_program(self.plain, arrays)

    def inside(self, arrays: Arrays, names: Sequence[str]) -> Arrays:
        """What ONNX Runtime computes for values inside an ONNX model, for those that it has."""
        if self.kind != 'onnx':
            return {}
        try:
            made = with_outputs(self.whole, names)
            return by_onnxruntime(made, arrays, self.threads, self.plain.name).arrays
        except (MissingError, ModelError):
            return {}

    @property
    def proto(self) -> ModelProto:
        """The model as an ONNX model that stands alone."""
        from tilewright.zoo.as_onnx import graph_to_onnx

        if self.kind == 'onnx':
            return self.whole.proto
        if isinstance(self.read, Program):
            raise ModelError(f'{self.read.name} is a program, which no ONNX file can hold')
        types = self.plain.values
        outputs = [Value(n, types[v].shape, types[v].dtype) for n, v in self.plain.outputs]
        return graph_to_onnx(self.read, outputs)

    def write(self, path: Path) -> None:
        """Write the model as an ONNX file."""
        import onnx

        onnx.save(self.proto, path)
