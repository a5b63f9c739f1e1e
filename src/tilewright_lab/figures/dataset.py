"""Measured samples in a file: one JSON object a line, written once and never changed.

    {"kind": "run", "format": 1, "machine": {...}, "threads": 1, "seed": 0, "versions": {...}}
    {"kind": "layer", "layer": "mopt/R9", "group": {...}}
    {"kind": "sample", "layer": "mopt/R9", "key": "<digest>", "schedule": {...}}
    {"kind": "check", "layer": ..., "key": ..., "status": "ok", "wall_ms": ..., ...}
    {"kind": "turn", "layer": ..., "key": ..., "status": "ok", "calls_ms": [...], ...}
    {"kind": "final", "layer": ..., "calls_ms": {"<key>": [...], ...}}      one interleaved round
    {"kind": "state", "layer": ..., "probe_ms": ..., "load": ...}           clock and load

Nothing in it depends on a model, except which samples took part in final rounds. A line that was
cut off by a kill is dropped, and whatever it described is measured again.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import statistics
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol

from tilewright.errors import InputError, StoreError
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.runtime.measure import Conditions
from tilewright.schedule.schedule import Schedule

FORMAT = 1
ONE_CALL_MS, ONE_CALL_TIMES_BEST = 150.0, 2.5  # both exceeded: a sample's only call is its check
SUFFIXES = ('.jsonl', '.jsonl.gz')


@dataclass(slots=True)
class Sample:
    """One schedule and every call that was timed, by turns. `status` as in runtime.measure.

    checked_ms  the wall clock of its check: loading, packing, one call, comparing
    """

    schedule: Schedule
    status: str = 'ok'
    message: str = ''
    max_rel_err: float | None = None
    checked_ms: float | None = None
    turns_ms: list[tuple[float, ...]] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """Median over turns of a turn's median."""
        return statistics.median(statistics.median(turn) for turn in self.turns_ms)

    @property
    def noise(self) -> float | None:
        """Interquartile range of the repeats (turns; calls of a single turn) over their median."""
        repeats = [statistics.median(turn) for turn in self.turns_ms]
        if len(repeats) < 3:
            repeats = [call for turn in self.turns_ms for call in turn]
        if len(repeats) < 2:
            return None
        low, middle, high = statistics.quantiles(repeats, n=4, method='inclusive')
        return (high - low) / middle


@dataclass(slots=True)
class LayerData:
    """All that is known of one layer: samples by key, final rounds, the state of the machine."""

    name: str
    group: Group
    samples: dict[str, Sample] = field(default_factory=dict)
    finals: list[dict[str, tuple[float, ...]]] = field(default_factory=list)
    states: list[Conditions] = field(default_factory=list)

    @property
    def turned(self) -> dict[str, Sample]:
        """Samples that had a turn."""
        return {k: s for k, s in self.samples.items() if s.status == 'ok' and s.turns_ms}

    @property
    def best_ms(self) -> float | None:
        return min((sample.median_ms for sample in self.turned.values()), default=None)

    @property
    def overhead_ms(self) -> float:
        """What a check takes beside its call, from the samples that had both."""
        both = [
            s.checked_ms - s.median_ms for s in self.turned.values() if s.checked_ms is not None
        ]
        return max(statistics.median(both), 0.0) if both else 0.0

    def one_call_ms(self, sample: Sample) -> float | None:
        """The call of a sample's check, for one so slow that no other call is worth its time.

        None for all others, and while nothing is known to compare it with.
        """
        best_ms = self.best_ms
        if sample.checked_ms is None or best_ms is None or sample.turns_ms:
            return None
        call_ms = sample.checked_ms - self.overhead_ms
        return call_ms if call_ms > max(ONE_CALL_MS, ONE_CALL_TIMES_BEST * best_ms) else None

    def times_ms(self) -> dict[str, float]:
        """The time of every sample that has one, in the order in which they were drawn."""
        times = {}
        for key, sample in self.samples.items():
            if sample.status != 'ok':
                continue
            time_ms = sample.median_ms if sample.turns_ms else self.one_call_ms(sample)
            if time_ms is not None:
                times[key] = time_ms
        return times


