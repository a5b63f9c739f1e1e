"""Tensors of ONNX files: from the message, or from a file beside the model, to an array.

Goes in: a `TensorProto` and the folder of its model. Comes out: an array that owns its data.

Nothing is believed: sizes are compared with the bytes that are really there before anything is
allocated, and data outside the model is read only from plain files inside the model's folder that
have no other name, so that a model cannot make its reader look anywhere else.
"""

from __future__ import annotations

import math
import os
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np
from onnx import TensorProto

from tilewright.errors import ModelError
from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.types import ELEMENT_TYPES
from tilewright.importers.shapes import checked_shape

# Where a message keeps elements that are not raw bytes.
_FIELDS = {
    'f32': 'float_data',
    'f64': 'double_data',
    'i64': 'int64_data',
    'u64': 'uint64_data',
    'u32': 'uint64_data',
}


def element_type(number: int, what: str) -> str:
    """Our name of an ONNX element type; `what` says whose it is."""
    if number in ELEMENT_TYPES:
        return ELEMENT_TYPES[number]
    known = TensorProto.DataType.values()
    name = TensorProto.DataType.Name(number).lower() if number in known else f'number {number}'
    raise ModelError(
        f'{what} has elements of type {name}; supported are {", ".join(ELEMENT_TYPES.values())}'
    )


def array_of(tensor: TensorProto, folder: Path | None, what: str) -> np.ndarray:
    """The tensor as an array; `folder` is where external data may lie, `what` names the tensor."""
    dtype = element_type(tensor.data_type, what)
    shape = checked_shape(tuple(tensor.dims), what)
    count, kind = math.prod(shape), np.dtype(DTYPES[dtype])
    if tensor.HasField('segment'):
        raise ModelError(f'{what} is stored in segments, which are not supported; save it whole')
    if tensor.data_location == TensorProto.EXTERNAL:
        flat = _external(tensor, count, kind, folder, what)
    elif tensor.HasField('raw_data'):
        raw = tensor.raw_data
        _check_count(len(raw), count * kind.itemsize, 'bytes', what)
        flat = _native(np.frombuffer(raw, _stored(kind)), kind)
    else:
        flat = _typed(tensor, dtype, count, what)
    return flat.reshape(shape)


def _check_count(have: int, want: int, unit: str, what: str) -> None:
    if have != want:
        raise ModelError(
            f'{what} has {have} {unit} of data where its shape needs {want}; the file is damaged'
        )


def _stored(kind: np.dtype) -> np.dtype:
    """How elements lie in files: little-endian, truth values as bytes."""
    return np.dtype(np.uint8) if kind == np.bool_ else kind.newbyteorder('<')


def _native(flat: np.ndarray, kind: np.dtype) -> np.ndarray:
    return flat != 0 if kind == np.bool_ else flat.astype(kind, copy=False)


def _typed(tensor: TensorProto, dtype: str, count: int, what: str) -> np.ndarray:
    field = getattr(tensor, _FIELDS.get(dtype, 'int32_data'))
    _check_count(len(field), count, 'elements', what)
    if dtype == 'f16':  # bit patterns
        return np.array(field, np.int64).astype(np.uint16).view(np.float16)
    wide = np.array(field, np.float64 if dtype in ('f32', 'f64') else None)
    if dtype in ('f32', 'f64', 'bool'):
        return wide.astype(DTYPES[dtype])
    limits = np.iinfo(DTYPES[dtype])
    if count and not (limits.min <= min(field) and max(field) <= limits.max):
        raise ModelError(f'{what} has elements outside the range of {dtype}; the file is damaged')
    return np.array(field, DTYPES[dtype])


def _external(
    tensor: TensorProto, count: int, kind: np.dtype, folder: Path | None, what: str
) -> np.ndarray:
    """Elements from a file beside the model."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get('location', '')
    if folder is None:
        raise ModelError(
            f'{what} is stored in {location!r} beside the model; give the path of the model file, '
            f'not its contents'
        )
    offset = _number(entries, 'offset', 0, what)
    size = count * kind.itemsize
    length = _number(entries, 'length', size, what)
    _check_count(length, size, 'bytes', what)
    path = _inside(folder, location, what)
    # What was checked is what is read: a last component that is a link is not opened, and a pipe
    # is not waited for.
    flags = os.O_RDONLY | getattr(os, 'O_NOFOLLOW', 0) | getattr(os, 'O_NONBLOCK', 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise _refused(what, location, getattr(error, 'strerror', None) or str(error)) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _refused(what, location, 'it is not a plain file')
        if status.st_nlink > 1:
            raise _refused(what, location, 'it is a hard link; copy the file instead')
        if offset + length > status.st_size:
            raise ModelError(
                f'{what} needs bytes {offset} to {offset + length} of {location!r}, which has '
                f'{status.st_size}; the file is damaged'
            )
        with os.fdopen(os.dup(descriptor), 'rb') as file:
            file.seek(offset)
            flat = np.fromfile(file, _stored(kind), count)
            _check_count(flat.size, count, 'elements', what)
            return _native(flat, kind)
    finally:
        os.close(descriptor)


def _number(entries: dict[str, str], key: str, default: int, what: str) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise ModelError(f'{what} has {key} {text!r} of external data; it must be a whole number')
    return int(text)


def _inside(folder: Path, location: str, what: str) -> Path:
    """The file that a location means, if it is inside the folder by every one of its parts."""
    parts = PurePosixPath(location).parts
    if not parts or '\0' in location:
        raise _refused(what, location, 'it is not a file name')
    if location.startswith(('/', '\\')) or PureWindowsPath(location).drive:
        raise _refused(what, location, "it is an absolute path; data lies in the model's folder")
    if '..' in parts or '..' in PureWindowsPath(location).parts:
        raise _refused(what, location, "it leads out of the model's folder by '..'")
    path = folder
    for part in parts:
        path = path / part
        try:
            link = path.is_symlink()
        except OSError as error:  # a name that is too long
            raise _refused(what, location[:80], error.strerror or str(error)) from None
        if link:
            raise _refused(what, location, 'it is a symbolic link; copy the file instead')
    return path


def _refused(what: str, location: str, why: str) -> ModelError:
    return ModelError(f'{what} is stored in {location!r}, which is refused: {why}')
