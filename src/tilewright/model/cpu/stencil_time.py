"""The time of a stencil schedule on one machine, counted from the tiles that will be generated.

Goes in: a group, a schedule of the stencil schema, a machine. Comes out: a `Prediction`.

    compute   every kind of tile (kernels/cpu/schemas/stencil/cover.py): multiply-adds and shuffles
              share the vector units, loads have their own; the busier of them, or latency;
              accumulators for which there is no register
    starts    every row that a tile reads or writes begins somewhere else: addresses, and a stream
              that a prefetcher has to find
    store     one instruction for each accumulator, and the epilogue
    traffic   what a thread reads and writes, over the slowest boundary that does not hold it
              (MOpt Secs. 3-5); an input plane that stays in a cache is read again for nothing

A tile loads what it needs and computes with it at once, so only a part of the traffic is hidden:
times add up. Beyond a few rows at a time prefetchers lose track, and traffic from beyond the second
cache takes longer; not where the rows of a tile lie within a line of each other, since they are one
stream then. Tiles do not wait for each other: as many as the core looks ahead are computed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.stencil.cover import (
    Rows,
    Stencil,
    Strip,
    crossed,
    gather,
)
from tilewright.kernels.cpu.schemas.stencil.plan import QUAD, StencilPlan, plan_stencil
from tilewright.machine.constants import COMMON, TimeConstants
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import ISSUE_PER_CYCLE
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, bound_times
from tilewright.model.cpu.traffic import footprint
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

# Fitted to all tiles of depthwise layers on a Neoverse-N1; docs/model.md has the figures.
PLANE_CYCLES = 7.0  # one row of another plane, for every step of the loops: other pages and lines
STREAMS = 6  # rows that are read side by side and that prefetchers follow
STREAM_SHARE = 0.12  # what each further one adds to traffic from beyond the second cache
EPILOGUE_CYCLES = 0.5  # one stage of the epilogue, for one vector
LOADED = 2  # registers that vectors pass through from memory
WINDOW = 128  # instructions that every core of interest looks ahead


@dataclass(frozen=True, slots=True)
class Work:
    """What one tile does for one step of the loops."""

    fmas: int
    loads: int
    shuffles: int
    accumulators: int
    streams: int  # rows that are read, and rows that are written


def tile_work(shape: Stencil, isa: Isa, rows: Rows, strip: Strip) -> Work:
    """[Rows, Strip] -> [Work]: instructions of the generated tile."""
    return _tile(shape, isa, rows, strip, _row_work(shape, strip))


def all_work(plan: StencilPlan) -> list[tuple[Rows, Strip, Work]]:
    """The work of every kind of tile."""
    shape, isa = plan.shape, ISAS[plan.schedule.isa]
    read = [(strip, _row_work(shape, strip)) for strip in plan.strips]
    return [
        (rows, strip, _tile(shape, isa, rows, strip, each)) for rows in plan.rows
        for strip, each in read
    ]  # fmt: skip


def _row_work(shape: Stencil, strip: Strip) -> tuple[int, int, int]:
    """(taps, loads, shuffles) of one row that is read."""
    taps = loads = shuffles = 0
    shared: set[tuple[int, int]] = set()
    for v, vector in enumerate(strip.reads):
        for columns in vector:
            how = gather(columns, shape.across.step, strip.extent)
            inside = sum(c is not None for c in columns)
            taps += inside > 0
            if how.loads:
                shuffles += how.shuffles
                shared |= {(v, at) for at in how.loads}
                loads += len(how.loads)
            else:
                shuffles += inside
                loads += inside
    if shape.across.step > 1 and shared:
        loads = len(shared)
    return taps, loads, shuffles


def _tile(
    shape: Stencil, isa: Isa, rows: Rows, strip: Strip, row: tuple[int, int, int]
) -> Work:  # fmt: skip
    taps, loads, shuffles = row
    used = {y for line in rows.reads for y in line if y is not None}
    terms = sum(y is not None for line in rows.reads for y in line)
    # Without multiply-adds by lane every weight is broadcast by a load of its own.
    weights = 0 if isa.by_lane else terms * len(shape.across.taps)
    accumulators = rows.count * len(strip.starts)
    turned = accumulators if crossed(isa, len(strip.reads[0][0]), shape.across.step) else 0
    return Work(
        terms * taps,
        len(used) * loads + weights,
        len(used) * shuffles + turned,
        accumulators,
        len(used) + rows.count,
    )


def step_cycles(work: Work, isa: Isa, steps: int = 1, k: TimeConstants = COMMON) -> float:
    """Cycles of one of `steps` of the loops: the busiest units, and a little for each load.

    Sums of one tile wait for each other, those of the next tile for nothing: it begins as soon as
    the core sees it.
    """
    seen = work.fmas + work.shuffles + work.loads + work.accumulators
    tiles = max(1.0, WINDOW / seen) if steps == 1 else 1.0
    busiest = max(
        (work.fmas + work.shuffles) / isa.fma_per_cycle,
        work.loads / isa.loads_per_cycle,
        (work.fmas + work.shuffles + work.loads) / ISSUE_PER_CYCLE,
        isa.fma_chain_cycles * work.fmas / work.accumulators / tiles,
    )
    return busiest + k.stencil_load_cycles * work.loads


def spilled(work: Work, shape: Stencil, isa: Isa) -> int:
    """Accumulators of a tile for which there is no register beside weights and loaded vectors."""
    weights = -(-shape.taps // QUAD) if isa.by_lane else 1
    return max(0, work.accumulators + weights + LOADED - isa.registers)


def rows_apart(plan: StencilPlan) -> int:
    """Bytes between the end of one row of the widest tile and the beginning of the next."""
    across = plan.shape.across
    outputs = plan.lanes * max(len(strip.starts) for strip in plan.strips)
    read = across.step * (outputs - 1) + max(across.taps) - min(across.taps) + 1
    return 4 * (plan.pitch - read)


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of one thread."""

    compute: float
    starts: float
    store: float
    streams: int  # most rows that one tile reads


