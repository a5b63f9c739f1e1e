"""The tuning store: every measurement ever taken, in one SQLite file that processes may share.

Goes in: records (group, schedule, validators, features, measurement). Comes out: those of a group
that hold for this machine, package and compiler, or the best of them. docs/store.md says what is
promised.

There is one row for each (group, schedule, threads, machine, package, compiler). `put` is a single
SQL statement: a process that is killed loses at most the measurement it was taking, and two that
measure the same candidate end with one row.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tilewright import knobs
from tilewright.errors import InputError
from tilewright.machine import compiler as build
from tilewright.runtime.measure import Measurement
from tilewright.version import VERSION

T = TypeVar('T')

SCHEMA_VERSION = 1
APPLICATION_ID = 0x54575253
BUSY_SECONDS = 30.0
_COLUMNS = (
    'group_digest', 'schedule_digest', 'threads', 'machine', 'package', 'compiler', 'group_label',
    'schedule', 'features', 'status', 'median_ms', 'samples', 'measurement', 'created_s',
    'updated_s',
)  # fmt: skip
_KEY = _COLUMNS[:6]
_VALUES = ('group_label', 'schedule', 'features', 'status', 'median_ms', 'samples', 'measurement')
_BEGIN = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
CREATE TABLE IF NOT EXISTS records (
  id INTEGER PRIMARY KEY,
  group_digest TEXT NOT NULL, schedule_digest TEXT NOT NULL, threads INTEGER NOT NULL,
  machine TEXT NOT NULL, package TEXT NOT NULL, compiler TEXT NOT NULL,
  group_label TEXT NOT NULL, schedule TEXT NOT NULL, features TEXT NOT NULL,
  status TEXT NOT NULL, median_ms REAL, samples INTEGER NOT NULL, measurement TEXT NOT NULL,
  created_s REAL NOT NULL, updated_s REAL NOT NULL,
  UNIQUE ({', '.join(_KEY)})
);
COMMIT;"""
# A kernel that was wrong once is wrong. A crash, a hang and a failed build may have had other
# causes (no memory, a busy machine): whatever is newer replaces them. Of two that ran, the one with
# more samples wins, then the newer one.
_PUT = f"""
INSERT INTO records ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})
ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET
  {', '.join(f'{c} = excluded.{c}' for c in (*_VALUES, 'updated_s'))}
WHERE records.status <> 'wrong'
  AND (records.status <> 'ok' OR excluded.status <> 'ok' OR excluded.samples >= records.samples)"""


class StoreWarning(UserWarning):
    """The store was damaged, cannot be written, or holds only records that no longer apply."""


@dataclass(frozen=True, slots=True)
class Validators:
    """What must be the same for a measurement to be true today."""

    machine: str
    package: str
    compiler: str

    @classmethod
    def current(cls, machine_fingerprint: str) -> Validators:
        """This package and the compiler in use, on the given machine."""
        compiler = ' '.join((build.compiler_version(build.compiler()), *knobs.get('cflags')))
        return cls(machine_fingerprint, package_version(), compiler)


@cache
def package_version() -> str:
    """Version, and a hash of the sources that decide what is generated and how it is run.

    So a changed code generator does not inherit the times of the one before it. What it generates
    follows from the operators' descriptions, the instruction sets and the schedules too.
    """
    root = Path(__file__).parents[1]
    total = hashlib.sha256()
    for folder in ('kernels', 'machine', 'ops', 'runtime', 'schedule'):
        for path in sorted((root / folder).rglob('*')):
            if path.suffix in ('.py', '.c', '.h'):
                total.update(path.relative_to(root).as_posix().encode() + b'\0')
                total.update(path.read_bytes())
    return f'{VERSION}+{total.hexdigest()[:10]}'


