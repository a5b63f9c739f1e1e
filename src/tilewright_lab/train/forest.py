"""Training of the models in rank/model.py: trees over features of measured schedules (CNNOpt Sec.
4.1).

Goes in: measured problems and a machine. Comes out: a `LearnedModel` that scores the schedules of a
problem, the lowest first. A `Recipe` names the members it is made of; a `Member` says what its
trees predict:

    time     the logarithm of measured over analytical seconds, so that they learn what the
             analytical model leaves out, and need not extrapolate sizes
    plain    the logarithm of the seconds themselves: what a wrong figure of the machine, or a
             kernel that the analytical model does not fit, does not mislead
    rank     which of a problem's schedules come first (LambdaRank); the gain of a row is
             (best / time)^2
    within   as plain, less the mean of the row's problem: trees need not learn how long a problem
             takes, which no ranking asks for
    beside   as time, less the mean of the row's problem

Rows are weighted by best / time, to a power, unless a member says otherwise: what is slow anyway
need not be known exactly. Members of one kind are averaged; the score is the sum of the kinds, each
standardised over the schedules that compete, times its number of members (`rank/model.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array
from tilewright.rank.features import DEVICE, FEATURES, NAMES, VERSION, matrix_of
from tilewright.rank.model import PARTS, TIMES, LearnedModel
from tilewright.rank.trees import Ensemble, Settings, grow
from tilewright_lab.collect.datasets import LEAST_ROWS, Measured, digest_of

GAIN = 2.0
BLACK_BOX = tuple(f.name for f in FEATURES if f.group in ('problem', 'tiles'))
FOREST = Settings('forest', trees=40, leaves=2000, least=3, bag=0.63, features=0.33)
BOOSTED = Settings('boosted', trees=200, leaves=31, least=10, rate=0.08, features=0.4)
RANKED = Settings(
    'ranked', trees=150, leaves=63, least=5, rate=0.1, features=0.4, weight_decay=0.01
)
# More and smaller steps than `RANKED`.
GENTLE = Settings(
    'ranked', trees=250, leaves=31, least=10, rate=0.06, features=0.4, weight_decay=0.01
)
KINDS = PARTS
CENTRED = ('within', 'beside')  # targets less the mean of their problem


@dataclass(frozen=True, slots=True)
class Member:
    """Trees of one kind. `weighted`: fast rows count more, as (best / time) ** power."""

    kind: str
    settings: Settings
    weighted: bool = True
    power: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS or (self.kind == 'rank') != (self.settings.kind == 'ranked'):
            raise InputError(
                f'a member predicts one of {", ".join(KINDS)}, not {self.kind!r} by trees that are '
                f'{self.settings.kind}; only rank needs ranked trees'
            )


MEMBERS: Mapping[str, Member] = {
    'plain': Member('plain', FOREST, weighted=False),
    'forest': Member('time', FOREST),
    'boosted': Member('time', BOOSTED),
    'boosted plain': Member('plain', BOOSTED),
    'ranked': Member('rank', RANKED),
    'gentle': Member('rank', GENTLE),
    'within': Member('within', BOOSTED, power=2.0),
    'beside': Member('beside', BOOSTED, power=2.0),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is made.

    members      names of `MEMBERS`, or members of one's own
    analytical   learn from all features; else problem and tiles alone, the paper's black box
    bags         ensembles of each member with seeds of their own, whose mean is taken
    windows      learn from problems with windows alone, where there are such: 1x1 convolutions of a
                 training set behave differently
    """

    name: str
    members: tuple[str | Member, ...] = ()
    analytical: bool = True
    bags: int = 1
    windows: bool = True

    def __post_init__(self) -> None:
        unknown = [m for m in self.members if isinstance(m, str) and m not in MEMBERS]
        if not self.members or unknown:
            raise InputError(
                f'recipe {self.name}: give members, each one of {", ".join(MEMBERS)}'
                + (f', not {unknown[0]!r}' if unknown else '')
            )

    @property
    def made_of(self) -> tuple[Member, ...]:
        return tuple(MEMBERS[m] if isinstance(m, str) else m for m in self.members)

    @property
    def has_times(self) -> bool:
        return any(member.kind in TIMES for member in self.made_of)

    def to_json(self) -> dict[str, Any]:
        """The recipe with the settings of its members, and how many there are of each kind."""
        kinds = [member.kind for member in self.made_of]
        return {
            'name': self.name, 'analytical': self.analytical, 'bags': self.bags,
            'windows': self.windows, 'members': [asdict(member) for member in self.made_of],
            'weights': {kind: kinds.count(kind) for kind in KINDS if kind in kinds},
        }  # fmt: skip


RIDGE = 30.0  # rows that the slopes of a correction are held against
CALIBRATION = Settings('boosted', trees=40, leaves=6, least=4, rate=0.1, bag=1.0)
PLAIN, BLEND, WITHIN, SEARCHING = 'plain', 'blend', 'within', 'searching'
BLENDED = ('plain', 'forest', 'boosted', 'boosted plain', 'ranked')

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe('black box', ('plain',), analytical=False, windows=False),
        *(Recipe(name, (name,)) for name in ('plain', 'forest', 'boosted', 'ranked')),
        Recipe('mixed', ('boosted', 'ranked')),
        Recipe(BLEND, BLENDED),
        Recipe(SEARCHING, ('boosted', 'boosted plain', 'within', 'beside'), windows=False),
        Recipe(WITHIN, ('boosted', 'within', 'beside', 'gentle')),
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
    known = {
        'machine': machine.name, 'kinds': sorted({m.kind for m in sets}), 'rows': len(table),
        'problems': len(table.problems), 'data_sha256': digest_of(sets),
        'validation': dict(validation or {}),
    }  # fmt: skip
    return replace(model, header={**model.header, **known})


