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
from tilewright.kernels.cpu.schemas.dot.plan import DotPlan
from tilewright.kernels.cpu.schemas.half.words import (
    PRODUCTS,
    packed,
    why_no_words,
    with_epilogue,
    words_of,
)
from tilewright.kernels.cpu.schemas.outer.plan import Finished, OuterPlan, plan_outer
from tilewright.kernels.cpu.schemas.outer.space import draw_outer
from tilewright.kernels.cpu.schemas.outer.words import outer_lines
from tilewright.machine.isa import ISAS, half_isa
from tilewright.ops.dtypes import HALVES
from tilewright.ops.group import Group
from tilewright.ops.integer import factors, in_words
from tilewright.ops.stage import Expr
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
    operands = iter(words.epilogue.operands)
    made = Finished(stored=stored)
    for stage in group.epilogue:
        expr, own = stage.expr, [a.tensor in _made(group) for a in stage.reads]
        if expr.op == 'add' and sorted(own) == [False, True] and _reads_both(expr):
            item = next(operands)
            steps = {d: s for d, s in item.strides if s}
            if made.low is not None or made.high is not None or made.more:
                return None
            if item.dtype == 'f32' and steps == {c.vector: 1} and not item.const and not made.bias:
                made = replace(made, bias=item.name)
            elif item.dtype == 'f16' and (steps, item.const) == (
                {d: s for d, s in words.out_strides.items() if s}, words.out_const,
            ):  # fmt: skip
                made = replace(made, more=item.name)
            else:
                return None
        elif own == [True]:
            found = _limited(expr, made)
            if found is None:
                return None
            made = found
        else:
            return None
    return made


def _made(group: Group) -> set[str]:
    return {stage.write.tensor for stage in group.stages}


def _reads_both(expr: Expr) -> bool:
    return sorted(a.value for a in expr.args if a.op == 'read') == [0, 1]


def _limited(expr: Expr, made: Finished) -> Finished | None:
    """An expression that cuts its argument off, below before above."""
    if expr.op == 'read':
        return made
    if expr.op not in ('max', 'min') or expr.args[1].op not in ('const', 'whole'):
        return None
    inner = _limited(expr.args[0], made)
    if inner is None or inner.high is not None or (expr.op == 'max' and inner.low is not None):
        return None
    limit = float(expr.args[1].value)
    if not math.isfinite(limit):
        return None
    return replace(inner, **{'low' if expr.op == 'max' else 'high': limit})


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
