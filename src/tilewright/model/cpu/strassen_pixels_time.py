"""The time of a schedule of Strassen along pixels on one machine (schemas/strassen_pixels).

Goes in: a group, a schedule of the schema, a machine. Comes out: a `Prediction`.

    compute   every product of every piece: multiply-adds, loads and latency as in
              model/cpu/pixels_time.py, and storing it
    sums      loads, additions and stores of vectors: of the image for every block, of products
              for every result; what is stored is priced by its bytes
    traffic   sums and weights from where they are held to the first cache, for every tile of
              channels that reads them again; results on their way out; weights that the direct
              algorithm does not have, from memory, since a network's are colder than any cache
"""

from __future__ import annotations

from collections import Counter

from tilewright.kernels.cpu.schemas.strassen_pixels.plan import (
    StrassenPixelsPlan,
    plan_strassen_pixels,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.pixels_time import (
    AGAIN,
    COPY_CYCLES,
    CORNER_CYCLES,
    ROW_CYCLES,
    TileWork,
    boundaries_of,
    corner_cycles,
    cycle_seconds,
    most_results,
    step_cycles,
)
from tilewright.model.cpu.prediction import Prediction, bound_times
from tilewright.model.cpu.strassen_time import additions
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.strassen import PRODUCTS, SINGLE
from tilewright.schedule.schedule import Schedule

RESULT_CYCLES = 2.5  # half a line of results, beside what it is made of: on its way out
HALF_LINE = 8  # floats; a store of two takes as long as two, beside the first cache


def predict_strassen_pixels(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    group = tiled_form(group, schedule.reg.tile)
    plan, threads = plan_strassen_pixels(group, schedule), schedule.threads
    done, sums = _work(plan, machine)
    copied = done.images * sum(done.blocks) * plan.sizes[plan.shape.summed]
    crossed = boundaries_of(plan, machine, done, copied, AGAIN if plan.ahead else 1.0)
    cycle_s = cycle_seconds(plan, machine)
    parts = (done.compute * cycle_s, sums * cycle_s, done.store * cycle_s)
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    weights = next(a.tensor for a in group.main.reads if plan.shape.across.name not in a.names)
    own = group.tensor(weights).bytes
    more = own * PRODUCTS // 4 - own
    moved = group.compulsory_bytes + more
    afar = more / (1e9 * machine.bandwidth_gbps(len(machine.caches), threads))
    total = sum(parts) + sum(b.seconds for b in crossed[1:]) + fork + afar
    flops = group.main.flops * PRODUCTS // 8
    bounds = bound_times(flops, moved, machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    return Prediction(
        max(total, bounds[largest]), *parts, fork, crossed, bounds[largest], flops, moved,
        largest if total < bounds[largest] else '', ('adding inputs', 'adding and storing results'),
    )  # fmt: skip


def _work(plan: StrassenPixelsPlan, machine: Machine) -> tuple[TileWork, float]:
    """(the tiles of the thread that has most of them, cycles in which it adds up its inputs)."""
    schedule, isa, k = plan.schedule, ISAS[plan.schedule.isa], machine.time_constants
    ways, shape = dict(schedule.parallel), plan.shape
    images = -(-plan.sizes.get(shape.batch, 1) // ways.get(shape.batch, 1))
    results = most_results(plan, ways.get(shape.across.name, 1))
    tiles = Counter(plan.counts[: -(-len(plan.counts) // ways.get(shape.channels, 1))])
    blocks = [min(plan.block, results - at) for at in range(0, results, plan.block)]
    before, behind = additions(1)
    pieces = Counter[tuple[int, bool]]()  # (vectors, whether it is a pair)
    for block in blocks:
        pairs, narrow, singles = plan.pieces(block)
        pieces += Counter({(plan.wide, True): pairs})
        pieces += Counter({(plan.narrow, True): narrow}) + Counter({(1, False): singles})
    compute = store = near = sums = 0.0
    halves = plan.lanes / HALF_LINE
    if plan.corner and results % plan.lanes:
        pieces[1, False] -= 1
        for channels, number in tiles.items():
            each = plan.deep * corner_cycles(isa, plan.corner) + k.call_cycles
            alone = CORNER_CYCLES * channels * plan.corner * 2
            compute += images * number * (len(SINGLE) * each + alone)
    for (wide, paired), count in pieces.items():
        products = PRODUCTS if paired else len(SINGLE)
        loads, added = (4, before) if paired else (2, 2)
        sums += images * count * wide * plan.deep * (
            loads / isa.loads_per_cycle + added / isa.fma_per_cycle
            + COPY_CYCLES / 2 * halves * products
        )  # fmt: skip
        for channels, number in tiles.items():
            times, vectors = images * count * number, channels * wide
            one = plan.deep * step_cycles(isa, channels, wide, 0.0)
            one += k.call_cycles + (k.accumulator_cycles + 1) * vectors
            compute += times * products * one
            made, more = (4, behind) if paired else (2, 2)
            store += times * (
                k.tile_cycles
                + vectors * (products / isa.loads_per_cycle + more / isa.fma_per_cycle)
                + vectors * made * (k.store_cycles + RESULT_CYCLES * halves)
            )
            near += times * products * plan.deep * wide * plan.lanes
    sums += images * len(blocks) * plan.sizes[shape.summed] * ROW_CYCLES / 4
    every = tiles.total()
    weights = plan.deep * plan.most * PRODUCTS * len(blocks) * images * every
    return TileWork(compute, store, near + weights, images, blocks, images * results, every), sums
