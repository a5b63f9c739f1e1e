"""Lowering: a graph of operators becomes a program of groups.

    Graph  --lower-->  Program

Goes in: a graph with every input's shape. Comes out: tasks, views and constants; shapes were
inferred on the way, since a group knows the shape of what it writes, and whatever depends on
constants alone is a constant. What is not supported is one error that lists all of it.

`walk` is the loop that lowering, folding and every other pass that needs types share: it calls the
operator's function (graph/lowering/) for each node, and hands on what came out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial

import numpy as np

from tilewright.errors import ArrayError, ModelError, SpecError, UnsupportedError
from tilewright.graph.control import CONTROL, deciding, expand
from tilewright.graph.graph import DTYPES, Graph, Node, Value
from tilewright.graph.lowering.emit import Emitter, unused_name
from tilewright.graph.lowering.operators import OPERATORS
from tilewright.graph.lowering.reader import NodeReader, Operator
from tilewright.graph.lowering.result import Known, Named, Result, Unsupported, elements_held
from tilewright.graph.program import Program
from tilewright.ops.dtypes import COMPUTED as GENERATED

# Elements that computing ahead may add, beside twice those of the graph's own constants.
MAX_FOLDED = 2**26
# Nodes that loops and branches become, all steps together.
MAX_NODES = 2**14
SMALL = 64  # elements of a constant that are compared where nodes are
Hand = Callable[[Node, str, Result], Result]
# Key of a node and its inputs -> its results, and what the key has the identity of.
_lowered: ContextVar[dict[tuple, tuple] | None] = ContextVar('lowered', default=None)


@contextmanager
def remembered() -> Iterator[None]:
    """Meanwhile nodes that passes leave as they are, with inputs as they were, are lowered once."""
    token = _lowered.set({})
    try:
        yield
    finally:
        _lowered.reset(token)


def lower(graph: Graph) -> Program:
    """[Graph] -> [Program]"""
    graph = written_out(graph)
    emitter = Emitter(graph, _room(graph))
    found = walk(graph, emitter.emit)
    outputs = [(name, emitter.name_of(found[value], value)) for name, value in graph.outputs]
    return emitter.program(outputs)


def types(graph: Graph) -> dict[str, Result]:
    """What is known of every value: its array, else its shape and dtype."""
    return walk(graph, _named, alike={})


def written_out(graph: Graph) -> Graph:
    """[Graph] -> [Graph] without If, Loop and Scan (graph/control.py)."""
    if not any(node.op in CONTROL for node in graph.nodes):
        return graph
    nodes: list[Node] = []
    constants = dict(graph.constants)
    walk(graph, _named, nodes, constants)
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _named(node: Node, output: str, result: Result) -> Result:
    return result if isinstance(result, Known) else Named(Value(output, result.shape, result.dtype))


def walk(
    graph: Graph, hand: Hand, nodes: list[Node] | None = None,
    constants: dict[str, np.ndarray] | None = None,
    alike: dict[tuple, tuple[Result, ...]] | None = None,
) -> dict[str, Result]:  # fmt: skip
    """Every node in turn. `hand(node, output, result)` says what later nodes see of an output.

    Returns what every value of the graph is. Behind an unsupported node nothing can be known, and
    nodes are only looked up. Nodes with bodies are written out as soon as what they depend on is
    known; `nodes` and `constants` take what is looked at then. `alike`, where nothing but types is
    asked for, remembers nodes by what their types depend on: layers repeat.
    """
    found: dict[str, Result] = {name: Known(array) for name, array in graph.constants.items()}
    for value in graph.inputs:
        empty = 0 in value.shape
        found[value.name] = (
            Known(np.zeros(value.shape, DTYPES[value.dtype])) if empty else Named(value)
        )
    unsupported = _Unsupported(graph.name)
    room = _room(graph)
    pending, owners = deque(graph.nodes), {}
    taken = {*graph.names, *(node.name for node in graph.nodes)}
    fresh = partial(unused_name, taken=taken, numbers=defaultdict(int))
    while pending:
        node = pending.popleft()
        operator, owner = OPERATORS.get(node.op), owners.get(node.name, node.name)
        if operator is None or (node.op in CONTROL and not node.bodies):
            unsupported.add(node, '', owner)
            continue
        if any(name and name not in found for name in node.inputs):
            unsupported.add_unknown(node, owner)
            continue
        try:
            if node.op in CONTROL:
                made = expand(node, found, fresh)
                if len(owners) + len(made.nodes) > MAX_NODES:
                    raise Unsupported(f'of more than {MAX_NODES} nodes, all steps together')
                found |= {name: Known(array) for name, array in made.constants.items()}
                owners |= dict.fromkeys((inner.name for inner in made.nodes), owner)
                pending.extendleft(reversed(made.nodes))
                if constants is not None:
                    constants |= made.constants
                continue
            results = _remembered(node, operator, found, alike)
        except Unsupported as reason:
            unsupported.add(node, str(reason), owner)
            unsupported.add_unknown(node, owner)
            continue
        except ModelError as error:
            raise ModelError(f'{graph.name}: {error}') from error
        if nodes is not None:
            nodes.append(node)
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
    lowered, key = _lowered.get(), (node.op, node.name, node.outputs, id(node.attributes))
    if lowered is not None:
        key = (*key, id(operator), *map(_identity, inputs))
        if key in lowered:
            return lowered[key][0]
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
    if lowered is not None:
        lowered[key] = made, node, operator, inputs
    return made


def _remembered(
    node: Node, operator: Operator, found: dict[str, Result],
    alike: dict[tuple, tuple[Result, ...]] | None,
) -> tuple[Result, ...]:  # fmt: skip
    """What a node's outputs are; where `alike` has an equal node, what those of that are."""
    key = None if alike is None else _alike(node, operator, found)
    if alike is None or key is None:
        return _results(node, operator, found)
    if key in alike:
        return alike[key]
    results = _results(node, operator, found)
    if not any(isinstance(result, Known) for result in results):
        alike[key] = results
    return results


