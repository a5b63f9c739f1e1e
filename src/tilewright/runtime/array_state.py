"""Is an array what it was? Its address, shape, strides, dtype and flags, compared in nanoseconds.

Goes in: a numpy array. Comes out: `State`, two pairs of memory views; the array is as it was while
the two of each pair are equal. Python can change all of these on an array that stays the same
object: `a.shape = ..`, `a.strides = ..`, `a.dtype = ..`, `a.setflags(..)`, `a.__setstate__(..)`.

Asking numpy for the address alone (`a.ctypes.data`) takes longer than some layers do. So the views
look at the fields themselves, which NumPy's C API lays down (`PyArrayObject_fields` in
numpy/ndarraytypes.h; its macros read them in every compiled extension):

    object header | data | nd | dimensions | strides | base | descr | flags
                                    |            |
                                    v            v
                              [shape .. | strides ..]     one block of 2 nd words

`state_of` is None where the fields are not found there (another implementation of Python, say).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

_WORD = 8
_FIELDS = 7  # data, nd, dimensions, strides, base, descr, flags; the two that are int are padded
_DATA, _ND, _DIMENSIONS, _STRIDES, _FLAGS = 0, 1, 2, 3, 6
_WRITEABLE = 0x0400  # NPY_ARRAY_WRITEABLE

# (fields now, fields then, shape and strides now, shape and strides then). The second pair may be
# looked at only if the first one is equal: else numpy may have given that block back.
State = tuple[memoryview, memoryview, memoryview, memoryview]


def state_of(array: np.ndarray) -> State | None:
    """What to compare later, as long as the array lives; None where it cannot be told."""
    return _state(array) if _is_laid_out_so() else None


def _state(array: np.ndarray) -> State:
    fields = _words(id(array) + object.__basicsize__, _FIELDS)
    sizes = _words(fields[_DIMENSIONS], 2 * array.ndim)
    return fields, _kept(fields), sizes, _kept(sizes)


def _words(address: int, count: int) -> memoryview:
    """Memory as it changes; of a format that memoryviews compare without unpacking."""
    cells: Any = (ctypes.c_char * (_WORD * count)).from_address(address) if count else b''
    return memoryview(cells).cast('B').cast('Q')


def _kept(words: memoryview) -> memoryview:
    return memoryview(words.tobytes()).cast('Q')


@cache
def _is_laid_out_so() -> bool:
    """Tried on arrays of which everything is known."""
    if ctypes.sizeof(ctypes.c_void_p) != _WORD or np.ndarray.__basicsize__ < (
        object.__basicsize__ + _WORD * _FIELDS
    ):
        return False
    whole = np.zeros((3, 5, 7), np.float32)
    return all(_agrees(array) for array in (whole, whole[1:, ::2], np.zeros(()), whole[:, 0, 0]))


def _agrees(array: np.ndarray) -> bool:
    fields = _words(id(array) + object.__basicsize__, _FIELDS)
    mask = (1 << 32) - 1  # of the words that hold an int, the upper half may be anything
    flags = fields[_FLAGS] & mask
    if fields[_DATA] != array.ctypes.data or fields[_ND] & mask != array.ndim:
        return False
    array.setflags(write=False)
    if flags ^ (fields[_FLAGS] & mask) != _WRITEABLE:
        return False
    if not array.ndim:
        return True
    if fields[_STRIDES] != fields[_DIMENSIONS] + _WORD * array.ndim:
        return False
    sizes = _words(fields[_DIMENSIONS], 2 * array.ndim)
    return sizes.tolist() == [*array.shape, *array.strides]
