"""The time of a chain of parts on one machine.

Goes in: a group, a schedule of the chain schema, a machine. Comes out: a `Prediction`.

    products   the last part as the outer schema's model has it (outer_time.py); instead of copies
               of its input, the sums of the first part as the stencil schema's model counts them
               (stencil_time.py), computed again wherever tiles or threads share them, and the
               traffic of what it reads and of the strips that it writes; where rows of a product
               come before that, their micro-kernels and stores, once for every tile
    nests      cycles of plain loops for every part (general_time.py), as often as tiles overlap,
               inputs and outputs moved once; regions that no near cache holds are moved, too
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.chain.across import AcrossPlan
from tilewright.kernels.cpu.schemas.chain.expand import ExpandPlan
from tilewright.kernels.cpu.schemas.chain.plan import (
    NestPlan,
    ProductPlan,
    plan_chain,
    tile_regions,
)
from tilewright.kernels.cpu.schemas.chain.rows import SlidingPlan
from tilewright.kernels.cpu.schemas.stencil.cover import Rows
from tilewright.machine.constants import COMMON, TimeConstants
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu import stencil_time
from tilewright.model.cpu.copies import copies_of
from tilewright.model.cpu.general_time import stage_cycles
from tilewright.model.cpu.outer_time import home_seconds, predict_outer, step_cycles
from tilewright.model.cpu.pixels_time import (
    COPY_CYCLES,
    boundaries_of,
    cycle_seconds,
    tile_work,
)
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, bound_times
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.schedule import Schedule

NEST = 1.5  # cycles of plain loops for sums of products, over those that general_time.py counts
NEAR = 1  # the cache that regions have to fit: the second


def predict_chain(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    plan = plan_chain(group, schedule)
    if isinstance(plan, ProductPlan):
        return _predict_product(plan, machine)
    if isinstance(plan, AcrossPlan):
        return _predict_across(plan, machine)
    return _predict_nests(plan, machine)


def block_cycles(
    plan: SlidingPlan, isa: Isa, count: int, k: TimeConstants = COMMON
) -> float:  # fmt: skip
    """Cycles of `count` rows of one channel, in all strips."""
    shape, cycles = plan.shape, 0.0
    reads = tuple(tuple(shape.down.step * i + t for t in shape.down.taps) for i in range(count))
    rows = Rows(0, count, 1, reads)
    stages = len(plan.part.epilogue)
    # Weights are in registers, unless there are too many.
    held = replace(isa, by_lane=True)
    for strip in plan.strips:
        work = stencil_time.tile_work(shape, held, rows, strip)
        each = stencil_time.step_cycles(work, isa, 1, k) + k.stencil_tile_cycles
        each += k.stencil_row_cycles * work.streams
        store = k.stencil_store_cycles + stencil_time.EPILOGUE_CYCLES * stages
        cycles += strip.times * (each + work.accumulators * store)
    return k.stencil_cycles * cycles


def _predict_product(plan: ProductPlan, machine: Machine) -> Prediction:
    schedule, outer, sliding = plan.schedule, plan.outer, plan.sliding
    threads, isa, last = schedule.threads, ISAS[schedule.isa], outer.group
    made, k = predict_outer(last, schedule, machine), machine.time_constants
    part = part_extents(last.main, schedule)
    buffer = operand.buffer_of(outer.contraction, schedule, part)
    copied = copies_of(outer.contraction, schedule, part, buffer)
    # Rows of `copied` are rows of one channel: so many blocks of them, and so many channels.
    count = sliding.rows
    blocks = copied.rows / count
    height = operand.packed_tile(schedule, part)[_row(plan)]
    planes = copied.rows / height
    cycles = blocks * block_cycles(sliding, isa, count, k)
    cycles += planes * k.stencil_filter_cycles + copied.calls * k.pack_call_cycles
    cycle_s = isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)
    down, across = sliding.shape.down, sliding.shape.across
    read = planes * min(down.reach(height), down.extent) * across.extent
    held = sum(t.size for t in plan.group.tensors if t.role != 'inner') / threads
    fill = cycles * cycle_s
    before = plan.expand
    if before is not None:
        fill += copied.calls * _expand_cycles(before, isa, k) * cycle_s
        image = before.rows * before.width * before.summed[1]
        fill += k.stencil_exposed * home_seconds(
            machine, threads, held, threads * copied.calls * image, 1
        )
        # Rows of the image are read again for every region, ahead of time, a block of them for
        # every block of channels.
        again = copied.calls * (before.regions - 1) * image
        near = image + before.region_floats + buffer.size / before.regions
        fill += k.exposed_l1 * home_seconds(machine, threads, near, threads * again, 1)
        block = before.summed[1] * before.block
        again = copied.calls * before.blocks * sum(before.counts.values()) * block
        nearest = block + before.summed[1] * before.columns
        fill += home_seconds(machine, threads, nearest, threads * again, 1)
        # Regions are written, and read by what slides over them.
        held = near
        fill += k.pack_into * home_seconds(machine, threads, held, 2 * threads * read, 1)
    fill += k.stencil_exposed * home_seconds(machine, threads, held, threads * read, 1)
    fill += k.pack_into * home_seconds(
        machine, threads, 2 * buffer.size, 2 * threads * copied.elements, 2
    )
    total = made.compute_s + made.store_s + fill + made.fork_s
    total += sum(b.seconds for b in made.boundaries[1:])
    seconds = (made.compute_s, fill, made.store_s, made.fork_s)
    return _chained(plan, machine, total, seconds, made.boundaries)


def _predict_across(plan: AcrossPlan, machine: Machine) -> Prediction:
    """Tiles as the model of pixels has them; planes of the first part in the place of copies."""
    schedule, sliding, pixels = plan.schedule, plan.sliding, plan.pixels
    threads, isa, k = schedule.threads, ISAS[schedule.isa], machine.time_constants
    done = tile_work(pixels, machine)
    shape, channels = sliding.shape, pixels.sizes[pixels.shape.summed]
    cycles = read = 0.0
    for size in done.blocks:
        height = size // plan.width
        cycles += height / sliding.rows * block_cycles(sliding, isa, sliding.rows, k)
        cycles += k.stencil_filter_cycles + COPY_CYCLES * -(-size // isa.lanes)
        read += min(shape.down.reach(height), shape.down.extent) * shape.across.extent
    images, cycle_s = done.images * channels, cycle_seconds(pixels, machine)
    boundaries = boundaries_of(pixels, machine, done, images * read)
    fill = (images * cycles + len(done.blocks) * k.pack_call_cycles) * cycle_s
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    compute, store = done.compute * cycle_s, done.store * cycle_s
    total = compute + store + fill + fork + sum(b.seconds for b in boundaries[1:])
    return _chained(plan, machine, total, (compute, fill, store, fork), boundaries)


def _chained(
    plan: ProductPlan | AcrossPlan, machine: Machine, total: float,
    seconds: tuple[float, float, float, float], boundaries: tuple[Boundary, ...],
) -> Prediction:  # fmt: skip
    """`seconds`: computing, filling tiles, storing, the fork."""
    flops = sum(part.main.flops for part in parts(plan.group))
    moved = plan.group.compulsory_bytes
    bounds = bound_times(flops, moved, machine, plan.schedule.threads)
    largest = max(bounds, key=lambda name: bounds[name])
    return Prediction(
        max(total, bounds[largest]), *seconds, boundaries, bounds[largest], flops, moved,
        largest if total < bounds[largest] else '', ('computing what is read', 'storing results'),
    )  # fmt: skip


def _expand_cycles(plan: ExpandPlan, isa: Isa, k: TimeConstants) -> float:
    """Cycles of one region of rows."""
    store = k.stencil_store_cycles + stencil_time.EPILOGUE_CYCLES * len(plan.part.epilogue)
    each = sum(
        times * (
            plan.summed[1] * step_cycles(isa, count, count, plan.vectors)
            + count * plan.vectors * store
            + k.stencil_tile_cycles
        )
        for count, times in plan.counts.items()
    )  # fmt: skip
    return plan.blocks * each


def _row(plan: ProductPlan) -> str:
    """The iterator of the last part along the rows of what the first part writes."""
    axis = plan.sliding.axes.index(plan.sliding.shape.down.name)
    stage = plan.outer.group.main
    names = plan.outer.contraction.a.index[axis].names
    return next(n for n in names if n in stage.parallel)


def _predict_nests(plan: NestPlan, machine: Machine) -> Prediction:
    group, schedule, stage = plan.group, plan.schedule, plan.stage
    threads, lanes = schedule.threads, ISAS[schedule.isa].lanes
    tile, part = schedule.reg.tile, part_extents(stage, schedule)
    tiles = math.prod(-(-part[d] // tile[d]) for d in stage.parallel)
    found = tile_regions(group, tile)
    cycles = flops = 0.0
    for s in group.stages:
        share = found[s.name].points * tiles / s.points
        slow = NEST if s.is_product_sum else 1.0
        cycles += slow * share * stage_cycles(group, s, lanes)
        flops += s.flops
    moved = float(group.compulsory_bytes)
    if 4 * plan.scratch_floats > MARGIN * machine.capacity_bytes(NEAR, threads):
        inner = sum(math.prod(w.size for w in found[p.stages[-1].name].written)
                    for p in plan.parts[:-1])  # fmt: skip
        moved += 8.0 * inner * tiles * threads
    return roofline(group, schedule, machine, cycles, flops, moved)
