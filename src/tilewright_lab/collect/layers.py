"""From sources of schedules to rows: drawn and compiled in many processes, measured in one.

Goes in: `Source`s, the files of a set, a time limit. Comes out: rows, written one by one. Any
process may die or hang (runtime/pool.py): a compilation that is lost is `refused`, a
measurement `crashed`, found schedule by schedule, and the run goes on. What was measured before is
left out, so that the same command goes on where it was cut off.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import StoreError
from tilewright.kernels.gpu.language import Kernel
from tilewright.machine.gpu import GpuMachine
from tilewright.runtime.gpu.device import Resources
from tilewright.runtime.pool import Pool
from tilewright.version import VERSION
from tilewright_lab.collect.problems import Problem, Source, Unit, units_of
from tilewright_lab.collect.sets import README, Sets, chunks
from tilewright_lab.compare.gpu_lost import compiled_or_refused, rows_or_again
from tilewright_lab.compare.gpu_measure import (
    Compiled,
    Meter,
    Row,
    Translate,
    compile_units,
    cubins,
    cuda_meter,
    host_meter,
)

COMPILE_LIMIT_S = 120.0  # of a chunk
MEASURE_LIMIT_S = 60.0
DRAWN_AHEAD = 6  # sources whose units are drawn before they are needed
READY = 48  # chunks that may wait for the device
SHOW_S = 15.0

_translate: Translate
_meter: Meter


def untranslated(kernels: Sequence[Kernel]) -> tuple[bytes, dict[str, Resources]]:
    """No machine code: what a meter on the host takes."""
    return b'', {kernel.name: Resources() for kernel in kernels}


def begin_compiling(architecture: str) -> None:
    """What a compiling process does first; no architecture: nothing is compiled."""
    global _translate
    _translate = cubins(architecture) if architecture else untranslated


def compiled(units: Sequence[Unit]) -> list[Compiled[Problem]]:
    return compile_units(units, _translate)


def begin_measuring(target: str) -> None:
    global _meter
    _meter = cuda_meter() if target == 'cuda' else host_meter()


def measured(made: Compiled[Problem]) -> list[Row]:
    """Rows of some units. A device that gives errors is not used again: this process ends."""
    try:
        return list(_meter.measure(made))
    except StoreError as error:
        print(error, flush=True)
        os._exit(1)


def machine_of() -> dict:
    """The device that this process measures on."""
    return _meter.device.machine.to_json()


@dataclass
class Flow:
    """One run over the sources of a set.

    target         'cuda', or 'host' where there is no GPU: everything but the times is the same
    architecture   what is compiled for; '' compiles nothing
    """

    sources: Sequence[Source]
    sets: Sets
    machine: GpuMachine
    target: str = 'cuda'
    architecture: str = 'sm_90a'
    workers: int = 0
    chunk: int = 8
    seconds: float = 540.0
    say: Callable[[str], object] = print
    counts: Counter[str] = field(default_factory=Counter)
    _units: deque[tuple[Unit, ...]] = field(default_factory=deque)
    _drawing: deque[Future] = field(default_factory=deque)

    def run(self) -> bool:
        """Whether nothing is left."""
        end = time.monotonic() + self.seconds
        size = self.workers or max((os.cpu_count() or 2) - 1, 1)
        left = deque(self.sources)
        compiling: dict[Future, tuple[Unit, ...]] = {}
        measuring: dict[Future, Compiled[Problem]] = {}
        shown = time.monotonic()
        with (
            Pool(
                size, limit=COMPILE_LIMIT_S, begin=begin_compiling, words=(self.architecture,)
            ) as makers,
            Pool(
                1,
                limit=MEASURE_LIMIT_S,
                begin=begin_measuring,
                words=(self.target,),
                background=False,
            ) as device,
        ):
            try:
                self._describe(device)
                while time.monotonic() < end:
                    self._feed(makers, left, compiling, size, len(measuring))
                    if not compiling and not measuring and not self._drawing and not left:
                        return True
                    waiting = {*compiling, *measuring, *self._drawing}
                    finished, _ = wait(waiting, 0.5, FIRST_COMPLETED)
                    for future in finished & compiling.keys():
                        for made in self._made(future, compiling.pop(future)):
                            measuring[device.submit(measured, made)] = made
                    for future in finished & measuring.keys():
                        self._rows(device, future, measuring.pop(future), measuring)
                    if time.monotonic() - shown > SHOW_S:
                        shown = time.monotonic()
                        self.say(f'{self._state()}, {end - shown:.0f} s left')
                return False
            finally:
                self.sets.close()

    def _state(self) -> str:
        return ', '.join(f'{count} {status}' for status, count in sorted(self.counts.items()))

    def _describe(self, device: Pool) -> None:
        """The machine, and what rows mean, beside the rows."""
        told = device.submit(machine_of).result() | {'tilewright': VERSION}
        folder: Path = self.sets.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'dataset.json').write_text(json.dumps(told, indent=1) + '\n')
        (folder / 'README.md').write_text(README)

    def _feed(
        self, makers: Pool, left: deque[Source], compiling: dict, size: int, ready: int
    ) -> None:
        """Keep the compilers busy, but not so far ahead that everything waits for the device."""
        while left and len(self._drawing) < DRAWN_AHEAD:
            self._drawing.append(makers.submit(units_of, left.popleft(), self.machine))
        while self._drawing and self._drawing[0].done():
            units = self._drawing.popleft().result()
            open_ = [u for u in map(self.sets.left, units) if u is not None]
            self.counts['known'] += sum(len(u.schedules) for u in units)
            self.counts['known'] -= sum(len(u.schedules) for u in open_)
            self._units.extend(chunks(open_, self.chunk))
        while self._units and len(compiling) < 3 * size and ready < READY:
            chunk = self._units.popleft()
            compiling[makers.submit(compiled, chunk)] = chunk

    def _made(self, future: Future, chunk: tuple[Unit, ...]) -> list[Compiled[Problem]]:
        schedules = [schedule for unit in chunk for schedule in unit.schedules]
        return compiled_or_refused(future, chunk[0].problem, schedules)

    def _rows(self, device: Pool, future: Future, made: Compiled[Problem], measuring: dict) -> None:
        def again(part: Compiled[Problem]) -> None:
            measuring[device.submit(measured, part)] = part

        for row in rows_or_again(future, made, Row, again, self.say):
            self.sets.add(row)
            self.counts[row.status] += 1
