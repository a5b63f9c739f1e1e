"""Models as searches ask them: scores of schedules of one group on one machine, lowest first.

    Analytical   the analytical time of the features, of one kind of kernels
    Predicted    the time model of all kinds (model/gpu/time.py): what searches have without
                 learning; or another estimate that needs no data (model/gpu/estimates.py)
    Learned      a `LearnedModel`; kinds of kernels that it has not seen, or does not order better,
                 by the time model
    Gat          a `GatModel`, the same

Those that learn from a run's own measurements are in rank/online.py. `ranker_for` chooses by name:
analytical, forest, gat, pul and bound, or auto, the default: a learned model where one knows the
machine, for kinds of kernels that it orders better by its own validation; else the analytical
ranking. The note says which. `register` adds another name.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np

from tilewright.errors import InputError, ScheduleError
from tilewright.machine.gpu import GpuMachine, known_by
from tilewright.model.gpu.estimates import ESTIMATES, TIME
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.rank.counts import Array
from tilewright.rank.files import SEARCHED, find_model, load_model
from tilewright.rank.gat import GatModel
from tilewright.rank.gat_files import find_gat
from tilewright.rank.model import LearnedModel
from tilewright.rank.online import Trial, features_of
from tilewright.rank.statistics import is_known
from tilewright.registry import Registry
from tilewright.schedule.gpu import GpuSchedule

_Found = TypeVar('_Found')
AUTO, ANALYTICAL = 'auto', 'analytical'
UNKNOWN, RANKS = 'no learned model knows', ', ranks'
HOPELESS_S = 1e3  # what cannot be on the machine, and is to come last


class Ranker(Protocol):
    """Scores of schedules of one group, lowest first; `learned` gives one that has seen results."""

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array: ...

    def learned(self, tried: Sequence[Trial]) -> Ranker: ...


def kind_of(schedule: GpuSchedule) -> str:
    """The kernels that a schedule belongs to, as data and models name them."""
    tail = '' if schedule.intrinsic == 'fma' else f'-{schedule.intrinsic}'
    return schedule.schema + tail


@dataclass(frozen=True)
class _Fixed:
    """A ranker that measurements do not change."""

    group: Group
    machine: GpuMachine

    def learned(self, tried: Sequence[Trial]) -> Self:
        return self


@dataclass(frozen=True)
class Analytical(_Fixed):
    """The ranking by analytical time."""

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        return features_of(self.group, self.machine, schedules)[1]


@dataclass(frozen=True)
class Predicted(_Fixed):
    """The ranking by the time model, or by another estimate: log seconds."""

    by: str = TIME

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        return np.array([self._one(schedule) for schedule in schedules])

    def _one(self, schedule: GpuSchedule) -> float:
        try:
            return math.log(ESTIMATES[self.by](self.group, schedule, self.machine))
        except ScheduleError:
            return math.log(HOPELESS_S)


@dataclass(frozen=True)
class Learned(_Fixed):
    """The ranking by a learned model."""

    model: LearnedModel

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        kinds = self.model.ranked_kinds
        seen = self.model.resembles(self.group)
        known = np.array([seen and kind_of(schedule) in kinds for schedule in schedules], bool)
        if known.all():
            x, base = features_of(self.group, self.machine, schedules)
            return self.model.comparable(x, base)
        scores = Predicted(self.group, self.machine)(schedules)
        if known.any():
            mine = [s for s, there in zip(schedules, known, strict=True) if there]
            x, base = features_of(self.group, self.machine, mine)
            scores[known] = self.model.log_seconds(x, base)
        return scores


@dataclass(frozen=True)
class Gat(_Fixed):
    """The ranking by the graph-attention model: log seconds."""

    model: GatModel

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Array:
        """Kernels that the data did not have by the time model."""
        seen = not has_front(self.group)
        known = np.array([seen and is_known(schedule) for schedule in schedules], bool)
        if known.all():
            return self._scores(schedules)
        scores = Predicted(self.group, self.machine)(schedules)
        if known.any():
            scores[known] = self._scores([s for s in schedules if is_known(s)])
        return scores

    def _scores(self, schedules: Sequence[GpuSchedule]) -> Array:
        try:
            return self.model.scores(self.group, self.machine, schedules)
        except ScheduleError:
            if len(schedules) == 1:
                return np.array([math.log(HOPELESS_S)])
            return np.concatenate([self._scores([schedule]) for schedule in schedules])


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


def _analytical(group: Group, machine: GpuMachine, kind: str) -> ChosenRanker:
    plain = Predicted if kind == SEARCHED else Analytical
    return ChosenRanker(plain(group, machine), 'analytical', 'the analytical model')


def _estimated(name: str) -> Callable[[Group, GpuMachine, str], ChosenRanker]:
    note = f'the estimate {name}'
    return lambda group, on, _kind: ChosenRanker(Predicted(group, on, name), name, note)


def _gat(group: Group, machine: GpuMachine, _kind: str) -> ChosenRanker:
    graph, bad = _first(find_gat, machine)
    if graph is None:
        raise InputError(
            bad
            or f'no graph-attention model knows {machine.name}; train one (tilewright model '
            f'train --model gat), or choose the model analytical, forest or auto'
        )
    return ChosenRanker(Gat(group, machine, graph[0]), 'gat', _instead(graph[1], bad), bool(bad))


def _forest(group: Group, machine: GpuMachine, kind: str) -> ChosenRanker:
    found, why = _trees(group, machine, kind)
    if found is None:
        raise InputError(f'{why}; choose the model analytical or auto')
    return found


def _auto(group: Group, machine: GpuMachine, kind: str) -> ChosenRanker:
    """Learned where the model's own validation says so; it is no trouble where none is known."""
    found, why = _trees(group, machine, kind)
    if found is None:
        note = f'{why}; candidates are ranked by the analytical model (tilewright model update)'
        damaged = not why.startswith(UNKNOWN)
        return replace(_analytical(group, machine, kind), note=note, fell_back=damaged)
    assert isinstance(found.ranker, Learned)
    header, ranked = found.ranker.model.header, found.ranker.model.ranked_kinds
    others = sorted(set(header['kinds']) - ranked)
    beside = f', the analytical model those of {", ".join(others)}' if others else ''
    source = found.note.removesuffix(RANKS)
    note = f'{source}: orders kernels of {", ".join(sorted(ranked))}{beside}'
    return replace(found, note=note) if ranked else _analytical(group, machine, kind)


