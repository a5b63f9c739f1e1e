"""What a `.tw` file means, checked before anything is built from it.

Goes in: groups, choices and a program as a file gives them, its checksums sound. Comes out:
nothing, or a `ModelError`. A checksum says that a file is as it was written, not that its writer
meant well: kernels index memory by these numbers, and names end up in generated sources. `Program`
itself checks that every value lies inside the memory that holds it, `graph/proof.py` the memory
plan, and code generation whether a schedule is legal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tilewright.errors import ModelError
from tilewright.graph.memory_proof import box
from tilewright.graph.program import Program
from tilewright.graph.proof import Region
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Expr, Stage
from tilewright.schedule.choice import Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.schedule.schedule import Schedule

PLAIN = re.compile(r'[A-Za-z0-9_.+@:,=#>/ -]*')
MOST_THREADS = 1 << 16
_NAME = re.compile(r'[A-Za-z_][A-Za-z0-9_]*')
_LARGEST = 1 << 40  # of all numbers; bytes of a tensor
_FARTHEST = (1 << 31) - 1  # an index of one axis: GPU kernels compute them in 32 bits
_DEEPEST = 200  # levels of an expression, which is walked recursively


def check_plain(data: Any) -> None:
    """Raise unless there is nothing in it but plain words and numbers: it becomes source."""
    if isinstance(data, dict):
        for key, item in data.items():
            check_plain(key)
            check_plain(item)
    elif isinstance(data, list):
        for item in data:
            check_plain(item)
    elif isinstance(data, str) and not PLAIN.fullmatch(data):
        raise ModelError(f'{data[:40]!r} is not a plain word')


def check_group(group: Group) -> None:
    """Raise unless names can stand in C, numbers are small whole ones, one result is written, and
    every write lies inside its tensor.
    """
    _check_names(t.name for t in group.tensors)
    for tensor in group.tensors:
        check_whole(f'the shape of {tensor.name}', tensor.shape)
        if tensor.bytes > _LARGEST:
            raise ModelError(f'tensor {tensor.name} has {tensor.bytes} bytes')
    if [t.name for t in group.with_role('output')] != [group.output.name]:
        raise ModelError(f'the last stage of {group.label} does not write its one output')
    for stage in group.stages:
        _check_names([stage.name, *(d.name for d in stage.dims)])
        _check_indices(stage)
        if _leaves(stage.write, group.tensor(stage.write.tensor), stage):
            raise ModelError(f'stage {stage.name} writes outside {stage.write.tensor}')
        _check_reads(group, stage)
        _check_expr(stage.expr)


def _check_reads(group: Group, stage: Stage) -> None:
    """Only what is padded is read outside its tensor: inputs, and results of the stages before. Of
    constants, and behind the main stage point by point, kernels test no index. Where steps follow
    each other, states are read by their names, and nothing else is tested.
    """
    behind = stage in group.epilogue and not stage.combiner
    for access in stage.reads:
        tensor = group.tensor(access.tensor)
        if group.is_sequential:
            tested = tensor.role == 'inner'
        else:
            tested = not access.is_affine or not (behind or tensor.role == 'constant')
        if not tested and _leaves(access, tensor, stage):
            raise ModelError(f'stage {stage.name} reads outside {access.tensor}')


def _leaves(access: Access, tensor: Tensor, stage: Stage) -> bool:
    """Whether it reaches outside the tensor; an axis with a table, whether it leaves the table."""
    tables = dict(access.tables)
    extents = [len(tables.get(axis, range(size))) for axis, size in enumerate(tensor.shape)]
    return any(
        expression.const < 0 or expression.const + expression.extent(stage.sizes) > extent
        for expression, extent in zip(access.index, extents, strict=True)
    ) or any(not 0 <= at < tensor.shape[axis] for axis, places in access.tables for at in places)


def check_choices(choices: Mapping[str, Choice], target: str, threads: int) -> None:
    """Raise unless schedules are of the target's kind, and for no more threads than the file."""
    for choice in choices.values():
        schedule = choice.schedule
        if not isinstance(schedule, Schedule if target == 'cpu' else GpuSchedule):
            raise ModelError(f'schema {schedule.schema} is not one of target {target!r}')
        if not isinstance(schedule, Schedule):
            continue
        if schedule.isa not in ISAS:
            raise ModelError(f'instruction set {schedule.isa!r} is none of {", ".join(ISAS)}')
        if schedule.threads > threads:
            raise ModelError(
                f'a schedule is for {schedule.threads} threads where the file is for {threads}'
            )


def check_program(program: Program) -> None:
    """Raise unless constants that are packed are there, and every task writes all of its result,
    or says that it does not.
    """
    for value in program.values.values():
        check_whole(f'the shape of {value.name!r}', value.shape)
        if math.prod(value.shape) > _LARGEST:
            raise ModelError(f'value {value.name!r} has {math.prod(value.shape)} elements')
    for name in ('inputs', 'outputs'):
        listed = [v if isinstance(v, str) else v[0] for v in getattr(program, name)]
        if len(set(listed)) < len(listed) or not all(type(v) is str for v in listed):
            raise ModelError(f'its {name} are {listed}; each needs a name of its own')
    for task in program.tasks:
        tuple(program.packed(task))
        if type(task.writes_part) is not bool:
            raise ModelError(f'task {task.name}: writes_part is {task.writes_part!r}')
        if not task.writes_part and box(task.group) != Region(0, task.group.output.bytes):
            raise ModelError(f'task {task.name} leaves a part of {task.result!r} unwritten')


def check_whole(what: str, numbers: Iterable[object], most: int = _LARGEST) -> None:
    """Raise unless all are whole numbers; what JSON calls true is none."""
    for number in numbers:
        if type(number) is not int or abs(number) > most:
            raise ModelError(f'{what} has {number!r}, which is not a whole number up to {most}')


def _check_names(names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ModelError(f'{name!r} is not a name of letters, digits and _')


def _check_indices(stage: Stage) -> None:
    what = f'an index of stage {stage.name}'
    for access in stage.accesses:
        for expression in access.index:
            check_whole(what, (expression.const, *(c for _, c in expression.terms)), _FARTHEST)
            check_whole(what, (expression.const + expression.extent(stage.sizes),), _FARTHEST)
        for axis, values in access.tables:
            check_whole(what, (axis, *values), _FARTHEST)
        for pair in access.lookups:
            check_whole(what, pair)


def _check_expr(expr: Expr, depth: int = 1) -> None:
    if not isinstance(expr.value, int | float) or isinstance(expr.value, bool):
        raise ModelError(f'an expression holds {expr.value!r}, which is not a number')
    if expr.op in ('read', 'whole') and type(expr.value) is not int:
        raise ModelError(f'an expression reads {expr.value!r}, which is not a whole number')
    if depth > _DEEPEST:
        raise ModelError(f'an expression is nested more than {_DEEPEST} levels deep')
    for argument in expr.args:
        _check_expr(argument, depth + 1)
