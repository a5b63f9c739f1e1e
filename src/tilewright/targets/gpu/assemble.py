"""The stages of a network on a GPU, behind the passes: choose, measure if asked, generate, bind.

[Program]         -> choose_all -> [Choice of each group]   by the model
[Choice]       -> measured   -> [Choice of each group]   where tune is 'measure'
[Group, Choice]   -> generate   -> [Module]                    kernels.gpu
[Module, Program] -> bind       -> [GpuNetwork]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.errors import InputError
from tilewright.graph.levels import by_levels, successors
from tilewright.graph.program import Program, Task
from tilewright.graph.recompute import within
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.module import Module
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.estimates import TIME
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.measure import Progress
from tilewright.schedule.choice import Choice
from tilewright.targets.gpu.bind import Work, bind
from tilewright.targets.gpu.choose import choose_all, is_legal, search
from tilewright.targets.gpu.place import is_aligned, place
from tilewright.targets.gpu.tuning import How, Place, fastest

if TYPE_CHECKING:
    from tilewright.runtime.fleet import Fleet

Report = Callable[[Progress], object]
Modules = dict[tuple[str, str], Module]  # by the digests of group and schedule


def bound(
    program: Program,
    best: Mapping[str, Choice],
    device: Device,
    max_rel_err: float,
    *,
    parallel: bool = True,
    progress: Report | None = None,
) -> GpuNetwork:
    """[Program, choice of each group] -> [GpuNetwork]: generated, compiled, bound to memory.

    Memory is shared by level, and passes leave tasks in another order: fusion moves a task to where
    its consumer ran.
    """
    program = by_levels(program, late=True)
    works = works_of(program, best, device.machine, max_rel_err)
    return bind(program, works, device, parallel=parallel, report=_building(progress))


def within_arena(
    program: Program, best: Mapping[str, Choice], machine: GpuMachine, limit: int,
    max_rel_err: float,
) -> Program:  # fmt: skip
    """[Program, choice of each group] -> [Program] whose arena takes at most `limit` bytes.

    What is computed again is so just before it is read: it waits for another task, or, where that
    is not enough, the order of all tasks is meant.
    """
    replaced = successors(program)
    ordered = by_levels(program, late=True)
    modules: Modules = {}  # programs of one search have most of their kernels in common

    def measure(made: Program) -> int:
        return placed_bytes(made, best, machine, max_rel_err, modules)

    if measure(ordered) <= limit:
        return program

    def cost(group: Group) -> float:
        return best[group.digest].predicted_s

    try:
        return within(ordered, limit, cost, measure, replaced)
    except InputError:  # where tasks follow each other, less lives at a time
        return within(replace(ordered, in_order=True), limit, cost, measure, replaced)


def placed_bytes(
    program: Program, best: Mapping[str, Choice], machine: GpuMachine, max_rel_err: float,
    known: Modules | None = None,
) -> int:  # fmt: skip
    """Bytes of the arena: values, state, batch and what kernels work in."""
    program = by_levels(program, late=True)
    works = works_of(program, best, machine, max_rel_err, known)
    return place(program, [work.module for work in works]).arena_bytes


def chosen_by_model(
    groups: Mapping[str, Group],
    machine: GpuMachine,
    top: int,
    max_rel_err: float,
    progress: Report | None = None,
    looked: int | None = None,
    algorithm: str = 'auto',
    estimate: str = TIME,
) -> dict[str, tuple[Choice, ...]]:
    """The choices for every distinct group, by its digest, the best first, out of so many."""
    begin = time.perf_counter()

    def report(group: Group, done: int, total: int) -> None:
        if progress is not None:
            left = (time.perf_counter() - begin) / done * (total - done)
            progress(Progress('search', group.label, done, total, left, None))

    found = choose_all(
        list(groups.values()), machine, top, max_rel_err, report, trials=looked,
        algorithm=algorithm, estimate=estimate,
    )  # fmt: skip
    return dict(zip(groups, found, strict=True))


def measured(
    groups: Mapping[str, Group],
    chosen: Mapping[str, Sequence[Choice]],
    place: Place,
    trials: int,
    max_rel_err: float,
    progress: Report | None = None,
    how: How = How(),  # noqa: B008 (it is a value)
    fleet: str | Fleet | None = None,
) -> dict[str, Choice]:
    """The fastest choice of every group; what is behind a sum of products does not decide it.

    A schedule that cannot compute all of a group leaves it to the model's choice.
    """
    cores = {digest: core(group, front=True) for digest, group in groups.items()}
    distinct = {one.digest: one for one in cores.values()}
    first = {one.digest: chosen[digest] for digest, one in reversed(cores.items())}

    def report(group: Group, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress('measure', group.label, done, total, 0.0, None))

    found = fastest(distinct, first, place, trials, max_rel_err, report, how, fleet)
    return {
        digest: best
        if is_legal(groups[digest], (best := found[one.digest]).schedule, place.machine)
        else chosen[digest][0]
        for digest, one in cores.items()
    }


def works_of(
    program: Program, best: Mapping[str, Choice], machine: GpuMachine, max_rel_err: float,
    known: Modules | None = None,
) -> list[Work]:  # fmt: skip
    """Every task with its schedule and kernels; equal groups share them, and those of `known`.

    Kernels move several elements at once, which a value inside another one may be in the way of:
    the general schema, which does not, computes such tasks.
    """
    modules = {} if known is None else known
    plain: dict[str, Choice] = {}

    def choice_of(task: Task) -> Choice:
        digest = task.group.digest
        if is_aligned(program, (task.result, *task.operands.values())):
            return best[digest]
        if digest not in plain:
            found = search(task.group, machine, 1, max_rel_err, products=False)
            plain[digest] = found[0]
        return plain[digest]

    works = []
    for task in program.tasks:
        choice = choice_of(task)
        key = task.group.digest, choice.schedule.digest
        if key not in modules:
            modules[key] = generate(task.group, choice.schedule)
        works.append(
            Work(
                task, choice.schedule, modules[key], choice.predicted_s, choice.bound_s,
                choice.limit,
            )
        )  # fmt: skip
    return works


def _building(progress: Report | None) -> Any:
    def report(name: str, done: int, total: int) -> None:
        if progress is not None:
            progress(Progress('build', name, done, total, 0.0, None))

    return report
