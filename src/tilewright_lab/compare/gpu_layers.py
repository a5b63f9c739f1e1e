"""Layers on a GPU: search, check, time; finalists again beside cuDNN and others.

Goes in: a group, options, a store. Comes out: a `GpuLayer`. Kernels are compiled by NVRTC in many
processes (gpu_compiler.py) and run in one that may die (runtime/gpu/worker.py). Whatever is
measured is stored under the device, this package and the compiler, so that the same command goes on
where it was interrupted, and later ones start from the best that is known.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from tilewright.errors import InputError, ScheduleError
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import gpu_bounds, schedule_bounds
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.gpu.session import TARGETS
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.runtime.measure import Measurement
from tilewright.runtime.worker import Answer
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright.search.gpu.tune import Rank, Tried, tune
from tilewright.store import tuned
from tilewright.store.records import Record, Store
from tilewright.targets.gpu.choose import choice_of
from tilewright.targets.gpu.tuning import NO_THREADS, How, Memory, Place, tuned_on
from tilewright_lab.compare.gpu_compiler import Compiler, Pending
from tilewright_lab.compare.gpu_results import GpuLayer
from tilewright_lab.peers.contestants import peer_names, table_of

DUEL = ('-m', 'tilewright_lab.compare.gpu_duel')
HINTS = 6
HOPELESS = 3.0  # a candidate this much slower than the best is not timed further
TUNING_LIMIT_S = 600.0  # of a peer that tunes


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """What is searched and compared, and how long; `starts` are measured before all others."""

    target: str = 'cuda'
    device: str = ''
    peers: tuple[str, ...] = ('cudnn',)
    trials: int = 128
    seconds: float = math.inf
    finalists: int = 4
    rounds: int = 9
    repeats: int = 5
    batch_of_builds: int = 32
    processes: int | None = None
    schemas: tuple[str, ...] | None = None
    starts: tuple[GpuSchedule, ...] = ()

    def check(self) -> None:
        if self.target not in TARGETS:
            raise InputError(f'--target {self.target!r}; choose one of {", ".join(TARGETS)}')
        known = [name for name in peer_names('layer', 'gpu') if name != self.target]
        for name in self.peers:
            if name not in known:
                raise InputError(
                    f'--against {name!r} on {self.target}; choose from {", ".join(known)}'
                )
        for name in ('trials', 'seconds', 'finalists', 'rounds', 'repeats'):
            if not getattr(self, name) > 0:
                raise InputError(f'{name} is {getattr(self, name)}; it must be above 0')

    @property
    def rival(self) -> str:
        return self.peers[0] if self.peers else ''


Say = Callable[[str], object]
Ranker = Callable[[Group, GpuMachine], Rank]


def by_model(group: Group, machine: GpuMachine) -> Rank:
    """The ranker of model/gpu/time.py; what does not fit by the registers that it expects comes
    last.
    """

    def seconds(schedule: GpuSchedule) -> float:
        try:
            return predict_gpu(group, schedule, machine).seconds
        except ScheduleError:
            return math.inf

    return seconds


class GpuBench:
    """A device and its compiler processes, from layer to layer; use it in a `with` statement.

    `ranker` gives for a group and a machine what `search.gpu_tune` takes as `rank`; None draws at
    random.
    """

    def __init__(
        self,
        options: GpuOptions,
        store: Store,
        seed: int,
        *,
        ranker: Ranker | None = by_model,
        say: Say = lambda text: None,
    ) -> None:
        options.check()
        self.options, self.store, self.seed, self.say = options, store, seed, say
        self.ranker = ranker
        self._stack = ExitStack()

    def __enter__(self) -> GpuBench:
        """Raises MissingError where there is no such device."""
        o = self.options
        self.worker = self._stack.enter_context(
            GpuWorker(o.target, o.device, seed=self.seed, command=DUEL)
        )
        try:
            self.opened = opened = self.worker.open()
            self.compiler = (
                self._stack.enter_context(Compiler(opened.architecture, o.processes))
                if opened.architecture else None
            )  # fmt: skip
        except BaseException:
            self._stack.close()
            raise
        self.place = Place.described(
            opened.target, o.device, opened.machine, opened.architecture or '', opened.versions
        )
        self.validators = Memory.of(self.store, self.place).validators
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def layer(self, name: str, group: Group) -> GpuLayer:
        """Search one layer, then compare."""
        began = time.monotonic()
        tried = self._tune(name, group)
        spent = time.monotonic() - began
        working = [t for t in tried if t.seconds is not None]
        machine = self.opened.machine
        found = GpuLayer(
            name, group.label, group.digest, group.flops, machine, self.options.rival,
            tried=len(tried), worked=len(working), tuning_s=spent,
        )  # fmt: skip
        if not working:
            return replace(found, message='no candidate worked')
        self._remember(group, working[0], len(tried))
        contestants, extra, message = self._duel(group, working[: self.options.finalists])
        extra['candidates'] = [
            {'schedule': t.schedule.to_json(), 'us': t.seconds and 1e6 * t.seconds, 'step': t.step}
            for t in tried
        ]
        found = replace(found, contestants=contestants, extra=extra, message=message)
        best = found.schedule
        bounds = schedule_bounds(group, best, machine) if best else gpu_bounds(group, machine)
        return replace(found, bounds=bounds)

    def _remember(self, group: Group, best: Tried, trials: int) -> None:
        """The fastest so far, for networks and `optimize` to find."""
        where = tuned_on(self.place, How(), group, DEFAULT_LIMIT)
        choice = choice_of(group, best.schedule, self.opened.machine)
        assert best.seconds is not None
        tuned.remember(group, where, replace(choice, predicted_s=best.seconds), trials)

    def submitted(self, group: Group, schedules: Sequence[GpuSchedule]) -> dict[str, Pending]:
        """Compilations of those that are not stored, by digest; none where nothing is compiled."""
        if self.compiler is None:
            return {}
        known = self.store.known(group.digest, NO_THREADS, self.validators)
        new = [s for s in schedules if s.digest not in known]
        return {s.digest: self.compiler.submit(group, s) for s in new}

    def measured(
        self, name: str, group: Group, schedules: Sequence[GpuSchedule],
        pending: Mapping[str, Pending] | None = None,
    ) -> dict[str, float | None]:  # fmt: skip
        """Seconds by digest of given schedules, stored ones not again; None: it does not work.

        `pending`: what `submitted` gave, where it was asked before.
        """
        if pending is None:
            pending = self.submitted(group, schedules)
        known = self.store.known(group.digest, NO_THREADS, self.validators)
        for schedule in schedules:
            if schedule.digest in known:
                continue
            built = pending[schedule.digest].result() if pending else None
            best = min((m.median_ms for m in known.values() if m.median_ms), default=None)
            known[schedule.digest] = self._attempt(group, schedule, built, best)
        best = min((m.median_ms for m in known.values() if m.median_ms), default=None)
        at = 'nothing works yet' if best is None else f'best {1e3 * best:.2f} us'
        self.say(f'{name}: {len(known)} measured, {at}')
        medians = {s.digest: known[s.digest].median_ms for s in schedules}
        return {digest: None if ms is None else ms / 1e3 for digest, ms in medians.items()}

    def _tune(self, name: str, group: Group) -> list[Tried]:
        def measure(schedules: Sequence[GpuSchedule]) -> list[float | None]:
            found = self.measured(name, group, schedules)
            return [found[s.digest] for s in schedules]

        o, machine = self.options, self.opened.machine
        return tune(
            moves(group, machine, o.schemas), measure, trials=o.trials, starts=self._hints(group),
            rank=self.ranker(group, machine) if self.ranker else None,
            seed=random.Random(group.digest).getrandbits(32),  # the same, so that a run goes on
            batch=o.batch_of_builds, seconds=o.seconds,
        )  # fmt: skip

    def _hints(self, group: Group) -> list[GpuSchedule]:
        """What was given, and the best that is known of a group, from here and from other devices
        and versions.
        """
        found = {s.digest: s for s in self.options.starts}
        for records in (
            self.store.find(group.digest, NO_THREADS, self.validators),
            self.store.stale(group.digest, NO_THREADS, self.validators),
        ):
            timed = [r for r in records if r.measurement.median_ms is not None]
            timed.sort(key=lambda r: r.measurement.median_ms or math.inf)
            for record in timed[:HINTS]:
                found[record.schedule_digest] = GpuSchedule.from_json(record.schedule)
        space = moves(group, self.opened.machine, self.options.schemas)
        return [s for s in found.values() if space.legal(s)]

    def _attempt(
        self, group: Group, schedule: GpuSchedule, built: Built | None, best_ms: float | None
    ) -> Measurement:
        worth = None if best_ms is None else HOPELESS * best_ms
        answer, said = self.worker.attempt(group, schedule, built, self.options.repeats, worth)
        found = Measurement(
            schedule.digest, answer.status, answer.samples_ms, answer.max_rel_err, answer.message
        )
        self.store.put(
            Record(
                group.digest, group.label, schedule.to_json(), schedule.digest, NO_THREADS,
                self.validators, found, {'resources': said.get('resources', [])},
            )
        )  # fmt: skip
        return found

    def _duel(
        self, group: Group, finalists: Sequence[Tried]
    ) -> tuple[tuple[dict, ...], dict, str]:  # fmt: skip
        """(contestants, versions of libraries, what went wrong)."""
        o = self.options
        ours = []
        for one in finalists:
            built = self.compiler.submit(group, one.schedule).result() if self.compiler else None
            if built is None or not built.error:
                files = built.to_json() if built else None
                ours.append({'schedule': one.schedule.to_json(), 'files': files})
        rows = {name: table_of('layer', 'gpu')[name] for name in o.peers}
        limit = self.worker.time_limit * (2 + len(ours)) + TUNING_LIMIT_S * sum(
            row.tuned for row in rows.values()
        )
        functions = {name: row.function for name, row in rows.items()}
        paths = list(filter(None, sys.path))  # where a registered one is found by us
        reply = self.worker.ask(
            group, {'do': 'duel', 'ours': ours, 'peers': functions, 'paths': paths,
                    'rounds': o.rounds, 'repeats': o.repeats}, limit,
        )  # fmt: skip
        if isinstance(reply, Answer):
            return (), {}, f'the comparison {reply.status}: {reply.message}'
        if reply['status'] != 'ok':
            return (), {}, f'the comparison failed: {reply["message"]}'
        extra = {'libraries': reply['libraries']} if reply['libraries'] else {}
        return tuple(reply['contestants']), extra, ''