def _trees(group: Group, machine: GpuMachine, kind: str) -> tuple[ChosenRanker | None, str]:
    """The learned model of a kind of kernels, or why there is none."""
    what = 'the kernels of a search' if kind == SEARCHED else f'{kind} kernels'
    found, bad = _first(lambda known: find_model(known, kind), machine)
    if found is None:
        return None, bad or f'{UNKNOWN} {what} on {machine.name}'
    ranker = Learned(group, machine, found[0])
    return ChosenRanker(ranker, 'forest', _instead(found[1], bad), bool(bad)), ''


# Name -> what makes the ranker of a group on a machine for a kind of kernels.
RANKERS: Registry[Callable[[Group, GpuMachine, str], ChosenRanker]] = Registry(
    'a model',
    {
        'analytical': _analytical, 'forest': _forest, 'gat': _gat, 'auto': _auto,
        **{name: _estimated(name) for name in ESTIMATES if name != TIME},
    },
)  # fmt: skip


def register(name: str, make: Callable[[Group, GpuMachine], Ranker]) -> None:
    """Add a ranker, which `model=name` and `--model name` then mean."""
    note = f'the registered model {name}'
    RANKERS.register(lambda group, on, _kind: ChosenRanker(make(group, on), name, note), name)


def ranker_for(name: str, group: Group, machine: GpuMachine, kind: str) -> ChosenRanker:
    """[a name of `RANKERS` | a file .npz] -> [ChosenRanker] for a kind of kernels

    The kind `SEARCHED` stands for all kernels that a search proposes.
    """
    if name.endswith('.npz'):
        model, note = load_model_for(name, machine)
        return ChosenRanker(Learned(group, machine, model), 'forest', note)
    if name not in RANKERS:
        raise InputError(f'{RANKERS.unknown(name)}, or name a file .npz')
    return RANKERS[name](group, machine, kind)


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
    return f'{bad}; meanwhile {source}{RANKS}' if bad else source


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
