"""`tilewright explain NETWORK`: every group of a network, its time, its bound and its reasons.

Goes in: models (names of the zoo, .onnx and .tw files) and the options. Comes out: what
explain.py prints and writes of each, on a CPU or on a known GPU that need not be there.
"""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cli.compile import model_of, read_shapes, refuse_for_saved
from tilewright.cli.explain import Explained, ExplainOptions
from tilewright.cli.optimize import check_early, machine_of
from tilewright.cli.output import Bar, Output
from tilewright.errors import InputError, ScheduleError
from tilewright.graph.passes import GPU_PASSES, passes_of
from tilewright.graph.program import Program
from tilewright.graph.ranges import find_ranges
from tilewright.kernels.gpu.schemas.library import said_of, why_not
from tilewright.kernels.gpu.schemas.library.calls import TITLES
from tilewright.machine.gpu import GpuMachine, known_gpu, known_gpus
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.network.compile import prepare, read
from tilewright.network.ranged import certificate_of, plan_ranges, reader_of
from tilewright.ops.core import core
from tilewright.ops.group import Group
from tilewright.report.dfg_picture import write_dfg
from tilewright.report.grid import Grid
from tilewright.report.network import Kind, NetworkReport, network_report, tried_lines
from tilewright.schedule.choice import Choice
from tilewright.search.fusion import Tried
from tilewright.search.gpu.moves import schedule_text
from tilewright.store import network_file, ranges_file
from tilewright.store.network_file import Saved
from tilewright.targets.chained import Record, passes_at, with_chains
from tilewright.targets.cpu.host import thread_count
from tilewright.targets.cpu.kernels import distinct
from tilewright.targets.cpu.ranged import at_point
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.gpu.assemble import chosen_by_model
from tilewright.targets.gpu.choose import prediction_of
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.gpu.price import GpuPrice
from tilewright.targets.gpu.site import KEPT
from tilewright.targets.plan import Candidate, Plan
from tilewright.targets.site import Asked

if TYPE_CHECKING:
    from tilewright.cli.report import ReportOptions

CALLS = 20


def on_cpu(models: Sequence[str], options: ExplainOptions, out: Output) -> Explained:
    """Networks on a CPU; --measure also times every task on this host."""
    check_early(
        options.machine, options.threads, max_rel_err=options.max_rel_err, seed=options.seed
    )
    machine = machine_of(options.machine, False, out)
    if options.measure and (options.machine is not None or machine.isa not in host_isas()):
        raise InputError(f'--measure times this host; leave out --machine {options.machine}')
    threads, shapes = thread_count(options.threads, machine), read_shapes(options.shapes)

    def explain(number: int, bar: Bar) -> tuple[str, dict]:
        tried: list[Tried] = []
        ranged = _ranged(models[number], machine, threads, options, shapes, bar)
        if ranged is not None:
            saved, certificate = ranged
            one = {digest: (choice,) for digest, choice in saved.choices.items()}
            report = _report(saved, one, options.measure, bar, tried)
            return f'{certificate}\n{report}', report.to_json() | {'ranges': certificate}
        saved, choices = _scheduled(
            models[number], machine, threads, options.max_rel_err, shapes, bar, options.fuse,
            tried.extend,
        )  # fmt: skip
        report = _report(saved, choices, options.measure, bar, tried)
        return str(report), report.to_json()

    return Explained(models, machine, explain)


def _ranged(
    model: str,
    machine: Machine,
    threads: int,
    options: ExplainOptions,
    shapes: Mapping[str, tuple[Any, ...]],
    bar: Bar,
) -> tuple[Saved, str] | None:
    """A network for ranges at its largest size, and what is certified of the others."""
    site = CpuSite(machine, threads)
    if model.endswith('.tw'):
        refuse_for_saved(model, {'--shape': shapes, '--fuse': options.fuse})
        held = ranges_file.read_any(model)
        if isinstance(held, Saved):
            return None
    else:
        ranges = find_ranges(shapes)
        if ranges is None:
            return None
        reader = reader_of(model_of(model, ranged=True), read)
        asked = Asked(max_rel_err=options.max_rel_err)
        held = plan_ranges(
            reader, ranges, site, asked, passes_of(None, options.fuse), bar.report
        )  # fmt: skip
    program, best = at_point(held, held.ranges.largest, machine)
    text = f'{held.ranges}, below at the largest size: {certificate_of(held)}'
    return Saved(program, best, machine, threads, held.max_rel_err), text


