"""The time of a schedule of f16 products: that of the outer products of its words.

Goes in: a group, a schedule with schema 'half', a machine. Comes out: a `Prediction`. A word is as
large as a float and holds two numbers; the peak is that of f16. What differs is the result, whose
elements are half as large: half crosses every boundary. Every run but the first adds what it has
summed to sums in the first cache. Where one run is the whole sum, results leave the registers as
they are: no sum passes through memory.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.half.plan import RUN, finishes
from tilewright.kernels.cpu.schemas.half.words import PRODUCTS, words_of
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import predict_outer
from tilewright.model.cpu.prediction import Prediction
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

RESUME_CYCLES = 4  # to widen the sums of a vector of eight, and to add them to others
# Of a vector of results that leaves its register: it began as zero, has a bias added, two limits,
# and is stored. 1x1 layers of MobileNet-v2 with sums of 16 to 32 take 2.2 to 2.6 cycles each on a
# Neoverse-N1, which does two at once.
FINISH_INSTRUCTIONS = 5


def predict_half(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    form = words_of(tiled_form(group, schedule.reg.tile))
    seen = machine if machine.isa == schedule.isa else machine.in_halves()
    found = predict_outer(form.group, schedule, seen)
    share = min(group.compulsory_bytes / form.group.compulsory_bytes, 1.0)
    crossed = tuple(
        replace(b, bytes=share * b.bytes, seconds=share * b.seconds) for b in found.boundaries
    )
    less = sum(b.seconds for b in found.boundaries[1:]) - sum(b.seconds for b in crossed[1:])
    if DTYPES[group.output.dtype] == 4:
        less = 0.0
    resumed = _resume_seconds(form.group, schedule, machine)
    stored = _finish_seconds(group, form.group, schedule, machine)
    stored = found.store_s if stored is None else min(stored, found.store_s)
    bound = share * found.bound_s
    return replace(
        found, flops_done=group.flops, moved=group.compulsory_bytes, boundaries=crossed,
        bound_s=bound, compute_s=found.compute_s + resumed, store_s=stored,
        seconds=max(found.seconds - less + resumed + stored - found.store_s, bound),
    )  # fmt: skip


def _finish_seconds(
    group: Group, form: Group, schedule: Schedule, machine: Machine
) -> float | None:
    """Storing results from registers; None where sums pass through memory."""
    contraction = contract(form, schedule.vector)
    if not finishes(form, schedule, contraction) or DTYPES[group.output.dtype] > 2:
        return None
    isa, part = ISAS[schedule.isa], part_extents(form.main, schedule)
    vectors = math.prod(part[d] for d in form.main.parallel) / isa.lanes
    # A multiply-add of words is one instruction for each of its numbers.
    cycles = vectors * FINISH_INSTRUCTIONS / (PRODUCTS * isa.fma_per_cycle)
    return cycles / (1e9 * machine.clock_ghz)


def _resume_seconds(form: Group, schedule: Schedule, machine: Machine) -> float:
    contraction = contract(form, schedule.vector)
    length = form.main.sizes[contraction.loop] if contraction.loop else 1
    run = dict(schedule.options).get(RUN, 0)
    again = max(0, -(-length // run) - 1) if run else 0
    results = math.prod(form.main.sizes[d] for d in form.main.parallel)
    vectors = results / ISAS[schedule.isa].lanes / schedule.threads
    return again * vectors * RESUME_CYCLES / (1e9 * machine.clock_ghz)
