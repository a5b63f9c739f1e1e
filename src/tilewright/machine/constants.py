"""What the time model of a CPU cannot count: costs of single steps, as one value of a machine.

Goes in: an instruction set. Comes out: `TimeConstants`, the defaults for it, or what
`tilewright machine --calibrate` fitted on a host (targets/cpu/calibrate.py) and keeps in its file.
docs/model.md says where the defaults come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from tilewright.errors import InputError


@dataclass(frozen=True, slots=True)
class TimeConstants:
    """Costs in cycles of one core, and shares, as outer_time.py and stencil_time.py use them.

    The values here were fitted to random and to ranked schedules on a Neoverse-N1.
    """

    exposed_l1: float = 0.077  # share of the time to fill each cache that nothing hides
    exposed_l2: float = 0.217
    exposed_l3: float = 0.114
    call_cycles: float = 6.0  # entering and leaving a micro-kernel
    accumulator_cycles: float = 0.44  # clearing and storing one accumulator
    tile_cycles: float = 21.0  # finding a register tile's place, asking for the lines it goes to
    switch_cycles: float = (
        11.7  # another micro-kernel than the most frequent: a branch not foreseen
    )
    resume_cycles: float = 1.5  # storing an accumulator and loading it again
    resume_pixel_cycles: float = 0.8  # the same for a pixel: lines from its neighbour's
    store_cycles: float = 0.58  # one result element: transposed, through the epilogue, stored
    store_turned_cycles: float = 0.25  # the same, where micro-kernels keep pixels across vectors
    store_apart_cycles: float = 0.77  # beside that, where pixels are not neighbours in the result
    store_line_cycles: float = 0.0  # beside that, a line of results whose cache set is too full
    pack_call_cycles: float = 74.0  # one input tile copied, whatever its size
    pack_cycles: float = 0.53  # one element of an input tile, beside moving it between caches
    pack_row_cycles: float = 9.4  # one row of it, where there are no strips
    pack_strip_cycles: float = 0.27  # one strip of such a row
    pack_broken_cycles: float = 12.0  # one that is not whole: copied by a loop that asks everything
    pack_apart_cycles: float = 0.26  # one element that does not lie beside the one before
    pack_from: float = 0.64  # share of the time to bring in the lines that are copied from
    pack_into: float = 0.48  # share of the time to bring in and write back those copied to
    panel_cycles: float = 0.2  # one element of panels that are packed in every call: copied
    panel_turned_cycles: float = 0.6  # the same where it is transposed
    vector_cycles: float = 0.2  # one load of weights, beside the busiest units: from afar
    in_place_cycles: float = 0.46  # one load of pixels in place: channels are lines and pages apart
    row_cycles: float = 0.2  # the same where iterations walk along rows (a Xeon with AVX-512)
    chain: float = 1.0  # of the latency of a sum; less where cores look ahead into the next tile
    written: float = 1.2  # what a line of results counts beside one that is read: it moves twice
    resumed: float = 8.8  # a line of accumulators taken up again: the next step waits for it
    page_cycles: float = 0.65  # one miss in a first-level TLB
    walk_cycles: float = 15.0  # one miss in a second-level TLB, mostly hidden

    transform: float = 1.0  # of the cycles of Winograd's transforms that winograd_time.py counts

    stencil_cycles: float = 1.0  # of those that stencil_time.py counts
    stencil_row_cycles: float = 0.13  # one row of one tile, read or written
    stencil_tile_cycles: float = 2.2  # one tile: its loop
    stencil_filter_cycles: float = 10.5  # one plane of results: pointers, weights into registers
    stencil_load_cycles: float = 0.07  # one load, beside the busiest units: half are not aligned
    stencil_store_cycles: float = 0.18  # one vector stored, beside the busiest units
    stencil_spill_cycles: float = 3.7  # one accumulator without a register, for each of its rows
    stencil_exposed: float = 0.59  # share of the time of a stencil's traffic that nothing hides
    stencil_memory: float = 0.59  # the same of traffic that comes from memory

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0:
                raise InputError(
                    f'the time constant {name} is {value!r}; it must be a finite number, 0 or more'
                )

    @property
    def exposed(self) -> tuple[float, ...]:
        return self.exposed_l1, self.exposed_l2, self.exposed_l3

    def to_json(self) -> dict[str, float]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TimeConstants:
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown:
            raise InputError(
                f'a machine file has the unknown time constant {min(unknown)!r}; calibrate again'
            )
        return cls(**data)


COMMON = TimeConstants()
# By `--calibrate` on a Xeon (Cascade Lake, one core), what moved by a tenth or more;
# `stencil_memory` by Y0 with two threads: stores bring lines in before they are written back.
# `transform` by first layers and by 3x3 layers from 128 to 32 channels, with two threads.
_DEFAULTS = {
    'avx512': replace(
        COMMON, exposed_l2=0.18, resume_cycles=1.05, store_cycles=0.45, store_apart_cycles=1.7,
        store_line_cycles=5.5, pack_call_cycles=50.0, pack_broken_cycles=15.0,
        pack_apart_cycles=0.31, in_place_cycles=0.26, chain=0.81, stencil_exposed=0.65,
        stencil_memory=2.0, transform=1.4,
    )
}  # fmt: skip


def default_constants(isa: str) -> TimeConstants:
    """The constants of a machine with this instruction set that was not calibrated."""
    return _DEFAULTS.get(isa, COMMON)
