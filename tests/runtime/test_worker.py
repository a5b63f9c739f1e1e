"""Candidates that are right, wrong, crash, hang or take all memory; the worker and the run go on.

Takes about twenty seconds: every crash and every kill costs a new process.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tilewright.errors import CompilerError, InputError, MissingError
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.runtime import measure as measuring
from tilewright.runtime.measure import (
    Conditions,
    Duel,
    Measurement,
    finalists,
    measure_all,
    moved,
    paired_final,
)
from tilewright.runtime.worker import Answer, Worker
from tilewright.store.records import Record, Store, open_store

CLIB = Path(__file__).parents[1] / 'clib'
sys.path.append(str(CLIB))

from candidates import GROUP, library  # noqa: E402
from tune import VALIDATORS  # noqa: E402

LONG_S = 60.0


@pytest.fixture(scope='module', autouse=True)
def cache(tmp_path_factory):
    """One private cache for all tests here, with the thread pool built into it beforehand, so that
    short time limits count the candidate alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path_factory.mktemp('cache')))
        with Worker(seed=5, time_limit=LONG_S) as first:
            assert first.check(GROUP, library('right')).ok
        yield


@pytest.fixture(scope='module')
def worker():
    with Worker(seed=5, time_limit=LONG_S) as shared:
        yield shared


def _gone(pid: int, patience_s: float = 20.0) -> bool:
    """Whether a process ends (or is a zombie nobody collects) within some time."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            state = Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return True
        if state == 'Z':
            return True
        time.sleep(0.02)
    return False


def test_a_right_candidate_is_checked_and_timed(worker):
    answer = worker.check(GROUP, library('right'))
    assert answer.ok
    assert answer.max_rel_err < 1e-6
    timed = worker.time(GROUP, library('right'), min_ms=0.01, max_calls=10)
    assert timed.ok
    assert 2 <= len(timed.samples_ms) <= 10
    assert min(timed.samples_ms) > 0


@pytest.mark.parametrize(
    ('name', 'status', 'said'),
    [
        ('wrong', 'wrong', 'at index (3, 2)'),
        ('unwritten', 'wrong', 'not written at index (3, 3) (1 of 16 elements)'),
        ('segfault', 'crashed', 'ended by SIGSEGV'),
        ('aborts', 'crashed', 'ended by SIGABRT: a tile is negative'),
        ('hungry', 'crashed', 'ended by SIGSEGV'),
        ('overruns', 'crashed', 'ended by SIGSEGV'),
        ('spoils', 'crashed', 'ended by SIGSEGV'),
        ('halves', 'failed', 'tw_part'),
    ],
)
def test_bad_candidates_get_their_status_and_the_next_one_is_served(worker, name, status, said):
    answer = worker.check(GROUP, library(name))
    assert answer.status == status
    assert said in answer.message
    assert worker.check(GROUP, library('right')).ok


def test_a_candidate_that_never_ends_is_hung_and_its_process_is_gone():
    with Worker(seed=5, time_limit=2.0) as impatient:
        assert impatient.check(GROUP, library('halves')).status == 'failed'
        pid = impatient.pid
        answer = impatient.check(GROUP, library('endless'))
        assert answer == Answer('hung', 'no answer within 2 s')
        assert _gone(pid)
        assert impatient.pid is None


def test_constants_that_do_not_fit_in_the_limit_are_a_crash_that_names_it(worker):
    greedy = library('right', 'PACKED_BYTES=(1L<<50)')
    answer = worker.check(GROUP, greedy)
    assert answer.status == 'crashed'
    assert answer.message == f'needs more than {worker.memory_limit} bytes'


def test_what_a_library_prints_is_not_taken_for_a_reply(worker):
    for _ in range(2):
        assert worker.check(GROUP, library('prints')).ok


def test_an_answer_that_turns_wrong_while_it_is_timed_is_noticed(worker):
    assert worker.check(GROUP, library('late')).ok
    assert worker.time(GROUP, library('late'), min_ms=0.01).status == 'wrong'


def test_a_file_that_is_no_library_is_failed(worker, tmp_path):
    broken = tmp_path / 'broken.so'
    broken.write_bytes(b'\x7fELF and nothing else')
    assert worker.check(GROUP, broken).status == 'failed'
    assert worker.check(GROUP, tmp_path / 'absent.so').status == 'failed'


def test_a_child_that_the_system_kills_is_replaced_and_nobody_is_blamed(worker):
    assert worker.check(GROUP, library('right')).ok
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.check(GROUP, library('prints')).ok


def test_one_process_serves_many_candidates_and_each_group_gets_its_own():
    with Worker(seed=5) as own:
        assert own.pid is None
        own.check(GROUP, library('right'))
        first = own.pid
        own.check(GROUP, library('prints'))
        assert own.pid == first
        assert own.starts == 1
        other = matmul(m=4, n=4, k=4)
        assert other == GROUP
        own.check(other, library('right'))
        assert own.pid == first
        own.check(matmul(m=1, n=4, k=4), library('right'))  # overruns nothing: a page is mapped
        assert own.starts == 2
        last = own.pid
    assert _gone(first)
    assert _gone(last)


def test_a_worker_may_be_used_from_a_thread_that_ends():
    with Worker(seed=5) as own:
        starter = threading.Thread(target=own.check, args=(GROUP, library('right')))
        starter.start()
        starter.join()
        pid = own.pid
        assert own.check(GROUP, library('right')).ok
        assert own.pid == pid


def test_a_reference_that_does_not_fit_ends_the_run_with_one_sentence():
    group = conv2d(c=512, h=2047, w=2048, k=1, r=1, s=1)
    with (
        Worker(seed=5, memory_limit=4 << 30) as own,
        pytest.raises(MissingError, match=r'could not be computed.*TILEWRIGHT_MEMORY_LIMIT'),
    ):
        own.check(group, library('right'))


def _start(code: str) -> subprocess.Popen:
    """A Python process that Ctrl-C reaches, even where a shell runs the tests in the background."""
    path = os.pathsep.join([str(CLIB), *sys.path])
    return subprocess.Popen(
        [sys.executable, '-c', code], stdout=subprocess.PIPE, text=True,
        env={**os.environ, 'PYTHONPATH': path},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip


_HANGING = """
import threading, time
from candidates import GROUP, library
from tilewright.runtime.worker import Worker
with Worker(seed=1) as worker:
    worker.check(GROUP, library('right'))
    print(worker.pid, flush=True)
    worker.check(GROUP, library('endless'))
