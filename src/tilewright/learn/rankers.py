"""Models as searches ask them: scores of schedules of one group on one machine, least first.

    Analytical   the analytical time of the features
    Learned      a `LearnedModel`
    Online       boosted trees trained on this run's own measurements, from nothing or on top of
                 another ranker's scores: the baseline like Ansor's, and how a model learns on

`ranker_for` chooses by name: analytical, forest, or auto: a learned model where one knows the
machine, else the analytical ranking, and it says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np

from tilewright.errors import InputError
from tilewright.learn.counts import Array, batches_of
from tilewright.learn.features import matrix_of
from tilewright.learn.files import find_model, load_model
from tilewright.learn.model import LearnedModel
from tilewright.learn.trees import Settings, grow
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

LEAST_TRIED = 8  # measurements before trees are grown on them
ONLINE = Settings('boosted', trees=60, leaves=8, least=2, rate=0.15, bag=1.0, features=0.5)
NAMES = ('analytical', 'forest', 'auto')


class Trial(Protocol):
    """What was measured: search/gpu_tune.py's `Tried` has it."""

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
class Analytical:
    """The ranking by analytical time."""

    group: Group
    machine: GpuMachine

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        return features_of(self.group, self.machine, schedules)[1]

    def learned(self, tried: Sequence[Trial]) -> Analytical:
        return self


@dataclass(frozen=True)
class Learned:
    """The ranking by a learned model."""

    group: Group
    machine: GpuMachine
    model: LearnedModel

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        x, base = features_of(self.group, self.machine, schedules)
        return self.model.scores_of(x, base)

    def learned(self, tried: Sequence[Trial]) -> Learned:
        return self


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


@dataclass(frozen=True)
class Choice:
    """A ranker, and what there is to say about it: where it is from, or why it is another one."""

    ranker: Analytical | Learned
    name: str
    note: str


def ranker_for(name: str, group: Group, machine: GpuMachine, kind: str = 'rs') -> Choice:
    """[analytical | forest | auto | a file .npz] -> [Choice] for kernels of a kind on a machine"""
    if name == 'analytical':
        return Choice(Analytical(group, machine), name, 'the analytical model')
    if name.endswith('.npz'):
        model = load_model_for(name, machine)
        return Choice(Learned(group, machine, model[0]), 'forest', model[1])
    if name not in NAMES:
        raise InputError(
            f'{name!r} is no model; choose one of {", ".join(NAMES)}, or name a file .npz'
        )
    why = f'no learned model knows {kind} kernels on {machine.name}'
    try:
        found = find_model(machine.name, kind)
    except InputError as error:  # a file that is damaged, or older than the features
        found, why = None, str(error)
    if found is not None:
        return Choice(Learned(group, machine, found[0]), 'forest', found[1])
    if name == 'forest':
        raise InputError(f'{why}; choose the model analytical or auto')
    note = f'{why}; candidates are ranked by the analytical model (tilewright model train)'
    return Choice(Analytical(group, machine), 'analytical', note)


def load_model_for(path: str, machine: GpuMachine) -> tuple[LearnedModel, str]:
    """(model, a sentence): a model for another machine is used, and said to be."""
    model = load_model(Path(path))
    trained = model.header['machine']
    if trained != machine.name:
        return model, (
            f'{path} was trained on {trained}, and this is for {machine.name}: its ranking may be '
            f'wrong'
        )
    return model, path
