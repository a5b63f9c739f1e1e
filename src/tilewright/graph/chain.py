"""Tasks joined into one group with several reducing stages: which can be, and what they become.

    dw 3x3 -> y;  conv 1x1 (y) -> z      becomes      dw 3x3 >> conv 1x1 -> z, with y in 'cache'

Goes in: a program and the numbers of some of its tasks. Comes out: the task that computes all of
them, and the program with it in their place. Which sets of tasks to join is decided elsewhere
(search/fusion.py).

A task has one result, so a set can be one task only if its last member alone is read from outside.
Such a set is convex: a path that leaves it starts at the last member, and comes back to none,
because tasks read what earlier tasks wrote. For the same reason disjoint sets can always be joined
side by side, each in the place of its last member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from tilewright.graph.program import Program, Task
from tilewright.ops.chain import chain
from tilewright.ops.compose import as_one
from tilewright.ops.group import Group


@dataclass(frozen=True)
class Links:
    """Who reads what, by the numbers of tasks in a program.

    producers  the tasks whose results a task reads, where these may become inner tensors
    readers    the tasks that read a task's result; empty where others see its memory, too: callers,
               views, or a value that holds it
    """

    program: Program
    producers: tuple[tuple[int, ...], ...]
    readers: tuple[frozenset[int], ...]


def links_of(program: Program) -> Links:
    """[Program] -> [Links]"""
    apart = {*program.views.values(), *program.inside}
    apart |= {holder for holder, _ in program.inside.values()}
    makers = {
        task.result: number
        for number, task in enumerate(program.tasks)
        if not task.writes_part and task.result not in apart and not program.is_output(task.result)
    }
    readers: dict[int, set[int]] = {}
    producers = []
    for number, task in enumerate(program.tasks):
        found = sorted({makers[v] for v in task.operands.values() if v in makers})
        producers.append(tuple(found))
        for producer in found:
            readers.setdefault(producer, set()).add(number)
    every = (frozenset(readers.get(number, ())) for number in range(len(program.tasks)))
    return Links(program, tuple(producers), tuple(every))


def can_join(links: Links, numbers: Set[int]) -> bool:
    """Whether nobody outside a set of tasks reads what they make, but for the last one's result."""
    last = max(numbers)
    return all(links.readers[n] and links.readers[n] <= numbers for n in numbers if n != last)


def grown(links: Links, numbers: Set[int]) -> Iterator[frozenset[int]]:
    """The sets with one task more that can be joined: a producer, or the reader of the result."""
    last = max(numbers)
    added = {p for number in numbers for p in links.producers[number]} - numbers
    for number in sorted(added | (links.readers[last] - numbers)):
        if can_join(links, numbers | {number}):
            yield frozenset(numbers | {number})


def joined(links: Links, numbers: Set[int]) -> Task | None:
    """The task that computes all of these; None where the description of some cannot be chained."""
    tasks = links.program.tasks
    last, *before = sorted(numbers, reverse=True)
    made = tasks[last]
    for number in before:
        joined_now = _behind(tasks[number], made)
        if joined_now is None:
            return None
        made = joined_now
    origin = tuple(name for number in sorted(numbers) for name in tasks[number].origin)
    return replace(made, origin=origin)


def with_joined(links: Links, sets: Iterable[Set[int]]) -> Program:
    """The program with each of these disjoint sets of tasks joined, where its last member ran."""
    tasks: list[Task | None] = list(links.program.tasks)
    for numbers in sets:
        made = joined(links, numbers)
        assert made is not None, 'a set that cannot be joined was chosen'
        for number in numbers:
            tasks[number] = None
        tasks[max(numbers)] = made
    return links.program.with_tasks(tuple(task for task in tasks if task is not None))


def alone(links: Links, tasks: Iterable[Task], name: str) -> Program:
    """A program of these tasks only, to be measured: what they read from outside is its input."""
    tasks = tuple(replace(task, writes_part=False) for task in tasks)
    whole = links.program
    made = {task.result for task in tasks}
    read = dict.fromkeys(value for task in tasks for value in task.operands.values())
    outside = [value for value in read if value not in made]
    inputs = tuple(value for value in outside if value not in whole.constants)
    constants = {value: whole.constants[value] for value in outside if value in whole.constants}
    result = tasks[-1].result
    values = {value: whole.values[value] for value in (*read, *made)}
    return Program(name, inputs, ((result, result),), tasks, values, constants)


def _behind(producer: Task, consumer: Task) -> Task | None:
    """The consumer with the producer in front, through every tensor by which it reads the value."""
    group, operands = consumer.group, dict(consumer.operands)
    first, *others = (t for t, value in consumer.operands.items() if value == producer.result)
    if others:
        group = as_one(group, (first, *others))
        if group is None:
            return None
        for tensor in others:
            del operands[tensor]
    found = chain(producer.group, group, first)
    if found is None:
        return None
    bound = _bound(found.producer_names, producer.operands)
    bound |= _bound(found.consumer_names, operands)
    return replace(consumer, group=found.group, operands=bound)


def _bound(names: Mapping[str, str], operands: Mapping[str, str]) -> dict[str, str]:
    return {new: operands[old] for old, new in names.items()}


def reduces(group: Group) -> bool:
    """Whether a group has a reducing stage."""
    return any(stage.combiner is not None for stage in group.stages)
