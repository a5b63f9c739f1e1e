"""Given schedules of many groups on one GPU: planned, compiled and timed beside each other.

Goes in: an open `GpuBench`, groups by name, and a function that plans the schedules of one of them.
Comes out: group by group, in their order, the seconds of every schedule, each checked against the
float64 reference. Processes plan and compile the next groups while one is timed, which happens in
one process and alone.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ops.group import Group
from tilewright.runtime.pool import each
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.gpu_layers import GpuBench

AHEAD = 6  # groups that are compiled before one of them is timed

# (group, machine, ..) -> schedules by the name of what they are for, in the order to be timed.
Plan = Callable[..., Mapping[str, Sequence[GpuSchedule]]]


@dataclass(frozen=True, slots=True)
class TimedGroup:
    """One group: its schedules as they were planned; `seconds` by digest, None: it did not work."""

    name: str
    group: Group
    planned: Mapping[str, Sequence[GpuSchedule]]
    seconds: Mapping[str, float | None]

    def of(self, what: str) -> list[tuple[GpuSchedule, float | None]]:
        """The schedules for something, and their times."""
        return [(s, self.seconds[s.digest]) for s in self.planned[what]]

    def working(self, what: str) -> list[tuple[GpuSchedule, float]]:
        """Those that work, the fastest first."""
        found = [(s, t) for s, t in self.of(what) if t is not None]
        return sorted(found, key=lambda pair: (pair[1], pair[0].digest))


def importable(function: Plan) -> Plan:
    """The same function by a name that other processes know: a module that is run by `python -m`
    is `__main__` in this one alone.
    """
    spec = getattr(sys.modules['__main__'], '__spec__', None)
    if function.__module__ != '__main__' or spec is None:
        return function
    return getattr(importlib.import_module(spec.name), function.__name__)


def timed_groups(
    bench: GpuBench, groups: Mapping[str, Group], plan: Plan, words: tuple[Any, ...], until: float
) -> Iterator[TimedGroup]:
    """Time what `plan(group, machine, *words)` says; after `until` (monotonic) none is begun."""
    machine = bench.opened.machine
    plans = each(importable(plan), [(group, machine, *words) for group in groups.values()])
    ready: deque = deque()
    for (name, group), planned in zip(groups.items(), plans, strict=True):
        schedules = list({s.digest: s for found in planned.values() for s in found}.values())
        ready.append((name, group, planned, schedules, bench.submitted(group, schedules)))
        if len(ready) < AHEAD:
            continue
        if time.monotonic() > until:
            return
        yield _timed(bench, *ready.popleft())
    while ready and time.monotonic() <= until:
        yield _timed(bench, *ready.popleft())


def _timed(
    bench: GpuBench, name: str, group: Group, planned: Mapping[str, Sequence[GpuSchedule]],
    schedules: Sequence[GpuSchedule], pending: Mapping[str, Any],
) -> TimedGroup:  # fmt: skip
    return TimedGroup(name, group, planned, bench.measured(name, group, schedules, pending))
