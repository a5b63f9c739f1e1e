"""The one way to run work in another process: started, asked, waited for within a limit, ended.

Goes in: the words behind the interpreter. Comes out: a `Child` that takes bytes and gives lines or
blocks back. It finds this package wherever it is started, dies with its parent, and its standard
error is kept, so that the last words of one that crashed can be told. Who uses it decides what the
messages are: JSON lines (`ask_json`) where a reply must be nothing but numbers and text, or blocks
behind their length (runtime/pool.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from tilewright.machine.compiler import for_children

POLL_S = 0.5  # how long a wait may go on behind the end of a child
LENGTH = 8  # bytes that say how long a block is
ROOT = str(Path(__file__).parents[2])


class ChildEnded(Exception):  # noqa: N818 (it says what happened)
    """The process is gone; `code` is what it exited with, negative for a signal."""

    def __init__(self, code: int, words: str = '') -> None:
        how = f'ended with exit code {code}'
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f'ended by {signal.Signals(-code).name}'
        super().__init__(f'{how}: {words}' if words else how)
        self.code, self.how, self.words = code, how, words


def package_paths() -> dict[str, str]:
    """PYTHONPATH with the folder of this package in front."""
    paths = [ROOT, *filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))]
    return {'PYTHONPATH': os.pathsep.join(paths)}


def parent_word() -> str:
    """What a child is told to die with: the death signal follows the thread that starts the child,
    so that only the main thread asks for it.
    """
    guarded = threading.current_thread() is threading.main_thread()
    return str(os.getpid() if guarded else 0)


def die_with(parent: int) -> None:
    """On Linux, be killed when the parent dies; elsewhere the end of standard input is noticed."""
    if parent and sys.platform == 'linux':
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:  # it died before the call
            os._exit(0)


class Child:
    """One process.

    command      all of its words; None: this interpreter with `words` behind it
    environment  what it gets; None: ours, with this package in its path
    log          a file for its standard error; None: one without a name
    """

    def __init__(
        self,
        *words: str,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        # Closed by `end`.
        self.log: IO[bytes] = (
            tempfile.TemporaryFile() if log is None else log.open('w+b')  # noqa: SIM115
        )
        self.process = subprocess.Popen(
            list(command) if command else [sys.executable, '-P', *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            bufsize=0,
            env={
                **for_children(),
                **({**os.environ, **package_paths()} if environment is None else environment),
            },
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self._finish = weakref.finalize(self, _end, self.process, self.log)
        self._buffer = b''

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> None:
        """Kill it with all that it started; it may be dead already."""
        self._finish()

    def send(self, data: bytes) -> None:
        """All of it. A child that is gone is noticed when its reply is read."""
        assert self.process.stdin is not None
        left = memoryview(data)
        with contextlib.suppress(OSError, ValueError):
            while left:  # a process that was stopped meanwhile has written a part
                left = left[self.process.stdin.write(left) :]

    def line(self, limit: float | None = None) -> bytes:
        """The next line. Raises TimeoutError after `limit` seconds, ChildEnded if it is gone."""
        return self._cut(lambda data: data.find(b'\n') + 1 or None, limit)[:-1]

    def block(self, limit: float | None = None) -> bytes:
        """The next block; see `line`."""

        def complete(data: bytes) -> int | None:
            size = LENGTH + int.from_bytes(data[:LENGTH], 'little')
            return size if len(data) >= LENGTH and len(data) >= size else None

        return self._cut(complete, limit)[LENGTH:]

    def ask_json(self, request: Mapping, limit: float) -> dict:
        """One line of JSON there, one back; see `line`."""
        self.send(json.dumps(request).encode() + b'\n')
        return json.loads(self.line(limit))

    def forget_words(self) -> None:
        """What it said so far does not count as its last words."""
        self.log.seek(0)
        self.log.truncate()

    def last_words(self) -> str:
        """The last line of its standard error; nothing once it was ended from here."""
        if self.log.closed:
            return ''
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - 2000))
        lines = self.log.read().decode(errors='replace').split('\n')
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), '')

    def _cut(self, complete: Callable[[bytes], int | None], limit: float | None) -> bytes:
        """The first bytes of what it wrote, as soon as `complete` says how many belong together."""
        stdout = self.process.stdout
        assert stdout is not None
        if stdout.closed:
            raise self._ended()
        deadline = None if limit is None else time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while (size := complete(self._buffer)) is None:
                left = POLL_S if deadline is None else deadline - time.monotonic()
                # Another thread may end the child, and close what is waited for: nothing more
                # comes from it then, not even its end.
                if not selector.select(max(min(left, POLL_S), 0.0)) and not stdout.closed:
                    if deadline is not None and time.monotonic() >= deadline:
                        raise TimeoutError
                    continue
                piece = b'' if stdout.closed else os.read(stdout.fileno(), 1 << 20)
                if not piece:
                    raise self._ended()
                self._buffer += piece
        found, self._buffer = self._buffer[:size], self._buffer[size:]
        return found

    def _ended(self) -> ChildEnded:
        code = self.process.wait()
        gone = ChildEnded(code, self.last_words())
        self.end()
        return gone


def framed(data: bytes) -> bytes:
    """A block behind its length, so that one that cannot be read leaves the next in its place."""
    return len(data).to_bytes(LENGTH, 'little') + data


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Kill a child with all it started, and collect it; SIGKILL reaches a stopped one too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, log):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not sent any more
                stream.close()
