"""The space of the outer-product schema: register tiles, and schedules made of decisions.

Goes in: the roles of dimensions, an instruction set. Comes out: register tiles that keep the
multiply-add units busy, schedules, and any legal schedule at random.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from random import Random

from tilewright.kernels.cpu.contraction import (
    Contraction,
    contract,
    vector_candidates,
    why_no_products,
)
from tilewright.kernels.cpu.isa import tiles
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.operand import reads_outside
from tilewright.kernels.cpu.space import (
    CACHE_LEVELS,
    Cut,
    cuts_up_to,
    register_order,
    shuffled,
    whole_tile,
)
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Level, Schedule


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can."""
    if vector_candidates(flatten(group), moving=True):
        return why_no_products(group)
    return f'no dimension of {group.label} indexes one operand and the result alone'


def register_tiles(contraction: Contraction, isa: Isa) -> list[dict[str, int]]:
    """Register tiles that keep the FMA units busy: enough accumulators, few enough registers.

    Little's law (MOpt Sec. 6) asks for `fma_per_cycle * fma_latency_cycles` accumulators; where
    registers or dimensions do not allow that many, for as many as there can be.
    """
    if isa.rows:
        return list(_tile_tiles(contraction, isa))
    wanted = isa.fma_per_cycle * isa.fma_latency_cycles
    found: list[dict[str, int]] = []
    while not found and wanted >= 0:
        found = list(_busy_tiles(contraction, isa, wanted))
        wanted -= 1
    return found


