"""Units of a GPU data set, compiled in one process and measured in another.

Goes in: a `Unit` (bench/gpu_problems.py). `compile_unit` makes machine code and needs no GPU, so it
runs in as many processes as there are cores; `Meter` loads, checks and times on the device. Where
schedules differ in their split alone, they share their kernels, and parts get their share at the
call.

Each schedule is checked once: the result starts as NaN, and elements that differ from those of
the definition are counted on the device. Times (bench/gpu_timing.py) are of a whole call, every
kernel that it needs included; inputs and weights are those of the call before, so in L2 where they
fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tilewright.bench.gpu_problems import Problem, Unit
from tilewright.bench.gpu_timing import GraphTimer
from tilewright.codegen.gpu import cnnopt
from tilewright.codegen.gpu.cnnopt_plan import plan
from tilewright.codegen.gpu.generate import generate
from tilewright.codegen.gpu.language import Array, Kernel, Scalar
from tilewright.codegen.gpu.module import Buffer
from tilewright.errors import ScheduleError, TilewrightError
from tilewright.runtime.device import Call, Device, NDArray, Program, Resources
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

LOOSE = ('rs', 's')  # schemas whose kernels take their share at the call
TOLERANCE = 1e-4  # of the largest element; products are in fp32 or as exact
COUNT_THREADS = 256
NAN_BITS = 0x7FC00000


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a compiled unit with its buffers and numbers."""

    kernel: int
    buffers: tuple[tuple[str, str], ...]
    numbers: tuple[tuple[str, int], ...] = ()
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One schedule of a unit: what a call launches, and what the main kernel takes."""

    schedule: GpuSchedule
    steps: tuple[Launch, ...]
    main: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code of a unit; `refused` are schedules with the sentence that says why."""

    unit: Unit
    kernels: tuple[tuple[Kernel, bytes, Resources], ...]
    buffers: tuple[Buffer, ...]
    ahead: tuple[Launch, ...]
    variants: tuple[Variant, ...]
    refused: tuple[tuple[GpuSchedule, str], ...] = ()


Translate = Callable[[Kernel], tuple[bytes, Resources]]


def compile_unit(unit: Unit, translate: Translate) -> Compiled:
    """[Unit] -> [Compiled]; schedules that cannot be generated or compiled are `refused`."""
    try:
        if unit.schedules[0].schema in LOOSE:
            return _compile_loose(unit, translate)
        return _compile_plain(unit, translate)
    except TilewrightError as error:
        return Compiled(unit, (), (), (), (), tuple((s, str(error)) for s in unit.schedules))


def _compile_plain(unit: Unit, translate: Translate) -> Compiled:
    (schedule,) = unit.schedules
    module = generate(unit.problem.group, schedule)
    kernels = tuple((kernel, *translate(kernel)) for kernel in module.kernels)
    count = len(module.ahead)
    steps = [
        Launch(number, step.buffers) for number, step in enumerate((*module.ahead, *module.steps))
    ]
    variant = Variant(schedule, tuple(steps[count:]), count)
    return Compiled(unit, kernels, module.buffers, tuple(steps[:count]), (variant,))


def _compile_loose(unit: Unit, translate: Translate) -> Compiled:
    """One kernel for the schedule without a split, and one for all others."""
    group = unit.problem.group
    kernels: list[tuple[Kernel, bytes, Resources]] = []
    places: dict[Kernel, int] = {}

    def place(kernel: Kernel) -> int:
        if kernel not in places:
            places[kernel] = len(kernels)
            kernels.append((kernel, *translate(kernel)))
        return places[kernel]

    variants: list[Variant] = []
    buffers: dict[str, Buffer] = {}
    ahead: tuple[Launch, ...] = ()
    for schedule in unit.schedules:
        p, module = plan(group, schedule), generate(group, schedule)
        if any(step.kernel.name == 'cnnopt_join' for step in module.steps):
            raise ScheduleError('a second pass has its split in its source; measure it alone')
        buffers |= {buffer.name: buffer for buffer in module.buffers}
        ahead = tuple(Launch(place(step.kernel), step.buffers) for step in module.ahead)
        steps = []
        main = -1
        for step in module.steps:
            if step.kernel.name.startswith('cnnopt'):
                steps.append(Launch(place(step.kernel), step.buffers))
                continue
            loose = replace(cnnopt.main_kernel(p, loose=True), grid=(*p.grid[:2], 1))
            main = place(loose)
            steps.append(Launch(main, step.buffers, (('share', p.share),), p.grid))
        variants.append(Variant(schedule, tuple(steps), main))
    return Compiled(unit, tuple(kernels), tuple(buffers.values()), ahead, tuple(variants))


