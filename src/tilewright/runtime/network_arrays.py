"""Arrays of a network's call: what callers may give, in which order, and memory for results.

Goes in: the values that a network was compiled for, and what a caller passed. Comes out: arrays
that kernels can read and write as they are, or an ArrayError that says what was wrong. Networks of
every target use it.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Never

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tilewright.errors import ArrayError, InputError
from tilewright.graph.graph import DTYPES, Value
from tilewright.runtime.cpu.calls import aligned_empty
from tilewright.runtime.cpu.kernel import array_of
from tilewright.runtime.profile import Profile, explain_network


def contiguous(array: np.ndarray, value: Value) -> np.ndarray:
    """The array as kernels read it: of the value's type, in C order."""
    return np.ascontiguousarray(array, DTYPES[value.dtype])


def own(array: np.ndarray, value: Value) -> np.ndarray:
    """The same in memory of its own, so that keeping it keeps nothing else: not a whole file."""
    made = contiguous(array, value)
    base = made.base
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    alone = base is None or (isinstance(base, np.ndarray | bytes) and _bytes(base) == made.nbytes)
    return made if alone else made.copy()


def _bytes(base: np.ndarray | bytes) -> int:
    return base.nbytes if isinstance(base, np.ndarray) else len(base)


def from_bytes(memory: np.ndarray, value: Value) -> np.ndarray:
    """A copy of a value that lies at the beginning of these bytes."""
    kind = np.dtype(DTYPES[value.dtype])
    size = math.prod(value.shape) * kind.itemsize
    return memory[:size].copy().view(kind).reshape(value.shape)


def new_array(value: Value) -> np.ndarray:
    """Aligned memory for a value, not initialised."""
    return aligned_empty(value.shape, DTYPES[value.dtype])


def signature(inputs: Sequence[Value]) -> str:
    """'image f32[1,3,224,224]', for messages."""
    return ', '.join(map(typed, inputs)) or 'no inputs'


def by_position(network: str, inputs: Sequence[Value], arrays: Sequence[Any]) -> dict[str, Any]:
    """Arrays that a caller gives by position, by the names of the inputs."""
    if len(arrays) > len(inputs):
        raise ArrayError(
            f'{network} takes {len(inputs)} inputs ({signature(inputs)}), got {len(arrays)}'
        )
    return {value.name: array for value, array in zip(inputs, arrays, strict=False)}


def results_by_position(network: str, names: Sequence[str], out: Any) -> dict[str, Any]:
    """`out` of a call, one array or a sequence, by the names of the results."""
    if out is None:
        return {}
    if not isinstance(out, np.ndarray | Sequence):
        raise ArrayError(
            f'{network}: out is a {type(out).__name__}; give an array, or a list of {len(names)}'
        )
    listed = [out] if isinstance(out, np.ndarray) else list(out)
    if len(listed) != len(names):
        raise ArrayError(f'{network} has {len(names)} results, out has {len(listed)} arrays')
    return dict(zip(names, listed, strict=True))


def check_named(network: str, arrays: object, out: object) -> None:
    """Raise unless both are by name, as `run` takes them."""
    for what, given in (('inputs', arrays), ('out', out)):
        if not isinstance(given, Mapping):
            raise ArrayError(
                f'{network}: run takes {what} by name, in a dictionary; got a '
                f'{type(given).__name__}'
            )


