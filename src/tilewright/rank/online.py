"""Trees that learn while a search runs: the baseline like Ansor's, and how a model learns on.

Goes in: what a search has measured so far. Comes out: scores of other schedules, lowest first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.rank.counts import Array, batches_of
from tilewright.rank.features import matrix_of
from tilewright.rank.trees import Settings, grow
from tilewright.schedule.gpu import GpuSchedule

LEAST_TRIED = 8  # measurements before trees are grown on them
ONLINE = Settings('boosted', trees=60, leaves=8, least=2, rate=0.15, bag=1.0, features=0.5)


class Trial(Protocol):
    """What was measured: search/gpu/tune.py's `Tried` has it."""

    @property
    def schedule(self) -> GpuSchedule: ...
    @property
    def seconds(self) -> float | None: ...


def features_of(
    group: Group, machine: GpuMachine, schedules: Sequence[GpuSchedule]
) -> tuple[Array, Array]:
    """[schedules of any schemas] -> [rows x features, log of analytical seconds], in their order"""
    found = [(places, matrix_of(batch, machine)) for batch, places in batches_of(group, schedules)]
    x = np.empty((len(schedules), found[0][1][0].shape[1]), np.float32)
    base = np.empty(len(schedules))
    for places, (rows, start) in found:
        x[places], base[places] = rows, start
    return x, base


@dataclass(frozen=True)
class Online:
    """Trees on the logarithms of this run's own times.

    With a `prior`, its scores, scaled to the times seen, are what the trees start from. Scores of a
    prior are comparable within one list only, so that the tried ones are scored with the others,
    and trees are grown for each list. What did not work counts as twice the slowest. `features`
    gives those that are known already.
    """

    group: Group
    machine: GpuMachine
    prior: Callable[[Sequence[GpuSchedule]], Array] | None = None
    tried: tuple[Trial, ...] = ()
    seed: int = 0
    features: Callable[[Sequence[GpuSchedule]], Array] | None = None

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        times = [t.seconds for t in self.tried if t.seconds is not None]
        if len(times) < LEAST_TRIED:
            return self._start(schedules)
        y = np.log([2 * max(times) if t.seconds is None else t.seconds for t in self.tried])
        everything = [*(t.schedule for t in self.tried), *schedules]
        x = (
            features_of(self.group, self.machine, everything)[0]
            if self.features is None
            else self.features(everything)
        )
        start = self._start(everything)
        seen = start[: len(y)]
        slope = float(np.polyfit(seen, y, 1)[0]) if seen.std() > 0 else 0.0
        start = max(slope, 0.0) * start
        trees = grow(x[: len(y)], y - start[: len(y)], ONLINE, seed=self.seed)
        return start[len(y) :] + trees(x[len(y) :])

    def _start(self, schedules: Sequence[GpuSchedule]) -> Array:
        return np.zeros(len(schedules)) if self.prior is None else np.asarray(self.prior(schedules))

    def learned(self, tried: Sequence[Trial]) -> Online:
        return replace(self, tried=tuple(tried))
