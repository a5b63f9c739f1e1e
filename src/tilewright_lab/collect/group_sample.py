"""Which schedules of fused groups are measured, and in which order: the same on every machine.

Goes in: the groups of a catalogue (tilewright_lab/collect/group_data.py), a GPU. Comes out:
`GroupSource`s, turn by turn, so that a run that is cut off leaves about as much of every group; and
of each source its `Family`s. A family is a schedule with its splits: they share their compiled
kernels (tilewright_lab/collect/compiled.py), and compiling takes most of the time.

One turn of a group with a sum of products has a few families of every schema that applies, out of
`POOL` times as many that are drawn from the space that is searched (search/gpu/moves.py): half are
where climbs by the time model end that begin with the best of them, a quarter differ from an end in
one decision, the others are random, so that a model sees what a search proposes, what it compares
that with, and what is bad. Groups of other kinds have one turn: all of the general schema.

Kernels that would take seconds to compile are not drawn: more registers than a thread has by the
estimate, or more code than tilewright_lab/collect/space.py allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import MANY_JOINED, Moves, Table, tables
from tilewright_lab.collect.compiled import Family
from tilewright_lab.collect.group_data import Known
from tilewright_lab.collect.space import LARGEST_CODE, need

SEED = 6
TURNS = 64
# Families of each schema in one turn. CPU-seconds to compile one, on a core that is busy with
# others: about 0.3 to 1 where matrix instructions are written out, half of that for the others.
SHARES = {
    ('patch', 'wgmma_tf32x3'): 4, ('patch', 'mma_tf32x3'): 3, ('tiled', 'mma_tf32x3'): 4,
    ('tiled', 'fma'): 2, ('rs', 'fma'): 1, ('s', 'fma'): 1, ('depthwise', 'fma'): 24,
    ('patch', 'wgmma_tf32_bf16'): 8, ('strip', 'wgmma_tf32_bf16'): 8, ('strip', 'mma_tf32x3'): 2,
    ('winograd', 'mma_tf32x3'): 3, ('winograd', 'wgmma_tf32_bf16'): 3, ('winograd', 'fma'): 1,
}  # fmt: skip
POOL = 3  # drawn for each one that is measured
PATIENCE = 25  # draws for each of those
SPLITS = 6  # of one family
BUSY = 512  # threads of a multiprocessor from which on lanes are of no use
THREADS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
LANES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FEATURED = 6  # groups of each tested network that have part in every turn
RARELY = 4  # turns until the other tested groups have part again


@dataclass(frozen=True, slots=True)
class GroupSource:
    """One turn of a group."""

    digest: str
    turn: int

    @property
    def stage(self) -> str:
        """How far a run is."""
        return f'turn {self.turn}'


def sources(
    known: Mapping[str, Known], first: int = 0, turns: int = TURNS
) -> Iterator[GroupSource]:
    """Turns from the first on: all groups once, then those with large spaces again and again.

    Within a turn groups follow each other by their digest, which mixes networks and parts.
    """
    featured = _featured(known)
    for turn in range(first, turns):
        for digest in sorted(known):
            often = known[digest].part == 'train' or digest in featured or not turn % RARELY
            if turn == 0 or (often and has_products(known[digest].group)):
                yield GroupSource(digest, turn)


def _featured(known: Mapping[str, Known]) -> set[str]:
    """Of every tested network the groups with most of its work, and a few that are depthwise."""
    found: set[str] = set()
    tested = {d: one for d, one in known.items() if one.part == 'test' and has_products(one.group)}
    for network in {name for one in tested.values() for name in one.networks}:
        mine = [d for d, one in tested.items() if network in one.networks]
        mine.sort(key=lambda d: (-tested[d].group.flops * tested[d].networks[network], d))
        planes = [d for d in mine if 'c' not in tested[d].group.main.reduction]
        found |= {*mine[:FEATURED], *planes[: FEATURED // 3]}
    return found


@cache
def has_products(group: Group) -> bool:
    """Whether other schemas than those that move single elements may compute it."""
    return group.is_plain and group.main.is_product_sum and parts(group) == (group,)


def families(source: GroupSource, group: Group, machine: GpuMachine) -> list[Family[str]]:
    """[GroupSource] -> [Family], the same every time; quick beside compiling them."""
    found = [(schedule,) for schedule in _general(group, machine)] if source.turn == 0 else []
    if has_products(group):
        for kind, table in tables(group, machine).items():
            if kind in SHARES:
                random = Random(f'{SEED} {source.digest} {source.turn} {"/".join(kind)}')
                found += _drawn(group, machine, kind, table, random)
    return [Family(source.digest, schedules) for schedules in found]


def _general(group: Group, machine: GpuMachine) -> list[GpuSchedule]:
    """Of the schemas that move single elements: all that makes a difference.

    Sums of products have the few that a search draws, and lanes where results are few.
    """
    points = math.prod(group.main.sizes[d] for d in group.main.parallel)
    if has_products(group):
        wanted = [GpuSchedule.of('general', threads=n) for n in (64, 128, 256)]
        if points < machine.multiprocessors * BUSY:
            wanted += [_lanes(n, m) for n in (128, 256) for m in LANES[1:]]
    else:
        wanted = [_lanes(n, m) for n in THREADS for m in LANES]
    if len(parts(group)) > 1:
        wanted += [GpuSchedule.of('rows', threads=n) for n in (32, 64, 128, 256, 512, 1024)]
    length = math.prod(group.main.sizes[d] for d in group.main.reduction)
    return [
        s for s in wanted
        if dict(s.tiles).get('lanes', 1) <= max(length, 1) and _fits(group, s, machine)
    ]  # fmt: skip


def _lanes(threads: int, lanes: int) -> GpuSchedule:
    return GpuSchedule.of('general', threads=threads, lanes=lanes)


def _fits(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> bool:
    try:
        for kernel in generate(group, schedule).kernels:
            machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
    except ScheduleError:
        return False
    return True


def _drawn(
    group: Group, machine: GpuMachine, kind: tuple[str, str], table: Table, random: Random
) -> list[tuple[GpuSchedule, ...]]:
    """Families of one schema: ends of climbs by the model, some beside them, some at random."""
    count = SHARES[kind]
    space = Moves(group, machine, {kind: table})
    pool: dict[tuple, GpuSchedule] = {}
    for _ in range(PATIENCE * POOL * count):
        if len(pool) == POOL * count:
            break
        drawn = space.draw(random)
        if drawn is not None and _quick(group, drawn, machine):
            pool.setdefault(_tiles(drawn), drawn)
    ranked = sorted(pool.values(), key=lambda s: (_predicted(group, s, machine), s.digest))
    ends = [_climbed(group, space, s) for s in ranked[: -(-count // 2)]]
    best = list({_tiles(s): s for s in ends}.values())
    near = [s for end in best for s in space.neighbours(end) if _quick(group, s, machine)]
    near = random.sample(near, min(-(-count // 4), len(near)))
    taken = {_tiles(s) for s in (*best, *near)}
    rest = [s for s in ranked if _tiles(s) not in taken]
    left = max(count - len(best) - len(near), 0)
    chosen = [*best, *near, *random.sample(rest, min(left, len(rest)))]
    whole = [(s,) for s in (_unsplit(group, space, one) for one in best) if s is not None]
    return [
        *(_with_splits(group, space, table, schedule, random) for schedule in chosen),
        *whole,
    ]


def _climbed(group: Group, space: Moves, start: GpuSchedule) -> GpuSchedule:
    """The end of steepest descent by the time model, among what compiles quickly."""
    now = _predicted(group, start, space.machine)
    while True:
        near = [s for s in space.neighbours(start) if _quick(group, s, space.machine)]
        costs = [(_predicted(group, s, space.machine), s.digest, s) for s in near]
        best = min(costs, key=lambda c: c[:2], default=None)
        if best is None or best[0] >= now:
            return start
        now, _, start = best


def _unsplit(group: Group, space: Moves, schedule: GpuSchedule) -> GpuSchedule | None:
    """The schedule without its split, where the model says that this is faster."""
    if dict(schedule.tiles).get('split', 1) == 1:
        return None
    tiles = dict(schedule.tiles) | {'split': 1}
    alone = GpuSchedule.of(schedule.schema, schedule.intrinsic, **tiles)
    if not space.legal(alone):
        return None
    machine = space.machine
    better = _predicted(group, alone, machine) < _predicted(group, schedule, machine)
    return alone if better else None


def _tiles(schedule: GpuSchedule) -> tuple:
    """What is compiled: a kernel that is split is another one, but one for all numbers of parts."""
    return tuple((n, min(v, 2) if n == 'split' else v) for n, v in schedule.tiles)


def _quick(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> bool:
    """Whether it compiles in some tenths of a second."""
    try:
        wanted = need(group, schedule)
    except ScheduleError:  # a schema without an estimate: its kernels are small
        return True
    return wanted.registers <= machine.registers_per_thread and wanted.code <= LARGEST_CODE


def _predicted(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> float:
    try:
        return predict_gpu(group, schedule, machine).seconds
    except ScheduleError:
        return math.inf


def _with_splits(
    group: Group, space: Moves, table: Table, schedule: GpuSchedule, random: Random
) -> tuple[GpuSchedule, ...]:
    """The schedule, and some that differ in their split alone and are about as promising."""
    if dict(schedule.tiles).get('split', 1) == 1:
        return (schedule,)
    others = [
        GpuSchedule.of(
            schedule.schema, schedule.intrinsic, **(dict(schedule.tiles) | {'split': parts_})
        )
        for (parts_,) in table['split',]
        if parts_ not in (1, schedule['split'])
    ]
    most = MANY_JOINED * space.machine.multiprocessors
    good = [s for s in others if space.legal(s) and _blocks(group, s) <= most]
    chosen = random.sample(good, min(SPLITS - 1, len(good)))
    return tuple(sorted((schedule, *chosen), key=lambda s: s['split']))


def _blocks(group: Group, schedule: GpuSchedule) -> float:
    try:
        return need(group, schedule).blocks
    except ScheduleError:
        return math.inf
