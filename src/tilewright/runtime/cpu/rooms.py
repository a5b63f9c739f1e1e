"""Memory of networks: rooms that fit this machine, and those that several networks share."""

from __future__ import annotations

import os
import threading

import numpy as np

from tilewright.errors import ModelError
from tilewright.runtime.cpu.calls import aligned_empty, renew_in_children


class SharedMemory:
    """Memory that networks of several sizes have in turns, and constants that they all read."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)
        self.rooms: dict[str, np.ndarray] = {}
        self.packed: dict[tuple, np.ndarray] = {}
        self.kept: dict[str, np.ndarray] = {}

    def renew(self) -> None:
        self._lock = threading.Lock()

    def room(self, network: str, what: str, size: int) -> np.ndarray:
        """Memory of at least so many bytes, the same for every network."""
        if what not in self.rooms or self.rooms[what].nbytes < size:
            self.rooms[what] = room(network, what, size)
        return self.rooms[what]

    def constants(self, key: tuple, packed: np.ndarray) -> np.ndarray:
        """Packed constants as they are kept: once, also where smaller ones begin larger ones."""
        if key not in self.packed:
            alike = (kept for (_, names), kept in self.packed.items() if names == key[1])
            same = (kept for kept in alike if np.array_equal(kept[: packed.nbytes], packed))
            self.packed[key] = next(same, packed)
        return self.packed[key]

    @property
    def weight_bytes(self) -> int:
        arrays = (*self.packed.values(), *self.kept.values())
        return sum({id(array): array.nbytes for array in arrays}.values())


def room(network: str, what: str, size: int) -> np.ndarray:
    """Memory for a network, if this machine has so much."""
    there = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    try:
        if size > there:
            raise MemoryError
        return aligned_empty((size,), np.uint8)
    except MemoryError:
        raise ModelError(
            f'{network} needs {size / 2**30:.1f} GiB for {what}, where this machine has '
            f'{there / 2**30:.1f} GiB for everything; compile it for smaller inputs'
        ) from None
