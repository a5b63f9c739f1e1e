"""The CPU design space: register tiles, cuts between threads, and complete legal schedules.

Goes in: a group and a machine. Comes out: choices in a fixed order, most promising first where a
price is given. `random_schedule` draws any legal schedule, for tests and for sampling.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from random import Random

from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.operand import LINE_FLOATS, reads_outside
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.general.code import can_cut
from tilewright.kernels.cpu.schemas.stencil.cover import fits, stencil, why_not
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule

CACHE_LEVELS = ('l1', 'l2', 'l3')
Cut = tuple[tuple[str, int], ...]  # how a problem is cut between threads


def register_order(stage: Stage) -> tuple[str, ...]:
    """Parallel dimensions outside, reductions inside: accumulators stay in registers."""
    return (*stage.parallel, *stage.reduction)


def register_tiles(contraction: Contraction, isa: Isa) -> Iterator[dict[str, int]]:
    """Register tiles that keep the FMA units busy: enough accumulators, few enough registers.

    Little's law (MOpt Sec. 6) asks for `fma_per_cycle * fma_latency_cycles` accumulators. The last
    two pixel dimensions may be blocked, so that narrow images fill a tile with several rows; rows
    are not shorter than the tile is high, unless they are whole, since neighbours along a row are
    loaded and stored together.
    """
    sizes = contraction.stage.sizes
    blocked = contraction.pixels[-2:]
    wanted = isa.fma_per_cycle * isa.fma_latency_cycles
    most = -(-sizes[contraction.vector] // isa.lanes)
    for vectors in range(1, min(4, most) + 1):
        limit = next(
            p for p in range(isa.registers, 0, -1) if registers_needed(p, vectors) <= isa.registers
        )
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


def thread_cuts(stage: Stage, threads: int) -> Iterator[Cut]:
    """Every way to cut the parallel dimensions into exactly `threads` parts."""
    names = [d for d in stage.parallel if stage.sizes[d] > 1]

    def cut(rest: int, position: int) -> Iterator[Cut]:
        if rest == 1:
            yield ()
        elif position < len(names):
            name = names[position]
            for ways in (w for w in range(1, rest + 1) if rest % w == 0):
                if ways <= stage.sizes[name]:
                    here = ((name, ways),) if ways > 1 else ()
                    for others in cut(rest // ways, position + 1):
                        yield (*here, *others)

    yield from dict.fromkeys(cut(threads, 0))


def whole_tile(stage: Stage, reg: Mapping[str, int]) -> dict[str, int]:
    """The tile that holds everything, in whole register tiles."""
    return {d: -(-size // reg[d]) * reg[d] for d, size in stage.sizes.items()}


def assemble(
    group: Group, isa: str, vector: str, reg: Mapping[str, int],
    tiles: tuple[Mapping[str, int], ...], orders: tuple[tuple[str, ...], ...],
    parallel: tuple[tuple[str, int], ...], pack: str,
) -> Schedule:  # fmt: skip
    """A schedule with the outer schema; tiles may not be smaller than the register tile."""
    stage = group.main
    levels = [Level.of('reg', register_order(stage), reg)]
    whole = whole_tile(stage, reg)
    for number, (tile, order) in enumerate(zip(tiles, orders, strict=True)):
        inner = levels[-1].tile
        fitted = {d: min(max(t, inner[d]), whole[d]) for d, t in tile.items()}
        fitted[vector] = -(-fitted[vector] // reg[vector]) * reg[vector]
        levels.append(Level.of(CACHE_LEVELS[number], order, fitted))
    return Schedule('outer', isa, vector, tuple(levels), parallel, pack)


def general_schedule(group: Group, isa: str, threads: int, levels: int) -> Schedule:
    """The general schema's schedule: nothing is tiled, the work is cut where it divides best.

    Dimensions that all parts of the group share can be cut; where there are not enough, fewer
    threads take part. Rows are cut last, into pieces of whole cache lines.
    """
    stage = group.main
    sizes, free = dict(stage.sizes), can_cut(group)
    steps = access_strides(group, stage.write)[0]

    def waste(cut: Cut) -> tuple[float, bool, int]:
        ways = dict(cut)
        share = math.prod(-(-sizes[d] // ways.get(d, 1)) / sizes[d] for d in sizes)
        return (
            share,
            any(steps.get(d) == 1 for d in ways),
            sum(stage.parallel.index(d) for d in ways),
        )

    cuts: list[Cut] = []
    while not cuts:
        cuts = [c for c in thread_cuts(stage, threads) if all(d in free for d, _ in c)]
        threads -= 1
    best = min(cuts, key=waste)
    order, reg = register_order(stage), dict(sizes)
    for name, ways in best:
        unit = LINE_FLOATS if steps.get(name) == 1 and sizes[name] >= 4 * ways * LINE_FLOATS else 1
        reg[name] = -(-sizes[name] // (ways * unit)) * unit
    whole = {d: max(sizes[d], reg[d]) for d in sizes}
    outer = [Level.of(name, order, whole) for name in CACHE_LEVELS[:levels]]
    return Schedule('general', isa, '', (Level.of('reg', order, reg), *outer), best)


def stencil_schedule(
    group: Group, isa: str, lanes: int, rows: int, vectors: int,
    parallel: tuple[tuple[str, int], ...] = (),
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


def random_schedule(
    group: Group, isa: str, random: Random, *, levels: int = 3, most_threads: int = 4
) -> Schedule:
    """Any legal schedule of a direct schema that fits: tiles, orders, cuts, pack level."""
    if not why_not(group) and random.random() < 0.4:
        return _random_stencil(group, isa, random, most_threads)
    if random.random() < 0.5:
        group = flatten(group)
    stage = group.main
    candidates = vector_candidates(group, moving=True)
    contraction = contract(group, random.choice(candidates)) if candidates else None
    if contraction is not None and random.random() < 0.25:
        contraction = None
    if contraction is None:
        return _random_general(group, isa, random, levels, most_threads)
    reg = random.choice(list(_any_register_tiles(contraction, ISAS[isa], random)))
    order = (*_shuffled(stage.parallel, random), *_shuffled(stage.reduction, random))
    made = [Level.of('reg', order, reg)]
    whole = whole_tile(stage, reg)
    for name in CACHE_LEVELS[:levels]:
        inner = made[-1].tile
        tile = {d: _random_tile(inner[d], whole[d], random) for d in stage.sizes}
        width = reg[contraction.vector]
        tile[contraction.vector] = -(-tile[contraction.vector] // width) * width
        tile |= {d: stage.sizes[d] for d in contraction.unrolled}
        made.append(Level.of(name, _shuffled(tuple(stage.sizes), random), tile))
    cuts = [c for t in range(1, most_threads + 1) for c in thread_cuts(stage, t)]
    parallel = random.choice(cuts)
    packs = [level.name for level in made[1:]]
    if not reads_outside(group, contraction):
        packs.append('')
    return Schedule('outer', isa, contraction.vector, tuple(made), parallel, random.choice(packs))


def _random_general(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule:
    """The general schema with any cut between threads."""
    schedule = general_schedule(group, isa, 1, levels)
    sizes, free = group.main.sizes, can_cut(group)
    cuts = [c for t in range(1, most_threads + 1) for c in thread_cuts(group.main, t)]
    parallel = random.choice([c for c in cuts if all(d in free for d, _ in c)])
    reg = sizes | {d: -(-sizes[d] // ways) for d, ways in parallel}
    inner = Level.of('reg', schedule.reg.order, reg)
    return Schedule('general', isa, '', (inner, *schedule.levels[1:]), parallel)


def _random_stencil(group: Group, isa: str, random: Random, most_threads: int) -> Schedule:
    """Lanes, rows and vectors of any size whose code is not too long, and any cut."""
    shape = stencil(group)
    lanes = random.choice([n for n in (2, 4, 8, 16) if n <= ISAS[isa].lanes])
    rows, vectors = random.randint(1, min(8, shape.down.size)), random.randint(1, 5)
    while not fits(shape, lanes, rows, vectors):
        rows, vectors = max(1, rows - 1), max(1, vectors - 1)
    names = (*shape.outer, shape.down.name)
    cuts = [c for t in range(1, most_threads + 1) for c in thread_cuts(group.main, t)]
    cuts = [cut for cut in cuts if all(d in names for d, _ in cut)]
    return stencil_schedule(group, isa, lanes, rows, vectors, random.choice(cuts))


def _any_register_tiles(
    contraction: Contraction, isa: Isa, random: Random
) -> Iterator[dict[str, int]]:
    """Some register tiles that fit, good or not."""
    sizes = contraction.stage.sizes
    for vectors in range(1, 5):
        for _ in range(4):
            tile = dict.fromkeys(sizes, 1) | {contraction.vector: vectors * isa.lanes}
            for name in contraction.pixels:
                others = math.prod(tile[d] for d in contraction.pixels)
                fits = [
                    e
                    for e in range(1, sizes[name] + 1)
                    if registers_needed(others * e, vectors) <= isa.registers
                ]
                tile[name] = random.choice(fits or [1])
            yield tile


def _random_tile(low: int, high: int, random: Random) -> int:
    return random.choice((low, high, random.randint(min(low, high), max(low, high))))


def _shuffled(names: tuple[str, ...], random: Random) -> tuple[str, ...]:
    mixed = list(names)
    random.shuffle(mixed)
    return tuple(mixed)
