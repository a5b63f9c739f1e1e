"""A model of one GPU for another one, with a few rows that were measured there (docs/learned.md).

Goes in: a model with times, the GPU that it was trained on (`home`), problems that could be
measured on the other GPU, and the rows of them that were. Comes out: a `Transferred`, which orders
schedules on the other GPU.

What a schedule takes is a geometric mean of two times: three quarters of it are the sum of what
each resource of the other GPU takes (products, shared memory, ..., sectors), each times a factor
that is the same for all schedules, and a quarter is what the trees say, asked with the figures of
`home`. The factors are lognormal, and what is left is a Gaussian process over all features: both
are found together, by Gauss-Newton steps in the logarithms of the factors. A step is a Gaussian
process too, whose covariance has the shares of the resources as linear features.

Rows are chosen before any is measured (`to_measure`): problems whose shapes lie far apart, and of
each the schedule that the model and the plain sum of all resources like best, and others of its
better half whose features lie far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array, Batch
from tilewright.rank.features import LAUNCH_US, NAMES, matrix_of
from tilewright.rank.model import FARTHEST, LearnedModel, standard
from tilewright_lab.collect.datasets import Measured
from tilewright_lab.train.forest import Recipe, table_of

TIMES = Recipe('times', ('boosted', 'boosted plain'))  # of the GPU that is known
PROBLEMS, EACH = 10, 5  # rows to measure: of so many problems, so many each
BETTER = 0.5  # share of a problem's schedules, the best by the order, that rows are chosen from
RESOURCES = (
    'fma_us', 'shared_us', 'issue_us', 'latency_us', 'wave_us', 'l2_us', 'memory_us', 'result_us',
    'store_us', 'rows_us', 'load_us',
)  # fmt: skip
FOREIGN = 0.25  # share of the other GPU's model in the logarithm of a time
FACTORS = 1.0  # standard deviation of the logarithm of a resource's factor
STEPS = 3  # of Gauss and Newton
# The Gaussian process of what is left: root mean square of the differences of standardised features
# over which errors resemble each other, variances of the errors and of a measurement.
LENGTH, VARIANCE, NOISE = 1.0, 0.3, 0.01
RULE = {
    'first': 'middle', 'problems': PROBLEMS, 'each': EACH, 'better': BETTER,
    'resources': list(RESOURCES), 'foreign': FOREIGN, 'factors': FACTORS, 'steps': STEPS,
    'length': LENGTH, 'variance': VARIANCE, 'noise': NOISE,
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
class Rows:
    """What is known of schedules before they are measured.

    features    standardised
    resources   microseconds of the launch and of each resource on the other GPU
    foreign     logarithm of what the model of `home` says
    """

    features: Array = field(repr=False)
    resources: Array = field(repr=False)
    foreign: Array = field(repr=False)

    def expected(self, factors: Array) -> Array:
        """Logarithms of times, but for the Gaussian process and a constant."""
        total = (self.resources * np.exp(factors)).sum(1)
        return (1 - FOREIGN) * np.log(total) + FOREIGN * self.foreign

    def slopes(self, factors: Array) -> Array:
        """Derivatives of these by the factors: shares of the resources."""
        parts = self.resources * np.exp(factors)
        return (1 - FOREIGN) * parts / parts.sum(1, keepdims=True)


@dataclass(frozen=True)
class Fitted:
    """Logarithms of times after some rows: factors of the resources, and the mean of the Gaussian
    process of what they leave.
    """

    factors: Array
    constant: float
    rows: Array = field(repr=False)
    weights: Array = field(repr=False)

    @classmethod
    def of(cls, rows: Rows, log_seconds: Array) -> Fitted:
        left = VARIANCE * _likeness(rows.features, rows.features) + NOISE * np.eye(len(log_seconds))
        factors, constant, weights = np.zeros(rows.resources.shape[1]), 0.0, log_seconds
        for _ in range(STEPS):
            slopes = rows.slopes(factors)
            error = log_seconds - (rows.expected(factors) - slopes @ factors)
            covariance = left + FACTORS**2 * slopes @ slopes.T
            solved = np.linalg.solve(covariance, np.stack([np.ones(len(error)), error], 1))
            constant = float(solved[:, 1].sum() / solved[:, 0].sum())
            weights = solved[:, 1] - constant * solved[:, 0]
            factors = FACTORS**2 * slopes.T @ weights
        return cls(factors, constant, rows.features, weights)

    def __call__(self, rows: Rows) -> Array:
        left = VARIANCE * _likeness(rows.features, self.rows) @ self.weights
        return rows.expected(self.factors) + self.constant + left


def _likeness(rows: Array, others: Array) -> Array:
    squares = (rows**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2 * rows @ others.T
    return np.exp(-np.maximum(squares, 0) / (2 * LENGTH**2 * rows.shape[1]))


def _resources(x: Array) -> Array:
    """[rows x all features] -> [rows x launch and resources], microseconds"""
    found = np.exp2(x[:, [NAMES.index(name) for name in RESOURCES]].astype(np.float64))
    return np.concatenate([np.full((len(x), 1), LAUNCH_US), found], 1)


@dataclass(frozen=True)
class Transferred:
    """A model of `home` with what some rows say of another GPU; without them it is the model of
    `home` alone.
    """

    model: LearnedModel
    home: GpuMachine
    scale: Scale | None = None
    fitted: Fitted | None = None

    def scores(self, batch: Batch, machine: GpuMachine) -> Array:
        """Scores of schedules on `machine`, lowest first: logarithms of seconds."""
        foreign = self.model.log_seconds(*matrix_of(batch, self.home))
        if self.scale is None or self.fitted is None:
            return foreign
        x, _ = matrix_of(batch, machine)
        return self.fitted(Rows(self.scale(x), _resources(x), foreign))


def calibrated(
    model: LearnedModel, home: GpuMachine, sets: Sequence[Measured], machine: GpuMachine,
    scale: Scale,
) -> Transferred:  # fmt: skip
    """[model of `home`, measured rows on `machine`, Scale of what could be measured there] ->
    [Transferred]
    """
    _check_times(model)
    table, there = table_of(sets, machine), table_of(sets, home)
    foreign = model.log_seconds(there.x, there.base)
    rows = Rows(scale(table.x), _resources(table.x), foreign)
    return Transferred(model, home, scale, Fitted.of(rows, table.log_seconds))


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
        x, _ = matrix_of(m.batch, machine)
        order = np.argsort(_before(model, home, m.batch, x), kind='stable')
        better = order[: max(EACH, int(BETTER * len(order)))]
        rows = better[far_apart(scale(x[better]), 0, EACH)]
        found.append(Measured(m.problem, m.batch.take(rows), m.seconds[rows]))
    return found


def _before(model: LearnedModel, home: GpuMachine, batch: Batch, x: Array) -> Array:
    """Scores of a problem's schedules before anything is measured: what the model of `home` says,
    and the sum of all resources.
    """
    foreign = model.log_seconds(*matrix_of(batch, home))
    return standard(foreign) + standard(np.log(_resources(x).sum(1)))


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
