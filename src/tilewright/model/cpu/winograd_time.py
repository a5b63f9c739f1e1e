"""The time of a Winograd schedule on one machine, from the parts of the generated code.

Goes in: a group, a schedule of the winograd schema, a machine. Comes out: a `Prediction`.

    compute   micro-kernels of every run and panel, tails included (outer_time.step_cycles)
    pack      the input transform: vector instructions of both passes, counted from the matrices
    store     the output transform and the rows of the result
    traffic   V is written once and read once for each block of k, U is read once for each block of
              tiles, M is written and read once; each crosses every boundary inside which it does
              not fit (MOpt Secs. 3-5, with blocks as tiles)

All of it is read and written in order, while micro-kernels run for the weights and V: prefetchers
hide all but a share of the time. The first run of tiles over a panel fetches its weights from afar:
where it is shorter than a core takes for that, it waits for the rest. Points that share a weight
(ops/winograd_matrices.py) count as further tiles.
Threads share nothing: a cut over k repeats the input transform, which the largest part pays.

What is hidden still takes its time: where the sum is below the time of the compulsory traffic, that
is the prediction.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.winograd.linear import operations
from tilewright.kernels.cpu.schemas.winograd.plan import option, split_runs, tile, transform_lanes
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import SHARED_LINE_CYCLES, step_cycles
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, bound_times
from tilewright.ops.group import Group
from tilewright.ops.tiles import Axis, Tile, TileGeometry, product_stage
from tilewright.ops.winograd import Geometry, geometry
from tilewright.ops.winograd_matrices import Transform
from tilewright.schedule.schedule import Schedule

# Calibrated on dense layers with one core of a Neoverse N1; docs/winograd.md has the figures.
CALL_CYCLES = 25.0  # entering and leaving a micro-kernel, the choice of it included
ACCUMULATOR_CYCLES = 0.6  # clearing and storing one accumulator
VECTOR_CYCLES = 0.62  # one vector instruction of a transform: arithmetic, shuffle or store
ROW_CYCLES = 30.0  # one row of tiles of one channel
LINE_CYCLES = 4.0  # one cache line of V written and evicted, beyond its instructions
OUT_ROW_CYCLES = 40.0  # one row of output pixels of one panel
PIXELS_CYCLES = 2.5  # four neighbouring outputs, transposed and stored
# Shares of the time of traffic that nothing hides: weights, the image and the result are read and
# written in order, V (and weights again, for later runs) in blocks, M tile by tile.
WEIGHTS_EXPOSED = 0.1
FETCHED_PER_CYCLE = 7.2  # bytes of weights that a core gets from beyond its own caches
INPUTS_EXPOSED = 0.35
PRODUCTS_EXPOSED = 0.3


@dataclass(frozen=True, slots=True)
class Work:
    """What one thread does: the numbers of a schedule that the price depends on."""

    shape: TileGeometry[Axis]
    isa: Isa
    run: int
    vectors: int
    k_block: int
    block: tuple[int, int, int]
    part: tuple[int, int, int, int, int]  # n, g, k, ph, pw
    moving: bool = False  # weights are transformed in every call

    @property
    def width(self) -> int:
        return self.vectors * self.isa.lanes


@dataclass(frozen=True, slots=True)
class Words:
    """Words of one thread over a boundary, by what they are."""

    border: float = 0.0  # the image and the result
    weights: float = 0.0
    inputs: float = 0.0  # V
    products: float = 0.0  # M
    again: float = 0.0  # weights, for the runs behind the first of a panel

    @property
    def total(self) -> float:
        return self.border + self.weights + self.inputs + self.products + self.again


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of one thread, and words over each boundary but the first."""

    multiply: float
    transform_in: float
    transform_out: float
    words: tuple[Words, ...]
    streams: tuple[tuple[float, float], ...]  # (cycles of first runs, their words of weights)


