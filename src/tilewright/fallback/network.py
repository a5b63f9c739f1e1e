"""A network of which ONNX Runtime computes what is not supported, in pieces of ours and theirs.

Goes in: an ONNX model and a function that compiles a graph of ours. Comes out: `MixedNetwork`,
which is called as `Network` is. Values between pieces are numpy arrays; a result whose shape is
known only when it runs has whatever shape it has then.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto

from tilewright.errors import ArrayError, InputError, ModelError
from tilewright.fallback.sessions import Kind, Session, sub_model
from tilewright.fallback.split import Piece, Split, Unit, graph_of, split
from tilewright.graph.graph import Graph, Value
from tilewright.importers.onnx import Traced, import_traced
from tilewright.ops.dtypes import NUMPY
from tilewright.runtime.cpu.loaded import Compiled
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.network_arrays import CalledNetwork, check_apart, check_named, checked_input
from tilewright.runtime.profile import Profile, TaskTime

FALLBACKS = ('onnxruntime',)


@dataclass(frozen=True, slots=True)
class Result:
    """The type of a result; sizes that are known only when it runs are None."""

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str


@dataclass(frozen=True, slots=True)
class Ran:
    """A piece that is ready: a network of ours, or a session with the nodes in it. A network that
    computes in f16 takes and gives float32 (network/compile.py); values between pieces are f16.
    """

    runs: Network | Session
    reads: tuple[str, ...]
    nodes: tuple[str, ...]
    gives: tuple[Value, ...] = ()  # results of a network of ours, as the model has them

    def run(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        found = self.runs.run(self.given(values))
        return found | {v.name: _as(found[v.name], v.dtype) for v in self.gives}

    def given(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the piece reads, as it takes it."""
        taken = {name: values[name] for name in self.reads}
        if isinstance(self.runs, Network):
            taken |= {v.name: _as(taken[v.name], v.dtype) for v in self.runs.inputs}
        return taken


