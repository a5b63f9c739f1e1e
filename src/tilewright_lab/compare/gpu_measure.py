"""Units of a GPU data set, compiled in one process and measured in another.

Goes in: `Unit`s (tilewright_lab/collect/problems.py) of one problem. `compile_units` makes machine
code, all of it by one run of the compiler, and needs no GPU, so it runs in as many processes as
there are cores; `Meter` loads, checks and times on the device. Where schedules differ in their
split alone, they share their kernels, and parts get their share at the call.

Each schedule is checked once: the result starts as NaN, and elements that differ from those of
the definition are counted on the device. Times (tilewright_lab/compare/gpu_timing.py) are of a
whole call, every kernel that it needs included; inputs and weights are those of the call before, so
in L2 where they fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from tilewright.errors import ScheduleError, TilewrightError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Buffer
from tilewright.kernels.gpu.precision import LARGEST_ERROR
from tilewright.kernels.gpu.schemas.cnnopt import code as cnnopt
from tilewright.kernels.gpu.schemas.cnnopt.plan import plan
from tilewright.runtime.gpu.device import NUMPY, Call, Device, NDArray, Program, Resources
from tilewright.runtime.verify import random_arrays, scale_of
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.problems import Problem, Unit
from tilewright_lab.compare.gpu_timing import GraphTimer
from tilewright_lab.peers.gpu_oracle import COUNT_THREADS, NAN_BITS, compare, direct, poison

LOOSE = ('rs', 's')  # schemas whose kernels take their share at the call
Of = TypeVar('Of')
TOLERANCE = LARGEST_ERROR  # as in runtime/verify.py; products are in fp32 or as exact


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a compiled unit with its buffers and numbers."""

    kernel: int
    buffers: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, int], ...] = ()
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One schedule of a unit: what a call launches, and which of its kernels is the main one."""

    schedule: GpuSchedule
    steps: tuple[Launch, ...]
    main: int


@dataclass(frozen=True, slots=True)
class Part:
    """One unit: its buffers, what runs ahead, its schedules."""

    buffers: tuple[Buffer, ...]
    ahead: tuple[Launch, ...]
    variants: tuple[Variant, ...]


@dataclass(frozen=True, slots=True)
class Compiled(Generic[Of]):
    """Machine code of some units of a problem, or of some families of a group (by its digest);
    `refused` are schedules with the sentence that says why.
    """

    of: Of
    binary: bytes
    kernels: tuple[tuple[Kernel, Resources], ...]
    parts: tuple[Part, ...]
    refused: tuple[tuple[GpuSchedule, str], ...] = ()

    @property
    def schedules(self) -> list[GpuSchedule]:
        made = [variant.schedule for part in self.parts for variant in part.variants]
        return [*(schedule for schedule, _ in self.refused), *made]

    def smaller(self) -> list[Compiled[Of]]:
        """The same, unit by unit, or schedule by schedule where there is one unit."""
        if len(self.parts) > 1:
            pieces = [(part,) for part in self.parts]
        else:
            pieces = [(replace(p, variants=(v,)),) for p in self.parts for v in p.variants]
        return [replace(self, parts=piece, refused=()) for piece in pieces]


def add_buffers(device: Device, part: Part, arrays: dict[str, NDArray]) -> None:
    """Buffers of a part that are not among the arrays yet; those that count arrivals are zero."""
    for buffer in part.buffers:
        if buffer.name not in arrays:
            arrays[buffer.name] = device.empty(buffer.dims, buffer.sizes, buffer.dtype)
            if buffer.zeroed:
                device.write(arrays[buffer.name], np.zeros(buffer.sizes, NUMPY[buffer.dtype]))


def free_buffers(
    device: Device, kept: Mapping[str, NDArray], arrays: Mapping[str, NDArray]
) -> None:
    """Give back all arrays but those that are kept."""
    for name, array in arrays.items():
        if name not in kept:
            device.free(array)


Translate = Callable[[Sequence[Kernel]], tuple[bytes, Mapping[str, Resources]]]


class _Kernels:
    """Distinct kernels of a compilation, each under a name of its own."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.places: dict[Kernel, int] = {}

    def place(self, kernel: Kernel) -> int:
        return self.places.setdefault(kernel, len(self.places))

    @property
    def named(self) -> list[Kernel]:
        return [replace(k, name=f'{self.prefix}{k.name}_{i}') for k, i in self.places.items()]


