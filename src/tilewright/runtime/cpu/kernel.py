"""Loading and calling a generated CPU kernel.

Goes in: a shared library with the ABI of kernels/cpu/abi.py, and its group. Comes out: `Kernel`,
which packs constants, runs and times through the shared thread pool (pool.c).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from functools import cache, partial
from importlib import resources
from pathlib import Path

import numpy as np

from tilewright import knobs
from tilewright.errors import ArrayError, CheckError
from tilewright.machine.compiler import build
from tilewright.machine.detect import describe_host
from tilewright.ops.dtypes import NUMPY, is_float
from tilewright.ops.group import Group, Tensor
from tilewright.runtime.cpu.calls import (
    Calls,
    Context,
    KernelArgs,
    NetStruct,
    PatchStruct,
    StepStruct,
    aligned_empty,
    executor,
)

_POINTER = ctypes.c_void_p


@cache
def pool() -> ctypes.CDLL:
    """The thread pool, built once and shared by every kernel of the process."""
    source = resources.files('tilewright.runtime').joinpath('pool.c').read_text()
    library = ctypes.CDLL(str(build(source, name='pool')))
    library.tw_pool_run.argtypes = [_POINTER, _POINTER, ctypes.c_long]
    library.tw_pool_run.restype = None
    library.tw_pool_spin.argtypes = [ctypes.c_long]
    library.tw_pool_spin(knobs.get('spin_us'))
    _place()
    return library


def _place() -> None:
    """Keep this thread, and those of the pool, which it starts, on the CPUs of TILEWRIGHT_CPUS."""
    if knobs.get('cpus') and hasattr(os, 'sched_setaffinity'):
        os.sched_setaffinity(0, describe_host().allowed)


def array_of(what: str, given: object) -> np.ndarray:
    """What a caller gives as an array, without a copy where it has memory: by the buffer protocol,
    `__array__` or DLPack; whatever it raises when it is asked for one is an ArrayError. Tensors of
    PyTorch are arrays unless they require gradients or are of bfloat16.
    """
    try:
        if hasattr(given, '__dlpack__') and not hasattr(given, '__array__'):
            return np.from_dlpack(given)  # pyright: ignore[reportArgumentType]
        return np.asarray(given)
    except Exception as error:  # its `__array__` is the caller's own code
        said = ' '.join(str(error).split()) or type(error).__name__
        raise ArrayError(f'{what} is not an array ({said}); give a numpy array') from error


def as_operand(tensor: Tensor, array: object) -> np.ndarray:
    """The array as the kernel reads it: its dtype, C-contiguous, aligned; else copied."""
    kind = NUMPY[tensor.dtype]
    if type(array) is np.ndarray and array.dtype == kind and array.shape == tensor.shape:
        flags = array.flags
        if flags.c_contiguous and flags.aligned:
            return array  # nothing to do: what a caller who cares passes every time
    given = array_of(tensor.name, array)
    if given.shape != tensor.shape:
        raise ArrayError(
            f'{tensor.name} has shape {given.shape}; this kernel was made for {tensor.shape}'
        )
    if given.dtype.kind not in 'fiub':
        raise ArrayError(
            f'{tensor.name} has dtype {given.dtype}; give real numbers, best {np.dtype(kind)}'
        )
    if not is_float(tensor.dtype) and not np.can_cast(given.dtype, kind, 'same_kind'):
        raise ArrayError(f'{tensor.name} has dtype {given.dtype}; it must be {np.dtype(kind)}')
    with np.errstate(over='ignore'):  # doubles beyond float32 become infinite, as in any cast
        ready = np.ascontiguousarray(given, kind)
    return ready if ready.flags.aligned else ready.copy()


class Kernel:
    """A loaded kernel. Not tied to weights: `pack` makes the packed constants that `run` needs."""

    def __init__(self, library: ctypes.CDLL, group: Group) -> None:
        self.group = group
        for name in ('tw_parts', 'tw_scratch_bytes', 'tw_packed_bytes'):
            getattr(library, name).restype = ctypes.c_long
        library.tw_pack.argtypes = [ctypes.POINTER(_POINTER), _POINTER]
        library.tw_pack.restype = None
        self._library = library
        self._part = ctypes.cast(library.tw_part, _POINTER)
        self.parts = int(library.tw_parts())
        self._packed_bytes = int(library.tw_packed_bytes())
        self._scratch_bytes = self.parts * int(library.tw_scratch_bytes())
        self._inputs = group.with_role('input')
        self._constants = group.with_role('constant')
        self._timed: tuple[np.ndarray, Context] | None = None

    @classmethod
    def load(cls, library: Path, group: Group) -> Kernel:
        try:
            return cls(ctypes.CDLL(str(library)), group)
        except (OSError, AttributeError) as error:
            raise CheckError(
                f'the compiled kernel {library.name} cannot be loaded: {error}'
            ) from None

    def pack(self, constants: Mapping[str, np.ndarray]) -> np.ndarray:
        """Constants in the kernel's own order and padding."""
        packed = aligned_empty((self._packed_bytes // 4,))
        arrays = [self._operand(t, constants) for t in self._constants]
        self._library.tw_pack(_pointers(arrays), packed.ctypes.data)
        return packed

    def run(
        self, inputs: Mapping[str, np.ndarray], packed: np.ndarray, out: np.ndarray,
        context: Context | None = None,
    ) -> None:  # fmt: skip
        """Compute into `out`, a C-contiguous array of the output's shape and dtype.

        context  one of these constants, where there is one already
        """
        keep = self._checked(inputs, packed, out)
        context = context or self.context(packed)
        context.bind((*keep, out))
        context.run()

    def context(self, packed: np.ndarray) -> Context:
        """Memory for one call at a time with these constants."""
        scratch = aligned_empty((self._scratch_bytes,), np.uint8)
        given = (_POINTER * max(len(self._inputs), 1))()
        args = KernelArgs(ctypes.addressof(given), packed.ctypes.data, None, scratch.ctypes.data)
        here, slots = ctypes.addressof(args), ctypes.addressof(given)
        step = StepStruct(self._part, here, self.parts, 0)
        places = [
            *(slots + number * ctypes.sizeof(_POINTER) for number in range(len(self._inputs))),
            here + KernelArgs.out.offset,
        ]
        patches = (PatchStruct * len(places))(
            *(PatchStruct(place, number, 0) for number, place in enumerate(places))
        )
        net = NetStruct(
            ctypes.cast(pool().tw_pool_run, _POINTER), ctypes.addressof(step), 1,
            ctypes.addressof(patches), len(places),
        )  # fmt: skip
        return Context(
            net, len(places), (self._library, scratch, packed, given, args, step, patches)
        )

    def calls(self, packed: np.ndarray) -> Calls:
        """Calls with these constants, as many side by side as there are callers."""
        kinds = [(t.shape, NUMPY[t.dtype]) for t in (*self._inputs, self.group.output)]
        make, flops = partial(self.context, packed), self.group.flops
        return Calls(kinds[:-1], kinds[-1:], make, sys.maxsize, flops)

    def time(
        self,
        inputs: Mapping[str, np.ndarray],
        packed: np.ndarray,
        out: np.ndarray,
        *,
        repeats: int,
    ) -> list[float]:
        """Seconds of each of `repeats` runs, taken in C, in the same memory as those before."""
        keep = self._checked(inputs, packed, out)
        seconds = np.empty(repeats)
        if self._timed is None or self._timed[0] is not packed:
            self._timed = packed, self.context(packed)
        context = self._timed[1]
        context.bind((*keep, out))
        executor().tw_execute_time(context.address, context.io, repeats, seconds.ctypes.data)
        return seconds.tolist()

    def _operand(self, tensor: Tensor, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        if tensor.name not in arrays:
            raise ArrayError(f'{self.group.label} needs {tensor.name} of shape {tensor.shape}')
        return as_operand(tensor, arrays[tensor.name])

    def _checked(
        self, inputs: Mapping[str, np.ndarray], packed: np.ndarray, out: np.ndarray
    ) -> list[np.ndarray]:
        """The inputs as the kernel reads them, once everything has been checked."""
        want, kind = self.group.output.shape, np.dtype(NUMPY[self.group.output.dtype])
        if not isinstance(out, np.ndarray):
            raise ArrayError(f'out is a {type(out).__name__}; it must be a numpy array')
        flags = out.flags
        if out.shape != want or out.dtype != kind or not flags.c_contiguous:
            raise ArrayError(
                f'out has shape {out.shape} and dtype {out.dtype}; it must be a C-contiguous '
                f'{kind} array of shape {want}'
            )
        if not flags.writeable or not flags.aligned:
            raise ArrayError('out must be writeable and aligned; allocate it with numpy.empty')
        if packed.nbytes != self._packed_bytes or packed.dtype != np.float32:
            raise ArrayError(
                f'packed has {packed.nbytes} bytes of {packed.dtype}; this kernel packs '
                f'{self._packed_bytes} bytes of float32: pass what pack() returned'
            )
        keep = [self._operand(t, inputs) for t in self._inputs]
        # A kernel reads inputs while it writes results, so they must not overlap.
        return [a.copy() if np.may_share_memory(a, out) else a for a in keep]


def _pointers(arrays: list[np.ndarray]) -> ctypes.Array:
    return (_POINTER * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
