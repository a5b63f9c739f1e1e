"""Names for what lowerings compute: results in, a program out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.graph import Graph, Node, Value, dtype_of
from tilewright.graph.lowering.result import Computed, Known, Named, Result, View
from tilewright.graph.program import Program, Task


class Emitter:
    """The tasks, views and constants so far. Each result is computed once, under one name."""

    def __init__(self, graph: Graph, room: int) -> None:
        """`room` is how many elements constants may have that are not the graph's own."""
        self.graph, self.room = graph, room
        self.tasks: list[Task] = []
        self.views: dict[str, str] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, Value] = {value.name: value for value in graph.inputs}
        self._taken = {*self.values, *graph.constants}
        self._taken.update(name for node in graph.nodes for name in node.outputs)
        self._task_names: set[str] = set()
        self._numbers: defaultdict[str, int] = defaultdict(int)
        # By identity; what is remembered is kept alive, so that no identity is used again.
        self._made: dict[int, tuple[Result, str]] = {}
        self._arrays: dict[int, tuple[np.ndarray, str]] = {
            id(array): (array, name) for name, array in graph.constants.items()
        }

    def emit(self, node: Node, output: str, result: Result) -> Result:
        """The tasks and views of one output of a node; later nodes see it by its name."""
        if isinstance(result, Known):
            return result
        return Named(self.values[self.name_of(result, output, node)])

    def name_of(self, result: Result, wish: str, node: Node | None = None) -> str:
        """The name of a result: the one it has, else `wish`, under which it is computed now."""
        if isinstance(result, Named):
            return result.value.name
        if isinstance(result, Known):
            return self._constant(result.array, wish)
        if id(result) in self._made:
            return self._made[id(result)][1]
        if isinstance(result, View):
            base = self.name_of(result.of, self.fresh(f'{wish}/base'), node)
            self.views[wish] = self.views.get(base, base)
        else:
            self._compute(result, wish, node)
        self.values[wish] = Value(wish, result.shape, result.dtype)
        self._made[id(result)] = (result, wish)
        return wish

    def _compute(self, result: Computed, name: str, node: Node | None) -> None:
        for part in result.parts:
            operands = {
                tensor: self.name_of(operand, self.fresh(f'{name}/{tensor}'), node)
                for tensor, operand in part.operands.items()
            }
            origin = (node.name,) if node else ()
            task = unused_name(node.name if node else name, self._task_names, self._numbers)
            self.tasks.append(Task(task, part.group, operands, name, origin, len(result.parts) > 1))

    def _constant(self, array: np.ndarray, wish: str) -> str:
        """The name of a known array: that of the graph, where it has one."""
        if id(array) in self._arrays:
            name = self._arrays[id(array)][1]
        else:
            name = wish if wish not in self.values else self.fresh(wish)
            self._arrays[id(array)] = (array, name)
            self.room -= array.size
            if self.room < 0:
                raise ModelError(
                    f'{self.graph.name}: its constants grow to more than the model holds, at '
                    f'{wish!r} of shape {list(array.shape)}; it is not plausible'
                )
        if name not in self.constants:
            self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)
            self.values[name] = Value(name, array.shape, dtype_of(array))
        return name

    def fresh(self, name: str) -> str:
        """A name like this one that nothing has yet."""
        return unused_name(name, self._taken, self._numbers)

    def program(self, outputs: Sequence[tuple[str, str]]) -> Program:
        """What the outputs need, and nothing else; every input stays."""
        inputs = tuple(value.name for value in self.graph.inputs)
        seen = {*inputs, *(value for _, value in outputs)}
        needed = {self.views.get(value, value) for value in seen}
        tasks: list[Task] = []
        for task in reversed(self.tasks):
            if task.result in needed:
                tasks.append(task)
                seen.update(task.operands.values())
                needed.update(self.views.get(value, value) for value in task.operands.values())
        seen |= needed
        return Program(
            self.graph.name, inputs, tuple(outputs), tuple(reversed(tasks)),
            _only(self.values, seen), _only(self.constants, seen), _only(self.views, seen),
        )  # fmt: skip


def _only(mapping: Mapping, names: set[str]) -> dict:
    return {name: item for name, item in mapping.items() if name in names}


def unused_name(name: str, taken: set[str], numbers: defaultdict[str, int]) -> str:
    """A name like this one that is not taken; it is taken afterwards."""
    made = name
    while made in taken:
        numbers[name] += 1
        made = f'{name}#{numbers[name]}'
    taken.add(made)
    return made
