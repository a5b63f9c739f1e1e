"""Work that takes seconds for each piece, in processes beside this one: searches, compilations.

Goes in: a function that can be imported by its name, and arguments for each piece. Comes out: a
future of its result. A piece may ask this process something while it works. The processes are
started by a command of their own and not by `multiprocessing`, which would run the caller's script
again, and are gone at the end. They give way to others: what is timed meanwhile must not wait for a
core. A process that dies or does not end in time is lost with its piece; the next piece gets a new
one.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from tilewright import knobs
from tilewright.errors import CheckError, MissingError, TilewrightError
from tilewright.runtime.child import LENGTH, ROOT, Child, ChildEnded, framed

_CHILD = 'from tilewright.runtime.pool import main; main'
_DONE, _FAILED, _ASKED = 'done', 'failed', 'asked'
_GIVE_WAY = 10  # niceness
GRACE_S = 30  # by how much a process outlives its limit if nobody is left to end it
# There is a process for each core: libraries of linear algebra are not to start more threads.
_ALONE: dict[str, str] = dict.fromkeys(
    ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'), '1'
)


class LostError(TilewrightError):
    """A piece of work was lost with the process that worked on it."""


class _Gone(BaseException):
    """Nobody is at the other end of a pipe. No `Exception`: work that catches those ends too."""


def usable_cores() -> int:
    """Cores that searches and compilations may use."""
    if jobs := knobs.get('jobs'):
        return jobs
    if hasattr(os, 'sched_getaffinity'):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def each(
    function: Callable[..., Any], pieces: Sequence[tuple], processes: int | None = None
) -> Iterator[Any]:
    """function(*piece) for every piece, in order; one alone is worked on here."""
    count = min(processes or usable_cores(), len(pieces))
    if count <= 1:
        for piece in pieces:
            yield function(*piece)
        return
    with Pool(count) as pool:
        for future in [pool.submit(function, *piece) for piece in pieces]:
            yield future.result()


class Pool:
    """As many processes as are asked for, started when they are needed; use it in a `with`.

    limit   seconds of one piece, beyond which it is lost; None: as long as it takes
    begin   what each process does first, with `words`
    background  whether they give way to other processes, and use one thread each
    """

    def __init__(
        self,
        processes: int | None = None,
        *,
        limit: float | None = None,
        begin: Callable[..., object] | None = None,
        words: tuple = (),
        background: bool = True,
    ) -> None:
        self.limit, self.starts, self.background = limit, 0, background
        self._begin, self._words = begin, words
        self._threads = ThreadPoolExecutor(processes or usable_cores())
        self._lock = threading.Lock()
        self._ended = False
        self._idle: list[_Worker] = []
        self._workers: list[_Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, and wait for the threads that asked them."""
        self.end()
        self._threads.shutdown()

    def end(self) -> None:
        """End all processes, whatever they work on; no new work is begun."""
        with self._lock:
            self._ended = True  # no process is started from here on
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.end()

    def submit(
        self, function: Callable[..., Any], *args: Any, answer: Callable[[Any], Any] | None = None
    ) -> Future:
        """A future of function(*args).

        With `answer` it is function(ask, *args) instead: ask(question) in the other process gives
        what answer(question) gives here, in one of the threads of this pool. Errors of this
        package are raised as they are; any other one is a CheckError with its kind and text.
        """
        return self._threads.submit(self._work, function, args, answer)

    def _work(
        self, function: Callable[..., Any], args: tuple, answer: Callable[[Any], Any] | None
    ) -> Any:
        worker = self._worker(function)
        try:
            kind, value = worker.ask(function, args, self.limit, answer)
        except BaseException:
            worker.end()  # it may wait for an answer, or its next reply be of this piece
            raise
        with self._lock:
            self._idle.append(worker)
        if kind == _FAILED:
            raise value
        return value

    def _worker(self, function: Callable[..., Any]) -> _Worker:
        """One that is idle, else a new one."""
        with self._lock:
            if self._ended:
                raise CheckError(f'{function.__name__} was given up: the processes have ended')
            if self._idle:
                return self._idle.pop()
            worker = _Worker(self.background)
            self._workers.append(worker)
            self.starts += 1
        if self._begin is not None:
            worker.ask(self._begin, self._words, self.limit)
        return worker


class _Worker(Child):
    """This end of one process of a pool."""

    def __init__(self, background: bool = True) -> None:
        paths = os.pathsep.join(dict.fromkeys([ROOT, *filter(None, sys.path)]))
        super().__init__(
            '-c',
            f'{_CHILD}({_GIVE_WAY if background else 0})',
            environment={**os.environ, **(_ALONE if background else {}), 'PYTHONPATH': paths},
        )

    def ask(
        self,
        function: Callable[..., Any],
        piece: tuple,
        limit: float | None = None,
        answer: Callable[[Any], Any] | None = None,
    ) -> tuple[str, Any]:
        """(done, result) or (failed, error), after the questions are answered."""
        message: Any = (function, piece, answer is not None, limit)
        kind, value = self._reply(function, message, limit)
        while kind == _ASKED and answer is not None:
            kind, value = self._reply(function, answer(value), limit)
        return kind, value

    def _reply(
        self, function: Callable[..., Any], message: Any, limit: float | None
    ) -> tuple[str, Any]:
        """What the process says to a message."""
        self.send(framed(pickle.dumps(message)))
        try:
            return pickle.loads(self.block(limit))
        except TimeoutError:
            raise LostError(f'it had not ended after {limit:g} s') from None
        except (ChildEnded, OSError, ValueError) as error:
            how = error.how if isinstance(error, ChildEnded) else 'was ended'
            if limit is not None:
                raise LostError(f'its process {how}') from None
            raise MissingError(
                f'a process that worked on {function.__name__} {how}; is there too little memory?'
            ) from None


def main(niceness: int) -> None:
    """The process: pieces, one after the other, until there are no more."""
    with contextlib.suppress(OSError):
        os.nice(niceness)
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)  # what libraries print must not mix with replies

    def ask(question: Any) -> Any:
        _send(replies, pickle.dumps((_ASKED, question)))
        return pickle.loads(_received(requests))

    try:
        while True:
            _send(replies, _worked(_received(requests), ask))
    except _Gone:
        os._exit(0)


def _send(stream: IO[bytes], data: bytes) -> None:
    try:
        stream.write(framed(data))
        stream.flush()
    except (OSError, ValueError):
        raise _Gone from None


def _received(stream: IO[bytes]) -> bytes:
    """The next block."""
    try:
        size = stream.read(LENGTH)
        data = stream.read(int.from_bytes(size, 'little'))
    except (OSError, ValueError):
        raise _Gone from None
    if len(size) < LENGTH or len(data) < int.from_bytes(size, 'little'):
        raise _Gone
    return data


def _worked(request: bytes, ask: Callable[[Any], Any]) -> bytes:
    """A piece -> its reply; whatever goes wrong is one as well."""
    name = 'a piece of work'
    try:
        function, piece, asks, limit = pickle.loads(request)
        name = getattr(function, '__name__', name)
        if limit is not None:
            signal.alarm(int(limit) + GRACE_S)
        result = pickle.dumps((_DONE, function(*((ask,) if asks else ()), *piece)))
        signal.alarm(0)
        return result
    except TilewrightError as error:
        return pickle.dumps((_FAILED, error))
    except Exception as error:
        told = CheckError(f'{name} failed in its process: {type(error).__name__}: {error}')
        return pickle.dumps((_FAILED, told))
