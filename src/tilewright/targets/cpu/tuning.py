"""Kernels timed where they run: inside the network, all distinct groups at once.

Goes in: a program and a few choices for each of its groups. Comes out: the fastest of each.

A kernel that is timed alone, again and again, finds its weights in the caches, which in a network
it seldom does. So variant number v of the *network* has choice number v of every group, and the
executor takes the time of every step: some calls of each variant tell all groups apart. Variants
take turns, so that a change of clock or load meets all alike. Before that, every kernel is compared
with the reference of its group in a process that may crash (`runtime/worker.py`).
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import CheckError
from tilewright.graph.memory import plan
from tilewright.graph.program import Program
from tilewright.knobs import debug
from tilewright.machine.machine import Machine
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.runtime.cpu.loaded import Compiled
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.measure import Progress, conditions, moved
from tilewright.runtime.network_arrays import example
from tilewright.runtime.worker import Worker
from tilewright.schedule.choice import Choice
from tilewright.store import tuned
from tilewright.targets.cpu.choose import choice_of, is_legal
from tilewright.targets.cpu.host import tuned_on
from tilewright.targets.cpu.kernels import Report, build_each, distinct
from tilewright.targets.fleet import best_of, fleet_at, own_kind, plans
from tilewright.targets.target import Wanted

if TYPE_CHECKING:
    from tilewright.runtime.fleet import Fleet

ROUNDS = 3
CALLS = 6
WARM_UP = 2
# A later choice has to be better than the model's own by more than noise.
MARGIN = 0.99


@dataclass(slots=True)
class Trial:
    """A choice of one group, its kernel, and a time in milliseconds for each round."""

    choice: Choice
    kernel: Compiled
    samples_ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.samples_ms)


def measure_in_place(
    program: Program,
    chosen: Mapping[str, Sequence[Choice]],
    machine: Machine,
    threads: int,
    max_rel_err: float,
    report: Report | None = None,
    algorithm: str = 'auto',
    fleet: str | Fleet | None = None,
) -> dict[str, Choice]:
    """The fastest choice of every group; what was tuned before, alone or in another network, is not
    measured again. On a fleet each group is timed alone, since its devices have not the network.
    """
    groups = distinct(program)
    where = tuned_on(machine, threads, max_rel_err, algorithm)
    best = {digest: found[0] for digest, found in chosen.items() if len(found) == 1}
    for digest in chosen.keys() - best.keys():
        kept = tuned.find(groups[digest], where, len(chosen[digest]))
        if kept is not None and is_legal(groups[digest], kept.schedule):
            best[digest] = kept
    rest = {digest: found for digest, found in chosen.items() if digest not in best}
    if not rest:
        return best
    if fleet is not None:
        asked = Wanted(machine, threads=threads, algorithm=algorithm, max_rel_err=max_rel_err)
        return best | measure_on_fleet(fleet_at(fleet, 'cpu'), groups, rest, asked, report)
    trials = sound({digest: (groups[digest], found) for digest, found in rest.items()},
                   max_rel_err, report)  # fmt: skip
    fixed = build_each([(groups[digest], choice) for digest, choice in best.items()])
    time_variants(program, dict(zip(best, fixed, strict=True)), trials, threads, report)
    for digest, found in trials.items():
        first = found[0]
        fastest = min(found, key=lambda trial: trial.median_ms)
        winner = fastest if fastest.median_ms < MARGIN * first.median_ms else first
        best[digest] = winner.choice
        tuned.remember(groups[digest], where, winner.choice, len(chosen[digest]))
        for trial in found:
            mark = '*' if trial is winner else ' '
            debug(2, f'{mark} {groups[digest].label} {trial.choice.schedule.digest} '
                     f'{trial.choice.schedule.schema}: {trial.median_ms:.3f} ms, predicted '
                     f'{1e3 * trial.choice.predicted_s:.3f}')  # fmt: skip
    return best


def measure_on_fleet(
    fleet: Fleet, groups: Mapping[str, Group], chosen: Mapping[str, Sequence[Choice]],
    asked: Wanted, report: Report | None,
) -> dict[str, Choice]:  # fmt: skip
    """The fastest choice of every group, those with the same core measured once."""
    cores: dict[str, list[str]] = {}
    for digest in chosen:
        cores.setdefault(core(groups[digest]).digest, []).append(digest)
    pieces = {
        name: (groups[alike[0]], replace(asked, chosen=tuple(chosen[alike[0]])))
        for name, alike in cores.items()
    }
    best: dict[str, Choice] = {}
    for name, made in plans(fleet, own_kind(fleet), pieces, progress=report):
        fastest = choice_of(best_of(made), made.machine, made.threads)
        for digest in cores[name]:
            fits = is_legal(groups[digest], fastest.schedule)
            best[digest] = fastest if fits else chosen[digest][0]
    return best


def sound(
    wanted: Mapping[str, tuple[Group, Sequence[Choice]]],
    max_rel_err: float,
    report: Report | None = None,
) -> dict[str, list[Trial]]:
    """The choices whose kernels can be built and compute their group's reference."""
    pairs = [
        (digest, group, choice)
        for digest, (group, found) in wanted.items()
        for choice in found
        if is_legal(group, choice.schedule)
    ]
    built = build_each([(group, choice) for _, group, choice in pairs], report)
    trials: dict[str, list[Trial]] = {digest: [] for digest in wanted}
    troubles: dict[str, str] = {}
    with Worker() as worker:
        for done, ((digest, group, choice), kernel) in enumerate(zip(pairs, built, strict=True), 1):
            answer = worker.check(group, kernel.library)
            if answer.ok and (answer.max_rel_err or 0.0) <= max_rel_err:
                trials[digest].append(Trial(choice, kernel))
            else:
                troubles[digest] = answer.message or f'its error is {answer.max_rel_err:.1e}'
                debug(1, f'{group.label} {choice.schedule.digest} is left out: {troubles[digest]}')
            if report is not None:
                report(Progress('check', group.label, done, len(pairs), 0.0, None))
    for digest, found in trials.items():
        if not found:
            raise CheckError(f'no kernel for {wanted[digest][0].label} works: {troubles[digest]}')
    return trials


def time_variants(
    program: Program,
    fixed: Mapping[str, Compiled],
    trials: Mapping[str, list[Trial]],
    threads: int,
    report: Report | None = None,
) -> None:
    """Add a time to every trial in every round; the time is that of all tasks of its group."""
    memory = plan(program)
    inputs = {name: example(program.values[name]) for name in program.inputs}
    variants = max(map(len, trials.values()))
    seen = [conditions()]
    for turn in range(ROUNDS):
        for number in range(variants):
            taken = {digest: found[number % len(found)] for digest, found in trials.items()}
            kernels = {**fixed, **{digest: trial.kernel for digest, trial in taken.items()}}
            network = Network(program, memory, kernels, threads)
            stamps = network.stamps(inputs, WARM_UP + CALLS)[WARM_UP:]
            seconds = np.median(np.diff(stamps, axis=1), axis=0)
            totals: dict[str, float] = {}
            for task, spent in zip(network.tasks, seconds, strict=True):
                totals[task.digest] = totals.get(task.digest, 0.0) + 1e3 * float(spent)
            for digest, trial in taken.items():
                trial.samples_ms.append(totals[digest])
            if report is not None:
                done = turn * variants + number + 1
                total = sum(totals.values())
                report(Progress('time', program.name, done, ROUNDS * variants, 0.0, total))
        seen.append(conditions())
    trouble = moved(seen, threads)
    if trouble:
        warnings.warn(f'{trouble}; the choice of kernels may not be the best', stacklevel=4)
