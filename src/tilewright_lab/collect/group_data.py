"""Measured schedules of fused groups: what GTuner's model learns from (DAC'22, Sec. 4.1).

Goes in: a folder that `src/tilewright_lab/scripts/gpu_groups.py` wrote. Comes out: a `GroupData`:
groups of networks to train on and of networks to test on, each with schedules of every schema and
their times, and what was left out of the files and why.

    groups.json               every group by its digest: whether it trains or tests, how often each
                              network has it, and what it computes (`Group.to_json`)
    groups-KIND.csv.gz        one file for each schema, or schema and intrinsic: group, decisions,
                              status, time_us, registers, spill_bytes
    dataset.json              the GPU

Lines that are not numbers, and times that are not above 0, are left out and counted; a file that
holds mostly such lines, or lacks a column, is refused. Repeated configurations count once, by the
median of their times. No group is in both parts.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import re
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.errors import InputError, TilewrightError
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.rank.counts import Array
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.rows import RESULT

FORMAT = 1
PARTS = ('train', 'test')
STATUSES = ('ok', 'wrong', 'refused', 'crashed')
LARGEST_LOSS = 0.5  # share of a file's lines that may be unreadable
_REGISTER_TILES = (
    'rk', 'ry', 'rx', 'cb', 'stages', 'split', 'join', 'tk', 'ty', 'tx', 'wk', 'wy', 'wx',
)  # fmt: skip
_COPY_DECISIONS = ('stages', 'late', 'bulk')
# (schema, intrinsic) -> its decisions, in the order of the spaces that are searched.
DECISIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ('tiled', 'fma'): ('bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split', 'joint'),
    ('tiled', 'mma_tf32x3'): ('bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split', 'joint'),
    ('patch', 'mma_tf32x3'): (
        'bk', 'bn', 'bh', 'bw', 'tk', 'tp', 'stages', 'split', 'kb', 'joint',
    ),
    ('patch', 'wgmma_tf32x3'): (
        'bn', 'bh', 'bw', 'split', 'kb', 'joint', 'bk', 'tk', 'tp', 'stages', 'queue', 'gap',
    ),
    ('patch', 'wgmma_tf32_bf16'): (
        'bn', 'bh', 'bw', 'split', 'kb', 'joint', 'bk', 'tk', 'tp', 'queue', 'gap',
        *_COPY_DECISIONS,
    ),
    ('strip', 'mma_tf32x3'): ('bp', 'bk', 'tk', 'tp', 'stages', 'split', 'kb', 'joint'),
    ('strip', 'wgmma_tf32_bf16'): (
        'bp', 'split', 'kb', 'joint', 'bk', 'tk', 'tp', 'queue', *_COPY_DECISIONS,
    ),
    ('winograd', 'fma'): ('m', 'bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split', 'joint'),
    ('winograd', 'mma_tf32x3'): ('m', 'joint', 'bk', 'bp', 'tk', 'tp', 'kb', 'stages', 'split'),
    ('winograd', 'wgmma_tf32_bf16'): (
        'm', 'joint', 'bk', 'tk', *_COPY_DECISIONS, 'bp', 'tp', 'kb', 'split', 'queue',
    ),
    ('rs', 'fma'): _REGISTER_TILES,
    ('s', 'fma'): _REGISTER_TILES,
    ('depthwise', 'fma'): ('th', 'tw', 'bh', 'bw', 'bp', 'shared'),
    ('general', 'fma'): ('threads', 'lanes'),
    ('rows', 'fma'): ('threads',),
}  # fmt: skip
# Decisions that a schedule need not name: 0 in a file.
_UNNAMED = {('general', 'lanes')}
_FILE = re.compile(r'groups-([a-z]+)(?:-(\w+))?\.csv\.gz')


@dataclass(frozen=True, slots=True)
class Known:
    """A group of `groups.json`: its part, and how often each network has it."""

    group: Group
    part: str
    networks: Mapping[str, int]


@dataclass(frozen=True)
class GroupRows:
    """Schedules of one group, of all schemas, with their times.

    schedules, seconds   those that worked, distinct
    failed               the others, with what became of them
    """

    group: Group
    part: str
    networks: tuple[str, ...]
    schedules: tuple[GpuSchedule, ...]
    seconds: Array = field(repr=False)
    failed: tuple[tuple[GpuSchedule, str], ...] = ()

    def __len__(self) -> int:
        return len(self.schedules)

    @property
    def best(self) -> float:
        return float(self.seconds.min())


@dataclass(frozen=True)
class GroupData:
    """What a folder holds. `notes`: what was left out, a sentence each."""

    train: tuple[GroupRows, ...]
    test: tuple[GroupRows, ...]
    machine: GpuMachine | None
    notes: tuple[str, ...]


def rows_in(sets: Iterable[GroupRows]) -> int:
    return sum(len(rows) for rows in sets)


def digest_of(sets: Iterable[GroupRows]) -> str:
    """A hash of every configuration and time: what a model was trained on."""
    found = hashlib.sha256()
    for rows in sorted(sets, key=lambda rows: rows.group.digest):
        found.update(rows.group.digest.encode())
        order = sorted(range(len(rows)), key=lambda i: rows.schedules[i].digest)
        for i in order:
            found.update(f'{rows.schedules[i].digest} {rows.seconds[i]!r}\n'.encode())
    return found.hexdigest()


def file_name(schema: str, intrinsic: str) -> str:
    """The file of a schema and intrinsic."""
    several = sum(known == schema for known, _ in DECISIONS) > 1
    return f'groups-{schema}-{intrinsic}.csv.gz' if several else f'groups-{schema}.csv.gz'


def columns(schema: str, intrinsic: str) -> tuple[str, ...]:
    return ('group', *DECISIONS[schema, intrinsic], *RESULT)


def decisions(schedule: GpuSchedule) -> tuple[int, ...]:
    """The numbers of a schedule, as columns; the inverse of `schedule_of`."""
    tiles = dict(schedule.tiles)
    kind = (schedule.schema, schedule.intrinsic)
    return tuple(
        tiles.get(name, 0) if (schedule.schema, name) in _UNNAMED else schedule[name]
        for name in DECISIONS[kind]
    )


def schedule_of(schema: str, intrinsic: str, numbers: Sequence[int]) -> GpuSchedule:
    tiles = {
        name: number
        for name, number in zip(DECISIONS[schema, intrinsic], numbers, strict=True)
        if number or (schema, name) not in _UNNAMED
    }
    return GpuSchedule.of(schema, intrinsic, **tiles)


def catalogue_text(groups: Mapping[str, Known]) -> str:
    """`groups.json`, a line for each group."""
    lines = [
        f'{json.dumps(digest)}: '
        + json.dumps(
            {'part': one.part, 'networks': dict(one.networks), 'group': one.group.to_json()},
            separators=(',', ':'),
        )
        for digest, one in groups.items()
    ]
    return f'{{"format": {FORMAT}, "groups": {{\n' + ',\n'.join(lines) + '\n}}\n'


def read_catalogue(folder: Path) -> dict[str, Known]:
    """[folder] -> every group of its `groups.json` by digest, in the order of the file."""
    path = folder / 'groups.json'
    try:
        said = json.loads(path.read_text())
        version = said['format']
        found = {
            digest: Known(
                Group.from_json(item['group']), item['part'],
                {str(name): int(count) for name, count in item['networks'].items()},
            )
            for digest, item in (said['groups'] if version == FORMAT else {}).items()
        }  # fmt: skip
    except OSError as error:
        raise InputError(
            f'{path} cannot be read ({error.strerror}); name a folder that '
            f'`python -m tilewright_lab.scripts.gpu_groups` wrote'
        ) from None
    except InputError as error:
        raise InputError(f'{path} cannot be used: {error}') from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f'{path} is not a catalogue of groups ({error!r}); restore it') from None
    if version != FORMAT:
        raise InputError(
            f'{path} has format {version!r}, this version reads {FORMAT}; measure again'
        )
    for digest, one in found.items():
        if one.group.digest != digest or one.part not in PARTS:
            raise InputError(
                f'{path}: group {digest} is {one.group.digest}, part {one.part!r}; it was changed '
                f'or belongs to another version: restore it'
            )
    return found


def read_groups(folder: Path) -> GroupData:
    """[folder] -> [GroupData]; groups without a schedule that worked are left out."""
    if not folder.is_dir():
        raise InputError(f'{folder} is not a directory; name one with measured groups')
    known = read_catalogue(folder)
    files = sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))
    if not files:
        raise InputError(
            f'{folder} holds no groups-*.csv.gz; measure some with `python -m '
            f'tilewright_lab.scripts.gpu_groups`'
        )
    notes: list[str] = []
    times: dict[str, dict[GpuSchedule, list[float]]] = {}
    failed: dict[str, dict[GpuSchedule, str]] = {}
    for path in files:
        _read_file(path, known, times, failed, notes)
    sets = [
        _rows(known[digest], times.get(digest, {}), failed.get(digest, {}))
        for digest in known
        if digest in times
    ]
    if not sets:
        raise InputError(f'{folder}: no row of its files worked; measure again')
    empty = len(failed.keys() - times.keys())
    if empty:
        notes.append(f'{empty} groups have no schedule that worked; they are left out')
    train, test = (tuple(rows for rows in sets if rows.part == part) for part in PARTS)
    return GroupData(train, test, _machine(folder), tuple(notes))


def _rows(
    known: Known, times: Mapping[GpuSchedule, Sequence[float]], failed: Mapping[GpuSchedule, str]
) -> GroupRows:
    seconds = np.array([statistics.median(values) for values in times.values()]) * 1e-6
    rest = tuple((schedule, status) for schedule, status in failed.items() if schedule not in times)
    return GroupRows(
        known.group, known.part, tuple(known.networks), tuple(times), seconds, rest
    )  # fmt: skip


def _kind(path: Path) -> tuple[str, str]:
    match = _FILE.fullmatch(path.name)
    assert match is not None
    kind = (match[1], match[2] or 'fma')
    if kind not in DECISIONS:
        known = ', '.join(file_name(*other) for other in DECISIONS)
        raise InputError(f'{path} is of no schema of this version; known files: {known}')
    return kind


def _read_file(
    path: Path,
    known: Mapping[str, Known],
    times: dict[str, dict[GpuSchedule, list[float]]],
    failed: dict[str, dict[GpuSchedule, str]],
    notes: list[str],
) -> None:
    """Add the rows of one file."""
    schema, intrinsic = _kind(path)
    try:
        text = gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f'{path} cannot be read ({error}); restore it') from None
    lines = list(csv.reader(io.StringIO(text)))
    wanted = columns(schema, intrinsic)
    if not lines or tuple(lines[0]) != wanted:
        missing = [name for name in wanted if name not in (lines[0] if lines else [])]
        raise InputError(
            f'{path} lacks the columns {", ".join(missing) or "in their order"}; it must have '
            f'{",".join(wanted)}: measure it again'
        )
    count, strange, garbled = len(DECISIONS[schema, intrinsic]), 0, 0
    for line in lines[1:]:
        row = _row(line, count)
        if row is None:
            garbled += 1
        elif row[0] not in known:
            strange += 1
        else:
            digest, numbers, status, micro = row
            schedule = schedule_of(schema, intrinsic, numbers)
            if micro is not None:
                times.setdefault(digest, {}).setdefault(schedule, []).append(micro)
            else:
                failed.setdefault(digest, {})[schedule] = status
    bad = strange + garbled
    if bad > LARGEST_LOSS * (len(lines) - 1):
        raise InputError(
            f'{path}: {bad} of {len(lines) - 1} lines are no measurements (text, missing cells, '
            f'unknown groups, times that are not above 0); restore the file or leave it out'
        )
    if bad:
        notes.append(
            f'{path.name}: {garbled} of {len(lines) - 1} lines are no measurements and {strange} '
            f'are of groups that groups.json does not have; they are left out'
        )


def _row(line: Sequence[str], count: int) -> tuple[str, list[int], str, float | None] | None:
    """(group, decisions, status, microseconds if it worked), or None where it cannot be."""
    if len(line) != 1 + count + len(RESULT):
        return None
    try:
        numbers = [int(cell) for cell in line[1 : 1 + count]]
        status, micro = line[1 + count], line[2 + count]
        if status not in STATUSES or min(numbers) < 0:
            return None
        if status != 'ok':
            return line[0], numbers, status, None
        took = float(micro)
    except ValueError:
        return None
    return (line[0], numbers, status, took) if took > 0 and math.isfinite(took) else None


def _machine(folder: Path) -> GpuMachine | None:
    path = folder / 'dataset.json'
    if not path.exists():
        return None
    try:
        said = json.loads(path.read_text())
        said.pop('tilewright', None)
        return GpuMachine.from_json(said)
    except (OSError, ValueError, AttributeError, TypeError, TilewrightError) as error:
        raise InputError(f'{path} does not describe a GPU ({error}); restore it') from None
