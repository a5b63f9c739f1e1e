"""Work that takes seconds for each piece, in processes beside this one: searches, compilations.

Goes in: a function of this package that can be imported by its name, and arguments for each piece.
Comes out: results in order, as they are ready. The processes are started by a command of their own
and not by `multiprocessing`, which would run the caller's script again, and are gone at the end.
"""

from __future__ import annotations

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
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.end()
        self._threads.shutdown()

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        """A future of function(*args)."""
        return self._threads.submit(self._work, function, args)

    def _work(self, function: Callable[..., Any], args: tuple) -> Any:
        try:
            child = self._idle.get_nowait()
        except queue.Empty:
            child = _Child()
            self._children.append(child)
        try:
            return child.ask(function, args)
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
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )

    def ask(self, function: Callable[..., Any], piece: tuple) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            pickle.dump((function, piece), self.process.stdin)
            self.process.stdin.flush()
            right, answer = pickle.load(self.process.stdout)
        except (OSError, EOFError, ValueError, pickle.UnpicklingError):
            raise MissingError(
                f'a process that worked on {function.__name__} ended with exit code '
                f'{self.process.wait()}; is there too little memory?'
            ) from None
        if not right:
            raise answer
        return answer

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
    replies = os.fdopen(os.dup(1), 'wb')
    os.dup2(2, 1)  # what libraries print must not mix with replies
    while True:
        try:
            function, piece = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply = True, function(*piece)
        except TilewrightError as error:
            reply = False, error
        pickle.dump(reply, replies)
        replies.flush()
