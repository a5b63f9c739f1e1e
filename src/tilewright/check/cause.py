"""What is to blame for results that differ: a pass, a kernel, a memory plan, an order, a reading.

Goes in: a network with the program that it runs, the program of the model with no pass, and inputs
on which it goes wrong. Comes out: a `Cause`, or None where everything does what it should and the
network merely magnifies the rounding of its kernels.

    pass      in float64 the program differs from the model's own: passes are added one by one, and
              the first after which it differs is named
    kernel    tasks run one at a time. What a task wrote is compared with the reference of its
              group, in float64, on the very data that it read: no error of an earlier task is in
              it, and one kernel's tolerance is enough
    memory    a value that is still to be read changes while a task runs that does not write it
    order     each task is right when they run one after the other, and the recorded call is not
    reading   in float64 the model, as it was read, differs from what others compute for it
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.check.difference import (
    Arrays,
    Difference,
    difference,
    explained,
    kernel_tolerance,
)
from tilewright.check.expected import Expected, rounded
from tilewright.check.follow import Follower, Overwritten
from tilewright.errors import ModelError
from tilewright.graph.evaluate import evaluate, evaluate_each
from tilewright.graph.lowering.result import part_written
from tilewright.graph.program import Program, Task
from tilewright.ops.reference import reference
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.verify import HALF_SUMS

TASK_TRIES, WHOLE_TRIES = 16, 8


@dataclass(frozen=True)
class Subject:
    """A network, and what it was made from.

    program  what it runs, its tasks in the order in which they do
    plain    the model, lowered with no pass; None where only the program is known
    passes   those that made one of the other, in their order
    until    the program that the first few of them make
    inside   what others compute for values of the model between its inputs and results, by name;
             for those that they know
    """

    network: Network
    program: Program
    plain: Program | None = None
    passes: tuple[str, ...] = ()
    until: Callable[[Sequence[str]], Program] | None = None
    max_rel_err: float = DEFAULT_LIMIT
    inside: Callable[[Arrays, Sequence[str]], Arrays] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.network, GpuNetwork):
            told, run = ([t.name for t in s] for s in (self.program.tasks, self.network.gpu_tasks))
            if told != run:
                raise ModelError(
                    f'{self.network.name} runs its tasks in another order than the program that it '
                    f'is checked by; give that one by levels (targets/gpu/place.py)'
                )


@dataclass(frozen=True, slots=True)
class Cause:
    """kind: see above; name: of the pass, the task, or the result; task: '' where none is known."""

    kind: str
    name: str
    sentence: str
    task: str = ''


def cause_of(
    subject: Subject, arrays: Arrays, got: Arrays, expected: Expected, limit: float
) -> Cause | None:
    """Who is to blame that `got` is further from `expected` than `limit`."""
    found = wrong_pass(subject, arrays, limit)
    if found is None:
        found, alone = wrong_task(subject, arrays)
        found = found or _wrong_order(alone, got, limit)
    return found or _wrong_reading(subject, arrays, expected, limit)


def wrong_pass(subject: Subject, arrays: Arrays, limit: float) -> Cause | None:
    """The first pass after which the program computes something else."""
    plain, until = subject.plain, subject.until
    if plain is None or until is None:
        return None
    right = evaluate(plain, arrays, exact=True)
    if not _apart(evaluate(subject.program, arrays, exact=True), right, limit):
        return None
    before = plain
    for count, name in enumerate(subject.passes, 1):
        now = until(subject.passes[:count])
        found = _apart(evaluate(now, arrays, exact=True), right, limit)
        if found and not _hangs(subject, plain, arrays, now, limit):
            task = _first_changed(before, now, arrays, limit)
            return Cause(
                'pass', name,
                f'the pass {name!r} changes what the network computes: {found.name!r} differs'
                f'{found.amount}, {found.worst}{_first(task)}; passes= without it gives the right '
                f'results',
                task.name if task else '',
            )  # fmt: skip
        before = now
    return None


def _first(task: Task | None) -> str:
    if task is None:
        return ''
    return f' (first in the task {task.name!r}, {task.group.label}, of {", ".join(task.origin)})'


def _hangs(
    subject: Subject, plain: Program, arrays: Arrays, now: Program, limit: float
) -> bool:  # fmt: skip
    """Passes round constants anew, which may turn the scale in an index."""
    return explained(
        lambda inputs: evaluate(plain, inputs, exact=True), arrays,
        evaluate(now, arrays, exact=True), limit, subject.max_rel_err, WHOLE_TRIES, whole=True,
    )  # fmt: skip


def _apart(got: Arrays, want: Arrays, limit: float) -> Difference | None:
    """The first result that is too far from the right one."""
    for name, array in got.items():
        found = difference(name, array, want[name].astype(array.dtype))
        if not found.error <= limit:
            return found
    return None


def _first_changed(
    before: Program, now: Program, arrays: Arrays, limit: float
) -> Task | None:  # fmt: skip
    """The first task whose result both programs have, with different values."""
    # Arrays are those of the results, so that parts which later tasks write are in them too.
    known = {task.result: array for task, array in list(evaluate_each(before, arrays, exact=True))}
    for task, array in list(evaluate_each(now, arrays, exact=True)):
        want = known.get(task.result)
        if want is None or want.shape != array.shape or want.dtype != array.dtype:
            continue
        if not difference(task.result, array, want).error <= limit:
            return task
    return None


def wrong_task(subject: Subject, arrays: Arrays) -> tuple[Cause | None, dict[str, np.ndarray]]:
    """The first task that is wrong, and the results of tasks that ran one after the other."""
    program, network = subject.program, subject.network
    follower = Follower(program, network.places)
    with contextlib.closing(network.step_by_step(arrays)) as steps:
        follower.begin(next(steps))
        for number, task in enumerate(program.tasks):
            operands = follower.operands(task)
            read = next(steps)
            got = follower.took(number, read)
            broken = follower.overwritten(number, read)
            if broken is not None:
                return _memory(subject, number, broken), {}
            found = _wrong_kernel(subject, number, operands, got)
            if found is not None:
                return found, {}
        return None, {name: follower.value(value) for name, value in program.outputs}


def _wrong_kernel(
    subject: Subject, number: int, operands: Mapping[str, np.ndarray], got: np.ndarray
) -> Cause | None:
    task = subject.program.tasks[number]
    where = part_written(task.group)
    limit = kernel_tolerance([t.dtype for t in task.group.tensors], subject.max_rel_err)
    if task.group.half == 'f16' and not isinstance(subject.network, GpuNetwork):
        limit += HALF_SUMS

    def exact(inputs: Arrays) -> Arrays:
        return {task.result: np.asarray(reference(task.group, inputs)[where])}

    mine = {task.result: np.asarray(got[where])}
    with np.errstate(over='ignore', invalid='ignore'):
        want = {name: a.astype(got.dtype) for name, a in exact(operands).items()}
    found = _apart(mine, want, limit)
    if found is None:
        return None
    if explained(exact, operands, mine, limit, subject.max_rel_err, TASK_TRIES):
        return None
    return Cause(
        'kernel', task.name,
        f'{_task_said(subject, number)} is the first whose result is wrong: {task.result!r} '
        f'differs from its reference{found.amount}, {found.worst}; the tolerance of one kernel '
        f'is {limit:g}',
        task.name,
    )  # fmt: skip


def _memory(subject: Subject, number: int, broken: Overwritten) -> Cause:
    tasks = subject.program.tasks
    reader = 'a caller gets' if broken.reader is None else f'{tasks[broken.reader].name!r} reads'
    why = (
        'the memory plan gives both the same bytes'
        if broken.planned
        else 'its kernel writes outside its result, or its scratch memory lies there'
    )
    return Cause(
        'memory', tasks[number].name,
        f'{_task_said(subject, number)} writes over {broken.value!r}, which {reader} later: {why}',
        tasks[number if broken.reader is None else broken.reader].name,
    )  # fmt: skip


def _task_said(subject: Subject, number: int) -> str:
    """'the task 'conv1' (ic3.. , nodes conv1 relu1, schema tiled, schedule 0123)'"""
    task, network = subject.program.tasks[number], subject.network
    kernel = (
        network.gpu_tasks[number]
        if isinstance(network, GpuNetwork)
        else network.kernels[task.group.digest]
    )
    schedule = kernel.schedule
    nodes = f', of {", ".join(task.origin)}' if task.origin else ''
    return (
        f'the task {task.name!r} ({task.group.label}{nodes}, schema {schedule.schema}, schedule '
        f'{schedule.digest})'
    )


def _wrong_order(alone: Arrays, got: Arrays, limit: float) -> Cause | None:
    found = _apart(got, alone, limit) if alone else None
    if found is None:
        return None
    return Cause(
        'order', found.name,
        f'every task is right when they run one after the other, and {found.name!r} differs'
        f'{found.amount} in a whole call, {found.worst}: tasks that depend on each other run side '
        f'by side',
    )  # fmt: skip


def _wrong_reading(
    subject: Subject, arrays: Arrays, expected: Expected, limit: float
) -> Cause | None:
    program = subject.plain or subject.program
    exact = evaluate(program, arrays, exact=True)
    found = _apart({n: rounded(program, n, a) for n, a in exact.items()}, expected.arrays, limit)
    if found is None:
        return None
    theirs = {name: np.asarray(expected.arrays[name]) for name in exact}
    if explained(
        lambda inputs: evaluate(program, inputs, exact=True), arrays, theirs, limit,
        subject.max_rel_err, WHOLE_TRIES, whole=True,
    ):  # fmt: skip
        return None
    what = 'the model, as it was read,' if subject.plain else 'the program that the file holds'
    task = _first_misread(subject, arrays, limit)
    return Cause(
        'reading', found.name,
        f'{what} computes something else than {expected.by}, without any pass or kernel: '
        f'{found.name!r} differs{found.amount}, {found.worst}{_first(task)}',
        task.name if task else '',
    )  # fmt: skip


def _first_misread(subject: Subject, arrays: Arrays, limit: float) -> Task | None:
    """The first task of the model, as it was read, that computes something else than others do."""
    plain, inside = subject.plain, subject.inside
    if plain is None or inside is None:
        return None
    known = inside(arrays, [task.result for task in plain.tasks])
    for task, array in list(evaluate_each(plain, arrays, exact=True)):
        want = known.get(task.result)
        if want is None or want.shape != array.shape:
            continue
        with np.errstate(over='ignore', invalid='ignore'):
            mine = array.astype(want.dtype)
        if not difference(task.result, mine, want).error <= limit:
            return task
    return None
