"""Which tasks of a program become one kernel with several reducing stages: found by growing groups.

Goes in: a program whose element-wise tasks are joined already (graph/fuse.py), and what groups cost
(`Prices`). Comes out: a program that computes the same, and what was tried, each with a verdict.

As in DeepCuts, a larger group is tried only where a smaller one gained: A+B+C where A+B or B+C did.
Sets of tasks that can be joined at all (graph/chain.py) grow task by task; one gains if it is
predicted to take less time than its tasks apart. Among those that gain, disjoint ones are chosen
whose gains add up to the most: exactly, by dynamic programming over the tasks in their order, as
long as few choices are open at a time. Deterministic where prices are.

A set is refused in three steps, the cheap ones first: no kernel could keep its inner tensors on the
chip; a bound on its time is above the time of its tasks apart; it is predicted to be slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.graph.chain import Links, alone, grown, joined, links_of, reduces, with_joined
from tilewright.graph.program import Program, Task
from tilewright.ops.group import Group

Price = Callable[[Group], float]
# Programs of the same tasks, joined and apart -> seconds of each where they run.
Measure = Callable[[Program, Program], tuple[float, float]]

MOST_REDUCING = 3  # tasks of a group that reduce: 1x1, depthwise, 1x1
MOST_TRIED = 256  # distinct groups that are priced for a program
MOST_OPEN = 4096  # choices of disjoint sets that are followed side by side


def _nothing(_: Group) -> float:
    return 0.0


def _possible(_: Group) -> str:
    return ''


def _no_hurry(_: Sequence[Group]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Prices:
    """What groups cost at one site.

    price    seconds of the best schedule of a group, predicted
    bound    seconds that no kernel of a joined group can beat; microseconds to ask
    why_not  why no kernel keeps the inner tensors of a joined group on the chip; '' where one does
    ahead    told of groups that will be priced, so that they can be searched side by side
    """

    price: Price
    bound: Price = _nothing
    why_not: Callable[[Group], str] = _possible
    ahead: Callable[[Sequence[Group]], object] = _no_hurry


@dataclass(frozen=True, slots=True)
class Tried:
    """A joined group that was looked at, and the verdict.

    tasks     names of the tasks that it would compute
    fused_s   predicted, or measured if `measured`; None where it was refused before that
    apart_s   the same for its tasks as they were; None where it was refused before that
    """

    label: str
    digest: str
    tasks: tuple[str, ...]
    fused_s: float | None
    apart_s: float | None
    kept: bool
    why: str
    measured: bool = False

    def to_json(self) -> dict:
        return {
            'label': self.label,
            'digest': self.digest,
            'tasks': list(self.tasks),
            'fused_ms': None if self.fused_s is None else 1e3 * self.fused_s,
            'apart_ms': None if self.apart_s is None else 1e3 * self.apart_s,
            'kept': self.kept,
            'measured': self.measured,
            'why': self.why,
        }


@dataclass(frozen=True, slots=True)
class Fusion:
    """A program whose chains are joined, and all that was tried, in the order of its tasks."""

    program: Program
    tried: tuple[Tried, ...]

    @property
    def kept(self) -> tuple[Tried, ...]:
        return tuple(one for one in self.tried if one.kept)


def find_chains(
    program: Program,
    prices: Prices,
    measure: Measure | None = None,
    most_reducing: int = MOST_REDUCING,
    most_tried: int = MOST_TRIED,
) -> Fusion:
    """[Program] -> [Fusion], by prices; with `measure` what is kept was also found to be faster."""
    search = _Search(links_of(program), prices, most_reducing, most_tried)
    search.grow()
    kept = disjoint(search.gains)
    while measure is not None and (slow := search.slow(kept, measure)):
        for numbers in slow:
            del search.gains[numbers]
        kept = disjoint(search.gains)
    return Fusion(with_joined(search.links, kept), search.verdicts(kept))


def disjoint(gains: Mapping[frozenset[int], float]) -> tuple[frozenset[int], ...]:
    """Disjoint sets with the largest sum of gains; sets that have nothing to do with each other are
    looked at apart.
    """
    found: list[frozenset[int]] = []
    for some in _connected(gains):
        found += _most({numbers: gains[numbers] for numbers in some})
    return tuple(sorted(found, key=sorted))


@dataclass
class _Search:
    links: Links
    prices: Prices
    most_reducing: int
    most_tried: int
    gains: dict[frozenset[int], float] = field(default_factory=dict)
    _tried: dict[frozenset[int], Tried] = field(default_factory=dict)
    _whys: dict[str, str] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _measured: dict[str, tuple[float, float]] = field(default_factory=dict)
    _fused: set[str] = field(default_factory=set)

    def grow(self) -> None:
        """Try pairs, then what has one task more than a set that gained, until nothing gains."""
        front = [frozenset({number}) for number in range(len(self._tasks))]
        while front:
            wider = {more for numbers in front for more in grown(self.links, numbers)}
            front = self._gaining(sorted(wider - self._tried.keys(), key=sorted))

    @property
    def _tasks(self) -> tuple[Task, ...]:
        return self.links.program.tasks

    def _gaining(self, sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
        """Those of some sets of equal size that gain; all of them are recorded."""
        tasks = {
            numbers: task
            for numbers in sets
            if self._is_small(numbers) and (task := joined(self.links, numbers)) is not None
        }
        possible = self._possible(tasks)
        parts = (self._tasks[n].group for numbers in possible for n in numbers)
        self._ahead(parts)
        bounded = [numbers for numbers in possible if self._is_below(numbers, tasks[numbers])]
        self._ahead(tasks[numbers].group for numbers in bounded)
        return [numbers for numbers in bounded if self._gains(numbers, tasks[numbers])]

    def _is_small(self, numbers: frozenset[int]) -> bool:
        return sum(reduces(self._tasks[n].group) for n in numbers) <= self.most_reducing

    def _possible(self, tasks: Mapping[frozenset[int], Task]) -> list[frozenset[int]]:
        """The sets that some kernel may compute, as long as few groups were tried."""
        found = []
        for numbers, task in tasks.items():
            group = task.group
            full = group.digest not in self._fused and len(self._fused) >= self.most_tried
            why = self._why_not(group)
            if not why and full:
                why = f'{self.most_tried} groups were tried before it, which is the limit'
            if why:
                self._record(numbers, task, None, None, why)
                continue
            self._fused.add(group.digest)
            found.append(numbers)
        return found

    def _why_not(self, group: Group) -> str:
        if group.digest not in self._whys:
            self._whys[group.digest] = self.prices.why_not(group)
        return self._whys[group.digest]

    def _is_below(self, numbers: frozenset[int], task: Task) -> bool:
        """Whether a joined group might take less time than its tasks apart."""
        apart, bound = self._apart(numbers), self.prices.bound(task.group)
        if bound < apart:
            return True
        why = f'no kernel can take less than {1e3 * bound:.4g} ms for it'
        self._record(numbers, task, None, apart, why)
        return False

    def _gains(self, numbers: frozenset[int], task: Task) -> bool:
        fused, apart = self._price(task.group), self._apart(numbers)
        if fused < apart:
            self.gains[numbers] = apart - fused
            self._record(numbers, task, fused, apart, '')
            return True
        why = 'it is slower than its tasks apart'
        if math.isinf(fused):
            fused, why = None, 'no schedule of it fits the machine'
        self._record(numbers, task, fused, apart, why)
        return False

    def _record(
        self, numbers: frozenset[int], task: Task, fused: float | None, apart: float | None,
        why: str,
    ) -> None:  # fmt: skip
        names = tuple(self._tasks[n].name for n in sorted(numbers))
        group = task.group
        self._tried[numbers] = Tried(group.label, group.digest, names, fused, apart, False, why)

    def _apart(self, numbers: frozenset[int]) -> float:
        return sum(self._price(self._tasks[n].group) for n in sorted(numbers))

    def _price(self, group: Group) -> float:
        if group.digest not in self._seconds:
            self._seconds[group.digest] = self.prices.price(group)
        return self._seconds[group.digest]

    def _ahead(self, groups: Iterable[Group]) -> None:
        distinct = {g.digest: g for g in groups if g.digest not in self._seconds}
        if distinct:
            self.prices.ahead(tuple(distinct.values()))

    def slow(self, kept: Iterable[frozenset[int]], measure: Measure) -> list[frozenset[int]]:
        """Those of the kept sets that turn out to be slower when measured; each group once."""
        slow = []
        for numbers in kept:
            task = joined(self.links, numbers)
            assert task is not None
            digest = task.group.digest
            if digest not in self._measured:
                parts = [self._tasks[n] for n in sorted(numbers)]
                self._measured[digest] = measure(
                    alone(self.links, (task,), task.group.label),
                    alone(self.links, parts, f'{task.group.label} apart'),
                )
            fused, apart = self._measured[digest]
            why = '' if fused < apart else 'it was slower than its tasks apart when measured'
            self._tried[numbers] = replace(
                self._tried[numbers], fused_s=fused, apart_s=apart, why=why, measured=True
            )
            if why:
                slow.append(numbers)
        return slow

    def verdicts(self, kept: Sequence[frozenset[int]]) -> tuple[Tried, ...]:
        chosen, taken = set(kept), frozenset().union(*kept)
        return tuple(
            self._verdict(numbers, numbers in chosen, taken)
            for numbers in sorted(self._tried, key=sorted)
        )

    def _verdict(self, numbers: frozenset[int], kept: bool, taken: frozenset[int]) -> Tried:
        tried = self._tried[numbers]
        if tried.fused_s is None or tried.apart_s is None or tried.why:
            return tried
        saved = 1 - tried.fused_s / tried.apart_s
        why = f'it saves {saved:.1%}'
        if not kept:
            others = ', '.join(self._tasks[n].name for n in sorted(numbers & taken)[:3])
            why += f', but more is saved with {others} in other groups'
        return replace(tried, kept=kept, why=why)


def _connected(gains: Mapping[frozenset[int], float]) -> list[list[frozenset[int]]]:
    """The sets in parts that have no task in common."""
    parts: list[tuple[set[int], list[frozenset[int]]]] = []
    for numbers in sorted(gains, key=sorted):
        tasks, members = set(numbers), [numbers]
        rest = []
        for other, sets in parts:
            if other & numbers:
                tasks |= other
                members = sets + members
            else:
                rest.append((other, sets))
        parts = [*rest, (tasks, members)]
    return [members for _, members in parts]


def _most(gains: Mapping[frozenset[int], float]) -> tuple[frozenset[int], ...]:
    """Disjoint sets with the largest sum of gains.

    Task by task, the lowest number first: it is left alone, or a set begins there. What decides
    what may follow is the later tasks that are taken by then, so the best for each of these remain.
    """
    begins: dict[int, list[frozenset[int]]] = {}
    for numbers in sorted(gains, key=sorted):
        begins.setdefault(min(numbers), []).append(numbers)
    best: dict[frozenset[int], tuple[float, tuple[frozenset[int], ...]]] = {frozenset(): (0.0, ())}
    for number in sorted(frozenset().union(*gains)):
        after: dict[frozenset[int], tuple[float, tuple[frozenset[int], ...]]] = {}
        for taken, (gain, sets) in best.items():
            options = [(taken - {number}, gain, sets)]
            if number not in taken:
                options += [
                    ((taken | some) - {number}, gain + gains[some], (*sets, some))
                    for some in begins.get(number, ())
                    if not some & taken
                ]
            for open_ones, total, chosen in options:
                if open_ones not in after or total > after[open_ones][0]:
                    after[open_ones] = total, chosen
        best = dict(
            sorted(after.items(), key=lambda item: (-item[1][0], sorted(item[0])))[:MOST_OPEN]
        )
    return max(best.values(), key=lambda found: found[0])[1]
