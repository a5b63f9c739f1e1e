"""The space of Strassen along pixels: register tiles, blocks that are added, cuts between threads.

Goes in: a group in its flat form, an instruction set, a thread count. Comes out: schedules worth
pricing, which are few, and any legal one at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.schemas.pixels.plan import shape_of
from tilewright.kernels.cpu.schemas.pixels.space import (
    CUTS,
    MOST_VECTORS,
    pixels_schedule,
    sums_that_fit,
)
from tilewright.kernels.cpu.schemas.strassen_pixels.plan import (
    OPTIONS,
    SCHEMA,
    plan_strassen_pixels,
    why_not,
)
from tilewright.kernels.cpu.space import CACHE_LEVELS, Cut, cuts_up_to, even_cuts
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

BLOCK_BYTES = (96 << 10, 192 << 10, 320 << 10)  # of sums that are made at once


def strassen_pixels_schedule(
    group: Group, isa: str, tile: tuple[int, int], pairs: int, parallel: Cut, pack: str
) -> Schedule:
    """The schedule of these decisions: `tile` is channels and vectors of a register tile, `pairs`
    the pairs of strips whose sums are made at once.
    """
    channels, wide = tile
    block = pairs * 2 * wide * ISAS[isa].lanes
    made = pixels_schedule(group, isa, (channels, 1, wide), block, parallel, pack)
    across, around = made.vector, made.levels[1]
    # Images may be smaller than a block of whole pairs.
    whole = tuple((d, block if d == across else size) for d, size in around.tiles)
    return replace(
        made, schema=SCHEMA, options=OPTIONS, levels=(made.levels[0], replace(around, tiles=whole))
    )


def strassen_pixels_choices(
    group: Group, isa: str, threads: int, levels: int
) -> Iterator[Schedule]:
    """Every register tile that fills the registers, with each block and the best cuts."""
    if why_not(group) or not ISAS[isa].rows_emit:
        return
    shape = shape_of(group)
    assert shape is not None
    half = group.main.sizes[shape.channels] // 2
    free = [d for d in (shape.batch, shape.channels, shape.across.name) if d]
    pack, seen = CACHE_LEVELS[min(1, levels - 1)], set[Schedule]()
    for cut in even_cuts(group.main, threads, free)[:CUTS]:
        for vectors in range(1, MOST_VECTORS + 1):
            for channels in sums_that_fit(half, vectors, ISAS[isa]):
                for limit in BLOCK_BYTES:
                    pairs = _pairs_within(group, isa, (channels, vectors), limit, cut, pack)
                    schedule = strassen_pixels_schedule(
                        group, isa, (channels, vectors), pairs, cut, pack
                    )
                    if schedule not in seen and _legal(group, schedule):
                        seen.add(schedule)
                        yield schedule


def _pairs_within(
    group: Group, isa: str, tile: tuple[int, int], limit: int, cut: Cut, pack: str
) -> int:
    """Pairs of even blocks of each thread whose sums take at most so many bytes."""
    plan = plan_strassen_pixels(group, strassen_pixels_schedule(group, isa, tile, 1, (), pack))
    ways = dict(cut).get(plan.axis.name, 1)
    units = -(-plan.axis.size // plan.pair)
    each = -(-units // ways)
    most = max(1, limit // (4 * plan.piece_floats))
    return -(-each // -(-each // most))


def _legal(group: Group, schedule: Schedule) -> bool:
    try:
        plan_strassen_pixels(group, schedule)
    except ScheduleError:
        return False
    return True


def draw_strassen_pixels(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule | None:
    """Any register tile that fits, any block and any cut."""
    if why_not(group) or not ISAS[isa].rows_emit or random.random() >= 0.3:
        return None
    shape = shape_of(group)
    if shape is None:
        return None
    wide = random.randint(1, MOST_VECTORS)
    most = (ISAS[isa].registers - 1) // wide - 1
    channels = random.randint(1, min(most, group.main.sizes[shape.channels] // 2))
    free = [d for d in (shape.batch, shape.channels, shape.across.name) if d]
    cut = random.choice(cuts_up_to(group.main, most_threads, free))
    pack = random.choice(CACHE_LEVELS[:levels])
    schedule = strassen_pixels_schedule(
        group, isa, (channels, wide), random.randint(1, 5), cut, pack
    )  # fmt: skip
    return schedule if _legal(group, schedule) else None
