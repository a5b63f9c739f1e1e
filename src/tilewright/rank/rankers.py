"""Models as searches ask them: scores of schedules of one group on one machine, lowest first.

    Analytical   the analytical time of the features, of one kind of kernels
    Predicted    the time model of all kinds (model/gpu/time.py): what searches have without
                 learning
    Learned      a `LearnedModel`; kinds of kernels that it has not seen by the time model

Those that learn from a run's own measurements are in rank/online.py, the graph-attention model's
in rank/gat.py. `ranker_for` chooses by name: analytical, forest, gat, or auto: a learned model
where one knows the machine, else the analytical ranking, and it says so.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from tilewright.errors import InputError, ScheduleError
from tilewright.machine.gpu import GpuMachine, known_by
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.group import Group
from tilewright.rank.counts import Array
from tilewright.rank.files import SEARCHED, find_model, load_model
from tilewright.rank.gat import Gat
from tilewright.rank.gat_files import find_gat
from tilewright.rank.model import LearnedModel
from tilewright.rank.online import Trial, features_of
from tilewright.schedule.gpu import GpuSchedule

NAMES = ('analytical', 'forest', 'gat', 'auto')
# Rankers from elsewhere: name -> what makes one for a group on a machine.
_ADDED: dict[str, Callable[[Group, GpuMachine], AnyRanker]] = {}
_Found = TypeVar('_Found')
HOPELESS_S = 1e3  # what cannot be on the machine, and is to come last


class AnyRanker(Protocol):
    """Scores of schedules of one group, lowest first; `learned` gives one that has seen results."""

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array: ...

    def learned(self, tried: Sequence[Trial]) -> AnyRanker: ...


def register(name: str, make: Callable[[Group, GpuMachine], AnyRanker]) -> None:
    """Add a ranker that `model=name` and `--model name` then mean; not one of `NAMES`."""
    if name in NAMES or name.endswith('.npz'):
        raise InputError(f'{name!r} is a model of the package; give the ranker another name')
    _ADDED[name] = make


def unregister(name: str) -> None:
    del _ADDED[name]


def ranker_names() -> tuple[str, ...]:
    """What `model` may be, beside the file of a model."""
    return (*NAMES, *_ADDED)


def kind_of(schedule: GpuSchedule) -> str:
    """The kernels that a schedule belongs to, as data and models name them."""
    tail = '' if schedule.intrinsic == 'fma' else f'-{schedule.intrinsic}'
    return schedule.schema + tail


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
class Predicted:
    """The ranking by the time model: log seconds."""

    group: Group
    machine: GpuMachine

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        return np.array([self._one(schedule) for schedule in schedules])

    def _one(self, schedule: GpuSchedule) -> float:
        try:
            return math.log(predict_gpu(self.group, schedule, self.machine).seconds)
        except ScheduleError:
            return math.log(HOPELESS_S)

    def learned(self, tried: Sequence[Trial]) -> Predicted:
        return self


@dataclass(frozen=True)
class Learned:
    """The ranking by a learned model."""

    group: Group
    machine: GpuMachine
    model: LearnedModel

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        kinds = set(self.model.header['kinds'])
        known = np.array([kind_of(schedule) in kinds for schedule in schedules], bool)
        if known.all():
            x, base = features_of(self.group, self.machine, schedules)
            return self.model.scores_of(x, base)
        scores = Predicted(self.group, self.machine)(schedules)
        if known.any():
            mine = [s for s, there in zip(schedules, known, strict=True) if there]
            scores[known] = self._log_seconds(*features_of(self.group, self.machine, mine))
        return scores

    def _log_seconds(self, x: Array, base: Array) -> Array:
        """Times that compare with those of the time model."""
        if self.model.time is None:
            raise InputError('a model that only ranks knows no times; train one that has them')
        start = base if self.model.header['recipe']['analytical'] else 0.0
        return self.model.time(x[:, self.model.features]) + start

    def learned(self, tried: Sequence[Trial]) -> Learned:
        return self


Ranker = AnyRanker


@dataclass(frozen=True)
class ChosenRanker:
    """A ranker, and what there is to say about it: where it is from, or why it is another one.

    fell_back   another one than was asked for
    """

    ranker: Ranker
    name: str
    note: str
    fell_back: bool = False

    @property
    def content(self) -> str:
        """A hash of what a learned model was made from: data, options, seed; else ''."""
        if not isinstance(self.ranker, Learned | Gat):
            return ''
        text = json.dumps(dict(self.ranker.model.header), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def names_of(machine: GpuMachine) -> tuple[str, ...]:
    """Names that models know a GPU by: its own, 'NVIDIA H200', and that of its file, 'h200'."""
    known = known_by(machine.name)
    return tuple(dict.fromkeys((machine.name, machine.name if known is None else known.name)))


def ranker_for(name: str, group: Group, machine: GpuMachine, kind: str) -> ChosenRanker:
    """[analytical | forest | gat | auto | a file .npz] -> [ChosenRanker] for a kind of kernels

    The kind `SEARCHED` stands for all kernels that a search proposes.
    """
    plain = Predicted if kind == SEARCHED else Analytical
    if name == 'analytical':
        return ChosenRanker(plain(group, machine), name, 'the analytical model')
    if name.endswith('.npz'):
        model = load_model_for(name, machine)
        return ChosenRanker(Learned(group, machine, model[0]), 'forest', model[1])
    if name in _ADDED:
        return ChosenRanker(_ADDED[name](group, machine), name, f'the registered model {name}')
    if name not in NAMES:
        known = ', '.join(ranker_names())
        raise InputError(f'{name!r} is not a model; choose one of {known}, or name a file .npz')
    if name == 'gat':
        graph, bad = _first(find_gat, machine)
        if graph is None:
            raise InputError(
                bad
                or f'no graph-attention model knows {machine.name}; train one (tilewright model '
                f'train --model gat), or choose the model analytical, forest or auto'
            )
        return ChosenRanker(Gat(group, machine, graph[0]), name, _instead(graph[1], bad), bool(bad))
    what = 'the kernels of a search' if kind == SEARCHED else f'{kind} kernels'
    found, bad = _first(lambda known: find_model(known, kind), machine)
    if found is not None:
        ranker = Learned(group, machine, found[0])
        return ChosenRanker(ranker, 'forest', _instead(found[1], bad), bool(bad))
    why = bad or f'no learned model knows {what} on {machine.name}'
    if name == 'forest':
        raise InputError(f'{why}; choose the model analytical or auto')
    note = f'{why}; candidates are ranked by the analytical model (tilewright model train)'
    return ChosenRanker(plain(group, machine), 'analytical', note, True)


def _first(find: Callable[[str], _Found | None], machine: GpuMachine) -> tuple[_Found | None, str]:
    """What is found by the first name of a machine that has one, and why not by an earlier one: a
    file that is damaged, or older than the features.
    """
    bad = ''
    for known in names_of(machine):
        try:
            found = find(known)
        except InputError as error:
            bad = bad or str(error)
            continue
        if found is not None:
            return found, bad
    return None, bad


def _instead(source: str, bad: str) -> str:
    return f'{bad}; meanwhile {source}, ranks' if bad else source


def load_model_for(path: str, machine: GpuMachine) -> tuple[LearnedModel, str]:
    """(model, a sentence): a model for another machine is used, and said to be."""
    model = load_model(Path(path))
    trained = model.header['machine']
    if trained not in names_of(machine):
        return model, (
            f'{path} was trained on {trained}, and this is for {machine.name}: its ranking may be '
            f'wrong'
        )
    return model, path
