"""The time of Strassen in f16: products of sums, sums of inputs and of products, weights.

Goes in: a group, a schedule with schema 'strassen_half', a machine. Comes out: a `Prediction`.

    products  rows x vectors x terms multiply-adds for each, and what a call of a micro-kernel has
              around them: accumulators that are cleared, added up and stored
    sums      operations, loads and stores of vectors in the units of a core: of inputs for every
              row of blocks, of results for every row and vector of blocks
    weights   once for all rows that are added together, from the level that holds them; the first
              time from memory, since a network's weights are colder than any cache, partly hidden
"""

from __future__ import annotations

from tilewright.kernels.cpu.half_epilogue import LANES
from tilewright.kernels.cpu.schemas.strassen_half.plan import (
    STEPS,
    HalfBlocksPlan,
    plan_strassen_half,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.model.cpu.strassen_time import additions
from tilewright.model.cpu.winograd_half_time import CALL_CYCLES, CROWDED, EXPOSED
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

# Of the time that weights take from behind the second cache for further rows: they are asked for
# ahead, and on a Neoverse-N1 six passes over 1.6 MB take as long as three.
AGAIN = 0.1


def predict_strassen_half(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    plan = plan_strassen_half(tiled_form(group, schedule.reg.tile), schedule)
    threads = schedule.threads
    panels = -(-plan.panels // plan.column_ways)
    rows = -(-plan.high // plan.row_ways)
    cycles = _product_cycles(plan, panels) + _sum_cycles(plan, rows, panels)
    weights = 2 * plan.weight_halves
    moved = sum(t.bytes for t in group.tensors if t.role != 'inner')
    moved += weights - group.tensor(plan.contraction.b.tensor).bytes
    seconds = _weight_seconds(plan, rows, weights / plan.column_ways, machine)
    seconds += EXPOSED * weights / (1e9 * machine.bandwidth_gbps(len(machine.caches), threads))
    # A multiply-add of words, two f16, is one of floats.
    flops = plan.products * plan.high * plan.deep * plan.wide
    total = cycles + seconds * 1e9 * machine.clock_ghz
    return roofline(group, schedule, machine, total, flops, float(moved))


def _product_cycles(plan: HalfBlocksPlan, panels: int) -> float:
    """Cycles of a thread's micro-kernels."""
    per_cycle = 2 * ISAS[plan.schedule.isa].fma_per_cycle
    calls = -(-plan.deep // (2 * STEPS * plan.run))
    widths = [plan.width // LANES] * (panels - 1)
    widths.append(plan.widths[-1] if plan.column_ways == 1 else plan.width // LANES)
    total = 0.0
    for rows, times in plan.sizes.items():
        for run in plan.runs[rows] if times else ():
            for vectors in widths:
                sums = run * vectors
                busy = max(sums * plan.deep, (run + 2 * vectors) * plan.deep / 2)
                total += times * (busy / per_cycle + calls * (CALL_CYCLES + 2 * sums))
    return plan.products * total


def _sum_cycles(plan: HalfBlocksPlan, rows: int, panels: int) -> float:
    """Cycles of a thread's sums: two units for arithmetic, two for memory."""
    blocks, (before, behind) = plan.parts**2, additions(plan.levels)
    into = (2 * blocks + before + plan.products) / 2 + plan.products / 2
    back = (plan.products + behind + blocks) / 2 + 3 * blocks
    columns = min(panels * plan.width, plan.wide)
    return rows * (plan.deep * into + columns * back) / LANES


def _weight_seconds(plan: HalfBlocksPlan, rows: int, weights: float, machine: Machine) -> float:
    """What it takes to bring weights again for further rows, from behind the second cache."""
    threads = plan.schedule.threads
    level = min(1, len(machine.caches) - 1)
    room = CROWDED * machine.capacity_bytes(level, threads)
    held = 2 * (plan.input_halves + plan.product_halves)
    if weights <= room - min(held, room):
        return 0.0
    beyond = machine.bandwidth_gbps(min(level + 1, len(machine.caches)), threads) / threads
    return AGAIN * (-(-rows // plan.rows) - 1) * weights / (1e9 * beyond)