def _busy_tiles(contraction: Contraction, isa: Isa, wanted: int) -> Iterator[dict[str, int]]:
    """Register tiles of at least so many accumulators, or of all pixels.

    The last two pixel dimensions may be blocked, so that narrow images fill a tile with several
    rows; rows are not shorter than the tile is high, unless they are whole, since neighbours along
    a row are loaded and stored together.
    """
    sizes = contraction.stage.sizes
    blocked = contraction.pixels[-2:]
    most = -(-sizes[contraction.vector] // isa.lanes)
    for vectors in range(1, min(4, most) + 1):
        fitting = (
            p
            for p in range(isa.registers, 0, -1)
            if registers_needed(p, vectors, isa.weight_registers) <= isa.registers
        )
        limit = next(fitting, 0)
        ranges = [range(1, min(limit, sizes[d]) + 1) for d in blocked]
        for extents in itertools.product(*ranges):
            pixels = math.prod(extents)
            if pixels > limit:
                continue
            whole = all(e == sizes[d] for e, d in zip(extents, blocked, strict=True))
            if pixels * vectors < wanted and not whole:
                continue
            if len(extents) > 1 and extents[-1] < min(extents[-2], sizes[blocked[-1]]):
                continue
            tile = dict.fromkeys(sizes, 1) | dict(zip(blocked, extents, strict=True))
            yield tile | {contraction.vector: vectors * isa.lanes}


def _tile_tiles(contraction: Contraction, isa: Isa) -> Iterator[dict[str, int]]:
    """Pixels and lanes of at most four tiles of sums, rows in even tiles of at most 16 pixels."""
    sizes = contraction.stage.sizes
    blocked = contraction.pixels[-2:]
    most = -(-sizes[contraction.vector] // isa.lanes)
    for vectors in range(1, min(tiles.MOST_SUMS, most) + 1):
        for extents in itertools.product(*(_even(sizes[d], isa.rows) for d in blocked)):
            high, wide = [1, 1, *extents][-2:]
            if high > tiles.MOST_SUMS or not tiles.fits(tiles.row_tiles(extents), vectors):
                continue
            if high > 1 and wide < min(sizes[blocked[-1]], isa.rows // 2):
                continue
            tile = dict.fromkeys(sizes, 1) | dict(zip(blocked, extents, strict=True))
            yield tile | {contraction.vector: vectors * isa.lanes}


def _even(size: int, rows: int) -> list[int]:
    """Lengths of even pieces of a dimension, and of whole tiles."""
    most = min(tiles.MOST_SUMS * rows, size)
    found = {-(-size // pieces) for pieces in range(1, size + 1)} | {*range(rows, most, rows)}
    return sorted(e for e in found if e <= most)


def assemble(
    group: Group, isa: str, vector: str, reg: Mapping[str, int],
    tiles: tuple[Mapping[str, int], ...], orders: tuple[tuple[str, ...], ...],
    parallel: Cut, pack: str,
) -> Schedule:  # fmt: skip
    """The schedule of these decisions; tiles may not be smaller than the register tile."""
    stage = group.main
    levels = [Level.of('reg', register_order(stage), reg)]
    whole = whole_tile(stage, reg)
    for number, (tile, order) in enumerate(zip(tiles, orders, strict=True)):
        inner = levels[-1].tile
        fitted = {d: min(max(t, inner[d]), whole[d]) for d, t in tile.items()}
        fitted[vector] = -(-fitted[vector] // reg[vector]) * reg[vector]
        levels.append(Level.of(CACHE_LEVELS[number], order, fitted))
    return Schedule('outer', isa, vector, tuple(levels), parallel, pack)


def draw_outer(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule | None:
    """Any legal tiles, orders, cut and pack level; None where others should have their turn."""
    stage = group.main
    candidates = vector_candidates(group, moving=True)
    if not candidates:
        return None
    contraction = contract(group, random.choice(candidates))
    if random.random() < 0.25:
        return None
    reg = random.choice(list(_any_register_tiles(contraction, ISAS[isa], random)))
    order = (*shuffled(stage.parallel, random), *shuffled(stage.reduction, random))
    made = [Level.of('reg', order, reg)]
    whole = whole_tile(stage, reg)
    for name in CACHE_LEVELS[:levels]:
        inner = made[-1].tile
        tile = {d: _random_tile(inner[d], whole[d], random) for d in stage.sizes}
        width = reg[contraction.vector]
        tile[contraction.vector] = -(-tile[contraction.vector] // width) * width
        tile |= {d: stage.sizes[d] for d in contraction.unrolled}
        if ISAS[isa].rows and contraction.loop:  # whole tiles of words
            deep = tiles.depth(contraction)[0]
            tile[contraction.loop] = -(-tile[contraction.loop] // deep) * deep
        made.append(Level.of(name, shuffled(tuple(stage.sizes), random), tile))
    parallel = random.choice(cuts_up_to(stage, most_threads, stage.parallel))
    packs = [level.name for level in made[1:]]
    if not reads_outside(group, contraction):
        packs.append('')
    return Schedule('outer', isa, contraction.vector, tuple(made), parallel, random.choice(packs))


def _any_register_tiles(
    contraction: Contraction, isa: Isa, random: Random
) -> Iterator[dict[str, int]]:
    """Some register tiles that fit, good or not."""
    sizes = contraction.stage.sizes
    if isa.rows:
        for vectors in range(1, tiles.MOST_SUMS + 1):
            for _ in range(4):
                tile = dict.fromkeys(sizes, 1) | {contraction.vector: vectors * isa.lanes}
                for name in random.sample(contraction.pixels[-2:], len(contraction.pixels[-2:])):
                    others = [tile[d] for d in contraction.pixels]
                    place = contraction.pixels.index(name)
                    fits = [
                        e
                        for e in range(1, sizes[name] + 1)
                        if tiles.fits(
                            tiles.row_tiles([*others[:place], e, *others[place + 1 :]]), vectors
                        )
                    ]
                    tile[name] = random.choice(fits or [1])
                yield tile
        return
    for vectors in range(1, 5):
        for _ in range(4):
            tile = dict.fromkeys(sizes, 1) | {contraction.vector: vectors * isa.lanes}
            for name in contraction.pixels:
                others = math.prod(tile[d] for d in contraction.pixels)
                fits = [
                    e
                    for e in range(1, sizes[name] + 1)
                    if registers_needed(others * e, vectors, isa.weight_registers) <= isa.registers
                ]
                tile[name] = random.choice(fits or [1])
            yield tile


def _random_tile(low: int, high: int, random: Random) -> int:
    return random.choice((low, high, random.randint(min(low, high), max(low, high))))
