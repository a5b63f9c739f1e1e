"""What a page shows. Goes in: values or JSON of `tilewright report --json`; comes out: `Page`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright.errors import InputError

KIND = 'tilewright report'


@dataclass(frozen=True, slots=True)
class PageGroup:
    """One kind of kernel. Times, operations and bytes are those of one of its tasks.

    schedule  in one line; `loops` in full
    why       sentences: why this algorithm and schedule; `runner_up`: against the second
    parts     (what, milliseconds) that add up to the predicted time
    """

    name: str
    label: str
    tasks: tuple[str, ...]
    algorithm: str
    schedule: str
    loops: tuple[str, ...]
    predicted_ms: float
    measured_ms: float | None
    bound_ms: float
    flops: float
    bytes: float
    precision: str
    threads: int
    limit: str
    why: tuple[str, ...]
    runner_up: tuple[str, ...]
    parts: tuple[tuple[str, float], ...]

    @property
    def time_ms(self) -> float:
        return self.predicted_ms if self.measured_ms is None else self.measured_ms

    @property
    def total_ms(self) -> float:
        return len(self.tasks) * self.time_ms

    @property
    def left_ms(self) -> float:
        """Of all tasks together, above the bound."""
        return len(self.tasks) * max(0.0, self.time_ms - self.bound_ms)


@dataclass(frozen=True, slots=True)
class PageTask:
    """One task: the number of its group, and the numbers of the tasks whose results it reads."""

    name: str
    group: int
    after: tuple[int, ...]
    start_ms: float
    time_ms: float


@dataclass(frozen=True, slots=True)
class Page:
    """A network or a list of layers on one machine.

    place     machine, instruction set, threads: in words; lanes: threads, or streams of a GPU
    total_ms  a whole call that was measured; None: not measured
    roofs     (name, GB/s) of every memory, nearest first; peak_gflops above all
    what_if   the grid of what_if.py, None where there is none
    notes     sentences on what the figures rest on
    """

    title: str
    place: str
    lanes: tuple[str, ...]
    groups: tuple[PageGroup, ...]
    tasks: tuple[PageTask, ...]
    total_ms: float | None
    peak_gflops: float
    roofs: tuple[tuple[str, float], ...]
    what_if: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()

    @property
    def predicted_ms(self) -> float:
        return sum(len(g.tasks) * g.predicted_ms for g in self.groups)

    @property
    def bound_ms(self) -> float:
        return sum(len(g.tasks) * g.bound_ms for g in self.groups)

    @property
    def time_ms(self) -> float:
        return self.predicted_ms if self.total_ms is None else self.total_ms

    def to_json(self) -> dict[str, Any]:
        return {'kind': KIND, **asdict(self)}


def page_from_json(data: Mapping[str, Any]) -> Page:
    """The inverse of `Page.to_json`; InputError where something is missing or of another kind."""
    try:
        fields = {name: value for name, value in data.items() if name in Page.__slots__}
        groups = tuple(PageGroup(**_tuples(one)) for one in data['groups'])
        tasks = tuple(PageTask(**_tuples(one)) for one in data['tasks'])
        page = Page(**_tuples(fields) | {'groups': groups, 'tasks': tasks})
        right = all(0 <= t.group < len(groups) for t in tasks) and groups
        right = right and all(g.predicted_ms > 0 and g.tasks for g in groups)
        return page if right else _refuse('a task or a group is not what it should be')
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return _refuse(repr(error))


def _refuse(why: str) -> Page:
    raise InputError(f'the report cannot be read: {why}; write it again by tilewright report')


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tuples, and lists of lists too, as the values have them."""

    def made(value: Any) -> Any:
        return tuple(map(made, value)) if isinstance(value, list | tuple) else value

    return {n: value if n in ('groups', 'tasks') and value and isinstance(value[0], dict)
            else made(value) for n, value in data.items()}  # fmt: skip


def in_order(
    groups: tuple[PageGroup, ...], edges: Mapping[str, tuple[str, ...]]
) -> tuple[PageTask, ...]:
    """Tasks one after the other, in the order of `edges`: task -> tasks that it reads."""
    of = {name: number for number, group in enumerate(groups) for name in group.tasks}
    numbers = {name: number for number, name in enumerate(edges)}
    tasks, now = [], 0.0
    for name, before in edges.items():
        time = groups[of[name]].time_ms
        tasks.append(PageTask(name, of[name], tuple(numbers[b] for b in before), now, time))
        now += time
    return tuple(tasks)


def measured(page: Page, times_ms: Mapping[str, float]) -> Page:
    """The page with measured times of its tasks; those of a group are its tasks' mean."""
    unknown = [task.name for task in page.tasks if task.name not in times_ms]
    if unknown:
        raise InputError(
            f'the trace has no time for task {unknown[0]}; take it from the same network, with '
            f'tilewright run --trace'
        )
    groups = tuple(
        replace(g, measured_ms=sum(times_ms[name] for name in g.tasks) / len(g.tasks))
        for g in page.groups
    )
    tasks, now = [], 0.0
    for task in page.tasks:
        tasks.append(replace(task, start_ms=now, time_ms=times_ms[task.name]))
        now += times_ms[task.name]
    return replace(page, groups=groups, tasks=tuple(tasks), total_ms=now)
