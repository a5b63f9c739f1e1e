"""Schedules for many groups at once: each distinct problem once, from the store or from the search.

Goes in: groups, a machine, a thread count. Comes out: for each group its best choices, best
predicted first. Nothing is timed, and the answer is the same every time. Groups are searched as
their core (ops/core.py); those without a stored answer are searched in child processes, one for
each core of this host, because a search takes seconds and uses one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.schema import SCHEMAS, is_extended
from tilewright.machine.machine import Machine
from tilewright.model.cpu.far_weights import late_seconds
from tilewright.ops.core import core
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.tiles import ALGORITHMS
from tilewright.runtime.pool import each
from tilewright.schedule.choice import Choice
from tilewright.schedule.schedule import Schedule
from tilewright.store import built, choices

Report = Callable[[Group, int, int], object]
# 3x3: F(4,3) has 4 times the weights, F(3,3) 2.8 times, F(2,3) 1.8 times
GROWTHS = (4.2, 3.0, 2.0)
SERVING = 3  # choices that may serve other sizes: code of the first may be none of the whole group


@dataclass(frozen=True, slots=True)
class Question:
    """What decides the choices for one group.

    `growth`, unless it is 0, asks for Winograd kernels alone, with at most so many times the
    weights that the group has; there may be none. `algorithm` is 'direct', 'auto', or another:
    that wherever there is a kernel of it, and the direct algorithm elsewhere. `front`: kernels that
    compute what comes before the products as they copy their image; there may be none.
    `every_size`: direct kernels that may serve other sizes; there may be none.
    """

    group: Group
    machine: Machine
    threads: int
    top: int
    max_rel_err: float
    growth: float = 0.0
    algorithm: str = 'auto'
    front: bool = False
    every_size: bool = False

    def to_json(self) -> dict:
        return {
            'group': self.group.to_json(),
            'machine': self.machine.to_json(),
            'threads': self.threads,
            'top': self.top,
            'max_rel_err': self.max_rel_err,
            **({'growth': self.growth} if self.growth else {}),
            **({'algorithm': self.algorithm} if self.algorithm != 'auto' else {}),
            **({'front': True} if self.front else {}),
            **({'every_size': True} if self.every_size else {}),
        }

    @property
    def key(self) -> str:
        return choices.key_of(self.to_json() | {'group': self.group.digest})

    @property
    def may_have_none(self) -> bool:
        return bool(self.growth or self.front or self.every_size)


def choose_all(
    groups: Sequence[Group],
    machine: Machine,
    threads: int,
    top: int,
    max_rel_err: float,
    report: Report | None = None,
    algorithm: str = 'auto',
) -> list[tuple[Choice, ...]]:
    """For each group its best choices, at least one and at most `top`, in the order given.

    `report` is called with a group whenever one was searched, with how many of how many are done.
    """

    def asked(group: Group) -> Question:
        return Question(group, machine, threads, top, max_rel_err, algorithm=algorithm)

    questions = [asked(core(g)) for g in groups]
    found = _answers(questions, report)
    answers = [found[question.key] for question in questions]
    # A schedule of the core may be none of the whole: what follows may ask for another schema.
    # The others are looked at when they are used.
    legal = [
        answer if is_legal(group, answer[0].schedule) else ()
        for group, answer in zip(groups, answers, strict=True)
    ]
    fronted = {
        group.digest: replace(asked(core(group)), front=True)
        for group, answer in zip(groups, legal, strict=True)
        if not answer and has_front(group)
    }
    able = _answers(list(fronted.values()), report)
    legal = [
        answer or (able[fronted[group.digest].key] if group.digest in fronted else ())
        for group, answer in zip(groups, legal, strict=True)
    ]
    odd = [asked(group) for group, answer in zip(groups, legal, strict=True) if not answer]
    found |= _answers(odd, report)
    whole = {question.group.digest: found[question.key] for question in odd}
    return [answer or whole[group.digest] for group, answer in zip(groups, legal, strict=True)]


def choose_frugal(
    groups: Sequence[Group], machine: Machine, threads: int, max_rel_err: float
) -> list[tuple[Choice, ...]]:
    """For each group further kernels of Winograd's and Strassen's algorithms, with fewer weights
    than the fastest may have.
    """
    questions = [
        [Question(core(g), machine, threads, 1, max_rel_err, growth) for growth in GROWTHS]
        for g in groups
    ]
    found = _answers([q for each in questions for q in each], None)
    return [
        tuple(dict.fromkeys(choice for q in each for choice in found[q.key])) for each in questions
    ]


def choose_every_size(
    groups: Sequence[Group], threads: Sequence[int], machine: Machine, max_rel_err: float
) -> list[tuple[Choice, ...]]:
    """For each group, with its threads, direct choices whose kernels may serve other sizes."""
    questions = [
        Question(core(group), machine, count, SERVING, max_rel_err, every_size=True)
        for group, count in zip(groups, threads, strict=True)
    ]
    found = _answers(questions, None)
    return [found[question.key] for question in questions]


def with_far_weights(
    group: Group, found: Sequence[Choice], machine: Machine
) -> tuple[Choice, ...]:  # fmt: skip
    """Choices of a group by what they take where its weights come from memory in every call."""
    inner = core(group)
    later = [
        replace(c, predicted_s=c.predicted_s + late_seconds(inner, c.schedule, machine))
        for c in found
    ]
    ordered = sorted(later, key=lambda choice: choice.predicted_s)
    # Only the first is known to be legal for the whole group.
    able = next(n for n, choice in enumerate(ordered) if is_legal(group, choice.schedule))
    return tuple(ordered[able:])


@lru_cache(maxsize=512)
def source_of(group: Group, schedule: Schedule) -> str:
    """The generated C; kept for a while, since it is looked at more than once."""
    return generate(group, schedule)


def is_legal(group: Group, schedule: Schedule) -> bool:
    """Whether code can be generated for a schedule."""
    if built.find(group, schedule) is not None:
        return True
    try:
        source_of(group, schedule)
    except ScheduleError:
        return False
    return True


def _answers(questions: Sequence[Question], report: Report | None) -> dict[str, tuple[Choice, ...]]:
    """key -> choices: those that are kept, and those of a search, which are kept then."""
    found: dict[str, tuple[Choice, ...]] = {}
    open_ones: dict[str, Question] = {}
    for question in questions:
        key = question.key
        if key in found or key in open_ones:
            continue
        kept = None if is_extended() else choices.recall_choices(key)
        # Where there has to be a choice, a kept answer without one is none.
        if kept or (kept is not None and question.may_have_none):
            found[key] = kept
        else:
            open_ones[key] = question
    # The longest first, so that no child works alone at the end.
    order = sorted(open_ones, key=lambda key: -open_ones[key].group.flops)
    for done, (key, answer) in enumerate(_searched({k: open_ones[k] for k in order}), 1):
        if not is_extended():  # other processes do not have what was registered in this one
            choices.keep_choices(key, answer)
        found[key] = answer
        if report is not None:
            report(open_ones[key].group, done, len(order))
    return found


def _searched(questions: Mapping[str, Question]) -> Iterator[tuple[str, tuple[Choice, ...]]]:
    """(key, choices) of every question; the slow ones in processes, if there are several."""
    slow = {key: q for key, q in questions.items() if q.group.main.is_product_sum}
    for key, question in questions.items():
        if key not in slow:
            yield key, search(question)
    pieces = [(question,) for question in slow.values()]
    # Other processes do not have what was registered in this one.
    found = each(search, pieces, 1 if is_extended() else None)
    yield from zip(slow, found, strict=True)


def search(question: Question) -> tuple[Choice, ...]:
    """The search itself, in this process."""
    from tilewright.search.cpu.choose import choose, choose_preferred
    from tilewright.search.cpu.rank import rank
    from tilewright.search.cpu.rank_strassen import rank_strassen
    from tilewright.search.cpu.rank_strassen_half import rank_strassen_half
    from tilewright.search.cpu.rank_winograd import rank_winograd

    group, machine, threads, top = question.group, question.machine, question.threads, question.top
    if question.growth:
        how = (group, machine, threads, top, question.max_rel_err, question.growth)
        found = rank_winograd(*how)
        if not SCHEMAS['strassen'].why_not(group):
            found += rank_strassen(*how)
        if not SCHEMAS['strassen_half'].why_not(group):
            found += rank_strassen_half(*how)
    elif question.front or question.every_size:
        found = rank(
            group, machine, threads, top, max_rel_err=question.max_rel_err, front=question.front,
            every_size=question.every_size,
        )  # fmt: skip
    elif question.algorithm in ALGORITHMS[2:]:
        found = choose_preferred(
            group, machine, threads, top, question.algorithm, question.max_rel_err
        )
    else:
        found = choose(group, machine, threads, top, question.algorithm, question.max_rel_err)
    return tuple(choice_of(candidate, machine, threads) for candidate in found)


def choice_of(candidate: Any, machine: Machine, threads: int) -> Choice:
    """A candidate of a search or of a plan, as networks choose and store it."""
    from tilewright.model.cpu.prediction import bound_times

    said = candidate.prediction
    bounds = bound_times(said.flops_done, said.moved, machine, threads)
    return Choice(candidate.schedule, said.seconds, max(bounds.values()), said.limit)
