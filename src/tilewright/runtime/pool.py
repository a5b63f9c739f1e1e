"""Work that takes seconds for each piece, in processes beside this one: searches, compilations.

Goes in: a function of this package that can be imported by its name, and arguments for each piece.
Comes out: results in order, as they are ready. A piece may ask this process something while it
works. The processes are started by a command of their own and not by `multiprocessing`, which would
run the caller's script again, and are gone at the end. They give way to others: what is timed
meanwhile must not wait for a core.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

from tilewright.errors import CheckError, MissingError, TilewrightError
from tilewright.runtime.child import Child

_CHILD = 'from tilewright.runtime.pool import main; main()'
_DONE, _FAILED, _ASKED = 'done', 'failed', 'asked'
_GIVE_WAY = 10  # niceness
_LENGTH = 8  # bytes that say how long a message is
# There is a process for each core: libraries of linear algebra are not to start more threads.
_ALONE: dict[str, str] = dict.fromkeys(
    ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'), '1'
)


class _Gone(BaseException):
    """Nobody is at the other end of a pipe. No `Exception`: work that catches those ends too."""


def usable_cores() -> int:
    """Cores that this process may use."""
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
    """As many processes as are asked for, started when they are needed; use it in a `with`."""

    def __init__(self, processes: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(processes or usable_cores())
        self._lock = threading.Lock()
        self._ended = False
        self._idle: list[_Child] = []
        self._children: list[_Child] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._threads.shutdown()

    def end(self) -> None:
        """End all processes, whatever they work on; nothing is taken in hand any more."""
        with self._lock:
            self._ended = True  # no process is started from here on
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.end()

    def submit(
        self, function: Callable[..., Any], *args: Any, answer: Callable[[Any], Any] | None = None
    ) -> Future:
        """A future of function(*args).

        With `answer` it is function(ask, *args) instead: ask(question) in the other process gives
        what answer(question) gives here, in one of the threads of this pool. An error that is none
        of ours is a CheckError with its kind and text.
        """
        return self._threads.submit(self._work, function, args, answer)

    def _work(
        self, function: Callable[..., Any], args: tuple, answer: Callable[[Any], Any] | None
    ) -> Any:
        child = self._child(function)
        try:
            kind, value = child.ask(function, args, answer)
        except BaseException:
            child.end()  # it may wait for an answer, or its next reply be of this piece
            raise
        with self._lock:
            self._idle.append(child)
        if kind == _FAILED:
            raise value
        return value

    def _child(self, function: Callable[..., Any]) -> _Child:
        """One that does nothing, else a new one."""
        with self._lock:
            if self._ended:
                raise CheckError(f'{function.__name__} was given up: the processes have ended')
            if self._idle:
                return self._idle.pop()
            child = _Child()
            self._children.append(child)
            return child


class _Child(Child):
    """This end of one process."""

    def __init__(self) -> None:
        super().__init__(_CHILD, environment=_ALONE)

    def ask(
        self,
        function: Callable[..., Any],
        piece: tuple,
        answer: Callable[[Any], Any] | None = None,
    ) -> tuple[str, Any]:
        """(done, result) or (failed, error), after the questions are answered."""
        kind, value = self._reply(function, (function, piece, answer is not None))
        while kind == _ASKED and answer is not None:
            kind, value = self._reply(function, answer(value))
        return kind, value

    def _reply(self, function: Callable[..., Any], message: Any) -> tuple[str, Any]:
        """What the process says to a message."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            _send(self.process.stdin, pickle.dumps(message))
            data = _received(self.process.stdout)
        except _Gone:
            raise MissingError(
                f'a process that worked on {function.__name__} ended with exit code '
                f'{self.process.wait()}; is there too little memory?'
            ) from None
        return pickle.loads(data)


def _send(stream: IO[bytes], data: bytes) -> None:
    """A message behind its length, so that one that cannot be read leaves the next in its place."""
    try:
        stream.write(len(data).to_bytes(_LENGTH, 'little') + data)
        stream.flush()
    except (OSError, ValueError):  # closed there, or here
        raise _Gone from None


def _received(stream: IO[bytes]) -> bytes:
    """The next message."""
    try:
        size = stream.read(_LENGTH)
        data = stream.read(int.from_bytes(size, 'little'))
    except (OSError, ValueError):
        raise _Gone from None
    if len(size) < _LENGTH or len(data) < int.from_bytes(size, 'little'):
        raise _Gone
    return data


def main() -> None:
    """The child: pieces, one after the other, until there are no more."""
    with contextlib.suppress(OSError):
        os.nice(_GIVE_WAY)
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


def _worked(request: bytes, ask: Callable[[Any], Any]) -> bytes:
    """A piece -> its reply; whatever goes wrong is one as well."""
    name = 'a piece of work'
    try:
        function, piece, asks = pickle.loads(request)
        name = getattr(function, '__name__', name)
        return pickle.dumps((_DONE, function(*((ask,) if asks else ()), *piece)))
    except TilewrightError as error:
        return pickle.dumps((_FAILED, error))
    except Exception as error:
        told = CheckError(f'{name} failed in its process: {type(error).__name__}: {error}')
        return pickle.dumps((_FAILED, told))
