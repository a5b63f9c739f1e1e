"""Trees: against exact answers, and against a forest that is written down by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.rank.trees import Ensemble, Settings, grow
from tilewright_lab.train.forest import mean_of


def table(rows: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x = random.integers(0, 12, (rows, 5)).astype(np.float32)
    return x, np.where(x[:, 1] > 5, 3.0, -1.0) + 0.5 * (x[:, 3] > 2)


ONE_TREE = Settings('forest', trees=1, leaves=8, least=1, bag=1.0, features=1.0)


def test_one_tree_finds_steps_exactly() -> None:
    x, y = table()
    tree = grow(x, y, ONE_TREE)
    np.testing.assert_allclose(tree(x), y, atol=1e-6)
    # four levels of y need three splits, so seven nodes; the first is the larger step
    assert len(tree.feature) == 7
    assert tree.feature[0] == 1
    assert 5 <= tree.threshold[0] < 6


def test_answers_are_those_of_a_walk_by_hand() -> None:
    x, y = table()
    y = y + np.random.default_rng(1).random(len(y))
    made = grow(x, y, Settings('forest', trees=7, leaves=20, least=3, bag=0.7, features=0.5))

    def walk(row: np.ndarray, node: int) -> float:
        while made.feature[node] >= 0:
            right = row[made.feature[node]] > made.threshold[node]
            node = int(made.left[node]) + int(right)
        return float(made.value[node])

    want = [made.offset + sum(walk(row, int(root)) for root in made.roots) for row in x[:50]]
    np.testing.assert_allclose(made(x[:50]), want, rtol=1e-5)


def test_a_leaf_is_the_weighted_mean_of_its_rows() -> None:
    x = np.array([[0], [0], [1], [1]], np.float32)
    y, weights = np.array([0.0, 4.0, 10.0, 20.0]), np.array([3.0, 1.0, 1.0, 1.0])
    tree = grow(x, y, Settings('forest', trees=1, leaves=2, least=1, bag=1.0, features=1.0),
                weights=weights)  # fmt: skip
    np.testing.assert_allclose(tree(x), [1, 1, 15, 15], rtol=1e-6)


@pytest.mark.parametrize('kind', ['forest', 'boosted'])
def test_many_trees_come_close_to_a_smooth_function(kind: str) -> None:
    random = np.random.default_rng(2)
    x = random.random((3000, 4)).astype(np.float32)
    y = np.sin(6 * x[:, 0]) + x[:, 1] ** 2
    made = grow(x[:2000], y[:2000], Settings(kind, trees=80, leaves=64, least=3))
    assert np.abs(made(x[2000:]) - y[2000:]).mean() < 0.1


def test_ranking_puts_the_best_of_unseen_problems_first() -> None:
    random = np.random.default_rng(3)
    groups = np.repeat(np.arange(80), 30)
    x = random.random((len(groups), 4)).astype(np.float32)
    # what is good depends on the problem's own feature, and times differ by orders of magnitude
    x[:, 3] = (groups % 7)[: len(groups)]
    gain = 1 / (1 + 5 * np.abs(x[:, 0] - x[:, 3] / 7))
    settings = Settings('ranked', trees=200, leaves=16, least=5, features=1.0)
    seen = groups < 60
    made = grow(x[seen], gain[seen], settings, groups=groups[seen])
    scores = made(x)
    firsts = [
        gain[groups == g][np.argmin(scores[groups == g])] / gain[groups == g].max()
        for g in range(60, 80)
    ]
    at_random = np.mean([gain[groups == g].mean() / gain[groups == g].max() for g in range(60, 80)])
    assert at_random < 0.6
    assert np.mean(firsts) > 0.85


def test_the_same_seed_gives_the_same_trees_and_another_does_not() -> None:
    x, y = table()
    settings = Settings(trees=5)
    first, again, other = (grow(x, y, settings, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.threshold, again.threshold)
    np.testing.assert_array_equal(first.value, again.value)
    assert not np.array_equal(first.feature, other.feature) or not np.array_equal(
        first.threshold, other.threshold
    )


def test_a_mean_of_ensembles_answers_with_their_mean() -> None:
    x, y = table()
    made = [grow(x, y, Settings(trees=4, leaves=6), seed=seed) for seed in (1, 2, 3)]
    want = np.mean([one(x) for one in made], axis=0)
    np.testing.assert_allclose(mean_of(made)(x), want, rtol=1e-5)


def test_bins_keep_values_apart_that_are_next_to_each_other() -> None:
    values = np.array([1.0, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    x = np.repeat(values, 10)[:, None]
    y = np.repeat([0.0, 1.0], 10)
    tree = grow(x, y, Settings('forest', trees=1, leaves=2, least=1, bag=1.0, features=1.0))
    np.testing.assert_allclose(tree(x), y)


@pytest.mark.parametrize('wrong', [np.nan, np.inf])
def test_what_is_not_finite_is_refused(wrong: float) -> None:
    x, y = table()
    y = y.copy()
    y[3] = wrong
    with pytest.raises(InputError, match='finite'):
        grow(x, y, ONE_TREE)


def test_settings_that_cannot_be_meant_are_refused() -> None:
    with pytest.raises(InputError, match='choose one of'):
        Settings('grass')
    with pytest.raises(InputError, match='at least 1'):
        Settings(trees=0)


def test_damaged_trees_are_refused() -> None:
    x, y = table()
    good = grow(x, y, ONE_TREE)
    good.check(5)
    with pytest.raises(InputError, match='damaged'):
        good.check(1)  # a feature that does not exist
    round_trip = Ensemble(
        good.roots, good.feature, good.threshold, np.zeros_like(good.left), good.value
    )
    with pytest.raises(InputError, match='damaged'):
        round_trip.check(5)