def check_apart(network: str, out: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """Raise where two results would be written to the same memory; where each lies, in order."""
    spans = sorted(byte_bounds(array) for array in out if array.size)
    if any(end > first for (_, end), (first, _) in itertools.pairwise(spans)):
        raise ArrayError(f'{network}: two arrays of out overlap; give each its own')
    return spans


def lies_in(array: np.ndarray, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether an array has bytes in one of some spans, which are in order and apart."""
    first, end = byte_bounds(array)
    number = bisect_left(spans, (end, 0))
    return bool(array.size) and number > 0 and spans[number - 1][1] > first


def checked_input(value: Value, given: Any) -> np.ndarray:
    """What a caller gives for an input, C-contiguous and aligned; copied where it is not."""
    if type(given) is not np.ndarray:
        given = array_of(f'input {value.name!r}', given)
    if given.shape != value.shape:
        raise ArrayError(
            f'input {value.name!r} has shape {given.shape}; this network was compiled for '
            f'{value.shape}'
        )
    kind = DTYPES[value.dtype]
    if given.dtype != kind:
        raise ArrayError(
            f'input {value.name!r} is {given.dtype}; give {np.dtype(kind)}, such as '
            f'x.astype({np.dtype(kind).name!r})'
        )
    if given.flags.c_contiguous and given.flags.aligned:
        return given
    return np.array(given, kind, order='C')


def checked_result(value: Value, array: object) -> np.ndarray:
    """What a caller gives to write a result into; refused where kernels could not."""
    if not isinstance(array, np.ndarray):
        raise ArrayError(f'out of {value.name!r} is a {type(array).__name__}, not a numpy array')
    flags = array.flags
    if array.shape != value.shape or array.dtype != DTYPES[value.dtype] or not flags.c_contiguous:
        raise ArrayError(
            f'out of {value.name!r} has shape {array.shape} and dtype {array.dtype}; it must be a '
            f'C-contiguous {np.dtype(DTYPES[value.dtype])} array of shape {value.shape}'
        )
    if not flags.writeable or not flags.aligned:
        raise ArrayError(
            f'out of {value.name!r} must be writeable and aligned; allocate it with numpy.empty'
        )
    return array


def give_back() -> None:
    """Return memory that was freed to the system, where its allocator would keep it (glibc)."""
    trim = getattr(ctypes.CDLL(None), 'malloc_trim', None) if sys.platform == 'linux' else None
    if trim is not None:
        trim(0)


def example(value: Value) -> np.ndarray:
    """An input of order one, the same every time; zeros where it holds no fractions."""
    kind = np.dtype(DTYPES[value.dtype])
    if kind.kind != 'f':
        return np.zeros(value.shape, kind)
    return np.random.default_rng(0).standard_normal(value.shape).astype(kind)


def typed(value: Value) -> str:
    """'image f32[1,3,224,224]'"""
    return f'{value.name} {value.dtype}[{",".join(map(str, value.shape))}]'


class CalledNetwork(ABC):
    """What every network does with the arrays of a caller, whatever runs it."""

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Any, ...]  # each has a name
    mix: Mapping[str, Any] | None = None  # what chose its types, where precision was 'auto'

    @abstractmethod
    def run(
        self, arrays: Mapping[str, np.ndarray], out: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Results by name. Those in `out` are written there, the others into new arrays."""

    @abstractmethod
    def profile(self, *arrays: np.ndarray, calls: int = 20) -> Profile:
        """The time of every task, over some calls on these inputs, or on random ones."""

    def __call__(
        self,
        *arrays: np.ndarray,
        out: np.ndarray | Sequence[np.ndarray] | None = None,
        **named: np.ndarray,
    ) -> np.ndarray | tuple[np.ndarray, ...]:
        """Results in the network's order: an array if there is one, else a tuple.

        Inputs by position, or by name where names can be words of Python; `run` takes any name.
        """
        given = by_position(self.name, self.inputs, arrays)
        twice = sorted(given.keys() & named)
        if twice:
            raise ArrayError(f'{self.name}: input {twice[0]!r} is given twice')
        wanted = results_by_position(self.name, [v.name for v in self.outputs], out)
        results = tuple(self.run({**given, **named}, wanted).values())
        return results[0] if len(results) == 1 else results

    def __reduce__(self) -> Never:
        """Kernels and their memory belong to one process."""
        raise InputError(
            f'network {self.name} cannot be copied or pickled; write it with save= of compile, and '
            f'read the file with tilewright.load where it is needed'
        )

    def for_arrays(self, arrays: Mapping[str, Any]) -> Any:
        """The network of the sizes that these inputs have: this one, but for ranges."""
        return self

    def explain(self, *arrays: np.ndarray, calls: int = 20) -> str:
        """Where the time goes, what bounds it, what is left; measured now."""
        return explain_network(self.profile(*arrays, calls=calls))

    def _signature(self) -> str:
        return signature(self.inputs)

    def _examples(self, arrays: Sequence[np.ndarray], calls: int) -> dict[str, np.ndarray]:
        """Inputs for a profile of some calls: those given, or else random ones."""
        if not isinstance(calls, int) or calls < 1:
            raise InputError(f'calls is {calls!r}; ask for a whole number, at least 1')
        return by_position(self.name, self.inputs, arrays or tuple(map(example, self.inputs)))
