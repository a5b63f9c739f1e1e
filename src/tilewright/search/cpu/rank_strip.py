"""From a group of products to ranked schedules in tiles along strips of pixels.

Goes in: a group of bf16 or of 8-bit numbers, a machine, a thread count. Comes out: `Candidate`s,
best first; none on a machine without tiles. There are so few schedules that each is priced.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.half.words import PRODUCTS
from tilewright.kernels.cpu.schemas.strip.plan import strip_choices
from tilewright.machine.isa import tile_isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.strip_time import predict_strip
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import IN_BYTES, factors, in_words
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.rank_tile_rows import rank_tile_rows


def rank_strip(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate] of bf16."""
    return _ranked(group, machine, threads, top) if machine.bf16 else ()


def rank_byte_strip(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """The same of 8-bit numbers."""
    return _ranked(group, machine, threads, top) if machine.tiles else ()


def _ranked(group: Group, machine: Machine, threads: int, top: int) -> tuple[Candidate, ...]:
    flat = flatten(group)
    dtype = flat.tensor(factors(flat)[0].tensor).dtype
    form = in_words(flat, PRODUCTS if dtype == 'bf16' else IN_BYTES)
    if form is not None and rank_tile_rows(form.group, machine.in_tiles(dtype), threads):
        return ()  # weights come from memory, which the schedules of rows ask for ahead
    found = [
        Candidate(schedule, predict_strip(flat, schedule, machine))
        for schedule in strip_choices(flat, tile_isa(machine.isa), dtype, threads)
    ]
    return tuple(sorted(found, key=lambda c: (c.prediction.seconds, c.schedule.digest))[:top])
