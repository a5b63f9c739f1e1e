"""Named arrays in one file of the safetensors format: a length, a JSON header, raw numbers.

    8 bytes         N, unsigned, little-endian
    N bytes         JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
                    "__metadata__": {"key": "text"}}, padded with spaces
    the rest        the numbers, little-endian, row-major; offsets count from here

Goes in: bytes or a path. Comes out: arrays and the texts of `__metadata__`. Nothing in such a file
runs. What is cut off, overlaps, leaves gaps, has bytes behind the last array, or numbers of a dtype
that models do not have, is refused in one sentence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.files import read_regular, replacing

METADATA = '__metadata__'
LARGEST_HEADER = 16 << 20
LARGEST_BYTES = 64 << 20
_LENGTH = 8  # bytes of N
_ALIGNED = 8
# The format has more; these are what a model here consists of.
DTYPES = {'F32': np.dtype('<f4'), 'F64': np.dtype('<f8'), 'I32': np.dtype('<i4')}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def dump(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> bytes:
    """[arrays, texts] -> [bytes of a file]; arrays in the order of their names."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    body: list[bytes] = []
    at = 0
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        little = array.dtype.newbyteorder('<')
        if little not in _NAMES:
            raise InputError(
                f'{name} has numbers of dtype {array.dtype}; give one of '
                f'{", ".join(str(dtype) for dtype in _NAMES)}'
            )
        data = array.astype(little, copy=False).tobytes()
        header[name] = {
            'dtype': _NAMES[little], 'shape': list(array.shape),
            'data_offsets': [at, at + len(data)],
        }  # fmt: skip
        body.append(data)
        at += len(data)
    text = json.dumps(header, sort_keys=True, allow_nan=False).encode()
    text += b' ' * (-(_LENGTH + len(text)) % _ALIGNED)
    return b''.join([len(text).to_bytes(_LENGTH, 'little'), text, *body])


def parse(data: bytes, name: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """[bytes of a file] -> [arrays, texts]; `name` is what errors call it."""
    if len(data) < _LENGTH:
        raise _refusal(name, f'it ends after {len(data)} bytes')
    length = int.from_bytes(data[:_LENGTH], 'little')
    if length > min(LARGEST_HEADER, len(data) - _LENGTH):
        raise _refusal(name, f'its header has {length} bytes, and the file {len(data)}')
    header = _header(data[_LENGTH : _LENGTH + length], name)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _refusal(name, f'{METADATA} does not map names to texts')
    body = memoryview(data)[_LENGTH + length :]
    entries = sorted(
        (_entry(name, key, value, len(body)) for key, value in header.items()),
        key=lambda entry: (entry[3], entry[4]),
    )
    at = 0
    for key, _, _, begin, end in entries:
        if begin != at:
            raise _refusal(name, f'{key} begins at byte {begin}, and the one before ends at {at}')
        at = end
    if at != len(body):
        raise _refusal(name, f'its arrays end at byte {at} of {len(body)}')
    return {
        key: np.frombuffer(body[begin:end], dtype).reshape(shape)
        for key, dtype, shape, begin, end in entries
    }, metadata


def _header(text: bytes, name: str) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise _refusal(name, f'its header is not JSON: {error}') from None
    if not isinstance(header, dict):
        raise _refusal(name, 'its header is not a JSON object')
    return header


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError('a name occurs twice')
    return found


def _entry(
    name: str, key: str, value: Any, size: int
) -> tuple[str, np.dtype, tuple[int, ...], int, int]:
    """(name, dtype, shape, begin, end) of one array, checked against each other."""
    try:
        dtype, shape, (begin, end) = value['dtype'], value['shape'], value['data_offsets']
    except (KeyError, TypeError, ValueError):
        raise _refusal(name, f'{key} lacks its dtype, shape or offsets') from None
    if dtype not in DTYPES:
        raise _refusal(name, f'{key} has dtype {dtype!r}, not one of {", ".join(DTYPES)}')
    numbers = [*shape, begin, end] if isinstance(shape, list) else [None]
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers):
        raise _refusal(name, f'the shape and offsets of {key} are not whole numbers from 0 on')
    wanted = math.prod(shape) * DTYPES[dtype].itemsize
    if end > size or end - begin != wanted:
        raise _refusal(
            name, f'{key} of shape {shape} takes {wanted} bytes, its offsets are {begin} to {end} '
            f'of {size}'
        )  # fmt: skip
    return key, DTYPES[dtype], tuple(shape), begin, end


def _refusal(name: str, why: str) -> InputError:
    return InputError(f'{name} is not a complete safetensors file: {why}; write it again')


def save_file(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write a file; under its name only when complete."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as made:
            made.write_bytes(dump(arrays, metadata))
    except OSError as error:
        raise InputError(f'{path} cannot be written: {error.strerror}') from None


def load_file(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """(arrays, texts) of a file of at most `LARGEST_BYTES`."""
    try:
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise InputError(
                f'{path} has {size} bytes, and a model has at most {LARGEST_BYTES}; name another'
            )
        data = read_regular(path)
    except FileNotFoundError:
        raise InputError(f'{path} does not exist; train a model, or name another') from None
    except OSError as error:
        raise InputError(f'{path} cannot be read: {error.strerror}') from None
    return parse(data, str(path))
