"""Where a network's time goes: the time of every task, beside what was predicted and what is bound.

Goes in: time stamps of some calls (`Network.stamps`) and what is known of the tasks. Comes out: a
`Profile`: a table and an explanation for people, JSON, or a trace that Chrome and Perfetto show.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.files import replacing
from tilewright.notebook import short_form

_WIDEST = 44
_SHOWN = 12  # tasks in a notebook
_FIGURES = '     ms   share  GFLOP/s  of bound'
_HEAD = f'{"task".ljust(24)} {"kernel".ljust(_WIDEST)} {"how".ljust(9)} {_FIGURES}'


@dataclass(frozen=True, slots=True)
class TaskTime:
    """One task. Times are medians over calls.

    label         the group, in the notation of specs
    origin        the nodes of the model that it computes
    schema        how its kernel computes: docs/contracts.md
    gflops_per_s  operations of the definition, so that Winograd may exceed the machine's peak
    bound_ms      what no kernel of the same algorithm can beat on this machine
    limit         what bounds it, by the model
    start_ms      when it begins within a call
    """

    name: str
    label: str
    origin: tuple[str, ...]
    schema: str
    time_ms: float
    gflops_per_s: float
    predicted_ms: float
    bound_ms: float
    limit: str
    start_ms: float

    @classmethod
    def of(cls, task: Any, kernel: Any, ms: float, start_ms: float) -> TaskTime:
        """A task that took so long, by the kernel that computes it and has its prediction."""
        return cls(
            task.name, kernel.group.label, task.origin, kernel.schedule.schema, ms,
            kernel.group.flops / max(1e6 * ms, 1e-9), 1e3 * kernel.predicted_s,
            1e3 * kernel.bound_s, kernel.limit, start_ms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Profile:
    """The tasks of one network in the order in which they run."""

    name: str
    threads: int
    calls: int
    total_ms: float
    tasks: tuple[TaskTime, ...]

    @property
    def bound_ms(self) -> float:
        """The sum of the bounds of all tasks."""
        return sum(task.bound_ms for task in self.tasks)

    def to_json(self) -> dict:
        return {
            'name': self.name,
            'threads': self.threads,
            'calls': self.calls,
            'total_ms': self.total_ms,
            'bound_ms': self.bound_ms,
            'tasks': [asdict(task) | {'origin': list(task.origin)} for task in self.tasks],
        }

    def to_trace(self) -> dict:
        """The trace event format: one complete event for each task, in microseconds."""
        return {
            'displayTimeUnit': 'ms',
            'otherData': {'network': self.name, 'threads': self.threads, 'calls': self.calls},
            'traceEvents': [
                {
                    'name': task.name,
                    'cat': task.schema,
                    'ph': 'X',
                    'pid': 1,
                    'tid': 1,
                    'ts': 1e3 * task.start_ms,
                    'dur': 1e3 * task.time_ms,
                    'args': {
                        'kernel': task.label,
                        'nodes': list(task.origin),
                        'gflops_per_s': task.gflops_per_s,
                        'bound_ms': task.bound_ms,
                    },
                }
                for task in self.tasks
            ],
        }

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON."""
        try:
            with replacing(Path(path)) as made:
                made.write_text(json.dumps(self.to_trace()) + '\n')
        except OSError as error:
            raise InputError(f'{path} cannot be written: {error.strerror}') from None

    def __str__(self) -> str:
        return profile_table(self)


