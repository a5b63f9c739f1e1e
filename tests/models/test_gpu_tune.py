"""The search over GPU schedules, on spaces and times that are made up."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

import tilewright as tw
from tilewright.errors import InputError
from tilewright.kernels.gpu.registry import schema_named
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.transactions import work
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves, pays, schedule_text, tables
from tilewright.search.gpu.tune import tune

BEST = (17, 4)


class Grid:
    """Two decisions from 0 to 31; not legal where both are odd."""

    def _legal(self, a: int, b: int) -> bool:
        return 0 <= a < 32 and 0 <= b < 32 and not (a % 2 and b % 2)

    def draw(self, rng: random.Random) -> GpuSchedule | None:
        a, b = rng.randrange(32), rng.randrange(32)
        return GpuSchedule.of('toy', a=a, b=b) if self._legal(a, b) else None

    def neighbours(self, schedule: GpuSchedule) -> list[GpuSchedule]:
        a, b = schedule['a'], schedule['b']
        near = ((a - 1, b), (a + 1, b), (a, b - 1), (a, b + 1))
        return [GpuSchedule.of('toy', a=x, b=y) for x, y in near if self._legal(x, y)]


def seconds(schedule: GpuSchedule) -> float | None:
    """A bowl around BEST; one row does not work."""
    a, b = schedule['a'], schedule['b']
    return None if b == 20 else 1.0 + math.hypot(a - BEST[0], b - BEST[1])


class Recorder:
    def __init__(self) -> None:
        self.turns: list[list[GpuSchedule]] = []

    def __call__(self, schedules: Sequence[GpuSchedule]) -> list[float | None]:
        self.turns.append(list(schedules))
        return [seconds(s) for s in schedules]

    @property
    def asked(self) -> list[str]:
        return [s.digest for turn in self.turns for s in turn]


def test_nothing_is_measured_twice_and_trials_are_kept() -> None:
    measure = Recorder()
    found = tune(Grid(), measure, trials=70, batch=16)
    assert len(measure.asked) == len(set(measure.asked)) == len(found) == 70
    assert max(map(len, measure.turns)) <= 16
    times = [t.seconds for t in found if t.seconds is not None]
    assert times == sorted(times)
    assert all(t.seconds is None for t in found[len(times) :])


def test_the_same_seed_gives_the_same_search() -> None:
    first, second, other = Recorder(), Recorder(), Recorder()
    tune(Grid(), first, trials=50, seed=4)
    tune(Grid(), second, trials=50, seed=4)
    tune(Grid(), other, trials=50, seed=5)
    assert first.asked == second.asked
    assert first.asked != other.asked


def test_changes_of_the_best_find_what_random_draws_do_not() -> None:
    found = [tune(Grid(), Recorder(), trials=120, batch=8, seed=s)[0].seconds for s in range(8)]
    assert sorted(found)[4] == 1.0  # type: ignore[type-var]
    drawn = []
    for seed in range(8):
        rng, grid = random.Random(seed), Grid()
        tried = [s for _ in range(160) if (s := grid.draw(rng))][:120]
        drawn.append(min(t for s in tried if (t := seconds(s))))
    assert sum(found) < sum(drawn)  # type: ignore[arg-type]


def test_a_ranker_is_followed_mostly() -> None:
    """With an exact ranker the first turn has the best; part of it is drawn all the same."""
    measure = Recorder()
    tune(Grid(), measure, trials=32, batch=16, rank=lambda s: seconds(s) or math.inf)
    first = [seconds(s) for s in measure.turns[0]]
    assert min(t for t in first if t) <= 2.0
    assert max(t for t in first if t) > 3.0


def test_climbs_by_rank_come_before_any_draw() -> None:
    """What the ranker thinks best is measured first, however few are drawn; it need not be drawn.

    The ranker is off by a step along `a`: its best is a neighbour of the best.
    """
    measure = Recorder()

    def rank(schedule: GpuSchedule) -> float:
        return math.hypot(schedule['a'] - BEST[0] - 1, schedule['b'] - BEST[1])

    found = tune(Grid(), measure, trials=12, batch=4, rank=rank)
    first = measure.turns[0][0]
    assert (first['a'], first['b']) == (BEST[0] + 1, BEST[1])
    assert found[0].seconds == 1.0  # by its neighbours


def test_a_ranker_that_favours_a_schema_does_not_starve_another() -> None:
    class Two(Grid):
        def draw(self, rng: random.Random) -> GpuSchedule | None:
            found = super().draw(rng)
            return found and GpuSchedule(rng.choice(['toy', 'other']), found.tiles)

    measure = Recorder()
    tune(Two(), measure, trials=32, batch=16, rank=lambda s: float(s.schema == 'other'))
    first = [s.schema for s in measure.turns[0]]
    assert 4 <= first.count('other') <= 12


def test_a_search_without_time_measures_its_first_part() -> None:
    """Draws and climbs may take all of it: what there is to begin with is tried all the same."""
    measure = Recorder()
    found = tune(Grid(), measure, trials=60, seconds=1e-9, rank=lambda s: seconds(s) or math.inf)
    assert len(measure.turns) == 1
    assert 1 <= len(found) <= 16


def test_starts_come_first_and_failures_stay_last() -> None:
    measure = Recorder()
    starts = [GpuSchedule.of('toy', a=0, b=20), GpuSchedule.of('toy', a=2, b=2)]
    found = tune(Grid(), measure, trials=2, starts=starts)
    assert measure.turns[0] == starts
    assert [t.schedule for t in found] == starts[::-1]


def test_a_space_that_is_used_up_ends_the_search() -> None:
    class One(Grid):
        def draw(self, rng: random.Random) -> GpuSchedule | None:
            return GpuSchedule.of('toy', a=0, b=0)

        def neighbours(self, schedule: GpuSchedule) -> list[GpuSchedule]:
            return []

    assert len(tune(One(), Recorder(), trials=10)) == 1


@pytest.mark.parametrize('bad', [{'trials': 0}, {'batch': 0}, {'seconds': 0.0}])
def test_numbers_that_make_no_sense(bad: dict) -> None:
    with pytest.raises(InputError, match='must each be above 0'):
        tune(Grid(), Recorder(), **({'trials': 1} | bad))


@pytest.mark.parametrize('machine', ['h200', 'v100'])
def test_schedules_of_real_spaces_are_legal_and_differ_in_few_decisions(machine: str) -> None:
    group = tw.conv2d(c=32, h=14, w=14, k=64, r=3, s=3, pad=1)
    space, rng = moves(group, known_gpu(machine)), random.Random(1)
    kinds = set(space.tables)
    assert (('patch', 'mma_tf32x3') in kinds) == (machine == 'h200')
    assert ('depthwise', 'fma') not in kinds
    drawn = [s for _ in range(300) if (s := space.draw(rng))]
    assert len({s.schema for s in drawn}) > 2
    for schedule in drawn[:10]:
        assert space.legal(schedule)
        for near in space.neighbours(schedule):
            changed = [n for n, v in near.tiles if schedule[n] != v]
            assert 1 <= len(changed) <= 3
            assert near.schema == schedule.schema


def test_long_sums_are_drawn_with_the_splits_that_they_need() -> None:
    """A sum of 32,000 terms is too long for matrix instructions unless blocks share it, also where
    there are blocks enough without.
    """
    group = tw.matmul(m=1920, n=1024, k=32000)
    space, rng = moves(group, known_gpu('h200'), ['strip']), random.Random(1)
    drawn = [s for _ in range(400) if (s := space.draw(rng))]
    assert drawn
    assert all(s['split'] > 1 for s in drawn)


def test_depthwise_layers_have_their_own_space() -> None:
    group = tw.conv2d(c=32, h=14, w=14, k=32, r=3, s=3, pad=1, groups=32)
    kinds = {schema for schema, _ in moves(group, known_gpu('h200')).tables}
    assert {'depthwise', 'general'} <= kinds
    assert 'general' in {s for s, _ in moves(group, known_gpu('h200'), ['general']).tables}


WINOGRAD = {('winograd', kind) for kind in ('fma', 'mma_tf32x3', 'wgmma_tf32_bf16')}


def test_winograd_is_drawn_where_it_may_win() -> None:
    """For many tiles with many channels; a space without it is the one that it was before."""
    sizes = {'c': 256, 'h': 14, 'w': 14, 'k': 256, 'r': 3, 's': 3, 'pad': 1}
    many, machine = tw.conv2d(n=64, **sizes), known_gpu('h200')
    space, rng = moves(many, machine), random.Random(2)
    assert set(space.tables) >= WINOGRAD
    drawn = [s for _ in range(400) if (s := space.draw(rng)) and s.schema == 'winograd']
    assert {s['m'] for s in drawn} == {2, 4}
    assert {(s.schema, s.intrinsic) for s in drawn} == WINOGRAD
    for schedule in drawn[:6]:
        near = space.neighbours(schedule)
        assert near
        assert {s['m'] for s in near} <= {2, 4}
        assert all(s.schema == 'winograd' and s.intrinsic == schedule.intrinsic for s in near)
        assert work(many, schedule).extra_kernels == 2
    for few in (
        tw.conv2d(n=1, **sizes),
        tw.conv2d(n=64, **(sizes | {'c': 8})),
        tw.conv2d(n=64, stride=2, **sizes),
        tw.conv2d(n=64, **(sizes | {'r': 1, 's': 1, 'pad': 0})),
    ):
        assert not pays(schema_named('winograd'), few, machine)
        assert 'winograd' not in {schema for schema, _ in tables(few, machine)}
    assert set(tables(many, known_gpu('v100'))) & WINOGRAD == {('winograd', 'fma')}


def test_a_schedule_as_one_line() -> None:
    assert schedule_text(GpuSchedule.of('tiled', bk=32, bp=64)) == 'tiled fma bk32 bp64'
