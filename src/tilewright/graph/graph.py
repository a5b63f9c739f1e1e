"""A network as its file describes it: nodes that name their operator, over named values.

Goes in: what an importer read. Comes out: a checked `Graph`, whose nodes are in an order in which
they can run. Operators and their attributes mean what ONNX's default domain says at opset 21;
importers bring older forms and other frameworks to it. Nothing here knows what an operator does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from tilewright.errors import ModelError
from tilewright.ops.dtypes import NUMPY

# dtype of a value -> dtype of numpy. Kernels are generated for a part of them (docs/operators.md).
DTYPES = NUMPY
Attribute: TypeAlias = 'int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | np.ndarray | Body'  # fmt: skip # noqa: E501


def fresh_name(name: str, taken: set[str]) -> str:
    """A name like this one that is not taken; it is then."""
    number, made = 0, name
    while made in taken:
        number += 1
        made = f'{name}#{number}'
    taken.add(made)
    return made


def dtype_of(array: np.ndarray) -> str:
    """Our name of an array's dtype."""
    for name, kind in DTYPES.items():
        if array.dtype == kind:
            return name
    raise ModelError(f'arrays of {array.dtype} are not supported; supported: {", ".join(DTYPES)}')


@dataclass(frozen=True, slots=True)
class Value:
    """The type of a value: what its array looks like."""

    name: str
    shape: tuple[int, ...]
    dtype: str = 'f32'

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ModelError(f'value {self.name} has dtype {self.dtype}; known: {list(DTYPES)}')
        if any(size < 0 for size in self.shape):
            raise ModelError(f'value {self.name} has shape {self.shape}; sizes are at least 0')


@dataclass(frozen=True)
class Node:
    """One application of an operator. An optional input or output that is left out is ''."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.op} {self.name!r}'

    @property
    def bodies(self) -> tuple[Body, ...]:
        return tuple(value for value in self.attributes.values() if isinstance(value, Body))


@dataclass(frozen=True)
class Body:
    """A graph inside a node (If, Loop, Scan): nodes over its inputs, its constants, and values of
    the network around it."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def captures(self) -> set[str]:
        """The values that it reads of the network around it."""
        own = {*self.inputs, *self.constants, *(n for node in self.nodes for n in node.outputs)}
        return {*self.outputs, *(n for node in self.nodes for n in node.inputs if n)} - own


@dataclass(frozen=True)
class Graph:
    """Nodes over values; `constants` are the values that are known before any input is.

    `outputs` are pairs (the name callers use, the value it is): passes may rename values, never
    outputs.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[tuple[str, str], ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {v.name for v in self.inputs} | set(self.constants)
        for node in self.nodes:
            missing = [name for name in node.inputs if name and name not in known]
            if missing:
                raise ModelError(
                    f'{self.name}: {node} reads {missing[0]!r}, which no earlier node, input or '
                    f'constant provides'
                )
            for name in filter(None, node.outputs):
                if name in known:
                    raise ModelError(f'{self.name}: {node} writes {name!r}, which exists already')
                known.add(name)
        for _, name in self.outputs:
            if name not in known:
                raise ModelError(f'{self.name}: output {name!r} is computed by no node')

    @cached_property
    def producers(self) -> dict[str, Node]:
        """value -> the node that computes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def readers(self) -> dict[str, tuple[Node, ...]]:
        """value -> the nodes that read it, each once, in order."""
        found: dict[str, dict[int, Node]] = {}
        for number, node in enumerate(self.nodes):
            for name in filter(None, node.inputs):
                found.setdefault(name, {})[number] = node
        return {name: tuple(nodes.values()) for name, nodes in found.items()}

    @cached_property
    def names(self) -> frozenset[str]:
        """Every value: inputs, constants and what nodes compute."""
        return frozenset({v.name for v in self.inputs} | set(self.constants) | set(self.producers))

    def is_output(self, value: str) -> bool:
        return any(value == name for _, name in self.outputs)


def in_order(nodes: Iterable[Node], known: Iterable[str], name: str) -> tuple[Node, ...]:
    """The nodes in an order in which they can run: the given one where that is possible.

    Nodes that wait for each other are an error that names some of them. Takes time that grows with
    the number of nodes, whatever their order.
    """
    listed, ready = list(nodes), set(known)
    writes = {value for node in listed for value in node.outputs if value}
    waiting: dict[str, list[int]] = {}
    missing = []
    for number, node in enumerate(listed):
        wanted = {value for value in node.inputs if value and value not in ready}
        for value in sorted(wanted):
            if value not in writes:
                raise ModelError(
                    f'{name}: {node} reads {value!r}, which no node, input or constant provides'
                )
            waiting.setdefault(value, []).append(number)
        missing.append(len(wanted))
    free = [number for number, count in enumerate(missing) if not count]
    done = []
    while free:
        number = heapq.heappop(free)
        done.append(listed[number])
        for value in filter(None, listed[number].outputs):
            for reader in waiting.pop(value, ()):
                missing[reader] -= 1
                if not missing[reader]:
                    heapq.heappush(free, reader)
    if len(done) < len(listed):
        stuck = ', '.join(str(node) for node, count in zip(listed, missing, strict=True) if count)
        raise ModelError(f'{name}: nodes wait for each other in a cycle: {stuck[:200]}')
    return tuple(done)
