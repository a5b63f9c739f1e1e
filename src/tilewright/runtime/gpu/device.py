"""What every GPU backend can do, and the arrays that live on one.

Goes in: kernels (kernels/gpu/language.py) and numpy arrays. Comes out: programs, `NDArray`s with
named dimensions, times. A backend is one file: runtime/gpu/cuda.py, runtime/gpu/opencl.py,
runtime/gpu/hosted.py. All of them may be used in one process.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.errors import ArrayError, MissingError
from tilewright.kernels.gpu.dialects.table import Dialect
from tilewright.kernels.gpu.language import Array, Kernel, Scalar, check_call
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.dtypes import DTYPES, HALVES, NUMPY
from tilewright.runtime.gpu.libraries.table import Library

# What numpy arrays may be uploaded as they are: doubles are mostly meant to be floats.
UPLOADED = ('f32', 'i32', 'u8', 'i8', *(name for name in HALVES if name in NUMPY))


@dataclass(frozen=True, slots=True, eq=False)
class NDArray:
    """An array on a device: dimensions by name, C-contiguous. `memory` belongs to the backend."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    device: Device
    memory: Any

    @property
    def bytes(self) -> int:
        return bytes_of(self.sizes, self.dtype)

    def numpy(self) -> np.ndarray:
        """A copy on the host."""
        return self.device.download(self)


def bytes_of(sizes: Sequence[int], dtype: str) -> int:
    return math.prod(sizes) * DTYPES[dtype]


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel takes, as far as its compiler tells (None: it does not)."""

    registers: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A kernel compiled for one device."""

    kernel: Kernel
    source: str
    resources: Resources
    handle: Any


Values = Mapping[str, 'NDArray | int | float']


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A program with its arguments; `grid` replaces the kernel's own where sizes are dynamic."""

    program: Program
    values: Values
    grid: tuple[int, int, int] | None = None


class Device(abc.ABC):
    """A device that compiles, holds arrays, launches and times."""

    name: str
    dialect: Dialect
    machine: GpuMachine
    alignment: int = 16  # bytes: where a part of an array may begin

    @abc.abstractmethod
    def compile(self, kernel: Kernel) -> Program:
        """Raises CompilerError with the offending source line, ScheduleError beyond the limits."""

    def use(self) -> None:
        """Make it the device of the calling thread, where backends know such a thing."""
        return

    @abc.abstractmethod
    def empty(self, dims: Sequence[str], sizes: Sequence[int], dtype: str = 'f32') -> NDArray:
        """Memory with undefined contents."""

    @abc.abstractmethod
    def part(
        self, whole: NDArray, offset: int, dims: Sequence[str], sizes: Sequence[int], dtype: str
    ) -> NDArray:
        """Memory of `whole` from a byte on, a multiple of `alignment`; it goes with the whole."""

    def library(self, name: str) -> Library:
        """A vendor's library on this device, where the backend has any."""
        raise MissingError(f'there is no {name} for {self.name}; use a CUDA device')

    def free_bytes(self) -> int | None:
        """Bytes of memory that nobody uses; by default it cannot tell."""
        return None

    def free(self, array: NDArray) -> None:
        """Give memory back now; by default it goes with the array."""
        return

    def unload(self, program: Program) -> None:
        """Forget a program now; by default it goes with its last reference."""
        return

    @abc.abstractmethod
    def write(self, array: NDArray, values: np.ndarray) -> None:
        """Copy from the host into an array of the same size."""

    @abc.abstractmethod
    def download(self, array: NDArray) -> np.ndarray: ...

    def read(self, array: NDArray, into: np.ndarray) -> None:
        """Copy to a C-contiguous array of the host, of the same size and dtype."""
        into[...] = self.download(array).reshape(into.shape)

    @abc.abstractmethod
    def launch(self, call: Call) -> None:
        """Start one kernel; it may run behind the caller's back until `synchronize`."""

    @abc.abstractmethod
    def synchronize(self) -> None: ...

    @abc.abstractmethod
    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        """Seconds of `calls`, one after the other, measured on the device, for each repeat."""

    def batched(self, calls: Sequence[Call], count: int, repeats: int) -> list[float]:
        """Seconds of `calls` where they are launched `count` times without waiting in between.

        By the host's clock, from the first launch until all have ended; the launches are not
        Python's. By default one batch is as good as any other.
        """
        return self.time(calls, repeats)

    def upload(self, values: np.ndarray, dims: Sequence[str]) -> NDArray:
        """[numpy array, names of its dimensions] -> [NDArray]"""
        if len(dims) != values.ndim:
            raise ArrayError(
                f'{":".join(dims)} names {len(dims)} dimensions, but the array has {values.ndim}'
            )
        dtype = next((name for name in UPLOADED if values.dtype == NUMPY[name]), None)
        if dtype is None:
            raise ArrayError(f'arrays on a device are {", ".join(UPLOADED)}, not {values.dtype}')
        array = self.empty(dims, values.shape, dtype)
        self.write(array, np.ascontiguousarray(values))
        return array

    def check(self, call: Call) -> list[Any]:
        """Arguments in the order of the compiled function: memory, numbers of dynamic arrays.

        Raises ArrayError where dimensions, sizes, dtypes or the device do not agree.
        """
        kernel = call.program.kernel
        given = {}
        for argument in kernel.args:
            value = call.values.get(argument.name)
            if isinstance(argument, Array) and value is not None:
                if not isinstance(value, NDArray):
                    raise ArrayError(
                        f'argument {argument.name} of {kernel.name} is an array '
                        f'{argument.signature}, but {type(value).__name__} was passed; upload it'
                    )
                if value.device is not self:
                    raise ArrayError(
                        f'argument {argument.name} of {kernel.name} lives on {value.device.name}, '
                        f'but the kernel runs on {self.name}; copy it there'
                    )
                given[argument.name] = (value.dims, value.sizes, value.dtype)
            elif isinstance(argument, Scalar) and isinstance(value, NDArray | np.ndarray):
                raise ArrayError(
                    f'argument {argument.name} of {kernel.name} is a number {argument.dtype}, but '
                    f'{type(value).__name__} was passed; pass a number'
                )
        scalars = {a.name: ((), (), '') for a in kernel.args if isinstance(a, Scalar)}
        named = {n: given.get(n, scalars.get(n, ((), (), ''))) for n in call.values}
        check_call(kernel, named)
        out: list[Any] = []
        for argument in kernel.args:
            value = call.values[argument.name]
            if isinstance(value, NDArray):
                out.append(value.memory)
                if isinstance(argument, Array) and argument.dynamic:
                    actual = Array(argument.name, value.dims, value.sizes)
                    out += [np.int32(number) for _, number in actual.numbers()]
            else:
                kind = NUMPY[argument.dtype]
                out.append(kind(value))
        return out
