"""The time of a schedule of pixels on one machine (kernels/cpu/schemas/pixels).

Goes in: a group, a schedule of the schema, a machine. Comes out: a `Prediction`.

    compute   every register tile: multiply-adds, loads of pixels (those across a line count twice)
              and of weights, instructions, latency; the busiest of them (MOpt Sec. 6)
    pack      copying the input, vector by vector, and bringing in its lines; where the first tile
              of channels copies as it multiplies, what its products do not hide
    store     asking for lines of results, and storing vectors
    traffic   pixels and weights from where they are held to the first cache, for every tile that
              reads them again; results on their way out

Constants are those of the outer products (machine/constants.py), but for vectors that are copied.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

from tilewright.kernels.cpu.isa.x86_rows import EMBEDDED_VECTORS
from tilewright.kernels.cpu.schemas.pixels.corner import times_written
from tilewright.kernels.cpu.schemas.pixels.plan import PixelsPlan, plan_pixels
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import ISSUE_PER_CYCLE, SUSTAINED
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, direct_prediction
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

COPY_CYCLES = 2.0  # one vector of the input: loaded, stored, later ones asked for
BESIDE_CYCLES = 0.5  # the same, by a micro-kernel as it multiplies
APART_CYCLES = 1.0  # one element of it where a stride lies between neighbours
ROW_CYCLES = 25.0  # one row of it: where it begins, what padding it has
FETCH_CYCLES = 1.5  # one line of results that is asked for

CORNER_CYCLES = 2.0  # one result of the last pixels: alone, through an epilogue in C

# Of the time that lines take which micro-kernels copy, what they wait for at least; and the share
# of the time of their products that hides the rest.
LEAST_WAIT = 0.4
HIDES = 0.3

KEPT = 0.7  # share of the room in a cache up to which a copy stays whole

# Of the time that weights take from behind the second cache where they are asked for ahead.
AGAIN = 0.1

STREAMED = 2.0  # share of what outer products see of the first cache: vectors, not broadcasts


def step_cycles(isa: Isa, channels: int, vectors: int, split: float) -> float:
    """Cycles of one point of a window of one channel; a share `split` of pixels cross a line."""
    fmas = channels * vectors
    again = channels // 2 if isa.vector_bytes == 64 and vectors <= EMBEDDED_VECTORS else 0
    weights = channels + again * (vectors - 1)
    loads = weights + vectors * (1 + split)
    return max(
        fmas / isa.fma_per_cycle,
        loads / (SUSTAINED * isa.loads_per_cycle),
        (fmas + channels - again + vectors) / (SUSTAINED * ISSUE_PER_CYCLE),
        isa.fma_chain_cycles,
    )


def corner_cycles(isa: Isa, pixels: int) -> float:
    """The same of the last few pixels, with channels across the lanes (pixels/corner.py): vectors
    of weights that begin anywhere, of which those as long as a line take two loads.
    """
    return max(
        pixels / isa.fma_per_cycle,
        (pixels + 1 + isa.vector_bytes // 64) / (SUSTAINED * isa.loads_per_cycle),
        (2 * pixels + 1) / (SUSTAINED * ISSUE_PER_CYCLE),
        isa.fma_chain_cycles / times_written(isa, pixels),
    )


def predict_pixels(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    group = tiled_form(group, schedule.reg.tile)
    plan, threads = plan_pixels(group, schedule), schedule.threads
    done = tile_work(plan, machine)
    pack, copied = _pack(plan, done.images, done.blocks)
    seen = AGAIN if plan.ahead else 1.0
    cycle_s = cycle_seconds(plan, machine)
    beside = sum(map(plan.copied_beside, done.blocks)) if plan.source_pitch else 0
    first = done.compute * cycle_s / done.tiles * beside / sum(done.blocks)
    boundaries = boundaries_of(plan, machine, done, done.images * copied, seen, first)
    inside = (done.compute * cycle_s, pack * cycle_s, done.store * cycle_s)
    return direct_prediction(group, machine, threads, inside, boundaries)


@dataclass(frozen=True, slots=True)
class TileWork:
    """What the tiles of one thread take: cycles, and floats that they read from near caches.

    images, blocks  images of the thread, and results along rows of each block of one
    results         of all of them
    tiles           of channels
    """

    compute: float
    store: float
    near: float
    images: int
    blocks: list[int]
    results: int
    tiles: int


def cycle_seconds(plan: PixelsPlan, machine: Machine) -> float:
    """Seconds of one cycle of a core that multiplies all the time."""
    threads, isa = plan.schedule.threads, ISAS[plan.schedule.isa]
    return isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)


def tile_work(plan: PixelsPlan, machine: Machine) -> TileWork:
    """The register tiles of the thread that has most of them."""
    schedule, isa = plan.schedule, ISAS[plan.schedule.isa]
    k, shape, sizes = machine.time_constants, plan.shape, plan.sizes
    ways = dict(schedule.parallel)
    images = -(-sizes.get(shape.batch, 1) // ways.get(shape.batch, 1))
    results = most_results(plan, ways.get(plan.axis.name, 1))
    tiles = Counter(plan.counts[: -(-len(plan.counts) // ways.get(shape.channels, 1))])
    blocks = [min(plan.block, results - at) for at in range(0, results, plan.block)]
    summed, points = sizes[shape.summed], sizes[shape.summed] * plan.taps

    wide, corners = Counter[int](), 0
    for size in blocks if shape.flat else [shape.across.size]:
        if plan.corner and size % plan.strip == plan.corner:
            size, corners = size - plan.corner, images
        whole, rest = divmod(-(-size // plan.lanes), plan.wide)
        wide += Counter({plan.wide: whole}) + Counter({rest: 1 if rest else 0})
    high = Counter({1: 1})
    if shape.down.name:
        high = Counter[int]()
        for size in blocks:
            whole, rest = divmod(size, plan.high)
            high += Counter({plan.high: whole}) + Counter({rest: 1 if rest else 0})
    aligned = shape.flat or (len(shape.across.taps) == 1)
    split = 0.0 if aligned else plan.lanes / 16 * (1 - 1 / len(shape.across.taps))
    compute = store = near = 0.0
    held = machine.caches[0].bytes * MARGIN / 4
    for channels, count in tiles.items():
        results_of = channels * plan.corner
        if corners:
            beside = plan.corner / isa.fma_per_cycle
            each = points * (beside if plan.joined else corner_cycles(isa, plan.corner))
            compute += corners * count * (each + k.call_cycles + CORNER_CYCLES * results_of)
        for h, down in high.items():
            for w, across in wide.items():
                vectors, times = h * w, images * count * down * across
                each = points * step_cycles(isa, channels, vectors, split)
                each += k.call_cycles + k.accumulator_cycles * channels * vectors
                compute += times * each
                lines = channels * vectors * plan.lanes / 16
                store += times * (
                    k.tile_cycles + FETCH_CYCLES * lines + channels * vectors * k.store_cycles
                )
                pixels = summed * h * w * plan.lanes * (1 if shape.flat else plan.taps**0.5)
                near += times * pixels
                near += times * points * channels if points * channels > held / 2 else 0.0
    return TileWork(compute, store, near, images, blocks, results * images, tiles.total())


def most_results(plan: PixelsPlan, ways: int) -> int:
    """Results along rows of the thread that has most of them, as code.py deals them out."""
    count = -(-plan.axis.size // plan.unit)
    ends = [min(count * i // ways * plan.unit, plan.axis.size) for i in range(ways + 1)]
    return max(end - start for start, end in itertools.pairwise(ends))


def boundaries_of(
    plan: PixelsPlan, machine: Machine, done: TileWork, read: float, seen: float = 1.0,
    first: float = 0.0,
) -> tuple[Boundary, ...]:  # fmt: skip
    """What moves over each boundary, where one thread `read`s so many floats to make its copies;
    a share of what weights take to come from behind the second cache is `seen`, and micro-kernels
    that copy take `first` seconds for their products.
    """
    words, seconds = _traffic(
        plan, machine, read, done.near, done.results, done.images * len(done.blocks), seen, first
    )
    return tuple(
        Boundary(name, 4 * plan.schedule.threads * n, s)
        for name, n, s in zip(machine.boundaries, words, seconds, strict=True)
    )


def missed(plan: PixelsPlan, machine: Machine, number: int) -> float:
    """Share of a copy that a cache no longer has when a tile reads it again: what is copied from
    passes through the cache as well, and results do.

    Of a cache as large as it is reported: what a probe found usable may leave out more than that.
    """
    threads, cache = plan.schedule.threads, machine.caches[number]
    if 4 * plan.held_floats > MARGIN * machine.capacity_bytes(number, threads):
        return 1.0
    room = MARGIN * cache.bytes / min(threads, cache.shared_by)
    return max(0.0, (4 * plan.held_floats / room - KEPT) / (1 - KEPT))


def _pack(plan: PixelsPlan, images: int, blocks: list[int]) -> tuple[float, float]:
    """(cycles of one thread, floats that it copies for one image)."""
    summed, lanes = plan.sizes[plan.shape.summed], plan.lanes
    if plan.shape.flat:
        vectors = sum(-(-size // lanes) for size in blocks) * summed
        beside = sum(map(plan.copied_beside, blocks)) // lanes * summed if plan.source_pitch else 0
        cycles = COPY_CYCLES * (vectors - beside) + BESIDE_CYCLES * beside
        # Without a price for the beginning of a block small ones look as good as large ones.
        rows = len(blocks) * summed
        return images * (cycles + ROW_CYCLES / 4 * rows), vectors * lanes
    rows = sum(plan.rows_of(size) for size in blocks) * summed
    each = ROW_CYCLES * len(plan.phases)
    floats = plan.columns * len(plan.phases)
    each += floats * (APART_CYCLES if plan.shape.across.step > 1 else COPY_CYCLES / lanes)
    return images * rows * each, rows * min(floats, plan.shape.across.extent)


def _of_others(machine: Machine, number: int, threads: int) -> float:
    """Share of an input that a cache does not have although it has room: in a network, and of
    new arrays, other cores have written it.
    """
    return max(0.0, 1 - machine.caches[number].shared_by / threads) if number else 0.0


def _traffic(
    plan: PixelsPlan,
    machine: Machine,
    copied: float,
    near: float,
    results: int,
    blocks: int,
    seen: float,
    first: float,
) -> tuple[list[float], list[float]]:
    """Floats over every boundary for one thread, and the seconds of them that nothing hides.

    Every block reads all weights again, and every tile of channels the whole copy of a block.
    """
    k, threads, shape = machine.time_constants, plan.schedule.threads, plan.shape
    ways = dict(plan.schedule.parallel).get(shape.channels, 1)
    row = shape.across.size if shape.down.name else 1
    written = results * row * plan.sizes[shape.channels] / ways
    weights = plan.packed_floats / ways
    words, seconds = [near + written], [0.0]
    for number in range(len(machine.caches)):
        room = MARGIN * machine.capacity_bytes(number, threads) / 4
        rate = 1e9 * machine.bandwidth_gbps(number + 1, threads) / threads / 4
        whole = copied + written + weights > room
        inputs = copied if whole else copied * _of_others(machine, number, threads)
        outputs = written if whole else 0.0
        again = near * (missed(plan, machine, number) if number else 1.0)
        filters = weights * blocks if number and weights > room else 0.0
        exposed = k.exposed[min(number, len(k.exposed) - 1)] * (1 if number else STREAMED)
        words.append(inputs + outputs + again + filters)
        # Copying waits for lines; results and what tiles read again arrive while others compute.
        copying = k.pack_from * inputs / rate
        hidden = min((1 - LEAST_WAIT) * copying, HIDES * first)
        first -= hidden / HIDES
        rest = exposed * (k.written * outputs + again + seen * filters)
        seconds.append(copying - hidden + rest / rate)
    return words, seconds
