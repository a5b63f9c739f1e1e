"""What the schema of bf16 products in tiles decides before it writes a line.

Goes in: a group whose main stage adds up products of bf16, and a schedule with schema 'tiles',
which tiles the sum in words of two (`in_words`). Comes out: a `DotPlan`: that of integer products
(schemas/dot), whose words, panels and loops serve bf16 as well. Products are added in float32, what
follows a sum is computed in float32 on vectors, and results are rounded once, as they are stored.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.schemas.dot.plan import DotPlan, why_no_tiles, with_tiles
from tilewright.kernels.cpu.schemas.half.words import (
    PRODUCTS,
    packed,
    why_no_words,
    with_epilogue,
    words_of,
)
from tilewright.kernels.cpu.schemas.outer.plan import plan_outer
from tilewright.kernels.cpu.schemas.outer.space import draw_outer
from tilewright.kernels.cpu.schemas.outer.words import outer_lines
from tilewright.machine.isa import ISAS, tile_isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import in_words
from tilewright.schedule.schedule import Schedule


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a machine with tiles."""
    return why_no_words(group, 'bf16') or why_no_tiles(words_of(flatten(group)))


def plan_tiles(group: Group, schedule: Schedule) -> DotPlan:
    """[Group, Schedule] -> [DotPlan]"""
    reason = why_not(group)
    if reason:
        raise ScheduleError(reason)
    form, isa = words_of(group), ISAS[schedule.isa]
    if not isa.rows:
        raise ScheduleError(f'{group.label}: {schedule.isa} has no tiles')
    words, whole = packed(
        with_tiles(plan_outer(form.group, schedule)), form, schedule, phases=False
    )  # fmt: skip
    words = with_epilogue(group, words)
    return DotPlan(group, words, form, PRODUCTS, False, whole)


def draw_tiles(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule | None:
    """Any legal tiles, orders, cut and pack level."""
    if not tile_isa(isa) or why_not(group):
        return None
    form = in_words(group, PRODUCTS)
    if form is None or why_no_tiles(form):
        return None
    drawn = draw_outer(form.group, tile_isa(isa), random, levels, most_threads)
    if drawn is None:
        return None
    made = replace(drawn, schema='tiles', dtype='bf16', accumulation='f32')
    if not made.pack and not form.in_place:
        made = replace(made, pack=made.levels[-1].name)
    return made


def tile_lines(group: Group, schedule: Schedule) -> list[str]:
    return outer_lines(words_of(group).group, schedule)
