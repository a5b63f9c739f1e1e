"""Training of the models in rank/model.py: trees over features of measured schedules (CNNOpt Sec.
4.1).

Goes in: measured problems and a machine. Comes out: a `LearnedModel` that scores the schedules of a
problem, the lowest first. A `Recipe` says how it is made:

    time     trees that predict the logarithm of measured over analytical seconds, so that they
             learn what the analytical model leaves out, and need not extrapolate sizes. Rows are
             weighted by best / time: what is slow anyway need not be known exactly
    rank     trees that learn which of a problem's schedules come first (LambdaRank); the gain of a
             row is (best / time)^2

With both, the score is the sum of the two, each standardised over the schedules that compete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array
from tilewright.rank.features import FEATURES, NAMES, VERSION, matrix_of
from tilewright.rank.model import LearnedModel
from tilewright.rank.trees import Ensemble, Settings, grow
from tilewright_lab.collect.datasets import LEAST_ROWS, Measured, digest_of

GAIN = 2.0
BLACK_BOX = tuple(f.name for f in FEATURES if f.group != 'analytical')
FOREST = Settings('forest', trees=60, leaves=4000, least=3, bag=0.63, features=0.33)
BOOSTED = Settings('boosted', trees=200, leaves=31, least=10, rate=0.08, features=0.4)
RANKED = Settings(
    'ranked', trees=150, leaves=63, least=5, rate=0.1, features=0.4, weight_decay=0.01
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is made.

    analytical   learn from all features and start from the analytical time; else problem and tiles
                 alone, and the time itself: the paper's black box
    bags         ensembles of each kind with seeds of their own, whose mean is taken
    windows      learn from problems with windows alone, where there are such: 1x1 convolutions of a
                 training set behave differently
    """

    name: str
    time: Settings | None = None
    rank: Settings | None = None
    analytical: bool = True
    bags: int = 1
    windows: bool = True

    def __post_init__(self) -> None:
        if self.time is None and self.rank is None:
            raise InputError(f'recipe {self.name}: give settings for time, rank or both')


CALIBRATION = Settings('boosted', trees=40, leaves=6, least=4, rate=0.1, bag=1.0)

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe('black box', time=FOREST, analytical=False, windows=False),
        Recipe('forest', time=FOREST),
        Recipe('boosted', time=BOOSTED),
        Recipe('ranked', rank=RANKED),
        Recipe('mixed', time=BOOSTED, rank=RANKED),
    )
}


@dataclass(frozen=True)
class Table:
    """Measured problems as features: what training and validation work on.

    group     the number of each row's problem: rows of one problem compete
    slower    time over the best time of the problem
    """

    x: Array = field(repr=False)
    base: Array = field(repr=False)
    log_seconds: Array = field(repr=False)
    group: Array = field(repr=False)
    slower: Array = field(repr=False)
    problems: tuple[tuple[int, ...], ...] = field(repr=False)

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: Array) -> Table:
        return Table(
            self.x[rows], self.base[rows], self.log_seconds[rows], self.group[rows],
            self.slower[rows], self.problems,
        )  # fmt: skip


def table_of(sets: Iterable[Measured], machine: GpuMachine) -> Table:
    """[measured problems] -> [Table]; kinds of kernels of one problem compete."""
    found = list(sets)
    if not found:
        raise InputError('there are no measured problems to learn from; name other data')
    problems = sorted({m.problem for m in found})
    number = {problem: i for i, problem in enumerate(problems)}
    parts = [matrix_of(m.batch, machine) for m in found]
    x, base = np.concatenate([x for x, _ in parts]), np.concatenate([b for _, b in parts])
    log_seconds = np.log(np.concatenate([m.seconds for m in found]))
    group = np.concatenate([np.full(len(m), number[m.problem]) for m in found])
    best = np.full(len(problems), np.inf)
    np.minimum.at(best, group, log_seconds)
    return Table(x, base, log_seconds, group, np.exp(log_seconds - best[group]), tuple(problems))


