"""The time of Winograd in whole numbers: products at points, transforms, and where weights lie.

Goes in: a group, a schedule with schema 'winograd_words', a machine. Comes out: a `Prediction`.

    products    a multiply-add of words for every tile, vector and word at every point, and what a
                call of a micro-kernel has around them
    transforms  vector instructions of both passes of B^T, of G where weights are transformed in the
                call, and of A^T with what follows the sums
    weights     transformed ahead they come from memory, bytes of all taps are a fraction of that
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.winograd.linear import operations
from tilewright.kernels.cpu.schemas.winograd_words.plan import (
    STEPS,
    WordTilesPlan,
    plan_winograd_words,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

CALL_CYCLES = 12  # of a call of a micro-kernel, beside its accumulators
SUM_CYCLES = 1  # of an accumulator that is cleared and stored
TILE_CYCLES = 60  # finding the pixels of a tile
STORE_OPERATIONS = 14  # of a vector of results through the epilogue, narrowed and stored
PER_CYCLE = 3  # vector instructions of transforms
CROWDED = 0.6  # of a cache, which a block, its sums and the weights of a panel may fill
EXPOSED = 0.8  # of the time that weights take from memory, which products do not hide
NEAR = 0.25  # of the time in which transformed weights and sums leave the first cache and return
AGAIN = 0.5  # the same of what comes from a further cache again


def predict_winograd_words(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    plan, seen = plan_winograd_words(group, schedule), machine.in_words()
    threads, shape = schedule.threads, plan.shape
    panels = -(-plan.panels // plan.k_ways)
    sizes = max((plan.block_sizes(part) for part in range(plan.tile_ways)), key=sum)
    cycles = _product_cycles(plan, panels, sizes) + _transform_cycles(plan, panels, sizes)
    packed = 4 * plan.packed_words
    last = machine.bandwidth_gbps(len(machine.caches), threads)
    again = _again_seconds(plan, panels, sizes, machine) + EXPOSED * packed / (1e9 * last)
    moved = sum(t.bytes for t in group.tensors if t.role != 'inner') + packed
    # Cycles are those in which multiply-adds of words are counted, as the peak was measured.
    per_cycle = 1e9 * seen.peak_gflops(threads) / threads / ISAS[schedule.isa].flops_per_cycle
    flops = 2.0 * shape.t * plan.tiles * plan.words * shape.k
    return roofline(group, schedule, seen, cycles + again * per_cycle, flops, float(moved))


def _product_cycles(plan: WordTilesPlan, panels: int, sizes: tuple[int, ...]) -> float:
    """Cycles of a thread's micro-kernels."""
    isa, total = ISAS[plan.schedule.isa], 0.0
    for size in sizes:
        for run in plan.runs[size]:
            sums = run * plan.vectors
            step = max(
                sums / isa.fma_per_cycle, (run + plan.vectors) / isa.loads_per_cycle,
                isa.loop_instructions / STEPS,
            )  # fmt: skip
            total += plan.words * step + plan.chunks * (CALL_CYCLES + SUM_CYCLES * sums)
    return panels * plan.shape.t * total


def _transform_cycles(plan: WordTilesPlan, panels: int, sizes: tuple[int, ...]) -> float:
    """Cycles of a thread's transforms."""
    f, tiles = plan.shape.down, sum(sizes)
    into = 2 * f.t * operations(f.bt) + 5 * f.t * f.t
    back = plan.pieces * ((f.t + f.m) * operations(f.at) + f.t * f.t + 2 * f.m * f.t)
    back += (STORE_OPERATIONS + 4) * f.m * f.m
    vectors = -(-plan.shape.c // plan.numbers)
    total = tiles * (vectors * into + panels * plan.vectors * back)
    if not plan.ahead:
        filters = (f.r + f.t) * operations(f.g) + 2 * f.r * f.r + 2 * f.t * f.r + f.t * f.t
        total += len(sizes) * panels * plan.words * plan.vectors * filters
    return total / PER_CYCLE + tiles * TILE_CYCLES


def _again_seconds(
    plan: WordTilesPlan, panels: int, sizes: tuple[int, ...], machine: Machine
) -> float:
    """What it takes to bring a block again for every panel, and weights for every run of tiles,
    where they do not fit the second cache.
    """
    threads = plan.schedule.threads
    level = min(1, len(machine.caches) - 1)
    room = CROWDED * machine.capacity_bytes(level, threads)
    beyond = machine.bandwidth_gbps(min(level + 1, len(machine.caches)), threads) / threads
    moved = 0.0
    for size in sizes:
        block, weights = 4 * plan.shape.t * size * plan.pitch, 4 * plan.filter_words
        sums = 4 * plan.pieces * plan.shape.t * size * plan.width
        held = block + sums + (0 if plan.ahead else weights)
        if held > room:
            moved += panels * (held - room)
        if plan.ahead:  # all panels for every block
            moved += panels * weights
    seconds = AGAIN * moved / (1e9 * beyond)
    first, made = machine.capacity_bytes(0, threads), 0.0
    if not plan.ahead and 4 * plan.filter_words > first:
        made += 4 * plan.shape.t * plan.words * plan.width * panels * len(sizes)
    for size in sizes:
        sums = 4 * plan.pieces * plan.shape.t * size * plan.width
        made += panels * sums if sums > first else 0
    near = machine.bandwidth_gbps(min(1, len(machine.caches)), threads) / threads
    return seconds + NEAR * 2 * made / (1e9 * near)
