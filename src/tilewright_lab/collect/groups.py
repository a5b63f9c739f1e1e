"""From groups of networks to rows: families drawn and compiled in many processes, measured in one.

Goes in: a folder with `groups.json`, a time limit. Comes out: rows, written one by one into the
files that tilewright_lab/collect/group_data.py reads. Any process may die or hang
(runtime/pool.py): a compilation that is lost is `refused`, a measurement `crashed`, found
schedule by schedule. What was measured before is left out, so that the same command goes on where
it was cut off.
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

from tilewright.errors import StoreError, TilewrightError
from tilewright.machine.gpu import GpuMachine
from tilewright.runtime.gpu.cuda import CudaDevice
from tilewright.runtime.pool import Pool
from tilewright.version import VERSION
from tilewright_lab.collect.group_code import compile_families
from tilewright_lab.collect.group_data import (
    DECISIONS,
    Known,
    columns,
    decisions,
    file_name,
    read_catalogue,
)
from tilewright_lab.collect.group_meter import BusyTimer, GroupMeter, GroupRow
from tilewright_lab.collect.group_sample import Family, Source, families
from tilewright_lab.collect.layers import untranslated
from tilewright_lab.collect.rows import RowFile
from tilewright_lab.compare.gpu_lost import compiled_or_refused, rows_or_again
from tilewright_lab.compare.gpu_measure import Compiled, Translate, cubins, cuda_meter, host_meter

COMPILE_LIMIT_S = 60.0  # of a chunk
MEASURE_LIMIT_S = 40.0  # the first one starts the device and computes a reference
DRAWN_AHEAD = 24  # sources whose families are drawn before they are needed
READY = 256  # chunks that may wait for the device
SHOW_S = 20.0
LIGHT = {'general': 4, 'rows': 4, 'depthwise': 3}  # families that compile in the time of one

_known: dict[str, Known]
_translate: Translate
_meter: GroupMeter


def begin_compiling(folder: Path, architecture: str) -> None:
    """What a compiling process does first; no architecture: nothing is compiled."""
    global _known, _translate
    _known = read_catalogue(folder)
    _translate = cubins(architecture) if architecture else untranslated


def drawn(source: Source, machine: GpuMachine) -> list[Family]:
    return families(source, _known[source.digest].group, machine)


def compiled(chunk: Sequence[Family]) -> list[Compiled[str]]:
    return compile_families(_known[chunk[0].digest].group, chunk, _translate)


def begin_measuring(folder: Path, target: str) -> None:
    global _meter
    groups = {digest: known.group for digest, known in read_catalogue(folder).items()}
    meter = cuda_meter() if target == 'cuda' else host_meter()
    device = meter.device
    _meter = GroupMeter(
        meter, groups, BusyTimer(device) if isinstance(device, CudaDevice) else None
    )


def measured(made: Compiled[str]) -> list[GroupRow]:
    """Rows of some families. A device that gives errors is not used again: this process ends."""
    try:
        return list(_meter.measure(made))
    except StoreError as error:
        print(error, flush=True)
        os._exit(1)


def machine_of() -> dict:
    """The device that this process measures on."""
    return _meter.device.machine.to_json()


class GroupSets:
    """The files of a folder, one for each schema and intrinsic, and what they hold already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[tuple[str, str], RowFile] = {}
        self.done: dict[tuple[str, str], set[tuple]] = {}

    def file(self, kind: tuple[str, str]) -> RowFile:
        if kind not in self.files:
            file = RowFile(self.folder / file_name(*kind), columns(*kind))
            self.files[kind] = file
            self.done[kind] = {
                (row['group'], *(int(row[name]) for name in DECISIONS[kind])) for row in file.rows
            }
        return self.files[kind]

    def claimed(self, family: Family) -> Family | None:
        """The family without what was measured or claimed before."""
        self.file(family.kind)
        done = self.done[family.kind]
        open_ = []
        for schedule in family.schedules:
            key = (family.digest, *decisions(schedule))
            if key not in done:
                done.add(key)
                open_.append(schedule)
        return Family(family.digest, tuple(open_)) if open_ else None

    def add(self, row: GroupRow) -> None:
        schedule = row.schedule
        taken = ['' if v is None else v for v in (row.registers, row.spill_bytes)]
        micro = '' if row.time_us is None else f'{row.time_us:.3f}'
        self.file((schedule.schema, schedule.intrinsic)).add(
            row.digest, *decisions(schedule), row.status, micro, *taken
        )

    def close(self) -> None:
        for file in self.files.values():
            file.pack()


