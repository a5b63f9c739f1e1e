"""The CUDA backend: NVRTC and the driver, through cuda-bindings.

`compile_cubin` needs no GPU and no driver: kernels are compiled for any architecture, and registers
and spills read from the assembler's report.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.errors import CompilerError, MissingError, StoreError, TilewrightError
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.language import Kernel, lower_all
from tilewright.kernels.gpu.schemas.library.calls import is_library
from tilewright.machine.gpu import GpuMachine
from tilewright.machine.nvidia import nvidia_gpu
from tilewright.runtime.gpu.batch import WARM_UP, cuda_batch
from tilewright.runtime.gpu.compilers import complaint, resources_of
from tilewright.runtime.gpu.cuda_graph import Launch, captured, start, stopwatch
from tilewright.runtime.gpu.device import (
    NUMPY,
    Call,
    Device,
    NDArray,
    Program,
    Resources,
    bytes_of,
)
from tilewright.runtime.gpu.libraries.table import Library, opened, ready

COPIES = 20  # calls in a graph that is timed
CACHING = (12, 9)  # versions of NVRTC from here on keep what they compiled


@cache
def _bindings(name: str) -> Any:
    try:
        return import_module(f'cuda.bindings.{name}')
    except ImportError:
        raise MissingError(
            "CUDA needs cuda-bindings and NVRTC: pip install 'tilewright[cuda]'"
        ) from None


@cache
def nvrtc_version() -> tuple[int, int]:
    """The version of the compiler."""
    return tuple(checked(_bindings('nvrtc').nvrtcVersion()))


def compile_cubin(
    kernel: Kernel, architecture: str, level: str = ''
) -> tuple[bytes, str, Resources]:
    """[Kernel] -> (machine code, source, resources) for an architecture such as 'sm_90'."""
    binary, source, resources = compile_cubins((kernel,), architecture, level)
    return binary, source, resources[kernel.name]


def compile_cubins(
    kernels: Sequence[Kernel], architecture: str, level: str = ''
) -> tuple[bytes, str, dict[str, Resources]]:
    """[Kernel] -> (machine code of all, source, resources by name): the compiler starts once.

    `level`: of the assembler's optimisations, '-O1' say.
    """
    nvrtc = _bindings('nvrtc')
    source, names = lower_all(kernels, CUDA), ', '.join(kernel.name for kernel in kernels)
    options = [
        f'--gpu-architecture={architecture}'.encode(), b'--ptxas-options=-v', b'--std=c++17',
    ]  # fmt: skip
    if level:
        options.append(f'--ptxas-options={level}'.encode())
    if nvrtc_version() >= CACHING:
        options.append(b'--no-cache')  # what comes from there has no report of registers
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b'kernel.cu', 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = bytes(1 + checked(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.decode(errors='replace').rstrip('\0 ')
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilerError(
                f'NVRTC refused kernel {names} for {architecture}: {complaint(text, source)}'
            )
        binary = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
        nvrtc.nvrtcGetCUBIN(program, binary)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return binary, source, {kernel.name: resources_of(text, kernel.name) for kernel in kernels}


def checked(answer: tuple, doing: str = '') -> Any:
    """The value of a call into the driver or NVRTC, or our error for theirs."""
    status, *values = answer
    if int(status) != 0:
        name = getattr(status, 'name', str(status))
        if 'NO_DEVICE' in name or 'NOT_INITIALIZED' in name or 'DRIVER' in name:
            raise MissingError(f'there is no CUDA device that can be used ({name})')
        if 'OUT_OF_MEMORY' in name:
            raise StoreError(f'the GPU has no memory left{doing}; use smaller arrays')
        raise StoreError(f'CUDA failed{doing}: {name}')
    return values[0] if len(values) == 1 else tuple(values)


class CudaDevice(Device):
    """One CUDA device, with a stream and a context of its own."""

    def __init__(self, number: int = 0) -> None:
        self.cu = cu = _bindings('driver')
        try:
            checked(cu.cuInit(0))
        except RuntimeError:  # the driver's library is not there
            raise MissingError('there is no CUDA driver on this machine') from None
        count = checked(cu.cuDeviceGetCount())
        if number >= count:
            raise MissingError(f'CUDA device {number} was asked for, but there are only {count}')
        self.device = checked(cu.cuDeviceGet(number))
        self.context = checked(cu.cuDevicePrimaryCtxRetain(self.device))
        checked(cu.cuCtxSetCurrent(self.context))
        self.name = checked(cu.cuDeviceGetName(128, self.device)).split(b'\0')[0].decode().strip()
        self.dialect = CUDA
        self.machine = self._query()
        self.stream = checked(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        major, minor = self.machine.capability
        # Warpgroup instructions belong to Hopper's own target.
        self.architecture = f'sm_{major}{minor}' + ('a' if (major, minor) == (9, 0) else '')
        self._libraries: dict[str, Library] = {}

    def library(self, name: str) -> Library:
        """A vendor's library on this device; raises MissingError where it is not here."""
        self.use()
        if name not in self._libraries:
            self._libraries[name] = opened(name, int(self.stream))
        return self._libraries[name]

    def _query(self) -> GpuMachine:
        cu, kinds = self.cu, self.cu.CUdevice_attribute

        def ask(name: str) -> int:
            kind = getattr(kinds, f'CU_DEVICE_ATTRIBUTE_{name}')
            return checked(cu.cuDeviceGetAttribute(kind, self.device))

        clock = ask('CLOCK_RATE') / 1e6
        # Two transfers a cycle of the memory's clock, as wide as its bus.
        memory = 2 * ask('MEMORY_CLOCK_RATE') * 1e3 * ask('GLOBAL_MEMORY_BUS_WIDTH') / 8 / 1e9
        return nvidia_gpu(
            self.name,
            (ask('COMPUTE_CAPABILITY_MAJOR'), ask('COMPUTE_CAPABILITY_MINOR')),
            ask('MULTIPROCESSOR_COUNT'),
            clock,
            warp=ask('WARP_SIZE'),
            registers=ask('MAX_REGISTERS_PER_MULTIPROCESSOR'),
            shared_bytes=ask('MAX_SHARED_MEMORY_PER_MULTIPROCESSOR'),
            shared_bytes_per_block=ask('MAX_SHARED_MEMORY_PER_BLOCK_OPTIN'),
            threads=ask('MAX_THREADS_PER_MULTIPROCESSOR'),
            threads_per_block=ask('MAX_THREADS_PER_BLOCK'),
            blocks=ask('MAX_BLOCKS_PER_MULTIPROCESSOR'),
            l2_bytes=ask('L2_CACHE_SIZE'),
            **({'global_gbps': memory} if memory else {}),
        )

    def compile(self, kernel: Kernel) -> Program:
        if is_library(kernel):
            made = ready(self.library(kernel.language), kernel)
            return Program(kernel, '', Resources(), made)
        binary, source, resources = compile_cubin(kernel, self.architecture)
        return self.load(kernel, binary, source, resources)

    def load(self, kernel: Kernel, binary: bytes, source: str, resources: Resources) -> Program:
        """A program from what `compile_cubin` made, here or in another process."""
        self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes, resources.registers)
        module = self.load_module(binary, kernel.name)
        try:
            return self.function(module, kernel, source, resources)
        except TilewrightError:
            self.cu.cuModuleUnload(module)
            raise

    def load_module(self, binary: bytes, name: str) -> Any:
        checked(self.cu.cuCtxSetCurrent(self.context))
        return checked(self.cu.cuModuleLoadData(binary), f' while loading kernel {name}')

    def function(self, module: Any, kernel: Kernel, source: str, resources: Resources) -> Program:
        """A kernel of a module that is loaded."""
        self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes, resources.registers)
        cu, doing = self.cu, f' while loading kernel {kernel.name}'
        function = checked(cu.cuModuleGetFunction(module, kernel.name.encode()), doing)
        kind = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(cu.cuFuncSetAttribute(function, kind, kernel.shared_bytes), doing)
        if resources.registers is None:  # the compiler did not say
            kinds = cu.CUfunction_attribute
            taken = [
                checked(
                    cu.cuFuncGetAttribute(getattr(kinds, f'CU_FUNC_ATTRIBUTE_{name}'), function)
                )
                for name in ('NUM_REGS', 'LOCAL_SIZE_BYTES')
            ]
            resources = Resources(*taken)
        return Program(kernel, source, resources, (module, function))

    def unload(self, program: Program) -> None:
        if is_library(program.kernel):
            program.handle.close()
            return
        checked(self.cu.cuModuleUnload(program.handle[0]))

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        size = max(bytes_of(sizes, dtype), 4)
        checked(self.cu.cuCtxSetCurrent(self.context))
        memory = checked(self.cu.cuMemAlloc(size), f' for {size} bytes')
        return NDArray(tuple(dims), tuple(sizes), dtype, self, memory)

    def free_bytes(self) -> int | None:
        self.use()
        return int(checked(self.cu.cuMemGetInfo())[0])

    def use(self) -> None:
        checked(self.cu.cuCtxSetCurrent(self.context))

    def part(
        self, whole: NDArray, offset: int, dims: Sequence[str], sizes: Sequence[int], dtype: str
    ) -> NDArray:
        return NDArray(tuple(dims), tuple(sizes), dtype, self, int(whole.memory) + offset)

    def free(self, array: NDArray) -> None:
        checked(self.cu.cuMemFree(array.memory))

    def write(self, array: NDArray, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        # In our own stream: a plain copy from pageable memory returns before its last bytes have
        # arrived, and a stream that does not block would not wait for them.
        checked(
            self.cu.cuMemcpyHtoDAsync(array.memory, values.ctypes.data, values.nbytes, self.stream)
        )
        self.synchronize()

    def download(self, array: NDArray) -> np.ndarray:
        values = np.empty(array.sizes, NUMPY[array.dtype])
        self.read(array, values)
        return values

    def read(self, array: NDArray, into: np.ndarray) -> None:
        self.synchronize()
        checked(self.cu.cuMemcpyDtoH(into.ctypes.data, array.memory, into.nbytes))

    def prepare(self, call: Call) -> Launch:
        """A launch with its arguments checked and bound; it can be repeated at no cost."""
        kernel = call.program.kernel
        if is_library(kernel):
            addresses = [int(value) for value in self.check(call)]
            memory = {a.name: at for a, at in zip(kernel.args, addresses, strict=True)}
            return Launch((), call.program, partial(call.program.handle.run, memory))
        holders = [holder(value) for value in self.check(call)]
        pointers = np.array([h.ctypes.data for h in holders], np.uint64)
        grid = call.grid or kernel.grid
        arguments = (
            call.program.handle[1], *grid, kernel.threads, 1, 1, kernel.shared_bytes, self.stream,
            pointers.ctypes.data, 0,
        )  # fmt: skip
        return Launch(arguments, (pointers, holders), None, 'resident_grid' in kernel.needs)

    def launch(self, call: Call) -> None:
        doing = f' while starting {call.program.kernel.name}'
        start(self.cu, checked, self.prepare(call), doing)

    def synchronize(self) -> None:
        checked(self.cu.cuStreamSynchronize(self.stream), ' in a kernel that ran before')

    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        """Each repeat is the mean of one replay of a CUDA graph that holds `COPIES` calls."""
        launches = [self.prepare(call) for call in calls]
        with (
            captured(self.cu, checked, self.stream, launches, COPIES) as replay,
            stopwatch(self.cu, checked, self.stream) as seconds,
        ):
            replay()
            self.synchronize()
            return [seconds(replay) / COPIES for _ in range(repeats)]

    def batched(self, calls: Sequence[Call], count: int, repeats: int) -> list[float]:
        prepared = [self.prepare(call) for call in calls]
        # A library starts its own kernels; blocks that run together have a launch of their own.
        if any(one.run or one.together for one in prepared):
            return self.time(calls, repeats)
        launches = []
        for one in prepared:
            function, gx, gy, gz, threads, _, _, shared, _, table, _ = one.arguments
            launches.append((int(function), (gx, gy, gz), threads, shared, table))
        self.synchronize()
        stream = int(self.stream)
        cuda_batch(stream, launches, min(count, WARM_UP))
        return [cuda_batch(stream, launches, count) / count for _ in range(repeats)]


def holder(value: Any) -> np.ndarray:
    """A one-element array that holds an argument while the driver copies it."""
    if isinstance(value, np.generic):
        return np.array([value])
    return np.array([int(value)], np.uint64)
