"""Calls as people make them: arrays that are ready go straight into C, results are used again.

Goes in: what a kernel or a network takes, and how to make what one call works in. Comes out:
`Calls`, which runs several calls side by side, each in a `Context` of its own, and `Results`,
memory that goes to the next caller as soon as nobody holds an array of it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from queue import Empty, SimpleQueue
from sys import getrefcount
from typing import Any

import numpy as np

from tilewright.machine.compiler import build
from tilewright.runtime.array_layout import ALIGNED, CONTIGUOUS, WRITEABLE, is_laid_out_so

ALIGNMENT = 64
POINTER = ctypes.c_void_p
# A call with less to do keeps Python's lock: others would take longer to wake up than it takes.
LEAST_FLOPS = 1e6
MOST_KEPT = 8  # results that nobody holds, of one kernel or network
MOST_KEPT_BYTES = 1 << 27  # of them together
Kind = tuple[tuple[int, ...], Any]  # shape, dtype


class KernelArgs(ctypes.Structure):
    """`tw_args` of kernels/cpu/abi.py."""

    _fields_ = [
        ('inputs', POINTER),
        ('packed', POINTER),
        ('out', POINTER),
        ('scratch', POINTER),
        ('sizes', POINTER),  # read by kernels of many sizes alone (kernels/cpu/sized.py)
    ]


class NetStruct(ctypes.Structure):
    """`network` of executor.c."""

    _fields_ = [
        ('run', POINTER),
        ('steps', POINTER),
        ('step_count', ctypes.c_long),
        ('patches', POINTER),
        ('patch_count', ctypes.c_long),
    ]


class StepStruct(ctypes.Structure):
    """`step` of executor.c."""

    _fields_ = [
        ('fn', POINTER),
        ('args', POINTER),
        ('parts', ctypes.c_long),
        ('shift', ctypes.c_long),
    ]


class PatchStruct(ctypes.Structure):
    _fields_ = [('slot', POINTER), ('array', ctypes.c_long), ('offset', ctypes.c_long)]


class _Wanted(ctypes.Structure):
    _fields_ = [
        ('type', POINTER),
        ('shape', POINTER),
        ('rank', ctypes.c_long),
        ('bytes', ctypes.c_long),
        ('flags', ctypes.c_long),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ('net', POINTER),
        ('arrays', POINTER),
        ('inputs', ctypes.c_long),
        ('count', ctypes.c_long),
        ('array_type', POINTER),
        ('io', POINTER),
    ]


@cache
def executor(locked: bool = False) -> ctypes.CDLL:
    """executor.c, built once; `locked`: called without letting other threads of Python run."""
    source = resources.files('tilewright.runtime').joinpath('executor.c').read_text()
    library = (ctypes.PyDLL if locked else ctypes.CDLL)(str(build(source, name='executor')))
    for name, arguments, result in (
        ('tw_execute', [POINTER, POINTER, POINTER], None),
        ('tw_execute_time', [POINTER, POINTER, ctypes.c_long, POINTER], None),
        ('tw_call', [POINTER, POINTER], ctypes.c_long),
        ('tw_call_two', [POINTER, POINTER, POINTER], ctypes.c_long),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, result
    return library


def aligned_empty(
    shape: tuple[int, ...], dtype: Any = np.float32, alignment: int = ALIGNMENT
) -> np.ndarray:
    """An uninitialised array whose data begins on a cache line, or on a multiple of `alignment`."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size].view(dtype).reshape(shape)


# A lock that another thread held when the process was forked is never released in the child.
_renewed: weakref.WeakSet = weakref.WeakSet()


def renew_in_children(owner: object) -> None:
    """Call `owner.renew()` in every child process that is forked."""
    _renewed.add(owner)


def _renew_all() -> None:
    for owner in _renewed:
        owner.renew()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_renew_all)


