"""GPUs as targets: CUDA, OpenCL, and the host dialect, which runs the same kernels on any CPU.

[Group]          -> search     -> [Candidate]   targets.gpu.choose: by the model, or by a learned
                 one
[Candidate]      -> generate   -> [Module]      kernels.gpu
[Module]         -> lower      -> [source]      kernels.gpu.language, one dialect a target
[Candidate]      -> tune       -> [Candidate]   targets.gpu.tuning: compiled, checked, timed
[Module, device] -> Runner     -> [callable]    runtime.gpu.modules
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.dialects.host import HOST
from tilewright.kernels.gpu.dialects.opencl import OPENCL
from tilewright.kernels.gpu.dialects.table import Dialect
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import lower_all
from tilewright.kernels.gpu.schemas.library.calls import call_text, is_library
from tilewright.knobs import debug
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.model.gpu.bounds import compute_gflops, gpu_bounds, schedule_bounds
from tilewright.model.gpu.estimates import TIME
from tilewright.ops.group import Group
from tilewright.rank.files import SEARCHED
from tilewright.rank.rankers import ANALYTICAL, ranker_for
from tilewright.report.gpu_explain import explained, explanation_text
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.modules import BuiltModule
from tilewright.runtime.gpu.session import open_device
from tilewright.runtime.measure import Progress
from tilewright.schedule.choice import AnySchedule, Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright.store import tuned
from tilewright.store.network_file import Saved
from tilewright.store.records import open_store
from tilewright.targets.gpu.choose import TRIALS as LOOKED_AT
from tilewright.targets.gpu.choose import choice_of, is_legal, prediction_of, search
from tilewright.targets.gpu.ranked import ranked_by
from tilewright.targets.gpu.site import TRIALS, GpuSite
from tilewright.targets.gpu.tuning import KEPT, How, Memory, Outcome, Place, tune_groups, tuned_on
from tilewright.targets.plan import Candidate, Plan
from tilewright.targets.site import Site
from tilewright.targets.target import Wanted


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """Kernels in one dialect, for the devices of one runtime."""

    name: str
    suffix: str
    dialect: Dialect

    def plan(self, group: Group, wanted: Wanted) -> Plan:
        if wanted.threads is not None:
            raise InputError(f'threads={wanted.threads} means nothing on {self.name}; leave it out')
        device, machine = self._place(wanted)
        begin = time.perf_counter()
        chosen, warnings = wanted.chosen, ()
        if not chosen:
            chosen, warnings = self._chosen(group, machine, wanted)
        debug(1, f'{group.label}: ranked {len(chosen)} in {time.perf_counter() - begin:.2f} s')
        candidates = tuple(
            Candidate(choice.schedule, prediction_of(group, _gpu(choice.schedule), machine))
            for choice in chosen
        )
        if wanted.measure:
            assert device is not None
            candidates, warnings = self._measured(group, device, chosen, wanted)
        return Plan(
            group, machine, 0, candidates[: wanted.top], 0.0, warnings, wanted.max_rel_err,
            self.name, self._ranked_by(group, machine, wanted),
        )  # fmt: skip

    @staticmethod
    def _ranked_by(group: Group, machine: GpuMachine, wanted: Wanted) -> str:
        """What ordered the candidates: a learned model, or why it was not one."""
        return ranker_for(wanted.model, group, machine, SEARCHED).note

    def _place(self, wanted: Wanted) -> tuple[Device | None, GpuMachine]:
        """The device, where something is measured or no machine is named, and its description."""
        machine = wanted.machine
        if machine is None:
            device = open_device(self.name, wanted.device)
            return device, device.machine
        if wanted.measure:
            raise InputError(
                f'machine is {machine!r}; what is measured runs on a device of this host: leave it '
                f'out, or plan for it with measure=False (--no-measure)'
            )
        if isinstance(machine, GpuMachine):
            return None, machine
        if isinstance(machine, str | os.PathLike):
            return None, known_gpu(os.fspath(machine))
        raise InputError(f'machine is {machine!r}; give a GpuMachine, the name or file of one')

    def _chosen(
        self, group: Group, machine: GpuMachine, wanted: Wanted
    ) -> tuple[tuple[Choice, ...], tuple[str, ...]]:
        """The best by the model that is asked for, and what to say of that model."""
        estimate = How(wanted.model).estimate
        if wanted.model == ANALYTICAL or estimate != TIME or wanted.measure:
            looked = LOOKED_AT if wanted.measure else wanted.trials or LOOKED_AT
            found = search(
                group, machine, wanted.top, wanted.max_rel_err, True, looked, wanted.algorithm,
                estimate,
            )  # fmt: skip
            return found, ()
        ranked = ranker_for(wanted.model, group, machine, SEARCHED)
        found = ranked_by(ranked.ranker, group, machine, wanted.top, wanted.seed or 0)
        return found, (ranked.note,) if ranked.fell_back else ()

    def _measured(
        self, group: Group, device: Device, chosen: tuple[Choice, ...], wanted: Wanted
    ) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
        def report(one: Group, done: int, total: int) -> None:
            if wanted.progress is not None:
                wanted.progress(Progress('measure', one.label, done, total, 0.0, None))

        place = Place.of(device, self.name, wanted.device)
        how = How(wanted.model, wanted.search, wanted.seed or 0, wanted.algorithm)
        where = tuned_on(place, how, group, wanted.max_rel_err)
        trials = wanted.trials or TRIALS
        with nullcontext(wanted.store) if wanted.store else open_store() as store:
            found = self._found_before(group, place, Memory.of(store, place), where, trials)
            if found is None:
                kept = tuned.find(group, where, 0)
                if kept is not None and is_legal(group, _gpu(kept.schedule), device.machine):
                    chosen = (kept, *(c for c in chosen if c.schedule != kept.schedule))
                found = tune_groups(
                    {'': group}, {'': chosen}, place, trials, wanted.max_rel_err, report, how, store
                )['']  # fmt: skip
        times = {m.key: m for m in found.measurements}
        candidates = tuple(
            Candidate(
                choice.schedule,
                prediction_of(group, _gpu(choice.schedule), device.machine),
                times.get(choice.schedule.digest),
            )
            for choice in found.choices
        )
        trouble = f'{group.label} was not measured, the model chooses: {found.trouble}'
        return candidates, (trouble,) if found.trouble else ()

    def _found_before(
        self, group: Group, place: Place, memory: Memory, where: tuned.Where, trials: int
    ) -> Outcome | None:
        """What was measured, where at least as many trials have been made; else None."""
        if tuned.find(group, where, trials) is None:
            return None
        legal = [s for s in memory.timed(group) if is_legal(group, s, place.machine)][:KEPT]
        known = memory.known(group)
        if not legal:
            return None
        choices = tuple(choice_of(group, schedule, place.machine) for schedule in legal)
        return Outcome(choices, tuple(known[schedule.digest] for schedule in legal))

    def source(self, group: Group, schedule: AnySchedule) -> str:
        kernels = generate(group, _gpu(schedule)).kernels
        calls = [call_text(kernel) for kernel in kernels if is_library(kernel)]
        ours = [kernel for kernel in kernels if not is_library(kernel)]
        return '\n'.join([*calls, *([lower_all(ours, self.dialect)] if ours else [])])

    def bounds_s(self, plan: Plan) -> tuple[float, float]:
        best = _gpu(plan.best.schedule)
        own = schedule_bounds(plan.group, best, plan.machine)
        kind = best.intrinsic if plan.group.half else 'fma'
        return gpu_bounds(plan.group, plan.machine, kind).seconds, own.seconds

    def peak_gflops(self, plan: Plan) -> float:
        kind = _gpu(plan.best.schedule).intrinsic if plan.group.half else 'fma'
        return compute_gflops(plan.machine, kind) or plan.machine.peak_gflops

    def summary(self, group: Group, schedule: AnySchedule) -> str:
        return schedule_text(_gpu(schedule))

    def lines(self, group: Group, schedule: AnySchedule) -> list[str]:
        return [schedule_text(_gpu(schedule))]

    def build(self, plan: Plan, constants: Mapping[str, np.ndarray]) -> BuiltModule:
        module = generate(plan.group, _gpu(plan.best.schedule))
        return BuiltModule(module, open_device(self.name), constants)

    def explain(self, plan: Plan) -> str:
        schedules = [_gpu(candidate.schedule) for candidate in plan.candidates]
        found = explained(plan.group.label, plan.group, plan.machine, schedules)
        return explanation_text(found)

    def site(self, machine: Any, threads: int | None, device: str) -> Site:
        return GpuSite.of(self.name, device)

    def site_for(
        self, path: str | os.PathLike[str], saved: Saved, threads: int | None, device: str
    ) -> Site:  # fmt: skip
        return GpuSite.of(self.name, device)


def _gpu(schedule: AnySchedule) -> GpuSchedule:
    if not isinstance(schedule, GpuSchedule):
        raise InputError(f'a schedule of the CPU schema {schedule.schema} cannot run on a GPU')
    return schedule


CUDA_TARGET = GpuTarget('cuda', '.cu', CUDA)
OPENCL_TARGET = GpuTarget('opencl', '.cl', OPENCL)
HOST_TARGET = GpuTarget('host', '.c', HOST)