def _scheduled(
    model: str,
    machine: Machine,
    threads: int,
    max_rel_err: float,
    shapes: Mapping[str, tuple[Any, ...]],
    bar: Bar,
    fuse: str | None,
    record: Record,
) -> tuple[Saved, dict[str, tuple[Choice, ...]]]:
    """What would be compiled, and the choices for each group; a .tw file has one for each."""
    site, asked = CpuSite(machine, threads), Asked(max_rel_err=max_rel_err)
    if model.endswith('.tw'):
        saved = network_file.read(model)
        if (saved.machine.isa, saved.threads) == (machine.isa, threads):
            saved = replace(saved, machine=machine)
            return saved, {digest: (choice,) for digest, choice in saved.choices.items()}
        program = saved.program
    else:
        passes = passes_at(site, asked, record)
        program = prepare(model_of(model), shapes, passes_of(None, fuse), site.cost, passes)
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
    kinds, total = _kinds(saved, choices, measure, bar)
    name = Path(saved.program.name).name
    return network_report(name, saved.machine, saved.threads, kinds, total, tried)


def _kinds(
    saved: Saved, choices: Mapping[str, tuple[Choice, ...]], measure: bool, bar: Bar
) -> tuple[list[Kind], float | None]:
    """The distinct groups with their plans and, where they are to be measured, their times."""
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
    return kinds, total


@dataclass(frozen=True, slots=True)
class Planned:
    """A network on a machine: its program and the plan of each distinct group; `total_ms` of a
    call, None where it was not measured.
    """

    program: Program
    machine: Machine | GpuMachine
    threads: int
    kinds: Sequence[Kind]
    total_ms: float | None


def planned(model: str, options: ReportOptions, out: Output, bar: Bar) -> Planned:
    """[model] -> [Planned], on a CPU or on a known GPU, for `tilewright report`."""
    shapes = read_shapes(options.shapes)
    if options.machine in known_gpus():
        gpu = known_gpu(str(options.machine))
        if options.measure:
            raise InputError(f'--measure times this host; leave out --machine {options.machine}')
        program, chosen = _chosen_on_gpu(
            model, gpu, options.max_rel_err, shapes, bar, options.fuse, lambda _: None
        )
        tasks = _tasks(program)
        kinds = [
            Kind(_gpu_plan(group, chosen[digest], gpu), group.label, tasks[digest])
            for digest, group in distinct(program).items()
        ]
        return Planned(program, gpu, 0, kinds, None)
    check_early(options.machine, options.threads, max_rel_err=options.max_rel_err)
    machine = machine_of(options.machine, False, out)
    if options.measure and options.machine is not None:
        raise InputError(f'--measure times this host; leave out --machine {options.machine}')
    threads = thread_count(options.threads, machine)
    saved, choices = _scheduled(
        model, machine, threads, options.max_rel_err, shapes, bar, options.fuse, lambda _: None
    )
    kinds, total = _kinds(saved, choices, options.measure, bar)
    return Planned(saved.program, machine, threads, kinds, total)


