"""Element-wise tasks in front of a convolution, applied while it copies its image.

    batch_norm(x) -> relu -> y;  conv 1x1 (y) -> z      becomes      batch_norm|relu|conv -> z

Goes in: a program and `cost`, which says how many seconds a group takes. Comes out: a program that
computes the same. DenseNet normalises what all layers before wrote, again for every layer: a pass
over memory as long as the convolution's own. The two are joined where nobody else reads what lies
between them and the joined group costs no more than both (ops/front.py says which can be).
"""

from __future__ import annotations

from tilewright.graph.fuse import Cost, once
from tilewright.graph.program import Program, Task
from tilewright.ops.front import put_in_front


def put_before(program: Program, cost: Cost) -> Program:
    """[Program] -> [Program] with fewer tasks between convolutions."""
    tasks: list[Task | None] = list(program.tasks)
    made = {t.result: number for number, t in enumerate(program.tasks) if not t.writes_part}
    for number, task in enumerate(program.tasks):
        for tensor, value in task.operands.items():
            producer = tasks[made[value]] if value in made else None
            if producer is None or not _is_alone(program, task, value):
                continue
            joined = _joined(producer, task, tensor, cost)
            if joined is not None:
                tasks[made[value]], tasks[number] = None, joined
                break
    return program.with_tasks(tuple(task for task in tasks if task is not None))


def _joined(producer: Task, task: Task, tensor: str, cost: Cost) -> Task | None:
    if any(stage.combiner is not None for stage in producer.group.stages):
        return None
    found = put_in_front(producer.group, task.group, tensor)
    if found is None or cost(found.group) > cost(producer.group) + cost(task.group):
        return None
    operands = {new: producer.operands[old] for old, new in found.producer_names.items()}
    operands |= {new: task.operands[old] for old, new in found.consumer_names.items()}
    origin = (*producer.origin, *task.origin)
    return Task(task.name, found.group, operands, task.result, origin, task.writes_part)


def _is_alone(program: Program, task: Task, value: str) -> bool:
    """Whether this task alone reads a value, once, and nobody outside sees it."""
    readers = program.readers.get(program.base(value), ())
    held = any(holder == value for holder, _ in program.inside.values())
    return (
        len(readers) == 1
        and once(program, task, value)
        and not program.is_output(value)
        and not held
    )
