"""The tuning store: one row a key, what wins, stale records, damaged and unwritable files."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from tilewright.errors import StoreError
from tilewright.ops.matmul import matmul
from tilewright.runtime.measure import Measurement
from tilewright.store import records
from tilewright.store.records import Record, StoreWarning, Validators, open_store

GROUP = matmul(m=4, n=4, k=4)
HERE = Validators('machine', '1.0', 'gcc 12')


def _record(digest='s1', samples=(1.0,), status='ok', validators=HERE, threads=2) -> Record:
    measurement = Measurement(digest, status, tuple(samples), 1e-7 if samples else None)
    schedule = {'schema': 'outer', 'name': digest}
    features = {'l1_bytes': 12.5, 'bound': 'l2'}
    return Record(GROUP.digest, GROUP.label, schedule, digest, threads, validators, measurement,
                  features)  # fmt: skip


def _find(store, threads=2, validators=HERE):
    return store.find(GROUP.digest, threads, validators)


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'store.sqlite'


def test_a_record_comes_back_as_it_was_and_survives_closing(path):
    record = replace(_record(samples=(3.0, 1.0, 2.0)), created_s=5.0, updated_s=6.0)
    with open_store(path) as store:
        assert store.put(record)
    with open_store(path) as store:
        assert _find(store) == [record]
        assert store.best(GROUP.digest, 2, HERE) == record
    assert json.loads(json.dumps(record.to_json()))['measurement']['median_ms'] == 2.0


def test_time_stamps_are_set_and_the_first_one_stays(path):
    with open_store(path) as store:
        store.put(_record())
        (first,) = _find(store)
        assert first.created_s == first.updated_s > 1e9
        store.put(_record(samples=(1.0, 1.0)))
        (second,) = _find(store)
    assert second.created_s == first.created_s
    assert second.updated_s >= first.updated_s


@pytest.mark.parametrize(
    ('before', 'after', 'kept'),
    [
        (((1.0,), 'ok'), ((1.0, 2.0), 'ok'), 'after'),  # more samples
        (((1.0, 2.0), 'ok'), ((3.0,), 'ok'), 'before'),  # fewer samples
        (((1.0,), 'ok'), ((3.0,), 'ok'), 'after'),  # as many, newer
        (((1.0,), 'ok'), ((), 'wrong'), 'after'),  # evidence against it
        (((1.0, 2.0), 'ok'), ((), 'crashed'), 'after'),
        (((), 'wrong'), ((1.0, 2.0), 'ok'), 'before'),  # which is never taken back
        (((), 'wrong'), ((), 'crashed'), 'before'),
        (((), 'crashed'), ((1.0,), 'ok'), 'after'),  # that may have been the machine's fault
        (((), 'hung'), ((1.0,), 'ok'), 'after'),
        (((), 'failed'), ((1.0,), 'ok'), 'after'),
        (((), 'crashed'), ((), 'hung'), 'after'),
        (((), 'crashed'), ((), 'wrong'), 'after'),
    ],
)
def test_one_row_a_key_and_what_wins(path, before, after, kept):
    old, new = _record('s', *before), _record('s', *after)
    with open_store(path) as store:
        assert store.put(old)
        assert store.put(new) == (kept == 'after')
        (found,) = _find(store)
        assert len(store) == 1
    assert found.measurement == (new if kept == 'after' else old).measurement


def test_best_is_the_fastest_that_ran(path):
    with open_store(path) as store:
        store.put(_record('slow', (2.0, 2.0)))
        store.put(_record('fast', (1.0, 9.0, 1.5)))
        store.put(_record('bad', (), 'wrong'))
        store.put(_record('one thread', (0.1,), threads=1))
        best = store.best(GROUP.digest, 2, HERE)
        assert best.schedule_digest == 'fast'
        assert best.schedule == {'schema': 'outer', 'name': 'fast'}
        assert best.features == {'l1_bytes': 12.5, 'bound': 'l2'}
        for status in ('crashed', 'hung', 'failed'):  # tried again by the next run
            store.put(_record(status, (), status))
        assert set(store.known(GROUP.digest, 2, HERE)) == {'slow', 'fast', 'bad'}
        assert store.best('another group', 2, HERE) is None


@pytest.mark.parametrize(
    ('other', 'said'),
    [
        (replace(HERE, machine='laptop'), "machine 'laptop' instead of 'machine'"),
        (replace(HERE, package='0.9'), "package '0.9' instead of '1.0'"),
        (replace(HERE, compiler='clang 14'), "compiler 'clang 14' instead of 'gcc 12'"),
    ],
)
def test_records_of_another_machine_package_or_compiler_are_stale(path, other, said):
    with open_store(path) as store:
        store.put(_record('s1', (1.0,), validators=other))
        assert _find(store) == []
        (stale,) = store.stale(GROUP.digest, 2, HERE)
        assert stale.validators == other
        with pytest.warns(StoreWarning, match=said):
            assert store.best(GROUP.digest, 2, HERE) is None
        store.put(_record('s1', (2.0,)))  # another key: nothing is overwritten
        assert len(store) == 2
        assert store.best(GROUP.digest, 2, HERE).measurement.median_ms == 2.0


def test_forget_removes_the_valid_records_of_one_group(path):
    with open_store(path) as store:
        store.put(_record('s1'))
        store.put(_record('s2', (), 'crashed'))
        store.put(_record('s1', threads=1))
        store.put(_record('s1', validators=replace(HERE, package='0.9')))
        assert store.forget(GROUP.digest, 2, HERE) == 2
        assert len(store) == 2


def test_the_validators_of_today(monkeypatch, tmp_path):
    compiler = tmp_path / 'mycc'
    compiler.write_text('#!/bin/sh\necho my compiler 7\necho more\n')
    compiler.chmod(0o755)
    monkeypatch.setenv('TILEWRIGHT_CC', str(compiler))
    monkeypatch.delenv('TILEWRIGHT_CFLAGS', raising=False)
    found = Validators.current('fingerprint')
    assert found == Validators('fingerprint', records.package_version(), 'my compiler 7')
    monkeypatch.setenv('TILEWRIGHT_CFLAGS', '-O2 -g')
    assert Validators.current('fingerprint').compiler == 'my compiler 7 -O2 -g'
    version, sources = found.package.split('+')
    assert version[0].isdigit()
    assert len(sources) == 10


@pytest.mark.parametrize('folder', ['kernels', 'machine', 'ops', 'runtime', 'schedule'])
def test_the_package_version_follows_the_sources_that_make_code(monkeypatch, tmp_path, folder):
    def version() -> str:
        records.package_version.cache_clear()
        return records.package_version()

    root = tmp_path / 'tilewright'
    for name in (folder, 'store', 'model'):
        (root / name).mkdir(parents=True)
    monkeypatch.setattr(records, '__file__', str(root / 'store' / 'records.py'))
    first = version()
    (root / 'model' / 'traffic.py').write_text('x = 1')
    assert version() == first
    (root / folder / 'loops.py').write_text('x = 1')
    second = version()
    assert second != first
    (root / folder / 'loops.py').write_text('x = 2')
    assert version() not in (first, second)
    monkeypatch.undo()
    records.package_version.cache_clear()


def _damage_header(path):
    path.write_bytes(b'this is not a database at all' * 100)


def _damage_middle(path):
    data = bytearray(path.read_bytes())
    data[4096 : 3 * 4096] = os.urandom(2 * 4096)
    path.write_bytes(bytes(data))


def _cut_short(path):
    path.write_bytes(path.read_bytes()[:5000])


def _another_database(path):
    path.unlink()
    with sqlite3.connect(path) as connection:
        connection.execute('CREATE TABLE records (something TEXT)')
    connection.close()


@pytest.mark.parametrize('damage', [_damage_header, _damage_middle, _cut_short, _another_database])
def test_a_damaged_store_is_moved_aside_and_a_new_one_begins(path, damage):
    with open_store(path) as store:
        for number in range(50):
            store.put(_record(f's{number}'))
    damage(path)
    kept = path.read_bytes()
    with pytest.warns(StoreWarning, match=r'damaged.*store\.sqlite\.corrupt-1'):
        store = open_store(path)
    with store:
        assert len(store) == 0
        assert store.put(_record())
        assert store.path == path
    assert path.with_name('store.sqlite.corrupt-1').read_bytes() == kept
    with open_store(path) as store:
        assert len(store) == 1
    _damage_header(path)
    with pytest.warns(StoreWarning, match=r'store\.sqlite\.corrupt-2'):
        open_store(path).close()


def test_damage_while_it_is_open_does_not_end_the_run(path):
    store = open_store(path)
    for number in range(200):
        store.put(_record(f's{number}'))
    store._connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')
    path.write_bytes(b'\xff' * path.stat().st_size)
    store._connection.execute('PRAGMA shrink_memory')  # so that pages are read again
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        assert store.put(_record('after'))
        assert [r.schedule_digest for r in _find(store)] == ['after']
    assert any(issubclass(w.category, StoreWarning) for w in caught)
    store.close()


def test_a_file_that_another_process_moved_or_deleted_is_opened_anew(path):
    with open_store(path) as store, open_store(path) as other:
        store.put(_record('s1'))
        path.rename(path.with_name('elsewhere'))
        assert other.put(_record('s2'))
        assert [r.schedule_digest for r in _find(store)] == ['s2']


def test_an_unwritable_place_gives_a_store_in_memory(tmp_path):
    file = tmp_path / 'file'
    file.write_text('')
    with pytest.warns(StoreWarning, match=r'remembered in memory only.*TILEWRIGHT_CACHE_DIR'):
        store = open_store(file / 'store.sqlite')
    with store:
        assert store.path is None
        assert store.put(_record())
        assert len(_find(store)) == 1


def test_an_unwritable_cache_directory_that_was_asked_for_is_an_error(tmp_path, monkeypatch):
    file = tmp_path / 'file'
    file.write_text('')
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(file / 'cache'))
    with pytest.raises(StoreError, match=r'TILEWRIGHT_CACHE_DIR=.* cannot be written'):
        open_store()


def test_the_default_place_is_the_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    with open_store() as store:
        assert store.path == tmp_path / 'store.sqlite'


def test_a_store_that_can_no_longer_be_written_goes_on_in_memory_with_what_it_had(path):
    store = open_store(path)
    store.put(_record('s1'))
    store._connection.execute('PRAGMA query_only = ON')  # as a disk that became read-only
    with pytest.warns(StoreWarning, match='memory only'):
        assert store.put(_record('s2'))
    assert [r.schedule_digest for r in _find(store)] == ['s1', 's2']
    assert store.path is None
    store.close()


def test_a_store_of_a_newer_format_is_left_alone(path):
    open_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute('PRAGMA user_version = 99')
    connection.close()
    with pytest.warns(StoreWarning, match='newer version, of format 99'):
        store = open_store(path)
    assert store.path is None
    store.close()
    assert path.exists()
    assert not path.with_name('store.sqlite.corrupt-1').exists()


def test_a_row_that_cannot_be_read_is_skipped(path):
    with open_store(path) as store:
        store.put(_record('s1'))
        store.put(_record('s2'))
        store._connection.execute(
            "UPDATE records SET measurement = '{}' WHERE schedule_digest = 's1'"
        )
        with pytest.warns(StoreWarning, match='cannot be read and is skipped'):
            found = _find(store)
        assert [r.schedule_digest for r in found] == ['s2']


_WRITER = """
import sys
from pathlib import Path
from tilewright.runtime.measure import Measurement
from tilewright.store.records import Record, Validators, open_store
path, name = sys.argv[1:]
with open_store(Path(path)) as store:
    for number in range(100):
        for digest in (f'shared-{number}', f'{name}-{number}'):
            m = Measurement(digest, 'ok', (1.0 + number,))
            store.put(Record('g', 'g', {}, digest, 1, Validators('m', '1', 'c'), m))
"""


def test_many_writers_lose_and_double_nothing(path):
    writers = [
        subprocess.Popen([sys.executable, '-W', 'error', '-c', _WRITER, str(path), name])
        for name in ('a', 'b', 'c')
    ]
    assert [w.wait(60) for w in writers] == [0, 0, 0]
    with open_store(path) as store:
        assert len(store) == 400
        found = store.find('g', 1, Validators('m', '1', 'c'))
    assert len({r.schedule_digest for r in found}) == 400
    assert store.path == path


def test_a_copy_taken_from_a_killed_process_is_sound(path, tmp_path):
    """What is on disk after a put, without closing anything, is a complete store."""
    store = open_store(path)
    store.put(_record('s1'))
    snapshot = tmp_path / 'snapshot'
    snapshot.mkdir()
    for file in tmp_path.glob('store.sqlite*'):
        shutil.copy(file, snapshot)
    with open_store(snapshot / 'store.sqlite') as other:
        assert [r.schedule_digest for r in _find(other)] == ['s1']
    store.close()
