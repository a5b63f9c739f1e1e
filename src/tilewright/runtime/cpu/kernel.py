"""Loading and calling a generated CPU kernel.

Goes in: a shared library with the ABI of kernels/cpu/abi.py, and its group. Comes out: `Kernel`,
which packs constants, runs and times through the shared thread pool (pool.c).
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np

from tilewright import knobs
from tilewright.errors import ArrayError, CheckError
from tilewright.machine.compiler import build
from tilewright.machine.detect import describe_host
from tilewright.ops.dtypes import NUMPY, is_float
from tilewright.ops.group import Group, Tensor
from tilewright.runtime.array_state import State, state_of

ALIGNMENT = 64
_POINTER = ctypes.c_void_p


class _Args(ctypes.Structure):
    _fields_ = [
        ('inputs', ctypes.POINTER(_POINTER)),
        ('packed', _POINTER),
        ('out', _POINTER),
        ('scratch', _POINTER),
    ]


@cache
def pool() -> ctypes.CDLL:
    """The thread pool, built once and shared by every kernel of the process."""
    source = resources.files('tilewright.runtime').joinpath('pool.c').read_text()
    library = ctypes.CDLL(str(build(source, name='pool')))
    library.tw_pool_run.argtypes = [_POINTER, _POINTER, ctypes.c_long]
    library.tw_pool_run.restype = None
    library.tw_pool_spin.argtypes = [ctypes.c_long]
    library.tw_pool_time.argtypes = [
        _POINTER, _POINTER, ctypes.c_long, ctypes.c_long, ctypes.POINTER(ctypes.c_double)
    ]  # fmt: skip
    library.tw_pool_time.restype = None
    library.tw_pool_spin(knobs.get('spin_us'))
    _place()
    return library


def _place() -> None:
    """Keep this thread, and those of the pool, which it starts, on the CPUs of TILEWRIGHT_CPUS."""
    if knobs.get('cpus') and hasattr(os, 'sched_setaffinity'):
        os.sched_setaffinity(0, describe_host().allowed)


def aligned_empty(shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """An uninitialised array whose data begins on a cache line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def array_of(what: str, given: object) -> np.ndarray:
    """What a caller gives as an array; whatever it raises when it is asked for one is an
    ArrayError. Tensors of PyTorch are arrays unless they require gradients or are of bfloat16.
    """
    try:
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


# A lock that another thread held when the process was forked is never released in the child.
_locked: weakref.WeakSet = weakref.WeakSet()


def renew_lock_in_children(owner: object) -> None:
    """Give `owner` a new `_lock` in every child process that is forked."""
    _locked.add(owner)


def _renew_locks() -> None:
    for owner in _locked:
        owner._lock = threading.Lock()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_renew_locks)


class Kernel:
    """A loaded kernel. Not tied to weights: `pack` makes the packed constants that `run` needs."""

    def __init__(self, library: ctypes.CDLL, group: Group) -> None:
        self.group = group
        for name in ('tw_parts', 'tw_scratch_bytes', 'tw_packed_bytes'):
            getattr(library, name).restype = ctypes.c_long
        library.tw_pack.argtypes = [ctypes.POINTER(_POINTER), _POINTER]
        library.tw_pack.restype = None
        self._library = library
        self._run_pool = pool().tw_pool_run
        self._part = ctypes.cast(library.tw_part, _POINTER)
        self.parts = int(library.tw_parts())
        self._packed_bytes = int(library.tw_packed_bytes())
        self._scratch = aligned_empty((self.parts * int(library.tw_scratch_bytes()),), np.uint8)
        self._inputs = group.with_role('input')
        self._constants = group.with_role('constant')
        self._lock = threading.Lock()  # callers share the scratch and the arguments
        self._in = (_POINTER * max(len(self._inputs), 1))()
        self._args = _Args(self._in, None, None, self._scratch.ctypes.data)
        self._address = ctypes.addressof(self._args)
        self._same: tuple[int, ...] | None = None  # identities of the last run's arrays
        self._states: list[State] = []  # and what they were like
        self._watched: list[weakref.ref] = []
        renew_lock_in_children(self)

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

    def run(self, inputs: Mapping[str, np.ndarray], packed: np.ndarray, out: np.ndarray) -> None:
        """Compute into `out`, a C-contiguous array of the output's shape and dtype."""
        keep = self._checked(inputs, packed, out)
        given = [inputs[t.name] for t in self._inputs]
        with self._lock:
            self._fill(keep, packed, out)
            if all(a is b for a, b in zip(given, keep, strict=True)):
                self._remember(keep, packed, out)
            pool().tw_pool_run(self._part, self._address, self.parts)

    def run_again(self, inputs: Sequence[np.ndarray], packed: np.ndarray, out: np.ndarray) -> bool:
        """Compute if these are the arrays of the last run, which were checked then, unchanged.

        Most callers use their buffers again and again, and checking an array takes longer than some
        layers do. The same object is not enough: its shape, strides, dtype, flags and address can
        be changed in place. `packed` belongs to the caller in callable.py, who never changes it.
        """
        key = (id(packed), id(out), *map(id, inputs))
        with self._lock:
            if key != self._same:
                return False
            for fields, fields_then, sizes, sizes_then in self._states:
                if fields != fields_then or sizes != sizes_then:
                    return False
            self._run_pool(self._part, self._address, self.parts)
        return True

    def _remember(self, inputs: list[np.ndarray], packed: np.ndarray, out: np.ndarray) -> None:
        """Note whom the arguments point at, until one of them goes; the lock is held."""
        mine = weakref.ref(self)

        def forget(_: object) -> None:
            kernel = mine()
            if kernel is not None:
                kernel._same = None

        states = [state_of(array) for array in (out, *inputs)]
        self._states = [state for state in states if state is not None]
        if len(self._states) < len(states):
            return
        arrays = (packed, out, *inputs)
        self._watched = [weakref.ref(a, forget) for a in arrays]
        self._same = tuple(map(id, arrays))

    def time(
        self,
        inputs: Mapping[str, np.ndarray],
        packed: np.ndarray,
        out: np.ndarray,
        *,
        repeats: int,
    ) -> list[float]:
        """Seconds of each of `repeats` runs, taken in C."""
        keep = self._checked(inputs, packed, out)
        seconds = (ctypes.c_double * repeats)()
        with self._lock:
            self._fill(keep, packed, out)
            pool().tw_pool_time(self._part, self._address, self.parts, repeats, seconds)
        return list(seconds)

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

    def _fill(self, inputs: list[np.ndarray], packed: np.ndarray, out: np.ndarray) -> None:
        """Point the call's arguments at these arrays; the lock is held."""
        self._same = None
        for number, array in enumerate(inputs):
            self._in[number] = array.ctypes.data
        self._args.packed, self._args.out = packed.ctypes.data, out.ctypes.data


def _pointers(arrays: list[np.ndarray]) -> ctypes.Array:
    return (_POINTER * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
