"""Processes that may die or hang: a task that is lost is an error, and the next one is done."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.pool import LostError, Pool
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.gpu_compiler import Compiler

GROUP = tw.conv2d(c=4, h=8, w=8, k=8, r=3, s=3, pad=1)
SCHEDULE = GpuSchedule.of('general', threads=64)
_begun = ''


def begin(word: str) -> None:
    global _begun
    _begun = word


def double(n: int) -> str:
    return _begun + str(2 * n)


def die(*_: object) -> Built:
    os.kill(os.getpid(), signal.SIGSEGV)
    return Built()


def leave() -> None:
    os._exit(7)


def hang(*_: object) -> Built:
    time.sleep(600)
    return Built()


def refuse() -> None:
    raise ScheduleError('no such tile')


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(2, limit=20.0, begin=begin, words=('got ',)) as made:
        yield made


def test_tasks_that_go_well_share_processes(pool: Pool) -> None:
    futures = [pool.submit(double, n) for n in range(8)]
    assert [f.result() for f in futures] == [f'got {2 * n}' for n in range(8)]
    assert pool.starts <= 2


def test_a_process_that_dies_takes_one_task_with_it(pool: Pool) -> None:
    with pytest.raises(LostError, match='SIGSEGV'):
        pool.submit(die).result()
    with pytest.raises(LostError, match='exit code 7'):
        pool.submit(leave).result()
    assert pool.submit(double, 3).result() == 'got 6'
    assert pool.starts == 3


def test_a_task_that_does_not_end_is_given_up(pool: Pool) -> None:
    assert pool.submit(double, 1).result()
    pool.limit = 0.3
    with pytest.raises(LostError, match=r'not ended after 0\.3 s'):
        pool.submit(hang).result()
    pool.limit = 20.0
    assert pool.submit(double, 2).result() == 'got 4'


def test_an_error_of_the_task_is_its_own(pool: Pool) -> None:
    with pytest.raises(ScheduleError, match='no such tile'):
        pool.submit(refuse).result()
    assert pool.submit(double, 1).result() == 'got 2'
    assert pool.starts == 1


def test_closing_does_not_wait_for_a_task() -> None:
    began = time.monotonic()
    pool = Pool(1, limit=600.0)
    running, waiting = pool.submit(hang), pool.submit(hang)
    while not pool.starts:
        time.sleep(0.01)
    pool.close()
    assert waiting.cancelled()
    with pytest.raises(LostError):
        running.result()
    assert time.monotonic() - began < 60


def test_a_compiler_that_dies_or_hangs_is_a_refusal() -> None:
    with Compiler('sm_90', processes=1, limit=30.0) as compiler:
        died = compiler.submit(GROUP, SCHEDULE, die).result()
        assert died.error == 'the compilation was lost: its process ended by SIGSEGV'
        assert not died.files
        compiler._pool.limit = 0.3
        hung = compiler.submit(GROUP, SCHEDULE, hang).result()
        assert 'not ended after' in hung.error
