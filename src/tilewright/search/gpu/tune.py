"""A search over GPU schedules by measuring: ranked random ones, then changes of the best.

Goes in: a `Space` (draws legal schedules, names the neighbours of one), `measure` (schedules ->
seconds, None for one that does not work) and, if there is one, what ranks them: `rank` (a predicted
time of one, any unit), or `model` (scores of many, lowest first; rank/rankers.py).
Comes out: everything that was tried, best first. No runtime is known here, so that every search can
be replayed on recorded measurements. The same seed and measurements give the same search.

    1  draw many, `DRAWN` times as many as a quarter of the trials and at least `LEAST_DRAWN`; from
       the best of them climb by rank alone, one decision a step, until no neighbour is better.
       Without a ranker: draw half of the trials
    2  measure the first of those that the search is to begin with; the others and where the climbs
       ended, and, by turns, the best of all that the climbs came by, each in the order of the
       ranks; of every schema the best by rank, and some at random, since the ranker may be wrong in
       the same way everywhere
    3  until the trials are used up: the untried neighbours of the best few, one decision changed,
       again the best by rank first; where none are left, new random ones
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from tilewright.errors import InputError
from tilewright.schedule.gpu import GpuSchedule

if TYPE_CHECKING:
    import numpy as np

DRAWN, LEAST_DRAWN = 8, 128
CLIMBS, CLIMBS_OF_A_KIND = 9, 3
TIMED = 16  # schedules that are measured before the clock is looked at again
PARENTS = 6
AT_RANDOM = 0.25
PATIENCE = 200  # draws that give nothing new before a space counts as used up

Measure = Callable[[Sequence[GpuSchedule]], Sequence['float | None']]
Rank = Callable[[GpuSchedule], float]
Scores = Callable[[Sequence[GpuSchedule]], 'Sequence[float] | np.ndarray']


class Space(Protocol):
    """The legal schedules of one group on one machine."""

    def draw(self, rng: random.Random) -> GpuSchedule | None:
        """One at random; None when this draw was not legal."""
        ...

    def neighbours(self, schedule: GpuSchedule) -> list[GpuSchedule]:
        """Schedules that differ in one decision: legal ones, unless `tune` is told what is."""
        ...


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate: seconds (None if it does not work), and by which step it came up."""

    schedule: GpuSchedule
    seconds: float | None
    step: int