def to_learn_from(table: Table, recipe: Recipe) -> Table:
    """The rows that a recipe takes; raises InputError where they are too few."""
    window = np.array([problem[4] > 1 for problem in table.problems])[table.group]
    if recipe.windows and window.any():
        table = table.take(np.flatnonzero(window))
    if len(table) < LEAST_ROWS:
        raise InputError(
            f'{len(table)} measured rows are too few to learn from; give at least {LEAST_ROWS}'
        )
    return table


def columns_of(table: Table, recipe: Recipe) -> list[str]:
    """Features that a recipe uses: figures of the device where rows are of several."""
    names = NAMES if recipe.analytical else BLACK_BOX
    device = [NAMES.index(name) for name in DEVICE]
    several = bool((table.x[:, device] != table.x[:1, device]).any())
    return [name for name in names if several or name not in DEVICE]


def grown(x: Array, table: Table, member: Member, seed: int) -> Ensemble:
    """The trees of one member on features that were chosen before."""
    if member.kind == 'rank':
        return grow(x, table.slower**-GAIN, member.settings, groups=table.group, seed=seed)
    target = table.log_seconds - (table.base if member.kind in ('time', 'beside') else 0.0)
    weights = table.slower**-member.power if member.weighted else None
    if member.kind in CENTRED:
        target = _centred(target, table.group, np.ones(len(x)) if weights is None else weights)
    return grow(x, target, member.settings, weights=weights, seed=seed)


def _centred(target: Array, group: Array, weights: Array) -> Array:
    """What is to be learned, less its weighted mean over the rows of the same problem."""
    mean = np.bincount(group, weights * target) / np.maximum(np.bincount(group, weights), 1e-300)
    return target - mean[group]


def fit(table: Table, recipe: Recipe, seed: int) -> LearnedModel:
    """[Table, Recipe] -> [LearnedModel], its header without what is known of the data."""
    return fit_all(table, [recipe], seed)[recipe.name]


def fit_all(table: Table, recipes: Sequence[Recipe], seed: int) -> dict[str, LearnedModel]:
    """Models of several recipes by name; members that they share are grown once."""
    kept: dict[tuple, Ensemble] = {}
    models = {}
    for recipe in recipes:
        mine = to_learn_from(table, recipe)
        names = columns_of(mine, recipe)
        x = mine.x[:, [NAMES.index(name) for name in names]]
        made: dict[str, list[Ensemble]] = {}
        for member in recipe.made_of:
            key = member, recipe.bags, recipe.windows, recipe.analytical
            if key not in kept:
                bags = [grown(x, mine, member, 1000 * seed + bag) for bag in range(recipe.bags)]
                kept[key] = mean_of(bags)
            made.setdefault(member.kind, []).append(kept[key])
        header = {
            'recipe': recipe.to_json(), 'features': names, 'feature_version': VERSION,
            'seed': seed, 'pointwise': any(mine.problems[i][4] == 1 for i in {*mine.group}),
        }  # fmt: skip
        parts: dict[str, Any] = {kind: mean_of(ensembles) for kind, ensembles in made.items()}
        models[recipe.name] = LearnedModel(**parts, header=header)
    return models


def corrected(model: LearnedModel, table: Table, machine: str, seed: int = 0) -> LearnedModel:
    """A model with times, corrected by some rows: small trees and a ridge regression on the
    features, half of each, learn by how much its times are wrong. What only ranks is left out,
    since nothing corrects it.
    """
    if not model.has_times:
        raise InputError('a model that only ranks cannot be calibrated; train one with times')
    header = {**model.header, 'calibrated_on': machine, 'calibrated_rows': len(table)}
    error = table.log_seconds - model.log_seconds(table.x, table.base)
    learned = error_model(table, error, model.header['features'], seed)
    assert learned.plain is not None
    better = {
        kind: sum_of([getattr(model, kind), learned.plain])
        for kind in TIMES
        if getattr(model, kind) is not None
    }
    return replace(
        model, header=header, rank=None, within=None, beside=None, linear=learned.linear, **better
    )


def error_model(table: Table, error: Array, features: Sequence[str], seed: int) -> LearnedModel:
    """What is to be added to logarithms of times, as a model whose times are these: half of small
    trees and half of a ridge regression.
    """
    x = table.x[:, [NAMES.index(name) for name in features]]
    trees = grow(x, error, CALIBRATION, weights=1 / table.slower, seed=seed)
    half = sum_of([trees], 0.5)
    half = replace(half, offset=half.offset + 0.5 * float(error.mean()))
    header = {'recipe': {}, 'features': list(features)}
    return LearnedModel(plain=half, linear=_ridge(x, error, 0.5), header=header)


def _ridge(x: Array, error: Array, share: float) -> Array:
    """Middles, deviations and slopes (rank/model.py) of a share of a ridge regression, less its
    constant.
    """
    middle, spread = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64) + 1e-9
    z = (x - middle) / spread
    slope = np.linalg.solve(z.T @ z + RIDGE * np.eye(x.shape[1]), z.T @ (error - error.mean()))
    return np.stack([middle, spread, share * slope])


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
