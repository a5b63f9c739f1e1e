"""A model of one GPU for another: made-up times, so that what is to be learned is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.rank.counts import batches_of
from tilewright.rank.features import LAUNCH_US, NAMES, matrix_of
from tilewright.rank.model import standard
from tilewright.rank.trees import Settings
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.datasets import Measured, Problem, group_of, rows_in
from tilewright_lab.figures.learned_tables import TABLES
from tilewright_lab.train.evaluate import means, ranking_of
from tilewright_lab.train.forest import Member, Recipe, train
from tilewright_lab.train.transfer import (
    BETTER,
    EACH,
    PROBLEMS,
    RESOURCES,
    Fitted,
    Rows,
    Scale,
    Transferred,
    calibrated,
    far_apart,
    to_measure,
)

HOME, OTHER = known_gpu('rtx2080ti'), known_gpu('h200')
SMALL = Recipe('small', (Member('time', Settings('boosted', trees=60, leaves=15, least=5)),))
ORDER = Recipe('order', (Member('rank', Settings('ranked', trees=5, leaves=8, least=5)),))
SHAPES: tuple[Problem, ...] = tuple(
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
    return train([measured(p, False) for p in SHAPES], HOME, SMALL)


def cost(model: Transferred, sets: list[Measured]) -> float:
    return means(ranking_of(model.scores(m.batch, OTHER), m.seconds) for m in sets)['cost']


def test_a_model_is_asked_with_the_figures_of_its_own_gpu(model) -> None:
    same = [measured(p, False) for p in SHAPES[::3]]
    assert cost(Transferred(model, HOME), same) < 0.02
    assert cost(Transferred(model, HOME), same) < cost(Transferred(model, OTHER), same)


@pytest.fixture(scope='module')
def there():
    return [measured(p, True) for p in SHAPES]


@pytest.fixture(scope='module')
def scale(there, model):
    return Scale.of(there, OTHER, model.header['features'])


def test_fifty_rows_teach_what_the_other_gpu_does_differently(model, there, scale) -> None:
    few = to_measure(there[::2] + there[1::4], model, HOME, OTHER, scale)
    assert rows_in(few) == 50
    before, after = Transferred(model, HOME), calibrated(model, HOME, few, OTHER, scale)
    assert cost(after, there[3::4]) < cost(before, there[3::4])


def test_rows_to_measure_are_the_best_by_model_and_resources_and_others_of_the_better_half(
    model, there, scale
) -> None:
    columns = [NAMES.index(name) for name in RESOURCES]

    def before(of: Measured) -> np.ndarray:
        said = model.log_seconds(*matrix_of(of.batch, HOME))
        total = LAUNCH_US + np.exp2(matrix_of(of.batch, OTHER)[0][:, columns]).sum(1)
        return standard(said) + standard(np.log(total))

    few = to_measure(there, model, HOME, OTHER, scale)
    assert len({m.problem for m in few}) == PROBLEMS
    assert all(len(m) == EACH for m in few)
    for m in few:
        of = next(one for one in there if one.problem == m.problem)
        order = np.argsort(before(of), kind='stable')
        times = {float(of.seconds[row]): place for place, row in enumerate(order)}
        places = [times[float(second)] for second in m.seconds]
        assert places[0] == 0
        assert max(places) < max(EACH, int(BETTER * len(order)))


def test_rows_to_measure_depend_on_no_time(model, there, scale) -> None:
    def rows(sets: list[Measured]) -> list[dict]:
        few = to_measure(sets, model, HOME, OTHER, scale)
        return [{name: c.tolist() for name, c in m.batch.tiles.items()} for m in few]

    assert rows(there) == rows([Measured(m.problem, m.batch, m.seconds[::-1]) for m in there])


def test_problems_of_few_schedules_are_not_measured(model, there, scale) -> None:
    one = there[0]
    small = [Measured(one.problem, one.batch.take(np.arange(EACH - 1)), one.seconds[: EACH - 1])]
    with pytest.raises(InputError, match='no problem with a window has 5 schedules'):
        to_measure(small, model, HOME, OTHER, scale)


def some_rows(random: np.random.Generator, count: int) -> Rows:
    resources = np.exp(random.normal(size=(count, 3)))
    return Rows(random.normal(size=(count, 8)), resources, np.log(resources.sum(1)))


def test_times_are_resources_by_their_factors() -> None:
    """What one resource takes too long is told apart from what the others do."""
    random = np.random.default_rng(0)
    rows, others = some_rows(random, 50), some_rows(random, 50)
    factors = np.log([1.0, 0.3, 3.0])
    fitted = Fitted.of(rows, 1.0 + rows.expected(factors))
    found = fitted.factors - fitted.factors.mean()
    assert found == pytest.approx(factors - factors.mean(), abs=0.3)
    error = fitted(others) - 1.0 - others.expected(factors)
    assert np.abs(error).mean() < 0.1


def test_what_resources_leave_is_that_measured_nearby_and_nothing_far_away() -> None:
    random = np.random.default_rng(0)
    rows = some_rows(random, 50)
    bent = 0.5 * rows.features[:, 0]
    fitted = Fitted.of(rows, rows.expected(np.zeros(3)) + bent)
    near = replace(rows, features=rows.features + 0.05 * random.normal(size=rows.features.shape))
    error = fitted(near) - rows.expected(np.zeros(3)) - 0.5 * near.features[:, 0]
    assert np.abs(error).mean() < 0.1
    far = replace(rows, features=np.full_like(rows.features, 1e3))
    assert fitted(far) == pytest.approx(rows.expected(fitted.factors) + fitted.constant)


def test_far_apart_takes_the_ends_before_what_lies_between() -> None:
    points = np.array([[0.0], [0.1], [1.0], [0.5]])
    assert far_apart(points, 0, 3) == [0, 2, 3]
    assert sorted(far_apart(points, 1, 9)) == [0, 1, 2, 3]
    assert sorted(far_apart(np.zeros((3, 1)), 0, 3)) == [0, 1, 2]


def test_a_scale_leaves_out_what_is_the_same_for_all(there, scale) -> None:
    names = [NAMES[column] for column in scale.columns]
    assert 'stride' not in names
    assert 'warps' in names
    x = np.concatenate([matrix_of(m.batch, OTHER)[0] for m in there])
    assert np.abs(scale(x)).max() <= 3.0


def test_what_only_ranks_is_refused(there, scale) -> None:
    sets = [measured(p, False) for p in SHAPES[:4]]
    order = train(sets, HOME, ORDER)
    with pytest.raises(InputError, match='only ranks'):
        calibrated(order, HOME, sets, OTHER, scale)
    with pytest.raises(InputError, match='only ranks'):
        to_measure(there, order, HOME, OTHER, scale)


def test_the_table_says_means_and_errors_of_seeds() -> None:
    def one(loss: float, **more: int) -> dict:
        return {**{f'loss_{n}': loss for n in (1, 10, 30)}, 'trials_95': 2.0, 'trials_100': 3.0,
                **more}  # fmt: skip

    seeds = {
        str(i): {'transferred': one(0.3), 'calibrated': one(loss, rows=50), 'validation': one(0.2)}
        for i, loss in enumerate((0.1, 0.12))
    }
    text = TABLES['learned-transfer'](
        {'kind': 'rs', 'from': 'a', 'to': 'b', 'analytical': one(0.5), 'seeds': seeds}
    )
    assert '| with 50 rows | 11.00% ± 1.00 |' in text
    assert 'RS: a to b, 2 seeds' in text


def test_the_table_of_trials_is_of_all_layers_and_seeds() -> None:
    layer = {'ours': [[1, 4], [3, 6]], 'online': [[10, 20], [20, 40]], 'random': [30.0, 50.0]}
    other = {**layer, 'random': [10.0, 90.0]}
    part = {'name': 'RS kernel, stride 1', 'chosen': 'within', 'layers': [layer, other]}
    text = TABLES['learned-trials']({'machine': {'name': 'gpu'}, 'layers': [part]})
    assert '| RS kernel, stride 1: within | 2.0 | 15.0 | 20.0 | 5.0 | 30.0 | 70.0 |' in text
