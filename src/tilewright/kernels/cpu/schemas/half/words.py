"""What schemas of 16-bit products have in common: products in words of two, results rounded once.

Goes in: a group whose main stage adds up products of a 16-bit type. Comes out: its form in words
(`words_of`), and the plan of its loops (schemas/outer) with the operand that is packed in words
(`packed`) and with what follows sums, computed in float32 (`with_epilogue`).
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.half_vectors import half_value
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.pointwise import typed_epilogue
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan
from tilewright.machine.isa import ISAS
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import Words, factors, in_words
from tilewright.ops.parts import parts
from tilewright.schedule.schedule import Schedule

PRODUCTS = 2  # numbers in a word


def why_no_words(group: Group, dtype: str) -> str:
    """Why a group is not a sum of products of the type that can be cut into words; '' if it is."""
    main = group.main
    if group.half != dtype or not main.is_product_sum or parts(group) != (group,):
        return f'{group.label} is not one sum of products of {dtype} with what follows it'
    if group.stages[0] is not main or any(
        group.tensor(a.tensor).dtype != dtype for a in main.reads
    ):
        return f'{group.label} does not multiply {dtype} as they are stored'
    if main.pad_value:
        return f'{group.label} has a border of {main.pad_value}, not of zeros'
    if group.tensor(factors(group)[1].tensor).role != 'constant':
        return f'the weights of {group.label} are not constant'
    form = in_words(flatten(group), PRODUCTS)
    if form is None or not vector_candidates(form.group):
        return f'no reduction of {group.label} can be cut into words, or no channel lies alone'
    return ''


def words_of(group: Group) -> Words:
    """The group in words of two."""
    form = in_words(group, PRODUCTS)
    if form is None:
        raise ScheduleError(f'{group.label}: no reduction can be cut into words of two numbers')
    return form


def packed(
    words: OuterPlan, form: Words, schedule: Schedule, phases: bool = True
) -> tuple[OuterPlan, bool]:
    """The plan that reads its image from a buffer where the schedule packs it, and whether rows of
    that are whole.
    """
    if not schedule.pack:
        if not form.in_place:
            raise ScheduleError(
                f'{words.group.label}: words do not lie in place in its input: pack it'
            )
        return words, False
    tile = operand.packed_tile(schedule, part_extents(form.group.main, schedule))
    held = dict(tile)
    if phases:
        # With an even number of lines from a pixel to the next, those of a register tile share sets
        # of the first cache: 28 of them, a power of two apart, took three times as long. Tiles of
        # AMX are loaded row by row instead.
        held[form.dim] = operand.odd_lines(tile[form.dim])
    source = operand.buffered(words.contraction, held, form.dim, {}, unit=1, phases=phases)
    axis = form.group.tensor(words.contraction.a.tensor).shape[form.axis]
    whole = tile[form.dim] == form.group.main.sizes[form.dim] == axis
    return replace(words, operand=source), whole


def with_epilogue(group: Group, words: OuterPlan) -> OuterPlan:
    """The plan with what follows sums, on vectors of float32 where results lie side by side."""
    schedule = words.schedule
    epilogue, vector = typed_epilogue(group), None
    if words.out_strides.get(schedule.vector) == 1:
        vector = half_value(group, schedule.vector, ISAS[schedule.isa])
    if vector:  # functions of both are written once
        called = dict.fromkeys((*epilogue.functions, *vector.epilogue.functions))
        epilogue = replace(epilogue, functions=tuple(called))
        vector = replace(vector, epilogue=replace(vector.epilogue, functions=()))
    return replace(
        words, epilogue=epilogue, quick=None, result=C_TYPES[group.output.dtype], whole=vector,
        ahead=words.ahead if words.deep else None,
    )  # fmt: skip
