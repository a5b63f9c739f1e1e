"""Searches with one interface: space, model, measure, budget and seed in; what was tried out.

Goes in: a space of schedules (search/gpu/tune.py's `Space`, or a list: `Listed`), `measure`
(schedules -> seconds, None for one that does not work), a strategy, a budget, and for some of them
a model. Comes out: everything that was tried, best first. No runtime is known here, so every search
runs on recorded measurements too (`replay`).

    exhaustive   everything, in the order of the space
    random       distinct ones at random
    top          the best by the model: of all, or of `sampled` draws where there is no list
    genetic      a population whose crossover and mutation stay legal, bred by the model's scores,
                 `sampled` candidates over all turns; the best untried are measured, and the model
                 learns from them (GTuner Sec. 3.1)
    online       like genetic in what it measures, but the model is trained from nothing on this
                 run's own measurements, as Ansor's is, and a share of each turn is random

The loop around them is one function. It never measures a schedule twice, keeps the budget, and with
the same seed and measurements does the same. `known` holds measurements of an earlier, interrupted
search: they are used in the place of measuring, and count. `bound` gives seconds that a schedule
cannot beat: what cannot become the best any more is passed over, and where nothing else is left the
search ends early.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tilewright.errors import InputError
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.tune import PATIENCE, Measure, Space, Tried

SAMPLED = 10_000
POPULATION = 256
PARENTS = 0.25  # share of a population that breeds
MUTATED = 0.3  # share of children that are neighbours of a parent
EXPLORED = 0.1  # share of an online turn that is random


class Model(Protocol):
    """What scores schedules, lowest first, and may learn from what was measured."""

    def __call__(self, schedules: Sequence[GpuSchedule]) -> Sequence[float] | np.ndarray: ...

    def learned(self, tried: Sequence[Tried]) -> Model:
        """The model after it has seen measurements; itself, if it does not learn."""
        ...


class Listed:
    """A space that is a list: everything that was recorded, say."""

    def __init__(self, schedules: Iterable[GpuSchedule]) -> None:
        self.schedules = list({s.digest: s for s in schedules}.values())
        self._known = {s.digest for s in self.schedules}
        self._beside: dict[tuple, list[GpuSchedule]] = {}
        for s in self.schedules:
            for key in _all_but_one(s):
                self._beside.setdefault(key, []).append(s)

    def all(self) -> list[GpuSchedule]:
        return self.schedules

    def legal(self, schedule: GpuSchedule) -> bool:
        return schedule.digest in self._known

    def draw(self, rng: random.Random) -> GpuSchedule | None:
        return rng.choice(self.schedules) if self.schedules else None

    def neighbours(self, schedule: GpuSchedule) -> list[GpuSchedule]:
        found = {
            other.digest: other
            for key in _all_but_one(schedule)
            for other in self._beside.get(key, ())
            if other.digest != schedule.digest
        }
        return list(found.values())


def _all_but_one(s: GpuSchedule) -> list[tuple]:
    return [
        (s.schema, s.intrinsic, i, *s.tiles[:i], *s.tiles[i + 1 :]) for i in range(len(s.tiles))
    ]


def replay(times: Mapping[GpuSchedule, float | None]) -> tuple[Listed, Measure]:
    """(space, measure) of recorded measurements."""
    by_digest = {schedule.digest: seconds for schedule, seconds in times.items()}

    def measure(schedules: Sequence[GpuSchedule]) -> list[float | None]:
        return [by_digest[s.digest] for s in schedules]

    return Listed(times), measure


@dataclass
class State:
    """A search on its way: what strategies look at.

    taken   digests that are not to be offered again: tried, about to be, or passed over
    queue   what `top` has ordered
    starts  what is tried before the strategy is asked
    sampled, bred  candidates that are looked at in all, and by a population in one turn
    """

    space: Space
    model: Model | None
    rng: random.Random
    tried: dict[str, Tried] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    queue: list[GpuSchedule] | None = None
    starts: list[GpuSchedule] = field(default_factory=list)
    sampled: int = SAMPLED
    bred: int = SAMPLED

    @property
    def best_s(self) -> float:
        times = [t.seconds for t in self.tried.values() if t.seconds is not None]
        return min(times, default=math.inf)

    def listed(self) -> list[GpuSchedule] | None:
        """Everything, where the space has a list."""
        return self.space.all() if isinstance(self.space, Listed) else None

    def fresh(self, count: int, besides: Iterable[str] = ()) -> list[GpuSchedule]:
        """Distinct ones at random; fewer where the space is used up."""
        taken = {*self.taken, *besides}
        everything = self.listed()
        if everything is not None:
            left = [s for s in everything if s.digest not in taken]
            return self.rng.sample(left, min(count, len(left)))
        found: dict[str, GpuSchedule] = {}
        misses = 0
        while len(found) < count and misses < PATIENCE:
            drawn = self.space.draw(self.rng)
            if drawn is None or drawn.digest in found or drawn.digest in taken:
                misses += 1
                continue
            found[drawn.digest] = drawn
            misses = 0
        return list(found.values())

    def by_score(self, schedules: Sequence[GpuSchedule]) -> list[GpuSchedule]:
        """Best first by the model; equal ones in a fixed order."""
        if self.model is None:
            raise InputError('this search asks a model first; give one')
        if not schedules:
            return []
        scores = self.model(schedules)
        order = sorted(range(len(schedules)), key=lambda i: (scores[i], schedules[i].digest))
        return [schedules[i] for i in order]


# What to measure next: at most so many, all of them untried.
Strategy = Callable[[State, int], list[GpuSchedule]]


def _exhaustive(state: State, count: int) -> list[GpuSchedule]:
    everything = state.listed()
    if everything is None:
        raise InputError('an exhaustive search needs a space that is a list; choose random or top')
    return [s for s in everything if s.digest not in state.taken][:count]


def _random(state: State, count: int) -> list[GpuSchedule]:
    return state.fresh(count)


def _top(state: State, count: int) -> list[GpuSchedule]:
    if state.queue is None:
        everything = state.listed()
        state.queue = state.by_score(
            state.fresh(state.sampled) if everything is None else everything
        )
    left = [s for s in state.queue if s.digest not in state.taken]
    return left[:count] or state.fresh(count)


def _genetic(state: State, count: int) -> list[GpuSchedule]:
    return bred(state, count)


def _online(state: State, count: int) -> list[GpuSchedule]:
    if not any(t.seconds is not None for t in state.tried.values()):
        return state.fresh(count)
    lucky = max(round(EXPLORED * count), 1) if count > 1 else 0
    chosen = bred(state, count - lucky)
    return chosen + state.fresh(count - len(chosen), [s.digest for s in chosen])


STRATEGIES: Mapping[str, Strategy] = {
    'exhaustive': _exhaustive, 'random': _random, 'top': _top, 'genetic': _genetic,
    'online': _online,
}  # fmt: skip


def bred(state: State, count: int) -> list[GpuSchedule]:
    """The best untried by score of a population that is bred for some generations.

    A list that is no larger than what would be sampled is scored as it is.
    """
    everything = state.listed()
    if everything is not None and len(everything) <= SAMPLED:
        left = [s for s in everything if s.digest not in state.taken]
        return state.by_score(left)[:count]
    measured = sorted(
        (t for t in state.tried.values() if t.seconds is not None),
        key=lambda t: (t.seconds, t.schedule.digest),
    )
    elite = [t.schedule for t in measured[: POPULATION // 4]]
    population = [*elite, *state.fresh(POPULATION - len(elite))]
    seen = {s.digest: s for s in population}
    while population and len(seen) < state.bred:
        ordered = state.by_score(population)
        parents = ordered[: max(round(PARENTS * len(ordered)), 2)]
        children = _children(state, parents, seen)
        if not children:
            break
        population = [*parents, *children]
    untried = [s for digest, s in seen.items() if digest not in state.taken]
    return state.by_score(untried)[:count]


def _children(
    state: State, parents: Sequence[GpuSchedule], seen: dict[str, GpuSchedule]
) -> list[GpuSchedule]:
    """Legal schedules that nobody has seen, by crossover and mutation; they count as seen then."""
    found: list[GpuSchedule] = []
    for _ in range(4 * POPULATION):
        if len(found) >= POPULATION:
            break
        mother = state.rng.choice(parents)
        if state.rng.random() < MUTATED:
            near = state.space.neighbours(mother)
            child = state.rng.choice(near) if near else None
        else:
            child = crossed(state, mother, state.rng.choice(parents))
        if child is not None and child.digest not in seen:
            seen[child.digest] = child
            found.append(child)
    return found


def crossed(state: State, mother: GpuSchedule, father: GpuSchedule) -> GpuSchedule | None:
    """Each decision from one of two schedules of a kind; None where that is not legal."""
    kinds = [(s.schema, s.intrinsic, tuple(n for n, _ in s.tiles)) for s in (mother, father)]
    if kinds[0] != kinds[1]:
        return None
    tiles = tuple(state.rng.choice(pair) for pair in zip(mother.tiles, father.tiles, strict=True))
    child = GpuSchedule(mother.schema, tiles, mother.intrinsic)
    legal = getattr(state.space, 'legal', None)
    return child if legal is not None and legal(child) else None


def search(
    space: Space,
    measure: Measure,
    strategy: str,
    *,
    trials: int,
    model: Model | None = None,
    seconds: float = math.inf,
    batch: int = 16,
    seed: int = 0,
    known: Mapping[str, float | None] | None = None,
    bound: Callable[[GpuSchedule], float] | None = None,
    starts: Sequence[GpuSchedule] = (),
    sampled: int = SAMPLED,
    on_tried: Callable[[Tried], None] | None = None,
) -> list[Tried]:
    """Search with one of `STRATEGIES`; comes out: what was tried, best first.

    `known`: seconds by digest. `starts` are tried before all others, and count. `sampled`:
    candidates that the model looks at. `on_tried` hears of each trial when it is known, in order:
    who writes them down can resume. No new turn begins after `seconds`.
    """
    if strategy not in STRATEGIES:
        raise InputError(f'{strategy!r} is no search; choose one of {", ".join(STRATEGIES)}')
    if trials < 1 or batch < 1 or not seconds > 0:
        raise InputError(
            f'trials {trials}, batch {batch} and seconds {seconds} must each be above 0'
        )
    if model is None and strategy in ('top', 'genetic', 'online'):
        raise InputError(f'the search {strategy!r} asks a model first; give one')
    turns = -(-trials // batch)
    state = State(
        space, model, random.Random(seed), starts=list(starts), sampled=sampled,
        # A first population and at least one generation, however few are looked at in a turn.
        bred=max(sampled // turns, 2 * POPULATION),
    )  # fmt: skip
    until = time.monotonic() + seconds
    for step in range(trials):
        left = trials - len(state.tried)
        if left < 1 or time.monotonic() >= until:
            break
        turn = _turn(state, STRATEGIES[strategy], min(batch, left), bound)
        if not turn:
            break
        for one in _measured(turn, measure, known or {}, step):
            state.tried[one.schedule.digest] = one
            if on_tried is not None:
                on_tried(one)
        if state.model is not None:
            state.model = state.model.learned(list(state.tried.values()))
    return sorted(
        state.tried.values(),
        key=lambda t: (math.inf if t.seconds is None else t.seconds, t.schedule.digest),
    )


def _turn(
    state: State, strategy: Strategy, count: int, bound: Callable[[GpuSchedule], float] | None
) -> list[GpuSchedule]:
    """Up to `count` schedules that may still be the best; none: nothing is left."""
    turn: list[GpuSchedule] = []
    while len(turn) < count:
        offered = _offered(state, strategy, count - len(turn))
        if not offered:
            break
        for schedule in offered:
            if schedule.digest in state.taken:
                continue
            state.taken.add(schedule.digest)
            if bound is None or bound(schedule) < state.best_s:
                turn.append(schedule)
    return turn


def _offered(state: State, strategy: Strategy, count: int) -> list[GpuSchedule]:
    """Untried ones: those to start with, then what the strategy says."""
    left = [s for s in state.starts if s.digest not in state.taken]
    state.starts = left[count:]
    return left[:count] or [s for s in strategy(state, count) if s.digest not in state.taken]


def _measured(
    turn: Sequence[GpuSchedule], measure: Measure, known: Mapping[str, float | None], step: int
) -> list[Tried]:
    """A turn with its times: those that are known, and the others measured together."""
    new = [s for s in turn if s.digest not in known]
    times = dict(known) | dict(
        zip((s.digest for s in new), measure(new) if new else (), strict=True)
    )
    return [Tried(s, times[s.digest], step) for s in turn]
