"""From a convolution to ranked Winograd schedules, by modelling alone.

    rows x columns of a tile    where the error model stays below the limit and products are saved
    x cuts between threads x (run of tiles, vectors of k) x blocks of tiles x blocks of k

Shapes of tiles are sorted by what no schedule can avoid: the bound, the transforms, and a part of
reading the weights, which is what small images wait for. For the first of them the other choices
are priced by the numbers (`model.winograd_time`), in microseconds each, all with one block of k and
the best of them with others; only the best become schedules.
Deterministic: ties are broken by the numbers themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tilewright.errors import InputError
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.schemas.winograd.space import ONE_OR_MORE, winograd_schedule
from tilewright.kernels.cpu.space import Cut, even_cuts
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.winograd_time import (
    WINOGRAD,
    PointsModel,
    Work,
    cycles,
    is_moving,
    lower_bound_winograd,
    predict_points,
    seconds,
    transform_time,
    weights_time,
)
from tilewright.ops.group import Group
from tilewright.ops.tiles import Axis, Tile, TileGeometry, product_stage
from tilewright.ops.winograd import applies, geometry
from tilewright.ops.winograd_error import DEFAULT_LIMIT, predicted_error
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import Candidate

MOST_TILES = 112  # tiles of a block: beyond, V leaves every L2 and nothing is gained
SHAPES = 8  # shapes of tiles that are priced in full
# Of the time that weights take to be read, as shapes are sorted: most arrive while products are
# computed. With all of it shapes with many weights were left out whose best schedules were 5 to 18%
# faster (docs/winograd.md).
WEIGHTS_SEEN = 0.25
CUTS = 3  # cuts between threads that are carried on, for each shape
USUAL_PANELS = 4  # panels of k whose products are held at once, where choices are compared
OTHER_PANELS = (1, 2, 8, 16)
WIDE = 4  # vectors of k from which on panels are of one kind
CARRIED = 12  # register tiles and blocks that are priced with every number of panels

HOPE = 1.1  # a shape whose bound exceeds the best time by more is not priced

Shape = tuple[int, int]  # rows and columns of outputs of a tile
# Seconds, and those without regard to the bound, which tell apart what the bound makes equal.
Priced = tuple[float, float, Shape, Cut, tuple[int, int], int, tuple[int, int, int]]


def rank_winograd(
    group: Group, machine: Machine, threads: int, top: int, max_rel_err: float = DEFAULT_LIMIT,
    growth: float = math.inf,
) -> tuple[Candidate, ...]:  # fmt: skip
    """[Group, Machine] -> [Candidate], best first; none where Winograd does not apply or pay.

    `growth` is how many times as many weights there may be as the convolution has.
    """
    shapes = [m for m in tiles_within(group, max_rel_err) if weight_growth(group, m) <= growth]
    return rank_points(group, machine, threads, top, shapes, WINOGRAD, winograd_schedule)


def rank_points(
    group: Group, machine: Machine, threads: int, top: int, shapes: Sequence[Shape],
    model: PointsModel, make: Callable[..., Schedule],
) -> tuple[Candidate, ...]:  # fmt: skip
    """The same for any algorithm that multiplies at points; `make` makes its schedules."""
    if top < 1:
        raise InputError(f'top={top}; ask for at least one candidate')
    isa = ISAS[machine.isa]
    priced: list[Priced] = []
    best = math.inf
    for bound, m in _promising(group, machine, isa, threads, shapes, model):
        if bound > HOPE * best:
            continue
        priced += _price(group, machine, isa, m, threads, model)
        best = min(best, min(item[0] for item in priced))
    return tuple(
        Candidate(schedule, predict_points(group, schedule, machine, model))
        for schedule in _distinct(group, machine.isa, sorted(priced), top, make)
    )


def _promising(
    group: Group, machine: Machine, isa: Isa, threads: int, shapes: Sequence[Shape],
    model: PointsModel,
) -> list[tuple[float, Shape]]:  # fmt: skip
    """(bound, shape) of those that take least by what no schedule can avoid, best first."""
    found = []
    for m in shapes:
        bound = lower_bound_winograd(group, m, machine, threads, model)
        around = transform_time(group, m, isa, machine, threads, model)
        around += WEIGHTS_SEEN * weights_time(group, m, machine, threads, model)
        found.append((bound + around, bound, m))
    return [(bound, m) for _, bound, m in sorted(found)[:SHAPES]]


def _price(
    group: Group, machine: Machine, isa: Isa, m: Shape, threads: int, model: PointsModel
) -> list[Priced]:
    """The choices for one shape of tiles, with their times."""
    shape = model.geometry(group, m)
    stage = product_stage(shape)
    tiles = _register_tiles(isa, shape)
    found = []
    free = [d for d in stage.parallel if d != 't']
    for cut in even_cuts(stage, threads, free)[:CUTS]:
        ways = dict(cut)
        part = {d: -(-size // ways.get(d, 1)) for d, size in stage.sizes.items()}
        bound = lower_bound_winograd(group, m, machine, math.prod(ways.values()), model)
        total_of = partial(_total, shape, isa, machine, part, ways, model, is_moving(group))
        usual = sorted(
            (
                total_of((tile, USUAL_PANELS, block)),
                tile,
                block,
            )
            for tile in tiles
            for block in _blocks(part)
        )
        for number, (total, tile, block) in enumerate(usual):
            found.append((max(total, bound), total, m, cut, tile, USUAL_PANELS, block))
            for held in OTHER_PANELS if number < CARRIED else ():
                total = total_of((tile, held, block))
                found.append((max(total, bound), total, m, cut, tile, held, block))
    return found


def _total(
    shape: TileGeometry[Axis], isa: Isa, machine: Machine, part: Mapping[str, int],
    ways: Mapping[str, int], model: PointsModel, moving: bool,
    choice: tuple[tuple[int, int], int, tuple[int, int, int]],
) -> float:  # fmt: skip
    """Seconds of one choice of register tile, panels of k and block, the bound left aside."""
    tile, held, block = choice
    width = tile[1] * isa.lanes
    panels = -(-shape.k // width)
    k = min(-(-panels // ways.get('k', 1)) * width, shape.k)
    work = Work(
        shape, isa, *tile, min(held, panels) * width, block,
        (part['n'], part.get('g', 1), k, part['ph'], part['pw']), moving,
    )  # fmt: skip
    threads = math.prod(ways.values())
    return seconds(cycles(work, machine, threads, model), isa, machine, threads).total


def tiles_within(group: Group, max_rel_err: float) -> tuple[Shape, ...]:
    """Every shape of tiles whose predicted error is within the limit and that saves products."""
    sizes = group.main.sizes
    rows, columns = (ONE_OR_MORE if sizes.get(d, 1) > 1 else (1,) for d in 'rs')
    return tuple(
        m
        for m in itertools.product(rows, columns)
        if not applies(group, m)
        and predicted_error(group, m) <= max_rel_err
        and geometry(group, m).saving > 1
    )


def weight_growth(group: Group, m: Tile) -> float:
    """How many transformed weights there are for each of the convolution's own."""
    sizes = group.main.sizes
    return geometry(group, m).weights / (sizes.get('r', 1) * sizes.get('s', 1))


