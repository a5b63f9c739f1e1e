"""Where the parts of kernels that follow each other have their scratch memory.

Goes in: how many parts each kernel has, and the bytes that one works in. Comes out: `Scratch`, by
which a part lies in the same place whatever the kernel.
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
        """[(parts, bytes of a part)] -> [Scratch]"""
        needs = list(kernels)
        lines = max((-(-size // LINE_BYTES) for parts, size in needs if parts > 1), default=0)
        step = (
            lines | 1
        ) * LINE_BYTES  # an odd number of lines: parts use different sets of a cache
        made = cls(step, 0)
        return cls(step, max((made.end(*need) for need in needs), default=0))

    def shift(self, parts: int, size: int) -> int:
        """How much further apart parts are than a kernel places them."""
        return self.step - size if parts > 1 and size else 0

    def end(self, parts: int, size: int) -> int:
        """Bytes from the beginning of a kernel's first part to the end of its last."""
        return (parts - 1) * (size + self.shift(parts, size)) + size


NO_SCRATCH = Scratch(0, 0)
