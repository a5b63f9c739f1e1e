"""The code selector: a vendor's library in the place of our kernels, wherever it is faster.

Goes in: groups, the kernel of ours that was chosen for each, a CUDA device, `libraries=` as it was
asked for. Comes out: the choice for each group, ours or the library's. Both are timed on the device
one after the other, alone, with all that stands behind the sums; nothing is timed where no library
can compute a group. Several groups are prepared at a time, each with a process of its own for the
library's calls, which may die without harm; what came of them is in the store, and what was
selected is remembered by the libraries' versions.

    none   generated code alone        auto   the faster one
    only   the library wherever it can compute the group, by the fastest of its algorithms
"""

from __future__ import annotations

import math
import queue
import threading
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field

from tilewright.errors import CheckError, MissingError, TilewrightError
from tilewright.kernels.gpu.module import with_own_dims
from tilewright.kernels.gpu.precision import half_error
from tilewright.kernels.gpu.registry import is_library
from tilewright.kernels.gpu.schemas.library import why_not
from tilewright.kernels.gpu.schemas.library.calls import TITLES, version_text
from tilewright.knobs import debug
from tilewright.model.gpu.bounds import schedule_bounds
from tilewright.ops.group import Group
from tilewright.runtime.gpu.libraries.table import available
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.runtime.measure import Measurement
from tilewright.runtime.worker import Answer
from tilewright.schedule.choice import Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright.store import tuned
from tilewright.store.records import open_store
from tilewright.targets.gpu.code import build
from tilewright.targets.gpu.tuning import HOPELESS, NO_THREADS, REPEATS, Memory, Place, Report

PROPOSING_S = 120.0  # a library loads itself when it is asked first
MOST_SESSIONS = 8  # each of them loads the libraries, a gigabyte of code


def libraries_here(mode: str) -> dict[str, int]:
    """name -> version of the libraries that may compete; says which are missing.

    Raises MissingError where libraries alone are wanted and there are none.
    """
    versions, missing = available()
    if mode == 'only' and not versions:
        raise MissingError(missing[0])
    for sentence in missing:
        warnings.warn(sentence, stacklevel=4)
    return versions


def select(
    groups: Mapping[str, Group],
    best: Mapping[str, Choice],
    place: Place,
    mode: str,
    max_rel_err: float,
    report: Report | None = None,
    open_worker: Callable[[], GpuWorker] | None = None,
) -> dict[str, Choice]:
    """The choice for each of these groups, by the same names.

    `open_worker` starts the process that a library runs in; another one is for tests.
    """
    versions = libraries_here(mode)
    chosen = dict(best)
    left: dict[str, tuple[str, ...]] = {}
    for name, group in groups.items():
        able = tuple(one for one in versions if not why_not(one, group))
        kept = tuned.find(group, _where(place, mode, versions, best[name], max_rel_err), 0, True)
        if able and kept is not None:
            chosen[name] = kept
        elif able:
            left[name] = able
    if not left:
        return chosen
    start = open_worker or (lambda: GpuWorker(place.target, place.name, seed=0))
    # The longest first, so that none works alone at the end.
    order = sorted(left, key=lambda name: -groups[name].flops)
    count = min(place.sessions, MOST_SESSIONS, len(order))
    workers: queue.SimpleQueue[GpuWorker] = queue.SimpleQueue()
    lock, stopped = threading.Lock(), threading.Event()
    with open_store() as store, ExitStack() as stack:
        memory = Memory.of(store, place)
        for _ in range(count):
            workers.put(stack.enter_context(start()))
        threads = stack.enter_context(ThreadPoolExecutor(count))
        stack.callback(stopped.set)  # first of all when it ends, also by an error

        def work(name: str, group: Group, known: Mapping[str, Measurement]) -> _Selection:
            worker = workers.get()
            one = _Selection(group, place, max_rel_err, worker, lock, stopped, known)
            try:
                one.time(None if mode == 'only' else best[name], left[name])
            except TilewrightError as error:  # there is no device, or no reference
                one.trouble = str(error)
            finally:
                workers.put(worker)
            return one

        futures = {}
        for name in order:
            group = with_own_dims(groups[name])
            futures[name] = threads.submit(work, name, group, memory.known(group))
        for done, (name, future) in enumerate(futures.items(), 1):
            group, one = groups[name], future.result()
            for schedule, measured in one.measured.items():
                memory.put(one.group, schedule, measured)
            found = one.winner(best[name])
            if found is None:
                warnings.warn(
                    f'{group.label} is left to our kernel: {one.trouble}', stacklevel=4
                )  # fmt: skip
            else:
                chosen[name] = found
                where = _where(place, mode, versions, best[name], max_rel_err)
                tuned.remember(group, where, found, len(one.times), True)
            if report is not None:
                report(group, done, len(left))
    return chosen


def _where(
    place: Place, mode: str, versions: Mapping[str, int], ours: Choice, max_rel_err: float
) -> tuned.Where:
    """Where selections are remembered: between these libraries and this kernel of ours."""
    device = {'name': place.machine.name, 'versions': place.versions}
    how = {'libraries': mode, 'of': dict(versions), 'ours': ours.schedule.digest}
    return tuned.Where(place.target, device, NO_THREADS, max_rel_err, 'auto', how)