def tune(
    space: Space,
    measure: Measure,
    *,
    trials: int,
    rank: Rank | None = None,
    model: Scores | None = None,
    starts: Sequence[GpuSchedule] = (),
    seed: int = 0,
    batch: int = 32,
    seconds: float = math.inf,
    legal: Callable[[GpuSchedule], bool] | None = None,
) -> list[Tried]:
    """Search; after `seconds` nothing new is measured, but for the first part of it.

    `legal`: for spaces whose neighbours are not checked yet; only those that are taken then are.
    """
    if trials < 1 or batch < 1 or not seconds > 0:
        raise InputError(
            f'trials {trials}, batch {batch} and seconds {seconds} must each be above 0'
        )
    rng = random.Random(seed)
    scores = model if rank is None else _one_by_one(rank)
    until = time.monotonic() + seconds
    state = _State(space, scores, rng, until, legal)
    drawn = max(trials // (4 if scores else 2), 1)
    wanted = state.first(drawn, starts)
    step = 0
    while wanted and len(state.tried) < trials and not (state.tried and state.late):
        turn = [s for s in _distinct(wanted) if s.digest not in state.tried][:batch]
        turn = turn[: trials - len(state.tried)]
        for part in _parts(turn, TIMED if math.isfinite(seconds) else batch):
            if state.tried and state.late:
                break
            for schedule, took in zip(part, measure(part), strict=True):
                state.tried[schedule.digest] = Tried(schedule, took, step)
        left = [s for s in wanted if s.digest not in state.tried]
        wanted = left if step * batch < drawn and left else state.changed(batch)
        step += 1
    return state.ranked()


class _State:
    """What was tried, and what to try next."""

    def __init__(
        self, space: Space, scores: Scores | None, rng: random.Random, until: float = math.inf,
        legal: Callable[[GpuSchedule], bool] | None = None,
    ) -> None:  # fmt: skip
        self.space, self.rng, self.until, self.legal = space, rng, until, legal
        self.scores = scores
        self.tried: dict[str, Tried] = {}

    @property
    def late(self) -> bool:
        """Whether the time of the search is over; draws and climbs that have begun end then too."""
        return time.monotonic() >= self.until

    def ranked(self) -> list[Tried]:
        """Best first; those that do not work last."""
        return sorted(
            self.tried.values(),
            key=lambda t: (math.inf if t.seconds is None else t.seconds, t.schedule.digest),
        )

    def first(self, count: int, begun: Sequence[GpuSchedule] = ()) -> list[GpuSchedule]:
        """The first of those to begin with; the others, and where climbs from the best by rank of
        many end, by their rank, in turns with the best of all that were ranked; then those as
        `fresh` has them.
        """
        drawn = self._drawn(count)
        if self.scores is None or not drawn:
            return [*begun, *drawn[:count]]
        known = dict(zip((s.digest for s in drawn), self._scores_of(drawn), strict=True))
        seen = {s.digest: s for s in drawn}
        starts = _few_of_a_kind(sorted(drawn, key=lambda s: (known[s.digest], s.digest)))
        ends = [self._climbed(start, known, seen) for start in starts]
        known.update(zip((s.digest for s in begun), self._scores_of([*begun]), strict=True))
        ends = _distinct(sorted([*begun[1:], *ends], key=lambda s: (known[s.digest], s.digest)))
        ranked = (seen[d] for d in sorted(seen, key=lambda d: (known[d], d)))
        best = _few_of_a_kind(s for s in ranked if s not in ends)
        turns = [one for pair in zip(ends, best, strict=False) for one in pair]
        return _distinct([*begun[:1], *turns, *ends, *self._first(drawn, count)])

    def fresh(self, count: int) -> list[GpuSchedule]:
        """Untried ones: the best by rank of many, some at random among them."""
        return self._first(self._drawn(count), count)

    def _climbed(
        self, start: GpuSchedule, known: dict[str, float], seen: dict[str, GpuSchedule]
    ) -> GpuSchedule:
        """The end of steepest descent by rank; scores that it needs are added to `known`, and what
        they are of to `seen`.
        """
        while True:
            near = [s for s in self.space.neighbours(start) if self._is_legal(s)]
            new = _distinct([s for s in near if s.digest not in known])
            known.update(zip((s.digest for s in new), self._scores_of(new), strict=True))
            seen.update((s.digest, s) for s in new)
            best = min(near, key=lambda s: (known[s.digest], s.digest), default=start)
            if known[best.digest] >= known[start.digest] or self.late:
                return start
            start = best

    def _is_legal(self, schedule: GpuSchedule) -> bool:
        return self.legal is None or self.legal(schedule)

    def _scores_of(self, schedules: list[GpuSchedule]) -> list[float]:
        return [float(s) for s in self.scores(schedules)] if self.scores and schedules else []

    def _drawn(self, count: int) -> list[GpuSchedule]:
        """Distinct untried ones: `count`, or more where they are ranked."""
        found: dict[str, GpuSchedule] = {}
        misses = 0
        wanted = max(DRAWN * count, LEAST_DRAWN) if self.scores else count
        while len(found) < wanted and misses < PATIENCE and not (found and self.late):
            drawn = self.space.draw(self.rng)
            if drawn is None or drawn.digest in found or drawn.digest in self.tried:
                misses += 1
                continue
            found[drawn.digest] = drawn
            misses = 0
        return list(found.values())

    def changed(self, count: int) -> list[GpuSchedule]:
        """Neighbours of the best few, nearest to the best first; new ones if there are none."""
        working = [t.schedule for t in self.ranked() if t.seconds is not None]
        found: list[GpuSchedule] = []
        for parent in working[:PARENTS]:
            near = [s for s in self.space.neighbours(parent) if s.digest not in self.tried]
            self.rng.shuffle(near)
            share = max(2, count // 3 if parent is working[0] else count // (PARENTS + 2))
            checked = (s for s in _distinct(near) if self._is_legal(s))
            found += self._first(list(islice(checked, None if self.scores else share)), share)
        found = _distinct(found)[:count]
        return found or self.fresh(count)

    def _first(self, schedules: list[GpuSchedule], count: int) -> list[GpuSchedule]:
        """The best by rank of every kind, in proportion to how many there are of it, and some at
        random: a ranker may favour one schema over another wrongly.
        """
        if self.scores is None or not schedules:
            return schedules[:count]
        kinds: dict[tuple[str, str], list[tuple[float, str, GpuSchedule]]] = {}
        for s, score in zip(schedules, self.scores(schedules), strict=True):
            kinds.setdefault((s.schema, s.intrinsic), []).append((float(score), s.digest, s))
        placed = [
            (place / len(members), digest, schedule)
            for members in kinds.values()
            for place, (_, digest, schedule) in enumerate(sorted(members, key=lambda m: m[:2]))
        ]
        ordered = [schedule for _, _, schedule in sorted(placed, key=lambda p: p[:2])]
        lucky = round(AT_RANDOM * count)
        chosen, rest = ordered[: count - lucky], ordered[count - lucky :]
        return chosen + self.rng.sample(rest, min(lucky, len(rest)))


def _parts(schedules: Sequence[GpuSchedule], count: int) -> list[Sequence[GpuSchedule]]:
    return [schedules[i : i + count] for i in range(0, len(schedules), count)]


def _one_by_one(rank: Rank) -> Scores:
    return lambda schedules: [rank(s) for s in schedules]


def _few_of_a_kind(schedules: Iterable[GpuSchedule]) -> list[GpuSchedule]:
    """The first `CLIMBS`, of one schema and intrinsic at most `CLIMBS_OF_A_KIND`."""
    taken: list[GpuSchedule] = []
    counts: dict[tuple[str, str], int] = {}
    for one in schedules:
        kind = one.schema, one.intrinsic
        if counts.get(kind, 0) < CLIMBS_OF_A_KIND and len(taken) < CLIMBS:
            counts[kind] = counts.get(kind, 0) + 1
            taken.append(one)
    return taken


def _distinct(schedules: Sequence[GpuSchedule]) -> list[GpuSchedule]:
    return list({s.digest: s for s in schedules}.values())
