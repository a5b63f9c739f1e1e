"""From sources of schedules to rows: drawn and compiled in many processes, measured in one.

Goes in: sources, the `Recipe` that says how their families are drawn and checked, the files of a
set, a time limit. Comes out: rows, written one by one. Any process may die or hang
(runtime/pool.py): a compilation that is lost is `refused`, a measurement `crashed`, found schedule
by schedule, and the run goes on. What was measured before is left out, so that the same command
goes on where it was cut off.

Recipes: layers.py (CNNOpt's layers and random problems) and groups.py (fused groups of networks).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol

from tilewright.errors import StoreError, TilewrightError
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.pool import Pool
from tilewright.version import VERSION
from tilewright_lab.collect.compiled import (
    Compiled,
    Family,
    Of,
    Translate,
    compile_families,
    cubins,
    refused,
    untranslated,
)
from tilewright_lab.collect.meter import Meter, Present, Row, cuda_meter, host_meter
from tilewright_lab.collect.sets import RowSets, chunks

SHOW_S = 15.0
BESIDE = 3  # chunks that are with each compiling process
OPEN = 4  # chunks for each compiling process from which on no more families are drawn

GroupOf = Callable[[Of], Group]
Say = Callable[[str], object]


class Source(Protocol):
    """Where families come from; `stage` says to people how far a run is."""

    @property
    def stage(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Recipe(Generic[Of]):
    """What differs between data sets. Functions are imported by name in other processes.

    group_of          folder -> what a subject computes
    draw              (source, group_of, machine) -> its families; takes seconds for large samples
    prepare           (group_of, device) -> what puts a subject on the device
    stay, busy        as of a meter: whether subjects stay, whether replays are queued in pairs
    ahead, ready      sources drawn before they are needed; chunks that may wait for the device
    compile_limit_s   of a chunk
    measure_limit_s   of a chunk; the first one starts the device and computes a reference
    readme            written beside the rows where there is one
    """

    group_of: Callable[[Path], GroupOf[Of]]
    draw: Callable[[Any, GroupOf[Of], GpuMachine], list[Family[Of]]]
    prepare: Callable[[GroupOf[Of], Device], Callable[[Of], Present]]
    stay: bool
    busy: bool
    ahead: int
    ready: int
    compile_limit_s: float
    measure_limit_s: float
    readme: str = ''


_recipe: Recipe
_group_of: GroupOf
_translate: Translate
_meter: Meter


def begin_compiling(recipe: Recipe, folder: Path, architecture: str) -> None:
    """What a compiling process does first; no architecture: nothing is compiled."""
    global _recipe, _group_of, _translate
    _recipe, _group_of = recipe, recipe.group_of(folder)
    _translate = cubins(architecture) if architecture else untranslated


def drawn(source: Source, machine: GpuMachine) -> list[Family]:
    return _recipe.draw(source, _group_of, machine)


def compiled(chunk: Sequence[Family]) -> list[Compiled]:
    return compile_families(_group_of(chunk[0].of), chunk, _translate)


def begin_measuring(recipe: Recipe, folder: Path, target: str) -> None:
    global _meter
    prepare = partial(recipe.prepare, recipe.group_of(folder))
    if target == 'cuda':
        _meter = cuda_meter(prepare, stay=recipe.stay, busy=recipe.busy)
    else:
        _meter = host_meter(prepare, stay=recipe.stay)


def measured(made: Compiled) -> list[Row]:
    """Rows of some families. A device that gives errors is not used again: this process ends."""
    try:
        return list(_meter.measure(made))
    except StoreError as error:
        print(error, flush=True)
        os._exit(1)


def machine_of() -> dict:
    """The device that this process measures on."""
    return _meter.device.machine.to_json()


@dataclass
class Collector(Generic[Of]):
    """One run over the sources of a set.

    machine        whose limits the spaces keep
    target         'cuda', or 'host' where there is no GPU: everything but the times is the same
    architecture   what is compiled for; '' compiles nothing
    chunk          families of one compilation
    patience       seconds after which a measurement of a chunk counts as lost [the recipe's]
    most           rows that work after which the run ends; 0 for no limit
    """

    recipe: Recipe[Of]
    sources: Sequence[Source]
    sets: RowSets[Of]
    machine: GpuMachine
    target: str = 'cuda'
    architecture: str = 'sm_90a'
    workers: int = 0
    chunk: int = 8
    seconds: float = 540.0
    patience: float | None = None
    most: int = 0
    say: Say = print
    counts: Counter[str] = field(default_factory=Counter)
    stage: str = ''
    _open: deque[tuple[Family[Of], ...]] = field(default_factory=deque)
    _drawing: deque[tuple[Source, Future]] = field(default_factory=deque)

    def run(self) -> bool:
        """Whether nothing is left."""
        recipe, folder = self.recipe, self.sets.folder
        end = time.monotonic() + self.seconds
        size = self.workers or max((os.cpu_count() or 2) - 1, 1)
        left = deque(self.sources)
        compiling: dict[Future, tuple[Family[Of], ...]] = {}
        measuring: dict[Future, Compiled[Of]] = {}
        shown = time.monotonic()
        with (
            Pool(
                size,
                limit=recipe.compile_limit_s,
                begin=begin_compiling,
                words=(recipe, folder, self.architecture),
            ) as makers,
            Pool(
                1,
                limit=recipe.measure_limit_s if self.patience is None else self.patience,
                begin=begin_measuring,
                words=(recipe, folder, self.target),
                background=False,
            ) as device,
        ):
            try:
                self._describe(device)
                while time.monotonic() < end and not 0 < self.most <= self.counts['ok']:
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
        return f'{self.stage}: {told or "nothing yet"}'

    def _describe(self, device: Pool) -> None:
        """The machine, and what rows mean, beside the rows."""
        told = device.submit(machine_of).result() | {'tilewright': VERSION}
        folder = self.sets.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / 'dataset.json').write_text(json.dumps(told, indent=1) + '\n')
        if self.recipe.readme:
            (folder / 'README.md').write_text(self.recipe.readme)

    def _feed(
        self, makers: Pool, left: deque[Source], compiling: dict, size: int, ready: int
    ) -> None:
        """Keep the compilers busy, but not so far ahead that everything waits for the device."""
        while left and len(self._drawing) < self.recipe.ahead and len(self._open) < OPEN * size:
            source = left.popleft()
            self._drawing.append((source, makers.submit(drawn, source, self.machine)))
        while self._drawing and self._drawing[0][1].done():
            source, future = self._drawing.popleft()
            self.stage = source.stage
            try:
                found: list[Family[Of]] = future.result()
            except TilewrightError as error:
                self.say(f'{source}: {error}')
                continue
            open_ = [f for f in map(self.sets.claimed, found) if f is not None]
            self.counts['known'] += sum(len(f.schedules) for f in found)
            self.counts['known'] -= sum(len(f.schedules) for f in open_)
            self._open.extend(chunks(open_, self.chunk))
        while self._open and len(compiling) < BESIDE * size and ready < self.recipe.ready:
            chunk = self._open.popleft()
            compiling[makers.submit(compiled, chunk)] = chunk

    def _made(self, future: Future, chunk: tuple[Family[Of], ...]) -> list[Compiled[Of]]:
        """What was compiled. Where the process was lost, all schedules are refused."""
        try:
            return future.result()
        except TilewrightError as error:
            schedules = [schedule for family in chunk for schedule in family.schedules]
            return [refused(chunk[0].of, [(s, str(error)) for s in schedules])]

    def _rows(self, device: Pool, future: Future, made: Compiled[Of], measuring: dict) -> None:
        """Write what was measured. Where the process was lost, smaller parts are measured again,
        to know which schedule ends it.
        """
        try:
            rows: list[Row[Of]] = future.result()
        except TilewrightError as error:
            self.say(f'{made.of}: {error}')
            if len(made.schedules) > 1 and made.parts:
                for part in made.smaller():
                    measuring[device.submit(measured, part)] = part
                rows = [Row(made.of, schedule, 'refused') for schedule, _ in made.refused]
            else:
                rows = [Row(made.of, schedule, 'crashed') for schedule in made.schedules]
        for row in rows:
            self.sets.add(row)
            self.counts[row.status] += 1


def works_twice(collector_of: Callable[[], Collector]) -> bool:
    """Whether a run ends with right answers alone, and a second one finds nothing left to do."""
    for turn in range(2):
        collector = collector_of()
        whole = collector.run()
        print('run', turn + 1, dict(collector.counts), 'whole' if whole else 'cut off')
        done = collector.counts['ok']
        if not whole or collector.counts['wrong'] or bool(turn) == bool(done):
            return False
    return True
