"""The time of a schedule of products in tiles along strips of pixels.

Goes in: a group, a schedule with schema 'strip' or 'byte_strip', a machine. Comes out: a
`Prediction`.

    seconds = hidden * max(parts) + (1 - hidden) * sum(parts) + copies + calls
    parts: products, tiles loaded, vectors stored, bytes from beyond the second cache

Products of a tile take as long as it has rows, whatever they hold: words that are missing count.
Weights and the image come from the second cache where the first does not hold them, and from beyond
where other threads have made or read them. Sums are stored while the next ones are made, the better
hidden the more steps there are between them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.strip.plan import StripPlan, plan_strip, strip_pixels
from tilewright.machine.isa import ISAS, TILE_ROWS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Boundary, Prediction, bound_times
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.integer import factors
from tilewright.schedule.schedule import Schedule

NEAR_SHARE = 0.8  # of the first cache that weights and pixels may fill
IN_FLIGHT = 2.0  # sums that are made in turns, at least, for products not to wait
LOAD_SHARE = 0.3  # of a product: a tile that is loaded from the first cache
STORE_CYCLES, OPERAND_CYCLES = 6.0, 2.5  # of a vector of sums, of one more operand along it
CALL_CYCLES = 40  # of a micro-kernel, around its products
HIDDEN = 0.75  # share that whatever takes longest hides of all else
ENOUGH_STEPS = 16  # of products to store sums between: loads wait for stores that look alike


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one thread."""

    products: float
    loads: float
    stores: float
    copies: float
    calls: float
    far: float
    steps: int

    @property
    def total(self) -> float:
        beside = self.products, self.loads, self.stores, self.far
        hidden = HIDDEN * min(1.0, self.steps / ENOUGH_STEPS)
        return hidden * max(beside) + (1 - hidden) * sum(beside) + self.copies + self.calls


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


def shared_bytes(group: Group, ways: int) -> float:
    """Bytes that a thread with one of so many shares of the channels waits for: of the image those
    that others have made, and of the result as many again. Its lines lie among those of others, and
    what prefetches them takes them from each other.
    """
    image = group.tensor(factors(group)[0].tensor)
    return (image.bytes + group.output.bytes) * (1 - 1 / ways)


def _parts(p: StripPlan, machine: Machine) -> Parts:
    words, schedule, isa = p.words, p.words.schedule, ISAS[p.words.schedule.isa]
    threads, sizes = schedule.threads, part_extents(p.words.group.main, p.words.schedule)
    # A product: 16 x 16 x 16 words, two operations each.
    product = 2 * TILE_ROWS**3 * threads / (1e9 * machine.peak_gflops(threads))
    cycle = product / TILE_ROWS
    product *= p.rows / TILE_ROWS
    runs, tiles = strip_pixels(p)
    vectors = -(-sizes[schedule.vector] // isa.lanes)
    width = words.panels.vectors
    panels, steps = -(-vectors // width), p.chunks * len(p.steps)
    groups, blocks = -(-tiles // p.tiles), -(-tiles // (p.tiles * p.block))
    products, calls = runs * tiles * vectors * steps, runs * groups * panels

    def slower(count: int) -> float:
        return max(1.0, IN_FLIGHT / (count * width))

    last = tiles - (groups - 1) * p.tiles
    waits = ((groups - 1) * p.tiles * slower(p.tiles) + last * slower(last)) / tiles
    # Tiles are loaded from the first cache or from the second.
    near = NEAR_SHARE * machine.capacity_bytes(0, threads)
    second = machine.bandwidth_gbps(1, threads) * 1e9 / threads
    taps = 1 if words.taps else math.prod(sizes[d] for d in p.contraction.unrolled)
    pixel = 4 * math.prod(sizes[d] for d in p.contraction.reduction) / taps
    panel = 4 * words.panels.points * words.panels.width
    again = blocks if panel + p.tiles * p.rows * pixel <= near else groups
    block = min(tiles, p.tiles * p.block) * p.rows * pixel
    passes = 1 if panel + block <= near else panels
    from_second = runs * (again * panels * panel + tiles * p.rows * pixel * passes)
    loaded = products * (p.tiles + width) / (p.tiles * width) * LOAD_SHARE * product
    loads = loaded + from_second / second
    # Several operands along a result are read where it is stored.
    along = [
        i
        for i in words.epilogue.operands
        if i.stride(schedule.vector) and any(i.stride(d) for d in p.pixels)
    ]
    stored = runs * tiles * p.rows * vectors
    stores = stored * (STORE_CYCLES + OPERAND_CYCLES * len(along)) * cycle
    unhidden = p.tiles * p.rows * width * STORE_CYCLES * cycle
    copies = unhidden + (3 * 4 * words.operand.size * runs / second if p.copy else 0.0)
    beyond = machine.bandwidth_gbps(min(2, len(machine.caches)), threads) * 1e9 / threads
    far = 4.0 * vectors * isa.lanes * words.panels.points
    cut = dict(schedule.parallel)
    if schedule.vector in cut:
        far += shared_bytes(p.dot.group, cut[schedule.vector])
    return Parts(
        products * product * waits,
        loads,
        stores,
        copies,
        calls * CALL_CYCLES * cycle,
        far / beyond,
        steps,
    )
