"""`tilewright machine --calibrate`: time constants of this host, from random schedules on it.

Goes in: a measured machine, seconds to spend. Comes out: `Calibration`, constants with their score.

The protocol, which is fixed: schedules of TRAINING are drawn at random (search/cpu/sample.py), and
the best that the model ranks join them; constants are fitted to those alone, the strength of the
fit chosen by leaving some of them out (model/cpu/fit.py). The score is that of schedules of
HELD_OUT, which nothing was fitted to or chosen by. None is a layer of a suite that we report on.

Neighbours of a virtual machine slow it for seconds at a time, so that a schedule is timed in passes
that lie far apart, and the fastest of them counts. Every measurement is appended to a file beside
the machine's own at once, so that an interrupted calibration goes on from there. A busy host is
said, and marks the result as doubtful.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import MissingError, TilewrightError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.machine.compiler import build, cache_dir
from tilewright.machine.constants import TimeConstants
from tilewright.machine.machine import Machine
from tilewright.model.cpu.fit import Score, TimedSchedule, fit, score
from tilewright.ops.group import Group
from tilewright.ops.specs import parse_conv
from tilewright.runtime.measure import LOAD_MOVED, Measurement, measure_all
from tilewright.runtime.worker import Worker
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.choose import choose
from tilewright.search.cpu.sample import schedules

# Channels, image, results, filter, stride: what networks consist of, none taken from a suite.
TRAINING = (
    'ic96ih28oc96oh28kh3ph1', 'ic32ih56oc48oh56kh3ph1', 'ic192ih14oc192oh14kh3ph1',
    'ic384ih7oc320oh7kh3ph1', 'ic96ih28oc192oh28kh1', 'ic288ih14oc288oh14kh1',
    'ic40ih56oc160oh56kh1', 'ic640ih7oc128oh7kh1', 'ic48ih56oc96oh28kh3sh2ph1',
    'ic3ih96oc48oh48kh5sh2ph2', 'ic160ih28oc320oh14kh1sh2', 'ic24ih112oc24oh112kh3ph1',
    'ic8ih60oc24oh60kh5ph2', 'ic4ih128oc64oh128kh3ph1', 'ic3ih480oc24oh480kh3ph1',
    'g96ic96ih56oc96oh56kh3ph1', 'g240ic240ih28oc240oh14kh3sh2ph1',
)  # fmt: skip
HELD_OUT = (
    'ic80ih20oc112oh20kh3ph1', 'ic144ih17oc240oh17kh1', 'ic56ih42oc88oh21kh3sh2ph1',
    'ic448ih10oc192oh10kh3ph1', 'ic16ih72oc72oh72kh1', 'ic12ih64oc40oh64kh5ph2',
    'g144ic144ih42oc144oh42kh3ph1', 'ic4ih360oc32oh360kh3ph1',
)  # fmt: skip
BATCH, RANKED = 4, 3  # schedules of a layer at a time; of the first batch, those the model ranks
MOST_EACH = 12  # of a layer
MOST_PASSES = 8  # over all schedules, the first one builds them
FIRST_ROUNDS, ROUNDS = 1, 12  # of a pass: a few schedules in turns, then all of a layer
TURN_MS = 3.0
SOONEST = 0.25  # quantile of a schedule's times that counts: others only slow it
POLISHES = 20  # of the slowness of rounds and the times of schedules, in turns
MEASURING = 0.8  # share of the seconds; the rest is for the fit
LEAST_EACH = 4  # of a layer, below which nothing is fitted
MOST_DISTURBED = 0.25  # share of measurements
Tell = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants, with the score on layers that were not used: before, as defaults have it, and
    after. `doubtful` says why figures may be wrong, '' where nothing was seen.
    `pull` is how strong the start was held; None where no fit explained layers left out better.
    """

    constants: TimeConstants
    before: Score
    after: Score
    trained: Score
    pull: float | None
    doubtful: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {'training': list(TRAINING), 'held_out': list(HELD_OUT)}


