"""Element-wise tasks joined with their neighbours, so that values do not travel through memory.

    conv -> y;  add(y, skip) -> z;  relu(z) -> out      becomes      conv+add+relu -> out
    scale(x) -> y;  max_pool(y) -> out                  becomes      scale>max_pool -> out

Goes in: a program and `cost`, which says how many seconds a group takes. Comes out: a program that
computes the same. A task is joined with the producer of what it reads if nobody else reads that and
the joined group costs no more than both; x * sigmoid(x) reads x twice, and is nobody else. The
joined task runs where the consumer ran, since what else the consumer reads is there by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.graph.program import Program, Task
from tilewright.ops.chain import is_chained
from tilewright.ops.compose import Composed, append, as_one, prepend
from tilewright.ops.group import Group
from tilewright.ops.scatter import LARGE, scattered

Cost = Callable[[Group], float]
# A chain that is longer is cut: joining takes time that grows with the square of its length, and a
# call is nothing beside so much work.
MOST_STAGES = 32


def fuse(program: Program, cost: Cost) -> Program:
    """[Program] -> [Program] with as few tasks as the cost allows."""
    known = _Known(cost)
    tasks: list[Task | None] = []
    made: dict[str, int] = {}  # value -> the number of the task that writes all of it
    held: dict[str, frozenset[str]] = {}  # value -> results of the tasks that were joined into it
    for original in program.tasks:
        task = original
        held[task.result] = frozenset({task.result})
        while (found := _joined(program, tasks, made, task, held, known)) is not None:
            producer = tasks[found.producer]
            assert producer is not None
            held[task.result] |= held[producer.result]
            tasks[found.producer] = None
            task = found.task
        if not task.writes_part:
            made[task.result] = len(tasks)
        tasks.append(task)
    return program.with_tasks(tuple(task for task in tasks if task is not None))


class _Known:
    """What was found of groups: networks repeat themselves, and so do the steps of a long chain.

    By digests, since groups that are equal may differ in the sign of a zero.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._costs: dict[str, float] = {}
        self._composed: dict[tuple[str, ...], Composed | None] = {}

    def cost(self, group: Group) -> float:
        if group.digest not in self._costs:
            self._costs[group.digest] = self._cost(group)
        return self._costs[group.digest]

    def composed(self, producer: Group, consumer: Group, tensor: str) -> Composed | None:
        key = (producer.label, producer.digest, consumer.label, consumer.digest, tensor)
        if key not in self._composed:
            self._composed[key] = _compose(producer, consumer, tensor)
        return self._composed[key]


@dataclass(frozen=True, slots=True)
class _Joined:
    producer: int
    task: Task


def _joined(
    program: Program, tasks: list[Task | None], made: dict[str, int], task: Task,
    held: Mapping[str, frozenset[str]], known: _Known,
) -> _Joined | None:  # fmt: skip
    """The task with one of its producers; the latest one that it pays to join."""
    for number, tensor in sorted(_producers(program, made, task, held), reverse=True):
        producer, task = tasks[number], as_read_once(task, task.operands[tensor])
        if producer is None or list(task.operands.values()).count(task.operands[tensor]) > 1:
            continue
        if len(producer.group.stages) + len(task.group.stages) > MOST_STAGES:
            continue
        found = known.composed(producer.group, task.group, tensor)
        if found is None:
            continue
        if known.cost(found.group) > known.cost(producer.group) + known.cost(task.group):
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
    if is_chained(producer) or is_chained(consumer):
        return None  # its schemas know it as it is
    if _works(consumer):
        # Rows that a long list adds to a table are read as they are, each once.
        listed = consumer.main.points >= LARGE and scattered(consumer.main) is not None
        return None if listed else prepend(producer, consumer, tensor)
    return append(producer, consumer, tensor)


def _producers(
    program: Program, made: dict[str, int], task: Task, held: Mapping[str, frozenset[str]]
) -> Iterator[tuple[int, str]]:
    """(number of a producer, tensor) for what this task alone reads, as it was written."""
    if task.writes_part:
        return
    seen: set[str] = set()
    for tensor, value in task.operands.items():
        readers = {t.result for t in program.readers.get(program.base(value), ())}
        alone = readers <= held[task.result] and value not in seen
        seen.add(value)
        if value in made and alone and _same_way(program, task, value):
            yield made[value], tensor


def _same_way(program: Program, task: Task, value: str) -> bool:
    """Whether a task reads the memory of a value under its own name only, and callers do not."""
    base = program.base(value)
    names = {other for other in task.operands.values() if program.base(other) == base}
    return names == {value} and not program.is_output(value)


def as_read_once(task: Task, value: str) -> Task:
    """The task with one tensor for a value that several of its tensors are: x * sigmoid(x)."""
    first, *others = (tensor for tensor, name in task.operands.items() if name == value)
    group = as_one(task.group, (first, *others)) if others else task.group
    if group is None:
        return task
    operands = {tensor: name for tensor, name in task.operands.items() if tensor not in others}
    return replace(task, group=group, operands=operands)


def once(program: Program, task: Task, value: str) -> bool:
    """Whether a task reads the memory of a value through one tensor only; views of it count."""
    base = program.base(value)
    return [program.base(other) for other in task.operands.values()].count(base) == 1
