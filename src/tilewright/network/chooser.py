"""Schedules for many groups at once: each distinct problem once, from the store or from the search.

Goes in: groups, a machine, a thread count. Comes out: for each group its best choices, best
predicted first. Nothing is timed, and the answer is the same every time.

What is around a convolution does not decide its schedule: with a bias, an activation or a residual
behind it, or a normalisation before it, it is searched once, as `core`. The exception is what makes
errors of Winograd count for more (ops/epilogue_error.py), such as `tanh`.

What no answer is kept for is searched by child processes, one for each core of this host, because a
search takes seconds and uses one thread:

    JSON lines: a question -> {"choices": [...]} or {"error": "..."}
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tilewright import knobs
from tilewright.errors import InputError, MissingError, ScheduleError, TilewrightError
from tilewright.kernels.cpu.generate import generate
from tilewright.machine.machine import Machine
from tilewright.network.child import Child
from tilewright.ops import epilogue_error
from tilewright.ops.front import without_front
from tilewright.ops.group import Group
from tilewright.ops.winograd import applies
from tilewright.ops.winograd_error import UNIT
from tilewright.runtime.worker import die_with
from tilewright.schedule.schedule import Schedule
from tilewright.store import built, choices
from tilewright.store.choices import Choice

Report = Callable[[Group, int, int], object]
# 3x3: F(4,3) has 4 times the weights, F(3,3) 2.8 times, F(2,3) 1.8 times
GROWTHS = (4.2, 3.0, 2.0)
_CHILD = 'import sys; from tilewright.network.chooser import main; main(sys.argv[1:])'


@dataclass(frozen=True, slots=True)
class Question:
    """What decides the choices for one group.

    `growth`, unless it is 0, asks for Winograd kernels alone, with at most so many times the
    weights that the group has; there may be none. `algorithm` is 'direct', 'auto', or 'winograd':
    that wherever there is a kernel of it, and the direct algorithm elsewhere.
    """

    group: Group
    machine: Machine
    threads: int
    top: int
    max_rel_err: float
    growth: float = 0.0
    algorithm: str = 'auto'

    def to_json(self) -> dict:
        return {
            'group': self.group.to_json(),
            'machine': self.machine.to_json(),
            'threads': self.threads,
            'top': self.top,
            'max_rel_err': self.max_rel_err,
            **({'growth': self.growth} if self.growth else {}),
            **({'algorithm': self.algorithm} if self.algorithm != 'auto' else {}),
        }

    @property
    def key(self) -> str:
        return choices.key_of(self.to_json() | {'group': self.group.digest})


def core(group: Group) -> Group:
    """What decides the schedule of a group: a sum of products without what is around it."""
    group = without_front(group)
    main = group.main
    if not main.is_product_sum or group.stages[0] is not main or len(group.stages) == 1:
        return group
    if _grows(group):
        return group
    touched = {access.tensor for access in main.reads}
    result = replace(group.tensor(main.write.tensor), name='Out', role='output')
    if 'Out' in touched:
        return group
    tensors = (*(t for t in group.tensors if t.name in touched), result)
    stage = replace(main, write=replace(main.write, tensor='Out'))
    label = group.label.split('+', 1)[0]
    return Group(label, tensors, (stage,))


def _grows(group: Group) -> bool:
    """Whether errors of Winograd count for more behind the epilogue, so that it decides as well."""
    return any(not applies(group, m) for m in ((2, 2), (1, 2), (2, 1))) and (
        epilogue_error.growth(group, UNIT) > epilogue_error.GENTLE
    )


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
    odd = [asked(group) for group, answer in zip(groups, legal, strict=True) if not answer]
    found |= _answers(odd, report)
    whole = {question.group.digest: found[question.key] for question in odd}
    return [answer or whole[group.digest] for group, answer in zip(groups, legal, strict=True)]


def choose_frugal(
    groups: Sequence[Group], machine: Machine, threads: int, max_rel_err: float
) -> list[tuple[Choice, ...]]:
    """For each group further Winograd kernels, with fewer weights than the fastest may have."""
    questions = [
        [Question(core(g), machine, threads, 1, max_rel_err, growth) for growth in GROWTHS]
        for g in groups
    ]
    found = _answers([q for each in questions for q in each], None)
    return [
        tuple(dict.fromkeys(choice for q in each for choice in found[q.key])) for each in questions
    ]


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
        kept = _recalled(key)
        if kept is not None:
            found[key] = kept
        else:
            open_ones[key] = question
    # The longest first, so that no child works alone at the end.
    order = sorted(open_ones, key=lambda key: -open_ones[key].group.flops)
    for done, (key, answer) in enumerate(_searched({k: open_ones[k] for k in order}), 1):
        choices.keep(key, [choice.to_json() for choice in answer])
        found[key] = answer
        if report is not None:
            report(open_ones[key].group, done, len(order))
    return found


def _recalled(key: str) -> tuple[Choice, ...] | None:
    kept = choices.recall(key)
    try:
        return None if kept is None else tuple(Choice.from_json(item) for item in kept)
    except (TilewrightError, TypeError):
        return None


def _searched(
    questions: Mapping[str, Question],
) -> Iterator[tuple[str, tuple[Choice, ...]]]:
    """(key, choices) of every question, as they are found."""
    slow = {key: q for key, q in questions.items() if q.group.main.is_product_sum}
    for key, question in questions.items():
        if key not in slow:
            yield key, search(question)
    count = min(usable_cores(), len(slow))
    if count <= 1:
        for key, question in slow.items():
            yield key, search(question)
        return
    children = [_Child() for _ in range(count)]
    try:
        with ThreadPoolExecutor(count) as pool:
            free = list(children)
            lock = threading.Lock()

            def ask(item: tuple[str, Question]) -> tuple[str, tuple[Choice, ...]]:
                with lock:
                    child = free.pop()
                try:
                    return item[0], child.ask(item[1])
                finally:
                    with lock:
                        free.append(child)

            try:
                yield from pool.map(ask, slow.items())
            finally:
                pool.shutdown(cancel_futures=True, wait=False)
                for child in children:
                    child.end()
    finally:
        for child in children:
            child.end()


def search(question: Question) -> tuple[Choice, ...]:
    """The search itself, in this process."""
    from tilewright.model.cpu.prediction import bound_times
    from tilewright.search.cpu.choose import choose, choose_preferred
    from tilewright.search.cpu.rank_winograd import rank_winograd

    group, machine, threads, top = question.group, question.machine, question.threads, question.top
    if question.growth:
        found = rank_winograd(group, machine, threads, top, question.max_rel_err, question.growth)
    elif question.algorithm == 'winograd':
        found = choose_preferred(group, machine, threads, top, question.max_rel_err)
    else:
        found = choose(group, machine, threads, top, question.algorithm, question.max_rel_err)
    made = []
    for candidate in found:
        said = candidate.prediction
        bounds = bound_times(said.flops_done, said.moved, machine, threads)
        made.append(Choice(candidate.schedule, said.seconds, max(bounds.values()), said.limit))
    return tuple(made)


class _Child(Child):
    """The parent's end of one searching process."""

    def __init__(self) -> None:
        # The death signal follows the thread that starts the child, so only the main one sets it.
        guarded = threading.current_thread() is threading.main_thread()
        super().__init__(_CHILD, str(os.getpid() if guarded else 0))

    def ask(self, question: Question) -> tuple[Choice, ...]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(question.to_json()).encode() + b'\n')
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = b''
        if not line:
            raise MissingError(
                f'the process that searches a schedule for {question.group.label} ended with exit '
                f'code {self.process.wait()}; is there too little memory?'
            )
        answer = json.loads(line)
        if 'error' in answer:
            raise InputError(answer['error'])
        return tuple(Choice.from_json(item) for item in answer['choices'])


def usable_cores() -> int:
    """Cores that searches and compilations may use."""
    if jobs := knobs.get('jobs'):
        return jobs
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(words: Sequence[str]) -> None:
    """The child: answer questions, one a line, until there are no more."""
    die_with(int(words[0]))
    replies = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)  # what libraries print must not mix with replies
    for line in sys.stdin:
        data: dict[str, Any] = json.loads(line)
        try:
            question = Question(
                Group.from_json(data['group']), Machine.from_json(data['machine']),
                data['threads'], data['top'], data['max_rel_err'], data.get('growth', 0.0),
                data.get('algorithm', 'auto'),
            )  # fmt: skip
            reply: dict[str, Any] = {'choices': [c.to_json() for c in search(question)]}
        except TilewrightError as error:
            reply = {'error': str(error)}
        print(json.dumps(reply), file=replies, flush=True)
