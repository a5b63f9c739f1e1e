"""The space of the schema of pixels: register tiles, blocks that are copied, cuts between threads.

Goes in: a group, an instruction set, a thread count. Comes out: schedules worth pricing, which are
few, and any legal one at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.isa.x86_rows import registers_needed
from tilewright.kernels.cpu.schemas.pixels.corner import corner_pixels
from tilewright.kernels.cpu.schemas.pixels.plan import Shape, plan_pixels, shape_of, why_no_pixels
from tilewright.kernels.cpu.space import (
    CACHE_LEVELS,
    Cut,
    cuts_up_to,
    even_cuts,
    register_order,
    whole_tile,
)
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Level, Schedule

CUTS = 3  # cuts between threads that are priced
# That are copied at once: what second caches have room for.
BLOCK_BYTES = (192 << 10, 384 << 10, 640 << 10)
MOST_VECTORS = 4


def pixels_schedule(
    group: Group, isa: str, tile: tuple[int, int, int], block: int, parallel: Cut, pack: str
) -> Schedule:
    """The schedule of these decisions: `tile` is channels, rows and vectors of a register tile,
    `block` the results along rows, or pixels of the only row, that are copied at once.
    """
    stage, shape = group.main, shape_of(group)
    assert shape is not None
    channels, high, wide = tile
    reg = dict.fromkeys(stage.sizes, 1) | {shape.channels: channels}
    reg[shape.across.name] = wide * ISAS[isa].lanes
    if shape.down.name:
        reg[shape.down.name] = high
    order = register_order(stage)
    around = whole_tile(stage, reg)
    axis = shape.down.name or shape.across.name
    around[axis] = min(around[axis], -(-block // reg[axis]) * reg[axis])
    levels = (Level.of('reg', order, reg), Level.of(pack, order, around))
    return Schedule('pixels', isa, shape.across.name, levels, parallel, pack)


def pixels_choices(group: Group, isa: str, threads: int, levels: int) -> Iterator[Schedule]:
    """Every register tile that fills the registers, with each block and the best cuts."""
    shape = None if why_no_pixels(group) else shape_of(group)
    if shape is None or not ISAS[isa].rows_emit:
        return
    free = [d for d in (shape.batch, shape.channels, shape.down.name or shape.across.name) if d]
    pack, seen = CACHE_LEVELS[min(1, levels - 1)], set[Schedule]()
    for cut in even_cuts(group.main, threads, free)[:CUTS]:
        for tile in register_tiles(group, shape, ISAS[isa]):
            for limit in BLOCK_BYTES:
                block = block_within(group, isa, tile, limit, cut, pack)
                schedule = pixels_schedule(group, isa, tile, block, cut, pack)
                if schedule not in seen and _legal(group, schedule):
                    seen.add(schedule)
                    yield schedule


def block_within(
    group: Group, isa: str, tile: tuple[int, int, int], limit: int, cut: Cut, pack: str
) -> int:
    """Results of even blocks of each thread whose copies take at most so many bytes."""
    plan = plan_pixels(group, pixels_schedule(group, isa, tile, 1, (), pack))
    size = -(-plan.axis.size // dict(cut).get(plan.axis.name, 1))
    each = plan.schedule.reg.tile[plan.axis.name]
    most = 1
    for count in range(1, -(-size // each) + 1):
        if 4 * replace(plan, block=count * each).buffer_floats > limit:
            break
        most = count
    blocks = -(-size // (most * each))
    even = -(-size // blocks)
    return -(-even // each) * each


def register_tiles(group: Group, shape: Shape, isa: Isa) -> Iterator[tuple[int, int, int]]:
    """(channels, rows, vectors) whose sums keep the multiply-add units busy."""
    size, lines = group.main.sizes[shape.channels], shape.down.size if shape.down.name else 1
    row = -(-shape.across.size // isa.lanes)
    corner = corner_pixels(shape.across.size, isa.lanes) if shape.flat else 0
    for vectors in range(1, MOST_VECTORS + 1):
        for high in (h for h in range(1, vectors + 1) if vectors % h == 0):
            wide = vectors // high
            if high > lines or wide > row or (high > 1 and wide < min(row, 2)):
                continue
            for channels in sums_that_fit(size, vectors, isa, corner):
                yield channels, high, wide


def sums_that_fit(size: int, vectors: int, isa: Isa, corner: int = 0) -> Iterator[int]:
    """Channels, of `size`, of register tiles of so many vectors that are worth pricing; those
    among them that leave registers for the last few pixels.
    """
    wanted = isa.fma_per_cycle * isa.fma_latency_cycles
    most = (isa.registers - 1) // vectors - 1
    fewer = max(1, (isa.registers - 1 - corner) // vectors - 1)
    blocks, more = -(-size // most), -(-size // fewer)
    for count in sorted({blocks, blocks + 1, more}):
        channels = -(-size // count)
        busy = channels * vectors >= wanted or channels == size
        if busy and registers_needed(channels, vectors) <= isa.registers:
            yield channels


def _legal(group: Group, schedule: Schedule) -> bool:
    try:
        plan_pixels(group, schedule)
    except ScheduleError:
        return False
    return True


def draw_pixels(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule | None:
    """Any register tile that fits, any block and any cut."""
    shape = None if why_no_pixels(group) else shape_of(group)
    if shape is None or not ISAS[isa].rows_emit or random.random() >= 0.3:
        return None
    wide = random.randint(1, MOST_VECTORS)
    high = random.randint(1, MOST_VECTORS // wide) if shape.down.name else 1
    wide = min(wide, -(-shape.across.size // ISAS[isa].lanes))
    high = min(high, shape.down.size) if shape.down.name else 1
    most = (ISAS[isa].registers - 1) // (high * wide) - 1
    channels = random.randint(1, min(most, group.main.sizes[shape.channels]))
    axis = shape.down if shape.down.name else shape.across
    free = [d for d in (shape.batch, shape.channels, axis.name) if d]
    cut = random.choice(cuts_up_to(group.main, most_threads, free))
    pack = random.choice(CACHE_LEVELS[:levels])
    block = random.randint(1, axis.size)
    schedule = pixels_schedule(group, isa, (channels, high, wide), block, cut, pack)
    return schedule if _legal(group, schedule) else None
