"""The host backend: kernels in the C dialect, run on the CPU by runtime/hosted.c.

For tests on machines without any GPU or OpenCL, and to see a kernel under a C debugger. Arrays end
at a guard page, so that an access behind one stops the process instead of giving a wrong result.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from collections.abc import Sequence
from importlib import resources

import numpy as np

from tilewright.codegen.gpu.dialect_host import HOST
from tilewright.codegen.gpu.language import Kernel, lower
from tilewright.errors import CheckError, StoreError
from tilewright.machine.gpu import known_gpu
from tilewright.runtime.build import build
from tilewright.runtime.device import NUMPY, Call, Device, NDArray, Program, Resources
from tilewright.runtime.verify import guarded_empty

FLAGS = ('-O1', '-w', '-lm')


class HostDevice(Device):
    """The CPU, as a very small GPU."""

    def __init__(self, limits: str = 'h200') -> None:
        """`limits` names the GPU whose limits kernels have to keep."""
        self.name = 'host'
        self.dialect = HOST
        self.machine = known_gpu(limits)
        self._runner = (resources.files('tilewright.runtime') / 'hosted.c').read_text()

    def compile(self, kernel: Kernel) -> Program:
        self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        source = lower(kernel, self.dialect)
        library = ctypes.CDLL(str(build(f'{source}\n{self._runner}', FLAGS, name='hosted')))
        return Program(kernel, source, Resources(), library)

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        # Ends where the guard page begins, but for the sixteen bytes that loads are aligned to.
        count = math.prod(sizes)
        aligned = -(-count // 4) * 4
        pages = -(-4 * aligned // mmap.PAGESIZE) * mmap.PAGESIZE // 4
        memory = guarded_empty((pages,), NUMPY[dtype])[pages - aligned :][:count]
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
        status = run(pointers, grid, kernel.threads, ctypes.c_long(kernel.shared_bytes // 4))
        if status == 1:
            raise CheckError(
                f'kernel {kernel.name}: threads of one block wait at different barriers, or some '
                f'left before one; every thread has to reach every barrier'
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
