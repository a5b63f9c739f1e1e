"""Work in other processes: what goes wrong there is said, and no process is left or out of step."""

from __future__ import annotations

import builtins
import operator
import os
import pickle
import selectors
import signal
import subprocess
import threading
import time

import pytest

from tilewright.errors import CheckError, InputError, MissingError
from tilewright.runtime import pool as processes
from tilewright.runtime.child import Child, ChildEnded, framed
from tilewright.runtime.gpu.session import open_device
from tilewright.runtime.pool import Pool


@pytest.fixture
def pool():
    with Pool(1) as made:
        yield made


def test_errors_of_the_work_are_replies(pool: Pool) -> None:
    """Also those that say, elsewhere, that nobody is there any more; the process goes on."""
    first = pool.submit(os.getpid).result()
    assert first != os.getpid()
    for function, words, sentence in (
        (pickle.loads, (b'',), 'loads failed in its process: EOFError: Ran out of input'),
        (builtins.exec, ('raise BrokenPipeError("own")',), 'BrokenPipeError: own'),
        (int, ('x',), 'int failed in its process: ValueError: invalid literal'),
        (builtins.eval, ('lambda: 0',), 'eval failed in its process'),  # a result that cannot go
    ):
        with pytest.raises(CheckError, match=sentence):
            pool.submit(function, *words).result()
    with pytest.raises(InputError, match="target 'nowhere'"):
        pool.submit(open_device, 'nowhere').result()
    assert pool.submit(os.getpid).result() == first


def test_a_process_whose_pipe_may_be_out_of_step_is_ended(pool: Pool) -> None:
    def wrong(question: object) -> None:
        raise CheckError(f'no answer to {question}')

    seen = [pool.submit(os.getpid).result()]
    with pytest.raises(CheckError, match='no answer to 7'):
        pool.submit(operator.call, 7, answer=wrong).result()
    seen.append(pool.submit(os.getpid).result())
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pool.submit(operator.call, 7, answer=lambda _: lambda: 0).result()
    seen.append(pool.submit(os.getpid).result())
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pool.submit(len, [lambda: 0]).result()
    seen.append(pool.submit(operator.call, 7, answer=lambda asked: asked + 1).result())
    assert seen[-1] == 8
    assert len(set(seen[:3])) == 3
    for process in seen[:3]:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_process_that_dies_is_said_and_another_one_takes_its_place(pool: Pool) -> None:
    with pytest.raises(MissingError, match='worked on _exit ended with exit code 3'):
        pool.submit(os._exit, 3).result()
    assert pool.submit(abs, -2).result() == 2


def test_a_process_whose_parent_is_gone_ends_without_a_word() -> None:
    """Between two pieces, and while it waits for an answer."""
    for piece in (None, (operator.call, (7,), True, None)):
        child = processes._Worker()
        assert child.process.stdin is not None
        assert child.process.stdout is not None
        if piece is not None:
            child.send(framed(pickle.dumps(piece)))
            assert pickle.loads(child.block()) == ('asked', 7)
        child.process.stdin.close()
        assert child.process.stdout.read() == b''
        assert child.process.wait() == 0
        child.end()


def test_nothing_is_started_once_a_pool_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is on its way when the end comes is ended as well."""
    begun, go = threading.Event(), threading.Event()
    started: list[subprocess.Popen] = []
    whole = processes._Worker.__init__

    def slow(self: processes._Worker, background: bool) -> None:
        begun.set()
        go.wait()
        whole(self, background)
        started.append(self.process)

    monkeypatch.setattr(processes._Worker, '__init__', slow)
    with Pool(1) as pool:
        working, waiting = pool.submit(time.sleep, 60), pool.submit(abs, -1)
        begun.wait()
        ending = threading.Thread(target=pool.end)
        ending.start()
        go.set()
        ending.join()
    assert working.exception() is not None
    assert waiting.cancelled()
    assert [process.poll() is not None for process in started] == [True]
    with pytest.raises(CheckError, match='abs was given up'):
        pool._work(abs, (-1,), None)


def test_the_end_of_a_process_that_is_dead_already() -> None:
    """What was written and not sent cannot be sent any more: no error."""
    child = processes._Worker()
    assert child.process.stdin is not None
    child.process.kill()
    child.process.wait()
    child.send(b'x')
    child.end()
    child.end()
    assert child.process.stdin.closed


def test_who_waits_for_a_child_hears_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where another thread ends it just before the wait, which closes what is waited for."""
    child = Child('-c', 'import time; time.sleep(60)')
    wait = selectors.DefaultSelector.select

    def ended_first(selector: selectors.DefaultSelector, timeout: float | None = None) -> list:
        child.end()
        return wait(selector, timeout)

    monkeypatch.setattr(selectors.DefaultSelector, 'select', ended_first)
    heard: list[type[BaseException]] = []

    def listen() -> None:
        try:
            child.line()
        except ChildEnded as gone:
            heard.append(type(gone))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    listener.join(20)
    assert heard == [ChildEnded]
    with pytest.raises(ChildEnded):
        child.line()


def test_all_of_a_message_arrives_though_signals_cut_its_writing_short() -> None:
    """A write to a pipe that a signal, a stop or a freeze interrupts has written a part."""
    slowly = (
        'import sys, time; total = 0\n'
        'while piece := sys.stdin.buffer.read1(1 << 16): total += len(piece); time.sleep(0.002)\n'
        'sys.stdout.write(f"{total}\\n")'
    )
    cut = []
    before = signal.signal(signal.SIGALRM, lambda *_: cut.append(1))
    child = Child('-c', slowly)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        child.send(bytes(1 << 23))
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert child.process.stdin is not None
        child.process.stdin.close()
        assert child.line(60) == b'%d' % (1 << 23)
        assert cut
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        child.end()