def compile_units(
    units: Sequence[Unit], translate: Translate, prefix: str = ''
) -> list[Compiled[Problem]]:  # fmt: skip
    """[Unit] -> [Compiled]; schedules that cannot be generated or compiled are `refused`.

    One compilation for all units; where it fails, one for each. Names of kernels begin with
    `prefix`.
    """
    problem = units[0].problem
    kernels = _Kernels(prefix)
    parts, refused, made = [], [], []
    for unit in units:
        try:
            loose = unit.schedules[0].schema in LOOSE
            parts.append((_loose_part if loose else _plain_part)(unit, kernels))
            made.append(unit)
        except TilewrightError as error:
            refused += [(schedule, str(error)) for schedule in unit.schedules]
    if not parts:
        return [Compiled(problem, b'', (), (), tuple(refused))]
    named = kernels.named
    try:
        binary, resources = translate(named)
    except TilewrightError as error:
        said = tuple((s, str(error)) for u in made for s in u.schedules)
        if len(made) == 1:
            return [Compiled(problem, b'', (), (), (*refused, *said))]
        alone = [one for unit in made for one in compile_units((unit,), translate, prefix)]
        return [*alone, *([Compiled(problem, b'', (), (), tuple(refused))] if refused else [])]
    taken = tuple((kernel, resources[kernel.name]) for kernel in named)
    return [Compiled(problem, binary, taken, tuple(parts), tuple(refused))]


def _plain_part(unit: Unit, kernels: _Kernels) -> Part:
    (schedule,) = unit.schedules
    module = generate(unit.problem.group, schedule)
    ahead = tuple(Launch(kernels.place(step.kernel), step.buffers) for step in module.ahead)
    steps = tuple(Launch(kernels.place(step.kernel), step.buffers) for step in module.steps)
    return Part(module.buffers, ahead, (Variant(schedule, steps, steps[0].kernel),))


def _loose_part(unit: Unit, kernels: _Kernels) -> Part:
    """One kernel for the schedule without a split, and one for all others."""
    group = unit.problem.group
    variants: list[Variant] = []
    buffers: dict[str, Buffer] = {}
    ahead: tuple[Launch, ...] = ()
    for schedule in unit.schedules:
        p, module = plan(group, schedule), generate(group, schedule)
        if any(step.kernel.name == 'cnnopt_join' for step in module.steps):
            raise ScheduleError('a second pass has its split in its source; measure it alone')
        buffers |= {buffer.name: buffer for buffer in module.buffers}
        ahead = tuple(Launch(kernels.place(step.kernel), step.buffers) for step in module.ahead)
        steps = []
        main = -1
        for step in module.steps:
            if step.kernel.name.startswith('cnnopt'):
                steps.append(Launch(kernels.place(step.kernel), step.buffers))
                continue
            loose = replace(cnnopt.main_kernel(p, loose=True), grid=(*p.grid[:2], 1))
            main = kernels.place(loose)
            steps.append(Launch(main, step.buffers, (('share', p.share),), p.grid))
        variants.append(Variant(schedule, tuple(steps), main))
    return Part(tuple(buffers.values()), ahead, tuple(variants))