def _register_tiles(isa: Isa, shape: TileGeometry[Axis]) -> list[tuple[int, int]]:
    """(run, vectors): the longest run of tiles for each number of vectors of k.

    Those with enough accumulators to fill the pipeline, or with as many as the registers hold.
    """
    tiles = shape.n * shape.ph * shape.pw
    found = []
    for vectors in range(1, min(6, -(-shape.k // isa.lanes)) + 1):
        runs = (r for r in range(1, isa.registers) if registers_needed(r, vectors) <= isa.registers)
        found.append((max(runs, default=0), vectors))
    wanted = min(isa.fma_per_cycle * isa.fma_latency_cycles, max(r * v for r, v in found))
    return [(r, v) for r, v in found if r >= 1 and (r * v >= wanted or r >= tiles)]


def _blocks(part: Mapping[str, int]) -> Iterator[tuple[int, int, int]]:
    """Blocks of n x ph x pw tiles: rows cut evenly, several rows, several images."""
    seen = set()
    for pieces in range(1, 5):
        pw = -(-part['pw'] // pieces)
        if pw > MOST_TILES and pieces < 4:
            continue
        for ph in {-(-part['ph'] // n) for n in range(1, part['ph'] + 1)}:
            images = (1,) if ph < part['ph'] or pw < part['pw'] else (1, 2, 4, 8, 16, 32)
            for n in images:
                block = min(n, part['n']), ph, pw
                small = math.prod(block) <= MOST_TILES or block == (1, 1, pw)
                if small and block not in seen:
                    seen.add(block)
                    yield block


def _distinct(
    group: Group, isa: str, priced: list[Priced], top: int, make: Callable[..., Schedule]
) -> list[Schedule]:
    """The best first; near copies of those before them come last.

    Shapes, cuts and widths of panels behave differently where the model is wrong: the best of each
    kind is chosen before others are.
    """
    chosen: dict[str, tuple[int, Schedule]] = {}
    kinds = set()
    for once in (True, False):
        for place, (_, _, m, cut, (run, vectors), panels, block) in enumerate(priced):
            if len(chosen) == top:
                break
            kind = (m, cut, min(vectors, WIDE)) if once else None
            if kind in kinds:
                continue
            if once:
                kinds.add(kind)
            schedule = make(group, isa, m, run, vectors, panels, block, cut)
            chosen.setdefault(schedule.digest, (place, schedule))
    return [schedule for _, schedule in sorted(chosen.values(), key=lambda item: item[0])]
