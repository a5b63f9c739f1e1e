"""Batches of launches that are queued from C (enqueue.c), so that no Python is in a measured time.

Goes in: prepared launches of one backend. Comes out: seconds of a batch by the host's clock. A GPU
runs short kernels faster than an interpreter can queue them, and a time from the first start to the
last end would then be the interpreter's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_double, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib import resources
from typing import Any

from tilewright.errors import StoreError
from tilewright.machine.compiler import build

Extents = tuple[int, int, int]
WARM_UP = 20  # calls ahead of the first batch that counts


@cache
def _library() -> Any:
    """The compiled helper; raises MissingError where there is no C compiler."""
    source = (resources.files('tilewright.runtime') / 'enqueue.c').read_text()
    library = ctypes.CDLL(str(build(source, name='enqueue')))
    numbers, many = POINTER(c_size_t), POINTER(c_void_p)
    library.tw_opencl_batch.restype = library.tw_cuda_batch.restype = c_double
    library.tw_opencl_batch.argtypes = (
        c_void_p, c_void_p, c_void_p, c_int, many, numbers, numbers, c_int, many, many
    )  # fmt: skip
    library.tw_cuda_batch.argtypes = (
        c_void_p, c_void_p, c_void_p, c_int, many, POINTER(c_uint32), many, c_int
    )  # fmt: skip
    return library


def _checked(seconds: float, doing: str) -> float:
    if seconds < 0:
        raise StoreError(f'the driver failed with status {seconds:.0f} while {doing} were launched')
    return seconds


def opencl_batch(
    functions: tuple[int, int], queue: int, launches: Sequence[tuple[int, Extents, Extents]],
    count: int, events: tuple[c_void_p, c_void_p] | None = None,
) -> float:  # fmt: skip
    """`functions`: addresses of clEnqueueNDRangeKernel and clFinish. A launch: the kernel, its
    work-items and those of a group; `events` receive the first and the last one of the batch.
    """
    steps = len(launches)
    kernels = (c_void_p * steps)(*(kernel for kernel, _, _ in launches))
    whole = (c_size_t * (3 * steps))(*(n for _, items, _ in launches for n in items))
    block = (c_size_t * (3 * steps))(*(n for _, _, group in launches for n in group))
    ends = [ctypes.pointer(event) for event in events] if events else [None, None]
    seconds = _library().tw_opencl_batch(
        *functions, queue, steps, kernels, whole, block, count, *ends
    )
    return _checked(seconds, f'{count} OpenCL calls')


def cuda_batch(
    stream: int, launches: Sequence[tuple[int, Extents, int, int, int]], count: int
) -> float:
    """A launch: the function, its grid, threads and shared bytes of a block, and the address of
    its table of arguments.
    """
    driver = ctypes.CDLL('libcuda.so.1')
    functions = [
        ctypes.cast(f, c_void_p) for f in (driver.cuLaunchKernel, driver.cuStreamSynchronize)
    ]
    steps = len(launches)
    handles = (c_void_p * steps)(*(launch[0] for launch in launches))
    numbers = (c_uint32 * (5 * steps))(
        *(n for _, grid, threads, shared, _ in launches for n in (*grid, threads, shared))
    )
    tables = (c_void_p * steps)(*(launch[4] for launch in launches))
    seconds = _library().tw_cuda_batch(*functions, stream, steps, handles, numbers, tables, count)
    return _checked(seconds, f'{count} CUDA calls')
