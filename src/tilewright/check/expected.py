"""The right results of a model, computed by something that shares no pass with a compiled network.

Goes in: a model and its inputs. Comes out: `Expected`, the results and who computed them:

    an ONNX model      ONNX Runtime, where it is installed and can run it
    a PyTorch module   PyTorch
    anything else      our own program, lowered with no pass, in float64 from the first task to the
                       last; whole numbers are exact
    a .tw file         the program that it holds, in float64. Its passes are behind it, so that they
                       are not checked: kernels and memory are
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.check.difference import Arrays, kernel_tolerance, tolerance_of
from tilewright.errors import MissingError, ModelError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import DTYPES, Graph
from tilewright.graph.lower import lower
from tilewright.graph.program import Program
from tilewright.store import network_file

if TYPE_CHECKING:
    from onnx import ModelProto

NUMPY = 'the reference in numpy'
Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Expected:
    """Results by name, in the dtypes of the network, and who computed them."""

    arrays: Arrays
    by: str


@dataclass(frozen=True)
class Whole:
    """An ONNX model that stands alone: sizes are settled, weights and fixed inputs are inside."""

    graph: Graph
    proto: ModelProto


def whole_model(
    model: Any, shapes: Shapes | None = None, constants: Mapping[str, np.ndarray] | None = None
) -> Whole:
    """[path, bytes, ModelProto] -> [Whole]"""
    from tilewright.fallback.sessions import Kind, sub_model
    from tilewright.importers.onnx import import_traced

    traced = import_traced(model, shapes, constants)
    graph, source = traced.graph, traced.model
    stored = {tensor.name for tensor in source.graph.initializer} | set(constants or {})
    proto = sub_model(
        source, source.graph.node, {value.name: Kind.of(value) for value in graph.inputs},
        {name: array for name, array in graph.constants.items() if name in stored},
        [name for name, _ in graph.outputs], traced.folder,
    )  # fmt: skip
    return Whole(graph, proto)


def with_outputs(whole: Whole, names: Sequence[str]) -> Whole:
    """The model with values between its nodes as results too, those of these names that it has."""
    from onnx import ModelProto, ValueInfoProto

    made = ModelProto()
    made.CopyFrom(whole.proto)
    there = {value.name for value in made.graph.output}
    written = {name for node in made.graph.node for name in node.output}
    made.graph.output.extend(
        ValueInfoProto(name=name) for name in dict.fromkeys(names) if name in written - there
    )
    return Whole(whole.graph, made)


def by_onnxruntime(whole: Whole, arrays: Arrays, threads: int, name: str) -> Expected:
    """What ONNX Runtime computes; raises where it is not installed or cannot."""
    from tilewright.fallback.sessions import Session

    return Expected(Session(whole.proto, threads, name).run(arrays), 'ONNX Runtime')


def by_torch(
    module: Any, graph: Graph, arrays: Arrays, shapes: Shapes | None, examples: Any
) -> Expected:
    """What a PyTorch module computes."""
    from tilewright.importers.torch import run_torch

    given = [np.ascontiguousarray(arrays[value.name]) for value in graph.inputs]
    found = run_torch(module, given, shapes, examples)
    if len(found) != len(graph.outputs):
        raise ModelError(f'PyTorch gives {len(found)} results instead of {len(graph.outputs)}')
    names = (name for name, _ in graph.outputs)
    return Expected(dict(zip(names, found, strict=True)), 'PyTorch')


def by_program(program: Program, arrays: Arrays) -> Expected:
    """What our own reference computes, in float64 until the results are rounded."""
    found = evaluate(program, arrays, exact=True)
    return Expected({name: rounded(program, name, found[name]) for name in found}, NUMPY)


def rounded(program: Program, output: str, array: np.ndarray) -> np.ndarray:
    """An exact result in the dtype of the network's."""
    kind = DTYPES[program.values[dict(program.outputs)[output]].dtype]
    with np.errstate(over='ignore', invalid='ignore'):
        return array.astype(kind)


def by_file(
    file: Path, shapes: Shapes, arrays: Arrays, threads: int
) -> tuple[Expected, float]:  # fmt: skip
    """What an .onnx or .tw file computes, and how far a network may be from it."""
    if file.suffix == '.tw':
        held = program_of(file)
        return by_program(held, arrays), tolerance_of(held)
    whole = whole_model(file, shapes)
    try:
        plain = lower(whole.graph)
    except ModelError:  # not all of it is ours: as many sums as nodes, at most
        limit = kernel_tolerance(['f32']) * math.sqrt(len(whole.graph.nodes))
        return by_onnxruntime(whole, arrays, threads, str(file)), limit
    try:
        return by_onnxruntime(whole, arrays, threads, str(file)), tolerance_of(plain)
    except (MissingError, ModelError):
        return by_program(plain, arrays), tolerance_of(plain)


def inputs_of(file: Path, shapes: Shapes) -> tuple[str, ...]:
    """The inputs of an .onnx or .tw file."""
    if file.suffix == '.tw':
        return program_of(file).inputs
    return tuple(value.name for value in whole_model(file, shapes).graph.inputs)


def program_of(file: str | os.PathLike[str]) -> Program:
    """The program that a .tw file holds, whatever it was compiled for."""
    return network_file.read(file).program
