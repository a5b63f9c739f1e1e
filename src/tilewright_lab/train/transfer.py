"""A model of one GPU for another one, with a few rows that were measured there (docs/learned.md).

Goes in: a model with times, the GPU that it was trained on (`home`), problems that could be
measured on the other GPU, and the rows of them that were. Comes out: a `Transferred`, which orders
schedules on the other GPU.

Trees are asked with the figures of `home`: what a schedule takes there orders those of the other
GPU better than what trees say of figures that they have never seen. The rows then correct two times
of a schedule, that one and the analytical one of the other GPU: a Gaussian process over all
features says the logarithm of the error. The score is the sum of both corrected times, each
standardised over the schedules that compete.

Rows are chosen before any is measured (`to_measure`): problems whose shapes lie far apart, and of
each the schedule that the model likes best and others of its better half whose features lie far
apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array, Batch
from tilewright.rank.features import NAMES, matrix_of
from tilewright.rank.model import FARTHEST, LearnedModel, standard
from tilewright_lab.collect.datasets import Measured
from tilewright_lab.train.forest import Recipe, table_of

TIMES = Recipe('times', ('boosted', 'boosted plain'))  # of the GPU that is known
PROBLEMS, EACH = 10, 5  # rows to measure: of so many problems, so many each
BETTER = 0.5  # share of a problem's schedules, the best by the model, that rows are chosen from
# The Gaussian process of logarithms of errors: root mean square of the differences of standardised
# features over which errors resemble each other, variances of the errors and of a measurement.
LENGTH, VARIANCE, NOISE = 1.0, 0.3, 0.02
RULE = {
    'first': 'middle', 'problems': PROBLEMS, 'each': EACH, 'better': BETTER, 'length': LENGTH,
    'variance': VARIANCE, 'noise': NOISE,
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """Features of schedules, standardised over what could be measured on a GPU; those that are the
    same for all are left out.
    """

    columns: Array = field(repr=False)
    middle: Array = field(repr=False)
    spread: Array = field(repr=False)

    @classmethod
    def of(cls, sets: Sequence[Measured], machine: GpuMachine, features: Sequence[str]) -> Scale:
        x = table_of(sets, machine).x
        columns = np.array([NAMES.index(name) for name in features])
        columns = columns[x[:, columns].std(0, dtype=np.float64) > 1e-9]
        chosen = x[:, columns]
        return cls(columns, chosen.mean(0, dtype=np.float64), chosen.std(0, dtype=np.float64))

    def __call__(self, x: Array) -> Array:
        """[rows x all features] -> [rows x those that differ]"""
        z = (x[:, self.columns] - self.middle) / self.spread
        return np.clip(z, -FARTHEST, FARTHEST)


@dataclass(frozen=True)
class Errors:
    """The Gaussian process of errors after some rows: its mean where nothing was measured."""

    rows: Array = field(repr=False)
    weights: Array = field(repr=False)
    constant: float

    @classmethod
    def of(cls, rows: Array, error: Array) -> Errors:
        covariance = VARIANCE * _likeness(rows, rows) + NOISE * np.eye(len(rows))
        solved = np.linalg.solve(covariance, np.stack([np.ones(len(rows)), error], 1))
        constant = float(solved[:, 1].sum() / solved[:, 0].sum())
        return cls(rows, solved[:, 1] - constant * solved[:, 0], constant)

    def __call__(self, rows: Array) -> Array:
        return self.constant + VARIANCE * _likeness(rows, self.rows) @ self.weights


def _likeness(rows: Array, others: Array) -> Array:
    squares = (rows**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * rows @ others.T
    return np.exp(-np.maximum(squares, 0) / (2 * LENGTH**2 * rows.shape[1]))


@dataclass(frozen=True)
class Transferred:
    """A model of `home` with its errors on another GPU, and those of the analytical time there;
    without them it is the model of `home` alone.
    """

    model: LearnedModel
    home: GpuMachine
    scale: Scale | None = None
    errors: tuple[Errors, Errors] | None = None

    def scores(self, batch: Batch, machine: GpuMachine) -> Array:
        """Scores of schedules on `machine`, lowest first."""
        known = self.model.log_seconds(*matrix_of(batch, self.home))
        if self.scale is None or self.errors is None:
            return known
        x, base = matrix_of(batch, machine)
        rows = self.scale(x)
        of_known, of_base = (errors(rows) for errors in self.errors)
        return standard(known + of_known) + standard(base + of_base)


def calibrated(
    model: LearnedModel, home: GpuMachine, sets: Sequence[Measured], machine: GpuMachine,
    scale: Scale,
) -> Transferred:  # fmt: skip
    """[model of `home`, measured rows on `machine`, Scale of what could be measured there] ->
    [Transferred]
    """
    _check_times(model)
    table, there = table_of(sets, machine), table_of(sets, home)
    rows = scale(table.x)
    known = model.log_seconds(there.x, there.base)
    of_known, of_base = (Errors.of(rows, table.log_seconds - said) for said in (known, table.base))
    return Transferred(model, home, scale, (of_known, of_base))


def to_measure(
    sets: Sequence[Measured], model: LearnedModel, home: GpuMachine, machine: GpuMachine,
    scale: Scale,
) -> list[Measured]:  # fmt: skip
    """Rows of `sets` that a calibration asks for. Of their times nothing is used. The first problem
    is the one in the middle.
    """
    _check_times(model)
    fitting = [m for m in sets if len(m) >= EACH and m.problem[4] > 1]
    if not fitting:
        raise InputError(f'no problem with a window has {EACH} schedules; measure more of each')
    shapes = np.log([m.problem[:5] for m in fitting])
    shapes = (shapes - shapes.mean(0)) / (shapes.std(0) + 1e-9)
    middle = int((shapes**2).sum(1).argmin())
    found = []
    for number in far_apart(shapes, middle, PROBLEMS):
        m = fitting[number]
        order = np.argsort(model.log_seconds(*matrix_of(m.batch, home)), kind='stable')
        better = order[: max(EACH, int(BETTER * len(order)))]
        x, _ = matrix_of(m.batch.take(better), machine)
        rows = better[far_apart(scale(x), 0, EACH)]
        found.append(Measured(m.problem, m.batch.take(rows), m.seconds[rows]))
    return found


def far_apart(points: Array, first: int, wanted: int) -> list[int]:
    """Numbers of points, from `first` on each time the one farthest from those that are chosen."""
    chosen = [first]
    nearest = ((points - points[first]) ** 2).sum(1)
    while len(chosen) < min(wanted, len(points)):
        nearest[chosen] = -1.0
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((points - points[chosen[-1]]) ** 2).sum(1))
    return chosen


def _check_times(model: LearnedModel) -> None:
    if not model.has_times:
        raise InputError('a model that only ranks cannot be calibrated; train one with times')
