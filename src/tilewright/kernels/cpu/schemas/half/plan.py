"""What the schema of f16 products decides before it writes a line.

Goes in: a group whose main stage adds up products of f16, and a schedule with schema 'half', which
tiles the sum in words of two (`in_words`). Comes out: a `DotPlan`: that of integer products
(schemas/dot), whose words, panels and loops serve f16 as well.

Micro-kernels add in f16 over a *run* of the loop and then in float32: `run`, an option of the
schedule, is how many words of it. Of a sum of n numbers of random signs, of which runs of r are
added in f16, the expected error is (2^-11 / sqrt(24)) sqrt(r) of its standard deviation, whatever n
is: partial sums grow as sqrt(k), and each is rounded once, by a uniform share of its last place.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract
from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.schemas.dot.plan import DotPlan
from tilewright.kernels.cpu.schemas.half.words import (
    PRODUCTS,
    packed,
    why_no_words,
    with_epilogue,
    words_of,
)
from tilewright.kernels.cpu.schemas.outer.finish import Finished, read_finish
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan, plan_outer
from tilewright.kernels.cpu.schemas.outer.space import draw_outer
from tilewright.kernels.cpu.schemas.outer.words import outer_lines
from tilewright.machine.isa import ISAS, half_isa
from tilewright.ops.dtypes import HALVES
from tilewright.ops.group import Group
from tilewright.ops.integer import factors, in_words
from tilewright.ops.stored import as_stored
from tilewright.schedule.schedule import Schedule

RUN = 'run'  # the option: words of the loop whose products are added in f16
MOST_PRODUCTS = 256  # of a run; the error of longer ones grows, and what they save is below 2%
# Where so few rows share a weight that memory decides, shorter runs cost nothing.
FEW_ROWS, FEW_PRODUCTS = 2, 64
TO_STORE = 6  # registers beside sums by which results are cut off and quantised


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a machine with f16."""
    return why_no_words(group, 'f16')


def run_of(form: Group, vector: str) -> int:
    """Words of the loop that make a run: even ones, of at most `MOST_PRODUCTS` products, or of
    `FEW_PRODUCTS` where memory has to bring the weights for a few rows.
    """
    contraction = contract(form, vector)
    sizes = form.main.sizes
    steps = math.prod(sizes[d] for d in contraction.unrolled)
    length = sizes[contraction.loop] if contraction.loop else 1
    rows = math.prod(sizes[d] for d in contraction.pixels)
    most = max(1, (FEW_PRODUCTS if rows <= FEW_ROWS else MOST_PRODUCTS) // (PRODUCTS * steps))
    return -(-length // -(-length // most))


def run_error(group: Group, schedule: Schedule) -> float:
    """The expected error of sums of runs, as a share of their standard deviation."""
    form = words_of(group).group
    contraction = contract(form, schedule.vector)
    steps = math.prod(form.main.sizes[d] for d in contraction.unrolled)
    length = form.main.sizes[contraction.loop] if contraction.loop else 1
    run = min(dict(schedule.options).get(RUN, length), length)
    return HALVES['f16'] * math.sqrt(PRODUCTS * steps * run / 24)


def plan_half(group: Group, schedule: Schedule) -> DotPlan:
    """[Group, Schedule] -> [DotPlan]"""
    reason = why_not(group)
    if reason:
        raise ScheduleError(reason)
    form = words_of(group)
    run = dict(schedule.options).get(RUN, 0)
    if run < 1:
        raise ScheduleError(
            f'{group.label}: run={run} words are added in f16; it must be at least 1'
        )
    words, whole = packed(plan_outer(form.group, schedule), form, schedule)
    if schedule.pack and words.operand.splits[-1].factor > 1:
        raise ScheduleError(f'{group.label}: pixels step over words of a row: do not pack it')
    words = replace(with_epilogue(group, words), run=run)
    finish = finished(group, words)
    if finish:
        words = replace(words, finish=finish, epilogue=replace(words.epilogue, functions=()))
    return DotPlan(group, words, form, PRODUCTS, False, whole)


def finishes(form: Group, schedule: Schedule, c: Contraction) -> bool:
    """Whether one call of a micro-kernel completes every sum of a group in words, and its vectors
    are whole.
    """
    sizes, near = form.main.sizes, schedule.levels[1].tile
    run = dict(schedule.options).get(RUN, 0)
    whole = not c.loop or sizes[c.loop] <= min(run, near[c.loop])
    return whole and not c.outer and sizes[c.vector] % ISAS[schedule.isa].lanes == 0


def finished(group: Group, words: OuterPlan) -> Finished | None:
    """What follows sums, where micro-kernels can compute it in f16 and store results themselves:
    every sum is complete behind one call, and what is added to it comes before limits. f16 and
    float32 agree where one number is added at most, but for the rounding of a bias.
    """
    c, panels = words.contraction, words.panels
    if words.persistent or not finishes(words.group, words.schedule, c):
        return None
    group, stored = as_stored(group)
    if group.output.dtype != 'f16' or words.out_strides.get(c.vector) != 1:
        return None
    isa, reg = ISAS[words.schedule.isa], words.schedule.reg.tile
    sums = math.prod(reg[d] for d in c.pixels) * panels.vectors
    if stored and isa.registers - sums < TO_STORE:
        return None
    whole_out = {d: s for d, s in words.out_strides.items() if s}

    def is_bias(item: Operand) -> bool:
        return item.dtype == 'f32' and _steps(item) == {c.vector: 1} and not item.const

    def is_more(item: Operand) -> bool:
        return item.dtype == 'f16' and (_steps(item), item.const) == (whole_out, words.out_const)

    found = read_finish(group, words.epilogue.operands, is_bias, is_more)
    return found and replace(found, stored=stored)


def _steps(item: Operand) -> dict[str, int]:
    return {d: s for d, s in item.strides if s}


def draw_half(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule | None:
    """Any legal tiles, orders, cut and pack level, and any run."""
    if not half_isa(isa) or why_not(group):
        return None
    form = in_words(group, PRODUCTS)
    drawn = draw_outer(form.group, half_isa(isa), random, levels, most_threads) if form else None
    if form is None or drawn is None:
        return None
    run = random.randint(1, run_of(form.group, drawn.vector))
    made = replace(
        drawn, schema='half', dtype='f16', accumulation='f32', options=((RUN, run),)
    )  # fmt: skip
    if not made.pack and not form.in_place:
        made = replace(made, pack=made.levels[-1].name)
    image = factors(form.group)[0].index[form.axis]
    if not set(image.names).isdisjoint(contract(form.group, made.vector).pixels):
        made = replace(made, pack='')
    return made


def half_lines(group: Group, schedule: Schedule) -> list[str]:
    return outer_lines(words_of(group).group, schedule)
