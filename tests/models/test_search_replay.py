"""Every search on recorded measurements: the same promises for all of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.rank.online import Online
from tilewright.rank.rankers import Analytical
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu import strategies
from tilewright.search.gpu.moves import moves
from tilewright.search.gpu.strategies import STRATEGIES, Listed, State, crossed, replay, search
from tilewright.search.gpu.tune import Tried
from tilewright_lab.collect.cnnopt_space import factor_space

MACHINE = known_gpu('rtx2080ti')
LAYER = conv2d(c=8, h=18, w=18, k=64, r=3, s=3)
SPACE = factor_space(LAYER, MACHINE, 'rs')[0][::6]


def times() -> dict[GpuSchedule, float | None]:
    """Made-up measurements: the analytical time, disturbed; some do not work."""
    noise = np.random.default_rng(5).random(len(SPACE))
    base = np.exp(Analytical(LAYER, MACHINE)(SPACE))
    return {
        s: None if n > 0.97 else float(b * (0.7 + n))
        for s, b, n in zip(SPACE, base, noise, strict=True)
    }


RECORDED = times()
BEST = min(t for t in RECORDED.values() if t is not None)


def model_for(strategy: str):
    if strategy in ('exhaustive', 'random'):
        return None
    prior = None if strategy == 'online' else Analytical(LAYER, MACHINE)
    return Online(LAYER, MACHINE, prior) if strategy != 'top' else Analytical(LAYER, MACHINE)


class Recorder:
    """`measure` of a replay that remembers what it was asked."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.space, self._measure = replay(RECORDED)
        self.asked: list[str] = []
        self.stop_after = stop_after

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Sequence[float | None]:
        if self.stop_after is not None and len(self.asked) + len(schedules) > self.stop_after:
            raise KeyboardInterrupt
        self.asked += [s.digest for s in schedules]
        return self._measure(schedules)


def run(strategy: str, recorder: Recorder, **options) -> list[Tried]:
    given = {'trials': 40, 'batch': 8, 'seed': 3} | options
    return search(recorder.space, recorder, strategy, model=model_for(strategy), **given)


@pytest.mark.parametrize('strategy', STRATEGIES)
class TestEverySearch:
    def test_it_never_measures_twice_and_keeps_the_budget(self, strategy: str) -> None:
        recorder = Recorder()
        found = run(strategy, recorder, trials=37)
        assert len(recorder.asked) == len(set(recorder.asked)) == len(found) == 37

    def test_it_ends_when_the_space_is_used_up(self, strategy: str) -> None:
        recorder = Recorder()
        found = run(strategy, recorder, trials=10 * len(SPACE), batch=64)
        assert len(found) == len(SPACE) == len(set(recorder.asked))
        assert found[0].seconds == BEST

    def test_it_returns_its_best_first_and_failures_last(self, strategy: str) -> None:
        found = run(strategy, Recorder())
        seconds = [math.inf if t.seconds is None else t.seconds for t in found]
        assert seconds == sorted(seconds)
        assert all(RECORDED[t.schedule] == t.seconds for t in found)

    def test_a_seed_decides_everything(self, strategy: str) -> None:
        first, again = Recorder(), Recorder()
        assert run(strategy, first) == run(strategy, again)
        assert first.asked == again.asked

    def test_it_goes_on_where_it_was_stopped(self, strategy: str) -> None:
        whole = Recorder()
        want = run(strategy, whole)
        journal: dict[str, float | None] = {}
        stopped = Recorder(stop_after=20)
        with pytest.raises(KeyboardInterrupt):
            run(
                strategy, stopped,
                on_tried=lambda t: journal.__setitem__(t.schedule.digest, t.seconds),
            )  # fmt: skip
        assert 0 < len(journal) <= 20
        resumed = Recorder()
        assert run(strategy, resumed, known=journal) == want
        assert not set(resumed.asked) & set(journal)
        assert len(resumed.asked) + len(journal) == len(whole.asked)

    def test_it_stops_early_when_nothing_can_be_better(self, strategy: str) -> None:
        recorder = Recorder()
        found = run(strategy, recorder, trials=len(SPACE), bound=lambda _: BEST)
        assert found[0].seconds == BEST
        # behind the turn that found the best, nothing was measured
        turn = max(t.step for t in found)
        assert any(t.seconds == BEST and t.step == turn for t in found)

    def test_no_turn_begins_after_its_time(self, strategy: str) -> None:
        assert run(strategy, Recorder(), seconds=1e-9) == []


