"""Compiled kernels of a network, and what is known of them once they are loaded.

Goes in: a group, its schedule and the file of its library. Comes out: `Library`, its functions and
how much memory they want.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilewright.errors import CheckError
from tilewright.kernels.cpu.scratch import rooms
from tilewright.kernels.cpu.sized import SizedCall
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

_POINTER = ctypes.c_void_p


@dataclass(frozen=True, slots=True)
class Compiled:
    """A group, the schedule that was chosen for it, and its library.

    predicted_s  what the model says that a call takes
    bound_s      what no kernel of the same algorithm can beat
    limit        what bounds it, by the model
    sized        where the library is for many sizes: this one
    """

    group: Group
    schedule: Schedule
    library: Path
    predicted_s: float = 0.0
    bound_s: float = 0.0
    limit: str = ''
    sized: SizedCall | None = None


class Library:
    """A loaded kernel: its sizes and functions.

    `packing` tells kernels apart that pack constants in their own ways; `scratch` is how many rooms
    its parts work in, and the bytes of one.
    """

    def __init__(self, path: Path, sized: SizedCall | None = None) -> None:
        try:
            library = ctypes.CDLL(str(path))
            for name in ('tw_parts', 'tw_scratch_bytes', 'tw_packed_bytes'):
                getattr(library, name).restype = ctypes.c_long
            library.tw_pack.argtypes = [_POINTER] * (2 if sized is None else 3)
            library.tw_pack.restype = None
            self.part = ctypes.cast(library.tw_part, _POINTER).value
        except (OSError, AttributeError) as error:
            raise CheckError(f'the compiled kernel {path.name} cannot be loaded: {error}') from None
        self.sizes = None
        if sized is None:
            self.pack, self.packing = library.tw_pack, self.part
            self.parts = int(library.tw_parts())
            shared = hasattr(library, 'tw_parts_share')
            self.scratch = rooms(self.parts, int(library.tw_scratch_bytes()), shared)
            self.packed_bytes = int(library.tw_packed_bytes())
            return
        self.sizes = (ctypes.c_long * len(sized.numbers))(*sized.numbers)
        self.pack, self.packing = partial(library.tw_pack, self.sizes), sized.packing
        self.parts, self.packed_bytes = sized.parts, sized.packed_bytes
        self.scratch = sized.scratch
