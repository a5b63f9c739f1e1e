"""Plans -> what a page shows.

Goes in: the plan of each distinct group with its tasks (`Kind`), and which task reads which. Comes
out: a `Page`, for a CPU by its `Prediction`s, for a GPU by those of its time model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.graph.program import Program
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.machine import Machine
from tilewright.report.explain import limit_name, runner_up_lines
from tilewright.report.machine_page import boundary_names
from tilewright.report.network import Kind, algorithm_name, predicted_parts, reasons
from tilewright.report.page.data import Page, PageGroup, in_order
from tilewright.report.page.what_if import cpu_grid, gpu_grid
from tilewright.report.words import loop_lines, summary
from tilewright.search.gpu.moves import schedule_text

_LEAST_MS = 1e-6


def page_of(
    title: str,
    machine: Machine | GpuMachine,
    threads: int,
    kinds: Sequence[Kind],
    edges: Mapping[str, tuple[str, ...]] | None = None,
    total_ms: float | None = None,
) -> Page:
    """[Kind] -> [Page]; without `edges` the tasks are layers that follow each other."""
    if isinstance(machine, GpuMachine):
        groups = tuple(map(_gpu_group, kinds))
        place, lanes = f'{machine.name}, by the model alone', ('stream',)
        roofs = (('L2', machine.l2_gbps), ('DRAM', machine.global_gbps))
        peak, grid = machine.peak_gflops, gpu_grid(kinds, machine)
        figures = 'neither queried nor measured' if machine.assumed else 'queried or measured'
    else:
        groups = tuple(map(_cpu_group, kinds))
        place = f'{machine.name} ({machine.isa}), threads: {threads}'
        lanes = tuple(f'thread {number}' for number in range(threads))
        names = [name.split(' -> ')[0] for name in boundary_names(machine)]
        roofs = tuple(
            (name, machine.bandwidth_gbps(number, threads)) for number, name in enumerate(names)
        )
        peak, grid = machine.peak_gflops(threads), cpu_grid(kinds, machine, threads)
        figures = 'measured on it' if machine.measured else 'nominal, not measured'
    if edges is None:
        names = [name for group in groups for name in group.tasks]
        edges = {name: tuple(names[max(at - 1, 0) : at]) for at, name in enumerate(names)}
    notes = (
        f"Figures of {machine.name} are {figures}; bounds are the machine's peak and bandwidths "
        f'on the operations and bytes that each kernel of the algorithm needs.',
        'Times were measured on this host.' if any(g.measured_ms is not None for g in groups)
        else 'Nothing was measured: all times are predictions of the model.',
    )  # fmt: skip
    tasks = in_order(groups, edges)
    return Page(title, place, lanes, groups, tasks, total_ms, peak, roofs, grid, notes)


def edges_of(program: Program) -> dict[str, tuple[str, ...]]:
    """task -> the tasks whose results it reads."""
    writers: dict[str, list[str]] = {}
    found = {}
    for task in program.tasks:
        roots = dict.fromkeys(program.place(value)[0] for value in task.operands.values())
        found[task.name] = tuple(dict.fromkeys(w for root in roots for w in writers.get(root, ())))
        writers.setdefault(program.place(task.result)[0], []).append(task.name)
    return found


def _common(kind: Kind) -> dict[str, Any]:
    plan, count = kind.plan, len(kind.tasks)
    main = plan.group.main
    return {
        'name': kind.tasks[0],
        'label': kind.label,
        'tasks': kind.tasks,
        'predicted_ms': 1e3 * plan.best.prediction.seconds,
        'measured_ms': None if kind.measured_ms is None else kind.measured_ms / count,
        'bound_ms': plan.algorithm_bound_ms,
        'flops': plan.group.flops,
        'bytes': plan.group.compulsory_bytes,
        'precision': '/'.join(
            dict.fromkeys(plan.group.tensor(a.tensor).dtype for a in main.accesses[::-1])
        ),
    }


def _cpu_group(kind: Kind) -> PageGroup:
    plan = kind.plan
    best = plan.best.schedule
    return PageGroup(
        **_common(kind),
        algorithm=algorithm_name(plan, best),
        schedule=summary(plan.group, best),
        loops=tuple(loop_lines(plan.group, best)),
        threads=best.threads,
        limit=limit_name(plan.best.prediction, plan.machine),
        why=tuple(reasons(plan)),
        runner_up=tuple(line.strip() for line in runner_up_lines(plan)),
        parts=tuple((n, ms) for n, ms in predicted_parts(plan) if ms > _LEAST_MS),
    )


def _gpu_group(kind: Kind) -> PageGroup:
    best, *others = kind.plan.candidates
    said = best.prediction
    runner_up = ['Runner-up: none, there is one candidate']
    if others:
        slower = others[0].prediction.seconds / said.seconds - 1
        runner_up = [
            f'Runner-up {schedule_text(others[0].schedule)}: predicted '
            f'{1e3 * others[0].prediction.seconds:.4f} ms ({slower:+.1%})'
        ]
    launch_s = getattr(said, 'launch_s', 0.0)  # not apart where there is no model
    return PageGroup(
        **_common(kind),
        algorithm=best.schedule.schema,
        schedule=schedule_text(best.schedule),
        loops=(schedule_text(best.schedule),),
        threads=1,
        limit=said.limit,
        why=(f'{said.limit} takes longest of the parts, which overlap.',),
        runner_up=tuple(runner_up),
        parts=(('kernel', 1e3 * (said.seconds - launch_s)), ('launch', 1e3 * launch_s)),
    )
