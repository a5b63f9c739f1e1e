"""What the schema of integer products decides before it writes a line.

Goes in: a group whose main stage adds up products of 8-bit numbers, and a schedule with schema
'dot', which tiles the sum in words (ops/integer.py). Comes out: a `DotPlan`: that of the outer
products of words (schemas/outer), with channels innermost in the copied tile, and what the numbers
inside of words need.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.bounded import NearValue, near_value, with_near
from tilewright.kernels.cpu.contraction import contract, vector_candidates
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.isa.tiles import depth
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import Epilogue, Operand, typed_epilogue
from tilewright.kernels.cpu.schemas.outer.plan import Ahead, OuterPlan, plan_outer
from tilewright.kernels.cpu.schemas.outer.space import draw_outer
from tilewright.kernels.cpu.schemas.outer.words import outer_lines
from tilewright.kernels.cpu.whole_vectors import BITS, WholeValue, vector_value
from tilewright.machine.isa import ISAS, Dot
from tilewright.ops.dtypes import HALVES
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group, Tensor
from tilewright.ops.integer import (
    IN_BYTES,
    Words,
    factors,
    in_rows,
    in_words,
    is_integer_products,
)
from tilewright.ops.parts import parts
from tilewright.schedule.schedule import Schedule

ROWS = 'rows'  # the option: words hold all channels of neighbouring columns (`in_rows`)
MOVED = '@moved'  # what numbers that were moved by 128 add to every sum of a channel
SUMS = 'sum_t'  # an i32 that may lie where floats are declared


@dataclass(frozen=True)
class DotPlan:
    """The plan of the words, and the group that their numbers belong to.

    flips   numbers of the image change their sign bit as they are copied: they are moved by 128
    whole   a copied tile has all channels of its pixels, so that how many is known
    """

    group: Group
    words: OuterPlan
    form: Words
    products: int
    flips: bool
    whole: bool

    @property
    def near(self) -> NearValue | None:
        """What follows sums that are known to be small as weights are packed."""
        return self.words.near

    @property
    def image(self) -> Tensor:
        return self.group.tensor(factors(self.group)[0].tensor)

    @property
    def weights(self) -> Tensor:
        return self.group.tensor(factors(self.group)[1].tensor)

    @property
    def halves(self) -> bool:
        """Whether numbers are f16 or bf16, which are copied by their bits."""
        return self.image.dtype in HALVES

    @property
    def apart(self) -> bool:
        """Whether panels have all lanes of the first number of a word, then those of the second:
        f16, since nothing adds up two of them. Others lie as in words of the image.
        """
        return self.image.dtype == 'f16'

    @property
    def source(self) -> str:
        """The C type of a number of the image in memory."""
        return 'uint16_t' if self.halves else C_TYPES[self.image.dtype]

    @property
    def number(self) -> str:
        """The C type of a number in a word of the image."""
        return 'uint16_t' if self.halves else C_TYPES[self.words.schedule.dtype]

    @property
    def weight(self) -> str:
        """The C type of a number in a word of weights."""
        return 'uint16_t' if self.halves else f'int{32 // self.products}_t'


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, whatever the instruction set."""
    if not is_integer_products(group) or parts(group) != (group,):
        return f'{group.label} is not one sum of products of 8-bit numbers with what follows it'
    weights = group.tensor(factors(group)[1].tensor)
    if weights.role != 'constant' or weights.dtype != 'i8':
        return f'the weights of {group.label} are not constant i8'
    # Words of four are the longest: what has those has all others.
    form = in_words(flatten(group), 4)
    if form is None or not vector_candidates(form.group):
        return f'no reduction of {group.label} can be cut into words, or no channel lies alone'
    return ''


def words_of(group: Group, schedule: Schedule) -> Words:
    """The group in the words of a schedule's instruction set."""
    dot = ISAS[schedule.isa].dot(schedule.dtype)
    form = None
    if dot and dict(schedule.options).get(ROWS):
        form = in_rows(group, dot.products) if has_rows(dot) else None
    elif dot:
        form = in_words(group, dot.products)
    if form is None:
        raise ScheduleError(
            f'{group.label}: {schedule.isa} has no products of {schedule.dtype} for it'
        )
    return form


def has_rows(dot: Dot) -> bool:
    """Whether micro-kernels read columns of any step where they lie: those that broadcast each
    pixel, of words that are copied anyway.
    """
    return dot.scratch > 0 and dot.products != IN_BYTES


