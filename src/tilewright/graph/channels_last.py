"""Images of 8-bit numbers with channels innermost (NHWC): decided for the whole program.

    conv -> y [n, c, h, w];  conv(y) -> z       becomes       conv -> y [n, h, w, c];  ..

Goes in: a program. Comes out: a program that computes the same, whose images of 8-bit numbers
between tasks lie in NHWC, where integer kernels read words of channels in place and store whole
vectors of them. Any description can be read and written so (ops/channels_last.py): nothing is
converted, and parts of concatenations are written where they belong (graph/boxes.py). Inputs and
results of the program keep the layout that callers know; so do values that others are views of, and
images with fewer channels than a word, which are copied anyway. Sums that are dequantised at once,
and averaged, say, follow.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.graph.boxes import share
from tilewright.graph.graph import Value
from tilewright.graph.half import WEIGHTS_LAST, by_channel, rewritten
from tilewright.graph.program import Program, Task
from tilewright.ops.channels_last import RANK, channels_last, moved
from tilewright.ops.group import Group
from tilewright.ops.integer import IN_BYTES, SMALL, is_integer_products


def filters_last(program: Program) -> Program:
    """[Program] -> [Program]: weights of depthwise integer convolutions as [1, r, s, k], beside
    each other as the channels of the image are. GPUs read them where they lie.
    """
    values, constants = dict(program.values), dict(program.constants)
    tasks = []
    for task in program.tasks:
        orders = {
            tensor: WEIGHTS_LAST
            for tensor, value in task.operands.items()
            if value in program.constants and is_integer_products(task.group)
            and by_channel(task.group, tensor) and _ends_in_channels(task.group)
        }  # fmt: skip
        operands = dict(task.operands)
        for tensor, order in orders.items():
            own = operands[tensor]
            name = operands[tensor] = f'{own}@last'
            array = np.ascontiguousarray(program.constants[own].transpose(order))
            constants[name], values[name] = array, Value(name, array.shape, values[own].dtype)
        group = rewritten(task.group, {}, orders, {}) if orders else task.group
        tasks.append(replace(task, group=group, operands=operands))
    return replace(program, tasks=tuple(tasks), values=values, constants=constants)


def _ends_in_channels(group: Group) -> bool:
    """Whether the last axis of the result is that of the weights' filters."""
    first, second = group.main.reads
    return bool({*group.main.write.index[-1].names} & {*first.names} & {*second.names})


def images_last(program: Program) -> Program:
    """[Program] -> [Program]"""
    if not any(is_integer_products(task.group) for task in program.tasks):
        return program
    apart = {*program.views, *program.views.values(), *program.inside, *program.inputs}
    apart |= {holder for holder, _ in program.inside.values()}
    apart |= {name for name in program.values if program.is_output(name)}
    floats = _sums(program)
    chosen = {
        name
        for name, value in program.values.items()
        if name not in apart
        and name not in program.constants
        and (value.dtype in SMALL or name in floats)
        and len(value.shape) == RANK
        and value.shape[1] >= IN_BYTES
    }
    values = {
        name: replace(value, shape=moved(value.shape)) if name in chosen else value
        for name, value in program.values.items()
    }
    tasks = tuple(_task(task, chosen) for task in program.tasks)
    return share(replace(program, tasks=tasks, values=values))


def _sums(program: Program) -> set[str]:
    """Floats that integer kernels write and no product reads, such as what is averaged at the end:
    kernels of float32 products want images as they are.
    """
    made = {task.result for task in program.tasks if is_integer_products(task.group)}
    read = {
        value
        for task in program.tasks
        if any(stage.is_product_sum for stage in task.group.stages)
        for value in task.operands.values()
    }
    return {name for name in made - read if program.values[name].dtype == 'f32'}


def _task(task: Task, chosen: set[str]) -> Task:
    bound = {**task.operands, task.group.output.name: task.result}
    names = {tensor for tensor, value in bound.items() if value in chosen}
    return replace(task, group=channels_last(task.group, names)) if names else task
