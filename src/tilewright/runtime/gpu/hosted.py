"""The host backend: kernels in the C dialect, run on the CPU by runtime/hosted.c.

For tests on machines without any GPU or OpenCL, and to see a kernel under a C debugger. Arrays end
at a guard page, so that an access behind one stops the process instead of giving a wrong result.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from tilewright.errors import CheckError, StoreError
from tilewright.kernels.gpu.dialects.host import HOST
from tilewright.kernels.gpu.dialects.table import Dialect
from tilewright.kernels.gpu.language import Kernel, lower
from tilewright.machine.compiler import build
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.runtime.gpu.device import NUMPY, Call, Device, NDArray, Program, Resources, bytes_of
from tilewright.runtime.verify import guarded_empty

# What kernels may need here and nobody proposes: a fence, blocks and lanes that wait for others.
NOT_CHOSEN = frozenset({'cluster', 'device_fence', 'lane_xor', 'resident_grid'})
FLAGS = ('-O1', '-fno-strict-aliasing', '-w', '-lm')


def _machine(limits: GpuMachine) -> GpuMachine:
    """This host as one very small GPU: its own cores and clock, the limits of blocks of another.

    A core multiplies and adds one number at a time in this dialect; what memory delivers is that of
    any host, and `assumed`.
    """
    return replace(
        limits, name='host', multiprocessors=1, clock_ghz=_clock_ghz(), fp32_lanes=1,
        l2_bytes=known_gpu('pocl').l2_bytes, global_gbps=known_gpu('pocl').global_gbps,
        l2_gbps=known_gpu('pocl').l2_gbps, shared_gbps=known_gpu('pocl').shared_gbps,
        capability=(0, 0), instructions=tuple(sorted(HOST.capabilities - NOT_CHOSEN)),
        assumed=('global_gbps', 'l2_bytes', 'l2_gbps', 'shared_gbps'),
    )  # fmt: skip


def _clock_ghz() -> float:
    """The clock that the system tells, or 2.5."""
    for path in sorted(Path('/sys/devices/system/cpu').glob('cpu0/cpufreq/cpuinfo_max_freq')):
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text()) / 1e6
    return known_gpu('pocl').clock_ghz


class HostDevice(Device):
    """The CPU, as a very small GPU."""

    def __init__(self, limits: str = 'h200', dialect: Dialect = HOST) -> None:
        """`limits` names the GPU whose limits kernels have to keep; `dialect` is C for hosted.c."""
        self.name = 'host'
        self.dialect = dialect
        self.limits = known_gpu(limits)
        self.machine = _machine(self.limits)
        self._runner = (resources.files('tilewright.runtime') / 'hosted.c').read_text()

    def compile(self, kernel: Kernel) -> Program:
        self.limits.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        source = lower(kernel, self.dialect)
        # An object that kernels are linked with: it takes longer to compile than most of them.
        runner = build(self._runner, (*FLAGS, '-c'), name='runner')
        library = ctypes.CDLL(str(build(source, (*FLAGS, str(runner)), name='hosted')))
        return Program(kernel, source, Resources(), library)

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        # Ends where the guard page begins, but for the sixteen bytes that loads are aligned to.
        size = bytes_of(sizes, dtype)
        aligned = -(-size // 16) * 16
        pages = -(-aligned // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = guarded_empty((pages,), np.uint8)[pages - aligned :][:size].view(NUMPY[dtype])
        return NDArray(tuple(dims), tuple(sizes), dtype, self, memory)

    def part(
        self, whole: NDArray, offset: int, dims: Sequence[str], sizes: Sequence[int], dtype: str
    ) -> NDArray:
        end = offset + bytes_of(sizes, dtype)
        memory = whole.memory.view(np.uint8)[offset:end].view(NUMPY[dtype])
        return NDArray(tuple(dims), tuple(sizes), dtype, self, memory)

    def write(self, array: NDArray, values: np.ndarray) -> None:
        array.memory[:] = values.reshape(-1)

    def download(self, array: NDArray) -> np.ndarray:
        return array.memory.reshape(array.sizes).copy()

    def launch(self, call: Call) -> None:
        kernel = call.program.kernel
        values = [np.asarray(value) for value in self.check(call)]
        pointers = (ctypes.c_void_p * len(values))(*(v.ctypes.data for v in values))
        grid = (ctypes.c_int * 3)(*(call.grid or kernel.grid))
        run = call.program.handle.tw_run
        together = 0 if 'resident_grid' in kernel.needs else kernel.cluster
        shared = ctypes.c_long(kernel.shared_bytes // 4)
        status = run(pointers, grid, kernel.threads, shared, together)
        if status == 1:
            raise CheckError(
                f'kernel {kernel.name}: threads of one block wait at different barriers, or some '
                f'left before one, or wait for a copy in bulk or a value that nobody sends; every '
                f'thread has to reach every barrier'
            )
        if status == 3:
            raise CheckError(
                f'kernel {kernel.name}: a copy in bulk is asked for while its barrier counts '
                f'another; wait for the one before'
            )
        if status:
            raise StoreError(f'no memory to run kernel {kernel.name} with {kernel.threads} threads')

    def synchronize(self) -> None:
        """Launches have ended when they return."""

    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            for call in calls:
                self.launch(call)
            seconds.append(time.perf_counter() - start)
        return seconds
