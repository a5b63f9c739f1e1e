"""Weights of a network in f16 or bf16 where memory binds: a pass for CPUs.

    y = x [m, k] . w: f32 [k, n]         becomes         y = x . w: bf16, with m few rows

Goes in: a program of float32, behind fusion. Comes out: one whose products with few rows, which
read every weight and use it hardly more than once, read half the bytes. Values, sums and all other
constants stay float32: processors without arithmetic of 16 bits widen weights as they load them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewright.graph.graph import fresh_name
from tilewright.graph.program import Program, Task
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.group import Group

FEW_ROWS = 16  # products of a weight up to which it is stored in 16 bits
LEAST_BYTES = 1 << 16  # of weights that are worth it


def narrowed(program: Program, dtype: str, why_not: Callable[[Group], str]) -> Program:
    """[Program] -> [Program]; `dtype` is 'f16' or 'bf16'.

    Weights that are too large for it, and groups for which `why_not` has a reason, stay.
    """
    values, constants, taken = dict(program.values), dict(program.constants), set(program.values)
    made: dict[str, str] = {}

    def stored(value: str) -> str:
        """The value in 16 bits, made once."""
        if value not in made:
            array = constants[program.views.get(value, value)].reshape(values[value].shape)
            with np.errstate(over='ignore'):
                narrow = array.astype(NUMPY[dtype])
            if not np.isfinite(narrow.astype(np.float32)).all():
                return made.setdefault(value, value)
            name = made[value] = fresh_name(f'{value}/{dtype}', taken)
            values[name], constants[name] = replace(values[value], name=name, dtype=dtype), narrow
        return made[value]

    def changed(task: Task) -> Task:
        tensor = _weights(task.group)
        value = task.operands.get(tensor, '')
        if not value or program.views.get(value, value) not in program.constants:
            return task
        tensors = tuple(
            replace(t, dtype=dtype) if t.name == tensor else t for t in task.group.tensors
        )
        group = replace(task.group, label=f'{task.group.label}-{dtype}', tensors=tensors)
        name = value if why_not(group) else stored(value)
        if name == value:
            return task
        return replace(task, group=group, operands={**task.operands, tensor: name})

    tasks = tuple(map(changed, program.tasks))
    read = {value for task in tasks for value in task.operands.values()}
    read |= {program.base(value) for value in (*read, *(v for _, v in program.outputs))}
    return replace(
        program, tasks=tasks, values=values,
        constants={name: array for name, array in constants.items() if name in read},
    )  # fmt: skip


def _weights(group: Group) -> str:
    """The constant factor of a product with few rows, where all is float32; '' for others."""
    main = group.main
    plain = group.is_plain and main.is_product_sum and group.stages[0] is main
    if not plain or any(t.dtype != 'f32' for t in group.tensors):
        return ''
    for access in main.reads:
        tensor = group.tensor(access.tensor)
        rows = math.prod(size for d, size in main.sizes.items() if d not in access.names)
        if tensor.role == 'constant' and rows <= FEW_ROWS and tensor.bytes >= LEAST_BYTES:
            return tensor.name
    return ''
