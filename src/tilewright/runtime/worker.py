"""A process that loads, checks and times candidate libraries, and that may die without harm.

Parent side: `Worker`. Goes in: a group and paths of libraries. Comes out: an `Answer` for each,
whatever the library does: a crash, a hang, a wrong result and a library that cannot be loaded are
answers too. The child is started when it is first needed and again after each death.

Child side: `python -m tilewright.runtime.worker`, JSON lines over standard input and output:

    {"do": "group", "group": {...}, "seed": 7, "tolerance": 1e-3}           -> {"status": "ok"}
    {"do": "check", "library": "x.so"}           -> {"status": "ok", "max_rel_err": 1e-7, ...}
    {"do": "time", "library": "x.so", "min_ms": 5, "max_calls": 200}  -> {..., "samples_ms": [...]}

The child keeps the data and the float64 reference of the current group, read-only and between guard
pages, so that many candidates reuse them and none can damage them for the next. No pickle: a reply
can be nothing but numbers and text.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import resource
import secrets
import signal
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tilewright import knobs
from tilewright.errors import MissingError, StoreError, TilewrightError
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime import verify
from tilewright.runtime.child import Child, ChildEnded, die_with, parent_word

STATUSES = ('ok', 'crashed', 'hung', 'wrong', 'failed')
START_LIMIT_S = 60.0
REFERENCE_FLOPS_PER_S = 1e8
LOADED_AT_ONCE = 64
LOG_BYTES = 64 << 20
WARM_UP_CALLS = 2
LEAST_CALLS = 2
TICK_S = 1e-9


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request about one library. `samples_ms` holds every timed call."""

    status: str
    message: str = ''
    max_rel_err: float | None = None
    samples_ms: tuple[float, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status == 'ok'


class Worker:
    """A restartable child process for one tuning run; use it in a `with` statement.

    `seed` decides the random data of every group; fresh for each Worker unless it is given.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        tolerance: float | None = None,
        time_limit: float | None = None,
        memory_limit: int | None = None,
    ) -> None:
        self.seed = secrets.randbits(32) if seed is None else seed
        self.tolerance = tolerance
        self.time_limit = knobs.get('time_limit') if time_limit is None else time_limit
        self.memory_limit = knobs.get('memory_limit') if memory_limit is None else memory_limit
        self.starts = 0
        self._child: WorkerProcess | None = None
        self._group: Group | None = None
        self._visitors: set[Path] = set()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """Process id of the child, None while there is none."""
        return None if self._child is None else self._child.process.pid

    def close(self) -> None:
        """End the child, if there is one. The worker can be used again afterwards."""
        child, self._child, self._group = self._child, None, None
        self._visitors.clear()
        if child is not None:
            child.end()

    def check(self, group: Group, library: Path) -> Answer:
        """Run a library once on random data with a poisoned output, and judge the result."""
        answer = self._try(group, library, {'do': 'check', 'library': str(library)})
        if answer.status == 'wrong':
            self.close()  # whatever else it wrote to, the next candidate starts from clean memory
        return answer

    def time(
        self, group: Group, library: Path, *, min_ms: float = 5.0, max_calls: int = 200
    ) -> Answer:
        """Time calls of a library, after a warm-up, for about `min_ms`; the result is judged."""
        request = {
            'do': 'time', 'library': str(library), 'min_ms': min_ms, 'max_calls': max_calls
        }  # fmt: skip
        answer = self._try(group, library, request)
        if answer.status == 'wrong':
            self.close()
        return answer

    def _try(self, group: Group, library: Path, request: dict) -> Answer:
        answer = self._ask(group, library, request)
        if answer.status == 'crashed' and self._visitors - {library}:
            # An earlier library may be to blame, or the system killed an idle child: only a crash
            # in a process of its own counts.
            self.close()
            answer = self._ask(group, library, request)
        if answer.status in ('crashed', 'hung'):
            self.close()
        return answer

    def _ask(self, group: Group, library: Path, request: dict) -> Answer:
        child = self._ready(group)
        self._visitors.add(library)
        reply = child.ask(request, self.time_limit)
        if isinstance(reply, Answer):
            return reply
        if reply['status'] == 'unable':
            self.close()
            raise MissingError(reply['message'])
        return _read_answer(reply)

    def _ready(self, group: Group) -> WorkerProcess:
        """A child that holds the data of this group. Every group starts in a new process."""
        if self._child is not None and self._child.alive and self._group == group:
            return self._child
        self.close()
        self._child = child = WorkerProcess(self.memory_limit)
        self.starts += 1
        self._require(child.receive(START_LIMIT_S), 'the worker process could not be started')
        request = {
            'do': 'group', 'group': group.to_json(), 'seed': self.seed,
            'tolerance': self.tolerance,
        }  # fmt: skip
        allowed = max(START_LIMIT_S, self.time_limit) + group.flops / REFERENCE_FLOPS_PER_S
        reply = child.ask(request, allowed)
        self._require(reply, f'the reference of {group.label} could not be computed')
        self._group = group
        return child

    def _require(self, reply: Answer | dict, what: str) -> None:
        """Trouble before any candidate was touched is nobody's record: it ends the run."""
        answer = reply if isinstance(reply, Answer) else _read_answer(reply)
        if not answer.ok:
            self.close()
            raise MissingError(
                f'{what}: {answer.message or answer.status} (limits: {self.memory_limit} bytes in '
                f'TILEWRIGHT_MEMORY_LIMIT, {self.time_limit:g} s in TILEWRIGHT_TIME_LIMIT)'
            )


def _read_answer(reply: dict) -> Answer:
    return Answer(
        reply['status'],
        reply.get('message', ''),
        reply.get('max_rel_err'),
        tuple(reply.get('samples_ms', ())),
    )


class WorkerProcess(Child):
    """A child that answers requests about libraries, or says how it ended."""

    def __init__(self, memory_limit: int) -> None:
        super().__init__(
            *('-m', 'tilewright.runtime.worker'), str(memory_limit), parent_word()
        )  # fmt: skip

    def ask(self, request: dict, limit: float) -> dict | Answer:
        """Send a request; comes out: the reply, or an Answer that says how the child ended."""
        self.forget_words()
        return answered(self, lambda: self.ask_json(request, limit), limit)

    def receive(self, limit: float) -> dict | Answer:
        return answered(self, lambda: json.loads(self.line(limit)), limit)


def answered(child: Child, reply: Callable[[], dict], limit: float) -> dict | Answer:
    """The reply of a child, or an Answer that says how it ended."""
    try:
        return reply()
    except TimeoutError:
        child.end()
        return Answer('hung', f'no answer within {limit:g} s')
    except ChildEnded as gone:
        return Answer('crashed', str(gone))


class _Bench:
    """The child's memory: one group with its data, and the libraries loaded for it."""

    def __init__(self, group: Group, seed: int, tolerance: float | None) -> None:
        arrays = verify.freeze_all(verify.random_arrays(group, seed))
        timed = verify.timed_arrays(group, arrays, seed)
        self.group = group
        self.inputs = {t.name: arrays[t.name] for t in group.with_role('input')}
        self.timed = {t.name: timed[t.name] for t in group.with_role('input')}
        self.constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
        if tolerance is None and group.half == 'f16':
            tolerance = verify.half_tolerance(group)

        def oracle(of: Mapping[str, Any]) -> verify.Oracle:
            steps = verify.half_steps(group, of)
            return verify.Oracle.of(group, reference(group, of), tolerance, steps)

        self.oracle = oracle(arrays)
        self.timed_oracle = self.oracle if timed is arrays else oracle(timed)
        self.out = verify.guarded_empty(group.output.shape, NUMPY[group.output.dtype])
        self.loaded: OrderedDict[str, tuple[Any, Any]] = OrderedDict()

    def load(self, library: str) -> tuple[Any, Any]:
        """[path] -> kernel and packed constants; the most recent ones are kept."""
        from tilewright.runtime.cpu.kernel import Kernel

        if library not in self.loaded:
            kernel = Kernel.load(Path(library), self.group)
            self.loaded[library] = kernel, kernel.pack(self.constants)
            if len(self.loaded) > LOADED_AT_ONCE:
                self.loaded.popitem(last=False)
        self.loaded.move_to_end(library)
        return self.loaded[library]

    def check(self, library: str) -> dict:
        kernel, packed = self.load(library)
        kernel.run(self.inputs, packed, verify.poison(self.out))
        return self.verdict(self.oracle)

    def time(self, library: str, min_ms: float, max_calls: int) -> dict:
        kernel, packed = self.load(library)
        verify.poison(self.out)
        first = min(kernel.time(self.timed, packed, self.out, repeats=WARM_UP_CALLS))
        wanted = math.ceil(min_ms / 1e3 / max(first, TICK_S))
        calls = min(max(wanted, LEAST_CALLS), max(max_calls, LEAST_CALLS))
        samples = kernel.time(self.timed, packed, self.out, repeats=calls)
        # Judged again: threads that race give a wrong answer only sometimes.
        verdict = self.verdict(self.timed_oracle)
        return {**verdict, 'samples_ms': [1e3 * max(float(s), TICK_S) for s in samples]}

    def verdict(self, oracle: verify.Oracle) -> dict:
        found = oracle.judge(self.out)
        return {
            'status': 'ok' if found.ok else 'wrong',
            'max_rel_err': found.max_rel_err if math.isfinite(found.max_rel_err) else None,
            'message': found.message,
        }


def _serve(requests: IO[bytes], replies: IO[bytes], memory_limit: int) -> None:
    """Answer requests, one at a time, until the input ends."""
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def listen() -> None:
        for line in requests:
            waiting.put(line)
        os._exit(0)  # the parent is gone, even if a candidate never returns

    def reply(answer: dict) -> None:
        replies.write(json.dumps(answer).encode() + b'\n')
        replies.flush()

    threading.Thread(target=listen, daemon=True).start()
    bench: _Bench | None = None
    reply({'status': 'ok'})
    while True:
        request = json.loads(waiting.get())
        try:
            if request['do'] == 'group':
                bench = None
                group = Group.from_json(request['group'])
                bench = _Bench(group, request['seed'], request['tolerance'])
                answer = {'status': 'ok'}
            else:
                assert bench is not None
                action = getattr(bench, request.pop('do'))
                answer = action(**request)
        except (MissingError, StoreError) as error:  # of the system, not of a candidate
            answer = {'status': 'unable', 'message': f'{error}'}
        except MemoryError:
            answer = {'status': 'crashed', 'message': f'needs more than {memory_limit} bytes'}
        except (TilewrightError, OSError, AttributeError, ValueError) as error:
            # A library that cannot be loaded, or that lacks a function of the interface.
            answer = {'status': 'failed', 'message': f'{error}'}
        reply(answer)


def _limit(memory_limit: int) -> None:
    for kind, wanted in (
        (resource.RLIMIT_AS, memory_limit),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, LOG_BYTES),
    ):
        _, most = resource.getrlimit(kind)
        value = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, (value, most))


def main(words: list[str]) -> None:
    """The child. Arguments: bytes of address space, process id of the parent (0: do not ask)."""
    memory_limit, parent = map(int, words)
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print must not mix with replies: their standard output becomes the log.
    requests, replies = os.fdopen(os.dup(0), 'rb'), os.fdopen(os.dup(1), 'wb')
    with open(os.devnull, 'rb') as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    _limit(memory_limit)
    _serve(requests, replies, memory_limit)


if __name__ == '__main__':
    main(sys.argv[1:])