def _alike(node: Node, operator: Operator, found: dict[str, Result]) -> tuple | None:
    """What the types of a node's outputs depend on; None where that is not plain.

    Of large constants that is their type alone, unless shapes depend on them.
    """
    inputs = [found[name] if name else None for name in node.inputs]
    marks = []
    for number, result in enumerate(inputs):
        mark: tuple | None = None if result is None else (result.shape, result.dtype)
        if isinstance(result, Known):
            if result.array.size <= SMALL:
                mark = (*result.shape, result.dtype, result.array.tobytes())
            elif number in operator.known:
                return None
        marks.append(mark)
    key = (node.op, len(node.outputs), tuple(marks), tuple(sorted(node.attributes.items())))
    try:
        hash(key)
    except TypeError:  # an attribute that is an array
        return None
    return key


def _identity(result: Result | None) -> object:
    if isinstance(result, Named):
        return result.value
    return id(result.array if isinstance(result, Known) else result)


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
    """All that is not supported in a graph: operator and reason -> nodes.

    `owners` are the graph's own nodes among them, or those in whose bodies they are.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: dict[tuple[str, str], list[str]] = {}
        self.owners: dict[str, None] = {}

    def add(self, node: Node, reason: str, owner: str) -> None:
        self.found.setdefault((node.op, reason), []).append(node.name)
        self.owners[owner] = None

    def add_unknown(self, node: Node, owner: str) -> None:
        """What is not supported in the bodies of a node that cannot be looked into further."""
        for inner in (inner for body in node.bodies for inner in body.nodes):
            if inner.op not in OPERATORS:
                self.add(inner, '', owner)
            self.add_unknown(inner, owner)

    def check(self) -> None:
        if not self.found:
            return
        items = [
            f'{len(nodes)} x {op}{" " * bool(reason)}{reason} (first: {nodes[0]!r})'
            for (op, reason), nodes in self.found.items()
        ]
        raise UnsupportedError(
            f'{self.name} contains what is not supported: {"; ".join(items)}',
            tuple(self.owners),
        )


def shape_inputs(graph: Graph) -> tuple[str, ...]:
    """The inputs on whose values shapes depend: `constants=` of an importer has to fix them."""

    def decides(node: Node, number: int) -> bool:
        operator = OPERATORS.get(node.op)
        return operator is not None and number in operator.known

    found: set[str] = set()
    deciding(graph.nodes, found, decides)
    return tuple(value.name for value in graph.inputs if value.name in found)
