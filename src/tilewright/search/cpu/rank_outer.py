"""From a group to ranked schedules of the outer-product schema, by modelling alone.

    register tiles x thread cuts   ranked by the compute model (microseconds each)
    best few of these              loop orders by the solver, one for each cache; tile sizes of the
                                   caches by the solver, made whole by `refine` under the model
    all that was priced            top-n distinct schedules

Goes in: a group that has products, a machine, a thread count. Comes out: `Candidate`s, best first.
Deterministic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import InputError, MissingError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.isa import micro, tiles
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.operand import rows_in_place
from tilewright.kernels.cpu.schemas.outer.plan import LEAST_TILES
from tilewright.kernels.cpu.schemas.outer.space import assemble, register_tiles
from tilewright.kernels.cpu.space import CACHE_LEVELS, register_order, thread_cuts, whole_tile
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import compute_seconds, predict_outer
from tilewright.model.cpu.prediction import MARGIN
from tilewright.model.cpu.traffic import PACKED, capacity
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.refine import Space, Tiles, grid, refine
from tilewright.search.cpu.solver import Problem, cache_orders, rank_orders, solve

Orders = tuple[tuple[str, ...], ...]  # one loop order for each cache

SHAPES = 3  # (register tile, thread cut) pairs that are carried to the solver
ORDERS = 2  # choices of one loop order per cache that are refined, for each of them
BUDGET = 90  # tile sizes priced exactly, for each of those
LEAST_DEEP, MOST_DEEP = 384, 1024  # products of a sum between two visits of its accumulators
PANELS = 6  # panels whose sums are kept between pieces of the reduction
LANE_PANELS = 4  # times as many where vectors have a quarter of the lanes
ROWS_SHARE = 0.9  # of the second cache, for the rows that panels are multiplied with
NEAR_BUDGET = 40  # the same where tiles of another size are known to begin at


@dataclass(frozen=True, slots=True)
class Shape:
    """The choices that decide the compute time: a register tile and a cut between threads."""

    reg: dict[str, int]
    parallel: tuple[tuple[str, int], ...]
    seconds: float


def rank_outer(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first; at least one, at most `top`.

    Sums are those of the definition, which are within any error budget.
    """
    group = flatten(group)
    contraction = contract(group, vector_candidates(group, moving=True)[0])
    return rank_panels(group, contraction, machine, threads, top) or rank_tiled(
        group, machine, threads, top
    )


