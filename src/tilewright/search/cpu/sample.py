"""Schedules drawn at random from the legal space of the direct algorithm, unseen by any model.

Goes in: a group, an instruction set, a seed. Comes out: schedules with distinct code,
always the same ones.

MOpt (Sec. 9) takes about 100 configurations from the full space of tile sizes. Tile sizes matter by
their ratios, so each is log-uniform here, from the register tile to the whole dimension. The sizes
of one dimension at all levels are drawn together and sorted: nested tiles are then as likely as
the volume that they have in the space, and outer levels are not pushed towards the whole problem.
Loop orders, the register tile, the level that packs and the cut between threads are drawn among
those that can be generated. Nothing asks whether a tile fits its cache.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from random import Random

from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.operand import reads_outside
from tilewright.kernels.cpu.space import CACHE_LEVELS, random_schedule, thread_cuts, whole_tile
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule
from tilewright.search.cpu.choose import choose

MOST_VECTORS = 4  # as in schedule.space: more leave no registers for pixels
TRIES = 1000  # draws without a new schedule, after which the space counts as exhausted


def schedules(group: Group, machine: Machine, threads: int, seed: int) -> Iterator[Schedule]:
    """Legal schedules of the direct algorithm, no two with the same code, until they run out."""
    random = Random(f'{seed}/{group.digest}/{threads}')
    draw = _outer if vector_candidates(group) else _as_chosen(group, machine, threads)
    seen: set[str] = set()
    digests: set[str] = set()
    failed = 0
    while failed < TRIES:
        failed += 1
        schedule = draw(group, machine, threads, random)
        if schedule is None or schedule.digest in digests:
            continue
        digests.add(schedule.digest)
        code = _code(group, schedule)
        if code is None or code in seen:
            continue
        seen.add(code)
        failed = 0
        yield schedule


def _code(group: Group, schedule: Schedule) -> str | None:
    """A digest of the generated code without its heading; None where none can be generated.

    That is the only filter. Orders of loops that have one iteration make no difference in it.
    """
    try:
        source = generate(group, schedule)
    except ScheduleError:
        return None
    return hashlib.sha256(source.partition('*/')[2].encode()).hexdigest()


def log_uniform(low: int, high: int, random: Random) -> int:
    """A whole number from `low` to `high`; i has a probability as log((i + 1) / i)."""
    drawn = math.exp(random.uniform(math.log(low), math.log(high + 1)))
    return min(max(int(drawn), low), high)


def _outer(group: Group, machine: Machine, threads: int, random: Random) -> Schedule | None:
    """A schedule of the outer-product schema, for the form of the group that it tiles."""
    group = flatten(group)
    stage, isa = group.main, ISAS[machine.isa]
    contraction = contract(group, random.choice(vector_candidates(group)))
    reg = register_tile(contraction, isa, random)
    parallel = _cut(stage, reg, threads, random)
    if parallel is None:
        return None
    names = CACHE_LEVELS[: len(machine.caches)]
    tiles = cache_tiles(contraction, reg, len(names), random)
    order = (*_shuffled(stage.parallel, random), *_shuffled(stage.reduction, random))
    levels = [Level.of('reg', order, reg)]
    for name, tile in zip(names, tiles, strict=True):
        levels.append(Level.of(name, _shuffled(tuple(stage.sizes), random), tile))
    packs = list(names) if reads_outside(group, contraction) else [*names, '']
    return Schedule(
        'outer', isa.name, contraction.vector, tuple(levels), parallel, random.choice(packs)
    )


def register_tile(contraction: Contraction, isa: Isa, random: Random) -> dict[str, int]:
    """Any register tile that the registers hold: vectors, then pixels in a random order."""
    sizes = contraction.stage.sizes
    most = -(-sizes[contraction.vector] // isa.lanes)
    vectors = random.randint(1, min(MOST_VECTORS, most))
    room = max(p for p in range(1, isa.registers) if registers_needed(p, vectors) <= isa.registers)
    tile = dict.fromkeys(sizes, 1) | {contraction.vector: vectors * isa.lanes}
    for name in _shuffled(contraction.pixels, random):
        tile[name] = log_uniform(1, min(sizes[name], room), random)
        room //= tile[name]
    return tile


def cache_tiles(
    contraction: Contraction, reg: Mapping[str, int], levels: int, random: Random
) -> list[dict[str, int]]:
    """Tiles of every cache, from the inside out: log-uniform in each dimension, and nested."""
    stage = contraction.stage
    whole = whole_tile(stage, reg)
    drawn = {}
    for name in stage.sizes:
        if name in contraction.unrolled:
            drawn[name] = [stage.sizes[name]] * levels
            continue
        drawn[name] = sorted(log_uniform(reg[name], whole[name], random) for _ in range(levels))
    width = reg[contraction.vector]
    drawn[contraction.vector] = [-(-t // width) * width for t in drawn[contraction.vector]]
    return [{name: drawn[name][i] for name in stage.sizes} for i in range(levels)]


def _cut(
    stage: Stage, reg: Mapping[str, int], threads: int, random: Random
) -> tuple[tuple[str, int], ...] | None:
    """A cut into as many parts as there are threads, each at least one register tile."""
    fits = [
        cut
        for cut in thread_cuts(stage, threads)
        if all(-(-stage.sizes[d] // reg[d]) >= ways for d, ways in cut)
    ]
    return random.choice(fits) if fits else None


def _as_chosen(group: Group, machine: Machine, threads: int):
    """How to draw for a group without an outer product: from the schema that the search uses."""
    schema = choose(group, machine, threads, 1, 'direct')[0].schedule.schema

    def draw(group: Group, machine: Machine, threads: int, random: Random) -> Schedule | None:
        schedule = random_schedule(
            group, machine.isa, random, levels=len(machine.caches), most_threads=threads
        )
        return schedule if (schedule.schema, schedule.threads) == (schema, threads) else None

    return draw


def take(
    group: Group, machine: Machine, threads: int, seed: int, count: int, known: tuple[str, ...]
) -> list[Schedule]:
    """Schedules to add to those that are `known` by digest, until there are `count`."""
    found: list[Schedule] = []
    for schedule in schedules(group, machine, threads, seed):
        if len(known) + len(found) >= count:
            return found
        if schedule.digest not in known:
            found.append(schedule)
    if not known and not found:
        raise InputError(
            f'{group.label} has no schedule for {threads} threads on {machine.name}; ask for fewer'
        )
    return found


def _shuffled(names: tuple[str, ...], random: Random) -> tuple[str, ...]:
    mixed = list(names)
    random.shuffle(mixed)
    return tuple(mixed)
