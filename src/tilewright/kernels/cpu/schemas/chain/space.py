"""The space of the chain schema: tiles of the result, and how they are cut between threads.

Goes in: a group, an instruction set, a thread count. Comes out: few schedules, each of which is
priced (model/cpu/chain_time.py): by micro-kernels where parts are such that they can be, else plain
loops.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.operand import ROW_FLOATS
from tilewright.kernels.cpu.schemas.chain.across import rows_and_columns
from tilewright.kernels.cpu.schemas.chain.expand import block_of, why_not_expanded
from tilewright.kernels.cpu.schemas.chain.plan import plan_chain, tiled_stage
from tilewright.kernels.cpu.schemas.chain.rows import HELD, plane_strip, why_not_sliding
from tilewright.kernels.cpu.schemas.outer.space import register_tiles
from tilewright.kernels.cpu.schemas.pixels.plan import shape_of, why_no_pixels
from tilewright.kernels.cpu.schemas.pixels.space import BLOCK_BYTES
from tilewright.kernels.cpu.schemas.pixels.space import register_tiles as register_tiles_along
from tilewright.kernels.cpu.schemas.stencil.cover import Stencil, stencil
from tilewright.kernels.cpu.space import Cut, even_cuts, register_order, whole_tile
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule

CUTS = 3  # cuts between threads that are priced
SHAPES = 8  # register tiles that are priced
ROWS = (1, 2, 4, 8, 16)  # register tiles of a tile, one below the other
MOST_ROWS = 4  # of a sliding producer that are computed together
SPARE = 3  # registers for what is loaded
BLOCKS = (1, 4)  # blocks of channels of a part before both that a cache keeps; also all of them


def nest_schedule(group: Group, isa: str, tile: Mapping[str, int], parallel: Cut = ()) -> Schedule:
    """Plain loops over tiles of the result; dimensions that `tile` does not name are whole."""
    stage = tiled_stage(group)
    reg = {d: min(tile.get(d, size), size) for d, size in stage.sizes.items()}
    order = register_order(stage)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole_tile(stage, reg)))
    return Schedule('chain', isa, '', levels, parallel)


def product_schedule(
    group: Group, isa: str, reg: Mapping[str, int], tile: Mapping[str, int], *,
    rows: int, lanes: int, parallel: Cut = (), channels: int = 0,
) -> Schedule:  # fmt: skip
    """The last part by micro-kernels of `reg`, the first part in tiles of `tile`.

    What they do not name is one point in a micro-kernel, and whole in a tile. Panels of weights are
    outside: one of them stays in a near cache while the tile passes by. `channels`: of a part
    before both, at a time (0: all).
    """
    stage = tiled_stage(group)
    vector = vector_candidates(parts(group)[-1])[0]
    inner = dict.fromkeys(stage.sizes, 1) | dict(reg)
    around = {
        d: max(min(tile.get(d, whole), whole), inner[d])
        for d, whole in whole_tile(stage, inner).items()
    }
    around[vector] = -(-around[vector] // inner[vector]) * inner[vector]
    order = register_order(stage)
    levels = (Level.of('reg', order, inner), Level.of('l1', order, around))
    options = (('rows', rows), ('lanes', lanes))
    options += (('channels', channels),) if channels else ()
    return Schedule('chain', isa, vector, levels, parallel, 'l1', options)


def across_schedule(
    group: Group, isa: str, tile: tuple[int, int], height: int, *,
    rows: int, lanes: int, parallel: Cut = (),
) -> Schedule:  # fmt: skip
    """Pixels across the lanes: `tile` is channels and vectors of a register tile, `height` the rows
    of the image that are computed at once, the first part's `rows` at a time.
    """
    stage, last = tiled_stage(group), parts(group)[-1]
    down, across = rows_and_columns(last)
    channels = vector_candidates(last)[0]
    reg = dict.fromkeys(stage.sizes, 1) | {channels: tile[0], across: tile[1] * ISAS[isa].lanes}
    around = whole_tile(stage, reg) | {down: min(height, stage.sizes[down])}
    order = register_order(stage)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, around))
    return Schedule(
        'chain', isa, across, levels, parallel, 'l1', (('rows', rows), ('lanes', lanes))
    )


def chain_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """Tiles of some rows with the cuts that divide the work best."""
    made = [_product_choices, _across_choices] if _has_products(group) else [_nest_choices]
    for choices in made:
        yield from (s for s in choices(group, isa, threads) if _is_legal(group, s))


def _has_products(group: Group) -> bool:
    *before, slides, last = parts(group)
    return (
        len(before) < 2
        and bool(vector_candidates(last))
        and not why_not_sliding(slides)
        and not any(map(why_not_expanded, before))
    )


def _nest_choices(group: Group, isa: str, threads: int) -> Iterator[Schedule]:
    stage = tiled_stage(group)
    for cut in even_cuts(stage, threads, stage.parallel)[:CUTS]:
        for tile in _tiles(stage):
            yield nest_schedule(group, isa, tile, cut)


def _tiles(stage: Stage) -> Iterator[dict[str, int]]:
    """Tiles of one point of the first dimension, and some rows: of the last but one."""
    outer = dict.fromkeys(stage.parallel[:1], 1)
    along = [d for d in stage.parallel[1:] if stage.sizes[d] > 1]
    if len(along) < 2:
        yield outer
        return
    for count in ROWS:
        if count == 1 or count < stage.sizes[along[-2]]:
            yield outer | {along[-2]: count}


def _product_choices(group: Group, isa: str, threads: int) -> Iterator[Schedule]:
    *before, slides, last = parts(group)
    stage, shape = last.main, stencil(slides)
    contraction = contract(last, vector_candidates(last)[0])
    column, rows = stage.write.index[-1].names[0], contraction.pixels[-2:][0]
    free = [d for d in stage.parallel if d != column]
    regs = _shapes(contraction, ISAS[isa], column)
    for cut, reg in itertools.product(even_cuts(stage, threads, free)[:CUTS], regs):
        own = -(-stage.sizes[rows] // dict(cut).get(rows, 1))
        pitch = -(-reg[column] // ROW_FLOATS) * ROW_FLOATS
        lanes = _lanes(min(pitch, ISAS[isa].lanes, shape.across.extent))
        vectors = -(-reg[column] // lanes)
        most = max(1, min(MOST_ROWS, (ISAS[isa].registers - HELD - SPARE) // vectors))
        for height in dict.fromkeys(min(own, count * reg[rows]) for count in ROWS):
            tile = dict.fromkeys(contraction.pixels, 1) | {rows: height, column: reg[column]}
            tile[column] = stage.sizes[column]
            together = -(-height // -(-height // most))
            for channels in _held(before[0], shape, height, isa) if before else (0,):
                yield product_schedule(
                    group, isa, reg, tile, rows=together, lanes=lanes, parallel=cut,
                    channels=channels,
                )  # fmt: skip


def _across_choices(group: Group, isa: str, threads: int) -> Iterator[Schedule]:
    """Every register tile of the schema of pixels, with blocks that a second cache holds."""
    *before, _, last = parts(group)
    flat = flatten(last)
    shape = None if why_no_pixels(flat) else shape_of(flat)
    if before or shape is None or not shape.flat or not ISAS[isa].rows_emit:
        return
    stage, sizes = last.main, last.main.sizes
    down, across = rows_and_columns(last)
    lanes = _lanes(min(ISAS[isa].lanes, sizes[across]))
    vectors = -(-min(plane_strip(sizes[across], lanes), sizes[across]) // lanes)
    most = max(1, min(MOST_ROWS, (ISAS[isa].registers - HELD - SPARE) // vectors))
    row_bytes = 4 * sizes[shape.summed] * sizes[across]
    free = [d for d in stage.parallel if d != across]
    tiles = [(k, wide) for k, _, wide in register_tiles_along(flat, shape, ISAS[isa])]
    for cut in even_cuts(stage, threads, free)[:CUTS]:
        own = -(-sizes[down] // dict(cut).get(down, 1))
        limits = (max(1, limit // row_bytes) for limit in BLOCK_BYTES)
        heights = dict.fromkeys(-(-own // -(-own // most)) for most in limits)
        for tile, height in itertools.product(tiles, heights):
            rows = -(-height // -(-height // most))
            yield across_schedule(
                group, isa, tile, height, rows=rows, lanes=lanes, parallel=cut
            )  # fmt: skip


def _held(part: Group, shape: Stencil, height: int, isa: str) -> tuple[int, ...]:
    """Channels of a region, few first: whole blocks of those that are computed together; 0: all."""
    pixels = min(shape.down.reach(height), shape.down.extent) * part.output.shape[-1]
    columns = block_of(ISAS[isa], pixels)[2]
    return (*(columns * n for n in BLOCKS if columns * n < part.output.shape[1]), 0)


def _lanes(most: int) -> int:
    """The largest power of two of at least 2."""
    return max(2, 1 << (most.bit_length() - 1))


def _shapes(contraction: Contraction, isa: Isa, column: str) -> list[dict[str, int]]:
    """Register tiles that waste least of the image and of the last panel, large ones first; longest
    along the columns, which lie side by side in strips then.
    """
    sizes = contraction.stage.sizes
    others = [d for d in contraction.pixels if d != column]
    found = [t for t in register_tiles(contraction, isa) if all(t[d] < t[column] for d in others)]

    def waste(tile: dict[str, int]) -> tuple[float, int]:
        share, accumulators = 1.0, 1
        for d in (*contraction.pixels, contraction.vector):
            share *= -(-sizes[d] // tile[d]) * tile[d] / sizes[d]
            accumulators *= tile[d]
        return share - 0.01 * accumulators / isa.lanes, -accumulators

    return sorted(found, key=waste)[:SHAPES]


def _is_legal(group: Group, schedule: Schedule) -> bool:
    try:
        plan_chain(group, schedule)
    except ScheduleError:
        return False
    return True