def plan_dot(group: Group, schedule: Schedule) -> DotPlan:
    """[Group, Schedule] -> [DotPlan]"""
    reason = why_not(group)
    if reason:
        raise ScheduleError(reason)
    form, isa = words_of(group, schedule), ISAS[schedule.isa]
    if not schedule.pack and not form.in_place:
        raise ScheduleError(f'{group.label}: words do not lie in place in its input: pack it')
    dot = isa.dot(schedule.dtype)
    assert dot is not None
    words, whole = with_tiles(plan_outer(form.group, schedule)), False
    if schedule.pack:
        tile = operand.packed_tile(schedule, part_extents(form.group.main, schedule))
        source = operand.buffered(
            words.contraction, tile, form.dim, {}, unit=1, phases=not (words.deep or dot.scratch)
        )
        words = replace(words, operand=source)
        axis = form.group.tensor(words.contraction.a.tensor).shape[form.axis]
        whole = tile[form.dim] == form.group.main.sizes[form.dim] == axis and not form.row
    image = group.tensor(factors(group)[0].tensor)
    flips = dot.products == 4 and image.dtype != dot.dtype
    if flips and not schedule.pack:
        raise ScheduleError(f'{group.label}: {image.dtype} is not {dot.dtype}: it must be packed')
    epilogue, vector = moved_epilogue(group, _strides(group, words) if flips else None), None
    if words.out_strides.get(schedule.vector) == 1:
        vector = vector_epilogue(group, epilogue, schedule)
    near = None
    if vector and isa.arch == 'aarch64' and not words.loose:
        items = epilogue.operands[: -1 if flips else None]
        near = near_value(group, items, len(epilogue.operands), schedule.vector)
    epilogue = replace(epilogue, operands=with_near(epilogue.operands, near))
    words = replace(
        words,
        epilogue=replace(epilogue, functions=()) if vector else epilogue,
        near=near,
        quick=None,
        sums=SUMS,
        result=C_TYPES[group.output.dtype],
        whole=vector,
        # For which there are micro-kernels of floats.
        ahead=None if isa.by_lane else words.ahead,
    )
    return DotPlan(group, words, form, dot.products, flips, whole)


def why_no_tiles(form: Words) -> str:
    """Why tiles cannot multiply a group in words; '' where they can."""
    contraction = contract(form.group, vector_candidates(form.group)[0])
    if contraction.loop not in ('', form.dim):
        return f'{form.group.label}: words of a pixel are not what is added up innermost'
    return ''


def with_tiles(words: OuterPlan) -> OuterPlan:
    """The plan, on an instruction set of tiles: how many words these multiply at once."""
    schedule, contraction = words.schedule, words.contraction
    if not ISAS[schedule.isa].rows:
        return words
    deep, taps = depth(contraction)
    loop = contraction.loop
    for level in schedule.levels[1:]:
        if loop and level.tile[loop] % deep and level.tile[loop] < contraction.stage.sizes[loop]:
            raise ScheduleError(
                f'{words.group.label}: tile {loop}={level.tile[loop]} of {level.name} is not a '
                f'multiple of the {deep} words that tiles multiply at once'
            )
    return replace(words, deep=deep, taps=taps, ahead=_in_streams(words, deep))


def _in_streams(words: OuterPlan, deep: int) -> Ahead | None:
    """What tiles ask for ahead, `deep` words at a time: the next panel in as many streams as there
    are lines for each of them.
    """
    ahead, panels = words.ahead, words.panels
    if ahead is None or words.contraction.unrolled:
        return None
    steps, floats = ahead.shares * panels.points // deep, panels.points * panels.width
    lines = -(-floats // (steps * LINE_FLOATS))
    return replace(ahead, distance=floats, floats=lines * LINE_FLOATS, apart=steps * LINE_FLOATS)


def _strides(group: Group, words: OuterPlan) -> dict[str, int]:
    """Where what is moved lies, in the order of the panels."""
    sizes, step, strides = group.main.sizes, words.panels.size, {words.contraction.vector: 1}
    for name in reversed(words.loose):
        strides[name] = step
        step *= sizes[name]
    return strides


def moved_epilogue(group: Group, strides: Mapping[str, int] | None) -> Epilogue:
    """What follows the sum; first of all, what numbers that were moved by 128 have added to it,
    where they were: one number for every channel, at these strides.
    """
    found = typed_epilogue(group)
    if strides is None:
        return found
    name = f'e{len(found.operands)}'
    moved = Operand(name, MOVED, tuple(strides.items()), 0, 'i32')
    expression = re.sub(r'\bvalue\b', f'(value + {name}[{name}_at])', found.expression)
    return replace(found, expression=expression, operands=(*found.operands, moved))


def vector_epilogue(group: Group, epilogue: Epilogue, schedule: Schedule) -> WholeValue | None:
    """The same on a schedule's vectors (kernels/cpu/whole_vectors.py), where they can."""
    items, isa = epilogue.operands, ISAS[schedule.isa]
    strange = any(item.stride(schedule.vector) not in (0, 1) for item in items)
    has = isa.arch == 'aarch64' or (isa.arch == 'x86_64' and isa.vector_bytes in BITS)
    if strange or not has:
        return None
    value = 'value'
    if items and items[-1].tensor == MOVED:
        value = f'(value + {items[-1].name}_v)'
    return vector_value(group, items, isa, value)


def draw_dot(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule | None:
    """Any legal tiles, orders, cut and pack level, in the words of any of the set's products."""
    if why_not(group):
        return None
    dot = random.choice(ISAS[isa].dots)
    form, options = in_words(group, dot.products), ()
    if has_rows(dot) and in_rows(group, dot.products) and random.random() < 0.5:
        form, options = in_rows(group, dot.products), ((ROWS, 1),)
    if form is None or (ISAS[isa].rows and why_no_tiles(form)):
        return None
    drawn = draw_outer(form.group, isa, random, levels, most_threads)
    if drawn is None:
        return None
    made = replace(drawn, schema='dot', dtype=dot.dtype, accumulation='i32', options=options)
    flips = dot.products == 4 and group.tensor(factors(group)[0].tensor).dtype != dot.dtype
    if not made.pack and (flips or not form.in_place):
        made = replace(made, pack=made.levels[-1].name)
    return made


def dot_lines(group: Group, schedule: Schedule) -> list[str]:
    return outer_lines(words_of(group, schedule).group, schedule)
