"""Inductor as a rival on whole networks: all of them tuned at once, each in a process of its own.

Goes in: networks of the zoo. Comes out: `Entrant`s for each, or one sentence that says why not.
With max_autotune Inductor compiles some fifteen Triton kernels for every convolution: minutes for
each network. So all networks are prepared together, on every core:

    fill      Triton kernels that it may choose from are compiled, the smallest tiles first, into a
              cache that holds machine code and no decisions, until some seconds are over
    prepare   every network is compiled among those; what is timed meanwhile takes turns

and when the last is ready nothing compiles any more. Beside it takes part Inductor with kernels of
libraries for convolutions and products, which needs no templates. What Inductor remembers of its
decisions is new for every run, and what it says goes to files in `logs` (inductor_process.py).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.errors import CompilerError, MissingError
from tilewright.machine.compiler import cache_dir
from tilewright.runtime.child import Child, ChildEnded, package_paths, parent_word
from tilewright_lab.peers.contestants import Entrant
from tilewright_lab.peers.inductor_process import FAILED, OK, TOO_LARGE, Marks, sentence

FILL_S = 150.0
LIMIT_S = 300.0
BACKENDS = ('ATEN', 'ATEN,TRITON')
CHILD = ('-m', 'tilewright_lab.peers.inductor_process')
ANSWER_S = 60.0
BEGIN_S = 90.0

Say = Callable[[str], object]


class NotEndedError(CompilerError):
    """A rival was still compiling when its time was over."""


class Asked(Protocol):
    """What is needed of a network here."""

    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> Mapping[str, Any]: ...
    @property
    def inputs(self) -> Mapping[str, np.ndarray]: ...
    @property
    def precision(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Folder:
    """Where Triton's machine code lies, and what is known of it; for one PyTorch and one device."""

    path: Path

    @classmethod
    def of(cls, device: str) -> Folder:
        try:
            version = importlib.metadata.version('torch')
        except importlib.metadata.PackageNotFoundError:
            raise MissingError("peers are PyTorch's: pip install 'tilewright[torch]'") from None
        said = re.sub(r'[^A-Za-z0-9.+]+', '-', f'{version} {device}')
        return cls(cache_dir() / 'inductor' / said)

    def log(self, name: str) -> Path:
        place = self.path / 'logs' / f'{name}.log'
        place.parent.mkdir(parents=True, exist_ok=True)
        return place


def label(subject: Asked) -> str:
    """A network and its sizes, as a name of a file."""
    said = {**subject.arguments, 'precision': subject.precision}
    sizes = '-'.join(f'{key}{value}' for key, value in sorted(said.items()))
    return re.sub(r'[^A-Za-z0-9.+-]+', '-', sizes)


