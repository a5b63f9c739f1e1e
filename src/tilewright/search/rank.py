"""From a group to ranked schedules, by modelling alone: nothing is compiled or timed here.

    register tiles x thread cuts   ranked by the compute model (microseconds each)
    best few of these              tile sizes of the caches by the solver, one geometric program
                                   for each loop-order class; made whole by `refine` under `predict`
    all that was priced            top-n distinct schedules

Goes in: a group, a machine, a thread count. Comes out: `Candidate`s, best first. Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.codegen.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.codegen.cpu.nest import part_extents
from tilewright.codegen.cpu.operand import reads_outside
from tilewright.errors import InputError, MissingError
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.orders import order_classes, signatures
from tilewright.model.predict import MARGIN, Prediction, compute_seconds, predict
from tilewright.model.traffic import PACKED, capacity
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.space import (
    CACHE_LEVELS,
    assemble,
    general_schedule,
    register_tiles,
    thread_cuts,
    whole_tile,
)
from tilewright.search.refine import Space, Tiles, grid, refine
from tilewright.search.solver import Problem, solve

SHAPES = 4  # (register tile, thread cut) pairs that are carried to the solver
ORDERS = 2  # loop-order classes carried from the solver to refinement, for each of them
BUDGET = 40  # tile sizes priced exactly, for each of those


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule with what the model says about it."""

    schedule: Schedule
    prediction: Prediction
    solver_bound_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Shape:
    """The choices that decide the compute time: a register tile and a cut between threads."""

    reg: dict[str, int]
    parallel: tuple[tuple[str, int], ...]
    seconds: float


