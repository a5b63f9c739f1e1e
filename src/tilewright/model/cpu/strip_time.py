"""The time of a schedule of products in tiles along strips of pixels.

Goes in: a group, a schedule with schema 'strip' or 'byte_strip', a machine. Comes out: a
`Prediction`.

    seconds = max(products, tiles loaded, vectors stored) + copies + what nothing hides

Products of a tile take as long whatever it holds: pixels and words that are missing count. Weights
and the image come from the second cache where the first does not hold them, and from beyond where
other threads have made or read them; products hide that as far as they last. What follows sums is
computed meanwhile as well, but for the last register tile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.strip.plan import StripPlan, plan_strip, strip_pixels
from tilewright.machine.isa import ISAS, TILE_ROWS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Boundary, Prediction, bound_times
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

TILE_BYTES = 4 * TILE_ROWS * TILE_ROWS
LOAD_SHARE = 0.6  # of a product: a tile that is loaded from the first cache
STORE_CYCLES, OPERAND_CYCLES = 4.5, 2.5  # of a vector of sums, of one more operand along it
CALL_CYCLES = 40  # of a micro-kernel, around its products
HIDDEN = 0.75  # share that whatever takes longest hides of all else


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one thread."""

    products: float
    loads: float
    stores: float
    copies: float
    calls: float
    far: float

    @property
    def total(self) -> float:
        beside = self.products, self.loads, self.stores, self.far
        return HIDDEN * max(beside) + (1 - HIDDEN) * sum(beside) + self.copies + self.calls


def predict_strip(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    tiled = tiled_form(group, schedule.reg.tile)
    plan = plan_strip(tiled, schedule)
    seen = machine if machine.isa == schedule.isa else machine.in_tiles(schedule.dtype)
    parts = _parts(plan, seen)
    threads = schedule.threads
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    moved = float(group.compulsory_bytes)
    bounds = bound_times(plan.words.group.flops, moved, seen, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    total = parts.total + fork
    waits = total - parts.products - parts.copies - fork
    names = seen.boundaries
    crossed = (Boundary(names[0], moved, parts.loads), Boundary(names[-1], moved, max(waits, 0.0)))
    return Prediction(
        max(total, bounds[largest]), parts.products, parts.copies, 0.0, fork, crossed,
        bounds[largest], group.flops, moved, largest if total < bounds[largest] else '',
    )  # fmt: skip


def _parts(p: StripPlan, machine: Machine) -> Parts:
    words, schedule, isa = p.words, p.words.schedule, ISAS[p.words.schedule.isa]
    threads, sizes = schedule.threads, part_extents(p.words.group.main, p.words.schedule)
    # A product: 16 x 16 x 16 words, two operations each.
    product = 2 * TILE_ROWS**3 * threads / (1e9 * machine.peak_gflops(threads))
    cycle = product / TILE_ROWS
    runs, tiles = strip_pixels(p)
    vectors = -(-sizes[schedule.vector] // isa.lanes)
    width = words.panels.vectors
    panels, steps = -(-vectors // width), p.chunks * len(p.steps)
    products = runs * tiles * vectors * steps
    calls = runs * -(-tiles // p.tiles) * panels
    # Tiles are loaded from the first cache or from the second.
    near = machine.capacity_bytes(0, threads) / 2
    second = machine.bandwidth_gbps(1, threads) * 1e9 / threads
    pixel = 4 * math.prod(sizes[d] for d in p.contraction.reduction) / max(
        1, math.prod(sizes[d] for d in p.contraction.unrolled) if not words.taps else 1
    )
    block = min(tiles, p.tiles * p.block) * p.rows * pixel
    panel = 4 * words.panels.points * words.panels.width
    image = runs * tiles * p.rows * pixel
    blocks = -(-tiles // (p.tiles * p.block)) * runs
    from_second = blocks * panels * panel
    if p.tiles < tiles and (p.block > 1 or panel > near):
        repeats = min(p.block, -(-tiles // p.tiles))
        from_second += blocks * panels * panel * (repeats - 1) if panel > near else 0.0
    from_second += image * (panels if block > near else 1)
    loaded = products * (p.tiles + width) / (p.tiles * width) * LOAD_SHARE * product
    loads = max(loaded, from_second / second)
    # Several operands along a result are read where it is stored.
    along = [
        i for i in words.epilogue.operands
        if i.stride(schedule.vector) and any(i.stride(d) for d in p.pixels)
    ]
    stored = runs * tiles * p.rows * vectors
    stores = stored * (STORE_CYCLES + OPERAND_CYCLES * len(along)) * cycle
    last = p.tiles * p.rows * width * STORE_CYCLES * cycle
    copies = last + (3 * 4 * words.operand.size * runs / second if p.copy else 0.0)
    beyond = machine.bandwidth_gbps(min(2, len(machine.caches)), threads) * 1e9 / threads
    far = 4.0 * vectors * isa.lanes * words.panels.points
    cut = dict(schedule.parallel)
    if schedule.vector in cut:  # of an image that others have made
        given = p.dot.image
        far += given.size * DTYPES[given.dtype] * (1 - 1 / cut[schedule.vector])
    return Parts(
        products * product, loads, stores, copies, calls * CALL_CYCLES * cycle, far / beyond
    )
