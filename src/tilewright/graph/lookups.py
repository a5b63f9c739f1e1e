"""Gradients of tables in one task each, for targets with a kernel that follows the lookups.

Goes in: a program with the tasks of ops/scatter.py (Same, Rows, Seen, At and the gradient). Comes
out: one where a single task computes the gradient by its definition.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.graph.program import Program, Task
from tilewright.ops.scatter import rows_at_once

MADE_OF = {'Seen', 'Rows', 'At'}
MOST_COLUMNS = 4096  # of a table whose rows are summed up in a block's memory


def at_once(program: Program) -> Program:
    """[Program] -> [Program]"""
    writers = {task.result: task for task in program.tasks}
    made: dict[str, Task] = {}
    dropped: set[str] = set()
    for task in program.tasks:
        if set(task.operands) != MADE_OF:
            continue
        seen, rows, at = (writers.get(task.operands[n]) for n in ('Seen', 'Rows', 'At'))
        if seen is None or rows is None or at is None:
            continue
        same = writers.get(rows.operands.get('Same', ''))
        if same is None or math.prod(rows.group.output.shape[1:]) > MOST_COLUMNS:
            continue
        group = rows_at_once(seen.group, rows.group, task.group)
        operands = {**seen.operands, **rows.operands}
        named = {t.name: operands[t.name] for t in group.tensors if t.role == 'input'}
        made[task.result] = replace(task, group=group, operands=named)
        dropped |= {one.result for one in (seen, rows, at, same)}
    if not made:
        return program
    read = {v for task in program.tasks for v in map(program.base, task.operands.values())
            if task.result not in made and task.result not in dropped}  # fmt: skip
    outputs = {program.base(value) for _, value in program.outputs}
    gone = dropped - read - outputs
    return program.with_tasks(
        tuple(made.get(task.result, task) for task in program.tasks if task.result not in gone)
    )