@dataclass(frozen=True, slots=True)
class Record:
    """One candidate of one group under given validators: its schedule, predictions and times.

    `features` are the predicted figures, as the models gave them. Times are seconds since 1970.
    """

    group_digest: str
    group_label: str
    schedule: Mapping[str, Any]
    schedule_digest: str
    threads: int
    validators: Validators
    measurement: Measurement
    features: Mapping[str, Any] = field(default_factory=dict)
    created_s: float = 0.0
    updated_s: float = 0.0

    def to_json(self) -> dict:
        return {
            'group': self.group_digest, 'label': self.group_label, 'schedule': self.schedule,
            'schedule_digest': self.schedule_digest, 'threads': self.threads,
            'machine': self.validators.machine, 'package': self.validators.package,
            'compiler': self.validators.compiler, 'features': self.features,
            'measurement': self.measurement.to_json(),
            'created_s': self.created_s, 'updated_s': self.updated_s,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Record:
        return cls(
            data['group'], data['label'], data['schedule'], data['schedule_digest'],
            data['threads'], Validators(data['machine'], data['package'], data['compiler']),
            Measurement.from_json(data['measurement']), data['features'], data['created_s'],
            data['updated_s'],
        )  # fmt: skip


def _row(record: Record) -> tuple:
    now = time.time()
    v, m = record.validators, record.measurement
    return (
        record.group_digest, record.schedule_digest, record.threads, v.machine, v.package,
        v.compiler, record.group_label, json.dumps(record.schedule, sort_keys=True),
        json.dumps(record.features, sort_keys=True), m.status, m.median_ms, len(m.samples_ms),
        json.dumps(m.to_json()), record.created_s or now, record.updated_s or now,
    )  # fmt: skip


def _record(row: tuple) -> Record:
    (
        group, digest, threads, machine, package, compiler, label, schedule, features, _, _, _,
        measurement, created, updated,
    ) = row  # fmt: skip
    return Record(
        group, label, json.loads(schedule), digest, threads,
        Validators(machine, package, compiler), Measurement.from_json(json.loads(measurement)),
        json.loads(features), created, updated,
    )  # fmt: skip


class Store:
    """An open store; `path` is None when it lives in memory. Use it from one thread.

    `heard` is called with every record that is put.
    """

    heard: Callable[[Record], object] | None = None

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._connection, self._inode = _connect(path)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def put(self, record: Record) -> bool:
        """Keep a record; comes out: whether the store changed.

        Under the same key a wrong answer is kept for good. Of two that are ok the one with more
        samples stays, with equally many the newer one; otherwise the newer one. Never two rows.
        """
        if self.heard is not None:
            self.heard(record)
        row = _row(record)
        return self._run(lambda connection: connection.execute(_PUT, row).rowcount) > 0

    def find(self, group_digest: str, threads: int, validators: Validators) -> list[Record]:
        """The records of a group that hold under these validators, oldest first."""
        v = validators
        where = 'threads = ? AND machine = ? AND package = ? AND compiler = ?'
        return self._select(where, (threads, v.machine, v.package, v.compiler), group_digest)

    def every(self, threads: int) -> list[Record]:
        """All records of so many threads, on whatever machine, oldest first."""
        return self._select('threads = ?', (threads,))

    def stale(self, group_digest: str, threads: int, validators: Validators) -> list[Record]:
        """The records of a group that another machine, package or compiler made: hints at most."""
        v = validators
        where = 'threads = ? AND NOT (machine = ? AND package = ? AND compiler = ?)'
        return self._select(where, (threads, v.machine, v.package, v.compiler), group_digest)

    def known(self, group_digest: str, threads: int, validators: Validators) -> dict:
        """Measurements by schedule digest: what `measure_all` takes to resume.

        Only what is settled or well begun: a candidate that crashed, hung or could not be built is
        left out, so that every run tries it once more.
        """
        found = self.find(group_digest, threads, validators)
        return {
            record.schedule_digest: record.measurement
            for record in found
            if record.measurement.status in ('ok', 'wrong')
        }

    def best(self, group_digest: str, threads: int, validators: Validators) -> Record | None:
        """The fastest valid record of a group, or None; warns when all there is is stale."""
        timed = [
            (record.measurement.median_ms, number, record)
            for number, record in enumerate(self.find(group_digest, threads, validators))
            if record.measurement.median_ms is not None
        ]
        if timed:
            return min(timed)[2]
        old = self.stale(group_digest, threads, validators)
        if old:
            warnings.warn(
                f'{len(old)} records of {old[0].group_label} were made by '
                f'{_differences(old[-1].validators, validators)} and are not used; measure again',
                StoreWarning,
                stacklevel=2,
            )
        return None

    def forget(self, group_digest: str, threads: int, validators: Validators) -> int:
        """Delete the valid records of a group, so that it is measured anew; how many there were."""
        v = validators
        values = (group_digest, threads, v.machine, v.package, v.compiler)
        sql = (
            'DELETE FROM records WHERE group_digest = ? AND threads = ? AND machine = ? '
            'AND package = ? AND compiler = ?'
        )
        return self._run(lambda connection: connection.execute(sql, values).rowcount)

    def __len__(self) -> int:
        return self._run(lambda c: c.execute('SELECT count(*) FROM records').fetchone()[0])

    def _select(
        self, where: str, values: tuple, group_digest: str | None = None
    ) -> list[Record]:  # fmt: skip
        if group_digest is not None:
            where, values = f'group_digest = ? AND {where}', (group_digest, *values)
        sql = f'SELECT {", ".join(_COLUMNS)} FROM records WHERE {where}'
        rows = self._run(lambda c: c.execute(f'{sql} ORDER BY id', values).fetchall())
        records = []
        for row in rows:
            try:
                records.append(_record(row))
            except (ValueError, InputError) as error:
                warnings.warn(f'a record of {row[6]} cannot be read and is skipped: {error}',
                              StoreWarning, stacklevel=4)  # fmt: skip
        return records

    def _run(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Do something with the file; if it is damaged or lost, do it with a new one."""
        for _ in range(2):
            try:
                if self.path is not None and _inode(self.path) != self._inode:
                    self.close()  # moved aside or deleted by somebody else
                    self._connection, self._inode = _open(self.path)
                return action(self._connection)
            except sqlite3.DatabaseError as error:
                self._recover(error)
            except OSError as error:
                self._recover(error)
        return action(self._connection)

    def _recover(self, error: Exception) -> None:
        if isinstance(error, sqlite3.ProgrammingError | sqlite3.IntegrityError):
            raise error
        if self.path is not None and _is_damage(error):
            self.close()
            self._connection, self._inode = _open(self.path)
            return
        memory, _ = _connect(None)
        with contextlib.suppress(sqlite3.Error):
            self._connection.backup(memory)
        self.close()
        _warn_in_memory(self.path, error)
        self.path, self._connection, self._inode = None, memory, 0


def open_store(path: Path | None = None) -> Store:
    """Open, or begin, the store at `path` (default: `store.sqlite` in the cache directory).

    A damaged file is moved aside with a warning; where nothing can be written, the store lives in
    memory, with a warning: a run must not end because it cannot be remembered.
    """
    where = build.cache_dir() / 'store.sqlite' if path is None else path
    store = Store(None)
    try:
        connection, inode = _open(where)
    except (OSError, sqlite3.Error) as error:
        _warn_in_memory(where, error)
        return store
    store.close()
    store.path, store._connection, store._inode = where, connection, inode
    return store


def _open(path: Path) -> tuple[sqlite3.Connection, int]:
    """Connect to the file at `path`; a damaged one is moved aside first. One process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(path.name + '.lock')):
        try:
            return _connect(path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            aside = _move_aside(path)
            warnings.warn(
                f'the tuning store {path} is damaged ({error}) and was moved to {aside.name}; a '
                f'new one begins',
                StoreWarning,
                stacklevel=4,
            )
            return _connect(path)


def _connect(path: Path | None) -> tuple[sqlite3.Connection, int]:
    """A connection to a sound store, and its inode; raises DatabaseError for a damaged one."""
    connection = sqlite3.connect(
        ':memory:' if path is None else path, timeout=BUSY_SECONDS, isolation_level=None
    )
    try:
        connection.execute('PRAGMA trusted_schema = OFF')
        begun = connection.execute('SELECT count(*) FROM sqlite_master').fetchone()[0]
        if begun:
            _check(connection)
        connection.execute('PRAGMA journal_mode = WAL').fetchone()
        connection.execute('PRAGMA synchronous = NORMAL')
        if not begun:
            connection.executescript(_BEGIN)
        return connection, 0 if path is None else _inode(path)
    except BaseException:
        connection.close()
        raise


def _check(connection: sqlite3.Connection) -> None:
    def ask(pragma: str) -> Any:
        return connection.execute(f'PRAGMA {pragma}').fetchone()[0]

    if ask('application_id') != APPLICATION_ID:
        raise sqlite3.DatabaseError('it is not a tuning store')
    version = ask('user_version')
    if version > SCHEMA_VERSION:
        raise sqlite3.OperationalError(f'it was made by a newer version, of format {version}')
    verdict = ask('quick_check(1)')
    if verdict != 'ok':
        raise sqlite3.DatabaseError(verdict.splitlines()[-1])


def _is_damage(error: Exception) -> bool:
    """SQLite reports a damaged file as DatabaseError itself, everything else as a subclass."""
    return type(error) is sqlite3.DatabaseError


def _move_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f'{path.name}.corrupt-{number}')).exists():
        number += 1
    for suffix in ('-wal', '-shm'):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path.with_name(path.name + suffix), aside.with_name(aside.name + suffix))
    os.replace(path, aside)
    return aside


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, 'ab') as file:
        with contextlib.suppress(OSError):  # a file system without locks: SQLite has its own
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _warn_in_memory(path: Path | None, error: Exception) -> None:
    warnings.warn(
        f'the tuning store {path} cannot be used ({error}); this run is remembered in memory only, '
        f'set TILEWRIGHT_CACHE_DIR to a directory that can be written',
        StoreWarning,
        stacklevel=4,
    )


def _differences(old: Validators, new: Validators) -> str:
    return ', '.join(
        f'{name} {getattr(old, name)!r} instead of {getattr(new, name)!r}'
        for name in ('machine', 'package', 'compiler')
        if getattr(old, name) != getattr(new, name)
    )
