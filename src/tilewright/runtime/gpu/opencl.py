"""The OpenCL backend: PoCL on a CPU, or any vendor's GPU (runtime/gpu/opencl_api.py finds them)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import byref, c_size_t, c_void_p
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tilewright.errors import CompilerError, MissingError, StoreError
from tilewright.kernels.gpu.dialects.nvidia import needs_own_target, nvidia_opencl
from tilewright.kernels.gpu.dialects.opencl import OPENCL
from tilewright.kernels.gpu.language import ALIGNED, Kernel, lower
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.machine.nvidia import nvidia_gpu
from tilewright.runtime.gpu import opencl_api as cl
from tilewright.runtime.gpu import opencl_nvidia as nv
from tilewright.runtime.gpu.batch import WARM_UP, Extents, opencl_batch
from tilewright.runtime.gpu.compilers import complaint, resources_of
from tilewright.runtime.gpu.device import NUMPY, Call, Device, NDArray, Program, Resources, bytes_of
from tilewright.runtime.gpu.opencl_api import Api, Handle, OpenCLError

BATCH = 20  # calls of one timed repeat, queued without waiting in between; fewer where
ENOUGH_S = 10e-3  # this much is enough


def _found() -> list[tuple[str, Api, int]]:
    """(label, functions, device) of everything there is."""
    return [
        (f'{platform.name}: {name}', platform.api, device)
        for platform in cl.platforms()
        for device, name in platform.devices
    ]


def devices() -> list[str]:
    """Names of all OpenCL devices, 'platform: device' each; none where there is no driver."""
    return [label for label, _, _ in _found()]


class OpenCLDevice(Device):
    """One OpenCL device; `name` is any part of 'platform: device'.

    `route` is how code for an NVIDIA device's own target gets there, if it does; it is found out
    unless it is given.
    """

    def __init__(self, name: str = '', route: nv.Route | None = None) -> None:
        found = _found()
        chosen = [one for one in found if name.lower() in one[0].lower()]
        if not found:
            raise MissingError(
                "there is no OpenCL driver on this machine; pip install 'tilewright[opencl]' "
                'brings PoCL, which runs on the CPU'
            )
        if not chosen:
            raise MissingError(
                f'no OpenCL device is called {name!r}; there are: '
                f'{"; ".join(label for label, _, _ in found)}'
            )
        self.name, self.api, self.device = chosen[0]
        vendor = self.api.text('GetDeviceInfo', self.device, cl.DEVICE_VENDOR)
        self.nvidia = 'nvidia' in vendor.lower()
        self.dialect, self.route = OPENCL, nv.Route()
        self.alignment = self.api.number('GetDeviceInfo', self.device, cl.BASE_ALIGNMENT) // 8
        self._start()
        if not self.nvidia:
            self.machine = _machine(self.api, self.device)
            return
        self.capability = nv.capability(self.api, self.device)
        if self.capability in nv.OWN_TARGETS:
            self.route = nv.asked(self.name) if route is None else route
        self.dialect = nvidia_opencl(self.capability, own_target=bool(self.route.name))
        self.machine = self._nvidia_machine()

    def _start(self) -> None:
        """A context with its queues: one that takes times, and one that does not lose any."""
        places = (c_void_p * 1)(self.device)
        self.context = self.api.make(
            'CreateContext', 'ReleaseContext', None, 1, places, None, None
        )  # fmt: skip
        self.queue, self.plain_queue = (
            self.api.make(
                'CreateCommandQueue', 'ReleaseCommandQueue', self.context.value, self.device, kind
            )
            for kind in (cl.PROFILING, 0)
        )

    def _nvidia_machine(self) -> GpuMachine:
        """What there is, and what OpenCL makes of it."""
        ask = partial(self.api.number, 'GetDeviceInfo', self.device)
        made = nvidia_gpu(
            self.api.text('GetDeviceInfo', self.device, cl.DEVICE_NAME), self.capability,
            ask(cl.MAX_COMPUTE_UNITS), max(ask(cl.MAX_CLOCK), 1) / 1e3,
            threads_per_block=ask(cl.MAX_WORK_GROUP_SIZE), l2_bytes=ask(cl.GLOBAL_CACHE_SIZE),
            shared_bytes_per_block=max(ask(cl.LOCAL_MEM_SIZE) - ALIGNED, self.route.shared_bytes),
        )  # fmt: skip
        there = set(made.instructions) & self.dialect.capabilities
        return replace(made, instructions=tuple(sorted(there)))

    def tried(self, kernel: Kernel, route: str) -> np.ndarray:
        """The result of a small kernel that gets here by a route."""
        self.dialect = nvidia_opencl(self.capability, own_target=True)
        self._start()  # a kernel that failed may have broken the context before
        source = lower(kernel, self.dialect)
        made = self._made(kernel, self._own(kernel, source, route))
        out = self.empty(('i',), (kernel.threads,))
        self.launch(Call(Program(kernel, source, Resources(), made), {'Out': out}))
        return self.download(out)

    def compile(self, kernel: Kernel) -> Program:
        self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        source = lower(kernel, self.dialect)
        if not self.nvidia:
            return self._program(kernel, source, self._build(kernel, source, ''))
        made = self._program(kernel, source, self._assembled(kernel, source))
        limit = nv.register_limit(kernel, made.resources.registers, self.machine)
        if limit is None:
            return made
        try:
            fewer = self._program(kernel, source, self._assembled(kernel, source, limit))
        except CompilerError:  # a driver that does not know the option
            return made
        if fewer.resources.spill_bytes != 0:
            self.unload(fewer)
            return made
        self.unload(made)
        return fewer

    def _program(self, kernel: Kernel, source: str, program: Handle) -> Program:
        log = self.api.text('GetProgramBuildInfo', program.value, self.device, cl.BUILD_LOG)
        return Program(kernel, source, resources_of(log), self._made(kernel, program))

    def _assembled(self, kernel: Kernel, source: str, registers: int | None = None) -> Handle:
        """A program for an NVIDIA device, with at most so many registers of a thread."""
        options = nv.VERBOSE + (f' {nv.REGISTERS}={registers}' if registers else '')
        if needs_own_target(kernel):
            return self._own(kernel, source, self.route.name, options)
        return self._build(kernel, source, options)

    def _made(self, kernel: Kernel, program: Handle) -> Handle:
        return self.api.make(
            'CreateKernel', 'ReleaseKernel', program.value, kernel.name.encode()
        )  # fmt: skip

    def _own(self, kernel: Kernel, source: str, route: str, options: str = nv.VERBOSE) -> Handle:
        """A program for an NVIDIA device's own target."""
        target = nv.OWN_TARGETS[self.capability]
        return nv.own_program(
            route, source, target, self.api, partial(self._build, kernel),
            partial(self._rebuild, kernel), options,
        )  # fmt: skip

    def _build(self, kernel: Kernel, source: str, options: str) -> Handle:
        text = source.encode()
        program = self.api.make(
            'CreateProgramWithSource', 'ReleaseProgram', self.context.value, 1,
            byref(ctypes.c_char_p(text)), byref(c_size_t(len(text))),
        )  # fmt: skip
        return self._built(kernel, program, source, options)

    def _rebuild(self, kernel: Kernel, binary: bytes, options: str) -> Handle:
        """A program from what a driver once gave, or what looks like it."""
        try:
            program = self.api.make(
                'CreateProgramWithBinary', 'ReleaseProgram', self.context.value, 1,
                (c_void_p * 1)(self.device), byref(c_size_t(len(binary))),
                byref(ctypes.c_char_p(binary)), byref(ctypes.c_int32()),
            )  # fmt: skip
        except OpenCLError as error:
            raise CompilerError(f'{self.name} refused kernel {kernel.name}: {error}') from None
        return self._built(kernel, program, '', options)

    def _built(self, kernel: Kernel, program: Handle, source: str, options: str) -> Handle:
        places = (c_void_p * 1)(self.device)
        try:
            self.api.call('BuildProgram', program.value, 1, places, options.encode(), None, None)
        except OpenCLError:
            log = self.api.text('GetProgramBuildInfo', program.value, self.device, cl.BUILD_LOG)
            raise CompilerError(
                f'{self.name} refused kernel {kernel.name}: {complaint(log, source)}'
            ) from None
        return program

    def listing(self, program: Program) -> str:
        """What a kernel was compiled to, where its driver keeps that as text; else nothing."""
        binary = self.api.binary(self._parent(program.handle).value)
        return binary.rstrip(b'\0').decode() if b'.version' in binary[:400] else ''

    def unload(self, program: Program) -> None:
        program.handle.release()

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        size = max(bytes_of(sizes, dtype), 4)
        try:
            memory = self.api.make(
                'CreateBuffer', 'ReleaseMemObject', self.context.value, cl.READ_WRITE, size, None
            )
        except OpenCLError as error:
            if error.name in cl.NO_MEMORY:
                raise StoreError(
                    f'{self.name} has no {size} bytes left; use smaller arrays'
                ) from None
            raise
        return NDArray(tuple(dims), tuple(sizes), dtype, self, memory)

    def part(
        self, whole: NDArray, offset: int, dims: Sequence[str], sizes: Sequence[int], dtype: str
    ) -> NDArray:
        region = (c_size_t * 2)(offset, max(bytes_of(sizes, dtype), 1))
        memory = self.api.make(
            'CreateSubBuffer', 'ReleaseMemObject', whole.memory.value, cl.READ_WRITE, cl.REGION,
            region,
        )  # fmt: skip
        return NDArray(tuple(dims), tuple(sizes), dtype, self, memory)

    def free(self, array: NDArray) -> None:
        array.memory.release()

    def write(self, array: NDArray, values: np.ndarray) -> None:
        self._copy('EnqueueWriteBuffer', array, np.ascontiguousarray(values, NUMPY[array.dtype]))

    def download(self, array: NDArray) -> np.ndarray:
        values = np.empty(array.sizes, NUMPY[array.dtype])
        self._copy('EnqueueReadBuffer', array, values)
        return values

    def read(self, array: NDArray, into: np.ndarray) -> None:
        self._copy('EnqueueReadBuffer', array, into)

    def _copy(self, function: str, array: NDArray, values: np.ndarray) -> None:
        place = c_void_p(values.ctypes.data)
        self._call(
            function, self.queue.value, array.memory.value, 1, 0, values.nbytes, place, 0, None,
            None,
        )  # fmt: skip

    def _call(self, function: str, *values: Any, doing: str = '') -> None:
        try:
            self.api.call(function, *values)
        except OpenCLError as error:
            raise StoreError(f'{self.name} failed{doing}: {error}') from None

    def _bind(self, call: Call) -> tuple[Any, ...]:
        """Arguments of a launch, those of the kernel set. They stay set until the next binding."""
        kernel, handle = call.program.kernel, call.program.handle.value
        doing = f' while starting {kernel.name}'
        for number, value in enumerate(self.check(call)):
            if isinstance(value, Handle):
                holder: Any = c_void_p(value.value)
                size = ctypes.sizeof(holder)
            else:
                holder = c_void_p((kept := np.array([value])).ctypes.data)
                size = kept.nbytes
            place = holder if not isinstance(value, Handle) else byref(holder)
            self._call('SetKernelArg', handle, number, size, place, doing=doing)
        grid = call.grid or kernel.grid
        whole = (c_size_t * 3)(grid[0] * kernel.threads, grid[1], grid[2])
        block = (c_size_t * 3)(kernel.threads, 1, 1)
        return self.queue.value, handle, 3, None, whole, block, 0, None

    def launch(self, call: Call) -> None:
        doing = f' while starting {call.program.kernel.name}'
        self._call('EnqueueNDRangeKernel', *self._bind(call), None, doing=doing)

    def synchronize(self) -> None:
        self._call('Finish', self.queue.value, doing=' in a kernel that ran before')

    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        """Each repeat: up to `BATCH` times all calls, queued at once, from the first start to the
        last end by the device's clock.
        """
        launches = self.bound(calls)
        # The first batch is a warm-up, and says how many of the others are enough.
        once = self._batch(self.plain_queue, launches, 2) / 2
        count = round(min(max(ENOUGH_S / once, 2), BATCH))
        seconds = []
        for _ in range(repeats):
            ends = c_void_p(), c_void_p()
            self._batch(self.queue, launches, count, ends)
            begin = self._stamp(ends[0], cl.COMMAND_START)
            seconds.append((self._stamp(ends[1], cl.COMMAND_END) - begin) * 1e-9 / count)
            for event in ends:
                self._call('ReleaseEvent', event)
        return seconds

    def batched(self, calls: Sequence[Call], count: int, repeats: int) -> list[float]:
        launches = self.bound(calls)
        self._batch(self.plain_queue, launches, min(count, WARM_UP))
        return [
            self._batch(self.plain_queue, launches, count) / count for _ in range(repeats)
        ]  # fmt: skip

    def bound(self, calls: Sequence[Call]) -> list[tuple[Handle, Extents, Extents]]:
        """Kernels with their arguments bound, each call's its own: bindings last."""
        self.synchronize()
        launches, taken = [], set()
        for call in calls:
            program = call.program
            if id(program.handle) in taken:
                made = self._made(program.kernel, self._parent(program.handle))
                call = replace(call, program=replace(program, handle=made))
            taken.add(id(call.program.handle))
            _, _, _, _, whole, block, _, _ = self._bind(call)
            launches.append((call.program.handle, tuple(whole), tuple(block)))
        return launches

    def _parent(self, kernel: Handle) -> Handle:
        """The program of a kernel; the kernel keeps it alive, so nobody gives it back here."""
        value = self.api.number('GetKernelInfo', kernel.value, cl.KERNEL_PROGRAM)
        return Handle(value, lambda _: 0)

    def _batch(
        self, queue: Handle, launches: list[tuple[Handle, Extents, Extents]], count: int,
        ends: tuple[c_void_p, c_void_p] | None = None,
    ) -> float:  # fmt: skip
        functions = self.api.address('EnqueueNDRangeKernel'), self.api.address('Finish')
        plain = [(kernel.value, whole, block) for kernel, whole, block in launches]
        return opencl_batch(functions, queue.value, plain, count, ends)

    def _stamp(self, event: c_void_p, which: int) -> int:
        return self.api.number('GetEventProfilingInfo', event, which)


def _machine(api: Api, device: int) -> GpuMachine:
    """Queried where OpenCL tells; the rest is that of PoCL's device, and `assumed` says so."""
    ask = partial(api.number, 'GetDeviceInfo', device)
    threads = ask(cl.MAX_WORK_GROUP_SIZE)
    told = {
        'name': api.text('GetDeviceInfo', device, cl.DEVICE_NAME),
        'multiprocessors': ask(cl.MAX_COMPUTE_UNITS),
        'threads': threads,
        'threads_per_block': threads,
        'shared_bytes': ask(cl.LOCAL_MEM_SIZE),
        'shared_bytes_per_block': ask(cl.LOCAL_MEM_SIZE),
        'clock_ghz': max(ask(cl.MAX_CLOCK), 1) / 1e3,
        'l2_bytes': ask(cl.GLOBAL_CACHE_SIZE) or known_gpu('pocl').l2_bytes,
    }
    return replace(
        known_gpu('pocl'), **told,
        assumed=('fp32_lanes', 'global_gbps', 'l2_gbps', 'registers', 'shared_gbps'),
    )  # fmt: skip
