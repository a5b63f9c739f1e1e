"""`tilewright explain NETWORK`: every group of a network, its time, its bound and its reasons."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tilewright.cli.compile import model_of, refuse_for_saved
from tilewright.cli.optimize import check_early, machine_of
from tilewright.cli.output import Bar, Output
from tilewright.errors import InputError, ScheduleError
from tilewright.graph.passes import passes_of
from tilewright.graph.program import Program
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.network.compile import prepare
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.report.network import Kind, NetworkReport, network_report
from tilewright.schedule.choice import Choice
from tilewright.search.fusion import Tried
from tilewright.store import network_file
from tilewright.store.network_file import Saved
from tilewright.targets.chained import Record, passes_at
from tilewright.targets.cpu.host import thread_count
from tilewright.targets.cpu.kernels import distinct
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.plan import Candidate, Plan
from tilewright.targets.site import Asked

CALLS = 20


def run(
    models: Sequence[str],
    out: Output,
    *,
    measure: bool,
    max_rel_err: float,
    machine: str | None,
    threads: int | None,
    shapes: Mapping[str, Sequence[int]],
    seed: int | None,
    fuse: str | None = None,
) -> int:
    """Explain every network; comes out: the exit code."""
    check_early(machine, threads, max_rel_err=max_rel_err, seed=seed)
    target = machine_of(machine, False, out)
    if measure and (machine is not None or target.isa not in host_isas()):
        raise InputError(f'--measure times this host; leave out --machine {machine}')
    count = thread_count(threads, target)
    found = []
    with Bar(len(models)) as bar:
        for number, model in enumerate(models):
            bar.begin(model)
            tried: list[Tried] = []
            saved, choices = _scheduled(
                model, target, count, max_rel_err, shapes, bar, fuse, tried.extend
            )  # fmt: skip
            report = _report(saved, choices, measure, bar, tried)
            bar.finish()
            with bar.paused():
                out.say(('\n' if number else '') + str(report))
            found.append(report.to_json())
    out.write(
        {'spec': ','.join(models), 'seed': seed, 'measured': measure, 'machine': target.to_json(),
         'networks': found}
    )  # fmt: skip
    return 0


def _scheduled(
    model: str,
    machine: Machine,
    threads: int,
    max_rel_err: float,
    shapes: Mapping[str, Sequence[int]],
    bar: Bar,
    fuse: str | None,
    record: Record,
) -> tuple[Saved, dict[str, tuple[Choice, ...]]]:
    """What would be compiled, and the choices for each group; a .tw file has one for each."""
    site, asked = CpuSite(machine, threads), Asked(max_rel_err=max_rel_err)
    if model.endswith('.tw'):
        refuse_for_saved(model, {'--shape': shapes, '--fuse': fuse})
        saved = network_file.read(model)
        if (saved.machine.isa, saved.threads) == (machine.isa, threads):
            saved = replace(saved, machine=machine)
            return saved, {digest: (choice,) for digest, choice in saved.choices.items()}
        program = saved.program
    else:
        given = {name: tuple(shape) for name, shape in shapes.items()}
        passes = passes_at(site, asked, record)
        program = prepare(model_of(model), given, passes_of(None, fuse), site.cost, passes)
    chosen = site.choose(program, asked, bar.report)
    best = {digest: found[0] for digest, found in chosen.items()}
    return Saved(program, best, machine, threads, float(max_rel_err)), chosen


def _report(
    saved: Saved,
    choices: Mapping[str, tuple[Choice, ...]],
    measure: bool,
    bar: Bar,
    tried: Sequence[Tried],
) -> NetworkReport:
    program, times, total = saved.program, {}, None
    if measure:
        site = CpuSite(saved.machine, saved.threads)
        made = site.bind(program, saved.choices, saved.max_rel_err, bar.report)
        profile = made.profile(calls=CALLS)
        times = {task.name: task.time_ms for task in profile.tasks}
        total = profile.total_ms
    kinds = [
        Kind(
            _plan(group, choices[digest], saved), group.label, names,
            sum(times[name] for name in names) if measure else None,
        )
        for (digest, group), names in zip(
            distinct(program).items(), _tasks(program).values(), strict=True
        )
    ]  # fmt: skip
    name = Path(program.name).name
    return network_report(name, saved.machine, saved.threads, kinds, total, tried)


def _tasks(program: Program) -> dict[str, tuple[str, ...]]:
    """digest -> names of the tasks that compute it, in the order of `distinct`."""
    found: defaultdict[str, tuple[str, ...]] = defaultdict(tuple)
    for task in program.tasks:
        found[task.group.digest] += (task.name,)
    return dict(found)


def _plan(group: Group, choices: Sequence[Choice], saved: Saved) -> Plan:
    """The plan of what decides a group's schedule; what is around it hardly takes time."""
    for decisive in (core(group), group):
        try:
            candidates = tuple(
                Candidate(choice.schedule, predict(decisive, choice.schedule, saved.machine))
                for choice in choices
            )
        except (ScheduleError, KeyError, StopIteration):
            continue
        return Plan(
            decisive, saved.machine, saved.threads, candidates, max_rel_err=saved.max_rel_err
        )
    raise ScheduleError(f'{group.label}: its schedule cannot be predicted; compile it again')
