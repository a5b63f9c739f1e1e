"""The fastest schedule of every group of a network, found by timing on the device.

Goes in: groups, what the model chose for each, a device. Comes out: the fastest that computes its
group's reference. Distinct cores (network/chooser.py) are searched once, from the model's choices
on, by one of `SEARCHES`, with a model that ranks what is tried (rank/rankers.py). What was found
is remembered. Several groups are searched at a time, and the work of all of them is in processes:

    search    one a group (labour.py): proposes and ranks, and asks this process for times
    compiler  as many as there are cores, for whatever group has kernels to compile
    session   one a group (runtime/gpu/worker.py): has the device, and may die without harm

Only one kernel is timed at any time. Whatever else runs meanwhile gives way to the sessions.
"""

from __future__ import annotations

import contextlib
import math
import queue
import statistics
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from tilewright.errors import CheckError, InputError, TilewrightError
from tilewright.kernels.gpu.module import with_own_dims
from tilewright.machine.gpu import GpuMachine
from tilewright.network.chooser import usable_cores
from tilewright.network.gpu.choose import (
    GpuChoice,
    choice_of,
    has_products,
    is_legal,
    is_precise,
    is_thin,
    recalled,
)
from tilewright.network.gpu.code import build
from tilewright.network.gpu.labour import Pool
from tilewright.ops.group import Group
from tilewright.pipeline import debug
from tilewright.rank.files import SEARCHED
from tilewright.rank.online import Online
from tilewright.rank.rankers import ranker_for
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves, schedule_text
from tilewright.search.gpu.strategies import search
from tilewright.search.gpu.tune import Measure, Tried, tune
from tilewright.store import choices

AT_ONCE = 4, 16  # groups that are searched at a time: as many as cores, but no fewer and no more
SESSION_BYTES = 2 << 30  # of the device's memory for each of them, where it is known
REPEATS = 7
SAMPLED = 2_000  # candidates of a group; whether each is legal is found out by generating it
HOPELESS = 2.0  # a candidate this much slower than the best is not timed further

Report = Callable[[Group, int, int], object]
# What finds schedules: (measure, trials, starts) -> what was tried, best first.
Find = Callable[[Measure, int, Sequence[GpuSchedule]], list[Tried]]


@dataclass(frozen=True, slots=True)
class Place:
    """The device that is measured on; `architecture` of CUDA's, else ''; `free_bytes` of its memory
    where it can tell, else None.
    """

    target: str
    name: str
    machine: GpuMachine
    architecture: str
    free_bytes: int | None = None

    @classmethod
    def of(cls, device: Device, target: str, name: str = '') -> Place:
        architecture = getattr(device, 'architecture', '')
        return cls(target, name, device.machine, architecture, device.free_bytes())

    @property
    def sessions(self) -> int:
        """Groups that may be searched at a time."""
        fitting = AT_ONCE[0] if self.free_bytes is None else self.free_bytes // SESSION_BYTES
        return max(1, min(max(AT_ONCE[0], min(usable_cores(), AT_ONCE[1])), fitting))


SEARCHES = ('local', 'random', 'top', 'genetic', 'online')


@dataclass(frozen=True, slots=True)
class How:
    """How schedules are searched.

    model    what ranks them: analytical, forest, gat, auto, or a file of a model
    search   local (search/gpu/tune.py: changes of the best), or one of search/gpu/strategies.py;
             'genetic' goes on learning from what it measures, 'online' begins from nothing: neither
             with a model nor with what one has chosen
    seed     another one draws other candidates
    algorithm  of convolutions: auto, direct, or winograd where it applies
    """

    model: str = 'analytical'
    search: str = 'local'
    seed: int = 0
    algorithm: str = 'auto'

    def __post_init__(self) -> None:
        if self.search not in SEARCHES:
            raise InputError(f'search is {self.search!r}; choose one of {", ".join(SEARCHES)}')

    @property
    def from_nothing(self) -> bool:
        return self.search == 'online'

    def check(self, group: Group, machine: GpuMachine) -> None:
        """Raise InputError where no such model knows the machine; warn where another one ranks."""
        chosen = ranker_for(self.model, group, machine, SEARCHED)
        if chosen.fell_back:
            warnings.warn(chosen.note, stacklevel=3)

    def key(self, group: Group, machine: GpuMachine) -> dict[str, Any]:
        """What the store remembers results by, beside the group: also what a model learned from."""
        if self == How():
            return {}
        content = ''
        with contextlib.suppress(InputError):  # `check` says so, where something is searched
            content = ranker_for(self.model, group, machine, SEARCHED).content
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
                batch=max(trials // 2, 1),
            )  # fmt: skip
        prior = None if self.from_nothing else chosen.ranker
        learns = self.search in ('online', 'genetic')
        model = Online(group, machine, prior=prior, seed=seed) if learns else chosen.ranker
        return search(
            space, measure, self.search, trials=trials, model=model, starts=starts, seed=seed,
            sampled=sampled or SAMPLED,
        )  # fmt: skip


def hunt(
    measure: Measure, how: How, group: Group, machine: GpuMachine, trials: int,
    starts: Sequence[GpuSchedule], sampled: int,
) -> list[Tried]:  # fmt: skip
    """`How.search_for` as a piece of work for another process, which asks here for times."""
    return how.search_for(group, machine, measure, trials=trials, starts=starts, sampled=sampled)


