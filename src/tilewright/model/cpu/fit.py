"""Time constants of a machine, fitted to schedules that were measured on it.

Goes in: `TimedSchedule`s, a machine with the constants to start from. Comes out: `TimeConstants`,
and scores: how well predictions rank schedules.

A prediction is linear in nearly every constant, so each schedule is priced once for each constant;
where constants multiply (exposed shares and weights of lines) that is done again from the new
values. What is minimised, over layers: the weighted variance of log(measured / predicted) inside a
layer, since ranking needs no more, and a tenth of its squared mean. Fast schedules weigh more. A
pull towards the start keeps constants that the samples say little about; how strong it is, is
chosen by leaving layers out (`choose_pull`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.machine.constants import TimeConstants
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

STENCIL = 'stencil'  # the schema, and the beginning of the names of its constants
NAMES = tuple(TimeConstants.__dataclass_fields__)
PULLS = (0.3, 0.03, 0.003, 0.0003)
FOLDS = 4
WEIGHT = 2.0  # (time / best of its layer) ** -WEIGHT
COMMON_SHARE = 0.1  # of the squared mean of a layer, beside the variance
MOST_FACTOR = 50.0  # between a constant and where it started
LEAST = 0.02  # where a constant of zero starts
STEP = 0.25  # of a constant, by which its slope is found
PASSES, STEPS = 3, 25


@dataclass(frozen=True, slots=True)
class TimedSchedule:
    """A schedule of a layer, and the seconds that a call takes on one core."""

    layer: str
    group: Group
    schedule: Schedule
    seconds: float


@dataclass(frozen=True, slots=True)
class Score:
    """How well predictions rank the schedules of layers, means over layers.

    rank   Spearman's correlation of predicted and measured times
    loss   what the best predicted takes longer than the best measured, as a share
    spread standard deviation of log(measured / predicted) inside a layer
    """

    rank: float
    loss: float
    spread: float
    layers: int
    schedules: int


@dataclass(frozen=True, slots=True)
class _Priced:
    """Predictions as a linear function of constants, around those that they were priced at."""

    layer: np.ndarray
    seconds: np.ndarray
    bound: np.ndarray
    predicted: np.ndarray
    slopes: np.ndarray
    at: np.ndarray

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return np.maximum(self.predicted + self.slopes @ (values - self.at), self.bound)

    def some(self, layers: Sequence[int]) -> _Priced:
        kept = np.isin(self.layer, layers)
        return _Priced(
            self.layer[kept], self.seconds[kept], self.bound[kept], self.predicted[kept],
            self.slopes[kept], self.at,
        )  # fmt: skip


def fit(
    samples: Sequence[TimedSchedule], machine: Machine, pull: float | None = None
) -> tuple[TimeConstants, float | None]:
    """(constants, the pull): those that explain the samples best, from the machine's own.

    Without a pull that helps on layers left out, they stay as they are, and it is None.
    """
    start = _values(machine.time_constants)
    at, chosen = start, pull
    for _ in range(PASSES):
        priced = price(samples, machine, at)
        if chosen is None:
            chosen = choose_pull(priced, start)
        if chosen == np.inf:
            return machine.time_constants, None
        at = _descend(priced, start, at, chosen)
    return _constants(at), chosen


def price(samples: Sequence[TimedSchedule], machine: Machine, values: np.ndarray) -> _Priced:
    """Every schedule once as it is, and once for each constant."""
    names = list(dict.fromkeys(s.layer for s in samples))
    start = replace(machine, constants=_constants(values))
    steps = np.maximum(values * STEP, 1e-6)
    moved = [
        replace(machine, constants=_constants(values + np.where(np.arange(len(values)) == i, s, 0)))
        for i, s in enumerate(steps)
    ]
    found = []
    for sample in samples:
        first = predict(sample.group, sample.schedule, start)
        slopes = [
            (predict(sample.group, sample.schedule, one).seconds - first.seconds) / step
            if name.startswith(STENCIL) == (sample.schedule.schema == STENCIL)
            else 0.0  # not one of its model: a third of the time is saved
            for name, one, step in zip(NAMES, moved, steps, strict=True)
        ]
        found.append(
            (names.index(sample.layer), sample.seconds, first.bound_s, first.seconds, slopes)
        )
    layer, seconds, bound, predicted, slopes = map(np.array, zip(*found, strict=True))
    return _Priced(layer, seconds, bound, predicted, slopes, values)


def choose_pull(priced: _Priced, start: np.ndarray) -> float:
    """The pull whose fits explain layers best that they have not seen; infinite: no fit at all."""
    layers = sorted(set(priced.layer.tolist()))
    folds = [layers[n::FOLDS] for n in range(min(FOLDS, len(layers)))]

    def unseen(pull: float) -> float:
        total = 0.0
        for left in folds:
            kept = [n for n in layers if n not in left]
            at = start if pull == np.inf or not kept else _descend(
                priced.some(kept), start, start, pull
            )  # fmt: skip
            total += float((_residuals(priced.some(left), at) ** 2).sum())
        return total

    return min((np.inf, *PULLS), key=unseen)


def _descend(priced: _Priced, start: np.ndarray, at: np.ndarray, pull: float) -> np.ndarray:
    """Least squares in the logarithms of constants: Gauss and Newton's steps, damped."""
    low, high = np.log(start / MOST_FACTOR), np.log(start * MOST_FACTOR)
    held = np.sqrt(pull / len(start))

    def wanted(x: np.ndarray) -> np.ndarray:
        return np.concatenate([_residuals(priced, np.exp(x)), held * (x - np.log(start))])

    x, damping = np.log(at), 1e-2
    now = wanted(x)
    for _ in range(STEPS):
        slopes = _jacobian(wanted, x, now)
        normal = slopes.T @ slopes
        ridge = damping * np.diag(np.maximum(np.diag(normal), 1e-9))
        trial = np.clip(x - np.linalg.solve(normal + ridge, slopes.T @ now), low, high)
        then = wanted(trial)
        if then @ then < now @ now:
            done = now @ now - then @ then < 1e-7 * (now @ now)
            x, now, damping = trial, then, damping / 3
            if done:
                break
        else:
            damping *= 4
    return np.exp(x)