def medians(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """[calls, tasks + 1] seconds -> (start and length of every task, length of a call), in ms."""
    lengths = 1e3 * np.median(np.diff(stamps, axis=1), axis=0)
    starts = np.concatenate([[0.0], np.cumsum(lengths)[:-1]]) if lengths.size else lengths
    return starts, lengths, 1e3 * float(np.median(stamps[:, -1] - stamps[:, 0]))


def shares(tasks: Sequence[TaskTime]) -> list[tuple[str, float, int]]:
    """(schema, milliseconds, tasks) of every schema, the most first."""
    found: dict[str, tuple[float, int]] = {}
    for task in tasks:
        spent, count = found.get(task.schema, (0.0, 0))
        found[task.schema] = spent + task.time_ms, count + 1
    return sorted(((k, ms, n) for k, (ms, n) in found.items()), key=lambda item: -item[1])


def network_html(name: str, said: str, tasks: Sequence[tuple[Any, Any]]) -> str:
    """The short form of a network in a notebook: (task, kernel), the longest predicted first."""
    total = sum(kernel.predicted_s for _, kernel in tasks)
    longest = sorted(tasks, key=lambda item: -item[1].predicted_s)[:_SHOWN]
    rows = [
        (task.name, kernel.group.label[:_WIDEST], kernel.schedule.schema,
         f'{1e3 * kernel.predicted_s:.4f}', f'{kernel.predicted_s / max(total, 1e-12):.1%}',
         f'{kernel.bound_s / max(kernel.predicted_s, 1e-12):.0%}', kernel.limit)
        for task, kernel in longest
    ]  # fmt: skip
    more = f', of {len(tasks)} tasks the {len(rows)} longest' if len(rows) < len(tasks) else ''
    head = ('task', 'kernel', 'how', 'predicted ms', 'share', 'of bound', 'limit')
    return short_form(name, f'{said}; predicted {1e3 * total:.3f} ms{more}', head, rows)


def profile_table(profile: Profile) -> str:
    """One line for each task, then the total."""
    lines = [
        f'{profile.name}: {profile.total_ms:.3f} ms, threads: {profile.threads}, median of '
        f'{profile.calls} calls',
        _HEAD,
        *(_line(task, profile.total_ms) for task in profile.tasks),
        f'{"all".ljust(24)} {"".ljust(_WIDEST)} {"".ljust(9)} {profile.total_ms:7.3f}  100.0%'
        f'           {_of_bound(profile.bound_ms, profile.total_ms)}',
    ]
    return '\n'.join(line.rstrip() for line in lines)


def explain_network(profile: Profile, top: int = 8) -> str:
    """Where the time goes, what bounds it, and what is left."""
    total = profile.total_ms
    lines = [
        f'{profile.name} takes {total:.3f} ms with {profile.threads} threads; the bounds of its '
        f'{len(profile.tasks)} tasks add up to {profile.bound_ms:.3f} ms, so that at most '
        f'{_left(profile.bound_ms, total)} of the time is left to gain with these algorithms.',
        '',
        'By kind of kernel:',
        *(
            f'  {schema.ljust(10)} {ms:8.3f} ms {ms / total:6.1%}  {count} tasks'
            for schema, ms, count in shares(profile.tasks)
        ),
        '',
        f'The {min(top, len(profile.tasks))} tasks that are furthest above their bounds:',
    ]
    furthest = sorted(profile.tasks, key=lambda task: task.bound_ms - task.time_ms)[:top]
    for task in furthest:
        lines.append(
            f'  {task.name[:24].ljust(24)} {task.time_ms:7.3f} ms, bound {task.bound_ms:.3f}, '
            f'limited by {task.limit or "nothing known"}: {task.label}'
        )
    return '\n'.join(lines)


def _line(task: TaskTime, total: float) -> str:
    return (
        f'{task.name[:24].ljust(24)} {task.label[:_WIDEST].ljust(_WIDEST)} '
        f'{task.schema.ljust(9)} {task.time_ms:7.3f} {task.time_ms / max(total, 1e-9):7.1%} '
        f'{task.gflops_per_s:8.1f}  {_of_bound(task.bound_ms, task.time_ms)}'
    )


def _of_bound(bound_ms: float, time_ms: float) -> str:
    return f'{bound_ms / max(time_ms, 1e-9):7.1%}'


def _left(bound_ms: float, time_ms: float) -> str:
    return f'{max(0.0, 1 - bound_ms / max(time_ms, 1e-9)):.0%}'