def chunks(found: Sequence[Family], size: int) -> list[tuple[Family, ...]]:
    """Families of one group and schema, some at a time: one compilation each."""
    made: list[list[Family]] = []
    for family in found:
        most = size * LIGHT.get(family.kind[0], 1)
        if made and made[-1][0].kind == family.kind and len(made[-1]) < most:
            made[-1].append(family)
        else:
            made.append([family])
    return [tuple(chunk) for chunk in made]


@dataclass
class GroupFlow:
    """One run over sources.

    machine        whose limits the spaces keep
    target         'cuda', or 'host' where there is no GPU: everything but the times is the same
    architecture   what is compiled for; '' compiles nothing
    chunk          families of one compilation
    patience       seconds after which a measurement of a chunk counts as lost
    """

    sources: Sequence[Source]
    sets: GroupSets
    machine: GpuMachine
    target: str = 'cuda'
    architecture: str = 'sm_90a'
    workers: int = 0
    chunk: int = 3
    seconds: float = 330.0
    patience: float = MEASURE_LIMIT_S
    say: Callable[[str], object] = print
    counts: Counter[str] = field(default_factory=Counter)
    turn: int = 0
    _open: deque[tuple[Family, ...]] = field(default_factory=deque)
    _drawing: deque[tuple[Source, Future]] = field(default_factory=deque)

    def run(self) -> bool:
        """Whether nothing is left."""
        end = time.monotonic() + self.seconds
        size = self.workers or max((os.cpu_count() or 2) - 1, 1)
        left = deque(self.sources)
        compiling: dict[Future, tuple[Family, ...]] = {}
        measuring: dict[Future, Compiled[str]] = {}
        shown = time.monotonic()
        folder = self.sets.folder
        with (
            Pool(
                size,
                limit=COMPILE_LIMIT_S,
                begin=begin_compiling,
                words=(folder, self.architecture),
            ) as makers,
            Pool(
                1,
                limit=self.patience,
                begin=begin_measuring,
                words=(folder, self.target),
                background=False,
            ) as device,
        ):
            try:
                self._describe(device)
                while time.monotonic() < end:
                    self._feed(makers, left, compiling, size, len(measuring))
                    waiting = {*compiling, *measuring, *(future for _, future in self._drawing)}
                    if not waiting and not left and not self._open:
                        return True
                    finished, _ = wait(waiting, 0.5, FIRST_COMPLETED)
                    for future in finished & compiling.keys():
                        for made in self._made(future, compiling.pop(future)):
                            measuring[device.submit(measured, made)] = made
                    for future in finished & measuring.keys():
                        self._rows(device, future, measuring.pop(future), measuring)
                    if time.monotonic() - shown > SHOW_S:
                        shown = time.monotonic()
                        self.say(f'{self.state()}, {end - shown:.0f} s left')
                return False
            finally:
                self.sets.close()

    def state(self) -> str:
        told = ', '.join(f'{count} {status}' for status, count in sorted(self.counts.items()))
        return f'turn {self.turn}: {told or "nothing yet"}'

    def _describe(self, device: Pool) -> None:
        """The machine beside the rows."""
        told = device.submit(machine_of).result() | {'tilewright': VERSION}
        (self.sets.folder / 'dataset.json').write_text(json.dumps(told, indent=1) + '\n')

    def _feed(
        self, makers: Pool, left: deque[Source], compiling: dict, size: int, ready: int
    ) -> None:
        """Keep the compilers busy, but not so far ahead that everything waits for the device."""
        while left and len(self._drawing) < DRAWN_AHEAD and len(self._open) < 4 * size:
            source = left.popleft()
            self._drawing.append((source, makers.submit(drawn, source, self.machine)))
        while self._drawing and self._drawing[0][1].done():
            source, future = self._drawing.popleft()
            self.turn = source.turn
            try:
                found: list[Family] = future.result()
            except TilewrightError as error:
                self.say(f'{source.digest}, turn {source.turn}: {error}')
                continue
            open_ = [f for f in map(self.sets.claimed, found) if f is not None]
            self.counts['known'] += sum(len(f.schedules) for f in found)
            self.counts['known'] -= sum(len(f.schedules) for f in open_)
            self._open.extend(chunks(open_, self.chunk))
        while self._open and len(compiling) < 2 * size and ready < READY:
            chunk = self._open.popleft()
            compiling[makers.submit(compiled, chunk)] = chunk

    def _made(self, future: Future, chunk: tuple[Family, ...]) -> list[Compiled[str]]:
        schedules = [schedule for family in chunk for schedule in family.schedules]
        return compiled_or_refused(future, chunk[0].digest, schedules)

    def _rows(self, device: Pool, future: Future, made: Compiled[str], measuring: dict) -> None:
        def again(part: Compiled[str]) -> None:
            measuring[device.submit(measured, part)] = part

        for row in rows_or_again(future, made, GroupRow, again, self.say):
            self.sets.add(row)
            self.counts[row.status] += 1