def _jacobian(
    function: Callable[[np.ndarray], np.ndarray], x: np.ndarray, now: np.ndarray
) -> np.ndarray:
    step = 1e-4
    columns = [(function(x + step * unit) - now) / step for unit in np.eye(len(x))]
    return np.stack(columns, axis=1)


def _residuals(priced: _Priced, values: np.ndarray) -> np.ndarray:
    """For each layer what is left inside it, and its mean; every layer counts alike."""
    error = np.log(priced.seconds / priced(values))
    found, layers = [], sorted(set(priced.layer.tolist()))
    for number in layers:
        here = priced.layer == number
        weight = (priced.seconds[here] / priced.seconds[here].min()) ** -WEIGHT
        weight /= weight.sum()
        mean = float(weight @ error[here])
        found += [np.sqrt(weight) * (error[here] - mean), np.sqrt([COMMON_SHARE]) * mean]
    return np.concatenate(found) / np.sqrt(len(layers))


def score(samples: Sequence[TimedSchedule], machine: Machine) -> Score:
    """How well a machine's constants rank schedules that were measured on it."""
    found = []
    for layer in _layers(samples):
        times = np.array([s.seconds for s in layer])
        predicted = np.array([predict(s.group, s.schedule, machine).seconds for s in layer])
        loss = times[predicted.argmin()] / times.min() - 1
        found.append((_spearman(times, predicted), loss, np.log(times / predicted).std()))
    if not found:
        return Score(0.0, 0.0, 0.0, 0, 0)
    rank, loss, spread = np.mean(found, axis=0).tolist()
    return Score(rank, loss, spread, len(found), len(samples))


def _layers(samples: Sequence[TimedSchedule]) -> Iterator[list[TimedSchedule]]:
    for name in dict.fromkeys(s.layer for s in samples):
        yield [s for s in samples if s.layer == name]


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    if len(a) < 3:
        return 0.0
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


def _values(constants: TimeConstants) -> np.ndarray:
    return np.array([getattr(constants, name) or LEAST for name in NAMES])


def _constants(values: np.ndarray) -> TimeConstants:
    return TimeConstants(**{n: float(f'{v:.5g}') for n, v in zip(NAMES, values, strict=True)})
