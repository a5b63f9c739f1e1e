"""Lowering: a graph of operators becomes a program of groups.

    Graph  --lower-->  Program

Goes in: a graph with every input's shape. Comes out: tasks, views and constants; shapes were
inferred on the way, since a group knows the shape of what it writes, and whatever depends on
constants alone is a constant. What is not supported is one error that lists all of it.

`walk` is the loop that lowering, folding and every other pass that needs types share: it calls the
operator's function (graph/lowering/) for each node, and hands on what came out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilewright.errors import ArrayError, ModelError, SpecError, UnsupportedError
from tilewright.graph.graph import DTYPES, Graph, Node, Value
from tilewright.graph.lowering.emit import Emitter
from tilewright.graph.lowering.operators import OPERATORS
from tilewright.graph.lowering.reader import NodeReader, Operator
from tilewright.graph.lowering.result import Known, Named, Result, Unsupported, elements_held
from tilewright.graph.program import Program
from tilewright.ops.dtypes import COMPUTED as GENERATED

# Elements that computing ahead may add, beside twice those of the graph's own constants.
MAX_FOLDED = 2**26
Hand = Callable[[Node, str, Result], Result]


def lower(graph: Graph) -> Program:
    """[Graph] -> [Program]"""
    emitter = Emitter(graph, _room(graph))
    found = walk(graph, emitter.emit)
    outputs = [(name, emitter.name_of(found[value], value)) for name, value in graph.outputs]
    return emitter.program(outputs)


def types(graph: Graph) -> dict[str, Result]:
    """What is known of every value: its array, else its shape and dtype."""

    def named(node: Node, output: str, result: Result) -> Result:
        if isinstance(result, Known):
            return result
        return Named(Value(output, result.shape, result.dtype))

    return walk(graph, named)


def walk(graph: Graph, hand: Hand) -> dict[str, Result]:
    """Every node in turn. `hand(node, output, result)` says what later nodes see of an output.

    Returns what every value of the graph is. Behind an unsupported node nothing can be known, and
    nodes are only looked up.
    """
    found: dict[str, Result] = {name: Known(array) for name, array in graph.constants.items()}
    for value in graph.inputs:
        empty = 0 in value.shape
        found[value.name] = (
            Known(np.zeros(value.shape, DTYPES[value.dtype])) if empty else Named(value)
        )
    unsupported = _Unsupported(graph.name)
    room = _room(graph)
    for node in graph.nodes:
        operator = OPERATORS.get(node.op)
        if operator is None:
            unsupported.add(node, '')
            continue
        if any(name and name not in found for name in node.inputs):
            continue
        try:
            results = _results(node, operator, found)
        except Unsupported as reason:
            unsupported.add(node, str(reason))
            continue
        except ModelError as error:
            raise ModelError(f'{graph.name}: {error}') from error
        for name, result in zip(node.outputs, results, strict=False):
            if name:
                found[name] = hand(node, name, result)
            if isinstance(result, Known) and result.array.base is None:
                room -= elements_held(result.array)
        if room < 0:
            raise ModelError(
                f'{graph.name}: its constants grow to more than the model holds, at {node}; it is '
                f'not plausible'
            )
    unsupported.check()
    return found


def _room(graph: Graph) -> int:
    return MAX_FOLDED + 2 * sum(elements_held(array) for array in graph.constants.values())


def _results(node: Node, operator: Operator, found: dict[str, Result]) -> tuple[Result, ...]:
    """What a node's outputs are; whatever is wrong with it, in one sentence."""
    inputs = tuple(found[name] if name else None for name in node.inputs)
    _check_inputs(node, operator, inputs)
    try:
        results = operator.lower(NodeReader(node, inputs))
    except (ModelError, SpecError, ArrayError) as error:
        raise ModelError(f'{node}: {error}') from error
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Files may hold any attribute; what no lowering foresaw is still the file's fault.
        said = ' '.join(str(error).split())  # numpy's may have several lines
        raise ModelError(f'{node} has inputs or attributes that do not fit: {said}') from error
    made = results if isinstance(results, tuple) else (results,)
    if any(node.outputs[len(made) :]):
        raise Unsupported(f'with {len(node.outputs)} outputs')
    return made


def _check_inputs(node: Node, operator: Operator, inputs: tuple[Result | None, ...]) -> None:
    for number, result in enumerate(inputs):
        if result is None:
            continue
        if number in operator.known and not isinstance(result, Known):
            raise Unsupported(
                f'with {node.inputs[number]!r}, on which shapes depend, known only when it runs'
            )
        allowed = operator.dtypes if number == 0 else (*GENERATED, *operator.dtypes)
        if result.dtype not in allowed and not (isinstance(result, Known) and operator.converts):
            raise Unsupported(f'of {result.dtype}')


class _Unsupported:
    """All that is not supported in a graph: operator and reason -> nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: dict[tuple[str, str], list[str]] = {}

    def add(self, node: Node, reason: str) -> None:
        self.found.setdefault((node.op, reason), []).append(node.name)

    def check(self) -> None:
        if not self.found:
            return
        items = [
            f'{len(nodes)} x {op}{" " * bool(reason)}{reason} (first: {nodes[0]!r})'
            for (op, reason), nodes in self.found.items()
        ]
        raise UnsupportedError(
            f'{self.name} contains what is not supported: {"; ".join(items)}',
            tuple(name for nodes in self.found.values() for name in nodes),
        )


def shape_inputs(graph: Graph) -> tuple[str, ...]:
    """The inputs on whose values shapes depend: `constants=` of an importer has to fix them."""
    deciding: set[str] = set()
    for node in reversed(graph.nodes):
        operator = OPERATORS.get(node.op)
        all_of_it = node.op not in ('Shape', 'Size') and any(o in deciding for o in node.outputs)
        for number, name in enumerate(node.inputs):
            if all_of_it or (operator and number in operator.known):
                deciding.add(name)
    return tuple(value.name for value in graph.inputs if value.name in deciding)
