"""Where numpy keeps what an array is: looked up in C, without asking numpy.

Goes in: nothing. Comes out: whether executor.c may read the fields of an array itself. Asking numpy
for an address alone (`a.ctypes.data`) takes longer than some layers do. The fields are those that
NumPy's C API lays down (`PyArrayObject_fields` in numpy/ndarraytypes.h; its macros read them in
every compiled extension):

    count of references | type | data | nd | dimensions | strides | base | descr | flags

Where they are not found there (another implementation of Python, one without its lock), every call
is checked in Python.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

import numpy as np

_WORD, _HEADER = 8, 2  # bytes of a word; words of an object of Python before its own fields
_FIELDS = 7  # data, nd, dimensions, strides, base, descr, flags; the two that are int are padded
_DATA, _ND, _DIMENSIONS, _STRIDES, _DESCR, _FLAGS = 0, 1, 2, 3, 5, 6
CONTIGUOUS, ALIGNED, WRITEABLE = 0x0001, 0x0100, 0x0400  # NPY_ARRAY_*


@cache
def is_laid_out_so() -> bool:
    """Tried on arrays of which everything is known."""
    locked = getattr(sys, '_is_gil_enabled', lambda: True)()
    if (
        not locked
        or sys.implementation.name != 'cpython'
        or ctypes.sizeof(ctypes.c_void_p) != _WORD
    ):
        return False
    if object.__basicsize__ != _WORD * _HEADER or np.ndarray.__basicsize__ < (
        _WORD * (_HEADER + _FIELDS)
    ):
        return False
    whole = np.zeros((3, 5, 7), np.float32)
    return all(_agrees(array) for array in (whole, whole[1:, ::2], np.zeros(()), whole[:, 0, 0]))


def _words(address: int, count: int) -> list[int]:
    return list((ctypes.c_uint64 * count).from_address(address))


def _agrees(array: np.ndarray) -> bool:
    head, fields = _words(id(array), _HEADER), _words(id(array) + _WORD * _HEADER, _FIELDS)
    mask = (1 << 32) - 1  # of the words that hold an int, the upper half may be anything
    flags = fields[_FLAGS] & mask
    expected = (id(np.ndarray), array.ctypes.data, array.ndim, id(array.dtype))
    if (head[1], fields[_DATA], fields[_ND] & mask, fields[_DESCR]) != expected:
        return False
    said = (bool(flags & CONTIGUOUS), bool(flags & ALIGNED), bool(flags & WRITEABLE))
    if said != (array.flags.c_contiguous, array.flags.aligned, array.flags.writeable):
        return False
    if not array.ndim:
        return True
    sizes = [*_words(fields[_DIMENSIONS], array.ndim), *_words(fields[_STRIDES], array.ndim)]
    return sizes == [*array.shape, *array.strides]
