"""A program executed task by task in numpy: the living definition of what a program computes.

Goes in: a program and its inputs by name. Comes out: its outputs by name, every value rounded to
its dtype as it is stored. Slow, allocates freely, and shares nothing with generated code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from tilewright.errors import ArrayError
from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.result import store
from tilewright.graph.program import Program
from tilewright.ops.group import Group
from tilewright.ops.reference import reference

Run = Callable[[Group, Mapping[str, np.ndarray]], np.ndarray]


def evaluate(
    program: Program, inputs: Mapping[str, np.ndarray], run: Run = reference
) -> dict[str, np.ndarray]:
    """[Program, inputs] -> outputs; `run` computes a group, by other means than the reference."""
    memory: dict[str, np.ndarray] = {}  # by the value whose memory it is in the end, flat
    for name, array in program.constants.items():
        memory[name] = array.reshape(-1)
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
        memory[name] = array.reshape(-1)

    def of(value: str) -> np.ndarray:
        root, first = program.place(value)
        held, shape = program.values[root], program.values[value].shape
        if root not in memory:
            memory[root] = np.zeros(math.prod(held.shape), DTYPES[held.dtype])
        return memory[root][first : first + math.prod(shape)].reshape(shape)

    for task in program.tasks:
        arrays = {tensor: of(value) for tensor, value in task.operands.items()}
        store(of(task.result), task.group, run(task.group, arrays))
    return {name: of(value) for name, value in program.outputs}
