"""Candidates -> measurements: built, checked, timed in interleaved rounds, finalists in pairs.

Goes in: a group, candidates (a key, and a library or a callable that builds it), a `Worker`. Comes
out: one `Measurement` for each candidate, in order. A candidate that cannot be built, crashes,
hangs or answers wrong has a measurement that says so; the others go on.

Rounds are interleaved (A B C A B C ...), so that a change of clock or load meets all alike; the
figure is the median over rounds. The few best are then timed against each other in pairs (A B A B),
because the smallest of many noisy medians is not always the fastest kernel. A fixed probe around
every round tells whether clock or load moved.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilewright.errors import InputError, MissingError, StoreError, TilewrightError
from tilewright.ops.group import Group
from tilewright.runtime.pool import usable_cores
from tilewright.runtime.worker import STATUSES, Answer, Worker

Library = Path | Callable[[], Path]
Recorder = Callable[['Measurement'], object]

CLOCK_MOVED = 1.10
LOAD_MOVED = 0.75
CUTOFF_AFTER = 2
_PROBE_BYTES = bytes(1 << 18)
_GUESS_S = {'build': 0.3, 'check': 0.05, 'time': 0.02}


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is known of one candidate on one machine.

    status       'ok', or how it failed: 'crashed', 'hung', 'wrong', 'failed' (to build or load).
    samples_ms   one for each round: the median call of that round's turn.
    max_rel_err  largest difference from the reference, as a share of the largest output.
    disturbed    clock or load moved while it was timed; `message` says how.
    """

    key: str
    status: str = 'ok'
    samples_ms: tuple[float, ...] = ()
    max_rel_err: float | None = None
    message: str = ''
    disturbed: bool = False

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise InputError(f'measurement {self.key}: {self.status!r} is not one of {STATUSES}')
        if any(not sample > 0 for sample in self.samples_ms):
            raise InputError(f'measurement {self.key} has a time that is not positive')

    @property
    def ok(self) -> bool:
        return self.status == 'ok'

    @property
    def median_ms(self) -> float | None:
        """The figure: median over rounds; None for a candidate that was not timed or failed."""
        return statistics.median(self.samples_ms) if self.ok and self.samples_ms else None

    @property
    def spread(self) -> float | None:
        """Interquartile range of the samples as a share of their median."""
        if self.median_ms is None or len(self.samples_ms) < 2:
            return None
        low, _, high = statistics.quantiles(self.samples_ms, n=4, method='inclusive')
        return (high - low) / self.median_ms

    def to_json(self) -> dict:
        return {
            'key': self.key,
            'status': self.status,
            'samples_ms': list(self.samples_ms),
            'median_ms': self.median_ms,
            'spread': self.spread,
            'max_rel_err': self.max_rel_err,
            'message': self.message,
            'disturbed': self.disturbed,
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Measurement:
        try:
            return cls(
                data['key'],
                data['status'],
                tuple(float(s) for s in data['samples_ms']),
                data['max_rel_err'],
                data['message'],
                data['disturbed'],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f'a stored measurement cannot be read: {error!r}') from None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `stage`: build, check or time; `left_s` is an estimate."""

    stage: str
    key: str
    done: int
    total: int
    left_s: float
    best_ms: float | None


@dataclass(frozen=True, slots=True)
class Conditions:
    """Milliseconds of a fixed piece of work on one core, and the system's load average."""

    probe_ms: float
    load: float


def conditions() -> Conditions:
    """The state of the machine now; takes a few milliseconds."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        hashlib.sha256(_PROBE_BYTES).digest()
        times.append(time.perf_counter() - start)
    try:
        load = os.getloadavg()[0]
    except OSError:
        load = 0.0
    return Conditions(1e3 * min(times), load)


def moved(seen: Sequence[Conditions], threads: int) -> str:
    """A sentence when clock or load moved over a run of `threads` threads, '' when neither did."""
    if len(seen) < 2:
        return ''
    fast, slow = min(c.probe_ms for c in seen), max(c.probe_ms for c in seen)
    if slow > CLOCK_MOVED * fast:
        return f'the clock moved during the run: a fixed probe took {fast:.3g} to {slow:.3g} ms'
    rise = max(c.load for c in seen) - seen[0].load
    if rise > threads + LOAD_MOVED:
        return f'the load average rose by {rise:.1f} during a run of {threads} threads'
    return ''


@dataclass(slots=True)
class _Pace:
    """Counts steps and estimates what is left from the mean time of each kind of step."""

    todo: dict[str, int]
    report: Callable[[Progress], object] | None
    spent: dict[str, list[float]] = field(default_factory=lambda: {k: [] for k in _GUESS_S})
    last: float = field(default_factory=time.monotonic)

    def step(self, stage: str, key: str, best_ms: float | None = None) -> None:
        now = time.monotonic()
        self.spent[stage].append(now - self.last)
        self.last = now
        self.todo[stage] -= 1
        if self.report is not None:
            done = sum(map(len, self.spent.values()))
            left = sum(n * self._mean(kind) for kind, n in self.todo.items())
            self.report(Progress(stage, key, done, done + sum(self.todo.values()), left, best_ms))

    def skip(self, **steps: int) -> None:
        """Steps that will not be taken."""
        for stage, count in steps.items():
            self.todo[stage] -= count

    def _mean(self, stage: str) -> float:
        spent = self.spent[stage]
        return sum(spent) / len(spent) if spent else _GUESS_S[stage]


def measure_all(
    group: Group,
    candidates: Sequence[tuple[str, Library]],
    *,
    worker: Worker,
    rounds: int = 5,
    min_ms: float = 5.0,
    cutoff: float = 2.0,
    threads: int = 1,
    known: Mapping[str, Measurement] | None = None,
    record: Recorder | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> list[Measurement]:
    """Build, check and time candidates; comes out: their measurements, in the order given.

    A turn calls a kernel for about `min_ms`. After two rounds, candidates slower than `cutoff`
    times the best get no more turns. `known` holds what earlier runs measured: those that failed
    or have `rounds` samples are not touched, others are continued. `record` is called with every
    measurement as soon as it changes, so that what it keeps survives a kill. `threads` is what the
    kernels use, for telling foreign load from our own.
    """
    keys = [key for key, _ in candidates]
    if len(set(keys)) != len(keys):
        raise InputError('two candidates have the same key; measure each schedule once')
    state = {key: (known or {}).get(key) or Measurement(key) for key in keys}
    todo = [(k, lib) for k, lib in candidates if state[k].ok and len(state[k].samples_ms) < rounds]
    turns = sum(rounds - len(state[k].samples_ms) for k, _ in todo)
    pace = _Pace({'build': len(todo), 'check': len(todo), 'time': turns}, progress)
    run = _Run(group, worker, rounds, state, record, pace)
    libraries = run.check_all(run.build_all(todo))
    run.time_all(libraries, min_ms, cutoff, threads)
    return [state[key] for key in keys]


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of `measure_all`: `state` holds the measurement of every candidate so far."""

    group: Group
    worker: Worker
    rounds: int
    state: dict[str, Measurement]
    record: Recorder | None
    pace: _Pace

    @property
    def best_ms(self) -> float | None:
        medians = [m.median_ms for m in self.state.values() if m.median_ms is not None]
        return min(medians, default=None)

    def turns_left(self, key: str) -> int:
        return self.rounds - len(self.state[key].samples_ms)

    def settle(self, measurement: Measurement) -> None:
        self.state[measurement.key] = measurement
        if self.record is not None:
            self.record(measurement)

    def build_all(self, todo: Sequence[tuple[str, Library]]) -> dict[str, Path]:
        """Build what is not built, several at a time; nothing is being timed meanwhile."""
        libraries: dict[str, Path] = {}
        pool = ThreadPoolExecutor(usable_cores())
        try:
            made = [(key, lib if isinstance(lib, Path) else pool.submit(lib)) for key, lib in todo]
            for key, library in made:
                try:
                    libraries[key] = library if isinstance(library, Path) else library.result()
                except (MissingError, StoreError):
                    raise  # no compiler, or nowhere to write: not this candidate's fault
                except TilewrightError as error:  # anything else is a defect: let it be seen
                    message = f'{type(error).__name__}: {error}'
                    self.pace.skip(check=1, time=self.turns_left(key))
                    self.settle(Measurement(key, 'failed', message=message))
                self.pace.step('build', key)
        finally:
            pool.shutdown(cancel_futures=True)
        return libraries

    def check_all(self, libraries: Mapping[str, Path]) -> dict[str, Path]:
        """Judge every candidate on random data; comes out: those that are right."""
        for key, library in libraries.items():
            answer = self.worker.check(self.group, library)
            if answer.ok:
                known = self.state[key]
                self.state[key] = replace(known, max_rel_err=answer.max_rel_err)
            else:
                self.pace.skip(time=self.turns_left(key))
                self.settle(_failure(key, answer))
            self.pace.step('check', key, self.best_ms)
        return {key: path for key, path in libraries.items() if self.state[key].ok}

    def time_all(
        self, libraries: Mapping[str, Path], min_ms: float, cutoff: float, threads: int
    ) -> None:
        """Interleaved rounds, and a note on the measurements if clock or load moved."""
        if not libraries:
            return
        seen, timed = [conditions()], set()
        for number in range(self.rounds):
            best_ms = self.best_ms
            for key, library in libraries.items():
                known = self.state[key]
                if not known.ok or len(known.samples_ms) > number:
                    continue
                if not _is_slow(known, best_ms, cutoff):
                    answer = self.worker.time(self.group, library, min_ms=min_ms)
                    if not answer.ok:
                        self.pace.skip(time=self.turns_left(key) - 1)
                    self.settle(_add_turn(known, answer))
                    timed.add(key)
                self.pace.step('time', key, self.best_ms)
            seen.append(conditions())
        trouble = moved(seen, threads)
        for key in sorted(timed) if trouble else ():
            if self.state[key].ok:
                self.settle(replace(self.state[key], disturbed=True, message=trouble))


def _is_slow(known: Measurement, best_ms: float | None, cutoff: float) -> bool:
    if best_ms is None or known.median_ms is None or len(known.samples_ms) < CUTOFF_AFTER:
        return False
    return known.median_ms > cutoff * best_ms


def _add_turn(known: Measurement, answer: Answer) -> Measurement:
    if not answer.ok:
        return _failure(known.key, answer)
    sample = statistics.median(answer.samples_ms)
    return replace(known, samples_ms=(*known.samples_ms, sample))


def _failure(key: str, answer: Answer) -> Measurement:
    return Measurement(key, answer.status, (), answer.max_rel_err, answer.message)


@dataclass(frozen=True, slots=True)
class Duel:
    """Two candidates timed alternately. `failure` is set when one of them did not survive it."""

    a: str
    b: str
    a_ms: tuple[float, ...] = ()
    b_ms: tuple[float, ...] = ()
    failure: Measurement | None = None

    @property
    def ratio(self) -> float | None:
        """Median over pairs of b's time over a's: below 1, b is the faster one."""
        pairs = [b / a for a, b in zip(self.a_ms, self.b_ms, strict=False)]
        return statistics.median(pairs) if pairs else None

    @property
    def winner(self) -> str:
        """The faster one, or the one that survived; a tie stays with a."""
        if self.failure is not None:
            return self.b if self.failure.key == self.a else self.a
        return self.b if self.ratio is not None and self.ratio < 1 else self.a

    def to_json(self) -> dict:
        return {
            'a': self.a, 'b': self.b, 'a_ms': list(self.a_ms), 'b_ms': list(self.b_ms),
            'ratio': self.ratio, 'winner': self.winner,
            'failure': self.failure and self.failure.to_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome of the paired finals, with the evidence; `best` is None when nothing ran."""

    best: str | None
    duels: tuple[Duel, ...] = ()
    trouble: str = ''

    @property
    def failures(self) -> tuple[Measurement, ...]:
        return tuple(d.failure for d in self.duels if d.failure is not None)


def paired_final(
    group: Group,
    a: tuple[str, Path],
    b: tuple[str, Path],
    *,
    worker: Worker,
    pairs: int = 7,
    min_ms: float = 5.0,
) -> Duel:
    """Time two libraries alternately, A B A B ..., `pairs` times."""
    samples: dict[str, list[float]] = {a[0]: [], b[0]: []}
    for _ in range(pairs):
        for key, library in (a, b):
            answer = worker.time(group, library, min_ms=min_ms)
            if not answer.ok:
                lost = _failure(key, answer)
                return Duel(a[0], b[0], tuple(samples[a[0]]), tuple(samples[b[0]]), lost)
            samples[key].append(statistics.median(answer.samples_ms))
    return Duel(a[0], b[0], tuple(samples[a[0]]), tuple(samples[b[0]]))


def finalists(
    group: Group,
    measurements: Sequence[Measurement],
    libraries: Mapping[str, Library],
    *,
    worker: Worker,
    top: int = 3,
    pairs: int = 7,
    min_ms: float = 5.0,
    threads: int = 1,
    record: Recorder | None = None,
) -> Final:
    """The `top` candidates by median, best first, each against the winner so far.

    `libraries` gives, by key, the library or the callable that builds it.
    """
    ranked = sorted(
        ((m.median_ms, m.key) for m in measurements if m.median_ms is not None), key=lambda p: p[0]
    )
    chosen = [key for _, key in ranked[:top]]
    if len(chosen) < 2:
        return Final(chosen[0] if chosen else None)
    paths = {}
    for key in chosen:
        library = libraries[key]
        paths[key] = library if isinstance(library, Path) else library()
    before, best, duels = conditions(), chosen[0], []
    for challenger in chosen[1:]:
        duel = paired_final(
            group, (best, paths[best]), (challenger, paths[challenger]),
            worker=worker, pairs=pairs, min_ms=min_ms,
        )  # fmt: skip
        duels.append(duel)
        best = duel.winner
        if duel.failure is not None and record is not None:
            record(duel.failure)
    trouble = moved((before, conditions()), threads)
    return Final(best, tuple(duels), trouble)
