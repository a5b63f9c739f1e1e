"""How good a ranking is: loss of performance, trials to the best (CNNOpt Eq. 5, Table 8).

Goes in: measured times in the order in which a model would try them. Comes out: losses at the first
n, trials until within 5% of the best and until the best. Cross-validation is grouped: all rows of a
problem are on one side, since ranking a problem that one has seen is easy.

Recipes are chosen by `choose` (docs/learned.md, "The protocol"): criterion is the `cost` of a
ranking, and `within`, or `blend` where that is not among them, both means of several kinds of
trees, is taken unless another recipe is better by more than twice the standard error of the
difference.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.rank.counts import Array
from tilewright.rank.model import LearnedModel
from tilewright_lab.train.forest import BLEND, WITHIN, Recipe, Table, fit_all

TOPS = (1, 10, 30)
NEAR = 1.05
FOLDS = 3
# Rows of a problem that validation looks at; the second where too few problems have as many.
LEAST_TO_JUDGE = (30, 5)
ENOUGH = 12  # problems
FIRST = 30  # trials that the criterion looks at
SURE = 2.0  # standard errors by which another recipe has to be better
PREFERRED = (WITHIN, BLEND)  # the first that is there is taken, unless another one is better


@dataclass(frozen=True, slots=True)
class Ranking:
    """One problem ranked: losses by n (0.1 is 10%), trials, and how many there were to choose from.

    cost    mean over the first 30 trials, the n-th counting 1/n, of the logarithm of what is best
            so far over the best: what recipes are chosen by. Half of it is the first four trials,
            and by the logarithm one layer that goes wrong does not decide alone
    """

    losses: tuple[tuple[int, float], ...]
    trials_95: int
    trials_100: int
    cost: float
    size: int

    def loss(self, n: int) -> float:
        return dict(self.losses)[n]

    def to_json(self) -> dict:
        return asdict(self) | {'losses': {str(n): loss for n, loss in self.losses}}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Ranking:
        losses = tuple((int(n), float(loss)) for n, loss in found['losses'].items())
        return cls(**{**found, 'losses': losses})


def ranking_of(scores: Array, seconds: Array) -> Ranking:
    """[scores, lowest first; measured seconds] -> [Ranking]"""
    if len(scores) != len(seconds) or not len(scores):
        raise InputError(f'{len(scores)} scores for {len(seconds)} times; give one for each')
    order = np.argsort(scores, kind='stable')
    best = np.minimum.accumulate(np.asarray(seconds, float)[order]) / np.min(seconds)
    at = [min(n, len(best)) - 1 for n in TOPS]
    return Ranking(
        tuple((n, float(best[i] - 1)) for n, i in zip(TOPS, at, strict=True)),
        int(np.argmax(best <= NEAR)) + 1, int(np.argmax(best <= 1.0)) + 1,
        _cost(best), len(best),
    )  # fmt: skip


def _cost(best: Array) -> float:
    """`best` is the best so far over the best of all, trial by trial; behind the end it is 1."""
    found = np.log(best[:FIRST])
    counts = 1 / np.arange(1, FIRST + 1)
    return float((found * counts[: len(found)]).sum() / counts.sum())


def means(rankings: Iterable[Ranking]) -> dict[str, float]:
    """Averages over problems, as in the paper's tables."""
    found = list(rankings)
    return {
        **{f'loss_{n}': statistics.fmean(r.loss(n) for r in found) for n in TOPS},
        'trials_95': statistics.fmean(r.trials_95 for r in found),
        'trials_100': statistics.fmean(r.trials_100 for r in found),
        'cost': statistics.fmean(r.cost for r in found),
    }


def judged(table: Table, largest_flops: float | None = None, *, windows: bool = True) -> list[int]:
    """Problems that validation looks at: with a window where there are such, unless 1x1 ones are
    to be judged as well; with enough rows, and not larger than those that the model is for.
    """
    rows = np.bincount(table.group, minlength=len(table.problems))
    windows = windows and any(problem[4] > 1 for problem in table.problems)
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
    table: Table, recipes: Sequence[Recipe], problems: Sequence[int], *, folds: int = FOLDS,
    seed: int = 0,
) -> dict[str, list[Ranking]]:  # fmt: skip
    """Rankings of problems by each recipe, each by a model that has seen none of its rows."""
    check_folds(problems, folds)
    found: dict[str, list[Ranking]] = {recipe.name: [] for recipe in recipes}
    for number in range(folds):
        for name, rankings in one_fold(
            table, recipes, problems, number, folds=folds, seed=seed
        ).items():
            found[name] += rankings.values()
    return found


def check_folds(problems: Sequence[int], folds: int = FOLDS) -> None:
    """Raise InputError where a fold would have no problem."""
    if len(problems) < folds:
        raise InputError(
            f'{len(problems)} problems with at least {LEAST_TO_JUDGE[-1]} rows each are too few '
            f'for {folds} folds; measure more'
        )


