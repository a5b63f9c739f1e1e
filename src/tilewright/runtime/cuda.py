"""The CUDA backend: NVRTC and the driver, through cuda-bindings.

`compile_cubin` needs no GPU and no driver: kernels are compiled for any architecture, and registers
and spills read from the assembler's report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from tilewright.codegen.gpu.dialect_cuda import CUDA
from tilewright.codegen.gpu.language import Kernel, lower
from tilewright.errors import CompilerError, MissingError, StoreError
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.runtime.device import NUMPY, Call, Device, NDArray, Program, Resources
from tilewright.runtime.opencl import complaint

_REPORT = re.compile(
    r'(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, '
    r'(?P<loads>\d+) bytes spill loads'
)


@cache
def _bindings(name: str) -> Any:
    try:
        from cuda.bindings import driver, nvrtc  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingError(
            "CUDA needs cuda-bindings and NVRTC: pip install 'tilewright[cuda]'"
        ) from None
    return {'driver': driver, 'nvrtc': nvrtc}[name]


def compile_cubin(kernel: Kernel, architecture: str) -> tuple[bytes, str, Resources]:
    """[Kernel] -> (machine code, source, resources) for an architecture such as 'sm_90'."""
    nvrtc = _bindings('nvrtc')
    source = lower(kernel, CUDA)
    options = [
        f'--gpu-architecture={architecture}'.encode(), b'--ptxas-options=-v', b'--std=c++17',
    ]  # fmt: skip
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b'kernel.cu', 0, [], []))
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = bytes(1 + checked(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.decode(errors='replace').rstrip('\0 ')
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompilerError(
                f'NVRTC refused kernel {kernel.name} for {architecture}: {complaint(text, source)}'
            )
        binary = bytes(checked(nvrtc.nvrtcGetCUBINSize(program)))
        nvrtc.nvrtcGetCUBIN(program, binary)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return binary, source, _resources(text)


def _resources(report: str) -> Resources:
    registers = re.search(r'Used (\d+) registers', report)
    spills = _REPORT.search(report)
    return Resources(
        int(registers[1]) if registers else None,
        int(spills['stores']) + int(spills['loads']) if spills else None,
    )


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

    def _query(self) -> GpuMachine:
        cu, kinds = self.cu, self.cu.CUdevice_attribute

        def ask(name: str) -> int:
            kind = getattr(kinds, f'CU_DEVICE_ATTRIBUTE_{name}')
            return checked(cu.cuDeviceGetAttribute(kind, self.device))

        major, minor = ask('COMPUTE_CAPABILITY_MAJOR'), ask('COMPUTE_CAPABILITY_MINOR')
        base = known_gpu({7: 'rtx2080ti'}.get(major, 'h200')).to_json()
        multiprocessors, clock = ask('MULTIPROCESSOR_COUNT'), ask('CLOCK_RATE') / 1e6
        base |= {
            'name': self.name,
            'multiprocessors': multiprocessors,
            'warp': ask('WARP_SIZE'),
            'clock_ghz': clock,
            'registers': ask('MAX_REGISTERS_PER_MULTIPROCESSOR'),
            'shared_bytes': ask('MAX_SHARED_MEMORY_PER_MULTIPROCESSOR'),
            'shared_bytes_per_block': ask('MAX_SHARED_MEMORY_PER_BLOCK_OPTIN'),
            'threads': ask('MAX_THREADS_PER_MULTIPROCESSOR'),
            'threads_per_block': ask('MAX_THREADS_PER_BLOCK'),
            'blocks': ask('MAX_BLOCKS_PER_MULTIPROCESSOR'),
            'l2_bytes': ask('L2_CACHE_SIZE'),
            'shared_gbps': multiprocessors * 128 * clock,
            'capability': [major, minor],
        }
        return GpuMachine.from_json(base)

    def compile(self, kernel: Kernel) -> Program:
        binary, source, resources = compile_cubin(kernel, self.architecture)
        return self.load(kernel, binary, source, resources)

    def load(self, kernel: Kernel, binary: bytes, source: str, resources: Resources) -> Program:
        """A program from what `compile_cubin` made, here or in another process."""
        self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes, resources.registers)
        cu, doing = self.cu, f' while loading kernel {kernel.name}'
        checked(cu.cuCtxSetCurrent(self.context))
        module = checked(cu.cuModuleLoadData(binary), doing)
        function = checked(cu.cuModuleGetFunction(module, kernel.name.encode()), doing)
        kind = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(cu.cuFuncSetAttribute(function, kind, kernel.shared_bytes), doing)
        return Program(kernel, source, resources, (module, function))

    def unload(self, program: Program) -> None:
        checked(self.cu.cuModuleUnload(program.handle[0]))

    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        size = max(4 * int(np.prod(sizes, dtype=np.int64)), 4)
        checked(self.cu.cuCtxSetCurrent(self.context))
        memory = checked(self.cu.cuMemAlloc(size), f' for {size} bytes')
        return NDArray(tuple(dims), tuple(sizes), dtype, self, memory)

    def free(self, array: NDArray) -> None:
        checked(self.cu.cuMemFree(array.memory))

    def write(self, array: NDArray, values: np.ndarray) -> None:
        values = np.ascontiguousarray(values)
        self.synchronize()
        checked(self.cu.cuMemcpyHtoD(array.memory, values.ctypes.data, values.nbytes))

    def download(self, array: NDArray) -> np.ndarray:
        values = np.empty(array.sizes, NUMPY[array.dtype])
        self.synchronize()
        checked(self.cu.cuMemcpyDtoH(values.ctypes.data, array.memory, values.nbytes))
        return values

    def launch(self, call: Call) -> None:
        kernel = call.program.kernel
        holders = [holder(value) for value in self.check(call)]
        pointers = np.array([h.ctypes.data for h in holders], np.uint64)
        grid = call.grid or kernel.grid
        checked(
            self.cu.cuLaunchKernel(
                call.program.handle[1], *grid, kernel.threads, 1, 1, kernel.shared_bytes,
                self.stream, pointers.ctypes.data, 0,
            ),
            f' while starting {kernel.name}',
        )  # fmt: skip

    def synchronize(self) -> None:
        checked(self.cu.cuStreamSynchronize(self.stream), ' in a kernel that ran before')

    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        """Each repeat is the mean of some replays of one CUDA graph that holds all calls."""
        cu = self.cu
        graph = self._graph(calls, copies := 20)
        start, end = (checked(cu.cuEventCreate(0)) for _ in range(2))
        checked(cu.cuGraphLaunch(graph, self.stream))
        self.synchronize()
        seconds = []
        for _ in range(repeats):
            checked(cu.cuEventRecord(start, self.stream))
            checked(cu.cuGraphLaunch(graph, self.stream))
            checked(cu.cuEventRecord(end, self.stream))
            self.synchronize()
            seconds.append(checked(cu.cuEventElapsedTime(start, end)) * 1e-3 / copies)
        checked(cu.cuGraphExecDestroy(graph))
        for event in (start, end):
            checked(cu.cuEventDestroy(event))
        return seconds

    def _graph(self, calls: Sequence[Call], copies: int) -> Any:
        cu = self.cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        checked(cu.cuStreamBeginCapture(self.stream, mode))
        for _ in range(copies):
            for call in calls:
                self.launch(call)
        graph = checked(cu.cuStreamEndCapture(self.stream))
        instance = checked(cu.cuGraphInstantiate(graph, 0))
        checked(cu.cuGraphDestroy(graph))
        return instance


def holder(value: Any) -> np.ndarray:
    """A one-element array that holds an argument while the driver copies it."""
    if isinstance(value, np.generic):
        return np.array([value])
    return np.array([int(value)], np.uint64)
