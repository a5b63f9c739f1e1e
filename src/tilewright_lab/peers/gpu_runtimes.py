"""The same schedules through two runtimes of one device, in one process: CUDA and NVIDIA's OpenCL.

`python -m tilewright_lab.peers.gpu_runtimes TARGET DEVICE PARENT` is a session of
runtime/gpu/session.py with one more request:

    {"do": "race", "schedules": {"winner": {...}}, "settings": [{"schedule": {...}, "files": []}],
     "count": 200, "rounds": 5, "listings": "DIR/NAME"}

Every schedule is compiled by both runtimes, in as many threads as there are kernels, checked
against float64, and timed in turns (A B C A B C ...) as batches of `count` launches that are queued
from C, and of `LONGER` times as many: what one launch more takes ('batched') is the difference, so
that neither the start of a batch nor the driver's way of waiting for its end is in it, while
'whole_batch' has both. Of each length the fastest of `TIMES`: a batch in which the host's scheduler
puts the waiting thread to sleep takes 4 ms longer. CUDA's kernels are also replayed from a graph.
`settings` are timed through CUDA alone. Under `host` the other runtime is whatever OpenCL there is.
`listings`, where it is given, is where the PTX of OpenCL's kernels is written.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.errors import MissingError, TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.runtime.gpu.device import Call, Device, NDArray, Program
from tilewright.runtime.gpu.session import Loaded, Session, bind, open_device, serve, unload
from tilewright.schedule.gpu import GpuSchedule

OTHER = {'cuda': 'nvidia', 'host': ''}  # the part of an OpenCL device's name that is asked for
GRAPH_REPEATS = 3
LONGER, TIMES = 4, 3
WARM_UP_TURNS = 3


def per_launch(device: Device, calls: Sequence[Call], count: int) -> dict[str, list[float]]:
    """Seconds of one more launch of a batch, and of a launch of a whole batch."""
    short = min(device.batched(calls, count, TIMES))
    long = min(device.batched(calls, LONGER * count, TIMES))
    return {'batched': [(LONGER * long - short) / (LONGER - 1)], 'whole_batch': [short]}


@dataclass(slots=True)
class Side:
    """One schedule through one runtime; `us` are samples of every turn, by how they were taken."""

    name: str
    runtime: str
    schedule: GpuSchedule
    device: Device | None = None
    loaded: Loaded | None = None
    status: str = 'failed'
    message: str = ''
    said: dict = field(default_factory=dict)
    us: dict[str, list[list[float]]] = field(default_factory=dict)

    def to_json(self) -> dict:
        return {
            'name': self.name, 'runtime': self.runtime, 'schedule': self.schedule.to_json(),
            'status': self.status, 'message': self.message, **self.said, 'samples_us': self.us,
        }  # fmt: skip


class RuntimesSession(Session):
    """A session with a second runtime beside its own."""

    def __init__(self, target: str, device: str) -> None:
        super().__init__(target, device)
        self.other: Device | None = None
        self.missing = ''
        try:
            self.other = open_device('opencl', OTHER[target])
        except MissingError as error:
            self.missing = str(error)
        self.beside: dict[str, NDArray] = {}
        self.warm = False

    def runtimes(self) -> dict:
        """What the second runtime is, and what it can do."""
        if self.other is None:
            return {'status': 'ok', 'missing': self.missing}
        route = self.other.route  # pyright: ignore[reportAttributeAccessIssue]
        return {
            'status': 'ok', 'device': self.other.name, 'machine': self.other.machine.to_json(),
            'own_target': route.name, 'notes': list(route.notes),
        }  # fmt: skip

    def group(self, group: dict, seed: int, tolerance: float) -> dict:
        answer = super().group(group, seed, tolerance)
        if self.other is not None:
            for array in self.beside.values():
                self.other.free(array)
            self.beside = {
                name: self.other.upload(self.arrays[name], array.dims)
                if name in self.arrays
                else self.other.empty(array.dims, array.sizes)
                for name, array in self.shared.items()
            }
        return answer

    def race(
        self, schedules: Mapping[str, dict], settings: list[dict], count: int, rounds: int,
        listings: str = '',
    ) -> dict:  # fmt: skip
        """All schedules through both runtimes, then the settings through this one's own."""
        sides = [
            Side(name, runtime, GpuSchedule.from_json(one), device, message=missing)
            for name, one in schedules.items()
            for runtime, device, missing in (
                (self.target, self.device, ''), ('opencl', self.other, self.missing)
            )
        ]  # fmt: skip
        try:
            self._load(sides)
            self._list(sides, listings)
            for side in sides:
                self._check(side)
            if not self.warm:  # clocks rise while the first kernels run
                for side in sides * WARM_UP_TURNS:
                    self._turn(side, count)
                for side in sides:
                    side.us.clear()
                self.warm = True
            for _ in range(rounds):
                for side in sides:
                    self._turn(side, count)
        finally:
            for side in sides:
                if side.loaded is not None and side.device is not None:
                    unload(side.device, side.loaded)
        return {
            'status': 'ok',
            'sides': [side.to_json() for side in sides],
            'settings': [self._setting(one) for one in settings],
        }

    def _load(self, sides: list[Side]) -> None:
        """Compile all kernels of all sides at once; whatever fails is the side's message."""
        with ThreadPoolExecutor(16) as pool:
            waiting = []
            for side in sides:
                if side.device is None:
                    side.status = 'missing'
                    continue
                try:
                    module = generate(self.problem, side.schedule)
                except TilewrightError as error:
                    side.message = str(error)
                    continue
                futures = [pool.submit(side.device.compile, k) for k in module.kernels]
                waiting.append((side, side.device, module, futures))
            for side, device, module, futures in waiting:
                programs = self._compiled(side, device, futures)
                if programs is None:
                    continue
                try:
                    side.loaded = bind(device, module, self._arrays(side), programs)
                except TilewrightError as error:
                    side.message = str(error)
                main = max(programs, key=lambda p: p.resources.registers or 0)
                side.said = {
                    'registers': main.resources.registers,
                    'spill_bytes': main.resources.spill_bytes,
                    'shared_bytes': max(k.shared_bytes for k in module.kernels),
                }

    def _compiled(
        self, side: Side, device: Device, futures: list[Future[Program]]
    ) -> list[Program] | None:
        """All programs of a side, or none of them and the reason."""
        refused = [e for f in futures if (e := f.exception()) is not None]
        if not refused:
            return [future.result() for future in futures]
        for future in futures:
            if future.exception() is None:
                device.unload(future.result())
        if not isinstance(refused[0], TilewrightError):
            raise refused[0]
        side.message = str(refused[0])
        return None

    def _list(self, sides: list[Side], listings: str) -> None:
        for side in sides:
            if listings and side.runtime == 'opencl' and side.loaded is not None:
                for call in side.loaded.calls:
                    text = side.device.listing(call.program)  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
                    Path(f'{listings}-{side.name}.ptx').write_text(text)

    def _arrays(self, side: Side) -> dict[str, NDArray]:
        return self.shared if side.device is self.device else self.beside

    def _check(self, side: Side) -> None:
        if side.loaded is None or side.device is None:
            return
        out = self._arrays(side)[self.problem.output.name]
        try:
            side.device.write(out, self.poison)
            for call in side.loaded.calls:
                side.device.launch(call)
            verdict = self.judge.verdict(side.device.download(out))
        except TilewrightError as error:
            side.message = str(error)
            return
        side.status, side.message = verdict['status'], verdict['message']
        side.said['max_rel_err'] = verdict['max_rel_err']

    def _turn(self, side: Side, count: int) -> None:
        if side.status != 'ok' or side.device is None or side.loaded is None:
            return
        try:
            taken = per_launch(side.device, side.loaded.calls, count)
            if side.device is self.device:
                taken['graph'] = side.device.time(side.loaded.calls, GRAPH_REPEATS)
        except TilewrightError as error:
            side.status, side.message = 'failed', str(error)
            return
        for kind, seconds in taken.items():
            side.us.setdefault(kind, []).append([1e6 * s for s in seconds])

    def _setting(self, one: dict) -> dict:
        """A parameter setting on this problem: checked, timed by the graph."""
        answer: dict = {'status': 'failed'}
        with suppress(TilewrightError):
            answer = self.attempt(one['schedule'], one['files'], repeats=GRAPH_REPEATS)
        samples = [1e3 * ms for ms in answer.get('samples_ms', ())]
        us = float(np.median(samples)) if samples and answer['status'] == 'ok' else None
        return {'schedule': one['schedule'], 'status': answer['status'], 'us': us}


if __name__ == '__main__':
    serve(RuntimesSession, sys.argv[1:])
