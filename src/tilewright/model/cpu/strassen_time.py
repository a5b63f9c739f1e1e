"""The time of one schedule of the Strassen schema on one machine.

Goes in: a group, a schedule, a machine. Comes out: a `Prediction`: micro-kernels and stores as in
the outer-product schema (model/cpu/outer_time.py), for the product of one block, as often as there
are products and blocks; what sums of the input and results cost in loads, additions and stores;
and the words of weights, V and M that cross each boundary.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.strassen.plan import blocks_of, levels_of
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import boundary_of, tile_cycles
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, bound_times
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.strassen import LEFT, PRODUCTS, block_flops, gather, spread
from tilewright.schedule.schedule import Schedule

# Beside what is counted, seen on a Neoverse-N1 where blocks are small (docs/strassen.md).
CALL_CYCLES = 30  # of a micro-kernel whose sums lie apart from those before
SUM_CYCLES = 3  # of a vector of V that is stored, among as many runs as there are products
RESULT_CYCLES = 5  # of a vector of results, on its way through the first cache to the store


@lru_cache(maxsize=8)
def additions(levels: int) -> tuple[int, int]:
    """(of one number of every block of the input, of one number of every product)."""
    count = 0

    def combine(terms) -> int:
        nonlocal count
        count += len(terms) - 1
        return 0

    parts = range(1 << levels)
    spread(dict.fromkeys(((r, c) for r in parts for c in parts), 0), LEFT, combine, levels)
    before, count = count, 0
    gather([0] * PRODUCTS**levels, combine, levels)
    return before, count


def _vector_cycles(isa: Isa, loads: int, added: int, stored: int) -> float:
    """Cycles of so many vectors."""
    return loads / isa.loads_per_cycle + added / isa.fma_per_cycle + stored


def predict_strassen(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    flat, levels = tiled_form(group, schedule.reg.tile), levels_of(schedule)
    block = blocks_of(flat, schedule.vector, levels)
    c, isa, threads = contract(block, schedule.vector), ISAS[schedule.isa], schedule.threads
    products, blocks = PRODUCTS**levels, 4**levels
    part, tile = part_extents(block.main, schedule), schedule.levels[-1].tile
    row, deep = c.pixels[-1], block.main.sizes[c.loop]
    others = math.prod(part[d] for d in c.pixels[:-1])
    columns = -(-part[c.vector] // min(tile[c.vector], part[c.vector]))
    compute, store = tile_cycles(block, schedule, machine)
    before, behind = additions(levels)
    sums = _vector_cycles(isa, blocks, before, SUM_CYCLES * products) * -(-deep // isa.lanes)
    sums *= others * part[row] * columns
    reg = schedule.reg.tile
    held = -(-part[row] // reg[row]) * reg[row] * -(-part[c.vector] // reg[c.vector])
    held *= others * reg[c.vector] // isa.lanes
    results = held * (_vector_cycles(isa, products, behind, blocks) + RESULT_CYCLES * blocks)
    cycle_s = isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)
    crossed = _traffic(block, schedule, machine, products, others)
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    calls = (
        held * isa.lanes / (reg[row] * reg[c.vector]) * -(-deep // schedule.levels[1].tile[c.loop])
    )
    compute += calls * CALL_CYCLES
    parts = (products * compute * cycle_s, sums * cycle_s, (blocks * store + results) * cycle_s)
    total = sum(parts) + sum(b.seconds for b in crossed[1:]) + fork
    flops, weights = block_flops(block.main, levels), flat.tensor(c.b.tensor).bytes
    moved = flat.compulsory_bytes - weights + weights * products // blocks
    bounds = bound_times(flops, moved, machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    return Prediction(
        max(total, bounds[largest]), *parts, fork, crossed, bounds[largest], flops, moved,
        largest if total < bounds[largest] else '', ('adding inputs', 'adding and storing results'),
    )  # fmt: skip


def _traffic(
    block: Group, schedule: Schedule, machine: Machine, products: int, others: int
) -> tuple[Boundary, ...]:
    """Words of one thread over every boundary: weights, V and M where a cache does not hold them.

    Weights are read once for all rows that are computed together; V is written and read once for
    every piece and all columns, M once for every piece.
    """
    c, threads = contract(block, schedule.vector), schedule.threads
    part, tile, piece = (
        part_extents(block.main, schedule),
        schedule.levels[-1].tile,
        schedule.levels[1].tile[c.loop],
    )
    row, deep, wide = c.pixels[-1], block.main.sizes[c.loop], schedule.reg.tile[c.vector]
    rows, columns = min(tile[row], part[row]), min(tile[c.vector], part[c.vector])
    passes = others * -(-part[row] // rows) * -(-part[c.vector] // columns)
    pieces, panels = -(-deep // piece), -(-columns // wide)
    weights = products * deep * part[c.vector]
    v, m = products * rows * piece, products * rows * columns
    slab = (rows + wide) * piece
    found = [boundary_of(machine, 0, products * deep * rows * columns * passes / wide, threads)]
    for number in range(len(machine.caches)):
        room = MARGIN * machine.capacity_bytes(number, threads) / 4
        reads = 1 if slab <= room else panels
        words = 0.0
        if weights + v + m > room:
            words += others * -(-part[row] // rows) * weights
        if v + m > room or slab > room:
            words += passes * pieces * v * (1 + reads)
        if v + m > room:
            words += passes * 2 * pieces * m
        found.append(boundary_of(machine, number + 1, words, threads))
    return tuple(found)
