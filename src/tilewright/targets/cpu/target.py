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
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import InputError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schema import is_shipped
from tilewright.knobs import debug
from tilewright.machine.compiler import build
from tilewright.machine.machine import Machine
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.prediction import bound_times, lower_bound
from tilewright.ops.group import Group
from tilewright.report.explain import explain_plan
from tilewright.report.words import loop_lines, summary
from tilewright.runtime.callable import BuiltGroup
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.measure import Measurement, finalists, measure_all
from tilewright.runtime.worker import Worker
from tilewright.schedule.choice import AnySchedule
from tilewright.search.cpu.choose import choose
from tilewright.store import tuned
from tilewright.store.records import Record, Validators, open_store
from tilewright.targets.cpu.choose import choice_of, is_legal
from tilewright.targets.cpu.host import cpu_schedule, machine_of, thread_count, tuned_on
from tilewright.targets.plan import Candidate, Plan
from tilewright.targets.target import Wanted

if TYPE_CHECKING:
    from tilewright.store.network_file import Saved
    from tilewright.targets.site import Site

ROUNDS = 5


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """Kernels for the cores of a machine."""

    name: str = 'cpu'
    suffix: str = '.c'

    def plan(self, group: Group, wanted: Wanted) -> Plan:
        machine, warning = machine_of(wanted.machine, wanted.measure)
        threads = thread_count(wanted.threads, machine)
        if group.half == 'f16' and not machine.half:
            raise InputError(f'{machine.name} has no arithmetic of f16; choose f32')
        begin = time.perf_counter()
        top = max(wanted.top, wanted.trials or 1)
        bound = 0.0
        if wanted.chosen:
            given = [c.schedule for c in wanted.chosen if is_legal(group, c.schedule)]
            candidates = tuple(Candidate(s, predict(group, s, machine)) for s in given)
        else:
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
        machine = plan.machine.multiplying(plan.group.half)
        times = bound_times(chosen.flops_done, chosen.moved, machine, plan.threads)
        return lower_bound(plan.group, plan.machine, plan.threads), max(times.values())

    def peak_gflops(self, plan: Plan) -> float:
        return plan.machine.multiplying(plan.group.half).peak_gflops(plan.threads)

    def summary(self, group: Group, schedule: AnySchedule) -> str:
        return summary(group, cpu_schedule(schedule))

    def lines(self, group: Group, schedule: AnySchedule) -> list[str]:
        return loop_lines(group, cpu_schedule(schedule))

    def build(self, plan: Plan, constants: Mapping[str, np.ndarray]) -> BuiltGroup:
        library = self.library(plan.group, plan.best.schedule)
        return BuiltGroup(Kernel.load(library, plan.group), plan.group, constants)

    def explain(self, plan: Plan) -> str:
        return explain_plan(plan)

    def site(self, machine: Any, threads: int | None, device: str) -> Site:
        from tilewright.targets.cpu.site import CpuSite

        return CpuSite.of(machine, threads)

    def site_for(
        self, path: str | os.PathLike[str], saved: Saved, threads: int | None, device: str
    ) -> Site:  # fmt: skip
        from tilewright.targets.cpu.site import CpuSite

        return CpuSite.for_saved(path, saved, threads)


def _remember(
    group: Group, machine: Machine, threads: int, candidates: tuple[Candidate, ...], wanted: Wanted
) -> None:
    best = candidates[0]
    if best.time_ms is None or not is_shipped(cpu_schedule(best.schedule)):
        return
    where = tuned_on(machine, threads, float(wanted.max_rel_err), wanted.algorithm)
    trials = len(wanted.chosen or candidates)
    tuned.remember(group, where, choice_of(best, machine, threads), trials)


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
        kept = records.known(group.digest, threads, validators)
        # What was registered may have been something else when it was measured.
        known = {
            key: found
            for key, found in kept.items()
            if key not in by_key or is_shipped(cpu_schedule(by_key[key].schedule))
        }
        with Worker(seed=wanted.seed) as worker:
            results = measure_all(
                group, list(builders.items()), worker=worker, rounds=ROUNDS, threads=threads,
                known=known, record=record, progress=wanted.progress,
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


CPU_TARGET = CpuTarget()
