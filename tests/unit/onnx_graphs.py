"""Small graphs for tests: nodes in a line of text, values of random data, results by name."""

from __future__ import annotations

import numpy as np

from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.lower import lower


def graph(nodes: list[Node], inputs: dict | None = None, outputs=('y',), **constants) -> Graph:
    given = inputs or {'x': (2, 3, 4)}
    values = tuple(
        value if isinstance(value, Value) else Value(name, value) for name, value in given.items()
    )
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return Graph('test', values, tuple((o, o) for o in outputs), tuple(nodes), arrays)


def node(op: str, inputs: str, outputs: str = 'y', **attributes) -> Node:
    return Node(op, f'n_{outputs.split()[0]}', tuple(inputs.replace('-', ' ').split(' ')),
                tuple(outputs.split()), attributes)  # fmt: skip


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def run(made: Graph, **inputs: np.ndarray) -> dict[str, np.ndarray]:
    return evaluate(lower(made), inputs)
