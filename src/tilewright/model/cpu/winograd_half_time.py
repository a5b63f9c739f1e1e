"""The time of Winograd in f16: products at points, transforms, and weights that come from afar.

Goes in: a group, a schedule with schema 'winograd_half', a machine. Comes out: a `Prediction`.

    products    tiles x vectors x channels multiply-adds at every point, and what a call of a
                micro-kernel has around them: accumulators that are cleared, added up and stored
    transforms  operations of both passes of B^T and of A^T, loads and stores of vectors, all in
                the units of a core, for every tile and vector of channels
    weights     once for every block of tiles, from the level that holds them; the first time from
                memory, since a network's weights are colder than any cache, partly hidden
"""

from __future__ import annotations

from tilewright.kernels.cpu.half_epilogue import LANES
from tilewright.kernels.cpu.schemas.winograd.linear import operations
from tilewright.kernels.cpu.schemas.winograd_half.plan import (
    STEPS,
    HalfTilesPlan,
    plan_winograd_half,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

# Vectors in a cycle: half rows count words, of which a vector of f16 is half of one.
CALL_CYCLES = 24  # of a call of a micro-kernel, beside its accumulators
CROWDED = 0.75  # of a cache, which a block and its products may fill
EXPOSED = 0.4  # of the time that weights take from memory, which products do not hide


def predict_winograd_half(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    plan = plan_winograd_half(group, schedule)
    shape, threads = plan.shape, schedule.threads
    tiles, panels = -(-plan.tiles // plan.tile_ways), -(-plan.panels // plan.k_ways)
    cycles = _product_cycles(plan, panels) + _transform_cycles(plan, panels, tiles)
    weights = 2 * plan.weight_halves
    moved = sum(t.bytes for t in group.tensors if t.role != 'inner')
    moved += weights - group.tensor(group.main.reads[1].tensor).bytes
    again = _again_seconds(plan, panels, tiles, weights / plan.k_ways, machine)
    again += EXPOSED * weights / (1e9 * machine.bandwidth_gbps(len(machine.caches), threads))
    per_cycle = 1e9 * machine.clock_ghz
    # A multiply-add of words, two f16, is one of floats.
    flops = shape.t * plan.tiles * shape.c * shape.k
    return roofline(group, schedule, machine, cycles + again * per_cycle, flops, float(moved))


def _product_cycles(plan: HalfTilesPlan, panels: int) -> float:
    """Cycles of a thread's micro-kernels."""
    count = plan.channels // (2 * STEPS)
    calls = -(-count // min(plan.run, count))
    per_cycle = 2 * ISAS[plan.schedule.isa].fma_per_cycle
    total = 0.0
    for size, times in plan.sizes.items():
        for run in plan.runs[size] if times else ():
            sums = run * plan.vectors
            busy = max(sums * plan.channels, (run + 2 * plan.vectors) * plan.channels / 2)
            total += times * (busy / per_cycle + calls * (CALL_CYCLES + 2 * sums))
    return panels * plan.shape.t * total


def _transform_cycles(plan: HalfTilesPlan, panels: int, tiles: int) -> float:
    """Cycles of a thread's transforms: two units for arithmetic, two for memory."""
    f = plan.shape.down
    into = (2 * f.t * operations(f.bt) + 4 * f.t * f.t) / 2
    back = ((f.t + f.m) * operations(f.at) + f.t * f.t + 2 * f.m * f.t + 2 * f.m * f.m) / 2
    channels, results = plan.groups * plan.channels // LANES, panels * plan.vectors
    return tiles * (channels * into + results * back)


def _again_seconds(
    plan: HalfTilesPlan, panels: int, tiles: int, weights: float, machine: Machine
) -> float:
    """What it takes to bring weights again for every further block, and a block for every panel
    where it does not fit.
    """
    threads = plan.schedule.threads
    level = min(1, len(machine.caches) - 1)
    room = CROWDED * machine.capacity_bytes(level, threads)
    beyond = machine.bandwidth_gbps(min(level + 1, len(machine.caches)), threads) / threads
    held = 2 * (plan.input_halves + plan.product_halves)
    blocks = -(-tiles // plan.block)
    moved = 0.0
    if weights > room - min(held, room):
        moved += (blocks - 1) * weights
    if held > room:
        moved += blocks * (panels - 1) * 2 * plan.input_halves
    return moved / (1e9 * beyond)
