"""A GPU, or the host that runs GPU kernels, as a place to run networks at.

Kernels of a saved network are generated and compiled anew where it is loaded, and found in the
cache the next time (code.py). Its schedules are for the GPU that they were chosen for; on another
one they are chosen again by the model.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.errors import InputError, ModelError
from tilewright.graph.levels import by_levels
from tilewright.graph.passes import GPU_PASSES, ProgramPasses
from tilewright.graph.program import Program
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.schemas.library.calls import is_library
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.session import open_device
from tilewright.runtime.measure import Progress
from tilewright.schedule.choice import Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.fusion import Prices
from tilewright.store.network_file import Saved
from tilewright.targets.gpu.assemble import bound, chosen_by_model, measured, within_arena
from tilewright.targets.gpu.choose import is_legal
from tilewright.targets.gpu.cost import GpuCost
from tilewright.targets.gpu.price import GpuPrice
from tilewright.targets.gpu.selector import select, without_missing
from tilewright.targets.gpu.tuning import Place
from tilewright.targets.site import Asked, Choices
from tilewright.targets.target import Report

TRIALS = 32  # schedules that are timed for each distinct group
KEPT = 4  # choices of the model that are kept
LOOKED = 16  # schedules that the model looks at where a search is to begin from nothing


@dataclass(frozen=True, slots=True)
class GpuSite:
    """An open device of a target; `name` is the part of its name that it was asked for by."""

    target: str
    device: Device
    name: str = ''
    threads: int = 0

    @classmethod
    def of(cls, target: str, name: str = '') -> GpuSite:
        return cls(target, open_device(target, name), name)

    @property
    def machine(self) -> GpuMachine:
        return self.device.machine

    @property
    def passes(self) -> ProgramPasses:
        return GPU_PASSES

    @property
    def cost(self) -> GpuCost:
        return GpuCost(self.machine)

    def prices(self, asked: Asked) -> Prices:
        return GpuPrice(self.machine, KEPT, asked.max_rel_err, asked.algorithm).prices

    def ordered(self, program: Program) -> Program:
        return by_levels(program)

    def choose(
        self, program: Program, asked: Asked, progress: Report | None = None
    ) -> dict[str, tuple[Choice, ...]]:
        looked = LOOKED if asked.tune == 'measure' and asked.how.from_nothing else None
        return chosen_by_model(
            _groups(program), self.machine, KEPT, asked.max_rel_err, progress, looked,
            asked.algorithm, asked.how.estimate,
        )  # fmt: skip

    def tune(
        self, program: Program, chosen: Choices, asked: Asked, progress: Report | None = None
    ) -> dict[str, Choice]:
        place = Place.of(self.device, self.target, self.name)
        return measured(
            _groups(program), chosen, place, asked.trials or TRIALS, asked.max_rel_err, progress,
            asked.how, asked.fleet,
        )  # fmt: skip

    def select(
        self, program: Program, best: Mapping[str, Choice], asked: Asked,
        progress: Report | None = None,
    ) -> dict[str, Choice]:  # fmt: skip
        if asked.libraries == 'none':
            return dict(best)

        def report(group: Group, done: int, total: int) -> None:
            if progress is not None:
                progress(Progress('select', group.label, done, total, 0.0, None))

        return select(
            _groups(program), best, Place.of(self.device, self.target, self.name),
            asked.libraries, asked.max_rel_err, report,
        )  # fmt: skip

    def within(
        self, program: Program, best: Mapping[str, Choice], limit: int, max_rel_err: float
    ) -> Program:
        return within_arena(program, best, self.machine, limit, max_rel_err)

    def bind(
        self, program: Program, best: Mapping[str, Choice], max_rel_err: float,
        progress: Report | None = None,
    ) -> GpuNetwork:  # fmt: skip
        return bound(program, best, self.device, max_rel_err, progress=progress)

    def adopt(
        self, path: str | os.PathLike[str], saved: Saved, progress: Report | None = None
    ) -> dict[str, Choice]:  # fmt: skip
        if self.machine.to_json() == saved.machine.to_json():
            return self._with_libraries(path, saved, progress)
        warnings.warn(
            f'{path} was compiled for {saved.machine.name}; schedules are chosen again for '
            f'{self.machine.name}',
            stacklevel=4,
        )
        asked = Asked(max_rel_err=saved.max_rel_err).by(saved.algorithm)
        found = self.choose(saved.program, asked, progress)
        return {digest: choices[0] for digest, choices in found.items()}

    def _with_libraries(
        self, path: str | os.PathLike[str], saved: Saved, progress: Report | None
    ) -> dict[str, Choice]:
        """The choices of a file, ours where a library that it names is not here."""

        def try_out(group: Group, schedule: GpuSchedule) -> None:
            for kernel in generate(group, schedule).kernels:
                if is_library(kernel):
                    self.device.unload(self.device.compile(kernel))

        def by_model(groups: Mapping[str, Group]) -> Mapping[str, tuple[Choice, ...]]:
            return chosen_by_model(
                groups, self.machine, KEPT, saved.max_rel_err, progress, None, saved.algorithm
            )

        found, groups = _checked(path, saved), _groups(saved.program)
        return without_missing(found, groups, try_out, by_model, path)


def _groups(program: Program) -> dict[str, Group]:
    return {task.group.digest: task.group for task in program.tasks}


def _checked(path: str | os.PathLike[str], saved: Saved) -> dict[str, Choice]:
    """The choices of a file, each of them one that can be generated for its group."""
    for digest, group in _groups(saved.program).items():
        try:
            fits = is_legal(group, saved.choices[digest].schedule, saved.machine)  # pyright: ignore[reportArgumentType]
        except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ModelError(f'{path} cannot be used: {error}') from None
        if not fits:
            raise ModelError(f'{path} cannot be used: its schedule for {group.label} is not legal')
    return dict(saved.choices)
