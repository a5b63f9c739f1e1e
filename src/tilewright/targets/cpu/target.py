"""The CPU as a target: kernels in C, ranked by the model, timed in a worker process.

[Group]               -> choose    -> [Candidate]         search.cpu.choose (model, schedule)
[Candidate]           -> generate  -> [C source]          kernels.cpu
[C source]            -> build     -> [library]           machine.compiler
[library]             -> check, time -> [Measurement]     runtime.measure, in a worker
[Measurement]         -> put       -> [Record]            store
[Candidate, measured] -> finals    -> [Plan]              the winner is remembered (store.tuned)
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewright import knobs
from tilewright.errors import InputError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.knobs import debug
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.model.cpu.prediction import bound_times, lower_bound
from tilewright.ops.group import Group
from tilewright.report.explain import explain_plan
from tilewright.runtime.callable import BuiltGroup
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.measure import Measurement, finalists, measure_all
from tilewright.runtime.worker import Worker
from tilewright.schedule.choice import AnySchedule, Choice
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.choose import choose
from tilewright.store import tuned
from tilewright.store.records import Record, Validators, open_store
from tilewright.targets.plan import Candidate, Plan
from tilewright.targets.target import Wanted

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """Kernels for the cores of a machine."""

    name: str = 'cpu'
    suffix: str = '.c'

    def plan(self, group: Group, wanted: Wanted) -> Plan:
        machine, warning = machine_of(wanted.machine, wanted.measure)
        threads = thread_count(wanted.threads, machine)
        begin = time.perf_counter()
        top = max(wanted.top, wanted.trials or 1)
        ranked = choose(group, machine, threads, top, wanted.algorithm, wanted.max_rel_err)
        debug(1, f'{group.label}: ranked {len(ranked)} in {time.perf_counter() - begin:.2f} s')
        candidates = tuple(Candidate(c.schedule, c.prediction) for c in ranked)
        bound = min((c.solver_bound_s for c in ranked if c.solver_bound_s), default=0.0)
        warnings = [warning] if warning else []
        if wanted.measure:
            candidates, trouble = _measured(group, machine, threads, candidates, wanted)
            warnings += trouble
            _remember(group, machine, threads, candidates, wanted)
        return Plan(
            group, machine, threads, candidates, bound, tuple(warnings),
            float(wanted.max_rel_err), self.name,
        )  # fmt: skip

    def source(self, group: Group, schedule: AnySchedule) -> str:
        return generate(group, cpu_schedule(schedule))

    def library(self, group: Group, schedule: AnySchedule) -> Path:
        """The compiled kernel, from the cache or built now."""
        return build(self.source(group, schedule), compiler_flags(cpu_schedule(schedule)))

    def bounds_s(self, plan: Plan) -> tuple[float, float]:
        chosen = plan.best.prediction
        times = bound_times(chosen.flops_done, chosen.moved, plan.machine, plan.threads)
        return lower_bound(plan.group, plan.machine, plan.threads), max(times.values())

    def build(self, plan: Plan, constants: Mapping[str, np.ndarray]) -> BuiltGroup:
        library = self.library(plan.group, plan.best.schedule)
        return BuiltGroup(Kernel.load(library, plan.group), plan.group, constants)

    def explain(self, plan: Plan) -> str:
        return explain_plan(plan)


def cpu_schedule(schedule: AnySchedule) -> Schedule:
    if not isinstance(schedule, Schedule):
        raise InputError(f'a schedule of the GPU schema {schedule.schema} cannot run on a CPU')
    return schedule


def machine_of(
    machine: Machine | str | os.PathLike[str] | None, measure: bool
) -> tuple[Machine, str | None]:
    """The machine that is meant, and what to warn of; this host, unless nothing is measured."""
    if not isinstance(machine, Machine | str | os.PathLike | None):
        raise InputError(
            f'machine is {machine!r}; give a Machine, the name of one, the path of a .json file, '
            f'or None for this host'
        )
    found, warning = (
        (machine, None) if isinstance(machine, Machine) else load_machine(machine, measure=measure)
    )
    if measure and found.isa not in host_isas():
        raise InputError(
            f'machine {found.name} has {found.isa}, which this host cannot run; plan for it with '
            f'measure=False (--no-measure)'
        )
    return found, warning


def thread_count(threads: int | None, machine: Machine) -> int:
    """The threads that are asked for, here or in the environment, or all there are."""
    count = threads if threads is not None else knobs.get('threads') or machine.cores
    if not 1 <= count <= machine.cores:
        raise InputError(
            f'threads is {count}; {machine.name} has {machine.cores} usable cores: '
            f'ask for 1 to {machine.cores}'
        )
    return count


def tuned_on(machine: Machine, threads: int, max_rel_err: float, algorithm: str) -> tuned.Where:
    """Where results of tuning on this machine are stored."""
    return tuned.Where('cpu', machine.to_json(), threads, max_rel_err, algorithm)


def _remember(
    group: Group, machine: Machine, threads: int, candidates: tuple[Candidate, ...], wanted: Wanted
) -> None:
    best = candidates[0]
    if best.time_ms is None:
        return
    times = bound_times(best.prediction.flops_done, best.prediction.moved, machine, threads)
    choice = Choice(
        best.schedule, best.prediction.seconds, max(times.values()), best.prediction.limit
    )
    where = tuned_on(machine, threads, float(wanted.max_rel_err), wanted.algorithm)
    tuned.remember(group, where, choice, len(candidates))


def _builder(group: Group, candidate: Candidate) -> Callable[[], Path]:
    def make() -> Path:
        source = generate(group, cpu_schedule(candidate.schedule))  # [Schedule] -> [C source]
        debug(4, source)
        return build(source, compiler_flags(cpu_schedule(candidate.schedule)))

    return make


def _measured(
    group: Group, machine: Machine, threads: int, candidates: tuple[Candidate, ...], wanted: Wanted
) -> tuple[tuple[Candidate, ...], list[str]]:
    """Build, check, time and record every candidate; the winner of the finals comes first."""
    by_key = {c.schedule.digest: c for c in candidates}
    builders = {key: _builder(group, c) for key, c in by_key.items()}
    validators = Validators.current(machine.fingerprint or machine.name)
    own = wanted.store is None
    records = open_store() if wanted.store is None else wanted.store

    def record(measurement: Measurement) -> None:  # [Measurement] -> [Record]
        chosen = by_key[measurement.key]
        records.put(
            Record(
                group.digest, group.label, chosen.schedule.to_json(), measurement.key, threads,
                validators, measurement, chosen.prediction.to_json(),
            )
        )  # fmt: skip

    try:
        with Worker(seed=wanted.seed) as worker:
            results = measure_all(
                group, list(builders.items()), worker=worker, rounds=ROUNDS, threads=threads,
                known=records.known(group.digest, threads, validators),
                record=record, progress=wanted.progress,
            )  # fmt: skip
            results = [within(m, wanted.max_rel_err) for m in results]
            final = finalists(
                group, results, builders, worker=worker, threads=threads, record=record
            )
    finally:
        if own:
            records.close()
    failures = {m.key: m for m in final.failures}
    measured = [
        Candidate(c.schedule, c.prediction, failures.get(m.key, m))
        for c, m in zip(candidates, results, strict=True)
    ]

    def place(candidate: Candidate) -> tuple[bool, float]:
        first = candidate.schedule.digest == final.best
        return not first, candidate.time_ms if candidate.time_ms is not None else float('inf')

    return tuple(sorted(measured, key=place)), [final.trouble] if final.trouble else []


def within(measurement: Measurement, max_rel_err: float) -> Measurement:
    """A measurement whose error exceeds the budget counts as wrong, for this run."""
    error = measurement.max_rel_err
    if not measurement.ok or error is None or error <= max_rel_err:
        return measurement
    return replace(
        measurement,
        status='wrong',
        message=f'its error of {error:.1e} exceeds the budget of {max_rel_err:g}',
    )
