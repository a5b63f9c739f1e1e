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
from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.half_vectors import half_value
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.pointwise import typed_epilogue
from tilewright.kernels.cpu.schemas.dot.plan import DotPlan, why_no_tiles, with_tiles
from tilewright.kernels.cpu.schemas.outer.plan import plan_outer
from tilewright.kernels.cpu.schemas.outer.space import draw_outer
from tilewright.kernels.cpu.schemas.outer.words import outer_lines
from tilewright.machine.isa import ISAS, tile_isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import Words, factors, in_words
from tilewright.ops.parts import parts
from tilewright.schedule.schedule import Schedule

PRODUCTS = 2  # bf16 in a word


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a machine with tiles."""
    main = group.main
    if group.half != 'bf16' or not main.is_product_sum or parts(group) != (group,):
        return f'{group.label} is not one sum of products of bf16 with what follows it'
    if group.stages[0] is not main or any(
        group.tensor(a.tensor).dtype != 'bf16' for a in main.reads
    ):
        return f'{group.label} does not multiply bf16 as they are stored'
    if group.tensor(factors(group)[1].tensor).role != 'constant':
        return f'the weights of {group.label} are not constant'
    form = in_words(flatten(group), PRODUCTS)
    if form is None or not vector_candidates(form.group):
        return f'no reduction of {group.label} can be cut into words, or no channel lies alone'
    return why_no_tiles(form)


def words_of(group: Group) -> Words:
    """The group in words of two."""
    form = in_words(group, PRODUCTS)
    if form is None:
        raise ScheduleError(f'{group.label}: no reduction can be cut into words of two bf16')
    return form


def plan_tiles(group: Group, schedule: Schedule) -> DotPlan:
    """[Group, Schedule] -> [DotPlan]"""
    reason = why_not(group)
    if reason:
        raise ScheduleError(reason)
    form, isa = words_of(group), ISAS[schedule.isa]
    if not isa.rows:
        raise ScheduleError(f'{group.label}: {schedule.isa} has no tiles')
    if not schedule.pack and not form.in_place:
        raise ScheduleError(f'{group.label}: words do not lie in place in its input: pack it')
    words, whole = with_tiles(plan_outer(form.group, schedule)), False
    if schedule.pack:
        tile = operand.packed_tile(schedule, part_extents(form.group.main, schedule))
        source = operand.buffered(words.contraction, tile, form.dim, {}, unit=1, phases=False)
        words = replace(words, operand=source)
        axis = form.group.tensor(words.contraction.a.tensor).shape[form.axis]
        whole = tile[form.dim] == form.group.main.sizes[form.dim] == axis
    epilogue, vector = typed_epilogue(group), None
    if words.out_strides.get(schedule.vector) == 1:
        vector = half_value(group, schedule.vector, isa)
    if vector:  # those of both are written once
        called = dict.fromkeys((*epilogue.functions, *vector.epilogue.functions))
        epilogue = replace(epilogue, functions=tuple(called))
        vector = replace(vector, epilogue=replace(vector.epilogue, functions=()))
    words = replace(
        words, epilogue=epilogue, quick=None, result=C_TYPES[group.output.dtype], whole=vector,
        ahead=None,
    )  # fmt: skip
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
