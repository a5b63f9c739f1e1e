"""Schedules in words: the loops as the generated code runs them, and one line for tables.

Goes in: a group and a schedule. Comes out: lines of text; what stands inside the threads is told by
the schema itself (`CpuSchema.lines`).
"""

from __future__ import annotations

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.words import quantity
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Schedule


def scheduled_stage(group: Group, schedule: Schedule) -> Stage:
    """The stage whose dimensions the schedule tiles: Winograd's is the product of its tiles."""
    return SCHEMAS[schedule.schema].stage(group, schedule)


def thread_line(group: Group, schedule: Schedule) -> str:
    """How the work is cut between threads."""
    if schedule.threads == 1:
        return 'one thread does everything'
    stage = scheduled_stage(group, schedule)
    part = part_extents(stage, schedule)
    cuts = ' and '.join(
        f'{quantity(group, d, stage.sizes[d])} in {ways}, at most {part[d]} each'
        for d, ways in schedule.parallel
    )
    return f'{schedule.threads} threads: cut {cuts}'


def summary(group: Group, schedule: Schedule) -> str:
    """One line for tables: cut, register tile, and the tiles of each cache that cut something."""
    parts = [' '.join(f'{d}/{ways}' for d, ways in schedule.parallel) or 'one thread']
    if schedule.options:
        parts.insert(0, f'{schedule.schema} ' + ' '.join(f'{n}{v}' for n, v in schedule.options))
    outer = part_extents(scheduled_stage(group, schedule), schedule)
    bands = []
    for level in reversed(schedule.levels):
        names = [d for d in level.order if level.tile[d] < outer[d]]
        if level.name == 'reg' and SCHEMAS[schedule.schema].registers:
            names = [d for d in level.order if level.tile[d] > 1]
        if names:
            bands.append(f'{level.name} ' + ' '.join(f'{d}{level.tile[d]}' for d in names))
        outer = {d: min(outer[d], level.tile[d]) for d in outer}
    return ' | '.join([*parts, *bands])


def loop_lines(group: Group, schedule: Schedule) -> list[str]:
    """The nest, outermost line first, indented as it is nested."""
    group = tiled_form(group, schedule.reg.tile)
    return [thread_line(group, schedule), *SCHEMAS[schedule.schema].lines(group, schedule)]