def rank_panels(
    group: Group, contraction: Contraction, machine: Machine, threads: int, top: int
) -> tuple[Candidate, ...]:
    """Products of rows in place with constant weights, one schedule for each shape; else nothing.

        for rows that stay in the second cache, as deep as the next but one loop goes
          for columns whose sums stay there       for a piece of the reduction
            for each panel of weights             for each register tile of rows

    (Goto and van de Geijn, 2008). The model's traffic tells these from others by less than what it
    is wrong by: it preferred schedules that took 6 to 9% longer (docs/transformers.md).
    """
    loop, constant = contraction.loop, group.tensor(contraction.b.tensor).role == 'constant'
    plain = constant and len(contraction.pixels) == 1 and contraction.reduction == (loop,)
    if not plain or contraction.batch or contraction.columns or len(machine.caches) < 2:
        return ()
    if not rows_in_place(group, contraction):
        return ()
    row, vector = contraction.pixels[0], contraction.vector
    found: list[Candidate] = []
    isa, ranked = ISAS[machine.isa], shapes(group, contraction, machine, threads)
    kept = [s for s in ranked if micro.in_place(isa, s.reg[row], s.reg[vector] // isa.lanes)]
    for shape in kept[: max(SHAPES, top)]:
        tiling = Tiling.of(group, contraction, machine, shape)
        high, wide, rows = shape.reg[row], shape.reg[vector], tiling.part[row]
        if rows < LEAST_TILES * high:
            return ()
        room = int(ROWS_SHARE * tiling.rooms[1])
        deep, most, panels = tiling.part[loop], MOST_DEEP, PANELS
        if isa.by_lane:  # vectors are narrow: a panel and its rows in half of the first cache
            most = max(LEAST_DEEP, int(tiling.rooms[0]) // (2 * (high + wide)))
            panels = PANELS * LANE_PANELS
        if deep > most:
            deep = even(deep, min(max(LEAST_DEEP, room // rows), most))
        held = max(high, room // deep)
        near = {row: high, vector: wide, loop: deep}
        second = {
            row: -(-even(rows, held) // high) * high,
            vector: wide if deep == tiling.part[loop] else panels * wide,
            loop: deep,
        }
        third = {row: second[row], vector: tiling.part[vector], loop: tiling.part[loop]}
        tiles = (near, second, *[third] * (len(machine.caches) - 2))
        orders = ((vector, row, loop), *[(row, vector, loop)] * (len(machine.caches) - 1))
        schedule = assemble(
            group, machine.isa, vector, shape.reg, tiles, orders, shape.parallel, ''
        )
        found.append(Candidate(schedule, predict_outer(group, schedule, machine)))
    return tuple(sorted(found, key=_key)[:top])


def even(size: int, most: int) -> int:
    """The length of as few even pieces as possible, none longer than `most`."""
    return -(-size // -(-size // most))


def rank_tiled(group: Group, machine: Machine, threads: int, top: int) -> tuple[Candidate, ...]:
    """The candidates of a group whose dimensions are tiled as they are."""
    contraction = contract(group, vector_candidates(group, moving=True)[0])
    found: list[Candidate] = []
    duals: list[float] = []
    orders: list[Orders] = []
    for shape in shapes(group, contraction, machine, threads)[:SHAPES]:
        tiling = Tiling.of(group, contraction, machine, shape)
        orders = orders or tiling.orders()  # derived once: shapes differ little
        tiled, solved = _tiled(group, machine, tiling, orders)
        found += tiled
        duals += solved
    least = min(duals, default=0.0)
    chosen = _distinct(sorted(found, key=_key), top)
    return tuple(replace(candidate, solver_bound_s=least) for candidate in chosen)


def rank_near(
    group: Group, machine: Machine, threads: int, like: Schedule
) -> tuple[Candidate, ...]:
    """The best schedule of each of a few shapes, for another size of a group, without the solver.

    Loop orders are those of `like`, its tiles are where descent begins, and its vectors stay: one
    set of packed weights serves both sizes.
    """
    group = flatten(group)
    if set(group.main.sizes) != set(like.reg.tile) or len(like.levels) != len(machine.caches) + 1:
        return ()
    contraction = contract(group, like.vector)
    width = like.reg.tile[like.vector]
    orders = tuple(level.order for level in like.levels[1:])
    found: dict[Schedule, Candidate] = {}
    near = (
        s for s in shapes(group, contraction, machine, threads) if s.reg[like.vector] == width
    )  # fmt: skip
    for shape in itertools.islice(near, SHAPES):
        tiling = Tiling.of(group, contraction, machine, shape)
        sizes = tiling.space.sizes
        start = [{d: min(t, sizes[d]) for d, t in level.tiles} for level in like.levels[1:]]
        price = _priced(group, machine, tiling, orders, found)
        refine([start, *tiling.compact()], price, tiling.space, budget=NEAR_BUDGET, climbs=1)
    return tuple(sorted(found.values(), key=_key)[:SHAPES])


def _key(candidate: Candidate) -> tuple[float, str]:
    return candidate.prediction.seconds, candidate.schedule.digest


def shapes(group: Group, contraction: Contraction, machine: Machine, threads: int) -> list[Shape]:
    """Register tiles and thread cuts, ranked by compute time; fewer threads if cuts run out."""
    stage, isa = group.main, ISAS[machine.isa]
    order = tuple(stage.sizes)
    priced: list[Shape] = []
    while not priced:  # fewer threads where there are not enough register tiles for all
        for parallel in thread_cuts(stage, threads):
            for reg in register_tiles(contraction, isa):
                if any(-(-stage.sizes[d] // reg[d]) < ways for d, ways in parallel):
                    continue
                whole = (whole_tile(stage, reg),)
                pack = CACHE_LEVELS[0] if copied(group, contraction, isa, reg) else ''
                schedule = assemble(
                    group, machine.isa, contraction.vector, reg, whole, (order,), parallel, pack
                )
                priced.append(Shape(reg, parallel, compute_seconds(group, schedule, machine)))
        threads -= 1
    priced.sort(key=lambda s: (s.seconds, -math.prod(s.reg.values()), str(s.reg), s.parallel))
    return priced


def copied(group: Group, contraction: Contraction, isa: Isa, reg: dict[str, int]) -> bool:
    """Whether inputs are copied for such register tiles: not where each pixel is broadcast on its
    own, or four of a row are, wherever they lie.
    """
    pixels = math.prod(reg[d] for d in contraction.pixels)
    fits = micro.in_place(isa, pixels, reg[contraction.vector] // isa.lanes)
    return not fits or not rows_in_place(group, contraction)


@dataclass(frozen=True)
class Tiling:
    """The tile-size problem of one shape: what one thread owns, and what it may use."""

    stage: Stage
    contraction: Contraction
    machine: Machine
    shape: Shape
    threads: int
    part: dict[str, int]
    space: Space

    @classmethod
    def of(cls, group: Group, contraction: Contraction, machine: Machine, shape: Shape) -> Tiling:
        stage = group.main
        probe = assemble(
            group, machine.isa, contraction.vector, shape.reg, (whole_tile(stage, shape.reg),),
            (tuple(stage.sizes),), shape.parallel, '',
        )  # fmt: skip
        part = part_extents(stage, probe)
        units = {d: shape.reg[d] for d in (contraction.vector, *contraction.pixels)}
        if ISAS[machine.isa].rows and contraction.loop:
            units[contraction.loop] = tiles.depth(contraction)[0]
        space = Space(
            {d: max(size, shape.reg[d]) for d, size in part.items()},
            shape.reg,
            len(machine.caches),
            contraction.unrolled,
            units,
        )
        return cls(stage, contraction, machine, shape, probe.threads, part, space)

    @property
    def layout(self) -> dict[str, str]:
        """Both operands are packed."""
        return {a.tensor: PACKED for a in self.stage.reads}

    @property
    def rooms(self) -> tuple[float, ...]:
        """Words that this thread may fill of every cache."""
        caches = range(len(self.machine.caches))
        return tuple(MARGIN * self.machine.capacity_bytes(i, self.threads) / 4 for i in caches)

    def problem(self, orders: Orders) -> Problem:
        """The geometric program, with the thread's share of every bandwidth (Sec. 7)."""
        speeds = tuple(
            self.machine.bandwidth_gbps(b, self.threads) / self.threads * 1e9 / 4
            for b in range(len(self.machine.boundaries))
        )
        return Problem(
            self.stage, self.part, self.shape.reg, self.rooms, speeds,
            (register_order(self.stage), *orders), self.contraction.unrolled, layout=self.layout,
        )  # fmt: skip

    def orders(self) -> list[Orders]:
        """The most promising choices of one loop order per cache, best first."""
        caches = len(self.machine.caches)
        plain = cache_orders(self.stage, self.contraction.unrolled)
        try:
            ranked = rank_orders(self.problem((plain[0],) * caches), plain)
        except (MissingError, InputError):  # no CasADi, or no geometric program
            return [(order,) * caches for order in plain[:ORDERS]]
        return [problem.orders[1:] for _, problem in ranked[:ORDERS]]

    def starts(self, orders: Orders) -> tuple[list, float]:
        """(tiles to start from, the solver's bound): real-valued optimum, or a grid without it.

        The solver knows nothing of pages and rows, so compact tiles of pixels are starts as well.
        """
        try:
            solution = solve(self.problem(orders))
        except (MissingError, InputError):
            solution = None
        if solution is not None and solution.tiles:
            return [solution.tiles, *self.compact()], solution.bound
        coarse = grid(
            self.space, lambda tile: capacity(self.stage, tile, layout=self.layout), self.rooms
        )
        return [*coarse, *self.compact()], 0.0

    def compact(self) -> list[Tiles]:
        """Register tiles in L1, and around them one, four or all register tiles of each pixel."""
        sizes, pixels = self.space.sizes, self.contraction.pixels[-2:]
        least = {d: self.space.least(d) for d in self.space.dims} | {
            d: sizes[d] for d in self.stage.reduction
        }
        choices = [sorted({least[d], min(4 * least[d], sizes[d]), sizes[d]}) for d in pixels]
        return [
            (
                least,
                *[{**sizes, **dict(zip(pixels, picked, strict=True))}] * (self.space.levels - 1),
            )
            for picked in itertools.product(*choices)
        ]


def _tiled(
    group: Group, machine: Machine, tiling: Tiling, orders: list[Orders]
) -> tuple[list[Candidate], list[float]]:
    """Cache tiles for one shape, by solver and refinement under the exact model.

    Behind them the solver's bound for every choice of orders that it solved.
    """
    found: dict[Schedule, Candidate] = {}
    duals = []
    for choice in orders:
        starts, bound = tiling.starts(choice)
        duals += [bound] if bound else []
        budget = BUDGET if bound else 4 * BUDGET  # a coarse grid starts further away
        price = _priced(group, machine, tiling, choice, found)
        refine(starts, price, tiling.space, budget=budget, climbs=2)
    return list(found.values()), duals


def _priced(
    group: Group, machine: Machine, tiling: Tiling, orders: Orders, found: dict[Schedule, Candidate]
) -> Callable[[Tiles], float]:
    """The predicted seconds of cache tiles; candidates are kept in `found`."""
    shape, vector = tiling.shape, tiling.contraction.vector
    pack = ''
    if copied(group, tiling.contraction, ISAS[machine.isa], shape.reg):
        pack = CACHE_LEVELS[min(1, len(machine.caches) - 1)]

    def price(tiles: Tiles) -> float:
        schedule = assemble(
            group, machine.isa, vector, shape.reg, tiles, orders, shape.parallel, pack
        )
        candidate = found.get(schedule)
        if candidate is None:
            candidate = Candidate(schedule, predict_outer(group, schedule, machine))
            found[schedule] = candidate
        return candidate.prediction.seconds

    return price


def _distinct(ranked: list[Candidate], top: int) -> tuple[Candidate, ...]:
    """`top` candidates that differ in something that matters, best first.

    Where predictions are nearly equal it pays to measure different kinds: first the best of every
    register tile and cut, then of every packed tile within them, then whatever else is best.
    """
    chosen: dict[str, Candidate] = {}
    for kind in (_shape_of, _packing_of, lambda schedule: schedule.digest):
        seen = {kind(c.schedule) for c in chosen.values()}
        for candidate in ranked:
            if len(chosen) == top:
                break
            mark = kind(candidate.schedule)
            if mark not in seen:
                seen.add(mark)
                chosen[candidate.schedule.digest] = candidate
    return tuple(sorted(chosen.values(), key=_key))


def _shape_of(schedule: Schedule) -> tuple:
    return schedule.reg.tiles, schedule.parallel


def _packing_of(schedule: Schedule) -> tuple:
    """The length of packed rows, in powers of two: what lines and pages depend on."""
    packed = schedule.levels[min(2, len(schedule.levels) - 1)].tile
    pixels = [(t, d) for d, t in schedule.reg.tiles if d != schedule.vector]
    return *_shape_of(schedule), packed[max(pixels)[1]].bit_length()