class Rivals:
    """Inductor on several networks; use `with`, since they are processes."""

    def __init__(
        self,
        folder: Folder,
        fill_s: float = FILL_S,
        limit_s: float = LIMIT_S,
        child: Sequence[str] = CHILD,
    ) -> None:
        """`limit_s` is for all of it, filling included, from the beginning on."""
        self.folder, self.fill_s, self.limit_s, self.child = folder, fill_s, limit_s, child
        self.scratch = Path(tempfile.mkdtemp(prefix='tilewright-inductor-'))
        self.processes: dict[tuple[str, str], Process] = {}
        self.ready: dict[tuple[str, str], dict] = {}
        self.rows: dict[str, list[dict]] = {}

    def __enter__(self) -> Rivals:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.processes.values():
            one.end()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def begin(self, subjects: Sequence[Asked], say: Say = lambda text: None) -> dict[str, Any]:
        """Prepare all networks; when it returns nothing compiles. Comes out: what was compiled."""
        began = time.monotonic()
        marks = Marks(self.folder.path)
        for claimed in marks.offered.iterdir():  # by a process that was ended in the midst of it
            if not marks.state(claimed.name):
                claimed.unlink()
        for subject in subjects:
            for backends in BACKENDS:
                self._start(subject, backends)
        say('inductor: starting')
        self._replies(BEGIN_S)
        templates = [key for key in self.processes if 'TRITON' in key[1]]
        for key, one in self.processes.items():
            if key in templates:
                one.send({'do': 'fill', 'seconds': self.fill_s})
            else:
                one.send({'do': 'prepare'})
        say('inductor: compiling ahead')
        self._replies(self.limit_s - (time.monotonic() - began), templates)
        for key in templates:
            if key in self.processes:
                self.processes[key].send({'do': 'prepare'})
        say('inductor: tuning')
        for key, said in self._replies(self.limit_s - (time.monotonic() - began)).items():
            self.ready[key] = said
        states = [marks.state(path.name) for path in marks.offered.iterdir()]
        return {
            'seconds': time.monotonic() - began, 'offered': len(states),
            'compiled': states.count(OK), 'too_large': states.count(TOO_LARGE),
            'left_out': states.count(''), 'failed': states.count(FAILED),
        }  # fmt: skip

    def entrants(self, subject: Asked) -> tuple[list[Entrant], list[dict]]:
        """(the contestants, rows that say what did not work)."""
        found, rows = [], list(self.rows.get(label(subject), ()))
        for backends in BACKENDS:
            key = label(subject), backends
            if key in self.ready:
                try:
                    found.append(self._entrant(*key, self.ready.pop(key)))
                except CompilerError as error:
                    self.processes.pop(key).end()
                    rows.append(
                        {'name': _name(backends), 'status': 'failed', 'message': str(error)}
                    )
        return found, rows

    def _start(self, subject: Asked, backends: str) -> None:
        name = label(subject)
        inputs = self.scratch / f'{name}.npz'
        np.savez(inputs, *subject.inputs.values())
        log = f'{name}-{backends.lower().replace(",", "-")}'
        one = Process(self.folder, log, self.scratch / log, self.child)
        self.processes[name, backends] = one
        one.send(
            {
                'do': 'begin', 'arguments': dict(subject.arguments), 'inputs': str(inputs),
                'folder': str(self.folder.path), 'turns': str(self.scratch / 'turns'),
                'backends': backends, 'precision': subject.precision,
            }
        )  # fmt: skip

    def _replies(self, seconds: float, keys: Sequence[tuple] | None = None) -> dict[tuple, dict]:
        """The replies of processes that are waited for together; others are ended, with a row."""
        until = time.monotonic() + seconds
        found = {}
        for key in list(self.processes) if keys is None else keys:
            one = self.processes.get(key)
            if one is None:
                continue
            status = 'failed'
            try:
                found[key] = one.checked(max(until - time.monotonic(), 0.0))
                continue
            except NotEndedError:
                status, message = 'not ended', f'not ended in {self.limit_s:.0f} s, see {one.log}'
            except MissingError as error:
                status, message = 'missing', str(error)
            except CompilerError as error:
                message = str(error)
            self.processes.pop(key).end()
            row = {'name': _name(key[1]), 'status': status, 'message': message}
            self.rows.setdefault(key[0], []).append(row)
        return found

    def _entrant(self, name: str, backends: str, said: dict) -> Entrant:
        one = self.processes[name, backends]
        settings = one.ask({'do': 'record'}, ANSWER_S)['settings']
        answer = self.scratch / f'{name}-{backends}.answer.npy'

        def answered() -> np.ndarray:
            one.ask({'do': 'answer', 'path': str(answer)}, ANSWER_S)
            return np.load(answer)

        def timed(repeats: int) -> list[float]:
            return one.ask({'do': 'time', 'repeats': repeats}, ANSWER_S)['seconds']

        return Entrant(_name(backends), timed, answered, settings, said['tuning_s'], one.end)


def _name(backends: str) -> str:
    return f'inductor/{backends.lower()}'


def _ptxas() -> dict[str, str]:
    """The assembler that Inductor's pool takes, for all: what one version made is no other's."""
    spec = importlib.util.find_spec('torch')
    for place in spec.submodule_search_locations or () if spec else ():
        path = Path(place) / 'bin' / 'ptxas'
        if path.is_file() and 'TRITON_PTXAS_PATH' not in os.environ:
            return {'TRITON_PTXAS_PATH': str(path)}
    return {}


class Process:
    """This end of a process that runs Inductor: a request, then its reply, within some seconds."""

    def __init__(self, folder: Folder, log: str, decisions: Path, child: Sequence[str]) -> None:
        self.log = folder.log(log)
        decisions.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            **package_paths(),
            'TRITON_CACHE_DIR': str(folder.path / 'triton'),
            'TORCHINDUCTOR_CACHE_DIR': str(decisions),
            'TORCHINDUCTOR_COMPILE_THREADS': str(max(2, (os.cpu_count() or 1) // 2)),
            **_ptxas(),
        }
        command = [sys.executable, *child, parent_word()]
        self.child = Child(command=command, environment=environment, log=self.log)

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict:
        """The reply to a request; one that says that it failed is raised."""
        self.send(request)
        return self.checked(seconds)

    def checked(self, seconds: float) -> dict:
        said = self.reply(seconds)
        if said['status'] == 'missing':
            raise MissingError(said['message'])
        if said['status'] != 'ok':
            raise CompilerError(f'torch.compile failed: {said["message"]}')
        return said

    def send(self, request: Mapping[str, Any]) -> None:
        self.child.send(json.dumps(request).encode() + b'\n')

    def reply(self, seconds: float) -> dict:
        try:
            return json.loads(self.child.line(max(seconds, 0.0)))
        except TimeoutError:
            raise NotEndedError(f'not ended in {seconds:.0f} s; its log is {self.log}') from None
        except ChildEnded as gone:
            raise CompilerError(
                f'Inductor {gone.how}: {self._last()}; its log is {self.log}'
            ) from None

    def _last(self) -> str:
        lines = self.log.read_text(errors='replace').split('\n')
        return sentence(RuntimeError(next((s for s in reversed(lines) if s.strip()), 'no words')))

    def end(self) -> None:
        """End it and all that it has started: they are of its session."""
        self.child.end()
