"""Time constants are found again from the times of a machine that is simulated, and kept."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.cli import machine as verb
from tilewright.cli.output import Output
from tilewright.errors import InputError, MissingError
from tilewright.machine import measure
from tilewright.machine.constants import COMMON, TimeConstants
from tilewright.machine.known import known_machine, machine_from_file
from tilewright.machine.machine import Machine
from tilewright.machine.measure import Record
from tilewright.model.cpu.fit import TimedSchedule, fit, score
from tilewright.model.cpu.predict import predict
from tilewright.ops.group import Group
from tilewright.runtime.measure import Measurement
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.sample import take
from tilewright.targets.cpu import calibrate as subject

MACHINE = known_machine('i9-10980xe')
TRUE = replace(
    COMMON, exposed_l2=0.5, call_cycles=15.0, tile_cycles=60.0, store_cycles=1.6, pack_cycles=1.5,
    pack_row_cycles=3.0, resumed=3.0,
)  # fmt: skip
LAYERS = (
    'ic24ih14oc32oh14kh3ph1', 'ic48ih12oc48oh12kh1', 'ic16ih24oc64oh12kh3sh2ph1',
    'ic40ih9oc16oh9kh3ph1',
)  # fmt: skip


@cache
def drawn(layer: str, count: int) -> list[Schedule]:
    return take(subject.group_of(layer), MACHINE, 1, 1, count, ())


def simulated(layers: tuple[str, ...], count: int, noise: float = 0.0) -> list[TimedSchedule]:
    """Random schedules, and what a machine with the true constants takes for them."""
    rng, host = np.random.default_rng(0), replace(MACHINE, constants=TRUE)
    return [
        TimedSchedule(
            layer, group, schedule,
            predict(group, schedule, host).seconds * float(np.exp(noise * rng.normal())),
        )
        for layer in layers
        for group in (subject.group_of(layer),)
        for schedule in drawn(layer, count)
    ]  # fmt: skip


def test_the_fit_finds_the_constants_of_a_simulated_machine() -> None:
    """Else calibrating would trade one guess for another."""
    samples = simulated(LAYERS[:3], 8)
    found, pull = fit(samples, MACHINE, 1e-6)
    assert pull == 1e-6
    for name in ('call_cycles', 'store_cycles', 'pack_cycles', 'tile_cycles'):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=0.15), name
    unseen = simulated(LAYERS[3:], 8)
    before, after = score(unseen, MACHINE), score(unseen, replace(MACHINE, constants=found))
    assert after.rank > 0.99
    assert after.spread < 0.3 * before.spread
    assert (after.layers, after.schedules) == (1, 8)


@pytest.mark.slow
def test_a_pull_is_chosen_by_layers_that_are_left_out() -> None:
    """Noise alone must not move the constants far."""
    right = replace(MACHINE, constants=TRUE)
    found, _ = fit(simulated(LAYERS, 8, noise=0.05), right)
    assert score(simulated(LAYERS, 8), replace(right, constants=found)).rank > 0.97


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A host of which every measurement is simulated, and small."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.delenv('TILEWRIGHT_CPUS', raising=False)

    def invented(facts: object, isa: str, effort: object = None) -> Record:
        mark = measure.fingerprint(facts, isa)  # type: ignore[arg-type]
        machine = replace(MACHINE, isa=isa, fingerprint=mark, measured=True)
        return Record(machine, ((8192, 100.0, 200.0),))

    monkeypatch.setattr(measure, 'measure_host', invented)
    monkeypatch.setattr(subject, 'TRAINING', LAYERS[:3])
    monkeypatch.setattr(subject, 'HELD_OUT', LAYERS[3:])
    monkeypatch.setattr(subject, 'MOST_EACH', 8)
    monkeypatch.setattr(subject, 'fit', lambda samples, machine: (TRUE, 0.003))
    monkeypatch.setattr(subject.os, 'getloadavg', lambda: (0.0, 0.0, 0.0))
    machine, _ = measure.load_machine()
    true = replace(machine, constants=TRUE)
    by_key = {s.digest: s for layer in LAYERS for s in drawn(layer, 8)}

    def simulate(group: Group, candidates: Sequence[tuple[str, object]], **_: object) -> list:
        times = {k: 1e3 * predict(group, by_key[k], true).seconds for k, _ in candidates}
        return [Measurement(key, samples_ms=(time,)) for key, time in times.items()]

    monkeypatch.setattr(subject, 'drawn', lambda layer, machine, seed: iter(drawn(layer, 8)))
    monkeypatch.setattr(subject, 'measure_all', simulate)
    return machine


def test_a_calibration_is_kept_and_used_and_goes_on(
    host: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the verb to the next `load_machine`; a second run measures nothing again."""
    options = {
        'machine': None, 'plot': None, 'remeasure': False, 'threads': None, 'seed': None,
        'calibrate': True, 'seconds': 60.0,
    }  # fmt: skip
    out = tmp_path / 'm.json'
    assert verb.run(Output('machine', str(out)), **options) == 0  # type: ignore[arg-type]
    said = capsys.readouterr()
    assert 'time model fitted to 24 schedules of 3 layers; 8 of 1 others' in said.out
    assert 'rank correlation 1.000, top-1 loss 0.0%' in said.out
    assert 'doubtful' not in said.out
    assert '32 of 32 schedules measured' in said.err
    assert measure.load_machine()[0].time_constants == TRUE
    data = json.loads(out.read_text())
    assert data['calibration']['after']['rank'] == pytest.approx(1)
    assert Machine.from_json(data['machine']).constants == TRUE
    kept = (path,) = tuple(tmp_path.glob('machine/*.samples.jsonl'))
    lines = path.read_text().splitlines()
    verb.run(Output('machine', None), **options)  # type: ignore[arg-type]
    assert kept[0].read_text().splitlines() == lines
    assert 'going on from' in capsys.readouterr().err