def one_fold(
    table: Table, recipes: Sequence[Recipe], problems: Sequence[int], number: int, *,
    folds: int = FOLDS, seed: int = 0,
) -> dict[str, dict[int, Ranking]]:  # fmt: skip
    """Rankings of the problems in one fold, by recipe and problem, by models of the other folds."""
    fold = np.random.default_rng(seed).permutation(len(table.problems)) % folds
    out = [p for p in problems if fold[p] == number]
    if not out:
        return {}
    models = fit_all(table.take(np.flatnonzero(fold[table.group] != number)), recipes, seed)
    return {
        name: dict(zip(out, rankings_of(model, table, out), strict=True))
        for name, model in models.items()
    }


def rankings_of(model: LearnedModel, table: Table, problems: Iterable[int]) -> list[Ranking]:
    """Rankings of some problems of a table."""
    found = []
    for problem in problems:
        rows = np.flatnonzero(table.group == problem)
        scores = model.scores_of(table.x[rows], table.base[rows])
        found.append(ranking_of(scores, table.slower[rows]))
    return found


@dataclass(frozen=True, slots=True)
class Choice:
    """The name of a recipe, why it is that one, and the scores of all."""

    name: str
    why: str
    scores: Mapping[str, Mapping[str, float]]


def choose(rankings: Mapping[str, Sequence[Ranking]]) -> Choice:
    """The first of `PREFERRED`, unless another costs less by more than `SURE` standard errors of
    the difference.
    """
    if not rankings:
        raise InputError('there are no recipes to choose from')
    costs = {name: np.array([r.cost for r in found]) for name, found in rankings.items()}
    scores = {name: means(found) for name, found in rankings.items()}
    favourite = next((name for name in PREFERRED if name in costs), None)
    others = [name for name in costs if name != favourite]
    best = min(others or costs, key=lambda name: float(costs[name].mean()))
    if favourite is None or not others:
        return Choice(best, f'the least cost: {100 * costs[best].mean():.2f}%', scores)
    more = costs[favourite] - costs[best]
    noise = float(more.std(ddof=1) / len(more) ** 0.5) if len(more) > 1 else 0.0
    taken = favourite if more.mean() <= SURE * noise else best
    sides = f'costs {100 * costs[favourite].mean():.2f}%, the best other recipe ({best})'
    return Choice(
        taken,
        f'{favourite} {sides} {100 * costs[best].mean():.2f}%; the standard error of the '
        f'difference is {100 * noise:.2f}% on {len(more)} problems',
        scores,
    )


ALL = 'all'  # of the kinds that `beside_analytical` compares: kernels of all kinds in one list


def beside_analytical(
    table: Table, make: Callable[[Table], LearnedModel], problems: Sequence[int],
    kinds: Sequence[str], analytical: Array, *, folds: int = FOLDS, seed: int = 0,
) -> dict[str, dict[str, float]]:  # fmt: skip
    """By kind of kernels what rankings cost on problems held out: learned by what `make` gives of
    the others, and by `analytical`, the logarithm of predicted seconds of every row. Problems with
    fewer than two rows do not count.
    """
    fold = np.random.default_rng(seed).permutation(len(table.problems)) % folds
    named = np.array(kinds)
    costs: dict[str, list[tuple[float, float]]] = {}
    for number in range(folds):
        out = [p for p in problems if fold[p] == number]
        if not out:
            continue
        model = make(table.take(np.flatnonzero(fold[table.group] != number)))
        for problem in out:
            rows = np.flatnonzero(table.group == problem)
            x, base = table.x[rows], table.base[rows]
            scores = model.comparable(x, base)
            for kind in {ALL, *named[rows].tolist()}:
                mine = np.flatnonzero((named[rows] == kind) | (kind == ALL))
                if len(mine) > 1:
                    slower = table.slower[rows][mine]
                    found = (ranking_of(s[mine], slower).cost for s in (scores, analytical[rows]))
                    learned, without = found
                    costs.setdefault(kind, []).append((learned, without))
    return {
        kind: {
            'learned': statistics.fmean(one for one, _ in found),
            'analytical': statistics.fmean(one for _, one in found), 'problems': len(found),
        }
        for kind, found in sorted(costs.items())
    }  # fmt: skip


def check_validated(kinds: Mapping[str, Mapping[str, float]], what: str) -> None:
    """Raise InputError where a learned order costs more than the analytical one."""
    found = kinds[ALL]
    if found['learned'] > found['analytical']:
        raise InputError(
            f'{what} is not installed: its order costs {100 * found["learned"]:.2f}% on '
            f'{found["problems"]} problems held out, the analytical one '
            f'{100 * found["analytical"]:.2f}%; measure more problems'
        )
