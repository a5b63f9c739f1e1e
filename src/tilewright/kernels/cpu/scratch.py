"""Where the parts of kernels that follow each other have their scratch memory.

Goes in: how many rooms each kernel has, one for each part or one for all, and the bytes of one.
Comes out: `Scratch`, by which a part has the same memory whatever the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LINE_BYTES = 64


@dataclass(frozen=True, slots=True)
class Scratch:
    """Memory that kernels work in, the same for part p of every one of them.

    Where each kernel had its parts side by side, what one thread wrote last lay where another one
    wrote next, in another core's cache: ResNet-18 took 1.05 times as long on two cores.

    step   bytes from one part to the next, of kernels that have several
    bytes  of all
    """

    step: int
    bytes: int

    @classmethod
    def of(cls, kernels: Iterable[tuple[int, int]]) -> Scratch:
        """[(rooms, bytes of one)] -> [Scratch]"""
        needs = list(kernels)
        lines = max((-(-size // LINE_BYTES) for rooms, size in needs if rooms > 1), default=0)
        step = (lines | 1) * LINE_BYTES  # odd: parts on one core use different sets of its caches
        made = cls(step, 0)
        return cls(step, max((made.end(*need) for need in needs), default=0))

    def shift(self, rooms: int, size: int) -> int:
        """How much further apart parts are than a kernel places them."""
        return self.step - size if rooms > 1 and size else 0

    def end(self, rooms: int, size: int) -> int:
        """Bytes from the beginning of a kernel's first part to the end of its last."""
        return (rooms - 1) * (size + self.shift(rooms, size)) + size


def rooms(parts: int, size: int, shared: bool) -> tuple[int, int]:
    """(rooms, bytes of one) of a kernel with so many parts, `size` bytes for each."""
    return (1, parts * size) if shared else (parts, size)


NO_SCRATCH = Scratch(0, 0)
