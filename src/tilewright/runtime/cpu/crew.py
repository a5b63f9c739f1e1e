"""Processes that work on tasks, each of which may die or hang without harm to the others.

Goes in: functions with arguments. Comes out: a future for each, whose result is the function's, or
`LostError` where the process that worked on it died or did not end in time. The next task gets a
new process. (A pool of the standard library stops altogether when one of its processes dies, and
never looks at a clock.)
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from tilewright.errors import TilewrightError

GRACE_S = 30  # by how much a process outlives its limit if nobody is left to end it


class LostError(TilewrightError):
    """A task was lost with the process that worked on it."""


class _Member:
    """One process, and our end of the line to it."""

    def __init__(self, begin: Callable[..., object] | None, words: tuple) -> None:
        # Not forked: a process that has a CUDA context or threads does not survive that.
        context = multiprocessing.get_context('spawn')
        self.line, other = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(other, begin, words), daemon=True
        )
        self.process.start()
        other.close()

    def work(self, function: Callable, args: tuple, limit: float) -> Any:
        """Raises LostError, and what the function raised."""
        with contextlib.suppress(OSError):  # it died while it was idle: seen below
            self.line.send((function, args, limit))
        try:
            if not self.line.poll(limit):
                raise LostError(f'it had not ended after {limit:g} s')
            right, answer = self.line.recv()
        except (EOFError, OSError):
            self.process.join(5)
            raise LostError(f'its process died ({_ending(self.process.exitcode)})') from None
        if not right:
            raise answer
        return answer

    def end(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.join()


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f'status {code}'
    return signal.Signals(-code).name


def _serve(line: Connection, begin: Callable[..., object] | None, words: tuple) -> None:
    """The process: tasks one after the other, until the line is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    if begin is not None:
        begin(*words)
    while True:
        try:
            function, args, limit = line.recv()
        except EOFError:
            os._exit(0)
        signal.alarm(int(limit) + GRACE_S)
        try:
            answer = True, function(*args)
        except Exception as error:
            answer = False, error
        signal.alarm(0)
        try:
            line.send(answer)
        except OSError:  # nobody listens any more
            os._exit(0)


class Crew:
    """As many processes as are asked for, started when they are needed; use it in a `with`.

    `begin(*words)` is what each does first; `limit` are seconds of one task.
    """

    def __init__(
        self, size: int, limit: float, begin: Callable[..., object] | None = None, words: tuple = ()
    ) -> None:
        self.limit, self.starts = limit, 0
        self._begin, self._words = begin, words
        self._idle: queue.SimpleQueue[_Member] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(size)
        self._busy: set[_Member] = set()
        self._closed = False

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, function: Callable, *args: Any) -> Future:
        """The function has to be importable by its name; arguments and results are pickled."""
        return self._threads.submit(self._work, function, args)

    def _work(self, function: Callable, args: tuple) -> Any:
        try:
            member = self._idle.get_nowait()
        except queue.Empty:
            member = _Member(self._begin, self._words)
            self.starts += 1
        self._busy.add(member)
        lost = True
        try:
            answer = member.work(function, args, self.limit)
            lost = False
            return answer
        except LostError:
            raise
        except Exception:  # the function's own; its process is as good as before
            lost = False
            raise
        finally:
            self._busy.discard(member)
            if lost or self._closed:
                member.end()
            else:
                self._idle.put(member)

    def close(self) -> None:
        """End all processes; tasks that wait are given up."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        for member in list(self._busy):
            member.process.kill()  # its thread sees the line close
        self._threads.shutdown()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()
