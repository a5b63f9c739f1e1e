"""Which nodes of a file are ours and which are left to ONNX Runtime, and in what order they run.

Goes in: a graph, the file's own nodes. Comes out: pieces, ours and theirs in turn. Theirs are the
nodes that are not supported, and those behind them whose shapes nobody knows before they run: our
kernels are made for one shape. Everything else is ours. What depends on constants alone is constant
for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
from onnx import NodeProto

from tilewright.errors import ModelError, UnsupportedError
from tilewright.fallback.sessions import Kind
from tilewright.fallback.subgraphs import captured
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.lower import types
from tilewright.graph.lowering.result import Known, Result
from tilewright.importers.onnx import Traced


@dataclass(frozen=True, eq=False)
class Unit:
    """A node of the file, and what it became in the graph. `reads` has what subgraphs use, too."""

    proto: NodeProto
    nodes: tuple[Node, ...]
    reads: frozenset[str]
    gives: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.nodes[0].name


@dataclass(frozen=True, eq=False)
class Piece:
    """Units that run together: values in by name, values out by name."""

    ours: bool
    units: tuple[Unit, ...]
    reads: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Split:
    """All pieces in order, what is constant, and the type of every value that is not."""

    pieces: tuple[Piece, ...]
    constants: Mapping[str, np.ndarray]
    kinds: Mapping[str, Kind]

    @property
    def theirs(self) -> tuple[Unit, ...]:
        return tuple(unit for piece in self.pieces if not piece.ours for unit in piece.units)


# (unit, types of what it reads, constants) -> types of what it gives
Infer = Callable[[Unit, Mapping[str, Kind], Mapping[str, np.ndarray]], Mapping[str, Kind]]


def units_of(traced: Traced) -> tuple[Unit, ...]:
    """The file's nodes, with the nodes of the graph that each became."""
    parts: dict[int, list[Node]] = {}
    for node in traced.graph.nodes:
        parts.setdefault(traced.numbers[node.name], []).append(node)
    made = []
    for number, nodes in parts.items():
        proto = traced.model.graph.node[number]
        inner = {name for node in nodes for name in node.outputs}
        reads = {name for node in nodes for name in node.inputs if name} | captured(proto)
        gives = tuple(name for name in proto.output if name)
        made.append(Unit(proto, tuple(nodes), frozenset(reads - inner), gives))
    _check_captured(traced, made)
    return tuple(made)


def _check_captured(traced: Traced, units: Sequence[Unit]) -> None:
    """Raise where a subgraph uses what nothing gives: no session could be given it either."""
    graph = traced.graph
    known = {value.name for value in graph.inputs} | graph.constants.keys()
    known |= {name for unit in units for name in unit.gives}
    for unit in units:
        for name in sorted(captured(unit.proto) - known):
            raise ModelError(
                f'{graph.name}: a subgraph of {unit.proto.op_type} {unit.name!r} uses {name!r}, '
                f'which nothing gives; the file is damaged'
            )


def split(traced: Traced, infer: Infer) -> Split:
    """[Graph] -> [Split]; `infer` says what the nodes that are not ours give."""
    return _Splitter(traced, infer).split()