def rank(group: Group, machine: Machine, threads: int, top: int) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first; at least one, at most `top`."""
    candidates = vector_candidates(group)
    levels = len(machine.caches)
    if not candidates:
        schedule = general_schedule(group, machine.isa, threads, levels)
        return (Candidate(schedule, predict(group, schedule, machine)),)
    contraction = contract(group, candidates[0])
    found: list[Candidate] = []
    for shape in shapes(group, contraction, machine, threads)[:SHAPES]:
        found += _tiled(group, contraction, machine, shape, top)
    return _distinct(sorted(found, key=_key), top)


def _key(candidate: Candidate) -> tuple[float, str]:
    return candidate.prediction.seconds, candidate.schedule.digest


def shapes(group: Group, contraction: Contraction, machine: Machine, threads: int) -> list[Shape]:
    """Register tiles and thread cuts, ranked by compute time; fewer threads if cuts run out."""
    stage, isa = group.main, ISAS[machine.isa]
    order = tuple(stage.sizes)
    cuts = list(thread_cuts(stage, threads))
    while not cuts:
        threads -= 1
        cuts = list(thread_cuts(stage, threads))
    priced = []
    for reg in register_tiles(contraction, isa):
        whole = (whole_tile(stage, reg),)
        for parallel in cuts:
            schedule = assemble(
                group, machine.isa, contraction.vector, reg, whole, (order,), parallel, ''
            )
            if any(-(-stage.sizes[d] // reg[d]) < ways for d, ways in parallel):
                continue
            seconds = compute_seconds(group, schedule, machine)
            priced.append(Shape(reg, parallel, seconds))
    priced.sort(key=lambda s: (s.seconds, -math.prod(s.reg.values()), str(s.reg), s.parallel))
    return priced


def untiled_dims(contraction: Contraction) -> tuple[str, ...]:
    """Dimensions kept whole at every level: what the micro-kernel unrolls."""
    return contraction.unrolled


def _tiled(
    group: Group, contraction: Contraction, machine: Machine, shape: Shape, top: int
) -> list[Candidate]:
    """Cache tiles for one shape: solver, refinement, the best distinct ones."""
    stage = group.main
    threads = math.prod(ways for _, ways in shape.parallel)
    probe = assemble(
        group, machine.isa, contraction.vector, shape.reg, (whole_tile(stage, shape.reg),),
        (tuple(stage.sizes),), shape.parallel, '',
    )  # fmt: skip
    part = part_extents(stage, probe)
    levels = len(machine.caches)
    space = Space(
        {d: max(size, shape.reg[d]) for d, size in part.items()},
        shape.reg,
        levels,
        untiled_dims(contraction),
        {contraction.vector: shape.reg[contraction.vector]},
    )
    pack = _pack_level(group, contraction, levels)
    found: dict[str, Candidate] = {}
    for order, starts, bound in _starts(stage, contraction, machine, shape, part, threads, space):

        def price(tiles: Tiles, order=order, bound=bound) -> float:
            schedule = assemble(
                group, machine.isa, contraction.vector, shape.reg, tiles, (order,) * levels,
                shape.parallel, pack,
            )  # fmt: skip
            if schedule.digest not in found:
                prediction = predict(group, schedule, machine)
                found[schedule.digest] = Candidate(schedule, prediction, bound)
            return found[schedule.digest].prediction.seconds

        refine(starts, price, space, budget=BUDGET, climbs=2)
    return sorted(found.values(), key=_key)[: 4 * top]


def _pack_level(group: Group, contraction: Contraction, levels: int) -> str:
    """Inputs that are padded are packed; so are those whose pixels do not lie side by side."""
    if reads_outside(group, contraction) or not _lanes_adjacent(group, contraction):
        return CACHE_LEVELS[min(1, levels - 1)]
    return CACHE_LEVELS[min(1, levels - 1)]


def _lanes_adjacent(group: Group, contraction: Contraction) -> bool:
    last = contraction.a.index[-1]
    return bool(contraction.pixels) and last.coefficient(contraction.pixels[-1]) == 1


def _starts(
    stage: Stage, contraction: Contraction, machine: Machine, shape: Shape,
    part: Mapping[str, int], threads: int, space: Space,
) -> Iterable[tuple[tuple[str, ...], list, float]]:  # fmt: skip
    """(loop order, real-valued tiles to start from, the solver's bound), best orders first."""
    rooms = tuple(
        MARGIN * machine.capacity_bytes(i, threads) / 4 for i in range(len(machine.caches))
    )
    speeds = tuple(
        machine.bandwidth_gbps(b, threads) / threads * 1e9 / 4
        for b in range(len(machine.boundaries))
    )
    layout = {a.tensor: PACKED for a in stage.reads}
    orders = _orders(stage, contraction)

    def problem(order: tuple[str, ...]) -> Problem:
        return Problem(
            stage, dict(part), shape.reg, rooms, speeds, (order,), untiled_dims(contraction),
            layout=layout,
        )  # fmt: skip

    try:
        first = [(solve(problem(order), settle=False), order) for order in orders]
        usable = sorted((s for s in first if s[0].tiles), key=lambda s: (s[0].objective, s[1]))
        settled = [(solve(problem(order)), order) for _, order in usable[:ORDERS]]
    except (MissingError, InputError):  # no CasADi, or no geometric program: start from a grid
        settled = []
    if settled:
        return [(order, [s.tiles, *_seeds(space)], s.bound) for s, order in settled]

    def words(tile: dict[str, int]) -> float:
        return capacity(stage, tile, layout=layout)

    starts = [*grid(space, words, rooms), *_seeds(space)]
    return [(order, starts, 0.0) for order in orders[:ORDERS]]


def _seeds(space: Space) -> list[Tiles]:
    """Starts that need no solver: register tiles in L1 and everything further out."""
    least = {d: space.least(d) for d in space.dims}
    whole = dict(space.sizes)
    return [tuple([least] + [whole] * (space.levels - 1))]


def _orders(stage: Stage, contraction: Contraction) -> list[tuple[str, ...]]:
    """One order for each class that still differs once unrolled dimensions have no loop."""
    seen, orders = set(), []
    loops = [d for d in stage.sizes if d not in contraction.unrolled]
    for found in order_classes(stage):
        order = found.representative()
        mark = tuple(
            (frozenset(s.loops & set(loops)), s.partial if s.partial in loops else None)
            for s in signatures(stage, [d for d in order if d in loops])
        )
        if mark not in seen:
            seen.add(mark)
            orders.append(order)
    return orders


def _distinct(ranked: list[Candidate], top: int) -> tuple[Candidate, ...]:
    """The best of each kind first (register tile, cut, order), then what else is best."""
    if top < 1:
        raise InputError(f'top={top}; ask for at least one candidate')
    chosen: list[Candidate] = []
    seen: set[str] = set()
    for once in (True, False):
        kinds: Mapping | set = set()
        for candidate in ranked:
            if len(chosen) == top:
                break
            schedule = candidate.schedule
            kind = (schedule.reg.tiles, schedule.parallel, schedule.levels[1].tiles)
            if schedule.digest in seen or (once and kind in kinds):
                continue
            kinds.add(kind)
            seen.add(schedule.digest)
            chosen.append(candidate)
    return tuple(sorted(chosen, key=_key))
