"""Compiled schedules on a device: checked against what is right, then timed.

Goes in: `Compiled` families (tilewright_lab/collect/compiled.py), and a function that puts a
subject's tensors and the right result on the device (`Present`). Comes out: a `Row` for each
schedule. A result is poisoned before each run; elements that differ from what is right are counted
on the device. Times (tilewright_lab/collect/timing.py) are of a whole call, every kernel that it
needs included; inputs and weights are those of the call before, so in L2 where they fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.precision import LARGEST_ERROR
from tilewright.ops.group import Group
from tilewright.runtime.gpu.device import NUMPY, Call, Device, NDArray, Program, Resources
from tilewright.runtime.verify import random_arrays, scale_of
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.compiled import Compiled, Launch, Of, Part, Variant
from tilewright_lab.collect.oracle import COUNT_THREADS, NAN_BITS, compare, poison
from tilewright_lab.collect.timing import GraphTimer

TOLERANCE = LARGEST_ERROR  # as in runtime/verify.py; products are in fp32 or as exact


@dataclass(frozen=True, slots=True)
class Row(Generic[Of]):
    """One measurement. status: ok, wrong, refused, crashed; time_us is of a whole call."""

    of: Of
    schedule: GpuSchedule
    status: str
    time_us: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Present:
    """A subject on the device: its tensors, and what comes out of it; `result` is one of them."""

    tensors: Mapping[str, NDArray]
    result: NDArray
    wanted: NDArray
    scale: float

    @classmethod
    def of(cls, device: Device, group: Group, tensors: Mapping[str, NDArray], want: np.ndarray):
        """With `want` as the right result."""
        out = group.output
        wanted = device.upload(want, out.dims)
        return cls(tensors, _flat(tensors[out.name]), _flat(wanted), scale_of(want))


Prepare = Callable[[Device], Callable[[Of], Present]]


def placed(device: Device, group: Group) -> tuple[dict[str, NDArray], dict[str, np.ndarray]]:
    """(tensors on the device with room for the result, the random values of its inputs)."""
    values = random_arrays(group, 1)
    tensors = {
        t.name: device.upload(values[t.name], t.dims)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }
    out = group.output
    tensors[out.name] = device.empty(out.dims, out.shape)
    return tensors, values


class Meter(Generic[Of]):
    """A device with the subjects that are measured on it.

    load, unload   (binary, kernels) -> programs, and taking them back
    seconds        the time of a call
    prepare        puts a subject on the device
    stay           whether subjects stay on the device, so that turns may mix them; else one does
    """

    def __init__(
        self, device: Device,
        load: Callable[[bytes, Sequence[tuple[Kernel, Resources]]], list[Program]],
        unload: Callable[[list[Program]], None], seconds: Callable[[Sequence[Call]], float],
        prepare: Prepare[Of], stay: bool = False,
    ) -> None:  # fmt: skip
        self.device, self.load, self.unload, self.seconds = device, load, unload, seconds
        self.prepare, self.stay = prepare(device), stay
        self.present: dict[Of, Present] = {}
        self.count = device.upload(np.zeros(1, np.int32), ('i',))
        self.poison, self.compare = (device.compile(kernel) for kernel in (poison(), compare()))

    def measure(self, made: Compiled[Of]) -> Iterator[Row[Of]]:
        """Rows of some families, in the order of their schedules."""
        yield from (Row(made.of, schedule, 'refused') for schedule, _ in made.refused)
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
        programs = self.load(made.binary, fitting)
        at = {number: programs[place] for number, place in places.items()}
        try:
            for part in made.parts:
                yield from self._part(made.of, here, part, at)
        finally:
            self.unload(programs)

    def _part(
        self, of: Of, here: Present, part: Part, programs: Mapping[int, Program]
    ) -> Iterator[Row[Of]]:
        arrays = dict(here.tensors)
        try:
            if any(launch.kernel not in programs for launch in part.ahead):
                yield from (Row(of, variant.schedule, 'refused') for variant in part.variants)
                return
            self._add_buffers(part, arrays)
            for launch in part.ahead:
                self.device.launch(_call(launch, programs, arrays))
            for variant in part.variants:
                if any(launch.kernel not in programs for launch in variant.steps):
                    yield Row(of, variant.schedule, 'refused')
                else:
                    yield self._variant(of, here, variant, programs, arrays)
        finally:
            for name in arrays.keys() - here.tensors.keys():
                self.device.free(arrays[name])

    def _add_buffers(self, part: Part, arrays: dict[str, NDArray]) -> None:
        """Buffers that are not among the arrays yet; those that count arrivals are zero."""
        for buffer in part.buffers:
            if buffer.name not in arrays:
                arrays[buffer.name] = self.device.empty(buffer.dims, buffer.sizes, buffer.dtype)
                if buffer.zeroed:
                    zeros = np.zeros(buffer.sizes, NUMPY[buffer.dtype])
                    self.device.write(arrays[buffer.name], zeros)

    def _variant(
        self, of: Of, here: Present, variant: Variant, programs: Mapping[int, Program],
        arrays: Mapping[str, NDArray],
    ) -> Row[Of]:  # fmt: skip
        calls = [_call(launch, programs, arrays) for launch in variant.steps]
        resources = programs[variant.main].resources
        taken = (resources.registers, resources.spill_bytes)
        self._poison(here)
        for call in calls:
            self.device.launch(call)
        if self._wrong(here):
            return Row(of, variant.schedule, 'wrong', None, *taken)
        return Row(of, variant.schedule, 'ok', 1e6 * self.seconds(calls), *taken)

    def _prepared(self, of: Of) -> Present:
        """A subject's tensors and the right result on the device."""
        if of not in self.present:
            if not self.stay:
                for gone in self.present.values():
                    for array in (*gone.tensors.values(), gone.wanted):
                        self.device.free(array)
                self.present.clear()
            self.present[of] = self.prepare(of)
        return self.present[of]

    def _poison(self, here: Present) -> None:
        values = {'result': here.result, 'bits': NAN_BITS}
        self.device.launch(Call(self.poison, values, grid_of(here.result.sizes[0])))

    def _wrong(self, here: Present) -> int:
        """Elements that differ by more than the limit, NaN among them."""
        self.device.write(self.count, np.zeros(1, np.int32))
        values = {
            'result': here.result, 'wanted': here.wanted, 'limit': TOLERANCE, 'scale': here.scale,
            'wrong': self.count,
        }  # fmt: skip
        self.device.launch(Call(self.compare, values, grid_of(here.result.sizes[0])))
        return int(self.count.numpy()[0])


