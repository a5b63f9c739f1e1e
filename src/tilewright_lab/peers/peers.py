"""The parent's side of contestants: each in a process of its own, stopped unless it is asked.

Goes in: names. Comes out: `Peer`, whose `ask` lets its process run (SIGCONT), exchanges one request
and one reply, and stops it again (SIGSTOP). So at most one contestant ever runs, and its thread
pool cannot steal time from another's, however it spins. Nothing is left in a pipe while it is
stopped.

A contestant that is not installed, fails, crashes or hangs raises `PeerError`, which names it. One
that needs an environment of its own (tvm) is run by that environment's interpreter.
"""

from __future__ import annotations

import contextlib
import importlib.util
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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

from tilewright import knobs
from tilewright.errors import InputError, TilewrightError
from tilewright_lab.peers import tvm_environment
from tilewright_lab.peers.contestants import CONTESTANTS

PEERS = tuple(name for name in CONTESTANTS if name != 'tilewright')
OURS = 'tilewright'
# Peers that search by measuring before they can compute, for minutes: only when asked for by name.
TUNED = ('tvm',)
START_LIMIT_S = 120.0
_EXTRA = {'torch': 'torch', 'onnxruntime': 'bench', 'openvino': 'bench'}
_STOP_LIMIT_S = 10.0


class PeerError(TilewrightError):
    """A contestant could not take part. `status`: missing, failed, crashed or hung."""

    def __init__(self, name: str, status: str, message: str) -> None:
        super().__init__(f'{name}: {message}')
        self.name, self.status, self.message = name, status, message


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in order, each known; the same name twice is once."""
    chosen = tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in PEERS:
            raise InputError(f'peer {name!r} is not known; choose from {", ".join(PEERS)}')
    return chosen


def absence(name: str) -> str:
    """A sentence that says what is missing for a peer, '' when it is installed."""
    if name == 'tvm':
        return tvm_environment.absence()
    _, packages = CONTESTANTS[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            return (
                f'peer {name} needs the package {package}, which is not installed; '
                f"pip install 'tilewright[{_EXTRA.get(name, 'bench')}]'"
            )
    return ''


def process_state(pid: int) -> str:
    """The state letter that the system gives a process: 'T' is stopped, '' when there is none."""
    with contextlib.suppress(OSError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    return ''


class Peer:
    """One contestant's process, started by the first request and again after each death."""

    def __init__(self, name: str, threads: int, *, command: Sequence[str] | None = None) -> None:
        """`command` replaces the process that is started, for contestants from elsewhere."""
        self.name, self.threads = name, threads
        self.versions: dict[str, str] = {}
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._buffer = b''
        self._finish: weakref.finalize | None = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """End the process, stopped or not."""
        if self._finish is not None:
            self._finish()
        self._process = self._finish = self._log = None
        self._buffer = b''

    def ask(
        self,
        request: dict,
        limit_s: float | None = None,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> dict:
        """One request, one reply; the process runs only meanwhile. Raises PeerError.

        Before its reply it may report progress, which is passed on and renews the limit.
        """
        if self._process is None:
            self._start()
        process = self._process
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b'\n')
        within_s: float = knobs.get('time_limit') if limit_s is None else limit_s
        while (reply := self._receive(within_s)).get('status') == 'progress':
            if progress is not None:
                progress(reply['what'], reply['done'], reply['total'])
        self._stop()
        if reply.get('status') != 'ok':
            raise PeerError(self.name, 'failed', reply.get('message', 'it gave no reason'))
        return reply

    def _start(self) -> None:
        sentence = '' if self._command else absence(self.name)
        if sentence:
            raise PeerError(self.name, 'missing', sentence)
        # The death signal follows the thread that starts the child, so only the main one asks.
        parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
        words = ['-P', '-m', 'tilewright_lab.peers.process', self.name, str(parent)]
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed in _end)
        process = subprocess.Popen(
            list(self._command) if self._command else [_interpreter(self.name), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            env=_environment(self.name, self.threads),
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )
        self._process, self._log = process, log
        self._finish = weakref.finalize(self, _end, process, log)
        greeting = self._receive(START_LIMIT_S)
        if greeting.get('status') != 'ok':
            self.close()
            message = greeting.get('message', 'it gave no reason')
            raise PeerError(self.name, 'failed', f'it could not be started: {message}')
        self.versions = greeting.get('versions', {})
        self._stop()

    def _stop(self) -> None:
        """SIGSTOP, and wait until the system says that the process is stopped."""
        process = self._process
        assert process is not None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_LIMIT_S
        while process.poll() is None and process_state(process.pid) not in ('T', 't', ''):
            if time.monotonic() > deadline:
                self.close()
                raise PeerError(self.name, 'hung', 'it could not be stopped')
            time.sleep(0.0005)

    def _receive(self, limit_s: float) -> dict:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while b'\n' not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    self.close()
                    raise PeerError(
                        self.name, 'hung', f'no answer within {limit_s:g} s; raise '
                        f'TILEWRIGHT_TIME_LIMIT if it needs longer'
                    )  # fmt: skip
                piece = os.read(process.stdout.fileno(), 1 << 16)
                if not piece:
                    raise self._death(process)
                self._buffer += piece
        line, self._buffer = self._buffer.split(b'\n', 1)
        try:
            return json.loads(line)
        except ValueError:
            self.close()
            raise PeerError(self.name, 'failed', f'its reply is no JSON: {line[:80]!r}') from None

    def _death(self, process: subprocess.Popen[bytes]) -> PeerError:
        code = process.wait()
        how = f'its process ended with exit code {code}'
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f'its process was ended by {signal.Signals(-code).name}'
        words = _last_words(self._log)
        self.close()
        return PeerError(self.name, 'crashed', f'{how}: {words}' if words else how)


def _interpreter(name: str) -> str:
    foreign = tvm_environment.interpreter() if name == 'tvm' else None
    return sys.executable if foreign is None else str(foreign)


def _environment(name: str, threads: int) -> dict[str, str]:
    """What every contestant's process gets.

    The C allocator keeps the pages that it has: a library that allocates its result in each call
    then reuses memory, as those do that write into a given buffer. Reduced precision is never on.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(('DNNL_', 'ONEDNN_', 'OMP_'))}
    paths = [str(Path(__file__).parents[2])]
    paths += filter(None, os.environ.get('PYTHONPATH', '').split(os.pathsep))
    if name == 'tvm':
        # Packages of this interpreter are not for another one; this package alone is.
        paths = [str(tvm_environment.package_link())]
    return {
        **kept,
        'PYTHONPATH': os.pathsep.join(paths),
        'PYTHONWARNINGS': 'ignore',
        'OMP_NUM_THREADS': str(threads),
        'TVM_NUM_THREADS': str(threads),
        'MALLOC_MMAP_MAX_': '0',
        'MALLOC_TRIM_THRESHOLD_': str(1 << 40),
        'MALLOC_TOP_PAD_': str(64 << 20),
    }


def _last_words(log: IO[bytes] | None) -> str:
    if log is None:
        return ''
    log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
    lines = log.read().decode(errors='replace').split('\n')
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), '')


def _end(process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Kill a child with all it started, and collect it; SIGKILL reaches a stopped one too."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout, log):
        if stream is not None:
            stream.close()
