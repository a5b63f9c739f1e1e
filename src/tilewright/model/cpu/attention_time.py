"""The time of an attention: two products at the pace of micro-kernels, exponentials, packing.

Goes in: a group, a schedule with schema 'attention', a machine. Comes out: a `Prediction`.

    products   multiply-adds of whole tiles, over what the units do, and the loads of the rows
    weights    an exponential and the functions of scale and mask for every score
    packing    keys and columns once for every stacked point, and again for every thread that
               shares it; rows and results are copied once
    moved      inputs and outputs; panels again for every block of rows, where no cache holds them,
               and a little of the way into the first cache, which prefetches do not hide
"""

from __future__ import annotations

import math

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.attention.plan import AttentionPlan, plan_attention
from tilewright.kernels.cpu.schemas.attention_tiles.plan import plan_tiled_attention
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.general_time import POINT_CYCLES, SMOOTH_CYCLES, _expression
from tilewright.model.cpu.prediction import MARGIN, Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.attention import COLUMN, DEPTH, KEY, ROW
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

CALL_CYCLES = 20.0  # a micro-kernel: entering it, clearing or loading and storing its sums
ROW_CYCLES = 60.0  # a row of a block of scores: joining lanes, two exponentials of one value
PACK_CYCLES = 0.6  # one float that is packed
DIRECT_CYCLES = 10.0  # one key of one row read in place: joining lanes
BUSY = 0.9  # of the units, inside a micro-kernel
NEAR = 1  # the cache that a block has to fit: the second
SEEN = (
    0.07  # of the way of panels from there into the first cache: 8.47 ms with 6 rows, 8.36 with 48
)


def predict_attention(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    p = plan_attention(group, schedule)
    part = part_extents(p.form.values, schedule)
    stacked = math.prod(part[d] for d in p.form.stack)
    seen = seen_share(p)
    isa = ISAS[schedule.isa]
    rows, keys = part[ROW], p.size(KEY) * seen
    points = stacked * rows * keys
    flops = 2.0 * points * (p.size(DEPTH) + p.size(COLUMN)) * schedule.threads
    lines = sum(_expression(s.expr, isa.lanes) for s in p.form.between)
    cycles = points * (lines + (SMOOTH_CYCLES + 8 * POINT_CYCLES) / isa.lanes)
    cycles += stacked * rows * math.ceil(keys / p.keys) * ROW_CYCLES
    if p.direct:
        loads = (p.size(DEPTH) + 1.5 * p.size(COLUMN)) / isa.lanes / isa.loads_per_cycle
        cycles += points * (DIRECT_CYCLES + 2 * loads)
    else:
        cycles += _products(p, stacked, rows, keys)
        packed = math.prod(part[d] for d in p.packed_by) * p.size(KEY)
        cycles += PACK_CYCLES * packed * (p.size(DEPTH) + p.columns)
    moved = float(group.compulsory_bytes)
    near = machine.capacity_bytes(min(NEAR, len(machine.caches) - 1), schedule.threads)
    panels = 4.0 * p.size(KEY) * (p.size(DEPTH) + p.columns)
    block = 4.0 * p.rows * (p.pitch + p.columns + p.size(DEPTH))
    block += panels * min(1.0, p.keys / p.size(KEY))
    if block > MARGIN * near or panels > MARGIN * near:
        moved += panels * stacked * math.ceil(rows / p.rows) * seen * schedule.threads
    if not p.direct and len(machine.caches) > NEAR:
        again = panels * seen * stacked * math.ceil(rows / p.rows) * schedule.threads
        rate = machine.bandwidth_gbps(NEAR, schedule.threads)
        per_cycle = isa.flops_per_cycle * schedule.threads
        cycles += SEEN * again / rate * machine.peak_gflops(schedule.threads) / per_cycle
    return roofline(group, schedule, machine, cycles, flops, moved)


def predict_tiled_attention(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction] of attention in tiles, which all but never wait
    for memory: rows of tiles, exponentials, words that are packed.
    """
    p = plan_tiled_attention(group, schedule)
    seen = machine if machine.isa == schedule.isa else machine.in_tiles('bf16')
    part, share = part_extents(p.form.values, schedule), seen_share(p)
    stacked = math.prod(part[d] for d in p.form.stack)
    rows, keys = part[ROW], p.size(KEY) * share
    points, lanes = stacked * rows * keys, p.lanes
    flops = 2.0 * points * (p.size(DEPTH) + p.size(COLUMN)) * schedule.threads
    lines = sum(_expression(s.expr, lanes) for s in p.form.between)
    cycles = points * (lines + (SMOOTH_CYCLES + 8 * POINT_CYCLES) / lanes)
    cycles += stacked * rows * math.ceil(keys / p.keys) * ROW_CYCLES
    tiles = math.ceil(rows / p.high) * p.high * math.ceil(keys / p.width) * p.width
    cycles += stacked * tiles * (p.deep + p.columns / 2) / (BUSY * lanes * lanes)
    packed = math.prod(part[d] for d in p.packed_by) * p.size(KEY)
    cycles += PACK_CYCLES * packed * (p.deep + p.columns / 2) / lanes
    calls = stacked * math.ceil(rows / p.high) * (math.ceil(keys / p.width) + p.columns / p.width)
    cycles += calls * CALL_CYCLES
    return roofline(group, schedule, seen, cycles, flops, float(group.compulsory_bytes))


def seen_share(p: AttentionPlan) -> float:
    """The share of scores that is computed: about half where each row sees what is before it."""
    if p.form.causal is None:
        return 1.0
    rows, keys = p.size(ROW), p.size(KEY)
    ends = [
        min(keys, max(0, min(first + p.rows, rows) + p.form.causal))
        for first in range(0, rows, p.rows)
    ]
    return max(sum(ends) / (len(ends) * keys), 1.0 / keys)


def _products(p: AttentionPlan, stacked: float, rows: float, keys: float) -> float:
    """Cycles of one thread in the micro-kernels of both products."""
    isa = ISAS[p.schedule.isa]
    tiles = math.ceil(rows / p.high)
    done = tiles * p.high * p.width * math.ceil(keys / p.width) * p.size(DEPTH)
    done += tiles * p.high * keys * p.columns
    calls = tiles * math.ceil(keys / p.width)
    calls += tiles * (p.full_panels + 1) * math.ceil(keys / p.keys)
    busy = BUSY * isa.fma_per_cycle * isa.lanes
    return stacked * (done / busy + calls * (CALL_CYCLES + p.high * p.width / isa.lanes))
