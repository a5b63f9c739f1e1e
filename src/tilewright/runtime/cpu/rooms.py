"""Memory of networks: rooms that fit this machine, and those that several networks share."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.runtime.cpu.calls import ALIGNMENT, aligned_empty, renew_in_children

HUGE_BYTES = 2 << 20  # of a huge page


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

    def constants(
        self, network: str, blocks: Mapping[tuple, np.ndarray]
    ) -> dict[tuple, np.ndarray]:
        """Packed constants by key as they are kept: once, also where small ones begin large ones.

        Those of the first network lie in one room; what a later one adds is moved into another, so
        that huge pages hold it as well.
        """
        first, new = not self.packed, []
        for key, packed in blocks.items():
            if key not in self.packed:
                alike = (kept for (_, names), kept in self.packed.items() if names == key[1])
                same = (kept for kept in alike if np.array_equal(kept[: packed.nbytes], packed))
                self.packed[key] = next(same, packed)
                if self.packed[key] is packed:
                    new.append(packed)
        if not first:
            moved = {id(old): made for old, made in zip(new, together(network, new), strict=True)}
            for key in blocks:
                self.packed[key] = moved.get(id(self.packed[key]), self.packed[key])
        return {key: self.packed[key] for key in blocks}

    @property
    def weight_bytes(self) -> int:
        arrays = (*self.packed.values(), *self.kept.values())
        return sum({id(array): array.nbytes for array in arrays}.values())


def together(network: str, blocks: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Copies of these bytes in one room, each from the beginning of a line on."""
    ends = np.cumsum([-(-block.nbytes // ALIGNMENT) * ALIGNMENT for block in blocks]).tolist()
    whole = room(network, 'its weights', ends[-1] if ends else 0)
    made = [whole[start:][: b.nbytes] for start, b in zip([0, *ends], blocks, strict=False)]
    for copy, block in zip(made, blocks, strict=True):
        copy[:] = block
    return made


def room(network: str, what: str, size: int) -> np.ndarray:
    """Memory for a network, if this machine has so much.

    Rooms of half a huge page or more are whole ones: numpy asks for them where arrays have 4 MiB.
    """
    there = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
    try:
        if size > there:
            raise MemoryError
        if 2 * size < HUGE_BYTES:
            return aligned_empty((size,), np.uint8)
        whole = -(-size // HUGE_BYTES) * HUGE_BYTES
        return aligned_empty((whole,), np.uint8, HUGE_BYTES)[:size]
    except MemoryError:
        raise ModelError(
            f'{network} needs {size / 2**30:.1f} GiB for {what}, where this machine has '
            f'{there / 2**30:.1f} GiB for everything; compile it for smaller inputs'
        ) from None