def cubins(architecture: str) -> Translate:
    """Translate by NVRTC."""
    from tilewright.runtime.gpu.cuda import compile_cubins

    def translate(kernels: Sequence[Kernel]) -> tuple[bytes, Mapping[str, Resources]]:
        binary, _, resources = compile_cubins(kernels, architecture)
        return binary, resources

    return translate


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. status: ok, wrong, refused; time_us is of a whole call."""

    problem: Problem
    schedule: GpuSchedule
    status: str
    time_us: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None


class Meter:
    """A device with the tensors of one problem at a time.

    `load(binary, kernels)` gives programs, `unload(programs)` takes them back; `seconds(calls)` is
    the time of a call.
    """

    def __init__(
        self, device: Device,
        load: Callable[[bytes, Sequence[tuple[Kernel, Resources]]], list[Program]],
        unload: Callable[[list[Program]], None], seconds: Callable[[Sequence[Call]], float],
    ) -> None:  # fmt: skip
        self.device, self.load, self.unload, self.seconds = device, load, unload, seconds
        self.problem: Problem | None = None
        self.tensors: dict[str, NDArray] = {}
        self.wanted: NDArray | None = None
        self.scale, self.elements = 0.0, 1
        self.count = device.upload(np.zeros(1, np.int32), ('i',))
        self.direct, self.poison, self.compare = (
            device.compile(kernel) for kernel in (direct(), poison(), compare())
        )

    def measure(self, compiled: Compiled[Problem]) -> Iterator[Row]:
        """Rows of some units, in the order of their schedules."""
        problem = compiled.of
        yield from (Row(problem, schedule, 'refused') for schedule, _ in compiled.refused)
        if not compiled.parts:
            return
        self._prepare(problem)
        fitting, places = [], {}
        for number, (kernel, resources) in enumerate(compiled.kernels):
            with suppress(ScheduleError):  # more registers or shared memory than the device has
                self.device.machine.fits(
                    kernel.name, kernel.threads, kernel.shared_bytes, resources.registers
                )
                places[number] = len(fitting)
                fitting.append((kernel, resources))
        programs = self.load(compiled.binary, fitting)
        at = {number: programs[place] for number, place in places.items()}
        try:
            for part in compiled.parts:
                yield from self._part(problem, part, at)
        finally:
            self.unload(programs)

    def _part(self, problem: Problem, part: Part, programs: Mapping[int, Program]) -> Iterator[Row]:
        arrays = dict(self.tensors)
        try:
            add_buffers(self.device, part, arrays)
            for launch in part.ahead:
                self.device.launch(_call(launch, programs, arrays))
            for variant in part.variants:
                if any(launch.kernel not in programs for launch in variant.steps):
                    yield Row(problem, variant.schedule, 'refused')
                else:
                    yield self._variant(problem, variant, programs, arrays)
        finally:
            free_buffers(self.device, self.tensors, arrays)

    def _variant(
        self, problem: Problem, variant: Variant, programs: Mapping[int, Program],
        arrays: dict[str, NDArray],
    ) -> Row:  # fmt: skip
        calls = [_call(launch, programs, arrays) for launch in variant.steps]
        resources = programs[variant.main].resources
        taken = (resources.registers, resources.spill_bytes)
        self._poison()
        for call in calls:
            self.device.launch(call)
        if self._wrong():
            return Row(problem, variant.schedule, 'wrong', None, *taken)
        return Row(problem, variant.schedule, 'ok', 1e6 * self.seconds(calls), *taken)

    def _prepare(self, problem: Problem) -> None:
        """Tensors of a problem, and the result to compare with."""
        if problem == self.problem:
            return
        for array in (*self.tensors.values(), *((self.wanted,) if self.wanted else ())):
            self.device.free(array)
        group = problem.group
        values = random_arrays(group, 1)
        self.tensors = {
            t.name: self.device.upload(values[t.name], t.dims)
            for t in group.tensors
            if t.role in ('input', 'constant')
        }
        out = group.output
        self.tensors[out.name] = self.device.empty(out.dims, out.shape)
        self.problem, self.elements = problem, math.prod(out.shape)
        numbers = {'stride': problem.stride, 'pad': problem.pad}
        self.device.launch(Call(self.direct, self.tensors | numbers, self._grid()))
        result = self.tensors[out.name].numpy()
        self.scale = scale_of(result)
        self.wanted = self.device.upload(result, out.dims)

    def _grid(self) -> tuple[int, int, int]:
        return -(-self.elements // COUNT_THREADS), 1, 1

    def _flat(self, array: NDArray) -> NDArray:
        return replace(array, dims=('i',), sizes=(self.elements,))

    def _poison(self) -> None:
        result = self._flat(self.tensors['Out'])
        self.device.launch(Call(self.poison, {'result': result, 'bits': NAN_BITS}, self._grid()))

    def _wrong(self) -> int:
        """Elements that differ by more than the limit, NaN among them."""
        assert self.wanted is not None
        self.device.write(self.count, np.zeros(1, np.int32))
        values = {
            'result': self._flat(self.tensors['Out']), 'wanted': self._flat(self.wanted),
            'limit': TOLERANCE, 'scale': self.scale, 'wrong': self.count,
        }  # fmt: skip
        self.device.launch(Call(self.compare, values, self._grid()))
        return int(self.count.numpy()[0])


def _call(launch: Launch, programs: Mapping[int, Program], arrays: dict[str, NDArray]) -> Call:
    values: dict[str, NDArray | int | float] = {
        name: arrays[buffer] for name, buffer in launch.buffers
    }
    values |= dict(launch.numbers)
    return Call(programs[launch.kernel], values, launch.grid)


def cuda_meter() -> Meter:
    """A meter on the CUDA device."""
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

    return Meter(device, load, unload, GraphTimer(device))


def host_meter() -> Meter:
    """A meter on the host's dialect: right or wrong is as on a GPU, times mean nothing."""
    from tilewright.runtime.gpu.hosted import HostDevice

    device = HostDevice()

    def load(binary: bytes, kernels: Sequence[tuple[Kernel, Resources]]) -> list[Program]:
        return [replace(device.compile(kernel), resources=taken) for kernel, taken in kernels]

    return Meter(device, load, lambda _: None, lambda calls: device.time(calls, 1)[0])
