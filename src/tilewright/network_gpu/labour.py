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
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilewright.errors import MissingError, TilewrightError
from tilewright.network.chooser import usable_cores
from tilewright.runtime.worker import die_with

_CHILD = 'import sys; from tilewright.network_gpu.labour import main; main(sys.argv[1])'
_DONE, _FAILED, _ASKED = 'done', 'failed', 'asked'
_GIVE_WAY = 10  # niceness
# There is a process for each core: libraries of linear algebra are not to start more threads.
_ALONE = dict.fromkeys(('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'), '1')


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
        self._idle: queue.SimpleQueue[_Child] = queue.SimpleQueue()
        self._children: list[_Child] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self._threads.shutdown()

    def end(self) -> None:
        """End all processes, whatever they work on; nothing is taken in hand any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.end()

    def submit(
        self, function: Callable[..., Any], *args: Any, answer: Callable[[Any], Any] | None = None
    ) -> Future:
        """A future of function(*args).

        With `answer` it is function(ask, *args) instead: ask(question) in the other process gives
        what answer(question) gives here, in one of the threads of this pool.
        """
        return self._threads.submit(self._work, function, args, answer)

    def _work(
        self, function: Callable[..., Any], args: tuple, answer: Callable[[Any], Any] | None
    ) -> Any:
        try:
            child = self._idle.get_nowait()
        except queue.Empty:
            child = _Child()
            self._children.append(child)
        try:
            return child.ask(function, args, answer)
        finally:
            if child.process.poll() is None:
                self._idle.put(child)


class _Child:
    """This end of one process."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])
        paths = [root, *filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))]
        # The death signal follows the thread that starts the child, so only the main one sets it.
        guarded = threading.current_thread() is threading.main_thread()
        self.process = subprocess.Popen(
            [sys.executable, '-P', '-c', _CHILD, str(os.getpid() if guarded else 0)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **_ALONE, 'PYTHONPATH': os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )

    def ask(
        self,
        function: Callable[..., Any],
        piece: tuple,
        answer: Callable[[Any], Any] | None = None,
    ) -> Any:
        kind, value = self._reply(function, (function, piece, answer is not None))
        while kind == _ASKED and answer is not None:
            try:
                said = answer(value)
            except BaseException:
                self.end()  # it would wait for ever
                raise
            kind, value = self._reply(function, said)
        if kind == _FAILED:
            raise value
        return value

    def _reply(self, function: Callable[..., Any], message: Any) -> tuple[str, Any]:
        """What the process says to a message."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            pickle.dump(message, self.process.stdin)
            self.process.stdin.flush()
            return pickle.load(self.process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            raise MissingError(
                f'a process that worked on {function.__name__} ended with exit code '
                f'{self.process.wait()}; is there too little memory?'
            ) from None

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


def main(parent: str) -> None:
    """The child: pieces, one after the other, until there are no more."""
    die_with(int(parent))
    with contextlib.suppress(OSError):
        os.nice(_GIVE_WAY)
    replies = os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)  # what libraries print must not mix with replies

    def say(kind: str, value: Any) -> None:
        pickle.dump((kind, value), replies)
        replies.flush()

    def ask(question: Any) -> Any:
        say(_ASKED, question)
        return pickle.load(sys.stdin.buffer)

    while True:
        try:
            function, piece, asks = pickle.load(sys.stdin.buffer)
            try:
                reply = _DONE, function(*((ask,) if asks else ()), *piece)
            except TilewrightError as error:
                reply = _FAILED, error
            say(*reply)
        except (EOFError, BrokenPipeError):  # nobody is there any more
            os._exit(0)
