"""Images of f16 or bf16 that are quantised: by the kernel that computes them.

    conv of f16 -> y: f16;  quantize(y) -> q: u8      becomes      conv+quantize -> q: u8

Goes in: a program of halves and 8-bit numbers, layouts decided. Comes out: a program in which a
task that quantises what it alone reads is joined with the task of halves that computes it: what
passes between types costs no pass over memory (ops/stored.py says what is quantised, and how).
"""

from __future__ import annotations

from tilewright.graph.program import Program, Task
from tilewright.ops.compose import append
from tilewright.ops.stored import as_stored


def quantised_at_once(program: Program) -> Program:
    """[Program] -> [Program]"""
    made = {task.result: task for task in program.tasks if not task.writes_part}
    joined: dict[str, Task] = {}  # result of a task that quantises -> what computes it at once
    gone: set[str] = set()
    for task in program.tasks:
        value = next(iter(task.operands.values()), '')
        producer = made.get(value)
        if producer is None or len(task.operands) != 1 or not _alone(program, task, value):
            continue
        found = _joined(producer, task)
        if found is not None:
            joined[task.result] = found
            gone.add(value)
    if not joined:
        return program
    tasks = (joined.get(t.result, t) for t in program.tasks if t.result not in gone)
    return program.with_tasks(tuple(tasks))


def _alone(program: Program, task: Task, value: str) -> bool:
    """Whether a task alone reads a value, as it was written."""
    readers = program.readers.get(program.base(value), ())
    seen = program.base(value) != value or value in program.views.values()
    return len(readers) == 1 and not seen and not program.is_output(value) and not task.writes_part


def _joined(producer: Task, task: Task) -> Task | None:
    (tensor,) = task.operands
    if not producer.group.half or producer.group.main.combiner is None:
        return None
    found = append(producer.group, task.group, tensor)
    if found is None or as_stored(found.group)[1] is None:
        return None
    operands = {new: producer.operands[old] for old, new in found.producer_names.items()}
    operands |= {new: task.operands[old] for old, new in found.consumer_names.items()}
    return Task(
        producer.name, found.group, operands, task.result, (*producer.origin, *task.origin)
    )  # fmt: skip