def train(
    sets: Sequence[Measured], machine: GpuMachine, recipe: Recipe, *, seed: int = 0,
    validation: Mapping[str, Any] | None = None, table: Table | None = None,
) -> LearnedModel:  # fmt: skip
    """[measured problems, machine, recipe] -> [LearnedModel]; `table` spares computing features."""
    table = table_of(sets, machine) if table is None else table
    model = fit(table, recipe, seed)
    return LearnedModel(
        model.time, model.rank,
        {
            **model.header, 'machine': machine.name, 'kinds': sorted({m.kind for m in sets}),
            'rows': len(table), 'problems': len(table.problems), 'data_sha256': digest_of(sets),
            'validation': dict(validation or {}),
        },
    )  # fmt: skip


def fit(table: Table, recipe: Recipe, seed: int) -> LearnedModel:
    """[Table, Recipe] -> [LearnedModel], its header without what is known of the data."""
    window = np.array([problem[4] > 1 for problem in table.problems])[table.group]
    if recipe.windows and window.any():
        table = table.take(np.flatnonzero(window))
    if len(table) < LEAST_ROWS:
        raise InputError(
            f'{len(table)} measured rows are too few to learn from; give at least {LEAST_ROWS}'
        )
    names = NAMES if recipe.analytical else BLACK_BOX
    x = table.x[:, [NAMES.index(name) for name in names]]
    target = table.log_seconds - (table.base if recipe.analytical else 0.0)
    weights = 1 / table.slower
    time = rank = None
    seeds = [1000 * seed + bag for bag in range(recipe.bags)]
    if recipe.time is not None:
        time = mean_of([grow(x, target, recipe.time, weights=weights, seed=s) for s in seeds])
    if recipe.rank is not None:
        gain = table.slower**-GAIN
        rank = mean_of([grow(x, gain, recipe.rank, groups=table.group, seed=s) for s in seeds])
    header = {
        'recipe': asdict(recipe), 'features': list(names), 'feature_version': VERSION, 'seed': seed,
    }  # fmt: skip
    return LearnedModel(time, rank, header)


def calibrated(
    model: LearnedModel, sets: Sequence[Measured], machine: GpuMachine, *, seed: int = 0
) -> LearnedModel:
    """A model of another machine after some measurements on this one: small trees learn by how much
    its times are wrong. What only ranks is left as it is.
    """
    if model.time is None:
        raise InputError('a model that only ranks cannot be calibrated; train one with times')
    table = table_of(sets, machine)
    x = table.x[:, model.features]
    start = table.base if model.header['recipe']['analytical'] else 0.0
    error = table.log_seconds - start - model.time(x)
    trees = grow(x, error, CALIBRATION, weights=1 / table.slower, seed=seed)
    header = {**model.header, 'calibrated_on': machine.name, 'calibrated_rows': len(table)}
    return LearnedModel(sum_of([model.time, trees]), model.rank, header)


def sum_of(ensembles: Sequence[Ensemble], share: float = 1.0) -> Ensemble:
    """One ensemble that answers with `share` times the sum of several."""
    starts = np.cumsum([0, *(len(e.feature) for e in ensembles[:-1])]).astype(np.int32)
    pairs = list(zip(ensembles, starts, strict=True))
    return Ensemble(
        np.concatenate([e.roots + start for e, start in pairs]),
        np.concatenate([e.feature for e in ensembles]),
        np.concatenate([e.threshold for e in ensembles]),
        np.concatenate([e.left + start for e, start in pairs]),
        np.concatenate([np.float32(share) * e.value for e in ensembles]),
        share * sum(e.offset for e in ensembles),
    )


def mean_of(ensembles: Sequence[Ensemble]) -> Ensemble:
    """One ensemble whose answer is the mean of several."""
    return sum_of(ensembles, 1 / len(ensembles))
