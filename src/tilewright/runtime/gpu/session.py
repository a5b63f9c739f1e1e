"""The child's side of GPU tuning: one device, the data of one group, candidates checked and timed.

`python -m tilewright.runtime.gpu.session TARGET DEVICE PARENT` answers JSON lines on standard
input, as runtime/worker.py's child does; runtime/gpu/worker.py is the other end.

    {"do": "open"}                                          -> name, machine, versions
    {"do": "group", "group": {...}, "seed": 7, "tolerance": 1e-4}
    {"do": "attempt", "schedule": {...}, "files": [...], "repeats": 7}   -> status, samples_ms, ...
    {"do": "proposals", "library": "cudnn"}                 -> schedules that a library proposes

Inputs and constants are uploaded once for a group and shared by its candidates. The output is
poisoned before each, and is checked again behind the timed calls.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, Any

import numpy as np

from tilewright.errors import InputError, StoreError, TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.module import Module
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime import verify
from tilewright.runtime.child import die_with
from tilewright.runtime.gpu.bandwidth import described
from tilewright.runtime.gpu.build import read
from tilewright.runtime.gpu.device import Call, Device, NDArray, Program
from tilewright.runtime.gpu.libraries.table import proposals
from tilewright.runtime.gpu.modules import allocate, calls_of
from tilewright.schedule.gpu import GpuSchedule

TARGETS = ('cuda', 'opencl', 'host')
BY_IMAGE_FLOPS = 2e10  # from here on the reference is computed image by image, in threads
LEAST_MS = 1e-6
LEAST_CUT_MS = 0.2  # below this the host's clock says too little of a kernel
LONG_MS = 5.0
CHECKED_TWICE_BYTES = 256 << 20


def open_device(target: str, name: str = '') -> Device:
    """A device of a target, by (a part of) its name; CUDA's also by number."""
    if target == 'host':
        from tilewright.runtime.gpu.hosted import HostDevice

        return HostDevice()
    if target == 'opencl':
        from tilewright.runtime.gpu.opencl import OpenCLDevice

        return OpenCLDevice(name)
    if target == 'cuda':
        from tilewright.runtime.gpu.cuda_devices import cuda_device

        return cuda_device(name)
    raise InputError(f'target {target!r} is not known; choose one of {", ".join(TARGETS)}')


def device_names(target: str) -> list[str]:
    """The names that `open_device` takes for all devices of a target; none without a driver."""
    if target == 'cuda':
        from tilewright.runtime.gpu.cuda_devices import cuda_devices

        return [str(number) for number in range(len(cuda_devices()))]
    if target == 'opencl':
        from tilewright.runtime.gpu.opencl import devices

        return devices()
    return ['host']


def versions_of(target: str) -> dict[str, str]:
    """Versions of what a target's kernels are compiled and run by, where it tells them."""
    if target != 'cuda':
        return {}
    from tilewright.runtime.gpu.cuda_devices import cuda_versions

    return cuda_versions()


@dataclass(frozen=True, slots=True)
class Loaded:
    """A module on a device, beside the tensors that all candidates share."""

    module: Module
    programs: tuple[Program, ...]
    own: Mapping[str, NDArray]
    calls: tuple[Call, ...]


def load(
    device: Device, module: Module, shared: Mapping[str, NDArray],
    files: Sequence[Sequence] | None = None,
) -> Loaded:  # fmt: skip
    """Programs (from files, else compiled here), buffers and calls; `ahead` has run."""
    programs: list[Program] = []
    try:
        for number, kernel in enumerate(module.kernels):
            if files is None:
                programs.append(device.compile(kernel))
                continue
            binary, resources = read(tuple(files[number]))  # pyright: ignore[reportArgumentType]
            programs.append(device.load(kernel, binary, '', resources))  # pyright: ignore[reportAttributeAccessIssue]
    except TilewrightError:
        _release(device, (), programs)
        raise
    return bind(device, module, shared, programs)


