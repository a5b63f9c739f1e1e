"""The space of the general schema: its one decision is how work is cut between threads.

Goes in: a group, a thread count. Comes out: the schedule that cuts best, and any one at random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random

from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.general.code import can_cut
from tilewright.kernels.cpu.space import (
    CACHE_LEVELS,
    Cut,
    cuts_up_to,
    register_order,
    thread_cuts,
)
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule

LINE_BYTES = 4 * LINE_FLOATS
# Of the largest share, where rows that windows move over are cut: convolutions of images
# cut rows, too, so that threads find most of what they read in their own caches.
ROWS_SHARE = 0.95


def general_schedule(group: Group, isa: str, threads: int, levels: int) -> Schedule:
    """Nothing is tiled; the work is cut where it divides best.

    Dimensions that all parts of the group share can be cut; where there are not enough, fewer
    threads take part. Columns are cut last, into pieces of whole cache lines; those of 8-bit
    numbers that are no such pieces only where nothing else can be cut: threads would write the same
    lines. Images under windows are cut between their rows where that divides nearly as well.
    """
    stage = group.main
    sizes, free = dict(stage.sizes), can_cut(group)
    steps = access_strides(group, stage.write)[0]
    small = DTYPES[group.output.dtype] == 1
    rows = _window_rows(stage, steps)

    def waste(cut: Cut) -> tuple[float, bool, int]:
        ways = dict(cut)
        share = math.prod(-(-sizes[d] // ways.get(d, 1)) / sizes[d] for d in sizes)
        row = next((d for d in ways if steps.get(d) == 1), '')
        tight = bool(row) and small and sizes[row] % (LINE_BYTES * ways[row]) > 0
        share *= ROWS_SHARE if ways.keys() == rows else 1.0
        return (
            2 * share if tight else share,
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


def _window_rows(stage: Stage, steps: Mapping[str, int]) -> set[str]:
    """The dimension of rows that windows move over from row to row; empty where none do."""
    found = {
        name
        for access in stage.reads
        for index in access.index
        if any(d in index.names for d in stage.reduction)
        for name in index.names
        if name in stage.parallel and steps.get(name, 0) > 1
    }
    return found if len(found) == 1 else set()


def draw_general(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule:
    """Any cut between threads."""
    schedule = general_schedule(group, isa, 1, levels)
    sizes = group.main.sizes
    parallel = random.choice(cuts_up_to(group.main, most_threads, can_cut(group)))
    reg = sizes | {d: -(-sizes[d] // ways) for d, ways in parallel}
    inner = Level.of('reg', schedule.reg.order, reg)
    return Schedule('general', isa, '', (inner, *schedule.levels[1:]), parallel)