def fastest(
    groups: Mapping[str, Group],
    chosen: Mapping[str, Sequence[GpuChoice]],
    place: Place,
    trials: int,
    max_rel_err: float,
    report: Report | None = None,
    how: How = How(),  # noqa: B008 (it is a value)
) -> dict[str, GpuChoice]:
    """The fastest schedule for each of these groups, by the same names."""
    asked = how.key(next(iter(groups.values())), place.machine) if groups else {}
    keys = {
        name: choices.key_of(
            {
                'measured': group.digest, 'gpu': place.machine.to_json(), 'target': place.target,
                'trials': trials, 'max_rel_err': max_rel_err, **asked,
            },
            choices.GPU_DECIDES,
        )
        for name, group in groups.items()
    }  # fmt: skip
    best = {name: kept[0] for name, key in keys.items() if (kept := recalled(key))}
    # Sessions hold floats; and where nothing is searched, one choice is the best of its kind.
    best |= {
        name: chosen[name][0]
        for name, group in groups.items()
        if name not in best
        and (not group.is_plain or (len(chosen[name]) == 1 and not is_searched(group)))
    }
    left = [name for name in groups if name not in best]
    if not left:
        return best
    how.check(groups[left[0]], place.machine)
    lock, stopped = threading.Lock(), threading.Event()
    troubles: dict[str, str] = {}
    # The longest first, so that none works alone at the end.
    left.sort(key=lambda name: -groups[name].flops)
    count = min(place.sessions, len(left))
    workers: queue.SimpleQueue[GpuWorker] = queue.SimpleQueue()
    with ExitStack() as stack:
        pool = stack.enter_context(Pool())
        searchers = stack.enter_context(Pool(count))
        for _ in range(count):
            workers.put(stack.enter_context(GpuWorker(place.target, place.name, seed=0)))
        threads = stack.enter_context(ThreadPoolExecutor(count))
        # First of all when it ends, also by an error: no thread goes on with what is left.
        stack.callback(searchers.end)
        stack.callback(stopped.set)

        def work(name: str) -> GpuChoice:
            group = with_own_dims(groups[name])

            def find(
                measure: Measure, count: int, starts: Sequence[GpuSchedule]
            ) -> list[Tried]:  # fmt: skip
                words = (how, group, place.machine, count, starts, SAMPLED)
                if len(left) == 1:
                    return hunt(measure, *words)
                return searchers.submit(hunt, *words, answer=measure).result()

            one = _Search(group, chosen[name], place, max_rel_err, pool, lock, stopped)
            worker = workers.get()
            try:
                return one.run(worker, trials, find, how.from_nothing)
            except TilewrightError as error:
                troubles[name] = str(error)
                return chosen[name][0]
            finally:
                workers.put(worker)

        for done, (name, found) in enumerate(zip(left, threads.map(work, left), strict=True), 1):
            best[name] = found
            if name not in troubles:
                choices.keep(keys[name], [found.to_json()])
            if report is not None:
                report(groups[name], done, len(left))
    for name, trouble in troubles.items():
        warnings.warn(
            f'{groups[name].label} was not measured, the model chooses: {trouble}', stacklevel=4
        )
    return best


def is_searched(group: Group) -> bool:
    """Whether schedules are searched; of other groups those are timed that the model names."""
    return has_products(group) and not is_thin(group)


class _Search:
    """One group: candidates are compiled, checked and timed batch by batch."""

    def __init__(
        self,
        group: Group,
        chosen: Sequence[GpuChoice],
        place: Place,
        max_rel_err: float,
        pool: Pool,
        lock: threading.Lock,
        stopped: threading.Event,
    ) -> None:
        self.group, self.chosen, self.place = group, chosen, place
        self.max_rel_err, self.pool, self.lock, self.stopped = max_rel_err, pool, lock, stopped
        self.best_ms = math.inf
        self.trouble = 'nothing was tried'

    def run(self, worker: GpuWorker, trials: int, find: Find, from_nothing: bool) -> GpuChoice:
        starts = [choice.schedule for choice in self.chosen]
        measure = partial(self._measured, worker)
        if not is_searched(self.group):
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
        found = choice_of(self.group, schedule, self.place.machine)
        return replace(found, predicted_s=took)

    def _measured(
        self, worker: GpuWorker, schedules: Sequence[GpuSchedule]
    ) -> list[float | None]:  # fmt: skip
        target = self.place.architecture
        # Who compiles also finds out what is not legal.
        good = [
            is_precise(self.group, s, self.max_rel_err)
            and (bool(target) or is_legal(self.group, s, self.place.machine))
            for s in schedules
        ]
        built = [
            self.pool.submit(build, self.group, s, target) if fine and target else None
            for s, fine in zip(schedules, good, strict=True)
        ]
        seconds: list[float | None] = []
        for schedule, fine, future in zip(schedules, good, built, strict=True):
            if self.stopped.is_set():
                raise CheckError(f'the search for {self.group.label} was given up')
            made = future.result() if future else None
            if not fine or (made is not None and made.error):
                self.trouble = made.error if made else 'it is not legal'
                seconds.append(None)
                continue
            seconds.append(self._attempt(worker, schedule, made))
        return seconds

    def _attempt(
        self, worker: GpuWorker, schedule: GpuSchedule, built: Built | None
    ) -> float | None:
        if self.best_ms == math.inf:
            worker.prepare(self.group)  # its reference is computed here, while others are timed
        worth = None if self.best_ms == math.inf else HOPELESS * self.best_ms
        with self.lock:
            answer, _ = worker.attempt(self.group, schedule, built, REPEATS, worth)
        if not answer.ok or (answer.max_rel_err or 0.0) > self.max_rel_err:
            self.trouble = answer.message or f'its error is {answer.max_rel_err}'
            return None
        middle = statistics.median(answer.samples_ms)
        self.best_ms = min(self.best_ms, middle)
        return middle / 1e3
