"""The OpenCL backend, through pyopencl: PoCL on a CPU, or any vendor's GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen.gpu.dialect_opencl import NVIDIA_OPENCL, OPENCL
from tilewright.codegen.gpu.language import Kernel, lower
from tilewright.errors import CompilerError, MissingError, StoreError
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.runtime.device import NUMPY, Call, Device, NDArray, Program, Resources


def devices() -> list[str]:
    """Names of all OpenCL devices, 'platform: device' each; none where there is no driver."""
    return [f'{d.platform.name.strip()}: {d.name.strip()}' for d in _found(_import())]


def _import() -> Any:
    try:
        import pyopencl  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingError(
            "OpenCL needs pyopencl: pip install 'tilewright[opencl]', which brings PoCL as well"
        ) from None
    return pyopencl


def _found(cl: Any) -> list[Any]:
    try:
        return [d for platform in cl.get_platforms() for d in platform.get_devices()]
    except cl.LogicError:  # no platform at all
        return []


class OpenCLDevice(Device):
    """One OpenCL device; `name` is any part of 'platform: device'."""

    def __init__(self, name: str = '') -> None:
        self.cl = cl = _import()
        found = _found(cl)
        labels = [f'{d.platform.name.strip()}: {d.name.strip()}' for d in found]
        chosen = [i for i, label in enumerate(labels) if name.lower() in label.lower()]
        if not chosen:
            raise MissingError(
                f'no OpenCL device is called {name!r}; there are: {"; ".join(labels) or "none"}'
            )
        self.device = found[chosen[0]]
        self.name = labels[chosen[0]]
        nvidia = 'nvidia' in self.device.vendor.lower()
        self.dialect = NVIDIA_OPENCL if nvidia else OPENCL
        self.machine = _machine(cl, self.device, nvidia)
        self.context = cl.Context([self.device])
        self.queue = cl.CommandQueue(
            self.context, properties=cl.command_queue_properties.PROFILING_ENABLE
        )

    def compile(self, kernel: Kernel) -> Program:
        self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        source = lower(kernel, self.dialect)
        try:
            program = self.cl.Program(self.context, source).build()
        except self.cl.RuntimeError as error:
            raise CompilerError(
                f'{self.name} refused kernel {kernel.name}: {complaint(str(error), source)}'
            ) from None
        return Program(kernel, source, Resources(), self.cl.Kernel(program, kernel.name))

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        size = max(4 * int(np.prod(sizes, dtype=np.int64)), 4)
        try:
            memory = self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, size)
        except (self.cl.MemoryError, self.cl.LogicError):
            raise StoreError(f'{self.name} has no {size} bytes left; use smaller arrays') from None
        return NDArray(tuple(dims), tuple(sizes), dtype, self, memory)

    def write(self, array: NDArray, values: np.ndarray) -> None:
        self.cl.enqueue_copy(self.queue, array.memory, np.ascontiguousarray(values))

    def download(self, array: NDArray) -> np.ndarray:
        values = np.empty(array.sizes, NUMPY[array.dtype])
        self.cl.enqueue_copy(self.queue, values, array.memory)
        return values

    def _start(self, call: Call) -> Any:
        kernel = call.program.kernel
        values = self.check(call)
        grid = call.grid or kernel.grid
        size = (grid[0] * kernel.threads, grid[1], grid[2])
        try:
            return call.program.handle(self.queue, size, (kernel.threads, 1, 1), *values)
        except self.cl.Error as error:
            raise StoreError(f'{self.name} could not start {kernel.name}: {error}') from None

    def launch(self, call: Call) -> None:
        self._start(call)

    def synchronize(self) -> None:
        self.queue.finish()

    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        """From the start of the first kernel to the end of the last, by the device's clock."""
        seconds = []
        for _ in range(repeats):
            events = [self._start(call) for call in calls]
            events[-1].wait()
            seconds.append((events[-1].profile.end - events[0].profile.start) * 1e-9)
        return seconds


def _machine(cl: Any, device: Any, nvidia: bool) -> GpuMachine:
    """Queried where OpenCL tells; the rest from the nearest known machine."""
    base = known_gpu('h200' if nvidia else 'pocl').to_json()
    base |= {
        'name': device.name.strip(),
        'multiprocessors': device.max_compute_units,
        'threads_per_block': device.max_work_group_size,
        'shared_bytes_per_block': device.local_mem_size,
        'clock_ghz': max(device.max_clock_frequency, 1) / 1e3,
    }
    return GpuMachine.from_json(base)


def complaint(log: str, source: str) -> str:
    """The first error of a compiler's log, with the source line that it is about."""
    match = re.search(r':(\d+):(\d+:)?\s*(?:fatal )?error:?\s*(.+)', log)
    match = match or re.search(r'\((\d+)\)()\s*: error:?\s*(.+)', log)
    if not match:
        return log.strip().splitlines()[-1] if log.strip() else 'no message'
    lines = source.splitlines()
    number = int(match[1])
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ''
    return f'line {number}: {match[3].strip()}: {line}'
