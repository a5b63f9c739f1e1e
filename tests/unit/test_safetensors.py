"""The safetensors format: round trips, and every way in which a file may be broken."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.rank.safetensors import LARGEST_BYTES, dump, load_file, parse, save_file

ARRAYS = {
    'a': np.arange(6, dtype=np.float32).reshape(2, 3),
    'empty': np.zeros((0, 4), np.float32),
    'one': np.array(3.5),
    'whole': np.array([1, -2, 3], np.int32),
}


def packed(header, body: bytes = b'') -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack('<Q', len(text)) + text + body


def entry(begin: int, end: int, shape=(2,), dtype: str = 'F32') -> dict:
    return {'dtype': dtype, 'shape': list(shape), 'data_offsets': [begin, end]}


def test_round_trip(tmp_path) -> None:
    path = tmp_path / 'x.safetensors'
    save_file(path, ARRAYS, {'header': '{"k": 1}'})
    arrays, metadata = load_file(path)
    assert metadata == {'header': '{"k": 1}'}
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(arrays[name], array)
    assert not list(tmp_path.glob('*.tmp'))


def test_layout_is_that_of_the_format() -> None:
    data = dump({'b': np.array([1, 2], np.float32), 'a': np.array([7], np.int32)}, {'k': 'v'})
    (length,) = struct.unpack('<Q', data[:8])
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    assert header['__metadata__'] == {'k': 'v'}
    assert header['a'] == entry(0, 4, (1,), 'I32')
    assert header['b'] == entry(4, 12)
    assert data[8 + length :] == struct.pack('<iff', 7, 1.0, 2.0)


def test_what_another_writer_made_is_read() -> None:
    data = packed({'x': entry(8, 16), 'y': entry(0, 8)}, struct.pack('<4f', 1, 2, 3, 4))
    arrays, metadata = parse(data, 'x')
    assert arrays['y'].tolist() == [1, 2]
    assert arrays['x'].tolist() == [3, 4]
    assert metadata == {}


@pytest.mark.parametrize(
    ('data', 'said'),
    [
        (b'', 'ends after 0 bytes'),
        (b'\x01\x02', 'ends after 2 bytes'),
        (struct.pack('<Q', 1 << 60) + b'{}', 'header has'),
        (packed(b'{'), 'not JSON'),
        (packed(b'\xff\xfe'), 'not JSON'),
        (packed(b'[' * 100_000), 'not JSON'),
        (packed(b'[]'), 'not a JSON object'),
        (packed(b'{"a": 1, "a": 2}'), 'twice'),
        (packed({'a': entry(0, 8)}, bytes(7)), 'offsets are 0 to 8'),
        (packed({'a': entry(0, 8)}, bytes(9)), 'end at byte 8 of 9'),
        (packed({'a': entry(0, 8), 'b': entry(4, 12)}, bytes(12)), 'begins at byte 4'),
        (packed({'a': entry(0, 8), 'b': entry(12, 20)}, bytes(20)), 'begins at byte 12'),
        (packed({'a': entry(0, 8, (3,))}, bytes(8)), 'takes 12 bytes'),
        (packed({'a': entry(0, 8, (2,), 'F16')}, bytes(8)), 'F16'),
        (packed({'a': entry(0, 8, (2,), 'O')}, bytes(8)), "dtype 'O'"),
        (packed({'a': entry(-8, 0)}, bytes(8)), 'whole numbers'),
        (packed({'a': entry(0, 8, (-1, -2))}, bytes(8)), 'whole numbers'),
        (packed({'a': {'dtype': 'F32', 'shape': 2, 'data_offsets': [0, 8]}}, bytes(8)), 'whole'),
        (packed({'a': {'dtype': 'F32'}}, bytes(8)), 'lacks'),
        (packed({'a': 3}, bytes(8)), 'lacks'),
        (packed({'__metadata__': {'a': 3}}), 'texts'),
    ],
)
def test_broken_files_are_refused_in_one_sentence(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        parse(data, 'x.safetensors')
    assert '\n' not in str(caught.value)


def test_dtypes_that_models_have_not_are_not_written() -> None:
    with pytest.raises(InputError, match='int64'):
        dump({'a': np.zeros(2, np.int64)}, {})
    with pytest.raises(InputError, match='object'):
        dump({'a': np.array([{}])}, {})


def test_a_huge_file_is_not_read(tmp_path) -> None:
    path = tmp_path / 'huge.safetensors'
    with open(path, 'wb') as file:
        file.truncate(LARGEST_BYTES + 1)
    with pytest.raises(InputError, match='at most'):
        load_file(path)