def bind(
    device: Device, module: Module, shared: Mapping[str, NDArray], programs: Sequence[Program]
) -> Loaded:
    """Buffers and calls of compiled kernels, in their order; `ahead` has run."""
    own: dict[str, NDArray] = {}
    try:
        own = allocate(device, module, shared)
        arrays = {**shared, **own}
        count = len(module.ahead)
        for call in calls_of(module.ahead, programs[:count], arrays):
            device.launch(call)
        device.synchronize()
        calls = calls_of(module.steps, programs[count:], arrays)
        return Loaded(module, tuple(programs), own, tuple(calls))
    except TilewrightError:
        _release(device, own.values(), programs)
        raise


def unload(device: Device, loaded: Loaded) -> None:
    _release(device, loaded.own.values(), loaded.programs)


def _release(device: Device, arrays: Any, programs: Sequence[Program]) -> None:
    """Give memory and code back."""
    for array in arrays:
        device.free(array)
    for program in programs:
        device.unload(program)


class Judge:
    """The float64 reference of a group, and verdicts on outputs, in as many threads as help."""

    def __init__(
        self, group: Group, arrays: Mapping[str, np.ndarray], tolerance: float
    ) -> None:  # fmt: skip
        self.oracle = verify.Oracle.of(group, _reference(group, arrays), tolerance)

    def verdict(self, got: np.ndarray) -> dict:
        oracle = self.oracle
        rows = got.reshape(-1), oracle.want.reshape(-1)
        step = 1 << 20

        def worst(start: int) -> float:
            part = slice(start, start + step)
            with np.errstate(all='ignore'):
                return float(np.max(np.abs(rows[0][part] - rows[1][part])))

        def relative(start: int) -> float:
            part = slice(start, start + step)
            with np.errstate(all='ignore'):
                size = verify.denominator(rows[0][part], rows[1][part], scale)
                return float(np.max(np.abs(rows[0][part] - rows[1][part]) / size))

        scale, limit = oracle.scale, oracle.tolerance
        with ThreadPoolExecutor() as pool:
            starts = range(0, got.size, step)
            largest = np.max(list(pool.map(worst, starts)))
            # Both tests are false for NaN; the second takes longer, and is rarely needed.
            close = oracle.largest > 0 and (
                largest <= limit * scale or np.max(list(pool.map(relative, starts))) <= limit
            )
        if close:
            return {'status': 'ok', 'max_rel_err': float(largest / oracle.largest), 'message': ''}
        found = oracle.judge(got)
        return {
            'status': 'ok' if found.ok else 'wrong',
            'max_rel_err': found.max_rel_err if np.isfinite(found.max_rel_err) else None,
            'message': found.message,
        }