class Samples:
    """What was measured so far on one machine, kept in a file of JSON lines."""

    def __init__(self, machine: Machine) -> None:
        self.path: Path = cache_dir() / 'machine' / f'{machine.fingerprint}.samples.jsonl'
        self.rows: list[dict[str, Any]] = []
        with contextlib.suppress(OSError):
            for line in self.path.read_text().splitlines():
                with contextlib.suppress(ValueError, KeyError, TypeError, TilewrightError):
                    row = json.loads(line)
                    Schedule.from_json(row['schedule'])
                    self.rows.append({name: row[name] for name in _FIELDS})

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        with contextlib.suppress(OSError):  # it cannot be resumed then, but it can be made
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open('a') as file:
                file.write(json.dumps(row) + '\n')

    def of(self, layer: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row['layer'] == layer]

    def schedules(self, layer: str) -> dict[str, list[dict[str, Any]]]:
        """digest -> its rows, one for each pass over it."""
        found: dict[str, list[dict[str, Any]]] = {}
        for row in self.of(layer):
            found.setdefault(Schedule.from_json(row['schedule']).digest, []).append(row)
        return found

    def timed(self, layers: Sequence[str]) -> list[TimedSchedule]:
        """The schedules of some layers, by what they take in a round that nothing slows."""
        return [
            TimedSchedule(layer, group_of(layer), schedule, 1e-3 * ms)
            for layer in layers
            for schedule, ms in settled(self.of(layer))
        ]


def settled(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Schedule, float]]:
    """Each schedule of a layer with its milliseconds, the slowness of rounds taken out.

    Clocks and neighbours of a virtual machine change from one second to the next, for all schedules
    of a round alike: log(time) is what a schedule takes plus how slow its round was.
    """
    schedules = {one.digest: one for one in (Schedule.from_json(row['schedule']) for row in rows)}
    names, digests = list(schedules), [Schedule.from_json(row['schedule']).digest for row in rows]
    seen = [
        (names.index(digest), (row['turn'], number), math.log(ms))
        for digest, row in zip(digests, rows, strict=True)
        for number, ms in enumerate(row['samples_ms'])
    ]
    if not seen:
        return
    rounds = list(dict.fromkeys(key for _, key, _ in seen))
    which, when, logs = (
        np.array(column)
        for column in zip(*((s, rounds.index(key), ms) for s, key, ms in seen), strict=True)
    )
    slowness, taken = np.zeros(len(rounds)), np.full(len(names), np.nan)
    for _ in range(POLISHES):
        for one in set(which.tolist()):
            here = which == one
            taken[one] = np.quantile(logs[here] - slowness[when[here]], SOONEST)
        for one in range(len(rounds)):
            here = when == one
            slowness[one] = np.median(logs[here] - taken[which[here]])
    taken += np.quantile(slowness, SOONEST)
    for name, ms in zip(names, np.exp(taken).tolist(), strict=True):
        if math.isfinite(ms):
            yield schedules[name], ms


_FIELDS = ('layer', 'turn', 'schedule', 'samples_ms', 'disturbed')


def group_of(layer: str) -> Group:
    return parse_conv(f'mb1{layer}')


def calibrate(machine: Machine, seconds: float, tell: Tell, seed: int = 0) -> Calibration:
    """Measure for most of `seconds`, then fit. An interrupt while measuring fits what there is."""
    samples = Samples(machine)
    doubts = [_busy(machine)]
    if samples.rows:
        tell(f'{len(samples.rows)} timings were made before; going on from {samples.path}')
    try:
        collect(machine, samples, time.monotonic() + MEASURING * seconds, tell, seed)
    except KeyboardInterrupt:
        if not _enough(samples):
            raise
        tell('interrupted: fitting what was measured so far; the same command goes on from there')
    disturbed = sum(row['disturbed'] for row in samples.rows) / max(len(samples.rows), 1)
    if disturbed > MOST_DISTURBED:
        doubts.append(f'clock or load moved during {disturbed:.0%} of the measurements')
    return fitted(machine, samples, '; '.join(filter(None, doubts)), tell)


