"""The space of the Winograd schema: sizes of tiles, and schedules made of decisions.

Goes in: a convolution's group. Comes out: whether tiles of any size can compute it, and schedules.
"""

from __future__ import annotations

import itertools

from tilewright.kernels.cpu.contraction import why_no_products
from tilewright.kernels.cpu.space import Cut
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import Tile, tile_of
from tilewright.ops.winograd import applies, matmul_stage
from tilewright.schedule.schedule import Level, Schedule

SIZES = (2, 3, 4, 5, 6, 7)
ONE_OR_MORE = (1, *SIZES)  # one output in one direction: the other's one-dimensional form


def why_not(group: Group) -> str:
    """Why no tile of outputs can be computed so; '' where one can."""
    if any(not applies(group, m) for m in itertools.product(ONE_OR_MORE, ONE_OR_MORE)):
        return why_no_products(group)
    return min({applies(group, m) for m in SIZES})


def winograd_schedule(
    group: Group, isa: str, m: Tile, run: int, vectors: int, k_panels: int,
    block: tuple[int, int, int], parallel: Cut = (),
) -> Schedule:  # fmt: skip
    """The schedule of these decisions: `block` is n, ph, pw; `k_panels` panels of k at once."""
    stage = matmul_stage(group, m)
    return points_schedule('winograd', stage, isa, m, run, vectors, k_panels, block, parallel)


def points_schedule(
    schema: str, stage: Stage, isa: str, m: Tile, run: int, vectors: int, k_panels: int,
    block: tuple[int, int, int], parallel: Cut = (),
) -> Schedule:  # fmt: skip
    """The same for any schema that multiplies at points, given the stage of its products."""
    sizes, width = stage.sizes, vectors * ISAS[isa].lanes
    whole = -(-sizes['k'] // width) * width
    order = tuple(sizes)
    reg = dict.fromkeys(sizes, 1) | {'k': width}
    held = dict(zip(('n', 'ph', 'pw'), block, strict=True))
    l1 = reg | {d: min(size, sizes[d]) for d, size in held.items()}
    l1 |= {'k': min(k_panels * width, whole), 'c': sizes['c']}
    l2 = l1 | {'t': sizes['t']}
    tiles = (reg, l1, l2, l2 | {'k': whole})
    levels = tuple(
        Level.of(name, order, tile)
        for name, tile in zip(('reg', 'l1', 'l2', 'l3'), tiles, strict=True)
    )
    down, across = tile_of(m)
    wide = (('mw', across),) if across != down else ()
    options = (('m', down), *wide, ('run', run))
    return Schedule(schema, isa, 'k', levels, parallel, '', options)
