"""Constant folding: nodes that depend on constants and shapes alone become constants.

    Shape(x) -> Gather(.., 0) -> Concat(.., [-1]) -> Reshape(x, ..)   becomes   Reshape(x, [1, -1])

Values come from the lowering of each node and the reference of its groups, the same that generated
code is checked against (graph/lowering/result.py); whole numbers are exact.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.graph.dead import drop_dead
from tilewright.graph.graph import Graph
from tilewright.graph.lower import types
from tilewright.graph.lowering.result import Known


def fold(graph: Graph) -> Graph:
    """[Graph] -> [Graph]"""
    found = types(graph)
    constants, kept = dict(graph.constants), []
    for node in graph.nodes:
        known = {name: found[name] for name in node.outputs if name}
        arrays = {name: r.array for name, r in known.items() if isinstance(r, Known)}
        if len(arrays) == len(known):
            constants |= arrays
        else:
            kept.append(node)
    return drop_dead(replace(graph, nodes=tuple(kept), constants=constants))
