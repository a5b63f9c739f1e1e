"""Levels of a program: tasks of one level need nothing of each other, and may run side by side.

Goes in: a program. Comes out: the level of each task, one above those whose results it reads, and
the program with its tasks in that order.
"""

from __future__ import annotations

import math

from tilewright.graph.program import Program


def levels_of(program: Program) -> tuple[int, ...]:
    """For every task the number of tasks on the longest way to it."""
    written: dict[str, list[tuple[int, int, int]]] = {}  # root -> (first, end, level)
    levels = []
    for task in program.tasks:
        level = 0
        for value in task.operands.values():
            root, first = program.place(value)
            end = first + math.prod(program.values[value].shape)
            level = max(
                [level, *(n + 1 for a, b, n in written.get(root, ()) if a < end and first < b)]
            )
        levels.append(level)
        root, first = program.place(task.result)
        end = first + math.prod(program.values[task.result].shape)
        written.setdefault(root, []).append((first, end, level))
    return tuple(levels)


def by_levels(program: Program) -> Program:
    """The same tasks, those of a lower level first.

    A branch that is short then comes before the end of a longer one, and what joins them is fused
    with the longer one: the short one runs beside it instead of behind it.
    """
    levels = levels_of(program)
    order = sorted(range(len(levels)), key=lambda number: (levels[number], number))
    return program.with_tasks(tuple(program.tasks[number] for number in order))