"""


@pytest.mark.parametrize('end', [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_child_dies_with_its_parent_even_inside_a_candidate(end, capfd):
    with _start(_HANGING) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.1)
        parent.send_signal(end)
        assert _gone(pid)
        assert parent.wait(20) != 0
    if end == signal.SIGINT:
        assert 'KeyboardInterrupt' in capfd.readouterr().err


def _measured(names, **options):
    candidates = [(name, lambda name=name: library(*name.split(':'))) for name in names]
    with Worker(seed=5, time_limit=2.0) as own:
        return measure_all(GROUP, candidates, worker=own, min_ms=0.05, **options)


def test_every_kind_of_failure_is_recorded_and_the_run_goes_on():
    expected = {
        'right:V=1': 'ok',
        'segfault': 'crashed',
        'wrong': 'wrong',
        'endless': 'hung',
        'hungry': 'crashed',
        'aborts': 'crashed',
        'refused': 'failed',
        'halves': 'failed',
        'right:V=2': 'ok',
    }
    recorded, steps = [], []
    found = _measured(expected, rounds=3, record=recorded.append, progress=steps.append, cutoff=1e9)
    assert {m.key: m.status for m in found} == expected
    assert [m.key for m in found] == list(expected)
    assert all(len(m.samples_ms) == (3 if m.ok else 0) for m in found)
    assert 'a tile does not fit' in found[6].message
    latest = {m.key: m for m in recorded}
    assert latest == {m.key: m for m in found}
    assert [s.done for s in steps] == list(range(1, len(steps) + 1))
    assert steps[-1].done == steps[-1].total
    assert steps[-1].left_s == 0
    assert steps[-1].best_ms == min(m.median_ms for m in found if m.ok)


def test_rounds_are_interleaved():
    turns = []
    _measured(
        ['right:V=1', 'right:V=2', 'right:V=3'], rounds=2, cutoff=1e9,
        progress=lambda step: turns.append(step.key) if step.stage == 'time' else None,
    )  # fmt: skip
    assert turns == ['right:V=1', 'right:V=2', 'right:V=3'] * 2


def test_what_is_known_is_not_measured_again():
    done = Measurement('right:V=1', samples_ms=(1.0, 2.0, 3.0))
    crashed = Measurement('segfault', 'crashed', message='ended by SIGSEGV')
    half = Measurement('right:V=2', samples_ms=(4.0,))
    touched = []
    found = _measured(
        ['right:V=1', 'segfault', 'right:V=2'], rounds=3, cutoff=1e9,
        known={m.key: m for m in (done, crashed, half)},
        progress=lambda step: touched.append(step.key),
    )  # fmt: skip
    assert found[:2] == [done, crashed]
    assert found[2].samples_ms[0] == 4.0
    assert len(found[2].samples_ms) == 3
    assert set(touched) == {'right:V=2'}


def test_slow_candidates_get_no_more_turns_after_two():
    slow = Measurement('right:V=1', samples_ms=(1e6, 1e6))
    found = _measured(['right:V=1', 'right:V=2'], rounds=4, known={'right:V=1': slow})
    assert found[0].samples_ms == slow.samples_ms
    assert len(found[1].samples_ms) == 4


def test_trouble_with_the_system_ends_the_run_and_two_equal_keys_are_refused():
    def no_compiler():
        raise MissingError('no C compiler was found')

    def broken():
        raise CompilerError('gcc failed')

    def defect():
        raise KeyError('a dimension')

    with Worker() as own:
        with pytest.raises(MissingError):
            measure_all(GROUP, [('a', no_compiler)], worker=own)
        with pytest.raises(KeyError, match='a dimension'):  # ours, not the candidate's
            measure_all(GROUP, [('a', broken), ('b', defect)], worker=own)
        with pytest.raises(InputError, match='same key'):
            measure_all(GROUP, [('a', broken), ('a', broken)], worker=own)
        assert measure_all(GROUP, [('a', broken)], worker=own) == [
            Measurement('a', 'failed', message='CompilerError: gcc failed')
        ]
        assert measure_all(GROUP, [], worker=own) == []
        assert own.pid is None  # nothing to run: no process


def test_a_moved_clock_or_load_is_noted(monkeypatch):
    quiet = Conditions(1.0, 0.2)
    assert moved([quiet, Conditions(1.09, 2.9)], threads=2) == ''
    assert 'clock moved' in moved([quiet, Conditions(1.2, 0.2), quiet], threads=2)
    assert 'load average rose by 3.0' in moved([quiet, Conditions(1.0, 3.2)], threads=2)
    states = iter([quiet, quiet, Conditions(2.0, 0.2)])
    monkeypatch.setattr(measuring, 'conditions', lambda: next(states))
    recorded = []
    (found,) = _measured(['right'], rounds=2, record=recorded.append)
    assert found.disturbed
    assert found.message == 'the clock moved during the run: a fixed probe took 1 to 2 ms'
    assert recorded[-1] == found


class _Script:
    """Stands in for the worker: says what each library is to take, turn by turn."""

    def __init__(self, times):
        self.times = {key: iter(values) for key, values in times.items()}
        self.turns = []

    def time(self, group, library, *, min_ms):
        self.turns.append(str(library))
        value = next(self.times[str(library)])
        return value if isinstance(value, Answer) else Answer('ok', samples_ms=(value,) * 3)


def test_a_pair_is_timed_in_turns_and_judged_by_the_median_ratio():
    script = _Script({'x.so': [1.0, 2.0, 4.0], 'y.so': [0.9, 1.8, 8.0]})
    a, b = ('x', Path('x.so')), ('y', Path('y.so'))
    duel = paired_final(GROUP, a, b, worker=script, pairs=3)
    assert script.turns == ['x.so', 'y.so'] * 3
    assert duel == Duel('x', 'y', (1.0, 2.0, 4.0), (0.9, 1.8, 8.0))
    assert duel.ratio == 0.9  # median of 0.9, 0.9, 2: one bad pair does not decide
    assert duel.winner == 'y'


def test_finals_decide_among_the_best_and_survive_a_failure():
    crash = Answer('crashed', 'ended by SIGSEGV')
    script = _Script({'a.so': [1.0, 1.0, 1.0, 1.0], 'b.so': [crash], 'c.so': [0.8, 0.8]})
    measured = [
        Measurement('d', samples_ms=(9.0,)),
        Measurement('c', samples_ms=(1.2,)),
        Measurement('a', samples_ms=(1.0,)),
        Measurement('b', samples_ms=(1.1,)),
        Measurement('e', 'wrong'),
    ]
    libraries = {key: Path(f'{key}.so') for key in 'abd'} | {'c': lambda: Path('c.so')}
    recorded = []
    final = finalists(
        GROUP, measured, libraries, worker=script, top=3, pairs=2, record=recorded.append
    )
    assert final.best == 'c'
    assert [(d.a, d.b, d.winner) for d in final.duels] == [('a', 'b', 'a'), ('a', 'c', 'c')]
    assert (
        recorded
        == list(final.failures)
        == [Measurement('b', 'crashed', message='ended by SIGSEGV')]
    )
    assert finalists(GROUP, measured[4:], {}, worker=script).best is None
    assert finalists(GROUP, measured[:1], {}, worker=script).best == 'd'


def test_median_and_spread_by_hand_and_json_both_ways():
    found = Measurement('k', 'ok', (5.0, 1.0, 2.0, 4.0, 3.0), 1e-7, 'a note', True)
    assert found.median_ms == 3.0
    assert found.spread == (4.0 - 2.0) / 3.0
    assert Measurement.from_json(json.loads(json.dumps(found.to_json()))) == found
    failed = Measurement('k', 'wrong', message='no')
    assert failed.median_ms is None
    assert failed.spread is None
    assert Measurement.from_json(failed.to_json()) == failed
    with pytest.raises(InputError, match='cannot be read'):
        Measurement.from_json({'key': 'k'})
    with pytest.raises(InputError, match='not one of'):
        Measurement('k', 'maybe')
    with pytest.raises(InputError, match='not positive'):
        Measurement('k', samples_ms=(1.0, 0.0))


NAMES = ('right:V=1', 'segfault', 'right:V=2', 'wrong', 'right:V=3')
STATUSES = {'segfault': 'crashed', 'wrong': 'wrong'}
ROUNDS = 4


def _tune(store: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(CLIB / 'tune.py'), str(store), str(ROUNDS), *NAMES],
        stdout=subprocess.PIPE,
        text=True,
    )


def _stored(store: Store) -> dict[str, Measurement]:
    return {r.schedule_digest: r.measurement for r in store.find(GROUP.digest, 1, VALIDATORS)}


def _assert_complete(store_path: Path) -> dict[str, Measurement]:
    with open_store(store_path) as store:
        assert len(store) == len(NAMES)
        found = _stored(store)
    assert set(found) == set(NAMES)
    for name, measurement in found.items():
        assert measurement.status == STATUSES.get(name, 'ok')
        assert len(measurement.samples_ms) == (ROUNDS if measurement.ok else 0)
    return found


@pytest.mark.parametrize('stored_before_kill', [1, pytest.param(6, marks=pytest.mark.slow)])
def test_kill_9_loses_nothing_and_a_second_start_finishes(tmp_path, stored_before_kill):
    path = tmp_path / 'store.sqlite'
    stored: dict[str, Measurement] = {}
    count, child = 0, None
    with _tune(path) as first:
        for line in first.stdout:
            said = json.loads(line)
            child = said.get('worker') or child
            if 'stored' in said:
                measurement = Measurement.from_json(said['stored'])
                stored[measurement.key] = measurement
                count += 1
                if count == stored_before_kill:
                    first.kill()
                    break
        assert first.wait() == -signal.SIGKILL
    assert _gone(child)
    with open_store(path) as store:
        survived = _stored(store)
    for key, measurement in stored.items():  # at least what it said it stored
        got = survived[key]
        assert got.samples_ms[: len(measurement.samples_ms)] == measurement.samples_ms
    with _tune(path) as second:
        steps = [json.loads(line) for line in second.stdout]
        assert second.wait() == 0
    built = {said['key'] for said in steps if said.get('stage') == 'build'}
    # What was wrong is not repeated; what crashed gets another chance.
    assert not built & {key for key, m in survived.items() if m.status == 'wrong'}
    assert {key for key, m in survived.items() if m.status == 'crashed'} <= built
    found = _assert_complete(path)
    for key, measurement in survived.items():
        assert found[key].samples_ms[: len(measurement.samples_ms)] == measurement.samples_ms


def test_a_crash_is_skipped_within_a_run_and_forgiven_by_the_next(tmp_path):
    """As when memory ran out once: the same key crashes in one run and works in the next."""

    def record(store):
        def put(measurement):
            store.put(Record(GROUP.digest, GROUP.label, {}, measurement.key, 1, VALIDATORS,
                             measurement))  # fmt: skip

        return put

    with open_store(tmp_path / 'store.sqlite') as store, Worker(seed=5, time_limit=LONG_S) as own:
        for name, status in (('segfault', 'crashed'), ('right', 'ok'), ('right', 'ok')):
            touched = []
            measure_all(
                GROUP, [('key', library(name))], worker=own, rounds=2, min_ms=0.05,
                known=store.known(GROUP.digest, 1, VALIDATORS), record=record(store),
                progress=lambda step, touched=touched: touched.append(step.stage),
            )  # fmt: skip
            assert _stored(store)['key'].status == status
            if name == 'segfault':
                assert touched == ['build', 'check']  # never timed
        assert touched == []  # complete, so the third run does nothing
        assert len(store) == 1


def test_two_processes_tune_into_one_store(tmp_path):
    path = tmp_path / 'store.sqlite'
    with _tune(path) as one, _tune(path) as other:
        said = [p.communicate()[0] for p in (one, other)]
        assert one.returncode == other.returncode == 0
    assert all('stored' in text for text in said)
    _assert_complete(path)