class Results:
    """Memory for one result. `new()` is an array that nobody else has.

    Every view of an array holds the memory below it, so that the count of references to that memory
    tells whether a caller still holds anything of it. Without Python's lock that count says
    nothing, and memory is new each time.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, dtype
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        most = min(MOST_KEPT, max(1, MOST_KEPT_BYTES // max(size, 1)))
        self._most = most if is_laid_out_so() else 0
        self._kept: deque[tuple[np.ndarray, np.ndarray]] = deque()

    def new(self) -> np.ndarray:
        kept = self._kept
        for _ in range(len(kept)):
            try:
                memory, array = kept.popleft()  # from here on no other thread sees it
            except IndexError:
                break
            free = getrefcount(memory) == _alone()
            given = array.view() if free else None
            kept.append((memory, array))
            if given is not None:
                return given
        array = aligned_empty(self._shape, self._dtype)
        if len(kept) >= self._most or not isinstance(array.base, np.ndarray):
            return array
        given = array.view()
        kept.append((array.base, array))
        return given


@cache
def _alone() -> int:
    """References to memory that nobody holds but the array of it, as `Results.new` counts them."""
    kept = deque([(array.base, array) for array in (aligned_empty((1,)),)])
    memory, array = kept.popleft()
    count = getrefcount(memory)
    kept.append((memory, array))
    return count


class Context:
    """What one call at a time works in: `net`, which runs, and all memory that it points to."""

    def __init__(self, net: NetStruct, count: int, kept: Any) -> None:
        self.net, self.kept = net, kept
        self.io = (POINTER * max(count, 1))()
        self.address = ctypes.addressof(net)
        self.call: _Call | None = None
        self.call_address = 0

    def bind(self, arrays: Sequence[np.ndarray]) -> None:
        """Note the caller's arrays, which were checked."""
        for number, array in enumerate(arrays):
            self.io[number] = array.ctypes.data

    def run(self, stamps: int | None = None) -> None:
        executor().tw_execute(self.address, self.io, stamps)


class Calls:
    """Calls of one kernel or network, `most` of them side by side; others wait for one to end.

    `run` takes the inputs, then the results, and is False where an array is not exactly what
    kernels can use: whoever calls then looks closer, converts, or says what is wrong.
    """

    def __init__(
        self, inputs: Sequence[Kind], outputs: Sequence[Kind], make: Callable[[], Context],
        most: int, flops: float,
    ) -> None:  # fmt: skip
        self._make, self._most = make, most
        kinds = [*inputs, *outputs]
        self._inputs, self._count = len(inputs), len(kinds)
        self._shapes = [(ctypes.c_long * max(len(shape), 1))(*shape) for shape, _ in kinds]
        self._types = [np.dtype(dtype) for _, dtype in kinds]
        self._wanted = (_Wanted * max(len(kinds), 1))()
        for number, (shape, _) in enumerate(kinds):
            kind, written = self._types[number], number >= len(inputs)
            self._wanted[number] = _Wanted(
                id(kind), ctypes.addressof(self._shapes[number]), len(shape),
                int(np.prod(shape)) * kind.itemsize,
                CONTIGUOUS | ALIGNED | (WRITEABLE if written else 0),
            )  # fmt: skip
        self._quick = is_laid_out_so()
        library = executor(locked=flops < LEAST_FLOPS)
        self._run, self._run_two = library.tw_call, library.tw_call_two
        self._two = (len(inputs), len(outputs)) == (1, 1)
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Begin without contexts: those of the parent may be in the middle of a call."""
        self._lock = threading.Lock()
        self._free: SimpleQueue[Context] = SimpleQueue()
        self._made = 0

    def take(self) -> Context:
        """A context for one call; `give` it back."""
        try:
            return self._free.get_nowait()
        except Empty:
            pass
        with self._lock:
            if self._made >= self._most:
                return self._free.get()
            self._made += 1
        try:
            context = self._make()
        except BaseException:
            self._made -= 1
            raise
        context.call = _Call(
            context.address, ctypes.addressof(self._wanted), self._inputs, self._count,
            id(np.ndarray), ctypes.addressof(context.io),
        )  # fmt: skip
        context.call_address = ctypes.addressof(context.call)
        return context

    def give(self, context: Context) -> None:
        self._free.put(context)

    @contextmanager
    def held(self) -> Iterator[Context]:
        context = self.take()
        try:
            yield context
        finally:
            self._free.put(context)

    def run(self, arrays: Sequence[Any]) -> bool:
        if not self._quick or len(arrays) != self._count:
            return False
        try:
            context = self._free.get_nowait()
        except Empty:
            context = self.take()
        try:
            if self._two:
                return not self._run_two(context.call_address, id(arrays[0]), id(arrays[1]))
            return not self._run(context.call_address, (POINTER * self._count)(*map(id, arrays)))
        finally:
            self._free.put(context)
