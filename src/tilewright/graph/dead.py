"""Dead code: nodes whose results nobody reads, constants that nobody needs."""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.graph import Graph


def drop_dead(graph: Graph) -> Graph:
    """[Graph] -> [Graph] with what its outputs need; inputs stay, callers know them."""
    needed = {value for _, value in graph.outputs}
    kept = []
    for node in reversed(graph.nodes):
        if any(name in needed for name in node.outputs if name):
            kept.append(node)
            needed.update(filter(None, node.inputs))
    constants = {name: array for name, array in graph.constants.items() if name in needed}
    return replace(graph, nodes=tuple(reversed(kept)), constants=constants)
