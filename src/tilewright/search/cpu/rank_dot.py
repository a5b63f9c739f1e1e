"""From an integer group to ranked schedules: those of the outer products of its words.

Goes in: a group of integer products, a machine, a thread count. Comes out: `Candidate`s, best
first. Where words lie in place, nothing is copied: channels of a pixel are neighbours, so that none
of what makes fp32 copy its image holds. Vectors and, where a machine has them, tiles compete.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.operand import reads_outside
from tilewright.kernels.cpu.schemas.channelwise.plan import channelwise_choices
from tilewright.kernels.cpu.schemas.dot.plan import ROWS, has_rows, why_no_tiles
from tilewright.kernels.cpu.space import CACHE_LEVELS
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.dot_time import predict_dot
from tilewright.model.cpu.roofline import predict_work
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import IN_BYTES, Words, factors, in_rows, in_words
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.rank_outer import rank_tiled
from tilewright.search.cpu.rank_tile_rows import rank_tile_rows

ALIKE = 8  # schedules of which the one that reads weights least often is taken,
NEAR = 1.03  # where their times are predicted so near to each other
COPY_CYCLES = 5  # of a pixel that is copied

# Words, the machine as they see it, their dtype, whether numbers stay as they are, options.
Way = tuple[Words, Machine, str, bool, tuple[tuple[str, int], ...]]


def rank_dot(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first. Sums are exact."""
    flat, dot = flatten(group), machine.dot
    form = in_words(flat, dot.products) if dot else None
    if dot is None or form is None:
        return ()
    image = group.tensor(factors(group)[0].tensor).dtype
    same = dot.products != IN_BYTES or image == dot.dtype
    ways: list[Way] = [(form, machine.in_words(), dot.dtype, same, ())]
    rows = in_rows(flat, dot.products) if has_rows(dot) else None
    if rows:
        ways.append((rows, machine.in_words(), dot.dtype, False, ((ROWS, 1),)))
    tiles = in_words(flat, IN_BYTES) if machine.tiles else None
    if tiles and not why_no_tiles(tiles):
        ways.append((tiles, machine.in_tiles(image), image, True, ()))
    made = []
    for form, seen, dtype, same, options in ways:
        by_rows = bool(ISAS[seen.isa].rows) and form.in_place
        rows = rank_tile_rows(form.group, seen, threads)[:top] if by_rows else []
        for schedule in rows:
            schedule = replace(schedule, schema='dot', dtype=dtype, accumulation='i32')
            made.append((form, Candidate(schedule, predict_dot(flat, schedule, machine))))
        tiled = () if rows else rank_tiled(form.group, seen, threads, max(top, ALIKE))
        for candidate in tiled:
            contraction = contract(form.group, candidate.schedule.vector)
            stays = same and form.in_place and not reads_outside(form.group, contraction)
            schedule = replace(
                candidate.schedule, schema='dot', dtype=dtype, accumulation='i32',
                isa=seen.isa if ISAS[seen.isa].rows else machine.isa, options=options,
                pack='' if stays else CACHE_LEVELS[min(1, len(machine.caches) - 1)],
            )  # fmt: skip
            prediction = predict_dot(flat, schedule, machine)
            made.append((form, replace(candidate, schedule=schedule, prediction=prediction)))
    return fewest_passes(made, machine, top)


def fewest_passes(
    made: Sequence[tuple[Words, Candidate]], machine: Machine, top: int
) -> tuple[Candidate, ...]:
    """The best `top` of candidates, each with its words; of those whose times are near each other,
    what reads weights least often.
    """
    total = {
        c.schedule: c.prediction.seconds + copy_seconds(form, c.schedule, machine)
        for form, c in made
    }
    best = min(total.values(), default=0.0)

    def order(item: tuple[Words, Candidate]) -> tuple:
        form, candidate = item
        seconds = total[candidate.schedule]
        near = seconds <= NEAR * best
        passes = weights_read(form.group, candidate.schedule) if near else 0
        return not near, passes, seconds, candidate.schedule.digest

    return tuple(candidate for _, candidate in sorted(made, key=order)[:top])


def copy_seconds(form: Words, schedule: Schedule, machine: Machine) -> float:
    """What copying the image takes beyond moving its bytes: pixels are copied one by one, and all
    of them by every thread that has channels of the result for its part.
    """
    if not schedule.pack:
        return 0.0
    image = factors(form.group)[0]
    tensor = form.group.tensor(image.tensor)
    cut = math.prod(ways for d, ways in schedule.parallel if d in image.names)
    inside = tensor.shape[form.row.channel_axis if form.row else form.axis]
    return tensor.size / inside / cut * COPY_CYCLES / (1e9 * machine.clock_ghz)


def weights_read(group: Group, schedule: Schedule) -> float:
    """How often a thread reads all weights of a group. Tiles are so fast that they wait for weights
    that every thread reads, where each could have its own; vectors seldom do.
    """
    passes = weight_passes(group, schedule)
    if not ISAS[schedule.isa].rows:
        return passes
    names = factors(group)[1].names
    return passes / math.prod(ways for d, ways in schedule.parallel if d in names)


def weight_passes(group: Group, schedule: Schedule) -> int:
    """How often a thread walks over all of its weights: in a network they come from far away."""
    weights = set(factors(group)[1].names)
    extent = part_extents(group.main, schedule)
    passes = walked = 1
    for level in reversed(schedule.levels[1:]):
        for name in level.order:
            trips, extent[name] = -(-extent[name] // level.tile[name]), level.tile[name]
            if trips > 1 and name in weights:
                passes = walked
            elif name not in weights:
                walked *= trips
    return passes


def rank_channelwise(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """The same for integer windows over every channel alone, which have few schedules."""
    if machine.dot is None:
        return ()
    found = [
        Candidate(schedule, predict_work(group, schedule, machine))
        for schedule in channelwise_choices(group, machine.isa, machine.dot.dtype, threads)
    ]
    return tuple(found[:top])
