"""A model of one GPU for another: made-up times, so that what is to be learned is known."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.rank.counts import batches_of
from tilewright.rank.features import NAMES, matrix_of
from tilewright.rank.trees import Settings
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.datasets import Measured, Problem, group_of, rows_in
from tilewright_lab.train.evaluate import means, ranking_of
from tilewright_lab.train.forest import Member, Recipe, train
from tilewright_lab.train.transfer import BEST, Transferred, calibrated, to_measure

HOME, OTHER = known_gpu('rtx2080ti'), known_gpu('h200')
SMALL = Recipe('small', (Member('time', Settings('boosted', trees=60, leaves=15, least=5)),))
ORDER = Recipe('order', (Member('rank', Settings('ranked', trees=5, leaves=8, least=5)),))
PROBLEMS: tuple[Problem, ...] = tuple(
    (k, h, h, c, 3, 1) for k in (32, 64, 128) for h in (14, 28, 56) for c in (8, 64)
)


def measured(problem: Problem, there: bool) -> Measured:
    """Times by the formula of `HOME`, and a share of stores that only the other GPU has."""
    schedules = factor_space(group_of(problem), HOME, 'rs')[0][::5]
    ((batch, _),) = batches_of(group_of(problem), schedules)
    x, base = matrix_of(batch, HOME)
    more = 0.3 * x[:, NAMES.index('store_us')] if there else 0.0
    return Measured(problem, batch, np.exp(base + 0.02 * x[:, NAMES.index('warps')] + more))


@pytest.fixture(scope='module')
def model():
    return train([measured(p, False) for p in PROBLEMS], HOME, SMALL)


def cost(model: Transferred, sets: list[Measured]) -> float:
    return means(ranking_of(model.scores(m.batch, OTHER), m.seconds) for m in sets)['cost']


def test_a_model_is_asked_with_the_figures_of_its_own_gpu(model) -> None:
    same = [measured(p, False) for p in PROBLEMS[::3]]
    assert cost(Transferred(model, HOME), same) < 0.02
    assert cost(Transferred(model, HOME), same) < cost(Transferred(model, OTHER), same)


def test_fifty_rows_teach_what_the_other_gpu_does_differently(model) -> None:
    there = [measured(p, True) for p in PROBLEMS]
    few = to_measure(there[::2], model, HOME, 0)
    before, after = Transferred(model, HOME), calibrated(model, HOME, few, OTHER)
    assert cost(after, there[1::2]) < cost(before, there[1::2])


def test_rows_to_measure_are_the_best_by_the_model_and_some_others(model) -> None:
    there = [measured(p, True) for p in PROBLEMS]
    few = to_measure(there, model, HOME, 3)
    assert rows_in(few) == 50
    for m in few:
        of = next(one for one in there if one.problem == m.problem)
        best = np.sort(model.log_seconds(*matrix_of(of.batch, HOME)))[:BEST]
        mine = model.log_seconds(*matrix_of(m.batch, HOME))
        assert np.isin(best, mine).all()
    again = to_measure(there, model, HOME, 3)
    assert [m.seconds.tolist() for m in again] == [m.seconds.tolist() for m in few]


def test_what_only_ranks_is_refused() -> None:
    sets = [measured(p, False) for p in PROBLEMS[:4]]
    with pytest.raises(InputError, match='only ranks'):
        calibrated(train(sets, HOME, ORDER), HOME, sets, OTHER)
