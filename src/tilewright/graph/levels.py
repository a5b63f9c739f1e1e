"""Levels of a program: tasks of one level need nothing of each other, and may run side by side.

Goes in: a program. Comes out: the level of each task, one above those whose results it reads, and
the program with its tasks in that order. What a carried input is next may be written where the
input lies (`successors`), so that whatever reads the input has a lower level. Where some are to be
`late`, small updates that nothing else waits for are put to the end, where they may be one launch,
and what waits for nothing, as weights that are turned round for gradients, is computed just before
it is read, so that it takes no memory before.
What is computed again late must not be so early: such a task waits for another (`Program.behind`),
or, where the order is meant (`Program.in_order`), all tasks that are not small and element-wise
wait for the one before them.
"""

from __future__ import annotations

import math
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from tilewright.graph.program import Program, Task
from tilewright.ops.group import Group

SMALL = 1 << 16  # elements of an update that may wait until the end


def levels_of(program: Program, late: bool = False) -> tuple[int, ...]:
    """For every task the number of tasks on the longest way to it; where some are `late`, small
    updates are last, and what waits for nothing is just before what reads it.
    """
    return _levels(program, successors(program), late)


def by_levels(program: Program, late: bool = False) -> Program:
    """The same tasks, those of a lower level first.

    A branch that is short then comes before the end of a longer one, and what joins them is fused
    with the longer one: the short one runs beside it instead of behind it.
    """
    levels = levels_of(program, late)
    order = sorted(range(len(levels)), key=lambda number: (levels[number], number))
    return program.with_tasks(tuple(program.tasks[number] for number in order))


def successors(program: Program) -> dict[str, str]:
    """value -> the carried input whose memory it may be written to.

    Its task reads the input element by element, where it writes, and everybody else has read the
    input before. None where this would make tasks wait in a circle.
    """
    writers = {task.result: task for task in program.tasks}
    named = dict(program.outputs)
    found: dict[str, str] = {}
    for name, output in program.carried.items():
        value, element = program.place(named[output])
        task = writers.get(value)
        if task is None:
            continue
        alike = not task.writes_part and not element and (
            program.values[value].dtype == program.values[name].dtype
            and math.prod(program.values[value].shape) == math.prod(program.values[name].shape)
        )  # fmt: skip
        if alike and value not in found and _may_replace(program, task, name):
            found[value] = name
    if found:
        try:
            _levels(program, found)
        except CycleError:
            return {}
    return found


def _may_replace(program: Program, task: Task, name: str) -> bool:
    """Whether a task reads an input only where it writes at the same time, if at all."""
    return all(
        tensor in read_where_written(task.group)
        for tensor, value in task.operands.items()
        if program.place(value)[0] == name
    )


@cache
def read_where_written(group: Group) -> frozenset[str]:
    """The operands of which every element is read only for the same element of the result."""
    outer = {t.name for t in group.tensors if t.role in ('input', 'constant')}
    found = {name for name in outer if group.tensor(name).shape == group.output.shape}
    for number, stage in enumerate(group.stages):
        behind = group.stages[number:]
        plain = all(s.combiner is None for s in behind) and all(
            access.is_affine and access.index == s.write.index
            for s in behind
            for access in s.reads
            if access.tensor not in outer
        )
        found -= {
            access.tensor
            for access in stage.reads
            if not plain or not access.is_affine or access.index != stage.write.index
        }
    return frozenset(found)


def _levels(
    program: Program, replaced: dict[str, str], late: bool = False
) -> tuple[int, ...]:  # fmt: skip
    written: dict[str, list[tuple[int, int, int]]] = {}  # root -> (first, end, task)
    readers: dict[str, set[int]] = {}
    needs: list[set[int]] = []
    for number, task in enumerate(program.tasks):
        needs.append(set())
        for value in task.operands.values():
            root, first = program.place(value)
            readers.setdefault(root, set()).add(number)
            end = first + math.prod(program.values[value].shape)
            needs[-1].update(n for a, b, n in written.get(root, ()) if a < end and first < b)
        root, first = program.place(task.result)
        end = first + math.prod(program.values[task.result].shape)
        written.setdefault(root, []).append((first, end, number))
    for value, name in replaced.items():
        ((_, _, writer),) = written[value]
        needs[writer] |= readers.get(name, set()) - {writer}
    numbers = {task.name: number for number, task in enumerate(program.tasks)}
    for name, other in program.behind.items():
        if name in numbers and other in numbers:
            needs[numbers[name]].add(numbers[other])
    if program.in_order:
        _wait_in_a_row(program, needs)
    levels = [0] * len(needs)
    order = list(TopologicalSorter(dict(enumerate(needs))).static_order())
    for number in order:
        levels[number] = 1 + max((levels[other] for other in needs[number]), default=-1)
    if late and program.carried:
        behind: list[list[int]] = [[] for _ in needs]
        for number, others in enumerate(needs):
            for other in others:
                behind[other].append(number)
        moved: set[int] = set()
        for number in reversed(order):
            if _is_small_update(program.tasks[number].group) and moved.issuperset(behind[number]):
                moved.add(number)
                levels[number] = (
                    min((levels[n] for n in behind[number]), default=max(levels) + 1) - 1
                )
        for number, others in enumerate(needs):
            if not others and behind[number]:
                levels[number] = min(levels[n] for n in behind[number]) - 1
    return tuple(levels)


def _wait_in_a_row(program: Program, needs: list[set[int]]) -> None:
    large = [n for n, t in enumerate(program.tasks) if not _is_small_update(t.group)]
    for before, number in pairwise(large):
        needs[number].add(before)


def _is_small_update(group: Group) -> bool:
    """Whether it is element-wise, and so small that a launch takes longer."""
    return math.prod(group.output.shape) <= SMALL and all(s.combiner is None for s in group.stages)