def library_name(schedule: GpuSchedule) -> str:
    """'cuDNN 9.19.0' of a schedule that calls it."""
    return f'{TITLES[schedule.schema]} {version_text(schedule["version"])}'


@dataclass(slots=True)
class _Selection:
    """One group: every candidate checked and timed. One thread works on it at a time.

    lock     whoever holds it may run something on the device
    stopped  nothing more is to be tried
    known    what was measured before, by the digests of schedules
    """

    group: Group
    place: Place
    max_rel_err: float
    worker: GpuWorker
    lock: threading.Lock
    stopped: threading.Event
    known: Mapping[str, Measurement]
    trouble: str = 'no library proposes anything'
    times: dict[GpuSchedule, float] = field(default_factory=dict)
    measured: dict[GpuSchedule, Measurement] = field(default_factory=dict)

    def winner(self, ours: Choice) -> Choice | None:
        """The fastest that was timed; None where nothing could be."""
        if not self.times:
            return None
        fastest = min(self.times, key=lambda schedule: self.times[schedule])
        debug(2, f'{self.group.label}: {schedule_text(fastest)}, '
                 f'{1e6 * self.times[fastest]:.2f} us of {len(self.times)}')  # fmt: skip
        if not is_library(fastest):
            return ours
        bounds = schedule_bounds(self.group, fastest, self.place.machine)
        return Choice(fastest, self.times[fastest], bounds.seconds, bounds.by)

    def time(self, ours: Choice | None, libraries: tuple[str, ...]) -> None:
        """All candidates: ours, unless it is None, and what the libraries propose."""
        proposed = [s for name in libraries for s in self._proposed(name)]
        if ours is not None:
            # Timed anew: it runs beside the libraries, as warm as they do.
            self._attempt(ours.schedule, {})
        for schedule in proposed:
            self._attempt(schedule, self.known)

    def _proposed(self, library: str) -> list[GpuSchedule]:
        said = self.worker.ask(
            self.group, {'do': 'proposals', 'library': library}, PROPOSING_S
        )  # fmt: skip
        if isinstance(said, Answer) or said['status'] != 'ok':
            self.trouble = said.message if isinstance(said, Answer) else said['message']
            debug(1, f'{self.group.label}: {TITLES[library]} proposes nothing: {self.trouble}')
            return []
        return [GpuSchedule.from_json(data) for data in said['schedules']]

    def _attempt(self, schedule: GpuSchedule, known: Mapping[str, Measurement]) -> None:
        found = known.get(schedule.digest)
        # A wrong answer stays wrong; a time is of now, beside the others.
        if found is None or found.ok:
            found = self._measured(schedule)
        limit = self.max_rel_err + half_error(self.group)
        if found.median_ms is None or (found.max_rel_err or 0.0) > limit:
            self.trouble = (
                found.message or f'{schedule_text(schedule)} has an error of {found.max_rel_err}'
            )
            return
        self.times[schedule] = found.median_ms / 1e3

    def _measured(self, schedule: GpuSchedule) -> Measurement:
        fastest = min(self.times.values(), default=math.inf)
        worth = None if fastest == math.inf else 1e3 * HOPELESS * fastest
        target = self.place.architecture
        # A library compiles nothing; what is behind its call is compiled where it runs.
        built = build(self.group, schedule, target) if target and not is_library(schedule) else None
        with self.lock:
            if self.stopped.is_set():
                raise CheckError(f'the selection for {self.group.label} was given up')
            answer, _ = self.worker.attempt(self.group, schedule, built, REPEATS, worth)
        found = Measurement(
            schedule.digest, answer.status, answer.samples_ms, answer.max_rel_err, answer.message
        )
        self.measured[schedule] = found
        return found


def without_missing(
    saved: Mapping[str, Choice],
    groups: Mapping[str, Group],
    try_out: Callable[[Group, GpuSchedule], object],
    by_model: Callable[[Mapping[str, Group]], Mapping[str, tuple[Choice, ...]]],
    path: object,
) -> dict[str, Choice]:
    """The choices of a file, ours by the model where their library cannot be used here.

    `try_out` makes the call of a library ready, or raises.
    """
    lost: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for name, choice in saved.items():
        if not is_library(choice.schedule):
            continue
        label = library_name(choice.schedule)
        try:
            if label not in reasons:
                try_out(groups[name], choice.schedule)
                continue
        except TilewrightError as error:
            reasons[label] = str(error)
        lost[name] = label
    if not lost:
        return dict(saved)
    for label, reason in reasons.items():
        count = sum(1 for one in lost.values() if one == label)
        warnings.warn(
            f'{path} has {label} compute {count} of its {len(saved)} groups, which our kernels do '
            f'here: {reason}',
            stacklevel=5,
        )
    found = by_model({name: groups[name] for name in lost})
    return {name: found[name][0] if name in lost else choice for name, choice in saved.items()}
