"""The memory of a network while its tasks run one at a time.

Goes in: a program, where its values lie, and a way to read them after every task. Comes out: what
each task read and wrote, and whether anything changed that was still needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.result import part_written
from tilewright.graph.memory import Place
from tilewright.graph.program import Program, Task
from tilewright.runtime.cpu.network import Read


@dataclass(frozen=True, slots=True)
class Overwritten:
    """A value that changed while a task ran that does not write it.

    reader   number of the task that reads it next; None: it is a result
    planned  whether the plan gave both the same memory
    """

    value: str
    reader: int | None
    planned: bool


class Follower:
    """What every value should hold: what its tasks left in it, right after they ran."""

    def __init__(self, program: Program, places: Mapping[str, Place]) -> None:
        self.program, self.places = program, places
        self.held: dict[str, np.ndarray] = {}
        self.next_readers: dict[str, list[int]] = {}
        for number, task in enumerate(program.tasks):
            for value in task.operands.values():
                self.next_readers.setdefault(program.place(value)[0], []).append(number)
        self.results = {program.place(value)[0] for _, value in program.outputs}

    def begin(self, read: Read) -> None:
        """Note the inputs, as they are before the first task."""
        for name in self.program.inputs:
            self.held[name] = read(self.program.values[name]).reshape(-1)

    def value(self, name: str) -> np.ndarray:
        """What a value should hold."""
        program = self.program
        root, first = program.place(name)
        shape = program.values[name].shape
        whole = program.constants[root].reshape(-1) if root in program.constants else self._of(root)
        return whole[first : first + math.prod(shape)].reshape(shape)

    def _of(self, root: str) -> np.ndarray:
        if root not in self.held:
            kind = self.program.values[root]
            self.held[root] = np.zeros(math.prod(kind.shape), DTYPES[kind.dtype])
        return self.held[root]

    def operands(self, task: Task) -> dict[str, np.ndarray]:
        """What a task reads, tensor by tensor."""
        return {tensor: np.array(self.value(value)) for tensor, value in task.operands.items()}

    def took(self, number: int, read: Read) -> np.ndarray:
        """Note what a task has written; comes out: its result, with parts that others write."""
        task = self.program.tasks[number]
        got = read(self.program.values[task.result])
        where = part_written(task.group)
        self.value(task.result)[where] = got[where]
        return got

    def overwritten(self, number: int, read: Read) -> Overwritten | None:
        """A value that is still needed after this task, and has changed."""
        for root in self.held:
            reader = next((n for n in self.next_readers.get(root, ()) if n > number), None)
            if reader is None and root not in self.results:
                continue
            kind = self.program.values[root]
            now, then = read(kind).reshape(-1), self.held[root]
            size = then.dtype.itemsize
            changed = now.view(f'u{size}') != then.view(f'u{size}')
            if changed.any() and (changed & self._written(root, number)).any():
                return Overwritten(root, reader, self._meet(root, number))
        return None

    def _written(self, root: str, number: int) -> np.ndarray:
        """Elements of a value that some task has written so far; all of an input."""
        mask = np.zeros(self.held[root].size, bool)
        if root in self.program.inputs:
            return ~mask
        for task in self.program.tasks[: number + 1]:
            holder, first = self.program.place(task.result)
            if holder == root:
                shape = self.program.values[task.result].shape
                mask[first : first + math.prod(shape)].reshape(shape)[part_written(task.group)] = (
                    True
                )
        return mask

    def _meet(self, root: str, number: int) -> bool:
        """Whether the plan lets the result of a task overlap with a value."""
        result = self.program.tasks[number].result
        mine, other = self.places[result], self.places[root]
        if (mine.kind, mine.name) != (other.kind, other.name):
            return False
        return mine.offset < other.offset + self._bytes(root) and (
            other.offset < mine.offset + self._bytes(result)
        )

    def _bytes(self, value: str) -> int:
        kind = self.program.values[value]
        return math.prod(kind.shape) * np.dtype(DTYPES[kind.dtype]).itemsize
