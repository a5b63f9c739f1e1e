"""The fastest schedule of every group of a network, found by timing on the device.

Goes in: groups, what the model chose for each, a device. Comes out: the fastest that computes its
group's reference. Distinct cores (ops/core.py) are searched once, from the model's choices on, by
one of `SEARCHES`, with a model that ranks what is tried (rank/rankers.py). What was found is
remembered. Several groups are searched at a time, and the work of all of them is in processes:

    search    one a group (runtime/pool.py): proposes and ranks, and asks this process for times
    compiler  as many as there are cores, for whatever group has kernels to compile
    session   one a group (runtime/gpu/worker.py): has the device, and may die without harm

Only one kernel is timed at any time. Whatever else runs meanwhile gives way to the sessions.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tilewright.errors import CheckError, InputError, MissingError, TilewrightError
from tilewright.kernels.gpu.module import with_own_dims
from tilewright.kernels.gpu.precision import half_error
from tilewright.knobs import debug
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.estimates import ESTIMATES, TIME, check_estimate
from tilewright.ops.chain import is_chained
from tilewright.ops.group import Group
from tilewright.ops.integer import is_integer_products
from tilewright.rank.files import SEARCHED
from tilewright.rank.online import Online
from tilewright.rank.rankers import ANALYTICAL, AUTO, ranker_for
from tilewright.rank.rows import row_of
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.session import versions_of
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.runtime.measure import Measurement
from tilewright.runtime.pool import Pool, usable_cores
from tilewright.schedule.choice import Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves, schedule_text
from tilewright.search.gpu.strategies import search
from tilewright.search.gpu.tune import Measure, Tried, tune
from tilewright.store import tuned
from tilewright.store.records import Record, Store, Validators, open_store, package_version
from tilewright.targets.fleet import fleet_at, own_kind, plans
from tilewright.targets.gpu.choose import (
    choice_of,
    has_products,
    is_legal,
    is_precise,
    is_thin,
)
from tilewright.targets.gpu.choose import search as search_model
from tilewright.targets.gpu.code import build
from tilewright.targets.target import Wanted

if TYPE_CHECKING:
    from tilewright.runtime.fleet import Fleet

AT_ONCE = 4, 16  # groups that are searched at a time: as many as cores, but no fewer and no more
SESSION_BYTES = 2 << 30  # of the device's memory for each of them, where it is known
REPEATS = 7
NO_THREADS = 0  # what the store calls threads is a matter of CPUs
POLL_S = 0.05
SAMPLED = 2_000  # candidates of a group; whether each is legal is found out by generating it
TURNS = 4  # of a local search: of few trials, too, half are changes of the best that were timed
KEPT = 16  # of the fastest choices of a group that tuning tells of
HOPELESS = 2.0  # a candidate this much slower than the best is not timed further

Report = Callable[[Group, int, int], object]
# What finds schedules: (measure, trials, starts) -> what was tried, best first.
Find = Callable[[Measure, int, Sequence[GpuSchedule]], list[Tried]]


@dataclass(frozen=True, slots=True)
class Place:
    """The device that is measured on.

    architecture  of CUDA's, else ''
    free_bytes    of its memory, where it can tell
    versions      of driver and compiler, which measurements depend on
    """

    target: str
    name: str
    machine: GpuMachine
    architecture: str
    free_bytes: int | None = None
    versions: str = ''

    @classmethod
    def of(cls, device: Device, target: str, name: str = '') -> Place:
        architecture = getattr(device, 'architecture', '')
        return cls.described(
            target, name, device.machine, architecture, versions_of(target), device.free_bytes()
        )  # fmt: skip

    @classmethod
    def described(
        cls, target: str, name: str, machine: GpuMachine, architecture: str,
        versions: Mapping[str, str], free_bytes: int | None = None,
    ) -> Place:  # fmt: skip
        said = ' '.join(f'{k} {v}' for k, v in versions.items())
        text = f'{said} {architecture}'.strip() or machine.name
        return cls(target, name, machine, architecture, free_bytes, text)

    @property
    def sessions(self) -> int:
        """Groups that may be searched at a time."""
        fitting = AT_ONCE[0] if self.free_bytes is None else self.free_bytes // SESSION_BYTES
        return max(1, min(max(AT_ONCE[0], min(usable_cores(), AT_ONCE[1])), fitting))


SEARCHES = ('local', 'random', 'top', 'genetic', 'online')


@dataclass(frozen=True, slots=True)
class How:
    """How schedules are searched.

    model    what ranks them: auto, analytical, forest, gat, a file of a model; pul or bound, by
             which those are chosen, too, that a search begins with
    search   local (search/gpu/tune.py: changes of the best), or one of search/gpu/strategies.py;
             'genetic' goes on learning from what it measures, 'online' begins from nothing: neither
             with a model nor with what one has chosen
    seed     another one draws other candidates
    algorithm  of convolutions: auto, direct, or winograd or fft where it applies
    """

    model: str = AUTO
    search: str = 'local'
    seed: int = 0
    algorithm: str = 'auto'

    def __post_init__(self) -> None:
        if self.search not in SEARCHES:
            raise InputError(f'search is {self.search!r}; choose one of {", ".join(SEARCHES)}')

    @property
    def from_nothing(self) -> bool:
        return self.search == 'online'

    @property
    def estimate(self) -> str:
        """What orders schedules before any is measured (model/gpu/estimates.py)."""
        return self.model if self.model in ESTIMATES else TIME

    def check(self, group: Group, machine: GpuMachine) -> None:
        """Raise InputError where no such model knows the machine; warn where another one ranks."""
        chosen = ranker_for(self.model, group, machine, SEARCHED)
        if chosen.fell_back:
            warnings.warn(chosen.note, stacklevel=3)

    def key(self, group: Group, machine: GpuMachine) -> dict[str, Any]:
        """What the store remembers results by, beside the group: also what a model learned from."""
        content = ''
        with contextlib.suppress(InputError):  # `check` says so, where something is searched
            content = ranker_for(self.model, group, machine, SEARCHED).content
        if not content and replace(self, model=AUTO) == How() and self.model in (AUTO, ANALYTICAL):
            return {}
        asked = {'algorithm': self.algorithm} if self.algorithm != 'auto' else {}
        return {
            'model': self.model, 'content': content, 'search': self.search, 'seed': self.seed,
            **asked,
        }  # fmt: skip

    def search_for(
        self, group: Group, machine: GpuMachine, measure: Measure, *, trials: int,
        starts: Sequence[GpuSchedule], sampled: int | None = None,
    ) -> list[Tried]:  # fmt: skip
        """What was tried of a group, best first; `sampled`: candidates that a model looks at."""
        chosen = ranker_for(self.model, group, machine, SEARCHED)
        drawn = f'{group.digest} {self.seed}' if self.seed else group.digest
        space = moves(group, machine, algorithm=self.algorithm)
        seed = Random(drawn).getrandbits(32)
        if self.search == 'local':
            return tune(
                space, measure, trials=trials, model=chosen.ranker, starts=starts, seed=seed,
                batch=max(trials // TURNS, 1),
            )  # fmt: skip
        prior = None if self.from_nothing else chosen.ranker
        learns = self.search in ('online', 'genetic')
        model = Online(group, machine, prior=prior, seed=seed) if learns else chosen.ranker
        return search(
            space, measure, self.search, trials=trials, model=model, starts=starts, seed=seed,
            sampled=sampled or SAMPLED,
        )  # fmt: skip


def model_for(prune: str | None, model: str) -> str:
    """The model's name of an estimate; `model` itself where none is asked for."""
    if prune is None:
        return model
    check_estimate(prune)
    if model not in (AUTO, ANALYTICAL):
        raise InputError(
            f'prune={prune!r} and model={model!r} both say what orders candidates; give one of '
            f'them only'
        )
    return ANALYTICAL if prune == TIME else prune