@lru_cache(maxsize=4096)
def _pieces(extent: int, tile: int) -> tuple[tuple[int, int], ...]:
    """(size, count) of the tiles that cover an extent."""
    found = Counter({tile: extent // tile} if extent >= tile else {})
    if extent % tile:
        found[extent % tile] += 1
    return tuple(found.items())


@lru_cache(maxsize=256)
def _operations(f: Transform) -> tuple[int, int]:
    """Instructions of B^T and of A^T."""
    return operations(f.bt), operations(f.at)


@lru_cache(maxsize=4096)
def _runs(tiles: int, most: int) -> tuple[tuple[int, int], ...]:
    """(length, count) of the runs that a block is cut into."""
    return tuple(Counter(split_runs(tiles, most)).items())


@lru_cache(maxsize=65536)
def _input_row(shape: Geometry, isa: Isa, widest: int, columns: int) -> float:
    """Both passes over a row of tiles, for every channel."""
    down, across = shape.down, shape.across
    lanes = transform_lanes(isa.lanes, widest)
    reach = columns * across.step + across.length - across.step
    first = -(-reach // lanes) * (_operations(down)[0] + down.t)
    second = 0
    for part in across.parts:
        f = part.f
        spread = lanes > 4 and across.stride <= 2  # inputs are picked out of rows in registers
        if across.stride > 1 and not (spread and part.shared == 1):
            # Every stride-th element: loads, a shuffle, a store.
            second += -(-(columns * f.m + f.t - f.m) // lanes) * 3
        elif part.shared > 1:
            second += -(-columns * f.m // lanes)
        if part.shared == 1:
            shuffles = 0 if f.m == 1 else 2 * f.t
            if lanes > 4 and f.m > 1:  # of every two vectors one, and one of every two of those
                shuffles = f.t * (2 * -(-f.m // 2) - 1)
            if spread and across.stride > 1:
                shuffles += f.m * -(-f.t // f.m)
            second += -(-columns // lanes) * (_operations(f)[0] + f.t + shuffles)
    lines = shape.t * columns / 16
    each = ROW_CYCLES + VECTOR_CYCLES * (first + down.t * second) + LINE_CYCLES * lines
    return shape.c * each


@lru_cache(maxsize=65536)
def _output_row(shape: Geometry, isa: Isa, width: int, columns: int, k: int) -> float:
    """The output transform of a row of tiles for all of k, and its rows of pixels."""
    down, across = shape.down, shape.across
    held = down.t * across.m + 8 <= isa.registers
    spilled = 0 if held else down.t * across.m
    each = down.t * _operations(across)[1] + across.m * _operations(down)[1]
    each += down.m * across.m + spilled + shape.t / 3
    vectors = -(-k // isa.lanes)
    pixels = down.m * across.m * columns * k / 4
    rows = down.m * -(-k // width)
    return VECTOR_CYCLES * vectors * columns * each + PIXELS_CYCLES * pixels + OUT_ROW_CYCLES * rows


@dataclass(frozen=True, slots=True)
class PointsModel:
    """What an algorithm that multiplies at points is priced by.

    geometry     [Group, Tile] -> its tiles
    input_row    [tiles, Isa, most columns, columns] -> cycles of the input transform of a row of
                 tiles, for every channel
    output_row   [tiles, Isa, lanes of a panel, columns, k] -> cycles of the output transform of a
                 row of tiles for k channels, and of its rows of pixels
    """

    geometry: Callable[[Group, Tile], TileGeometry[Axis]]
    input_row: Callable[[Any, Isa, int, int], float]
    output_row: Callable[[Any, Isa, int, int, int], float]


WINOGRAD = PointsModel(geometry, _input_row, _output_row)


def work_of(group: Group, schedule: Schedule, model: PointsModel = WINOGRAD) -> Work:
    """[Group, Schedule] -> [Work] of the largest part."""
    shape, isa = model.geometry(group, tile(schedule)), ISAS[schedule.isa]
    part = part_extents(product_stage(shape), schedule)
    outer, inner = schedule.levels[3].tile, schedule.levels[1].tile
    n, ph, pw = (min(outer[d], part[d]) for d in ('n', 'ph', 'pw'))
    return Work(
        shape, isa, option(schedule, 'run'), schedule.reg.tile['k'] // isa.lanes,
        min(inner['k'], part['k']), (n, ph, pw),
        (part['n'], part.get('g', 1), part['k'], part['ph'], part['pw']), is_moving(group),
    )  # fmt: skip


def is_moving(group: Group) -> bool:
    """Whether weights are no constants."""
    return group.tensor(group.main.reads[1].tensor).role != 'constant'


def _filter_cycles(work: Work) -> float:
    """Weights that are transformed in every call: turned into lanes, two passes, stored."""
    shape, (_, g, k, _, _) = work.shape, work.part
    taps = shape.down.r * shape.across.r
    each = 3 * taps + 4 * shape.weights + 3 * shape.weights * shape.across.r // shape.across.m
    return VECTOR_CYCLES * g * shape.c * -(-k // work.isa.lanes) * each


def cycles(work: Work, machine: Machine, threads: int, model: PointsModel = WINOGRAD) -> Cycles:
    """Cycles of the largest part, and the words that cross each boundary for it."""
    n, g, k, ph, pw = work.part
    multiply = transform_in = transform_out = 0.0
    first = dict.fromkeys((shared for shared, _ in _sharing(work.shape)), 0.0)
    blocks = 0
    for size_n, count_n in _pieces(n, work.block[0]):
        for rows, count_h in _pieces(ph, work.block[1]):
            for columns, count_w in _pieces(pw, work.block[2]):
                count = g * count_n * count_h * count_w
                blocks += count
                tiles = size_n * rows * columns
                for shared, each, lead in _multiply(
                    work.shape, work.isa, work.run, work.vectors, tiles, k
                ):
                    multiply += count * each
                    first[shared] += count * lead
                above = model.input_row(work.shape, work.isa, work.block[2], columns)
                below = model.output_row(work.shape, work.isa, work.width, columns, k)
                transform_in += count * size_n * rows * above
                transform_out += count * size_n * rows * below
    if work.moving:
        transform_in += _filter_cycles(work)
    if pw < work.shape.pw:
        transform_out += SHARED_LINE_CYCLES * n * g * k * ph * work.shape.down.m
    streams = tuple(
        (first[shared], blocks * weights * work.shape.c * k)
        for shared, weights in _sharing(work.shape)
    )
    words = _words(work, machine, threads, blocks)
    return Cycles(multiply, transform_in, transform_out, words, streams)


@lru_cache(maxsize=65536)
def _multiply(
    shape: TileGeometry[Axis], isa: Isa, most: int, vectors: int, tiles: int, k: int
) -> tuple[tuple[int, float, float], ...]:
    """(points that share a weight, cycles of their products, of their first runs) for a block."""
    width = vectors * isa.lanes
    full, rest = divmod(k, width)
    panels = [(vectors, full)] + ([(-(-rest // isa.lanes), 1)] if rest else [])
    found = []
    for shared, weights in _sharing(shape):
        longest = split_runs(shared * tiles, most)[0]
        total = lead = 0.0
        for run, count in _runs(shared * tiles, most):
            for wide, number in panels:
                each = shape.c * step_cycles(isa, run, run, wide)
                each += CALL_CYCLES + ACCUMULATOR_CYCLES * run * wide
                total += weights * count * number * each
                lead += weights * number * each if run == longest else 0.0
        found.append((shared, total, lead))
    return tuple(found)


@lru_cache(maxsize=4096)
def _sharing(shape: TileGeometry[Axis]) -> tuple[tuple[int, int], ...]:
    """(points that share a weight, number of such weights)."""
    return shape.sharing


def _words(work: Work, machine: Machine, threads: int, blocks: int) -> tuple[Words, ...]:
    """What crosses each boundary but the first for one thread.

    V and M stay in a cache that holds both of a block of k, weights in one that holds everything.
    Later runs of a panel are priced as if they fetched its weights from the second cache again:
    that fits what short runs lose, whose cause was not observed.
    """
    shape = work.shape
    n, g, k, ph, pw = work.part
    tiles = math.prod(work.block)
    held = min(work.k_block, k)
    v, m = shape.t * shape.c * tiles, shape.t * held * tiles
    u = shape.weights * shape.c * k
    again = sum(
        weights * (-(-shared * tiles // work.run) - 1) for shared, weights in _sharing(shape)
    )
    most = max(shared for shared, _ in _sharing(shape))
    slab = shape.c * (most * tiles + work.width)
    pixels = n * ph * pw
    image = shape.c * pixels * shape.down.step * shape.across.step
    border = g * (image + k * pixels * shape.down.m * shape.across.m)
    passes, panels = -(-k // held), -(-held // work.width)
    found = []
    for level in range(len(machine.caches)):
        copies = min(threads, machine.caches[level].shared_by)
        room = MARGIN * machine.capacity_bytes(level, 1) / 4 / copies
        outermost = level + 1 == len(machine.caches)
        if outermost and g * u + v + m + border <= room:
            found.append(Words())
            continue
        reads = passes * (1 if level or slab <= room else panels)
        found.append(
            Words(
                border,
                blocks * u if u + v + m > room else g * u if g > 1 or outermost else 0.0,
                blocks * v * (1 + reads) if v + m > room else 0.0,
                (2.0 * blocks * m * passes if v + m > room else 0.0)
                + (3.0 * g * u if work.moving and g * u > room else 0.0),
                0.0 if level else float(blocks * again * shape.c * k),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of one call, by what they are spent on; they add up."""

    multiply: float
    transform_in: float
    transform_out: float
    fork: float
    exposed: tuple[float, ...]  # over each boundary, what nothing hides; 0 for the first

    @property
    def total(self) -> float:
        """Before the bound is looked at: what ranks schedules that the bound makes equal."""
        around = self.transform_in + self.transform_out + self.fork
        return self.multiply + around + sum(self.exposed)


def seconds(done: Cycles, isa: Isa, machine: Machine, threads: int) -> Parts:
    """[Cycles] -> [Parts]"""
    cycle_s = isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)
    exposed = [0.0]
    streamed = max((n for n, words in enumerate(done.words, 1) if words.weights), default=0)
    for number, words in enumerate(done.words, 1):
        share = (
            WEIGHTS_EXPOSED * (words.weights + words.border)
            + INPUTS_EXPOSED * (words.inputs + words.again)
            + PRODUCTS_EXPOSED * words.products
        )
        rate = 1e9 * machine.bandwidth_gbps(number, threads)
        late = 0.0
        if number == streamed > 1:
            fetch = 4 * max(threads / rate, cycle_s / FETCHED_PER_CYCLE)
            late = sum(max(0.0, fetch * u - lead * cycle_s) for lead, u in done.streams)
        exposed.append(max(4 * share * threads / rate, late))
    return Parts(
        done.multiply * cycle_s,
        done.transform_in * machine.time_constants.transform * cycle_s,
        done.transform_out * machine.time_constants.transform * cycle_s,
        machine.fork_join_us * 1e-6 if threads > 1 else 0.0,
        tuple(exposed),
    )


def transform_time(
    group: Group, m: Tile, isa: Isa, machine: Machine, threads: int, model: PointsModel = WINOGRAD
) -> float:
    """Seconds of both transforms, cut evenly between threads."""
    shape = model.geometry(group, m)
    rows = shape.n * shape.g * shape.ph
    total = rows * model.input_row(shape, isa, shape.pw, shape.pw)
    total += rows * model.output_row(shape, isa, 2 * isa.lanes, shape.pw, shape.k)
    total *= machine.time_constants.transform
    return total * isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads))


def weights_time(
    group: Group, m: Tile, machine: Machine, threads: int, model: PointsModel = WINOGRAD
) -> float:
    """Seconds to read the transformed weights once, from the cache that holds them."""
    size = _transformed_bytes(group, model.geometry(group, m))
    home = next(
        (
            number
            for number in range(len(machine.caches))
            if size <= MARGIN * threads * machine.capacity_bytes(number, threads)
        ),
        len(machine.caches),
    )
    return size / (1e9 * machine.bandwidth_gbps(home, threads))


def _transformed_bytes(group: Group, shape: TileGeometry[Axis]) -> int:
    return 4 * shape.weights * shape.g * shape.k * shape.c


def needs(group: Group, m: Tile, model: PointsModel = WINOGRAD) -> tuple[int, int]:
    """(operations of the products, bytes to be moved) of this algorithm: weights transformed."""
    shape = model.geometry(group, m)
    weights = group.tensor(group.main.reads[1].tensor).bytes
    transformed = _transformed_bytes(group, shape)
    return product_stage(shape).flops, group.compulsory_bytes - weights + transformed


def lower_bound_winograd(
    group: Group, m: Tile, machine: Machine, threads: int, model: PointsModel = WINOGRAD
) -> float:
    """Seconds that no kernel of this algorithm can beat: its products at peak, or the traffic."""
    return max(bound_times(*needs(group, m, model), machine, threads).values())


def predict_winograd(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    return predict_points(group, schedule, machine, WINOGRAD)


def predict_points(
    group: Group, schedule: Schedule, machine: Machine, model: PointsModel
) -> Prediction:
    """The same for any algorithm that multiplies at points."""
    threads = schedule.threads
    work = work_of(group, schedule, model)
    done = cycles(work, machine, threads, model)
    parts = seconds(done, work.isa, machine, threads)
    flops, moved = needs(group, tile(schedule), model)
    bounds = bound_times(flops, moved, machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    short = max(0.0, bounds[largest] - parts.total)
    registers = work.shape.t * work.shape.c * math.prod(work.part) * (1 / work.width + 1 / work.run)
    boundaries = []
    for number, name in enumerate(machine.boundaries):
        total = 4 * threads * (registers if number == 0 else done.words[number - 1].total)
        time = parts.exposed[number] + (short if name == largest else 0.0)
        if number == 0:
            time = total / (1e9 * machine.bandwidth_gbps(number, threads))
        boundaries.append(Boundary(name, total, time))
    return Prediction(
        max(parts.total, bounds[largest]),
        parts.multiply,
        parts.transform_in,
        parts.transform_out,
        parts.fork,
        tuple(boundaries),
        bounds[largest],
        flops,
        moved,
        largest if short else '',
        ('transforming inputs', 'transforming results'),
    )
