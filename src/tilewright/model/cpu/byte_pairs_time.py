"""The time of products of bytes: units, what images leave for lists, packing, and weights.

Goes in: a group, a schedule with schema 'byte_pairs', a machine. Comes out: a `Prediction`.

    units     five instructions for every vector, pixel and eight channels, where words take eight;
              six where groups of channels stand alone
    lists     three for every four channels of which something is left. How many there are is known
              when the image is; behind a ReLU, where 0 is the least number, few. Where 0 stands in
              the middle, all sums of four numbers are too large, and many of two
    packing   of every pixel, by each thread that has channels for its part
    results   panel by panel: lines that the first cache does not hold meanwhile come again
    weights   again for every block of pixels
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.byte_pairs.plan import (
    CHUNK,
    BytePairsPlan,
    line_step,
    plan_byte_pairs,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.dtypes import DTYPES, limits
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

WORDS = 2  # instructions of a multiply-add of words, in which the peak of words was measured
ADDED, ALONE, ENTRY = 5, 6, 3  # those of a unit and of an entry, for each vector and pixel
UNIT_IN_WORDS = 8  # those of as many products of words as a unit has
LOAD = 0.13  # of an instruction, that a load takes beside them
LISTED = 0.2  # entries for each unit of an image whose least number stands for 0
MIDDLE = 2.0  # the same where another number does, of which groups stand alone
CALL_CYCLES = 20  # of a call of a micro-kernel and of its stores, beside its sums
STORE_OPERATIONS = 11  # of a vector of results through the epilogue, narrowed and stored
CHUNK_OPERATIONS = 20  # of so many bytes of a pixel that are packed
PIXEL_OPERATIONS = 12  # of a tap of a pixel, beside its bytes
LIST_OPERATIONS = 20  # of an entry that is found and written
PER_CYCLE = 3  # vector instructions of packing and storing
LINE_BYTES = 64
AGAIN = 0.5  # the same of what comes from a further cache again


def predict_byte_pairs(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    group = tiled_form(group, schedule.reg.tile)
    plan, seen = plan_byte_pairs(group, schedule), machine.in_words()
    isa, threads = ISAS[schedule.isa], schedule.threads
    panels = -(-plan.panels // plan.k_ways)
    pixels = -(-plan.pixels // plan.tile_ways)
    runs = -(-pixels // plan.run)
    blocks = -(-runs // plan.block)
    least = plan.group.main.pad_value == limits(plan.image.dtype)[0]
    listed = LISTED if least else MIDDLE
    instructions = plan.units * ((ADDED if least else ALONE) + ENTRY * listed)
    sums = plan.run * plan.vectors
    loads = plan.units * (plan.held + plan.run * (2 * plan.vectors - plan.held + 2))
    work = sums * instructions + LOAD * loads
    cycles = runs * panels * (work / (WORDS * isa.fma_per_cycle) + CALL_CYCLES)
    stored = runs * panels * sums * STORE_OPERATIONS
    chunks = -(-plan.depth // CHUNK) * CHUNK_OPERATIONS
    packed = runs * plan.run * plan.taps * (chunks + PIXEL_OPERATIONS)
    lists = runs * plan.units * listed * LIST_OPERATIONS
    cycles += (stored + packed + lists) / PER_CYCLE
    weights = plan.panels * plan.panel_bytes
    seconds = _again_seconds(plan, panels, blocks, machine)
    seconds += _line_seconds(plan, panels, pixels, machine)
    moved = sum(t.bytes for t in group.tensors if t.role not in ('inner', 'constant')) + weights
    per_cycle = 1e9 * seen.peak_gflops(threads) / threads / isa.flops_per_cycle
    # In multiply-adds of words, as the machine's peak is.
    flops = 2.0 * plan.pixels * plan.size * plan.taps * plan.depth / 2 * ADDED / UNIT_IN_WORDS
    return roofline(group, schedule, seen, cycles + seconds * per_cycle, flops, float(moved))


def _line_seconds(plan: BytePairsPlan, panels: int, pixels: int, machine: Machine) -> float:
    """What lines of results, and of what is as large, take that come and go for every panel."""
    threads, size = plan.schedule.threads, DTYPES[plan.group.output.dtype]
    rows = [
        size,
        *(DTYPES[i.dtype] for i in plan.epilogue.operands if line_step(plan, dict(i.strides))),
    ]
    first, near = machine.capacity_bytes(0, threads), min(1, len(machine.caches))
    if plan.block * plan.run * plan.size * sum(rows) <= first:
        return 0.0
    moved = pixels * panels * sum(LINE_BYTES + min(LINE_BYTES, plan.width * size) for size in rows)
    return AGAIN * moved / (1e9 * machine.bandwidth_gbps(near, threads) / threads)


def _again_seconds(plan: BytePairsPlan, panels: int, blocks: int, machine: Machine) -> float:
    """What it takes to bring packed pixels again for every panel, and weights for every block,
    where a thread's second cache does not hold both.
    """
    threads = plan.schedule.threads
    level = min(1, len(machine.caches) - 1)
    room = machine.capacity_bytes(level, threads)
    block, weights = plan.block * plan.run_bytes, panels * plan.panel_bytes
    near = machine.bandwidth_gbps(level, threads) / threads
    beyond = machine.bandwidth_gbps(min(level + 1, len(machine.caches)), threads) / threads
    first = machine.capacity_bytes(0, threads)
    moved = 0.0
    if block + weights > room:
        moved += (blocks - 1) * weights + panels * max(0, block + plan.panel_bytes - room)
    seconds = AGAIN * moved / (1e9 * beyond)
    if block + plan.panel_bytes > first:
        seconds += AGAIN * blocks * panels * block / (1e9 * near)
    if plan.panel_bytes > first:
        runs = blocks * plan.block
        seconds += AGAIN * runs * panels * (plan.panel_bytes - first) / (1e9 * near)
    return seconds