def cycles(
    plan: StencilPlan, part: Mapping[str, int], tiles: Sequence[tuple[Rows, Strip, Work]],
    k: TimeConstants,
) -> Cycles:  # fmt: skip
    """Cycles of the largest part."""
    shape, isa = plan.shape, ISAS[plan.schedule.isa]
    sizes = shape.stage.sizes
    steps = math.prod(sizes[d] for d in shape.loops)
    filters = math.prod(part[d] for d in shape.outer)
    share = part[shape.down.name] / sizes[shape.down.name] if shape.down.name else 1.0
    stages = len(plan.group.epilogue)
    compute = starts = store = 0.0
    streams = 0
    for rows, strip, work in tiles:
        times = filters * share * rows.times * strip.times
        each = step_cycles(work, isa, steps, k) + k.stencil_spill_cycles * spilled(work, shape, isa)
        compute += times * (steps * each + k.stencil_tile_cycles)
        starts += times * k.stencil_row_cycles * work.streams
        if steps > 1:
            starts += times * PLANE_CYCLES * steps * (work.streams - rows.count)
        store += times * work.accumulators * (k.stencil_store_cycles + EPILOGUE_CYCLES * stages)
        streams = max(streams, work.streams - rows.count)
    return Cycles(compute, starts + filters * k.stencil_filter_cycles, store, streams)


def traffic(
    plan: StencilPlan, machine: Machine, part: Mapping[str, int],
    tiles: Sequence[tuple[Rows, Strip, Work]] = (),
) -> tuple[float, ...]:  # fmt: skip
    """Words over every boundary for one thread; loads and stores of registers first."""
    shape, group, threads = plan.shape, plan.group, plan.schedule.threads
    stage = shape.stage
    one = dict(part) | dict.fromkeys(shape.outer, 1)
    whole = float(group.tensor(shape.a.tensor).size)
    once = min(float(footprint(shape.a, part)), whole)
    plane = min(float(footprint(shape.a, one)), whole)
    again = plane * math.prod(part[d] for d in shape.outer)
    written = float(footprint(stage.write, part))
    weights = float(footprint(shape.b, part))
    steps = math.prod(stage.sizes[d] for d in shape.loops)
    filters = math.prod(part[d] for d in shape.outer)
    loaded = sum(
        rows.times * strip.times * work.loads for rows, strip, work in tiles or all_work(plan)
    )
    words = [filters * steps * loaded * plan.lanes + written]
    for number in range(len(machine.caches)):
        room = MARGIN * machine.capacity_bytes(number, threads) / 4
        if once + written + weights <= room:
            words.append(0.0)
        else:
            words.append(written + weights + (once if plane <= room else again))
    return tuple(words)


def predict_stencil(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    plan, isa, threads = plan_stencil(group, schedule), ISAS[schedule.isa], schedule.threads
    part = part_extents(group.main, schedule)
    tiles = all_work(plan)
    k = machine.time_constants
    done = cycles(plan, part, tiles, k)
    # Narrower vectors than the machine has run at the same number of instructions.
    k = machine.time_constants
    cycle_s = (
        k.stencil_cycles * isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)
    )
    words = traffic(plan, machine, part, tiles)
    times = [
        4 * words[number] * threads / (1e9 * machine.bandwidth_gbps(number, threads))
        for number in range(len(words))
    ]
    slowest = max(range(1, len(times)), key=lambda number: times[number])
    exposed = times[slowest]
    exposed *= k.stencil_memory if slowest == len(machine.caches) else k.stencil_exposed
    if slowest > 1 and rows_apart(plan) > machine.caches[0].line_bytes:
        exposed *= 1 + STREAM_SHARE * max(0, done.streams - STREAMS)
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    total = (done.compute + done.starts + done.store) * cycle_s + exposed + fork
    bounds = bound_times(group.flops, group.compulsory_bytes, machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    short = max(0.0, bounds[largest] - total)
    boundaries = []
    for number, name in enumerate(machine.boundaries):
        seconds = times[0] if number == 0 else exposed if number == slowest else 0.0
        if number and name == largest:
            seconds += short
        boundaries.append(Boundary(name, 4 * threads * words[number], seconds))
    return Prediction(
        max(total, bounds[largest]),
        done.compute * cycle_s,
        done.starts * cycle_s,
        done.store * cycle_s,
        fork,
        tuple(boundaries),
        bounds[largest],
        group.flops,
        group.compulsory_bytes,
        largest if short else '',
        ('starting rows', 'storing results'),
    )
