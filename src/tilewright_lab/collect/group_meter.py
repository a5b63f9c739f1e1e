"""Fused groups on a device: inputs and references that stay there, schedules checked and timed.

Goes in: `Compiled` families (tilewright_lab/collect/group_code.py). Comes out: a `GroupRow` for
each schedule. A group's reference is computed in float64 by the host, once; results are compared
with it on the device, after the output was poisoned. Groups stay on the device, so that turns may
mix them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.module import with_own_dims
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.cuda import CudaDevice, checked
from tilewright.runtime.gpu.cuda_graph import captured, stopwatch
from tilewright.runtime.gpu.device import Call, NDArray, Program
from tilewright.runtime.verify import random_arrays, scale_of
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.gpu_measure import (
    TOLERANCE,
    Compiled,
    Launch,
    Meter,
    Part,
    Variant,
    add_buffers,
    free_buffers,
)
from tilewright_lab.compare.gpu_timing import COPIES, LONG_S, REPLAYS, TARGET_S
from tilewright_lab.peers.gpu_oracle import COUNT_THREADS, NAN_BITS


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One measurement. status: ok, wrong, refused, crashed; time_us is of a whole call."""

    digest: str
    schedule: GpuSchedule
    status: str
    time_us: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Present:
    """A group on the device: its tensors, and what comes out of it."""

    tensors: Mapping[str, NDArray]
    result: NDArray
    wanted: NDArray
    scale: float


class GroupMeter:
    """A device with the groups that were measured on it; `seconds(calls)` is the time of a call."""

    def __init__(
        self, meter: Meter, groups: Mapping[str, Group],
        seconds: Callable[[Sequence[Call]], float] | None = None,
    ) -> None:  # fmt: skip
        """`meter` opens the device and has the kernels that check; its own timer by default."""
        self.meter, self.device, self.groups = meter, meter.device, groups
        self.seconds = seconds or meter.seconds
        self.present: dict[str, _Present] = {}

    def measure(self, made: Compiled[str]) -> Iterator[GroupRow]:
        """Rows of some families, in the order of their schedules."""
        yield from (GroupRow(made.of, schedule, 'refused') for schedule, _ in made.refused)
        if not made.parts:
            return
        here = self._prepared(made.of)
        fitting, places = [], {}
        for number, (kernel, resources) in enumerate(made.kernels):
            with suppress(ScheduleError):  # more registers or shared memory than the device has
                self.device.machine.fits(
                    kernel.name, kernel.threads, kernel.shared_bytes, resources.registers
                )
                places[number] = len(fitting)
                fitting.append((kernel, resources))
        programs = self.meter.load(made.binary, fitting)
        at = {number: programs[place] for number, place in places.items()}
        try:
            for part in made.parts:
                yield from self._part(made.of, here, part, at)
        finally:
            self.meter.unload(programs)

    def _part(
        self, digest: str, here: _Present, part: Part, programs: Mapping[int, Program]
    ) -> Iterator[GroupRow]:
        arrays = dict(here.tensors)
        try:
            if any(launch.kernel not in programs for launch in part.ahead):
                yield from (GroupRow(digest, v.schedule, 'refused') for v in part.variants)
                return
            add_buffers(self.device, part, arrays)
            for launch in part.ahead:
                self.device.launch(_call(launch, programs, arrays))
            for variant in part.variants:
                if any(launch.kernel not in programs for launch in variant.steps):
                    yield GroupRow(digest, variant.schedule, 'refused')
                else:
                    yield self._variant(digest, here, variant, programs, arrays)
        finally:
            free_buffers(self.device, here.tensors, arrays)

    def _variant(
        self, digest: str, here: _Present, variant: Variant, programs: Mapping[int, Program],
        arrays: Mapping[str, NDArray],
    ) -> GroupRow:  # fmt: skip
        calls = [_call(launch, programs, arrays) for launch in variant.steps]
        resources = programs[variant.main].resources
        taken = (resources.registers, resources.spill_bytes)
        self._poison(here)
        for call in calls:
            self.device.launch(call)
        if self._wrong(here):
            return GroupRow(digest, variant.schedule, 'wrong', None, *taken)
        return GroupRow(digest, variant.schedule, 'ok', 1e6 * self.seconds(calls), *taken)

    def _prepared(self, digest: str) -> _Present:
        """The tensors of a group, and its reference; they stay."""
        if digest not in self.present:
            group = with_own_dims(self.groups[digest])
            values = random_arrays(group, 1)
            want = np.asarray(reference(group, values), np.float32)
            tensors = {
                t.name: self.device.upload(values[t.name], t.dims)
                for t in group.tensors
                if t.role in ('input', 'constant')
            }
            out = group.output
            tensors[out.name] = self.device.empty(out.dims, out.shape)
            self.present[digest] = _Present(
                tensors,
                _flat(tensors[out.name]),
                _flat(self.device.upload(want, out.dims)),
                scale_of(want),
            )
        return self.present[digest]

    def _poison(self, here: _Present) -> None:
        values = {'result': here.result, 'bits': NAN_BITS}
        self.device.launch(Call(self.meter.poison, values, _grid(here.result)))

    def _wrong(self, here: _Present) -> int:
        """Elements that differ by more than the limit, NaN among them."""
        count = self.meter.count
        self.device.write(count, np.zeros(1, np.int32))
        values = {
            'result': here.result, 'wanted': here.wanted, 'limit': TOLERANCE, 'scale': here.scale,
            'wrong': count,
        }  # fmt: skip
        self.device.launch(Call(self.meter.compare, values, _grid(here.result)))
        return int(count.numpy()[0])


def _flat(array: NDArray) -> NDArray:
    return replace(array, dims=('i',), sizes=(math.prod(array.sizes),))


def _grid(flat: NDArray) -> tuple[int, int, int]:
    return -(-flat.sizes[0] // COUNT_THREADS), 1, 1


def _call(launch: Launch, programs: Mapping[int, Program], arrays: Mapping[str, NDArray]) -> Call:
    values: dict[str, NDArray | int | float] = {
        name: arrays[buffer] for name, buffer in launch.buffers
    }
    values |= dict(launch.numbers)
    return Call(programs[launch.kernel], values, launch.grid)


class BusyTimer:
    """Seconds of calls on a device that is busy when the clock starts.

    Each sample is the second of two replays of a graph, which is queued while the first one runs:
    a host whose cores compile may be slow to start it, and that must not be measured.
    """

    def __init__(self, device: CudaDevice) -> None:
        self.device = device

    def __call__(self, calls: Sequence[Call]) -> float:
        """The calls have run before: their first run is not timed here."""
        cu, stream = self.device.cu, self.device.stream
        ready = [self.device.prepare(call) for call in calls]

        def once() -> None:
            for launch in ready:
                checked(cu.cuLaunchKernel(*launch.arguments))

        with stopwatch(cu, checked, stream) as seconds:
            alone = seconds(once)
            if alone > LONG_S:
                return statistics.median([alone, *(seconds(once) for _ in range(REPLAYS - 1))])
            copies = round(min(max(TARGET_S / max(alone, 1e-9), COPIES[0]), COPIES[1]))
            with captured(cu, checked, stream, ready, copies) as replay:
                samples = []
                for _ in range(REPLAYS):
                    replay()
                    samples.append(seconds(replay) / copies)
                return statistics.median(samples)
