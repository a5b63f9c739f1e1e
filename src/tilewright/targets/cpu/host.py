"""The machine that CPU kernels are planned for: this host, or a known one; its threads."""

from __future__ import annotations

import os

from tilewright import knobs
from tilewright.errors import InputError
from tilewright.machine.isa import host_isas
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine
from tilewright.schedule.choice import AnySchedule
from tilewright.schedule.schedule import Schedule
from tilewright.store import tuned


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