@dataclass(slots=True)
class DataSet:
    """One or several files: what they were taken with, and the layers by name."""

    machine: Machine
    threads: int
    seed: int
    versions: dict[str, Any]
    layers: dict[str, LayerData] = field(default_factory=dict)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take in one line behind the first."""
        kind, name = record['kind'], record['layer']
        if kind == 'layer':
            group = Group.from_json(record['group'])
            known = self.layers.setdefault(name, LayerData(name, group))
            if known.group.digest != group.digest:
                raise InputError(f'{name} is described in two ways; evaluate such data apart')
            return
        layer = self.layers[name]
        if kind == 'sample':
            schedule = Schedule.from_json(record['schedule'])
            layer.samples.setdefault(record['key'], Sample(schedule))
        elif kind in ('check', 'turn'):
            sample = layer.samples[record['key']]
            sample.status, sample.message = record['status'], record['message']
            sample.max_rel_err = record['max_rel_err']
            if kind == 'check':
                sample.checked_ms = float(record['wall_ms'])
            elif record['calls_ms']:
                sample.turns_ms.append(_times(record['calls_ms']))
        elif kind == 'final':
            layer.finals.append({key: _times(calls) for key, calls in record['calls_ms'].items()})
        elif kind == 'state':
            layer.states.append(Conditions(float(record['probe_ms']), float(record['load'])))
        else:
            raise ValueError(f'{kind!r} is not known')


def _times(calls: list) -> tuple[float, ...]:
    times = tuple(float(call) for call in calls)
    if not times or any(not time > 0 for time in times):
        raise ValueError(f'{calls} are not times')
    return times


def read(path: Path) -> DataSet:
    """A data set from a file, or from all .jsonl and .jsonl.gz files of a directory."""
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
        if not files:
            raise InputError(f'--data {path} holds no file that ends in {" or ".join(SUFFIXES)}')
    else:
        files = [path]
    found = [_read_file(file) for file in files]
    first = found[0]
    for file, other in zip(files[1:], found[1:], strict=True):
        if (other.threads, other.machine) != (first.threads, first.machine):
            raise InputError(
                f'{file} was taken on {other.machine.name} with {other.threads} threads, '
                f'{files[0]} on {first.machine.name} with {first.threads}; evaluate them apart'
            )
        twice = sorted(first.layers.keys() & other.layers.keys())
        if twice:
            raise InputError(f'{twice[0]} is in {files[0]} and in {file}; evaluate them apart')
        first.layers |= other.layers
    return first


def _read_file(path: Path) -> DataSet:
    """[file] -> [DataSet]; a last line that is not complete is left out."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == '.gz' else path.read_bytes()
        lines = content.decode().split('\n')[:-1]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f'--data {path} cannot be read: {error}') from None
    if not lines:
        raise InputError(f'--data {path} is empty; name a file of samples')
    number = 1
    try:
        data = _opened(json.loads(lines[0]))
        for number, line in enumerate(lines[1:], 2):  # noqa: B007 (named in the error)
            data.add(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f'{path} line {number} is no line of a data set ({error!r}); see docs/reproduce.md'
        ) from None
    return data


def _opened(head: Mapping[str, Any]) -> DataSet:
    if head['kind'] != 'run' or head['format'] != FORMAT:
        raise ValueError(f'format {head.get("format")} is not {FORMAT}')
    machine = Machine.from_json(head['machine'])
    return DataSet(machine, int(head['threads']), int(head['seed']), dict(head['versions']))


class Records(Protocol):
    """A data set that grows, wherever it is kept."""

    @property
    def data(self) -> DataSet: ...

    def put(self, kind: str, layer: str, **fields: Any) -> None: ...


class Recorder:
    """A data set that grows: every record is in the file before the next measurement begins.

    One process at a time writes a file. Use it in a `with` statement.
    """

    def __init__(self, path: Path, head: DataSet) -> None:
        self.path = path
        self._file: IO[bytes] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open('a+b')
            self._claim()
            self._drop_torn()
            if self._file.tell() == 0:
                self._write(
                    {
                        'kind': 'run', 'format': FORMAT, 'machine': head.machine.to_json(),
                        'threads': head.threads, 'seed': head.seed, 'versions': head.versions,
                    }
                )  # fmt: skip
        except OSError as error:
            self.close()
            raise StoreError(
                f'{path} cannot be written ({error.strerror or error}); free it, or set '
                f'TILEWRIGHT_CACHE_DIR'
            ) from None
        except BaseException:
            self.close()
            raise
        self.data = _read_file(path)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def put(self, kind: str, layer: str, **fields: Any) -> None:
        """Write one record, and take it in."""
        record = {'kind': kind, 'layer': layer, **fields}
        self._write(record)
        self.data.add(record)

    def _write(self, record: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(record, allow_nan=False).encode() + b'\n')
        self._file.flush()

    def _claim(self) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreError(
                f'{self.path} is being written by another process; wait for it, or use another '
                f'--seed'
            ) from None

    def _drop_torn(self) -> None:
        """Cut off a last line without an end: it was being written when its writer was killed."""
        assert self._file is not None
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b'\n') + 1
        if whole < len(content):
            self._file.truncate(whole)
        self._file.seek(0, os.SEEK_END)
