"""How good a ranking is: loss of performance, trials to the best (CNNOpt Eq. 5, Table 8).

Goes in: measured times in the order in which a model would try them. Comes out: losses at the first
n, trials until within 5% of the best and until the best. Cross-validation is grouped: all rows of a
problem are on one side, since ranking a problem that one has seen is easy.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tilewright.errors import InputError
from tilewright.rank.counts import Array
from tilewright_lab.train.forest import Recipe, Table, fit

TOPS = (1, 10, 30)
WITHIN = 1.05
FOLDS = 3
# Rows of a problem that validation looks at; the second where too few problems have as many.
LEAST_TO_JUDGE = (30, 5)
ENOUGH = 12  # problems
FIRST = 10  # trials over which losses are averaged to choose a recipe


@dataclass(frozen=True, slots=True)
class Ranking:
    """One problem ranked: losses by n (0.1 is 10%), trials, and how many there were to choose from.

    area    mean loss over the first ten trials: what recipes are chosen by
    """

    losses: tuple[tuple[int, float], ...]
    trials_95: int
    trials_100: int
    area: float
    size: int

    def loss(self, n: int) -> float:
        return dict(self.losses)[n]

    def to_json(self) -> dict:
        return asdict(self) | {'losses': {str(n): loss for n, loss in self.losses}}


def ranking_of(scores: Array, seconds: Array) -> Ranking:
    """[scores, lowest first; measured seconds] -> [Ranking]"""
    if len(scores) != len(seconds) or not len(scores):
        raise InputError(f'{len(scores)} scores for {len(seconds)} times; give one for each')
    order = np.argsort(scores, kind='stable')
    best = np.minimum.accumulate(np.asarray(seconds, float)[order]) / np.min(seconds)
    at = [min(n, len(best)) - 1 for n in TOPS]
    return Ranking(
        tuple((n, float(best[i] - 1)) for n, i in zip(TOPS, at, strict=True)),
        int(np.argmax(best <= WITHIN)) + 1, int(np.argmax(best <= 1.0)) + 1,
        float(np.mean(best[:FIRST]) - 1), len(best),
    )  # fmt: skip


def means(rankings: Iterable[Ranking]) -> dict[str, float]:
    """Averages over problems, as in the paper's tables."""
    found = list(rankings)
    return {
        **{f'loss_{n}': statistics.fmean(r.loss(n) for r in found) for n in TOPS},
        'trials_95': statistics.fmean(r.trials_95 for r in found),
        'trials_100': statistics.fmean(r.trials_100 for r in found),
        'area': statistics.fmean(r.area for r in found),
    }


def judged(table: Table, largest_flops: float | None = None) -> list[int]:
    """Problems that validation looks at: with a window, enough rows, and not larger than those that
    the model is for.
    """
    rows = np.bincount(table.group, minlength=len(table.problems))
    windows = any(problem[4] > 1 for problem in table.problems)
    fitting = [
        number
        for number, (k, h, w, c, r, _) in enumerate(table.problems)
        if (largest_flops is None or 2.0 * k * h * w * c * r * r <= largest_flops)
        and (r > 1 or not windows)
    ]
    found: list[int] = []
    for least in LEAST_TO_JUDGE:
        found = [number for number in fitting if rows[number] >= least]
        if len(found) >= ENOUGH:
            break
    return found


def cross_validate(
    table: Table, recipe: Recipe, problems: Sequence[int], *, folds: int = FOLDS, seed: int = 0
) -> list[Ranking]:
    """Rankings of problems, each by a model that has seen none of its rows."""
    if len(problems) < folds:
        raise InputError(
            f'{len(problems)} problems with at least {LEAST_TO_JUDGE[-1]} rows each are too few '
            f'for {folds} folds; measure more'
        )
    fold = np.random.default_rng(seed).permutation(len(table.problems)) % folds
    found = []
    for number in range(folds):
        out = [p for p in problems if fold[p] == number]
        if not out:
            continue
        model = fit(table.take(np.flatnonzero(fold[table.group] != number)), recipe, seed)
        for problem in out:
            rows = np.flatnonzero(table.group == problem)
            scores = model.scores_of(table.x[rows], table.base[rows])
            found.append(ranking_of(scores, table.slower[rows]))
    return found


def choose(
    table: Table, recipes: Iterable[Recipe], problems: Sequence[int], *, folds: int = FOLDS,
    seed: int = 0,
) -> tuple[Recipe, dict[str, Mapping[str, float]]]:  # fmt: skip
    """The recipe with the least mean loss over the first trials, and the scores of all."""
    scores: dict[str, Mapping[str, float]] = {}
    best: tuple[float, Recipe] | None = None
    for recipe in recipes:
        found = means(cross_validate(table, recipe, problems, folds=folds, seed=seed))
        scores[recipe.name] = found
        if best is None or found['area'] < best[0]:
            best = found['area'], recipe
    if best is None:
        raise InputError('there are no recipes to choose from')
    return best[1], scores