class _Splitter:
    """What is known so far: who is whose, the types of values, constants."""

    def __init__(self, traced: Traced, infer: Infer) -> None:
        self.graph, self.infer = traced.graph, infer
        self.units = units_of(traced)
        self.theirs: set[Unit] = set()
        self.constants = dict(self.graph.constants)
        self.kinds = {value.name: Kind.of(value) for value in self.graph.inputs}
        self.told: dict[str, Kind] = {}  # what their nodes give
        self.by_name = {node.name: unit for unit in self.units for node in unit.nodes}

    def split(self) -> Split:
        while self._one_more():
            pass
        kept = [unit for unit in self.units if any(n not in self.constants for n in unit.gives)]
        return Split(self._pieces(kept), self.constants, self.kinds)

    def _one_more(self) -> bool:
        """Look at everything that can be known now; comes out: whether there is more to know."""
        found = self._ours()
        if found is None:
            return True
        for name, result in found.items():
            if isinstance(result, Known):
                self.constants[name] = result.array
            else:
                self.kinds[name] = Kind.of(Value(name, result.shape, result.dtype))
        more = False
        for unit in self.units:
            known = self.kinds.keys() | self.constants.keys()
            if unit.reads <= known and not set(unit.gives) <= known:
                # Of the nodes that were not looked at, those that read what is open are theirs.
                if unit not in self.theirs and not self._is_open(unit):
                    continue
                self.theirs.add(unit)
                reads = {name: self.kinds[name] for name in unit.reads if name in self.kinds}
                told = self.infer(unit, reads, self._constants(unit))
                self.told |= told
                self.kinds |= told
                more = True
        return more

    def _is_open(self, unit: Unit) -> bool:
        return any(self._open(name) for name in unit.reads)

    def _open(self, name: str) -> bool:
        return name in self.kinds and self.kinds[name].value(name) is None

    def _constants(self, unit: Unit) -> dict[str, np.ndarray]:
        return {name: self.constants[name] for name in unit.reads if name in self.constants}

    def _ours(self) -> dict[str, Result] | None:
        """What our nodes give, as far as it can be known; None where some turned out not to be."""
        values = [kind.value(name) for name, kind in self.told.items()]
        inputs = (*self.graph.inputs, *(value for value in values if value is not None))
        known = {value.name for value in inputs} | self.graph.constants.keys()
        units = []
        for unit in self.units:
            if unit not in self.theirs and unit.reads <= known:
                units.append(unit)
                known |= set(unit.gives)
        try:
            return types(_graph(self.graph, inputs, units, self.graph.constants, ()))
        except UnsupportedError as error:
            self.theirs |= {self.by_name[name] for name in error.nodes}
            return None

    def _pieces(self, units: Sequence[Unit]) -> tuple[Piece, ...]:
        """As few pieces as can be: each takes all of its kind that can run by then."""
        wanted = {value for _, value in self.graph.outputs}
        waiting, done = list(units), {value.name for value in self.graph.inputs}
        done |= self.constants.keys()
        pieces: list[tuple[bool, list[Unit]]] = []
        idle = 0
        for ours in cycle((True, False)):
            if not waiting:
                break
            taken = self._ready(waiting, ours, done)
            idle = 0 if taken else idle + 1
            if idle > 1:
                raise ModelError(f'{self.graph.name}: {waiting[0].name!r} waits for itself')
            if taken:
                waiting = [unit for unit in waiting if unit not in taken]
                pieces.append((ours, taken))
        made = []
        for number, (ours, taken) in enumerate(pieces):
            later = wanted.union(*(unit.reads for _, rest in pieces[number + 1 :] for unit in rest))
            made.append(self._piece(ours, taken, later if ours else later | self._relied_on()))
        return tuple(made)

    def _relied_on(self) -> set[str]:
        """What nodes of ours read of theirs, also where only its shape was needed and they are
        constant by now: sessions give it, so that its shape is compared with what was inferred.
        """
        ours = [unit.reads for unit in self.units if unit not in self.theirs]
        return self.told.keys() & set[str]().union(*ours)

    def _ready(self, waiting: Sequence[Unit], ours: bool, done: set[str]) -> list[Unit]:
        taken: list[Unit] = []
        grew = True
        while grew:
            grew = False
            for unit in waiting:
                if unit not in taken and (unit not in self.theirs) == ours and unit.reads <= done:
                    taken.append(unit)
                    done |= set(unit.gives)
                    grew = True
        return taken

    def _piece(self, ours: bool, units: Sequence[Unit], later: Set[str]) -> Piece:
        gives = dict.fromkeys(name for unit in units for name in unit.gives)
        reads = dict.fromkeys(name for unit in units for name in sorted(unit.reads))
        return Piece(
            ours,
            tuple(units),
            tuple(n for n in reads if n not in gives and n not in self.constants),
            tuple(n for n in gives if n in later and n not in self.constants),
        )


def graph_of(graph: Graph, piece: Piece, found: Split, name: str) -> Graph:
    """A piece of ours as a graph of its own."""
    inputs = []
    for read in piece.reads:
        value = found.kinds[read].value(read)
        assert value is not None, f'{read} is open, and read by a node of ours'
        inputs.append(value)
    made = _graph(graph, inputs, piece.units, found.constants, piece.gives)
    return replace(made, name=name)


def _graph(
    graph: Graph,
    inputs: Iterable[Value],
    units: Sequence[Unit],
    constants: Mapping[str, np.ndarray],
    gives: Sequence[str],
) -> Graph:
    """The graph of some units; what is constant is no output of theirs."""
    given = {value.name for value in inputs}
    nodes = [
        node for unit in units for node in unit.nodes if not set(node.outputs) <= constants.keys()
    ]
    made = {name for node in nodes for name in node.outputs}
    used = {name for node in nodes for name in node.inputs}
    fixed = {n: a for n, a in constants.items() if n in used and n not in made and n not in given}
    return Graph(
        graph.name, tuple(inputs), tuple((name, name) for name in gives), tuple(nodes), fixed
    )
