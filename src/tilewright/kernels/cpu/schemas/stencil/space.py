"""The space of the stencil schema: lanes of a vector, rows and vectors of a register tile, cuts.

Goes in: a group, an instruction set, a thread count. Comes out: all schedules whose accumulators
and weights fit the registers, which are few, and any legal one at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tilewright.kernels.cpu.contraction import why_no_products
from tilewright.kernels.cpu.schemas.stencil.cover import Stencil, fits, stencil, why_not
from tilewright.kernels.cpu.space import (
    Cut,
    cuts_up_to,
    even_cuts,
    register_order,
    whole_tile,
)
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Level, Schedule

CUTS = 2  # cuts between threads that are priced
HELD = 9  # weights that a compiler keeps in registers where it has many
SPARE = 3  # registers for what is loaded


def why_no_stencil(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can."""
    return why_no_products(group) or why_not(group)


def stencil_schedule(
    group: Group, isa: str, lanes: int, rows: int, vectors: int,
    parallel: Cut = (),
) -> Schedule:  # fmt: skip
    """The schedule of these decisions: register tiles of `rows` x `vectors` of `lanes` floats."""
    stage, shape = group.main, stencil(group)
    reg = dict(stage.sizes) | dict.fromkeys(shape.outer, 1)
    reg[shape.across.name] = lanes * vectors
    if shape.down.name:
        reg[shape.down.name] = rows
    order = register_order(stage)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole_tile(stage, reg)))
    name = shape.across.name
    return Schedule('stencil', isa, name, levels, parallel, '', (('lanes', lanes),))


def stencil_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """Every register tile with each of the cuts that divide the work best."""
    shape = stencil(group)
    for cut in even_cuts(group.main, threads, (*shape.outer, shape.down.name))[:CUTS]:
        for lanes, rows, vectors in register_tiles(shape, ISAS[isa]):
            ways = dict(cut).get(shape.down.name, 1)
            if -(-shape.down.size // rows) >= ways:
                yield stencil_schedule(group, isa, lanes, rows, vectors, cut)


def register_tiles(shape: Stencil, isa: Isa) -> Iterator[tuple[int, int, int]]:
    """(lanes, rows, vectors) whose accumulators and weights fit the registers."""
    held = min(shape.taps, HELD) if isa.by_lane else 1
    room = isa.registers - held - SPARE
    lanes = isa.lanes
    while lanes >= min(4, isa.lanes):
        for vectors in _even(-(-shape.across.size // lanes), room):
            for rows in _even(shape.down.size, room // vectors):
                if fits(shape, lanes, rows, vectors):
                    yield lanes, rows, vectors
        lanes //= 2


def _even(size: int, most: int) -> list[int]:
    """Extents up to `most` that cut `size` into pieces as equal as they can be, largest first."""
    pieces = {-(-size // count) for count in range(1, size + 1)}
    return sorted((extent for extent in pieces if extent <= most), reverse=True)


def draw_stencil(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Lanes, rows and vectors of any size whose code is not too long, and any cut."""
    if why_not(group) or random.random() >= 0.4:
        return None
    shape = stencil(group)
    lanes = random.choice([n for n in (2, 4, 8, 16) if n <= ISAS[isa].lanes])
    rows, vectors = random.randint(1, min(8, shape.down.size)), random.randint(1, 5)
    while not fits(shape, lanes, rows, vectors):
        rows, vectors = max(1, rows - 1), max(1, vectors - 1)
    cuts = cuts_up_to(group.main, most_threads, (*shape.outer, shape.down.name))
    return stencil_schedule(group, isa, lanes, rows, vectors, random.choice(cuts))