def _flat(array: NDArray) -> NDArray:
    return replace(array, dims=('i',), sizes=(math.prod(array.sizes),))


def grid_of(elements: int) -> tuple[int, int, int]:
    """Blocks of a kernel of oracle.py with a thread for each element."""
    return -(-elements // COUNT_THREADS), 1, 1


def _call(launch: Launch, programs: Mapping[int, Program], arrays: Mapping[str, NDArray]) -> Call:
    values: dict[str, NDArray | int | float] = {
        name: arrays[buffer] for name, buffer in launch.buffers
    }
    values |= dict(launch.numbers)
    return Call(programs[launch.kernel], values, launch.grid)


def cuda_meter(prepare: Prepare[Of], *, stay: bool = False, busy: bool = False) -> Meter[Of]:
    """A meter on the CUDA device; `busy` as in timing.py."""
    from tilewright.runtime.gpu.cuda import CudaDevice, checked

    device = CudaDevice()

    def load(binary: bytes, kernels: Sequence[tuple[Kernel, Resources]]) -> list[Program]:
        if not kernels:
            return []
        module = device.load_module(binary, kernels[0][0].name)
        return [device.function(module, kernel, '', taken) for kernel, taken in kernels]

    def unload(programs: list[Program]) -> None:
        for program in programs[:1]:  # one module holds them all
            checked(device.cu.cuModuleUnload(program.handle[0]))

    return Meter(device, load, unload, GraphTimer(device, busy), prepare, stay)


def host_meter(prepare: Prepare[Of], *, stay: bool = False) -> Meter[Of]:
    """A meter on the host's dialect: right or wrong is as on a GPU, times mean nothing."""
    from tilewright.runtime.gpu.hosted import HostDevice

    device = HostDevice()

    def load(binary: bytes, kernels: Sequence[tuple[Kernel, Resources]]) -> list[Program]:
        return [replace(device.compile(kernel), resources=taken) for kernel, taken in kernels]

    def seconds(calls: Sequence[Call]) -> float:
        return device.time(calls, 1)[0]

    return Meter(device, load, lambda _: None, seconds, prepare, stay)