def fitted(machine: Machine, samples: Samples, doubtful: str, tell: Tell) -> Calibration:
    """[samples] -> [Calibration]"""
    start = replace(machine, constants=None)
    known, unseen = samples.timed(TRAINING), samples.timed(HELD_OUT)
    if not _enough(samples):
        raise MissingError(
            f'{len(known)} schedules were measured, fewer than {LEAST_EACH} of some layer; '
            f'run the same command again, it goes on from there'
        )
    tell(f'fitting {len(known)} schedules of {len(TRAINING)} layers')
    constants, pull = fit(known, start)
    after = replace(machine, constants=constants)
    return Calibration(
        constants, score(unseen, start), score(unseen, after), score(known, after), pull, doubtful
    )


def _enough(samples: Samples) -> bool:
    return all(len(samples.schedules(one)) >= LEAST_EACH for one in (*TRAINING, *HELD_OUT))


def _busy(machine: Machine) -> str:
    load = os.getloadavg()[0] if hasattr(os, 'getloadavg') else 0.0
    if load <= LOAD_MOVED:
        return ''
    return f'the host was busy: its load average was {load:.1f} before anything was measured'


def collect(machine: Machine, samples: Samples, until: float, tell: Tell, seed: int) -> None:
    """A few schedules of every layer, and again; then all of them anew until the time is over."""
    draws = {layer: drawn(layer, machine, seed) for layer in mixed(TRAINING, HELD_OUT)}
    with Worker(seed=seed) as worker:
        for number in range(MOST_EACH // BATCH):
            for layer, draw in draws.items():
                known = samples.schedules(layer)
                missing = (number + 1) * BATCH - len(known)
                if missing <= 0:
                    continue
                if time.monotonic() > until:
                    return
                unknown = (schedule for schedule in draw if schedule.digest not in known)
                _measure(layer, list(islice(unknown, missing)), FIRST_ROUNDS, worker, samples)
            tell(
                f'{sum(len(samples.schedules(layer)) for layer in draws)} of '
                f'{MOST_EACH * len(draws)} schedules measured, {_left(until)}'
            )
        for number in range(1, MOST_PASSES):
            for layer in draws:
                again = [
                    Schedule.from_json(rows[0]['schedule'])
                    for rows in samples.schedules(layer).values()
                    if len(rows) <= number and rows[-1]['samples_ms']
                ]
                if time.monotonic() > until:
                    return
                if again:
                    _measure(layer, again, ROUNDS, worker, samples)
            tell(f'pass {number + 1} of {MOST_PASSES} over them, {_left(until)}')


def mixed(*lists: Sequence[str]) -> list[str]:
    """All of them, each list spread evenly: a pass that is cut short leaves out some of each."""
    places = [((i + 0.5) / len(one), layer) for one in lists for i, layer in enumerate(one)]
    return [layer for _, layer in sorted(places)]


def _left(until: float) -> str:
    return f'{max(0.0, until - time.monotonic()):.0f} s left'


def drawn(layer: str, machine: Machine, seed: int) -> Iterator[Schedule]:
    """What the model ranks first, then schedules at random, none of them twice."""
    group = group_of(layer)
    seen = set()
    for ranked in choose(group, machine, 1, RANKED, 'direct'):
        seen.add(ranked.schedule.digest)
        yield ranked.schedule
    for schedule in schedules(group, machine, 1, seed):
        if schedule.digest not in seen:
            yield schedule


def _measure(
    layer: str, fresh: Sequence[Schedule], rounds: int, worker: Worker, samples: Samples
) -> None:  # fmt: skip
    group = group_of(layer)
    turn = 1 + max((row['turn'] for row in samples.rows), default=0)
    by_key = {schedule.digest: schedule for schedule in fresh}

    def make(schedule: Schedule) -> Callable[[], Path]:
        return lambda: build(generate(group, schedule), compiler_flags(schedule))

    found: list[Measurement] = measure_all(
        group, [(key, make(schedule)) for key, schedule in by_key.items()], worker=worker,
        rounds=rounds, min_ms=TURN_MS, cutoff=float('inf'),
    )  # fmt: skip
    for one in found:
        samples.add(
            {
                'layer': layer, 'turn': turn, 'schedule': by_key[one.key].to_json(),
                'samples_ms': list(one.samples_ms) if one.ok else [], 'disturbed': one.disturbed,
            }
        )  # fmt: skip