def search_with(
    measure: Measure, how: How, group: Group, machine: GpuMachine, trials: int,
    starts: Sequence[GpuSchedule], sampled: int,
) -> list[Tried]:  # fmt: skip
    """`How.search_for` as a piece of work for another process, which asks here for times."""
    return how.search_for(group, machine, measure, trials=trials, starts=starts, sampled=sampled)


def validators_of(place: Place) -> Validators:
    """What measurements on a device depend on."""
    return Validators(
        f'{place.target}: {place.machine.name}', package_version(), place.versions
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Memory:
    """Measurements of one device that are stored: by whoever tuned a group there before, each with
    what a model learns from (rank/rows.py).
    """

    store: Store
    validators: Validators
    machine: GpuMachine

    @classmethod
    def of(cls, store: Store, place: Place) -> Memory:
        return cls(store, validators_of(place), place.machine)

    def known(self, group: Group) -> dict[str, Measurement]:
        """By the digest of their schedules."""
        return self.store.known(group.digest, NO_THREADS, self.validators)

    def timed(self, group: Group) -> list[GpuSchedule]:
        """Schedules that were timed, the fastest first."""
        found = self.store.find(group.digest, NO_THREADS, self.validators)
        times = [(r.measurement.median_ms, r) for r in found if r.measurement.median_ms is not None]
        times.sort(key=lambda pair: (pair[0], pair[1].schedule_digest))
        return [GpuSchedule.from_json(record.schedule) for _, record in times]

    def put(self, group: Group, schedule: GpuSchedule, measurement: Measurement) -> None:
        self.store.put(
            Record(
                group.digest, group.label, schedule.to_json(), schedule.digest, NO_THREADS,
                self.validators, measurement, {'learned': row_of(group, self.machine, schedule)},
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What tuning found of one group: choices with their measurements, the fastest first.

    Without measurements the choice was known before, or there was nothing to choose.
    """

    choices: tuple[Choice, ...]
    measurements: tuple[Measurement, ...] = ()
    trouble: str = ''


def tuned_on(place: Place, how: How, group: Group, max_rel_err: float) -> tuned.Where:
    """Where results of tuning on this device are stored."""
    device = {'name': place.machine.name, 'versions': place.versions}
    return tuned.Where(
        place.target, device, NO_THREADS, max_rel_err, how.algorithm,
        how.key(group, place.machine),
    )  # fmt: skip


def fastest(
    groups: Mapping[str, Group],
    chosen: Mapping[str, Sequence[Choice]],
    place: Place,
    trials: int,
    max_rel_err: float,
    report: Report | None = None,
    how: How = How(),  # noqa: B008 (it is a value)
    fleet: str | Fleet | None = None,
) -> dict[str, Choice]:
    """The fastest schedule for each of these groups, by the same names."""
    if not groups:
        return {}
    where = tuned_on(place, how, next(iter(groups.values())), max_rel_err)
    best: dict[str, Choice] = {}
    for name, group in groups.items():
        kept = tuned.find(group, where, trials)
        if kept is not None:
            best[name] = kept
        # Other types are not timed; and where nothing is searched, one choice is the best there is.
        elif not (group.is_plain or group.half or is_integer_products(group)) or (
            len(chosen[name]) == 1 and not is_searched(group)
        ):
            best[name] = chosen[name][0]
    left = {name: group for name, group in groups.items() if name not in best}
    asked = left, chosen, place, trials, max_rel_err, report, how
    outcomes = tune_groups(*asked) if fleet is None else tune_on_fleet(fleet, *asked)
    for name, found in outcomes.items():
        best[name] = found.choices[0]
        if found.trouble:
            warnings.warn(
                f'{groups[name].label} was not measured, the model chooses: {found.trouble}',
                stacklevel=4,
            )
    return best


def tune_on_fleet(
    fleet: str | Fleet,
    groups: Mapping[str, Group],
    chosen: Mapping[str, Sequence[Choice]],
    place: Place,
    trials: int,
    max_rel_err: float,
    report: Report | None,
    how: How,
) -> dict[str, Outcome]:
    """`tune_groups` on devices of a fleet that are of the same kind as this one."""
    if not groups:
        return {}
    opened = fleet_at(fleet, place.target)
    pieces = {
        name: (
            group,
            Wanted(
                top=KEPT, trials=trials, model=how.model, search=how.search, seed=how.seed,
                algorithm=how.algorithm, max_rel_err=max_rel_err, chosen=tuple(chosen[name]),
            ),
        )
        for name, group in groups.items()
    }  # fmt: skip
    outcomes: dict[str, Outcome] = {}
    for name, made in plans(opened, own_kind(opened, place.machine.name), pieces):
        group = groups[name]
        timed = [
            (replace(choice_of(group, c.schedule, place.machine), predicted_s=c.time_ms / 1e3),
             c.measurement)
            for c in made.candidates
            if c.time_ms is not None and c.measurement is not None
        ]  # fmt: skip
        trouble = '' if timed else '; '.join(made.warnings) or 'no kernel of it worked'
        found = tuple(choice for choice, _ in timed)
        outcomes[name] = Outcome(
            found or tuple(chosen[name]), tuple(m for _, m in timed), trouble
        )  # fmt: skip
        if report is not None:
            report(group, len(outcomes), len(groups))
    return outcomes


def tune_groups(
    groups: Mapping[str, Group],
    chosen: Mapping[str, Sequence[Choice]],
    place: Place,
    trials: int,
    max_rel_err: float,
    report: Report | None = None,
    how: How = How(),  # noqa: B008 (it is a value)
    store: Store | None = None,
) -> dict[str, Outcome]:
    """Search and time every one of these groups, several at a time; winners are remembered.

    Measurements go to `store`, or else to the user's own; those that are there are not repeated.
    """
    if not groups:
        return {}
    if store is None:
        with open_store() as own:
            return tune_groups(
                groups, chosen, place, trials, max_rel_err, report, how, own
            )  # fmt: skip
    how.check(next(iter(groups.values())), place.machine)
    where = tuned_on(place, how, next(iter(groups.values())), max_rel_err)
    lock, stopped = threading.Lock(), threading.Event()
    # The longest first, so that none works alone at the end.
    left = sorted(groups, key=lambda name: -groups[name].flops)
    count = min(place.sessions, len(left))
    workers: queue.SimpleQueue[GpuWorker] = queue.SimpleQueue()
    outcomes: dict[str, Outcome] = {}
    memory = Memory.of(store, place)
    known = {name: memory.known(groups[name]) for name in left}
    made: queue.SimpleQueue[tuple[str, GpuSchedule, Measurement]] = queue.SimpleQueue()

    def result_of(future: Future[Outcome]) -> Outcome:
        """Wait for it; a store is used from one thread, this one, so measurements come here."""
        while True:
            ended = future.done()
            with contextlib.suppress(queue.Empty):
                while True:
                    name, schedule, measurement = made.get(timeout=0 if ended else POLL_S)
                    memory.put(groups[name], schedule, measurement)
            if ended:
                return future.result()

    with ExitStack() as stack:
        pool = stack.enter_context(Pool())
        searchers = stack.enter_context(Pool(count))
        for _ in range(count):
            workers.put(stack.enter_context(GpuWorker(place.target, place.name, seed=0)))
        threads = stack.enter_context(ThreadPoolExecutor(count))
        # First of all when it ends, also by an error: no thread goes on with what is left.
        stack.callback(searchers.end)
        stack.callback(stopped.set)

        def work(name: str) -> Outcome:
            group = with_own_dims(groups[name])

            def find(
                measure: Measure, count: int, starts: Sequence[GpuSchedule]
            ) -> list[Tried]:  # fmt: skip
                words = (how, group, place.machine, count, starts, SAMPLED)
                if len(left) == 1:
                    return search_with(measure, *words)
                return searchers.submit(search_with, *words, answer=measure).result()

            one = _Search(
                group, chosen[name], place, max_rel_err, pool, lock, stopped, known[name],
                lambda schedule, measured: made.put((name, schedule, measured)),
            )  # fmt: skip
            worker = workers.get()
            try:
                return one.run(worker, trials, find, how.from_nothing)
            except TilewrightError as error:
                return Outcome(tuple(chosen[name]), (), str(error))
            finally:
                workers.put(worker)

        futures = [threads.submit(work, name) for name in left]
        for done, (name, future) in enumerate(zip(left, futures, strict=True), 1):
            outcomes[name] = found = result_of(future)
            if not found.trouble:
                tuned.remember(groups[name], where, found.choices[0], trials)
            if report is not None:
                report(groups[name], done, len(left))
    return outcomes


def _built(future: Future[Built]) -> Built:
    """What came of a compilation; a compiler that dies of a kernel costs that candidate alone."""
    try:
        return future.result()
    except MissingError as error:
        return Built(error=str(error))


def is_searched(group: Group) -> bool:
    """Whether schedules are searched; of other groups those are timed that the model names."""
    return has_products(group) and not is_thin(group)


class _Search:
    """One group: candidates are compiled, checked and timed batch by batch."""

    def __init__(
        self,
        group: Group,
        chosen: Sequence[Choice],
        place: Place,
        max_rel_err: float,
        pool: Pool,
        lock: threading.Lock,
        stopped: threading.Event,
        known: Mapping[str, Measurement],
        record: Callable[[GpuSchedule, Measurement], object],
    ) -> None:
        self.group, self.chosen, self.place = group, chosen, place
        self.max_rel_err, self.pool, self.lock, self.stopped = max_rel_err, pool, lock, stopped
        self.best_ms = math.inf
        self.trouble = 'nothing was tried'
        self.answers: dict[str, Measurement] = dict(known)
        self.record = record

    def run(self, worker: GpuWorker, trials: int, find: Find, from_nothing: bool) -> Outcome:
        starts = [choice.schedule for choice in self.chosen]
        measure = partial(self._measured, worker)
        if not is_searched(self.group):
            if is_chained(self.group) and trials > len(starts):
                more = search_model(self.group, self.place.machine, trials, self.max_rel_err)
                starts = [*dict.fromkeys((*starts, *(choice.schedule for choice in more)))]
            seconds = measure(starts[:trials])
            timed = [(s, t) for s, t in zip(starts, seconds, strict=False) if t is not None]
            timed.sort(key=lambda pair: pair[1])
        else:
            tried = find(measure, trials, () if from_nothing else starts)
            timed = [(t.schedule, t.seconds) for t in tried if t.seconds is not None]
        if not timed:
            raise CheckError(f'no kernel for {self.group.label} works: {self.trouble}')
        schedule, took = timed[0]
        debug(2, f'{self.group.label}: {schedule_text(schedule)}, {1e6 * took:.2f} us, '
                 f'{len(timed)} worked')  # fmt: skip
        found = [
            replace(choice_of(self.group, schedule, self.place.machine), predicted_s=took)
            for schedule, took in timed[:KEPT]
        ]
        kept = [self.answers[choice.schedule.digest] for choice in found]
        return Outcome(tuple(found), tuple(kept))

    def _measured(
        self, worker: GpuWorker, schedules: Sequence[GpuSchedule]
    ) -> list[float | None]:  # fmt: skip
        target = self.place.architecture
        new = [s for s in schedules if s.digest not in self.answers]
        # Who compiles also finds out what is not legal.
        good = [
            s
            for s in new
            if is_precise(self.group, s, self.max_rel_err)
            and (bool(target) or is_legal(self.group, s, self.place.machine))
        ]
        built = {
            s.digest: self.pool.submit(build, self.group, s, target) for s in good if target
        }  # fmt: skip
        for schedule in good:
            if self.stopped.is_set():
                raise CheckError(f'the search for {self.group.label} was given up')
            made = _built(built[schedule.digest]) if target else None
            if made is not None and made.error:
                self.trouble = made.error
            else:
                self._attempt(worker, schedule, made)
        return [self._seconds(schedule) for schedule in schedules]

    def _attempt(self, worker: GpuWorker, schedule: GpuSchedule, built: Built | None) -> None:
        if self.best_ms == math.inf:
            worker.prepare(self.group)  # its reference is computed here, while others are timed
        worth = None if self.best_ms == math.inf else HOPELESS * self.best_ms
        with self.lock:
            answer, _ = worker.attempt(self.group, schedule, built, REPEATS, worth)
        found = Measurement(
            schedule.digest, answer.status, answer.samples_ms, answer.max_rel_err, answer.message
        )
        self.answers[schedule.digest] = found
        self.record(schedule, found)
        self._seconds(schedule)  # the best so far decides how long the next is timed

    def _seconds(self, schedule: GpuSchedule) -> float | None:
        """The median time of one that was measured and is within the budget, else None."""
        found = self.answers.get(schedule.digest)
        if found is None:
            self.trouble = self.trouble or 'it is not legal'
            return None
        limit = self.max_rel_err + half_error(self.group)
        if found.median_ms is None or (found.max_rel_err or 0.0) > limit:
            self.trouble = found.message or f'its error is {found.max_rel_err}'
            return None
        self.best_ms = min(self.best_ms, found.median_ms)
        return found.median_ms / 1e3
