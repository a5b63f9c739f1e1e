"""The cores of a host as a place to run networks at."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import InputError
from tilewright.graph.levels import by_levels
from tilewright.graph.memory import plan
from tilewright.graph.passes import PROGRAM_PASSES, ProgramPasses
from tilewright.graph.program import Program
from tilewright.graph.recompute import within
from tilewright.machine.isa import host_isas, host_multiplies
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.model.cpu.far_weights import are_far
from tilewright.ops.group import Group
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.measure import Progress
from tilewright.schedule.choice import Choice
from tilewright.search.fusion import Prices
from tilewright.store.network_file import Saved
from tilewright.store.ranges_file import SavedRanges
from tilewright.targets.cpu.choose import choose_all, choose_frugal, with_far_weights
from tilewright.targets.cpu.cost import CpuCost
from tilewright.targets.cpu.fitting import constant_bytes, fit, weight_limit
from tilewright.targets.cpu.host import thread_count
from tilewright.targets.cpu.kernels import build_all, distinct
from tilewright.targets.cpu.price import CpuPrice
from tilewright.targets.cpu.tuning import measure_in_place
from tilewright.targets.site import Asked, Choices
from tilewright.targets.target import Report

TRIALS = 4
KEPT = 8  # choices that are kept for each group, so that there are some with fewer weights


@dataclass(frozen=True, slots=True)
class CpuSite:
    """A machine and how many of its cores are used."""

    machine: Machine
    threads: int
    target: str = 'cpu'

    @classmethod
    def of(cls, machine: Machine | None, threads: int | None) -> CpuSite:
        """The machine to compile for, which must be one that this host can run."""
        if machine is None:
            machine, warning = load_machine(measure=False)
            if warning:
                warnings.warn(warning, stacklevel=4)
        if machine.isa not in host_isas():
            raise InputError(f'{machine.name} has {machine.isa}, which this host cannot run')
        return cls(machine, thread_count(threads, machine))

    @classmethod
    def for_saved(
        cls, path: str | os.PathLike[str], saved: Saved | SavedRanges, threads: int | None
    ) -> CpuSite:  # fmt: skip
        """This host, with the threads that are asked for, or else those of the file."""
        site = cls.of(None, threads)
        if site.is_another(saved):
            warnings.warn(
                f'{path} was compiled on {saved.machine.name} ({saved.machine.isa}); schedules are '
                f'chosen again for {site.machine.name} ({site.machine.isa})',
                stacklevel=4,
            )
            return site
        if threads is not None:
            return site
        return cls(site.machine, min(saved.threads, site.threads))

    def is_another(self, saved: Saved | SavedRanges) -> bool:
        """Whether its schedules are those of another machine, or have what this one lacks."""
        made, schedules = saved.machine, [choice.schedule for choice in saved.choices.values()]
        alike = made.fingerprint == self.machine.fingerprint and made.isa == self.machine.isa
        used = {(schedule.isa, schedule.dtype) for schedule in schedules}
        return not alike or not all(host_multiplies(*each) for each in used)

    @property
    def passes(self) -> ProgramPasses:
        return PROGRAM_PASSES

    @property
    def cost(self) -> CpuCost:
        return CpuCost(self.machine, self.threads)

    def prices(self, asked: Asked) -> Prices:
        return CpuPrice(
            self.machine, self.threads, _kept(asked), asked.max_rel_err, asked.algorithm
        ).prices

    def ordered(self, program: Program) -> Program:
        """Steps of a training run hold most of their memory while a gradient is computed."""
        return by_levels(program, late=True) if program.carried else program

    def choose(
        self, program: Program, asked: Asked, progress: Report | None = None
    ) -> dict[str, tuple[Choice, ...]]:
        """[Program] -> the choices for every distinct group, by its digest, the best first.

        Their packed weights fit together, if they all take the first (fitting.py). Where no cache
        keeps the network's weights from call to call, choices are ordered by what they take then.
        """
        groups = distinct(program)
        begin = time.perf_counter()

        def report(group: Group, done: int, total: int) -> None:
            if progress is not None:
                spent = time.perf_counter() - begin
                left = spent / done * (total - done)
                progress(Progress('search', group.label, done, total, left, None))

        found = choose_all(
            list(groups.values()), self.machine, self.threads, _kept(asked), asked.max_rel_err,
            report, asked.algorithm,
        )  # fmt: skip

        if are_far(constant_bytes(program), self.machine):
            found = [
                with_far_weights(group, choices, self.machine)
                for group, choices in zip(groups.values(), found, strict=True)
            ]

        def frugal(wanted: Sequence[Group]) -> list[tuple[Choice, ...]]:
            return choose_frugal(wanted, self.machine, self.threads, asked.max_rel_err)

        return fit(
            program,
            dict(zip(groups, found, strict=True)),
            weight_limit(program),
            offer=frugal if asked.algorithm != 'direct' else None,
        )

    def tune(
        self, program: Program, chosen: Choices, asked: Asked, progress: Report | None = None
    ) -> dict[str, Choice]:
        most = asked.trials or TRIALS
        return measure_in_place(
            program, {digest: found[:most] for digest, found in chosen.items()}, self.machine,
            self.threads, asked.max_rel_err, progress, asked.algorithm, asked.fleet,
        )  # fmt: skip

    def select(
        self, program: Program, best: Mapping[str, Choice], asked: Asked,
        progress: Report | None = None,
    ) -> dict[str, Choice]:  # fmt: skip
        """No library competes on the CPU: what was chosen stays."""
        return dict(best)

    def within(
        self, program: Program, best: Mapping[str, Choice], limit: int, max_rel_err: float
    ) -> Program:
        return within(program, limit, self.cost)

    def bind(
        self, program: Program, best: Mapping[str, Choice], max_rel_err: float,
        progress: Report | None = None,
    ) -> Network:  # fmt: skip
        return Network(program, plan(program), build_all(program, best, progress), self.threads)

    def adopt(
        self, path: str | os.PathLike[str], saved: Saved, progress: Report | None = None
    ) -> dict[str, Choice]:  # fmt: skip
        if not self.is_another(saved) and saved.threads == self.threads:
            return dict(saved.choices)
        asked = Asked(max_rel_err=saved.max_rel_err).by(saved.algorithm)
        found = self.choose(saved.program, asked, progress)
        return {digest: choices[0] for digest, choices in found.items()}


def _kept(asked: Asked) -> int:
    """Choices of a group that a search keeps."""
    return KEPT if asked.tune == 'model' else max(asked.trials or TRIALS, KEPT)