def _reference(group: Group, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """`ops.reference`; for a large batch of a convolution one image at a time, which is the same
    sum for each output and uses all cores.
    """
    if group.flops < BY_IMAGE_FLOPS or group.output.dims[0] != 'n' or group.output.shape[0] == 1:
        return reference(group, arrays)
    one = _of_one_image(group)
    batched = {t.name for t in group.with_role('input') if t.dims[0] == 'n'}

    def image(number: int) -> np.ndarray:
        part = {n: a[number : number + 1] if n in batched else a for n, a in arrays.items()}
        return reference(one, part)[0]

    with ThreadPoolExecutor() as pool:
        return np.stack(list(pool.map(image, range(group.output.shape[0]))))


def _of_one_image(group: Group) -> Group:
    """The same on a batch of one; tensors with a batch have it first."""
    tensors = tuple(
        replace(t, shape=(1, *t.shape[1:])) if t.dims[:1] == ('n',) else t for t in group.tensors
    )
    stages = tuple(
        replace(s, dims=tuple(replace(d, size=1) if d.name == 'n' else d for d in s.dims))
        for s in group.stages
    )
    return replace(group, tensors=tensors, stages=stages)


class Session:
    """What one child knows; every public method is a request."""

    def __init__(self, target: str, device: str) -> None:
        self.target, self.device = target, open_device(target, device)
        self.shared: dict[str, NDArray] = {}

    def open(self) -> dict:
        return {
            'status': 'ok',
            'target': self.target,
            'device': self.device.name,
            'machine': described(self.device).to_json(),
            'architecture': getattr(self.device, 'architecture', None),
            'versions': versions_of(self.target),
        }

    def group(self, group: dict, seed: int, tolerance: float) -> dict:
        for array in self.shared.values():
            _release(self.device, [array], ())
        self.problem = Group.from_json(group)
        self.arrays = verify.random_arrays(self.problem, seed)
        self.judge = Judge(self.problem, self.arrays, tolerance)
        self.shared = {
            t.name: self.device.upload(self.arrays[t.name], t.dims)
            for t in self.problem.tensors if t.role in ('input', 'constant')
        }  # fmt: skip
        out = self.problem.output
        self.shared[out.name] = self.device.empty(out.dims, out.shape, out.dtype)
        self.poison = verify.poison(np.empty(out.shape, NUMPY[out.dtype]))
        return {'status': 'ok'}

    def attempt(
        self, schedule: dict, files: list | None = None, repeats: int = 7,
        worth_ms: float | None = None,
    ) -> dict:  # fmt: skip
        """Check, time and check again; a wrong answer is not timed.

        A candidate whose single run takes longer than `worth_ms` cannot become the best: that run,
        by the host's clock, is its only sample.
        """
        module = generate(self.problem, GpuSchedule.from_json(schedule))
        loaded = load(self.device, module, self.shared, files)
        said = {
            'resources': [
                {'kernel': p.kernel.name, 'registers': p.resources.registers,
                 'spill_bytes': p.resources.spill_bytes} for p in loaded.programs
            ]
        }  # fmt: skip
        try:
            verdict = self.checked(loaded)
            if verdict['status'] != 'ok' or not repeats:
                return verdict | said
            once = min(1e3 * self._run(loaded) for _ in range(2))
            if worth_ms is not None and once > max(worth_ms, LEAST_CUT_MS):
                return verdict | said | {'samples_ms': [once]}
            samples = self.device.time(loaded.calls, repeats if once < LONG_MS else 2)
            # Checked again: blocks that race give a wrong answer only sometimes. Large outputs
            # are left to the comparison of finalists, which runs them anew.
            if self.problem.output.bytes <= CHECKED_TWICE_BYTES:
                verdict = self.checked(loaded)
            return verdict | said | {'samples_ms': [max(1e3 * s, LEAST_MS) for s in samples]}
        finally:
            unload(self.device, loaded)

    def proposals(self, library: str) -> dict:
        """Schedules that a vendor's library proposes for the group, best first."""
        opened = self.device.library(library)
        found = proposals(opened, library, self.problem)
        return {'status': 'ok', 'schedules': [schedule.to_json() for schedule in found]}

    def checked(self, loaded: Loaded) -> dict:
        """The verdict on one run over a poisoned output."""
        out = self.shared[self.problem.output.name]
        self.device.write(out, self.poison)
        self._run(loaded)
        return self.judge.verdict(self.device.download(out))

    def _run(self, loaded: Loaded) -> float:
        """Seconds of all kernels, once, by the host's clock."""
        start = time.perf_counter()
        for call in loaded.calls:
            self.device.launch(call)
        self.device.synchronize()
        return time.perf_counter() - start


def serve(session_type: type[Session], words: list[str]) -> None:
    """The child. Arguments: target, device, process id of the parent (0: do not ask)."""
    target, device, parent = words
    die_with(int(parent))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, replies = os.fdopen(os.dup(0), 'rb'), os.fdopen(os.dup(1), 'wb')
    with open(os.devnull, 'rb') as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)  # what libraries print must not mix with replies
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    session: Session | None = None
    while True:
        request = json.loads(waiting.get())
        try:
            session = session or session_type(target, device)
            answer = getattr(session, request.pop('do'))(**request)
        except StoreError as error:  # the device may not be usable any more
            answer = {'status': 'crashed', 'message': str(error)}
        except TilewrightError as error:
            kind = 'unable' if session is None else 'failed'
            answer = {'status': kind, 'message': str(error), 'exit_code': error.exit_code}
        replies.write(json.dumps(answer).encode() + b'\n')
        replies.flush()


def _listen(requests: IO[bytes], waiting: queue.SimpleQueue[bytes]) -> None:
    for line in requests:
        waiting.put(line)
    os._exit(0)  # the parent is gone, even if a kernel never ends


if __name__ == '__main__':
    serve(Session, sys.argv[1:])
