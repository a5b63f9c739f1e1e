"""The OpenCL backend: PoCL on a CPU, or any vendor's GPU (runtime/opencl_api.py finds them)."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from ctypes import byref, c_size_t, c_void_p
from typing import Any

import numpy as np

from tilewright.codegen.gpu.dialect_opencl import NVIDIA_OPENCL, OPENCL
from tilewright.codegen.gpu.language import Kernel, lower
from tilewright.errors import CompilerError, MissingError, StoreError
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.runtime import opencl_api as cl
from tilewright.runtime.device import NUMPY, Call, Device, NDArray, Program, Resources
from tilewright.runtime.opencl_api import Api, Handle, OpenCLError

BATCH = 20  # launches of one timed repeat, queued without waiting in between


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
    """One OpenCL device; `name` is any part of 'platform: device'."""

    def __init__(self, name: str = '') -> None:
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
        nvidia = 'nvidia' in vendor.lower()
        self.dialect = NVIDIA_OPENCL if nvidia else OPENCL
        self.machine = _machine(self.api, self.device, nvidia)
        places = (c_void_p * 1)(self.device)
        self.context = self.api.make(
            'CreateContext', 'ReleaseContext', None, 1, places, None, None
        )  # fmt: skip
        self.queue = self.api.make(
            'CreateCommandQueue', 'ReleaseCommandQueue', self.context.value, self.device,
            cl.PROFILING,
        )  # fmt: skip

    def compile(self, kernel: Kernel) -> Program:
        self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        source = lower(kernel, self.dialect)
        text = source.encode()
        program = self.api.make(
            'CreateProgramWithSource', 'ReleaseProgram', self.context.value, 1,
            byref(ctypes.c_char_p(text)), byref(c_size_t(len(text))),
        )  # fmt: skip
        try:
            places = (c_void_p * 1)(self.device)
            self.api.call('BuildProgram', program.value, 1, places, b'', None, None)
        except OpenCLError:
            log = self.api.text('GetProgramBuildInfo', program.value, self.device, cl.BUILD_LOG)
            raise CompilerError(
                f'{self.name} refused kernel {kernel.name}: {complaint(log, source)}'
            ) from None
        made = self.api.make(
            'CreateKernel', 'ReleaseKernel', program.value, kernel.name.encode()
        )  # fmt: skip
        return Program(kernel, source, Resources(), made)

    def unload(self, program: Program) -> None:
        program.handle.release()

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        size = max(4 * int(np.prod(sizes, dtype=np.int64)), 4)
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

    def free(self, array: NDArray) -> None:
        array.memory.release()

    def write(self, array: NDArray, values: np.ndarray) -> None:
        self._copy('EnqueueWriteBuffer', array, np.ascontiguousarray(values, NUMPY[array.dtype]))

    def download(self, array: NDArray) -> np.ndarray:
        values = np.empty(array.sizes, NUMPY[array.dtype])
        self._copy('EnqueueReadBuffer', array, values)
        return values

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
        """Each repeat: `BATCH` times all calls, queued at once, from the first start to the last
        end by the device's clock.
        """
        # A kernel whose arguments never change is bound once: the queue must not wait for us.
        alone = len({id(call.program) for call in calls}) == len(calls)
        bound = [self._bind(call) for call in calls]
        seconds = []
        for _ in range(repeats + 1):
            events = []
            last = BATCH * len(calls) - 1
            for number in range(last + 1):
                place = number % len(calls)
                wanted = c_void_p() if number in (0, last) else None
                launch = bound[place] if alone else self._bind(calls[place])
                target = None if wanted is None else byref(wanted)
                self._call('EnqueueNDRangeKernel', *launch, target, doing=' while timing')
                if wanted is not None:
                    events.append(wanted)
            self.synchronize()
            begin = self._stamp(events[0], cl.COMMAND_START)
            seconds.append((self._stamp(events[-1], cl.COMMAND_END) - begin) * 1e-9 / BATCH)
            for event in events:
                self._call('ReleaseEvent', event)
        return seconds[1:]  # the first one is a warm-up

    def _stamp(self, event: c_void_p, which: int) -> int:
        return self.api.number('GetEventProfilingInfo', event, which)


def _machine(api: Api, device: int, nvidia: bool) -> GpuMachine:
    """Queried where OpenCL tells; the rest from the nearest known machine."""

    def ask(what: int) -> int:
        return api.number('GetDeviceInfo', device, what)

    base = known_gpu('h200' if nvidia else 'pocl').to_json()
    base |= {
        'name': api.text('GetDeviceInfo', device, cl.DEVICE_NAME),
        'multiprocessors': ask(cl.MAX_COMPUTE_UNITS),
        'threads_per_block': ask(cl.MAX_WORK_GROUP_SIZE),
        'shared_bytes_per_block': ask(cl.LOCAL_MEM_SIZE),
        'clock_ghz': max(ask(cl.MAX_CLOCK), 1) / 1e3,
    }
    return GpuMachine.from_json(base)


def complaint(log: str, source: str) -> str:
    """The first error of a compiler's log, with the source line that it is about."""
    match = re.search(r':(\d+):(\d+:)?\s*(?:fatal )?error:?\s*(.+)', log)
    match = match or re.search(r'\((\d+)\)()\s*: error:?\s*(.+)', log)
    match = match or re.search(r'error: \S*?:(\d+):(\d+):\s*(.+)', log)  # PoCL
    if not match:
        return log.strip().splitlines()[-1] if log.strip() else 'no message'
    lines = source.splitlines()
    number = int(match[1])
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ''
    return f'line {number}: {match[3].strip()}: {line}'
