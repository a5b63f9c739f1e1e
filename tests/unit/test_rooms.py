"""Memory that networks of several sizes share: constants are there once, new ones lie together."""

from __future__ import annotations

import numpy as np

from tilewright.runtime.cpu.calls import ALIGNMENT
from tilewright.runtime.cpu.rooms import HUGE_BYTES, SharedMemory, room


def block(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def address(array: np.ndarray) -> int:
    return array.__array_interface__['data'][0]


def test_constants_of_later_networks_are_kept_once_and_lie_in_one_room():
    memory, words = SharedMemory(), block(1000, 0)
    first = memory.constants('net', {('long', 'words'): words})
    assert first['long', 'words'] is words

    given = {
        ('short', 'words'): words[:600].copy(),  # begins the longer one
        ('other', 'words'): block(300, 1),
        ('other', 'bias'): block(100, 2),
        ('another', 'bias'): block(100, 2),  # the same again
    }
    kept = memory.constants('net', given)
    assert kept['short', 'words'] is words
    for key, array in given.items():
        assert np.array_equal(kept[key][: array.nbytes], array)
    assert address(kept['other', 'bias']) == address(kept['another', 'bias'])
    assert kept['other', 'bias'].base is kept['other', 'words'].base
    assert all(address(kept[key]) % ALIGNMENT == 0 for key in list(given)[1:])
    assert memory.constants('net', given) == kept
    assert memory.weight_bytes == 1000 + 300 + 100


def test_nothing_new_takes_no_room():
    memory, words = SharedMemory(), block(64, 0)
    memory.constants('net', {('a', 'words'): words})
    assert memory.constants('net', {('b', 'words'): words.copy()})['b', 'words'] is words


def test_rooms_of_half_a_huge_page_begin_with_one():
    for size in (HUGE_BYTES // 2, HUGE_BYTES + 1):
        made = room('net', 'its values', size)
        assert made.nbytes == size
        assert address(made) % HUGE_BYTES == 0
    assert room('net', 'its values', 100).nbytes == 100
