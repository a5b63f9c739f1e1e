"""A failure made small: delta debugging on the graph.

Goes in: a `Net` and a test that says whether a net still fails. Comes out: the smallest net that
was found. Outputs are dropped, values become outputs or inputs, nodes are left out, axes become
shorter; what the oracle does not accept is no candidate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from . import oracle
from .graphs import Arrays, Net, Node

Fails = Callable[[Net], bool]


def shrunk(net: Net, fails: Fails, seconds: float = 60.0) -> Net:
    """The smallest net that still fails, within a time."""
    end = time.monotonic() + seconds
    changed = True
    while changed and time.monotonic() < end:
        changed = False
        for candidate in candidates(net):
            if time.monotonic() > end:
                break
            if weight(candidate) < weight(net) and _fails(candidate, fails):
                net, changed = candidate, True
                break
    return net


def _fails(net: Net, fails: Fails) -> bool:
    try:
        return fails(net)
    except oracle.OracleError:
        return False


def weight(net: Net) -> tuple[int, int, int]:
    """What is made small: nodes, then outputs and attributes, then elements."""
    attributes = sum(len(node.attributes) + len(node.inputs) for node in net.nodes)
    elements = sum(net.values[name].size for node in net.nodes for name in node.outputs if name)
    fed = sum(a.size for a in (*net.inputs.values(), *net.constants.values()))
    return len(net.nodes), len(net.outputs) + attributes, elements + fed


def rebuilt(
    nodes: tuple[Node, ...], inputs: Arrays, constants: Arrays, outputs: tuple[str, ...]
) -> Net:
    """The net of these, with everything computed again."""
    values = oracle.values_of(nodes, inputs, constants)
    return Net(nodes, inputs, constants, outputs, values).pruned()


def candidates(net: Net) -> Iterator[Net]:
    """Smaller nets, those first that leave out the most."""
    made = [name for node in net.nodes for name in node.outputs if name]
    for name in net.outputs:
        yield replace(net, outputs=(name,)).pruned()
    for name in reversed(made):
        if (name,) != net.outputs:
            yield replace(net, outputs=(name,)).pruned()
    for share in (2, 4):
        step = max(1, len(made) // share)
        for first in range(0, len(made), step):
            yield _given(net, made[first : first + step])
    for name in made:
        yield _given(net, [name])
    for number, node in enumerate(net.nodes):
        for source in node.inputs:
            yield from _bypassed(net, number, source)
    for name in net.outputs:
        if len(net.outputs) > 1:
            yield replace(net, outputs=tuple(o for o in net.outputs if o != name)).pruned()
    yield from _shorter(net)
    yield from _plainer(net)


def _given(net: Net, names: list[str]) -> Net:
    """These values as inputs instead of results."""
    gone = set(names) - set(net.outputs)
    nodes = tuple(node for node in net.nodes if not set(filter(None, node.outputs)) <= gone)
    left = {name for node in nodes for name in node.outputs}
    inputs = {**net.inputs, **{n: net.values[n] for n in names if n in gone and n not in left}}
    return replace(net, nodes=nodes, inputs=inputs).pruned()


def _bypassed(net: Net, number: int, source: str) -> Iterator[Net]:
    """Without a node: its readers read one of its inputs, where types are the same."""
    node = net.nodes[number]
    target = node.outputs[0]
    if not source or len([o for o in node.outputs if o]) > 1:
        return
    a, b = net.values[source], net.values[target]
    if a.shape != b.shape or a.dtype != b.dtype or target in net.outputs:
        return
    nodes = tuple(
        replace(other, inputs=tuple(source if i == target else i for i in other.inputs))
        for other in net.nodes
        if other is not node
    )
    try:
        yield rebuilt(nodes, net.inputs, net.constants, net.outputs)
    except oracle.OracleError:
        return


def _shorter(net: Net) -> Iterator[Net]:
    """All axes of one length cut to another, in inputs and constants alike."""
    fed = {**net.inputs, **net.constants}
    lengths = sorted({s for a in fed.values() for s in a.shape if s > 1}, reverse=True)
    for length in lengths:
        for to in dict.fromkeys((1, 2, length // 2, length - 1)):
            if not 0 < to < length:
                continue
            cut = {name: _cut(array, length, to) for name, array in fed.items()}
            try:
                yield rebuilt(
                    net.nodes, {n: cut[n] for n in net.inputs}, {n: cut[n] for n in net.constants},
                    net.outputs,
                )  # fmt: skip
            except (oracle.OracleError, ValueError, IndexError):
                continue


def _cut(array: np.ndarray, length: int, to: int) -> np.ndarray:
    if array.dtype == np.int64 and array.ndim == 1:  # shapes and axes: the number itself
        return np.where(array == length, to, array)
    return np.ascontiguousarray(
        array[tuple(slice(to) if s == length else slice(None) for s in array.shape)]
    )


def _plainer(net: Net) -> Iterator[Net]:
    """Without an attribute."""
    for number, node in enumerate(net.nodes):
        for name in node.attributes:
            rest = {n: v for n, v in node.attributes.items() if n != name}
            nodes = list(net.nodes)
            nodes[number] = replace(node, attributes=rest)
            try:
                yield rebuilt(tuple(nodes), net.inputs, net.constants, net.outputs)
            except oracle.OracleError:
                continue
