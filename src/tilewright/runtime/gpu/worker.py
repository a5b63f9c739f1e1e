"""The parent's side of GPU tuning: a process that owns the device, and that may die without harm.

Goes in: a group, schedules with compiled kernels. Comes out: an `Answer` for each, whatever the
kernel does: one that never ends is 'hung', one that breaks the device's context 'crashed', and the
next candidate gets a new process. The child is runtime/gpu/session.py, or a module that adds
requests to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright import knobs
from tilewright.errors import InputError, MissingError, StoreError
from tilewright.kernels.gpu.precision import LARGEST_ERROR, half_error
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.runtime.child import Child, parent_word
from tilewright.runtime.gpu.build import Built
from tilewright.runtime.worker import REFERENCE_FLOPS_PER_S, Answer, answered
from tilewright.schedule.gpu import GpuSchedule

SESSION = ('-m', 'tilewright.runtime.gpu.session')
START_LIMIT_S = 120.0
TOLERANCE = LARGEST_ERROR


@dataclass(frozen=True, slots=True)
class Opened:
    """What a child said of its device."""

    target: str
    device: str
    machine: GpuMachine
    architecture: str | None
    versions: dict[str, str]


class _Session(Child):
    """A child that runs a session. No limit on address space: drivers map all there is."""

    def __init__(self, command: Sequence[str], target: str, device: str) -> None:
        super().__init__(*command, target, device, parent_word())

    def ask(self, request: dict, limit: float) -> dict | Answer:
        self.forget_words()
        return answered(self, lambda: self.ask_json(request, limit), limit)


class GpuWorker:
    """A restartable session; use it in a `with` statement.

    `seed` decides the random data of every group; fresh for each worker unless it is given.
    `command` are the words that start a session, behind the interpreter.
    """

    def __init__(
        self,
        target: str = 'cuda',
        device: str = '',
        *,
        seed: int | None = None,
        tolerance: float = TOLERANCE,
        time_limit: float | None = None,
        command: Sequence[str] = SESSION,
    ) -> None:
        self.target, self.device, self.command = target, device, tuple(command)
        self.seed = secrets.randbits(32) if seed is None else seed
        self.tolerance = tolerance
        self.time_limit = knobs.get('time_limit') if time_limit is None else time_limit
        self.starts = 0
        self._child: _Session | None = None
        self._group: Group | None = None

    def __enter__(self) -> GpuWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the child, if there is one. The worker can be used again afterwards."""
        child, self._child, self._group = self._child, None, None
        if child is not None:
            child.end()

    def open(self) -> Opened:
        """Start the child; raises MissingError where there is no such device."""
        reply = self._request({'do': 'open'}, START_LIMIT_S)
        if isinstance(reply, Answer) or reply['status'] != 'ok':
            self.close()
            message = reply.message if isinstance(reply, Answer) else reply['message']
            code = 1 if isinstance(reply, Answer) else reply.get('exit_code')
            raise (InputError if code == InputError.exit_code else MissingError)(message)
        return Opened(
            reply['target'], reply['device'], GpuMachine.from_json(reply['machine']),
            reply['architecture'], reply['versions'],
        )  # fmt: skip

    def attempt(
        self, group: Group, schedule: GpuSchedule, built: Built | None = None, repeats: int = 7,
        worth_ms: float | None = None,
    ) -> tuple[Answer, dict]:  # fmt: skip
        """Check and time one candidate; comes out: the answer, and all that the child said."""
        if built is not None and built.error:
            return Answer('failed', built.error), {}
        reply = self.ask(
            group, {'do': 'attempt', 'schedule': schedule.to_json(),
                    'files': built and built.to_json(), 'repeats': repeats, 'worth_ms': worth_ms},
            self.time_limit,
        )  # fmt: skip
        if isinstance(reply, Answer):
            return reply, {}
        return (
            Answer(
                reply['status'], reply.get('message', ''), reply.get('max_rel_err'),
                tuple(reply.get('samples_ms', ())),
            ),
            reply,
        )  # fmt: skip

    def ask(self, group: Group, request: dict, limit: float) -> dict | Answer:
        """Any request of the session about a group; an Answer says how the child ended."""
        self.prepare(group)
        reply = self._request(request, limit)
        if isinstance(reply, Answer) or reply['status'] == 'crashed':
            self.close()
        if not isinstance(reply, Answer) and reply['status'] == 'unable':
            raise MissingError(reply['message'])
        return reply

    def prepare(self, group: Group) -> None:
        """The child holds the data and the reference of this group; nothing is launched."""
        if self._child is not None and self._child.alive and self._group == group:
            return
        request: dict[str, Any] = {
            'do': 'group', 'group': group.to_json(), 'seed': self.seed,
            'tolerance': self.tolerance + half_error(group),
        }  # fmt: skip
        limit = START_LIMIT_S + group.flops / REFERENCE_FLOPS_PER_S
        reply = self._request(request, limit)
        message = reply.message if isinstance(reply, Answer) else reply.get('message')
        if isinstance(reply, Answer) or reply['status'] != 'ok':
            self.close()
            unable = not isinstance(reply, Answer) and reply['status'] == 'unable'
            raise (MissingError if unable else StoreError)(
                f'{group.label} could not be prepared on {self.target}: {message}'
            )
        self._group = group

    def _request(self, request: dict, limit: float) -> dict | Answer:
        if self._child is None or not self._child.alive:
            self.close()
            self._child = _Session(self.command, self.target, self.device)
            self.starts += 1
        return self._child.ask(request, limit)
