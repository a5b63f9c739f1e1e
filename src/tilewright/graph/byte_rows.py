"""First layers of bytes on GPUs: images of few channels, read in rows of pixels and channels.

    quantize(x) -> q [n, 3, h, w];  conv(q) -> y
    quantize(x) -> q [n, h', w', 4], its zero point around;  conv(rows of q) -> y

Goes in: a program with products of 8-bit numbers. Comes out: one in which whatever quantises an
image for one such convolution alone writes it channels last, with its border and a fourth channel,
and the convolution reads it as half_rows.py has it. Outside the image 0 is quantised, which gives
the zero point; weights are zero where a row goes on behind a window.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.graph.graph import Value, fresh_name
from tilewright.graph.half_rows import RowForm, Units, in_rows, row_form, row_weights
from tilewright.graph.program import Program, Task
from tilewright.ops.describe import dims_of
from tilewright.ops.evaluate import evaluate
from tilewright.ops.group import Group, Tensor
from tilewright.ops.integer import SMALL, is_integer_products
from tilewright.ops.stage import Access, Stage, var

UNITS = Units(8, 4, 4)  # eight bytes are copied at once
LAST = (0, 2, 3, 1)  # axes of an image whose channels come last


def byte_rows(program: Program) -> Program:
    """[Program] -> [Program]"""
    made = {task.result: task for task in program.tasks if not task.writes_part}
    values, constants = dict(program.values), dict(program.constants)
    views, taken = dict(program.views), set(program.values)
    new: dict[str, Task] = {}
    for task in program.tasks:
        for tensor, value in task.operands.items():
            producer = made.get(value)
            if producer is None or not _alone(program, value):
                continue
            form = _form(task, tensor, value)
            if form is None or task.operands[form.weights] not in program.constants:
                continue
            quantised = _quantised(producer, form, task.group.main.pad_value)
            if quantised is None:
                continue
            weights = task.operands[form.weights]
            image = fresh_name(f'{value}/last', taken)
            rows, filters = (fresh_name(f'{name}/rows', taken) for name in (image, weights))
            dtype = program.values[value].dtype
            values[image] = Value(image, form.shape, dtype)
            values[rows], views[rows] = Value(rows, form.rows, dtype), image
            array = np.ascontiguousarray(row_weights(program.constants[weights], form))
            values[filters] = Value(filters, array.shape, program.values[weights].dtype)
            constants[filters] = array
            new[producer.name] = replace(producer, group=quantised, result=image)
            operands = {**task.operands, form.weights: filters, form.image: rows}
            new[task.name] = replace(
                task, group=in_rows(_unpadded(task.group), form), operands=operands
            )
    if not new:
        return program
    tasks = tuple(new.get(task.name, task) for task in program.tasks)
    return replace(program, tasks=tasks, values=values, constants=constants, views=views)


def _alone(program: Program, value: str) -> bool:
    """Whether one task alone reads a value, and nothing is seen of its memory otherwise."""
    seen = {*program.views, *program.views.values(), *program.inside}
    seen |= {holder for holder, _ in program.inside.values()}
    alone = len(program.readers.get(value, ())) == 1
    return alone and value not in seen and not program.is_output(value)


def _unpadded(group: Group) -> Group:
    """The group whose image has a border of its own."""
    main = replace(group.main, pad_value=0.0)
    stages = tuple(main if stage is group.main else stage for stage in group.stages)
    return replace(group, stages=stages)


def _form(task: Task, tensor: str, value: str) -> RowForm | None:
    group = task.group
    if group.tensor(tensor).dtype not in SMALL or not is_integer_products(group):
        return None
    return row_form(replace(task, group=_unpadded(group)), value, UNITS)


def _quantised(task: Task, form: RowForm, zero: float) -> Group | None:
    """What quantises an image, element by element, writing it as it is read; None for all else, and
    where 0 does not become the zero point that the image is padded with.
    """
    group, stage = task.group, task.group.main
    if group.stages != (stage,) or stage.combiner is not None or len(stage.reads) != 1:
        return None
    (source,), (given,) = stage.reads, group.with_role('input')
    same = source.index == stage.write.index and given.shape == group.output.shape
    images, high, wide, channels = form.shape
    if not same or given.dtype != 'f32' or len(given.shape) != len(LAST):
        return None
    nothing = evaluate(stage.expr, [np.zeros((), np.float32)], ['f32'], {})
    if int(nothing) != int(zero):
        return None
    dims = dims_of((images, high, wide, channels))
    axes = [var(d.name) for d in dims]
    at = [axes[LAST.index(axis)] for axis in range(len(LAST))]
    for axis, before in zip((2, 3), form.before, strict=True):
        at[axis] = replace(at[axis], const=-before)
    moved = Stage(
        stage.name, dims, Access(stage.write.tensor, tuple(axes)),
        (Access(source.tensor, tuple(at)),), stage.expr,
    )  # fmt: skip
    tensors = (
        given,
        Tensor(
            group.output.name, tuple(d.name for d in dims), form.shape, 'output', group.output.dtype
        ),
    )
    return Group(f'{group.label} in rows', tensors, (moved,))