def _as(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.astype(NUMPY[dtype], copy=False)


class MixedNetwork(CalledNetwork):
    """A network with nodes of ONNX Runtime in it. Called as `Network` is.

    Pieces are networks and sessions; both may be called from several threads.
    """

    def __init__(self, traced: Traced, found: Split, pieces: Sequence[Ran], threads: int) -> None:
        graph = traced.graph
        self.name, self.threads, self.pieces = graph.name, threads, tuple(pieces)
        self.inputs = graph.inputs
        self._constants = {
            value: found.constants[value] for _, value in graph.outputs if value in found.constants
        }
        self._outputs = graph.outputs
        self.outputs = tuple(_result(name, value, found) for name, value in graph.outputs)
        self.theirs = tuple((unit.proto.op_type, unit.name) for unit in found.theirs)

    @property
    def networks(self) -> tuple[Network, ...]:
        """The pieces that are ours."""
        return tuple(piece.runs for piece in self.pieces if isinstance(piece.runs, Network))

    @property
    def tasks(self) -> tuple[Any, ...]:
        return tuple(task for network in self.networks for task in network.tasks)

    @property
    def kernels(self) -> dict[str, Compiled]:
        return {digest: k for net in self.networks for digest, k in net.kernels.items()}

    @property
    def weight_bytes(self) -> int:
        """Bytes of the constants of our pieces; ONNX Runtime does not tell its own."""
        return sum(network.weight_bytes for network in self.networks)

    @property
    def arena_bytes(self) -> int:
        return sum(network.arena_bytes for network in self.networks)

    @property
    def scratch_bytes(self) -> int:
        return sum(network.scratch_bytes for network in self.networks)

    def run(
        self, arrays: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Results by name. Those in `out` are written there, the others are new arrays."""
        wanted = out or {}
        values = self._values(arrays, wanted)
        given = {id(array) for array in values.values()}
        for piece in self.pieces:
            values |= piece.run(values)
        results: dict[str, np.ndarray] = {}
        for name, value in self._outputs:
            array = values[value]
            if name in wanted:
                _check_fits(name, array, wanted[name])
            if id(array) in given or any(array is other for other in results.values()):
                # What callers get is theirs alone; and a result that is an input must not be what
                # another result, written before it, has left of that input.
                array = np.array(array)
            results[name] = array
        for name, array in wanted.items():
            array[...] = results[name]
        return results | dict(wanted)

    def _values(
        self, arrays: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        check_named(self.name, arrays, out)
        names = [value.name for value in self.inputs]
        for unknown in (name for name in arrays if name not in names):
            raise ArrayError(f'{self.name} has no input {unknown!r}; it takes {self._signature()}')
        for missing in (name for name in names if name not in arrays):
            raise ArrayError(
                f'{self.name}: input {missing!r} is missing; it takes {self._signature()}'
            )
        for strange in (name for name in out if name not in {o.name for o in self.outputs}):
            raise ArrayError(f'{self.name} has no result {strange!r}')
        check_apart(self.name, [array for array in out.values() if isinstance(array, np.ndarray)])
        values: dict[str, Any] = {v.name: checked_input(v, arrays[v.name]) for v in self.inputs}
        return values | self._constants

    def time(self, arrays: Mapping[str, np.ndarray], repeats: int) -> list[float]:
        """Seconds of each of `repeats` calls."""
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            self.run(arrays)
            seconds.append(time.perf_counter() - start)
        return seconds

    def profile(self, *arrays: np.ndarray, calls: int = 20) -> Profile:
        """The time of every task of ours, and of every piece of ONNX Runtime."""
        named = self._examples(arrays, calls)
        total = 1e3 * float(np.median(self.time(named, calls + 2)[2:]))
        values, tasks, start = self._values(named, {}), [], 0.0
        for piece in self.pieces:
            for task in self._times(piece, values, calls):
                tasks.append(_moved(task, start))
                start += task.time_ms
            values |= piece.run(values)
        return Profile(self.name, self.threads, calls, total, tuple(tasks))

    def _times(self, piece: Ran, values: Mapping[str, Any], calls: int) -> Sequence[TaskTime]:
        if isinstance(piece.runs, Network):
            return piece.runs.profile(*piece.given(values).values(), calls=calls).tasks
        seconds = []
        for _ in range(calls):
            begin = time.perf_counter()
            piece.run(values)
            seconds.append(time.perf_counter() - begin)
        ms = 1e3 * float(np.median(seconds))
        label = piece.runs.what
        return [TaskTime(piece.nodes[0], label, piece.nodes, 'theirs', ms, 0.0, ms, ms, '', 0.0)]

    def __repr__(self) -> str:
        counted = Counter(op for op, _ in self.theirs)
        theirs = ', '.join(f'{count} x {op}' for op, count in counted.items())
        return (
            f'<network {self.name}: {self._signature()} -> '
            f'{", ".join(o.name for o in self.outputs)}, {self.threads} threads; by ONNX Runtime: '
            f'{theirs}>'
        )


def _result(name: str, value: str, found: Split) -> Result:
    if value in found.constants:
        array = found.constants[value]
        return Result(name, array.shape, array.dtype.name)
    kind = found.kinds[value]
    known = kind.value(name)
    return Result(name, kind.sizes, kind.text if known is None else known.dtype)


def _check_fits(name: str, array: np.ndarray, out: object) -> None:
    if not isinstance(out, np.ndarray):
        raise ArrayError(f'out of {name!r} is a {type(out).__name__}, not a numpy array')
    if out.shape != array.shape or out.dtype != array.dtype or not out.flags.writeable:
        raise ArrayError(
            f'out of {name!r} has shape {out.shape} and dtype {out.dtype}; the result has '
            f'{array.shape} and {array.dtype}'
        )


def _moved(task: TaskTime, start_ms: float) -> TaskTime:
    return replace(task, start_ms=start_ms)


@dataclass(frozen=True)
class Mixture:
    """An ONNX model, split."""

    traced: Traced
    found: Split
    threads: int

    @property
    def theirs(self) -> str:
        """The nodes that are left to ONNX Runtime, in words; '' where there are none."""
        return _said(self.found.theirs)

    def compiled(self, ours: Callable[[Graph], Network]) -> MixedNetwork:
        """The network; `ours` compiles a piece that is ours."""
        pieces = [self._ready(piece, n, ours) for n, piece in enumerate(self.found.pieces)]
        return MixedNetwork(self.traced, self.found, pieces, self.threads)

    def _ready(self, piece: Piece, number: int, ours: Callable[[Graph], Network]) -> Ran:
        graph, found = self.traced.graph, self.found
        nodes = tuple(unit.name for unit in piece.units)
        if piece.ours:
            made = graph_of(graph, piece, found, f'{graph.name}#{number}')
            kinds = (found.kinds[value].value(name) for name, value in made.outputs)
            return Ran(ours(made), piece.reads, nodes, tuple(v for v in kinds if v is not None))
        used = sorted({name for unit in piece.units for name in unit.reads})
        model = sub_model(
            self.traced.model, [unit.proto for unit in piece.units],
            {name: found.kinds[name] for name in piece.reads},
            {name: found.constants[name] for name in used if name in found.constants}, piece.gives,
            self.traced.folder,
        )  # fmt: skip
        expected = {name: found.kinds[name] for name in piece.gives}
        session = Session(model, self.threads, _said(piece.units), expected)
        return Ran(session, piece.reads, nodes)


def split_model(
    model: Any, shapes: Mapping[str, Sequence[int]] | None, fallback: str, threads: int
) -> Mixture:
    """[ONNX] -> [Mixture]: what is ours, what is left to `fallback`."""
    if fallback not in FALLBACKS:
        raise InputError(f'fallback is {fallback!r}; choose one of {", ".join(FALLBACKS)}')
    if not isinstance(model, str | os.PathLike | bytes | ModelProto):
        raise InputError(
            f'fallback={fallback!r} runs nodes of ONNX models, and this is a '
            f'{type(model).__name__}; leave it out'
        )
    traced = import_traced(model, shapes)

    def infer(
        unit: Unit, reads: Mapping[str, Kind], constants: Mapping[str, np.ndarray]
    ) -> Mapping[str, Kind]:
        made = sub_model(traced.model, [unit.proto], reads, constants, unit.gives, traced.folder)
        return Session(made, threads, _said([unit])).kinds()

    found = split(traced, infer)
    _check_results(traced, found)
    return Mixture(traced, found, threads)


def _check_results(traced: Traced, found: Split) -> None:
    """Raise where a result of the network is not a tensor: networks give arrays."""
    for name, value in traced.graph.outputs:
        kind = found.kinds.get(value)
        if kind is not None and not kind.is_tensor:
            raise ModelError(
                f'{traced.graph.name} has the result {name!r} of type {kind.text}; networks give '
                f'tensors alone: put a node such as ConcatFromSequence or SequenceAt behind it'
            )


def _said(units: Sequence[Unit]) -> str:
    """'2 x TopK (first: 'topk_1')', as in the message of what is not supported."""
    first: dict[str, list[str]] = {}
    for unit in units:
        domain = f'{unit.proto.domain}::' if unit.proto.domain else ''
        first.setdefault(f'{domain}{unit.proto.op_type}', []).append(unit.name)
    return '; '.join(f'{len(n)} x {op} (first: {n[0]!r})' for op, n in first.items())
