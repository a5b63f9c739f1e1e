"""The model of floats that precisions are measured against, as an ONNX model that stands alone.

Goes in: whatever `tilewright.compile` takes, but programs and compiled files. Comes out: `Floats`:
the model, its inputs, and its results by ONNX Runtime.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright import zoo
from tilewright.check.source import Source
from tilewright.errors import InputError
from tilewright.fallback.sessions import Session
from tilewright.graph.graph import Graph, Value
from tilewright.graph.program import Program
from tilewright.precision.samples import Sample

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Floats:
    """A model of floats, its inputs, and who computes it with how many threads."""

    model: ModelProto
    inputs: tuple[Value, ...]
    threads: int = 1

    @classmethod
    def of(
        cls,
        model: Any,
        shapes: Mapping[str, Sequence[int]] | None = None,
        constants: Mapping[str, np.ndarray] | None = None,
        example_inputs: Sequence[Any] | None = None,
        threads: int = 1,
    ) -> Floats:
        """[file, bytes, ModelProto, name, module, Graph] -> [Floats]"""
        if isinstance(model, str) and model in zoo.KNOWN and not os.path.exists(model):
            model = zoo.onnx_model(model)
        if isinstance(model, Program) or str(model).endswith('.tw'):
            raise InputError(
                'a compiled network cannot be quantised; give the model that it was made from'
            )
        if isinstance(model, str | os.PathLike | bytes) or type(model).__name__ == 'ModelProto':
            from tilewright.importers.onnx import import_onnx

            read, kind = import_onnx(model, shapes, constants), 'onnx'
        elif isinstance(model, Graph):
            read, kind = model, 'ours'
        else:
            from tilewright.importers.torch import import_torch

            read, kind = import_torch(model, shapes, example_inputs), 'torch'
        source = Source(kind, model, read, shapes, constants, example_inputs)
        made = source.proto
        made.graph.name = read.name
        return cls(made, read.inputs, threads)

    @cached_property
    def _session(self) -> Session:
        return Session(self.model, self.threads, 'the model')

    def run(self, sample: Sample) -> dict[str, np.ndarray]:
        return self._session.run(sample)

    def results_of(
        self, model: ModelProto, samples: Sequence[Sample]
    ) -> list[dict[str, np.ndarray]]:  # fmt: skip
        """What another form of the model gives."""
        session = Session(model, self.threads, 'the quantised model')
        return [session.run(sample) for sample in samples]
