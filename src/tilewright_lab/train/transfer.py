"""A model of one GPU for another one, with a few rows that were measured there (docs/learned.md).

Goes in: a model with times, the GPU that it was trained on (`home`), and some rows of the other
GPU. Comes out: a `Transferred`, which orders schedules on the other GPU.

Trees are asked with the figures of `home`: what a schedule takes there orders those of the other
GPU better than what trees say of figures that they have never seen. The rows then correct two times
of a schedule, that one and the analytical one of the other GPU: small trees and a ridge regression
on the features there learn the logarithm of the error, half of each. The score is the sum of both
corrected times, each standardised over the schedules that compete.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array, Batch
from tilewright.rank.features import matrix_of
from tilewright.rank.model import LearnedModel, standard
from tilewright_lab.collect.datasets import Measured
from tilewright_lab.train.forest import Recipe, error_model, table_of

TIMES = Recipe('times', ('boosted', 'boosted plain'))  # of the GPU that is known
PROBLEMS, BEST, OTHERS = 10, 3, 2  # rows to measure: of so many problems, so many each


@dataclass(frozen=True)
class Transferred:
    """A model of `home` with its errors on another GPU, and those of the analytical time there;
    without them it is the model of `home` alone.
    """

    model: LearnedModel
    home: GpuMachine
    errors: tuple[LearnedModel, LearnedModel] | None = None

    def scores(self, batch: Batch, machine: GpuMachine) -> Array:
        """Scores of schedules on `machine`, lowest first."""
        known = self.model.log_seconds(*matrix_of(batch, self.home))
        if self.errors is None:
            return known
        x, base = matrix_of(batch, machine)
        of_known, of_base = (error.log_seconds(x, base) for error in self.errors)
        return standard(known + of_known) + standard(base + of_base)


def calibrated(
    model: LearnedModel, home: GpuMachine, sets: Sequence[Measured], machine: GpuMachine, *,
    seed: int = 0,
) -> Transferred:  # fmt: skip
    """[model of `home`, measured rows on `machine`] -> [Transferred]"""
    if not model.has_times:
        raise InputError('a model that only ranks cannot be calibrated; train one with times')
    table, there = table_of(sets, machine), table_of(sets, home)
    known = model.log_seconds(there.x, there.base)
    features = model.header['features']
    of_known, of_base = (
        error_model(table, table.log_seconds - said, features, seed) for said in (known, table.base)
    )
    return Transferred(model, home, (of_known, of_base))


def to_measure(
    sets: Sequence[Measured], model: LearnedModel, home: GpuMachine, seed: int
) -> list[Measured]:
    """Rows that a calibration asks for: of ten problems at random the three that the model likes
    best, and two others.
    """
    random = np.random.default_rng(seed)
    found = []
    fitting = [m for m in sets if len(m) >= BEST + OTHERS and m.problem[4] > 1]
    for number in random.permutation(len(fitting))[:PROBLEMS]:
        m = fitting[number]
        order = np.argsort(model.log_seconds(*matrix_of(m.batch, home)), kind='stable')
        rows = np.concatenate([order[:BEST], random.permutation(order[BEST:])[:OTHERS]])
        found.append(Measured(m.problem, m.batch.take(rows), m.seconds[rows]))
    return found