def cubin(architecture: str) -> Translate:
    """Translate by NVRTC; kernels that many units share are compiled once in a process."""
    from tilewright.runtime.cuda import compile_cubin

    @lru_cache(maxsize=256)
    def remembered(kernel: Kernel) -> tuple[bytes, Resources]:
        binary, _, resources = compile_cubin(kernel, architecture)
        return binary, resources

    def translate(kernel: Kernel) -> tuple[bytes, Resources]:
        if kernel.name.startswith(('rs_', 's_', 'tiled_conv', 'patch_conv')):
            binary, _, resources = compile_cubin(kernel, architecture)
            return binary, resources
        return remembered(kernel)

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

    `load(kernel, binary, resources)` gives a program, `seconds(calls)` the time of a call.
    """

    def __init__(
        self, device: Device, load: Callable[[Kernel, bytes, Resources], Program],
        unload: Callable[[Program], None], seconds: Callable[[Sequence[Call]], float],
        free: Callable[[NDArray], None],
    ) -> None:  # fmt: skip
        self.device, self.load, self.unload = device, load, unload
        self.seconds, self.free = seconds, free
        self.problem: Problem | None = None
        self.tensors: dict[str, NDArray] = {}
        self.wanted: NDArray | None = None
        self.limit, self.elements = 0.0, 1
        self.count = device.upload(np.zeros(1, np.int32), ('i',))
        self.direct, self.poison, self.compare = (
            device.compile(kernel) for kernel in (_direct(), _poison(), _compare())
        )

    def measure(self, compiled: Compiled) -> Iterator[Row]:
        """Rows of one unit, in the order of its schedules."""
        problem = compiled.unit.problem
        yield from (Row(problem, schedule, 'refused') for schedule, _ in compiled.refused)
        if not compiled.variants:
            return
        self._prepare(problem)
        arrays = dict(self.tensors)
        programs, own = [], []
        try:
            for kernel, binary, resources in compiled.kernels:
                programs.append(self.load(kernel, binary, resources))
            for buffer in compiled.buffers:
                if buffer.name not in arrays:
                    arrays[buffer.name] = self.device.empty(buffer.dims, buffer.sizes, buffer.dtype)
                    own.append(arrays[buffer.name])
                    if buffer.zeroed:
                        self.device.write(own[-1], np.zeros(buffer.sizes, np.int32))
            for launch in compiled.ahead:
                self.device.launch(_call(launch, programs, arrays))
            for variant in compiled.variants:
                yield self._variant(problem, variant, programs, arrays)
        except ScheduleError:  # more registers or shared memory than the device has
            yield from (Row(problem, v.schedule, 'refused') for v in compiled.variants)
        finally:
            for program in programs:
                self.unload(program)
            for array in own:
                self.free(array)

    def _variant(
        self, problem: Problem, variant: Variant, programs: list[Program],
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
            self.free(array)
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
        self.limit = TOLERANCE * float(np.abs(result).max())
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
            'limit': self.limit, 'wrong': self.count,
        }  # fmt: skip
        self.device.launch(Call(self.compare, values, self._grid()))
        return int(self.count.numpy()[0])


def _dynamic(name: str, dims: str, written: bool = False) -> Array:
    """An argument of any size: these kernels are compiled once for all problems."""
    return Array(name, tuple(dims), (1,) * len(dims), written=written, dynamic=True)


def _direct() -> Kernel:
    """The convolution by its definition: an oracle that shares nothing with the schemas."""
    body = f"""
const int point = BLOCK_X * {COUNT_THREADS} + THREAD;
const int x = point % @Out.size(w), y = point / @Out.size(w) % @Out.size(h);
const int k = point / (@Out.size(w) * @Out.size(h));
if (k >= @Out.size(k))
    return;
float sum = 0.0f;
for (int c = 0; c < @In.size(c); c++)
    for (int r = 0; r < @Ker.size(r); r++)
        for (int s = 0; s < @Ker.size(s); s++) {{
            const int i = y * stride - pad + r, j = x * stride - pad + s;
            if (i >= 0 && i < @In.size(h) && j >= 0 && j < @In.size(w))
                sum += @In[n=0, c=c, h=i, w=j] * @Ker[k=k, c=c, r=r, s=s];
        }}
@Out[n=0, k=k, h=y, w=x] = sum;
"""
    args = (
        _dynamic('In', 'nchw'), _dynamic('Ker', 'kcrs'), _dynamic('Out', 'nkhw', written=True),
        Scalar('stride'), Scalar('pad'),
    )  # fmt: skip
    return Kernel('direct', args, body, (1, 1, 1), COUNT_THREADS)


_POINT = f"""
const int i = BLOCK_X * {COUNT_THREADS} + THREAD;
if (i >= @result.size(i))
    return;
"""


def _poison() -> Kernel:
    """NaN everywhere, so that an element that is not written counts as wrong."""
    body = f'{_POINT}@result[i=i] = BITS_FLOAT((unsigned)bits);'
    args = (_dynamic('result', 'i', written=True), Scalar('bits'))
    return Kernel('poison', args, body, (1, 1, 1), COUNT_THREADS)


def _compare() -> Kernel:
    body = f'{_POINT}if (!(fabsf(@result[i=i] - @wanted[i=i]) <= limit))\n    ATOMIC_COUNT(@wrong);'
    args = (
        _dynamic('result', 'i'), _dynamic('wanted', 'i'), Scalar('limit', 'f32'),
        Array('wrong', ('i',), (1,), 'i32', written=True),
    )  # fmt: skip
    return Kernel('compare', args, body, (1, 1, 1), COUNT_THREADS)


def _call(launch: Launch, programs: list[Program], arrays: dict[str, NDArray]) -> Call:
    values: dict[str, NDArray | int | float] = {
        name: arrays[buffer] for name, buffer in launch.buffers
    }
    values |= dict(launch.numbers)
    return Call(programs[launch.kernel], values, launch.grid)


def cuda_meter() -> Meter:
    """A meter on the CUDA device."""
    from tilewright.runtime.cuda import CudaDevice

    device = CudaDevice()

    def load(kernel: Kernel, binary: bytes, resources: Resources) -> Program:
        return device.load(kernel, binary, '', resources)

    return Meter(device, load, device.unload, GraphTimer(device), device.free)
