"""Samples and final rounds: drawn, built, checked, timed, and written down one by one.

Goes in: a layer, `Records` that may know some of it already. Comes out: more records in it.

A layer is built first, several kernels at a time, while nothing is timed. Then batches of samples
are checked against the float64 reference, each in the worker, and take turns in interleaved rounds;
a turn is a few calls, and its result is compared again. A kernel that crashes, hangs or answers
wrong is recorded as such. Slow samples get fewer turns, since all that they are there for is their
rank; for the slowest the one call of their check has to do (`LayerData.one_call_ms`).

The samples that decide, the best predicted and the best measured, are timed again against each
other in final rounds (A B C A B C ...), because the smallest of many noisy medians is not always
the fastest kernel.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import MissingError, StoreError, TilewrightError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.machine.compiler import build
from tilewright.ops.group import Group
from tilewright.runtime.measure import conditions
from tilewright.runtime.pool import usable_cores
from tilewright.runtime.worker import LEAST_CALLS, WARM_UP_CALLS, Answer, Worker
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.sample import take
from tilewright_lab.figures.dataset import LayerData, Records, Sample
from tilewright_lab.figures.figures import Reporter

ROUNDS = 3
TURN_MS = 20.0  # calls of one turn
BUDGET_MS = 300.0  # all turns of one sample, if its first turn leaves any of it
SLOW = 20.0  # a sample that takes so many times the best so far gets no further turn
BATCH = 32  # samples of one interleaved round
PACKED_BYTES = 2 << 30  # constants that the worker may hold, packed for as many kernels
FINAL_ROUNDS = (3, 9)  # least and most
FINAL_MS = 12_000.0  # of all final rounds of a layer, beyond the least
_GUESS_S = {'build': 0.2, 'check': 0.05, 'turn': 0.1}


@dataclass(slots=True)
class _Pace:
    """Counts steps of every kind, and estimates what is left from the mean of each."""

    report: Reporter
    todo: dict[str, int]
    spent: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in _GUESS_S})
    last: float = field(default_factory=time.monotonic)

    def step(self, kind: str, text: str) -> None:
        now = time.monotonic()
        self.spent[kind].append(now - self.last)
        self.last = now
        self.todo[kind] = max(0, self.todo[kind] - 1)
        done = sum(map(len, self.spent.values()))
        left = sum(count * self._mean(kind) for kind, count in self.todo.items())
        self.report.step(text, done, done + sum(self.todo.values()), left)

    def _mean(self, kind: str) -> float:
        spent = self.spent[kind]
        return sum(spent) / len(spent) if spent else _GUESS_S[kind]


def collect(
    recorder: Records, name: str, group: Group, samples: int, worker: Worker, report: Reporter
) -> LayerData:
    """Add to the record of a layer until it has `samples` schedules, each with its turns."""
    data = recorder.data
    if name not in data.layers:
        recorder.put('layer', name, group=group.to_json())
    layer = data.layers[name]
    known = tuple(layer.samples)
    for schedule in take(group, data.machine, data.threads, data.seed, samples, known):
        key = schedule.digest
        recorder.put('sample', name, key=key, schedule=schedule.to_json())
    waiting = [key for key, sample in layer.samples.items() if _wants_turn(layer, sample)]
    turns = sum(ROUNDS - len(layer.samples[key].turns_ms) for key in waiting)
    pace = _Pace(report, {'build': len(waiting), 'check': len(waiting), 'turn': turns})
    libraries = _build_all(recorder, layer, waiting, pace)
    for batch in _batches(list(libraries), group):
        _check_all(recorder, layer, {key: libraries[key] for key in batch}, worker, pace)
        # The fastest first: what the others are worth is known from then on.
        batch.sort(key=lambda key: layer.samples[key].checked_ms or 0.0)
        for _ in range(ROUNDS):
            recorder.put('state', name, **_state())
            for key in batch:
                if _wants_turn(layer, layer.samples[key]):
                    answer = worker.time(group, libraries[key], min_ms=TURN_MS)
                    recorder.put('turn', name, key=key, **_outcome(answer))
                pace.step('turn', 'sampling')
        if _packed_bytes(group) * BATCH > PACKED_BYTES:
            worker.close()  # with all that it has packed
    return layer


def _check_all(
    recorder: Records, layer: LayerData, libraries: Mapping[str, Path], worker: Worker,
    pace: _Pace,
) -> None:  # fmt: skip
    """Run every kernel once and judge it; the wall clock is kept."""
    for key, library in libraries.items():
        if layer.samples[key].checked_ms is None:
            starts, began = worker.starts, time.monotonic()
            answer = worker.check(layer.group, library)
            if answer.ok and worker.starts != starts:  # that was the reference as well
                began = time.monotonic()
                answer = worker.check(layer.group, library)
            wall_ms = 1e3 * (time.monotonic() - began)
            judged = {k: v for k, v in _outcome(answer).items() if k != 'calls_ms'}
            recorder.put('check', layer.name, key=key, wall_ms=wall_ms, **judged)
        pace.step('check', 'checking')


def finals(
    recorder: Records, layer: LayerData, keys: Sequence[str], worker: Worker, report: Reporter
) -> None:
    """Time samples against each other in interleaved rounds, unless that is on record already."""
    times = layer.times_ms()
    turn_ms = sum(_turn_cost_ms(times[key]) for key in keys)
    least, most = FINAL_ROUNDS
    rounds = min(max(int(FINAL_MS / turn_ms), least), most)
    missing = rounds - len(covering(layer.finals, keys))
    if missing <= 0:
        return
    pace = _Pace(report, {'build': len(keys), 'check': 0, 'turn': missing * len(keys)})
    libraries = _build_all(recorder, layer, keys, pace)
    for _ in range(missing):
        calls: dict[str, list[float]] = {}
        recorder.put('state', layer.name, **_state())
        for key, library in libraries.items():
            answer = worker.time(layer.group, library, min_ms=TURN_MS)
            if answer.ok:
                calls[key] = list(answer.samples_ms)
            else:  # it did not survive; the record says so, and it is out
                recorder.put('turn', layer.name, key=key, **_outcome(answer))
            pace.step('turn', 'final rounds')
        if calls:
            recorder.put('final', layer.name, calls_ms=calls)
    if _packed_bytes(layer.group) * len(keys) > PACKED_BYTES:
        worker.close()


def covering(
    rounds: Iterable[Mapping[str, tuple[float, ...]]], keys: Iterable[str]
) -> list[Mapping[str, tuple[float, ...]]]:
    """The final rounds in which all of `keys` took part."""
    wanted = set(keys)
    return [calls for calls in rounds if wanted <= calls.keys()]


def _wants_turn(layer: LayerData, sample: Sample) -> bool:
    """Whether a sample is to be timed once more."""
    if sample.status != 'ok' or len(sample.turns_ms) >= ROUNDS:
        return False
    if not sample.turns_ms:
        return layer.one_call_ms(sample) is None
    best_ms = layer.best_ms
    if best_ms is not None and sample.median_ms > SLOW * best_ms:
        return False
    return (len(sample.turns_ms) + 1) * _turn_cost_ms(sample.median_ms) <= BUDGET_MS


def _turn_cost_ms(call_ms: float) -> float:
    """What a turn takes, calls for warming up included."""
    return (WARM_UP_CALLS + max(LEAST_CALLS, TURN_MS / call_ms)) * call_ms


def _outcome(answer: Answer) -> dict:
    return {
        'status': answer.status, 'calls_ms': list(answer.samples_ms) if answer.ok else [],
        'max_rel_err': answer.max_rel_err, 'message': answer.message,
    }  # fmt: skip


def _state() -> dict:
    now = conditions()
    return {'probe_ms': now.probe_ms, 'load': now.load}


def _library(group: Group, schedule: Schedule) -> Path:
    return build(generate(group, schedule), compiler_flags(schedule))


def _build_all(
    recorder: Records, layer: LayerData, keys: Sequence[str], pace: _Pace
) -> dict[str, Path]:
    """Libraries by key, built on all cores; what the compiler refuses is recorded and left out."""
    libraries: dict[str, Path] = {}
    pool = ThreadPoolExecutor(usable_cores())
    try:
        waiting = [
            (key, pool.submit(_library, layer.group, layer.samples[key].schedule)) for key in keys
        ]
        for key, library in waiting:
            try:
                libraries[key] = library.result()
            except (MissingError, StoreError):
                raise  # no compiler, or nowhere to write: not this sample's fault
            except TilewrightError as error:
                failure = Answer('failed', f'{type(error).__name__}: {error}')
                recorder.put('turn', layer.name, key=key, **_outcome(failure))
            pace.step('build', 'compiling')
    finally:
        pool.shutdown(cancel_futures=True)
    return libraries


def _packed_bytes(group: Group) -> int:
    return sum(tensor.bytes for tensor in group.with_role('constant'))


def _batches(keys: list[str], group: Group) -> list[list[str]]:
    """Samples of one round each: few enough that the worker holds all their packed constants."""
    size = min(max(PACKED_BYTES // max(_packed_bytes(group), 1), 1), BATCH)
    return [keys[i : i + size] for i in range(0, len(keys), size)]
