"""From a matrix product to ranked Strassen schedules, by modelling alone.

    levels x cuts between threads x register tiles x rows and columns computed together x pieces

Register tiles are sorted by the micro-kernels' cycles for each cut, and the best few priced with
all else (`model.cpu.strassen_time`). Deterministic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tilewright.errors import InputError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.outer.space import register_tiles
from tilewright.kernels.cpu.schemas.strassen.plan import blocks_of, why_no_blocks
from tilewright.kernels.cpu.schemas.strassen.space import strassen_schedule
from tilewright.kernels.cpu.space import Cut, thread_cuts
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import tile_cycles
from tilewright.model.cpu.strassen_time import predict_strassen
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.strassen import MOST_LEVELS, PRODUCTS, predicted_error
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.rank_outer import even

TILES = 4  # register tiles that are priced in full, for each cut between threads
ROW_BLOCKS = (1, 2, 3, 4, 6, 8)  # into how many rows of a part are cut
COLUMN_BLOCKS = (1, 2, 4)
DEEPEST = (192, 384)  # terms of a piece, at most: panels then stay in the first cache


def rank_strassen(
    group: Group, machine: Machine, threads: int, top: int, max_rel_err: float = DEFAULT_LIMIT,
    growth: float = math.inf,
) -> tuple[Candidate, ...]:  # fmt: skip
    """[Group, Machine] -> [Candidate], best first; none where blocks would be too small.

    `growth` is how many times as many weights there may be as the product has.
    """
    if top < 1:
        raise InputError(f'top={top}; ask for at least one candidate')
    flat = flatten(group)
    c = contract(flat, vector_candidates(flat)[0])
    found = []
    for levels in range(1, MOST_LEVELS + 1):
        if why_no_blocks(flat, c, levels) or (PRODUCTS / 4) ** levels > growth:
            break
        if predicted_error(flat, c.loop, levels) > max_rel_err:
            break
        for schedule in _schedules(flat, c, machine, threads, levels):
            found.append(Candidate(schedule, predict_strassen(flat, schedule, machine)))
    found.sort(key=lambda x: (x.prediction.seconds, x.schedule.digest))
    return tuple(found[:top])


def _schedules(
    group: Group, c: Contraction, machine: Machine, threads: int, levels: int
) -> Iterator[Schedule]:
    block = blocks_of(group, c.vector, levels)
    stage, row = block.main, c.pixels[-1]
    smaller, isa = contract(block, c.vector), ISAS[machine.isa]
    cuts: list[Cut] = []
    while not cuts:  # fewer threads where there are not enough register tiles for all
        names = (*c.pixels, c.vector)
        cuts = [cut for cut in thread_cuts(stage, threads) if all(d in names for d, _ in cut)]
        threads -= 1
    tiles = [
        reg
        for reg in register_tiles(smaller, isa)
        if all(reg[d] == 1 for d in c.pixels[:-1])
        and micro.in_place(isa, reg[row], reg[c.vector] // isa.lanes)
    ]
    deepest = sorted({even(stage.sizes[c.loop], most) for most in DEEPEST})
    for cut in cuts:
        fits = [r for r in tiles if all(-(-stage.sizes[d] // r[d]) >= ways for d, ways in cut)]

        def made(reg: dict[str, int], high: int, wide: int, deep: int, cut: Cut = cut) -> Schedule:
            return strassen_schedule(
                group, machine.isa, c.vector, levels, reg, high, wide, deep, cut
            )

        def whole(reg: dict[str, int], cut: Cut = cut) -> tuple[float, int]:
            schedule = made(reg, *_largest(stage, reg, row, c.vector), deepest[-1], cut)
            return sum(tile_cycles(block, schedule, machine)), -reg[row]

        for reg in sorted(fits, key=whole)[:TILES]:
            part = part_extents(stage, made(reg, *_largest(stage, reg, row, c.vector), 1))
            rows = {_blocked(part[row], ways, reg[row]) for ways in ROW_BLOCKS}
            columns = {_blocked(part[c.vector], ways, reg[c.vector]) for ways in COLUMN_BLOCKS}
            for choice in itertools.product(sorted(rows), sorted(columns), deepest):
                yield made(reg, *choice)


def _largest(stage, reg: dict[str, int], row: str, vector: str) -> tuple[int, int]:
    return tuple(-(-stage.sizes[d] // reg[d]) * reg[d] for d in (row, vector))


def _blocked(size: int, ways: int, unit: int) -> int:
    """Whole units of as many even blocks."""
    each = -(-size // ways)
    return -(-each // unit) * unit
