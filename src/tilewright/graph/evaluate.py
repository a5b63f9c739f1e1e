"""A program executed task by task in numpy: the living definition of what a program computes.

Goes in: a program and its inputs by name. Comes out: its outputs by name, every value rounded to
its dtype as it is stored; or, where `exact` is asked for, floats that stay in float64 from one task
to the next, so that nothing is rounded between them. Slow, allocates freely, and shares nothing
with generated code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tilewright.errors import ArrayError
from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.result import store
from tilewright.graph.program import Program, Task
from tilewright.ops.dtypes import is_float
from tilewright.ops.group import Group
from tilewright.ops.reference import reference

Run = Callable[[Group, Mapping[str, np.ndarray]], np.ndarray]


def evaluate(
    program: Program,
    inputs: Mapping[str, np.ndarray],
    run: Run = reference,
    *,
    exact: bool = False,
) -> dict[str, np.ndarray]:
    """[Program, inputs] -> outputs; `run` computes a group, by other means than the reference."""
    memory = _Memory(program, inputs, exact, run)
    for task in program.tasks:
        memory.run(task)
    return {name: memory.of(value) for name, value in program.outputs}


def evaluate_each(
    program: Program, inputs: Mapping[str, np.ndarray], *, exact: bool = False
) -> Iterator[tuple[Task, np.ndarray]]:
    """Every task in turn, and what its result holds then; later tasks may write the rest of it."""
    memory = _Memory(program, inputs, exact)
    for task in program.tasks:
        memory.run(task)
        yield task, memory.of(task.result)


class _Memory:
    """What every value holds, by the value whose memory it is in the end, flat."""

    def __init__(
        self,
        program: Program,
        inputs: Mapping[str, np.ndarray],
        exact: bool,
        compute: Run = reference,
    ) -> None:
        self.program, self.exact, self.compute = program, exact, compute
        self.held: dict[str, np.ndarray] = {
            name: array.reshape(-1) for name, array in program.constants.items()
        }
        for name in program.inputs:
            value = program.values[name]
            if name not in inputs:
                raise ArrayError(f'{program.name} needs the input {name!r} of shape {value.shape}')
            array = np.asarray(inputs[name])
            if array.shape != value.shape or array.dtype != DTYPES[value.dtype]:
                raise ArrayError(
                    f'input {name!r} is {array.dtype}{list(array.shape)}; it must be '
                    f'{value.dtype}{list(value.shape)}'
                )
            self.held[name] = array.reshape(-1)

    def of(self, value: str) -> np.ndarray:
        root, first = self.program.place(value)
        kind, shape = self.program.values[root], self.program.values[value].shape
        if root not in self.held:
            stored = np.dtype(DTYPES[kind.dtype])
            wide = np.dtype(np.float64) if self.exact and is_float(kind.dtype) else stored
            self.held[root] = np.zeros(math.prod(kind.shape), wide)
        return self.held[root][first : first + math.prod(shape)].reshape(shape)

    def run(self, task: Task) -> None:
        arrays = {tensor: self.of(value) for tensor, value in task.operands.items()}
        store(self.of(task.result), task.group, self.compute(task.group, arrays))
