"""Devices of a fleet whose measurements sleep: what a fleet does, without a machine that is busy.

Goes in: groups with candidates, as networks tune them. Comes out: the same records on every run and
on every worker, because a time follows from the schedule alone; and a line in a log for each turn
that was really taken, so that a script can count what was measured twice.

The way is the usual one: `targets.fleet.plans`, `runtime.measure.measure_all`, the store. Only the
worker process that would load and time a library is replaced.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.ops.group import Group
from tilewright.runtime.measure import Measurement, measure_all
from tilewright.runtime.worker import Answer
from tilewright.store.records import Record, Validators, open_store, package_version
from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.plan import Candidate, Plan
from tilewright.targets.target import TARGETS, Wanted

if TYPE_CHECKING:
    from tilewright.runtime.fleet import FleetDevice

TARGET = 'simulated'
DEVICES = 64  # of a host, of which a worker with one thread uses one at a time
ROUNDS = 5
TURN_S = 0.1
LOG = 'turns.log'  # in the folder of the cache


def devices(target: str) -> tuple[FleetDevice, ...]:
    """The simulated devices of a host, all of one kind."""
    from tilewright.runtime.fleet import FleetDevice

    return tuple(
        FleetDevice(target, str(number), 'simulated device', TARGET, package_version(), 'none')
        for number in range(DEVICES)
    )


class SleepingWorker:
    """Answers as runtime.worker.Worker does, after a while, with a time of the schedule's own."""

    def __init__(self, log: Path) -> None:
        self.log = log

    def check(self, group: Group, library: Path) -> Answer:
        return Answer('ok', max_rel_err=1e-7)

    def time(self, group: Group, library: Path, *, min_ms: float = 5.0) -> Answer:
        time.sleep(TURN_S)
        with self.log.open('a') as file:  # one short line: whole, whoever else writes
            file.write(f'{group.digest} {library.name} {os.getpid()}\n')
        return Answer('ok', samples_ms=(1.0 + int(library.name[:4], 16) / 65536,))


@dataclass(frozen=True, slots=True)
class SimulatedTarget(CpuTarget):
    """The CPU, but for what measures."""

    name: str = TARGET

    def plan(self, group: Group, wanted: Wanted) -> Plan:
        held = Validators(TARGET, package_version(), 'none')
        store = wanted.store or open_store()
        by_key = {choice.schedule.digest: choice for choice in wanted.chosen}

        def record(measured: Measurement) -> None:
            schedule = by_key[measured.key].schedule.to_json()
            store.put(
                Record(group.digest, group.label, schedule, measured.key, 0, held, measured)
            )  # fmt: skip

        log = (store.path.parent if store.path else Path()) / LOG
        worker: Any = SleepingWorker(log)
        results = measure_all(
            group, [(key, Path(key)) for key in by_key], worker=worker, rounds=ROUNDS,
            known=store.known(group.digest, 0, held), record=record, progress=wanted.progress,
        )  # fmt: skip
        timed = [
            Candidate(by_key[found.key].schedule, None, found)
            for found in sorted(results, key=lambda m: m.median_ms or 0.0)
        ]
        return Plan(group, wanted.machine, 0, tuple(timed), target=TARGET)


if TARGET not in TARGETS:
    TARGETS.register(SimulatedTarget())
