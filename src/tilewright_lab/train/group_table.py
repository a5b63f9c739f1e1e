"""Measured groups as features: what GTuner's model and the trees beside it learn from.

Goes in: groups with schedules and times (tilewright_lab/collect/group_data.py) and a machine. Comes
out: a `GroupTable`: statistics of each row, the model's time, the measured one, and the graphs of
the groups. Statistics of tens of thousands of schedules take a minute; they are kept in the cache
directory, by what they follow from.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Protocol

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.compiler import cache_dir
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.rank.counts import Array
from tilewright.rank.graph_features import Graphs, graph_of, side_by_side
from tilewright.rank.statistics import NAMES, is_known, probe, statistics_for
from tilewright.schedule.gpu import GpuSchedule

LEAST_ROWS = 20


class MeasuredGroup(Protocol):
    """One group with what was measured: collect/group_data.py's `GroupRows` has it."""

    @property
    def group(self) -> Group: ...
    @property
    def schedules(self) -> Sequence[GpuSchedule]: ...
    @property
    def seconds(self) -> Array: ...


@dataclass(frozen=True)
class GroupTable:
    """Rows of all groups, one after the other.

    x             statistics            base         log of the seconds of the time model
    log_seconds   as measured           which        the number of each row's group
    slower        time over the best time of the group
    """

    x: Array = field(repr=False)
    base: Array = field(repr=False)
    log_seconds: Array = field(repr=False)
    which: Array = field(repr=False)
    graphs: Graphs = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def slower(self) -> Array:
        best = np.full(len(self.labels), np.inf)
        np.minimum.at(best, self.which, self.log_seconds)
        return np.exp(self.log_seconds - best[self.which])

    def take(self, rows: Array) -> GroupTable:
        """Some rows; graphs stay as they are."""
        return replace(
            self, x=self.x[rows], base=self.base[rows], log_seconds=self.log_seconds[rows],
            which=self.which[rows],
        )  # fmt: skip

    def rows_of(self, group: int) -> Array:
        return np.flatnonzero(self.which == group)


def known_rows(measured: MeasuredGroup) -> tuple[Group, list[GpuSchedule], Array]:
    """(group, schedules that there are statistics of, their seconds)."""
    there = np.array([is_known(schedule) for schedule in measured.schedules], bool)
    schedules = [s for s, known in zip(measured.schedules, there, strict=True) if known]
    return measured.group, schedules, np.asarray(measured.seconds)[there]


def group_table(sets: Sequence[MeasuredGroup], machine: GpuMachine) -> GroupTable:
    """[measured groups, machine] -> [GroupTable]; kernels without statistics are left out."""
    kept = [one for one in map(known_rows, sets) if one[1]]
    rows = sum(len(schedules) for _, schedules, _ in kept)
    if rows < LEAST_ROWS:
        raise InputError(
            f'{rows} measured rows of groups are too few to learn from; give at least {LEAST_ROWS}'
        )
    parts = [kept_statistics(group, machine, schedules) for group, schedules, _ in kept]
    return GroupTable(
        np.concatenate([x for x, _ in parts]), np.concatenate([base for _, base in parts]),
        np.log(np.concatenate([seconds for *_, seconds in kept])),
        np.repeat(np.arange(len(kept)), [len(schedules) for _, schedules, _ in kept]),
        side_by_side([graph_of(group) for group, *_ in kept]),
        tuple(group.label for group, *_ in kept),
    )  # fmt: skip


@cache
def _code() -> str:
    """A hash of what the statistics give."""
    return hashlib.sha256(repr((NAMES, probe())).encode()).hexdigest()


def kept_statistics(
    group: Group, machine: GpuMachine, schedules: Sequence[GpuSchedule]
) -> tuple[Array, Array]:
    """`statistics_for`, remembered; a file that cannot be read is written again."""
    key = json.dumps([_code(), group.digest, machine.to_json()], sort_keys=True)
    name = hashlib.sha256(f'{key} {list(schedules)}'.encode()).hexdigest()[:24]
    path = cache_dir() / 'learned' / f'{name}.npz'
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as found:
            x, base = found['x'], found['base']
        if x.shape == (len(schedules), len(NAMES)) and base.shape == (len(schedules),):
            return x, base
    except (OSError, ValueError, KeyError, EOFError):
        pass
    x, base = statistics_for(group, machine, schedules)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, x=x, base=base)
    fresh = path.with_suffix(f'.{os.getpid()}')
    fresh.write_bytes(data.getvalue())
    os.replace(fresh, path)
    return x, base