def _gpu_plan(group: Group, choices: Sequence[Choice], machine: GpuMachine) -> Plan:
    candidates = tuple(
        Candidate(c.schedule, prediction_of(group, c.schedule, machine)) for c in choices
    )
    return Plan(group, machine, 0, candidates, target='cuda')


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


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A group of a network, and the tasks that compute it; times are of all of them together."""

    label: str
    tasks: tuple[str, ...]
    schedule: str
    predicted_us: float
    bound_us: float
    limit: str
    libraries: dict[str, str]  # what each can do of it, or why nothing
    able: tuple[str, ...]  # libraries that --libraries would try


def on_gpu(models: Sequence[str], options: ExplainOptions, out: Output) -> Explained:
    """Networks on a known GPU, by the model alone: `tilewright run --profile --target` measures."""
    given = {'measure': options.measure, 'threads': options.threads is not None}
    wrong = [f'--{name}' for name, there in given.items() if there]
    if wrong:
        raise InputError(
            f'{wrong[0]} means nothing with --machine {options.machine}, a GPU; leave it out'
        )
    machine, shapes = known_gpu(str(options.machine)), read_shapes(options.shapes)

    def explain(number: int, bar: Bar) -> tuple[str, dict]:
        model = models[number]
        tried: list[Tried] = []
        program, chosen = _chosen_on_gpu(
            model, machine, options.max_rel_err, shapes, bar, options.fuse, tried.extend
        )
        kinds = _gpu_kinds(program, chosen)
        said = {
            'name': model,
            'groups': [asdict(kind) for kind in kinds],
            'tried': [one.to_json() for one in tried],
        }
        lines = [_gpu_text(model, machine, kinds), *tried_lines(tried)]
        if options.dfg is not None:
            group = _group_of(program, kinds, options.group)
            write_dfg(group, machine, options.dfg, chosen[group.digest][0].schedule)
            said['dfg'] = {'file': str(options.dfg), 'group': group.label}
            lines.append(f'wrote the data-flow graph of {group.label} to {options.dfg}')
        return '\n'.join(lines), said

    return Explained(models, machine, explain)


def _chosen_on_gpu(
    model: str,
    machine: GpuMachine,
    max_rel_err: float,
    shapes: Mapping[str, tuple[Any, ...]],
    bar: Bar,
    fuse: str | None,
    record: Record,
) -> tuple[Program, Mapping[str, tuple[Choice, ...]]]:
    """A network as it would be compiled, and the choices for each of its groups."""
    if model.endswith('.tw'):
        raise InputError(
            f'{model} has its schedules already; `tilewright run --profile` times them'
        )
    passes = with_chains(GPU_PASSES, GpuPrice(machine, KEPT, max_rel_err).prices, record)
    program = prepare(
        model_of(model, None, 'cuda'),
        shapes,
        passes_of(None, fuse, 'cuda'),
        GpuCost(machine),
        passes,
    )
    return program, chosen_by_model(distinct(program), machine, KEPT, max_rel_err, bar.report)


def _gpu_kinds(program: Program, chosen: Mapping[str, tuple[Choice, ...]]) -> list[GpuKind]:
    """Its groups, the longest first."""
    kinds = []
    tasks = _tasks(program)
    for digest, group in distinct(program).items():
        names, choice = tasks[digest], chosen[digest][0]
        count = len(names)
        kinds.append(
            GpuKind(
                group.label, names, schedule_text(choice.schedule),
                1e6 * count * choice.predicted_s, 1e6 * count * choice.bound_s, choice.limit,
                said_of(group), tuple(name for name in TITLES if not why_not(name, group)),
            )
        )  # fmt: skip
    return sorted(kinds, key=lambda kind: -kind.predicted_us)


def _group_of(program: Program, kinds: Sequence[GpuKind], named: str | None) -> Group:
    """The group of a task, a label, or a row of the table from 1 on; of most stages by default."""
    groups = {task.name: task.group for task in program.tasks}
    if named is None:
        return max(groups.values(), key=lambda group: len(group.stages))
    if named.isdigit() and 1 <= int(named) <= len(kinds):
        return groups[kinds[int(named) - 1].tasks[0]]
    found = [group for name, group in groups.items() if named in (name, group.label)]
    if not found:
        near = difflib.get_close_matches(named, groups, 1)
        raise InputError(
            f'--group {named!r} is neither a task nor a label of {Path(program.name).name}, nor '
            f'one of its rows 1 to {len(kinds)}; '
            + (f'did you mean {near[0]}?' if near else f'a task is {next(iter(groups))}')
        )
    return found[0]


def _gpu_text(model: str, machine: GpuMachine, kinds: Sequence[GpuKind]) -> str:
    total, bound = (sum(getattr(k, name) for k in kinds) for name in ('predicted_us', 'bound_us'))
    tasks = sum(len(kind.tasks) for kind in kinds)
    head = ('group', 'tasks', 'us', 'share', 'bound us', 'limit', 'libraries', 'schedule')
    rows = tuple(
        (
            kind.label, str(len(kind.tasks)), f'{kind.predicted_us:.2f}',
            f'{kind.predicted_us / total:.1%}', f'{kind.bound_us:.2f}', kind.limit,
            ' '.join(TITLES[name] for name in kind.able) or '-',
            kind.schedule,
        )
        for kind in kinds
    )  # fmt: skip
    return '\n'.join(
        [
            f'{model} on {machine.name}: {tasks} tasks of {len(kinds)} kinds, predicted one after '
            f'the other {total:.1f} us, bound {bound:.1f} us',
            Grid(head, rows).text(),
        ]
    )