def test_slow_rounds_and_single_slow_turns_do_not_count(
    host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clocks move from round to round for all alike; a neighbour slows one schedule at a time."""
    inner, seen = subject.measure_all, Counter()

    def disturbed(group: Group, candidates: Sequence[tuple[str, Any]], **more: Any) -> list:
        seen.update(key for key, _ in candidates)
        clock = (1.0, 1.4, 0.8, 2.0, 1.1)[sum(seen.values()) % 5]
        slow = {key: 1.0 if (seen[key] + int(key, 16)) % 5 else 1.5 for key, _ in candidates}
        return [
            replace(one, samples_ms=tuple(clock * slow[one.key] * ms for ms in one.samples_ms))
            for one in inner(group, candidates, **more)
        ]

    monkeypatch.setattr(subject, 'measure_all', disturbed)
    found = subject.calibrate(host, 60.0, lambda text: None)
    assert set(seen.values()) == {subject.MOST_PASSES}
    assert found.after.rank == pytest.approx(1)
    assert found.after.spread == pytest.approx(0, abs=1e-3)


def test_an_interrupt_keeps_what_was_measured(
    host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, calls = subject.measure_all, []

    def interrupted(*words: Any, **more: Any) -> list:
        calls.append(1)
        if len(calls) == limit:
            raise KeyboardInterrupt
        return inner(*words, **more)

    monkeypatch.setattr(subject, 'measure_all', interrupted)
    limit = 3
    with pytest.raises(KeyboardInterrupt):  # too little for a fit
        subject.calibrate(host, 60.0, lambda text: None)
    assert len(subject.Samples(host).rows) == 2 * subject.BATCH
    limit = 8
    said: list[str] = []
    found = subject.calibrate(host, 60.0, said.append)
    assert found.constants == TRUE
    assert any('interrupted' in text for text in said)


def test_a_busy_host_is_said_and_too_few_samples_are_refused(
    host: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject.os, 'getloadavg', lambda: (5.0, 0.0, 0.0))
    with pytest.raises(MissingError, match='it goes on from there'):
        subject.calibrate(host, 0.0, lambda text: None)
    assert 'load average was 5.0' in subject.calibrate(host, 60.0, lambda text: None).doubtful


def test_constants_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / 'm.json'
    path.write_text(json.dumps(replace(MACHINE, constants=TRUE).to_json()))
    assert machine_from_file(path).time_constants == TRUE
    assert MACHINE.time_constants == measure.load_machine('i9-10980xe')[0].time_constants
    with pytest.raises(InputError, match='unknown time constant'):
        TimeConstants.from_json({'no_cycles': 1.0})
    with pytest.raises(InputError, match='pack_cycles is -1'):
        replace(COMMON, pack_cycles=-1)
