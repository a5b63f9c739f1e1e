"""The space of the chain schema: tiles of the result, and how they are cut between threads.

Goes in: a group, an instruction set, a thread count. Comes out: few schedules, each of which is
priced (model/cpu/chain_time.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.kernels.cpu.schemas.chain.plan import plan_chain, tiled_stage
from tilewright.kernels.cpu.space import Cut, even_cuts, register_order, whole_tile
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule

CUTS = 2  # cuts between threads that are priced
ROWS = (1, 2, 4, 8, 16)


def nest_schedule(group: Group, isa: str, tile: Mapping[str, int], parallel: Cut = ()) -> Schedule:
    """Plain loops over tiles of the result; dimensions that `tile` does not name are whole."""
    stage = tiled_stage(group)
    reg = {d: min(tile.get(d, size), size) for d, size in stage.sizes.items()}
    order = register_order(stage)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole_tile(stage, reg)))
    return Schedule('chain', isa, '', levels, parallel)


def product_schedule(
    group: Group, isa: str, reg: Mapping[str, int], tile: Mapping[str, int], *,
    rows: int, lanes: int, parallel: Cut = (), order: tuple[str, ...] = (),
) -> Schedule:  # fmt: skip
    """The last part by micro-kernels of `reg` (vectors counted in lanes of one float), tiles of the
    first part of `tile`; what these do not name is one point, or whole. `order` is that of register
    tiles inside a tile.
    """
    stage = tiled_stage(group)
    vector = vector_candidates(parts(group)[-1])[0]
    inner = dict.fromkeys(stage.sizes, 1) | dict(reg)
    whole = whole_tile(stage, inner)
    around = {d: max(min(tile.get(d, size), size), inner[d]) for d, size in whole.items()}
    around[vector] = -(-around[vector] // inner[vector]) * inner[vector]
    levels = (
        Level.of('reg', (*(order or stage.parallel), *stage.reduction), inner),
        Level.of('l1', register_order(stage), around),
    )
    options = (('rows', rows), ('lanes', lanes))
    return Schedule('chain', isa, vector, levels, parallel, 'l1', options)


def chain_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """Tiles of some rows, or of one point of the outer dimensions, with the best cuts."""
    stage = tiled_stage(group)
    for cut in even_cuts(stage, threads, stage.parallel)[:CUTS]:
        for tile in _tiles(stage):
            made = nest_schedule(group, isa, tile, cut)
            if _fits(group, made):
                yield made


def _fits(group: Group, schedule: Schedule) -> bool:
    try:
        plan_chain(group, schedule)
    except ScheduleError:
        return False
    return True


def _tiles(stage: Stage) -> Iterator[dict[str, int]]:
    """Tiles of one point of what comes before rows, and some rows."""
    outer = dict.fromkeys((d for d in stage.parallel[:1]), 1)
    along = [d for d in stage.parallel[1:] if stage.sizes[d] > 1]
    rows = along[-2] if len(along) > 1 else ''
    for count in ROWS if rows else (1,):
        if not rows or count < stage.sizes[rows] or count == 1:
            yield outer | ({rows: count} if rows else {})
