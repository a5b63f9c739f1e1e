"""The CPU design space: what the spaces of all schemas share, and any legal schedule at random.

Goes in: a stage or a group. Comes out: cuts between threads, tiles that hold everything, and
`random_schedule`, which asks every registered schema in turn, for tests and for sampling. The
choices of one schema are in its folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.schema import SCHEMAS, CpuSchema
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Schedule

CACHE_LEVELS = ('l1', 'l2', 'l3')
SHARE = 0.4  # of draws that a schema takes which says nothing of how it draws
Cut = tuple[tuple[str, int], ...]  # how a problem is cut between threads
Draw = Callable[[Group, str, Random, int, int], Schedule | None]


def register_order(stage: Stage) -> tuple[str, ...]:
    """Parallel dimensions outside, reductions inside: accumulators stay in registers."""
    return (*stage.parallel, *stage.reduction)


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


def even_cuts(stage: Stage, threads: int, free: Collection[str]) -> list[Cut]:
    """Cuts of the dimensions in `free`, those that divide the work best first.

    Fewer threads take part where there is not enough to cut.
    """
    cuts: list[Cut] = []
    while not cuts:
        cuts = [c for c in thread_cuts(stage, threads) if all(d in free for d, _ in c)]
        threads -= 1

    return sorted(cuts, key=lambda c: (largest_part(stage, c), len(c), c))


def largest_part(stage: Stage, cut: Cut) -> float:
    """The share of the points of a stage that the thread with the most of them has."""
    sizes = stage.sizes
    return math.prod(-(-sizes[d] // ways) / sizes[d] for d, ways in cut)


def cuts_up_to(stage: Stage, most_threads: int, free: Collection[str]) -> list[Cut]:
    """Every cut of the dimensions in `free` between at most so many threads."""
    cuts = (c for t in range(1, most_threads + 1) for c in thread_cuts(stage, t))
    return [c for c in cuts if all(d in free for d, _ in c)]


def whole_tile(stage: Stage, reg: Mapping[str, int]) -> dict[str, int]:
    """The tile that holds everything, in whole register tiles."""
    return {d: -(-size // reg[d]) * reg[d] for d, size in stage.sizes.items()}


def random_schedule(
    group: Group, isa: str, random: Random, *, levels: int = 3, most_threads: int = 4
) -> Schedule:
    """Any legal schedule of a direct schema that fits: tiles, orders, cuts, pack level.

    The schema that was registered last is asked first, those for what no other can do at the end.
    """
    latest = [s for s in reversed(tuple(SCHEMAS.values())) if s.algorithm == 'direct']
    turns = sorted(latest, key=lambda s: s.last_resort)
    form = None
    for schema in turns:
        if schema.flattens and form is None:
            form = flatten(group) if random.random() < 0.5 else group
        tiled = form if schema.flattens and form is not None else group
        drawn = (schema.draw or _draw(schema))(tiled, isa, random, levels, most_threads)
        if drawn is not None:
            return drawn
    raise ScheduleError(
        f'{group.label}: no direct schema has a schedule for it; there are '
        f'{", ".join(s.name for s in turns)}'
    )


def _draw(schema: CpuSchema) -> Draw:
    """One of the schema's choices, for some number of threads."""

    def draw(
        group: Group, isa: str, random: Random, levels: int, most_threads: int
    ) -> Schedule | None:
        if schema.choices is None or schema.why_not(group) or random.random() >= SHARE:
            return None
        found = list(schema.choices(group, isa, random.randint(1, most_threads), levels))
        return random.choice(found) if found else None

    return draw


def shuffled(names: tuple[str, ...], random: Random) -> tuple[str, ...]:
    """The names in any order."""
    mixed = list(names)
    random.shuffle(mixed)
    return tuple(mixed)
