"""The parent's side of contestants: each in a process of its own, stopped unless it is asked.

Goes in: names of contestants.py's table. Comes out: `Peer`, whose `ask` lets its process run
(SIGCONT), exchanges one request and one reply, and stops it again (SIGSTOP). So at most one
contestant ever runs, and its thread pool cannot steal time from another's, however it spins.
Nothing is left in a pipe while it is stopped.

A contestant that is not installed, fails, crashes or hangs raises `PeerError`, which names it. One
that needs an environment of its own (tvm) is run by that environment's interpreter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tilewright import knobs
from tilewright.errors import InputError, TilewrightError
from tilewright.runtime.child import Child, ChildEnded, package_paths, parent_word
from tilewright_lab.peers import held, tvm_environment
from tilewright_lab.peers.contestants import PLACES, peer_names, table_of

START_LIMIT_S = 120.0
MODULES = {
    'layer': 'tilewright_lab.peers.process',
    'network': 'tilewright_lab.peers.network_process',
}
_STOP_LIMIT_S = 10.0


class PeerError(TilewrightError):
    """A contestant could not take part. `status`: missing, failed, crashed or hung."""

    def __init__(self, name: str, status: str, message: str) -> None:
        super().__init__(f'{name}: {message}')
        self.name, self.status, self.message = name, status, message


def check_names(
    names: Iterable[str], work: str = 'layer', device: str = 'cpu'
) -> tuple[str, ...]:  # fmt: skip
    """Names in order, each known; the same name twice is once."""
    chosen, known = tuple(dict.fromkeys(names)), peer_names(work, device)
    for name in chosen:
        if name not in known:
            where = PLACES[work, device]
            raise InputError(
                f'peer {name!r} is not known on {where}; choose from {", ".join(known)}'
            )
    return chosen


def absence(name: str, work: str = 'layer') -> str:
    """A sentence that says what is missing for a peer on a CPU, '' when it is installed."""
    if name == 'tvm':
        return tvm_environment.absence()
    row = table_of(work)[name]
    for package in (*row.packages, *row.tools):
        if importlib.util.find_spec(package) is None:
            return (
                f'peer {name} needs the package {package}, which is not installed; '
                f"pip install 'tilewright[{row.extra}]'"
            )
    return ''


def process_state(pid: int) -> str:
    """The state letter that the system gives a process: 'T' is stopped, '' when there is none."""
    with contextlib.suppress(OSError):
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    return ''


class Peer:
    """One contestant's process, started by the first request and again after each death."""

    def __init__(
        self, name: str, threads: int, *, work: str = 'layer', command: Sequence[str] | None = None
    ) -> None:
        """`command` replaces the process that is started, for contestants from elsewhere."""
        self.name, self.threads, self.work = name, threads, work
        self.versions: dict[str, str] = {}
        self.limits: dict[str, str] = {}  # settings of its processor, where it is held back
        self._command = command
        self._child: Child | None = None

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def close(self) -> None:
        """End the process, stopped or not."""
        if self._child is not None:
            self._child.end()
        self._child = None

    def ask(
        self,
        request: dict,
        limit_s: float | None = None,
        progress: Callable[[str, int, int], object] | None = None,
    ) -> dict:
        """One request, one reply; the process runs only meanwhile. Raises PeerError.

        Before its reply it may report progress, which is passed on and renews the limit.
        """
        if self._child is None:
            self._start()
        child = self._child
        assert child is not None
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(signal.SIGCONT)
        child.send(json.dumps(request).encode() + b'\n')
        within_s: float = knobs.get('time_limit') if limit_s is None else limit_s
        while (reply := self._receive(within_s)).get('status') == 'progress':
            if progress is not None:
                progress(reply['what'], reply['done'], reply['total'])
        self._stop()
        if reply.get('status') != 'ok':
            raise PeerError(self.name, 'failed', reply.get('message', 'it gave no reason'))
        return reply

    def _start(self) -> None:
        sentence = '' if self._command else absence(self.name, self.work)
        if sentence:
            raise PeerError(self.name, 'missing', sentence)
        command, function = self._command, ''
        if command is None:
            row = table_of(self.work)[self.name]
            function = row.function
            words = ['-P', '-m', MODULES[self.work], parent_word(), function, *row.packages]
            command = [_interpreter(self.name), *words]
        self._child = Child(
            command=command, environment=_environment(self.name, function, self.threads)
        )
        greeting = self._receive(START_LIMIT_S)
        if greeting.get('status') != 'ok':
            self.close()
            message = greeting.get('message', 'it gave no reason')
            raise PeerError(self.name, 'failed', f'it could not be started: {message}')
        self.versions = greeting.get('versions', {})
        self.limits = held.setting(greeting.get('isa', ''))
        self._stop()

    def _stop(self) -> None:
        """SIGSTOP, and wait until the system says that the process is stopped."""
        assert self._child is not None
        process = self._child.process
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_LIMIT_S
        while process.poll() is None and process_state(process.pid) not in ('T', 't', ''):
            if time.monotonic() > deadline:
                self.close()
                raise PeerError(self.name, 'hung', 'it could not be stopped')
            time.sleep(0.0005)

    def _receive(self, limit_s: float) -> dict:
        assert self._child is not None
        try:
            line = self._child.line(limit_s)
        except TimeoutError:
            self.close()
            raise PeerError(
                self.name, 'hung', f'no answer within {limit_s:g} s; raise TILEWRIGHT_TIME_LIMIT '
                f'if it needs longer'
            ) from None  # fmt: skip
        except ChildEnded as gone:
            self.close()
            raise PeerError(self.name, 'crashed', f'its process {gone}') from None
        try:
            return json.loads(line)
        except ValueError:
            self.close()
            raise PeerError(self.name, 'failed', f'its reply is not JSON: {line[:80]!r}') from None


def _interpreter(name: str) -> str:
    foreign = tvm_environment.interpreter() if name == 'tvm' else None
    return sys.executable if foreign is None else str(foreign)


def _environment(name: str, function: str, threads: int) -> dict[str, str]:
    """What every contestant's process gets.

    The C allocator keeps the pages that it has: a library that allocates its result in each call
    then reuses memory, as those do that write into a given buffer. Reduced precision is never on.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(('DNNL_', 'ONEDNN_', 'OMP_'))}
    paths = [package_paths()['PYTHONPATH']]
    if not function.startswith('tilewright_lab.'):
        paths += filter(None, sys.path)  # where a registered one is found by us
    if name == 'tvm':
        # Packages of this interpreter are not for another one; this package alone is.
        paths = [str(tvm_environment.package_link())]
    return {
        **kept,
        **held.variables(),
        'PYTHONPATH': os.pathsep.join(paths),
        'PYTHONWARNINGS': 'ignore',
        'OMP_NUM_THREADS': str(threads),
        'TVM_NUM_THREADS': str(threads),
        'MALLOC_MMAP_MAX_': '0',
        'MALLOC_TRIM_THRESHOLD_': str(1 << 40),
        'MALLOC_TOP_PAD_': str(64 << 20),
    }