def test_models_make_searches_better_than_chance() -> None:
    def loss(strategy: str) -> float:
        found = [run(strategy, Recorder(), trials=24, seed=seed)[0].seconds for seed in range(4)]
        return float(np.mean([f / BEST for f in found if f is not None]))

    at_random = loss('random')
    assert loss('top') < at_random
    assert loss('genetic') < at_random
    assert loss('online') < at_random


def test_a_bound_that_is_not_reached_changes_nothing() -> None:
    free, bounded = Recorder(), Recorder()
    run('top', free)
    run('top', bounded, bound=lambda _: 0.0)
    assert free.asked == bounded.asked


def test_breeding_stays_legal_in_a_space_without_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    group = conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
    space = moves(group, known_gpu('h200'), ['tiled'])
    monkeypatch.setattr(strategies, 'SAMPLED', 30)
    monkeypatch.setattr(strategies, 'POPULATION', 12)
    state = State(space, Analytical(group, known_gpu('h200')), random.Random(1))
    found = strategies.bred(state, 5)
    assert len(found) == 5
    assert all(space.legal(s) for s in found)
    parents = state.fresh(4)
    children = [crossed(state, a, b) for a in parents for b in parents]
    assert any(child is not None for child in children)
    assert all(space.legal(child) for child in children if child is not None)


def test_many_trials_still_breed(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few candidates are left for a turn, a generation follows its first population."""
    group = conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
    space, turns = moves(group, known_gpu('h200'), ['tiled']), []
    monkeypatch.setattr(strategies, 'POPULATION', 12)
    monkeypatch.setattr(
        strategies, '_children', lambda state, parents, seen: turns.append(len(parents)) or []
    )
    search(
        space, lambda some: [1.0] * len(some), 'genetic', trials=12, batch=4, sampled=15,
        model=Analytical(group, known_gpu('h200')),
    )  # fmt: skip
    assert len(turns) == 3


def test_neighbours_of_a_list_differ_in_one_decision() -> None:
    space = Listed(SPACE)
    some = SPACE[len(SPACE) // 2]
    near = space.neighbours(some)
    assert near
    for other in near:
        pairs = zip(some.tiles, other.tiles, strict=True)
        assert sum(a != b for a, b in pairs) == 1


def test_what_cannot_be_meant_is_refused() -> None:
    space, measure = replay(RECORDED)
    with pytest.raises(InputError, match='choose one of'):
        search(space, measure, 'lucky', trials=3)
    with pytest.raises(InputError, match='above 0'):
        search(space, measure, 'random', trials=0)
    with pytest.raises(InputError, match='asks a model'):
        search(space, measure, 'top', trials=3)
    endless = moves(LAYER, MACHINE, ['rs'])
    with pytest.raises(InputError, match='needs a space that is a list'):
        search(endless, measure, 'exhaustive', trials=3)


@pytest.mark.parametrize('strategy', STRATEGIES)
def test_starts_come_first_and_count(strategy: str) -> None:
    recorder = Recorder()
    starts = [SPACE[i] for i in (5, 50, 5, 7)]
    found = run(strategy, recorder, trials=10, batch=2, starts=starts)
    assert recorder.asked[:3] == [SPACE[i].digest for i in (5, 50, 7)]
    assert len(found) == len(set(recorder.asked)) == 10
