"""Element-wise tasks joined with their neighbours, so that values do not travel through memory.

    conv -> y;  add(y, skip) -> z;  relu(z) -> out      becomes      conv+add+relu -> out
    scale(x) -> y;  max_pool(y) -> out                  becomes      scale>max_pool -> out

Goes in: a program and `cost`, which says how many seconds a group takes. Comes out: a program that
computes the same. A task is joined with the producer of what it reads if nobody else reads that and
the joined group costs no more than both. The joined task runs where the consumer ran, since what
else the consumer reads is there by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.graph.program import Program, Task
from tilewright.ops.compose import Composed, append, prepend
from tilewright.ops.group import Group

Cost = Callable[[Group], float]
# A chain that is longer is cut: joining takes time that grows with the square of its length, and a
# call is nothing beside so much work.
MOST_STAGES = 32


def fuse(program: Program, cost: Cost) -> Program:
    """[Program] -> [Program] with as few tasks as the cost allows."""
    tasks: list[Task | None] = []
    made: dict[str, int] = {}  # value -> the number of the task that writes all of it
    for original in program.tasks:
        task = original
        while (found := _joined(program, tasks, made, task, cost)) is not None:
            tasks[found.producer] = None
            task = found.task
        if not task.writes_part:
            made[task.result] = len(tasks)
        tasks.append(task)
    return program.with_tasks(tuple(task for task in tasks if task is not None))


@dataclass(frozen=True, slots=True)
class _Joined:
    producer: int
    task: Task


def _joined(
    program: Program, tasks: list[Task | None], made: dict[str, int], task: Task, cost: Cost
) -> _Joined | None:
    """The task with one of its producers; the latest one that it pays to join."""
    for number, tensor in sorted(_producers(program, made, task), reverse=True):
        producer = tasks[number]
        if producer is None:
            continue
        if len(producer.group.stages) + len(task.group.stages) > MOST_STAGES:
            continue
        found = _compose(producer.group, task.group, tensor)
        if found is None or cost(found.group) > cost(producer.group) + cost(task.group):
            continue
        operands = {new: producer.operands[old] for old, new in found.producer_names.items()}
        operands |= {new: task.operands[old] for old, new in found.consumer_names.items()}
        return _Joined(
            number,
            Task(
                producer.name if _works(producer.group) else task.name,
                found.group,
                operands,
                task.result,
                (*producer.origin, *task.origin),
                task.writes_part,
            ),
        )
    return None


def _works(group: Group) -> bool:
    return any(stage.combiner is not None for stage in group.stages)


def _compose(producer: Group, consumer: Group, tensor: str) -> Composed | None:
    if _works(consumer):
        return prepend(producer, consumer, tensor)
    return append(producer, consumer, tensor)


def _producers(program: Program, made: dict[str, int], task: Task) -> Iterator[tuple[int, str]]:
    """(number of a producer, tensor) for what this task alone reads, once, as it was written."""
    if task.writes_part:
        return
    for tensor, value in task.operands.items():
        alone = len(program.readers.get(program.base(value), ())) == 1
        if value in made and alone and once(program, task, value) and not program.is_output(value):
            yield made[value], tensor


def once(program: Program, task: Task, value: str) -> bool:
    """Whether a task reads the memory of a value through one tensor only; views of it count."""
    base = program.base(value)
    return [program.base(other) for other in task.operands.values()].count(base) == 1
