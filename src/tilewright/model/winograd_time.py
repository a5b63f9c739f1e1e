"""The time of a Winograd schedule on one machine, from the parts of the generated code.

Goes in: a group, a schedule of the winograd schema, a machine. Comes out: a `Prediction`.

    compute   micro-kernels of every run and panel, tails included (model.predict.step_cycles)
    pack      the input transform: vector instructions of both passes, counted from the matrices
    store     the output transform and the rows of the result
    traffic   V is written once and read once for each block of k, U is read once for each block of
              tiles, M is written and read once; each crosses every boundary inside which it does
              not fit (MOpt Secs. 3-5, with blocks as tiles)

Packed weights, and V where it comes from the second cache, are read in order while micro-kernels
run: prefetchers hide all but a share of that time. V beyond the second cache is hidden less, and M
beyond the first not at all, since the output transform reads it in strides. With several panels of
k to a block, weights jump from panel to panel, and each jump waits for memory. Threads share
nothing: a cut over k repeats the input transform, which the largest part pays.

What is hidden still takes its time: where the sum is below the time of the compulsory traffic, that
is the prediction.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from tilewright.codegen.cpu.nest import part_extents
from tilewright.codegen.cpu.winograd import option, split_runs, transform_lanes
from tilewright.codegen.cpu.winograd_transform import operations
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.predict import MARGIN, Boundary, Prediction, bound_times, step_cycles
from tilewright.ops.group import Group
from tilewright.ops.winograd import Geometry, geometry, matmul_stage, transform
from tilewright.schedule.schedule import Schedule

# Calibrated on dense layers with one core of a Neoverse N1; docs/winograd.md has the figures.
CALL_CYCLES = 25.0  # entering and leaving a micro-kernel, the choice of it included
ACCUMULATOR_CYCLES = 0.6  # clearing and storing one accumulator
VECTOR_CYCLES = 0.62  # one vector instruction of a transform: arithmetic, shuffle or store
ROW_CYCLES = 30.0  # one row of tiles of one channel
LINE_CYCLES = 4.0  # one cache line of V written and evicted, beyond its instructions
OUT_ROW_CYCLES = 40.0  # one row of output pixels of one panel
STREAMED = 0.15  # share of the time of traffic that is read in order that is not hidden
SPILLED = 0.8  # the same for V beyond the second cache
STRIDED = 4.0  # the same for M beyond the first
JUMP_CYCLES = 400.0  # weights that do not follow those before them, from beyond the second cache


@dataclass(frozen=True, slots=True)
class Work:
    """What one thread does: the numbers of a schedule that the price depends on."""

    shape: Geometry
    isa: Isa
    run: int
    vectors: int
    k_block: int
    block: tuple[int, int, int]
    part: tuple[int, int, int, int, int]  # n, g, k, ph, pw

    @property
    def width(self) -> int:
        return self.vectors * self.isa.lanes


@dataclass(frozen=True, slots=True)
class Cycles:
    """Cycles of one thread, and words over each boundary."""

    multiply: float
    transform_in: float
    transform_out: float
    words: tuple[float, ...]  # over each boundary, 0 for the first
    exposed: tuple[float, ...]  # the same, weighted by the share that is not hidden


@lru_cache(maxsize=4096)
def _pieces(extent: int, tile: int) -> tuple[tuple[int, int], ...]:
    """(size, count) of the tiles that cover an extent."""
    found = Counter({tile: extent // tile} if extent >= tile else {})
    if extent % tile:
        found[extent % tile] += 1
    return tuple(found.items())


@lru_cache(maxsize=256)
def _operations(m: int, r: int) -> tuple[int, int]:
    """Instructions of B^T and of A^T."""
    f = transform(m, r)
    return operations(f.bt), operations(f.at)


@lru_cache(maxsize=4096)
def _runs(tiles: int, most: int) -> tuple[tuple[int, int], ...]:
    """(length, count) of the runs that a block is cut into."""
    return tuple(Counter(split_runs(tiles, most)).items())


def work_of(group: Group, schedule: Schedule) -> Work:
    """[Group, Schedule] -> [Work] of the largest part."""
    shape, isa = geometry(group, option(schedule, 'm')), ISAS[schedule.isa]
    part = part_extents(matmul_stage(group, option(schedule, 'm')), schedule)
    outer, inner = schedule.levels[3].tile, schedule.levels[1].tile
    n, ph, pw = (min(outer[d], part[d]) for d in ('n', 'ph', 'pw'))
    return Work(
        shape, isa, option(schedule, 'run'), schedule.reg.tile['k'] // isa.lanes,
        min(inner['k'], part['k']), (n, ph, pw),
        (part['n'], part.get('g', 1), part['k'], part['ph'], part['pw']),
    )  # fmt: skip


def cycles(work: Work, machine: Machine, threads: int) -> Cycles:
    """Cycles of the largest part, and the words that cross each boundary for it."""
    n, g, k, ph, pw = work.part
    multiply = transform_in = transform_out = 0.0
    blocks = 0
    for size_n, count_n in _pieces(n, work.block[0]):
        for rows, count_h in _pieces(ph, work.block[1]):
            for columns, count_w in _pieces(pw, work.block[2]):
                count = g * count_n * count_h * count_w
                blocks += count
                multiply += count * _multiply(work, size_n * rows * columns, k)
                transform_in += count * size_n * rows * _input_row(work, columns)
                transform_out += count * size_n * rows * _output_row(work, columns, k)
    jumps = blocks * work.shape.t * -(-k // work.width)
    if work.k_block > work.width and not _weights_fit(work, machine):
        multiply += jumps * JUMP_CYCLES
    return Cycles(multiply, transform_in, transform_out, *_words(work, machine, threads, blocks))


def _weights_fit(work: Work, machine: Machine) -> bool:
    """Whether the weights of a part stay in the second cache."""
    room = MARGIN * machine.capacity_bytes(min(1, len(machine.caches) - 1), 1)
    return 4 * work.shape.t * work.shape.c * work.part[2] <= room


def _multiply(work: Work, tiles: int, k: int) -> float:
    """All products of one block of tiles."""
    full, rest = divmod(k, work.width)
    panels = [(work.vectors, full)] + ([(-(-rest // work.isa.lanes), 1)] if rest else [])
    total = 0.0
    for run, count in _runs(tiles, work.run):
        for vectors, number in panels:
            each = work.shape.c * step_cycles(work.isa, run, run, vectors)
            each += CALL_CYCLES + ACCUMULATOR_CYCLES * run * vectors
            total += count * number * each
    return work.shape.t * total


def _input_row(work: Work, columns: int) -> float:
    """Both passes over a row of tiles, for every channel."""
    down, across = work.shape.down, work.shape.across
    down_ops, across_ops = _operations(down.m, down.r)[0], _operations(across.m, across.r)[0]
    lanes = transform_lanes(work.isa.lanes, work.block[2])
    first = -(-(columns * across.m + across.r - 1) // lanes) * (down_ops + down.t)
    shuffles = 0 if across.m == 1 else 3 * across.t if lanes > 4 else 2 * across.t
    second = down.t * -(-columns // lanes) * (across_ops + across.t + shuffles)
    lines = work.shape.t * columns / 16
    each = ROW_CYCLES + VECTOR_CYCLES * (first + second) + LINE_CYCLES * lines
    return work.shape.c * each


def _output_row(work: Work, columns: int, k: int) -> float:
    """The output transform of a row of tiles for all of k, and its rows of pixels."""
    down, across = work.shape.down, work.shape.across
    down_ops, across_ops = _operations(down.m, down.r)[1], _operations(across.m, across.r)[1]
    held = down.m * across.t + 8 <= work.isa.registers
    spilled = 0 if held else down.m * across.t
    each = across.t * down_ops + down.m * across_ops + down.m * across.m + spilled
    loads = work.shape.t / 3
    vectors = -(-k // work.isa.lanes)
    pixels = down.m * across.m * columns * k / 4
    rows = down.m * -(-k // work.width)
    return VECTOR_CYCLES * (vectors * columns * (each + loads) + 4 * pixels) + OUT_ROW_CYCLES * rows


def _words(
    work: Work, machine: Machine, threads: int, blocks: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(words, exposed words) over each boundary for one thread; 0 over the first."""
    shape = work.shape
    n, g, k, ph, pw = work.part
    tiles = math.prod(work.block)
    v, m = shape.t * shape.c * tiles, shape.t * min(work.k_block, k) * tiles
    u = shape.t * shape.c * k
    pixels = n * ph * shape.down.m * pw * shape.across.m
    border = g * (shape.c + k) * pixels
    passes = -(-k // work.k_block)
    panels = -(-work.k_block // work.width)
    slab = shape.c * (tiles + work.width)
    words, exposed = [0.0], [0.0]
    for level in range(len(machine.caches)):
        copies = min(threads, machine.caches[level].shared_by)
        room = MARGIN * machine.capacity_bytes(level, 1) / 4 / copies
        ordered, v_words, m_words = float(border), 0.0, 0.0
        if level == 0:  # V comes from the second cache, as it is meant to
            ordered += blocks * v * (1 + passes * (1 if slab <= room else panels))
        elif v + m > room:
            v_words = float(blocks * v * (1 + passes))
        if m > room:
            m_words = 2.0 * blocks * m * passes
        if u + v + m > room:
            ordered += blocks * u
        elif g > 1:
            ordered += g * u
        if level + 1 == len(machine.caches) and g * u + v + m + border <= room:
            ordered = v_words = m_words = 0.0
        words.append(ordered + v_words + m_words)
        exposed.append(STREAMED * ordered + SPILLED * v_words + STRIDED * m_words)
    return tuple(words), tuple(exposed)


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
    return Parts(
        done.multiply * cycle_s,
        done.transform_in * cycle_s,
        done.transform_out * cycle_s,
        machine.fork_join_us * 1e-6 if threads > 1 else 0.0,
        tuple(
            4 * words * threads / (1e9 * machine.bandwidth_gbps(number, threads))
            for number, words in enumerate(done.exposed)
        ),
    )


def needs(group: Group, m: int) -> tuple[int, int]:
    """(operations of the products, bytes to be moved) of this algorithm: weights transformed."""
    shape = geometry(group, m)
    weights = group.tensor(group.main.reads[1].tensor).bytes
    transformed = 4 * shape.t * shape.g * shape.k * shape.c
    return matmul_stage(group, m).flops, group.compulsory_bytes - weights + transformed


def lower_bound_winograd(group: Group, m: int, machine: Machine, threads: int) -> float:
    """Seconds that no kernel of this algorithm can beat: its products at peak, or the traffic."""
    return max(bound_times(*needs(group, m), machine, threads).values())


def predict_winograd(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    threads = schedule.threads
    work = work_of(group, schedule)
    done = cycles(work, machine, threads)
    parts = seconds(done, work.isa, machine, threads)
    flops, moved = needs(group, option(schedule, 'm'))
    bounds = bound_times(flops, moved, machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    short = max(0.0, bounds[largest] - parts.total)
    registers = work.shape.t * work.shape.c * math.prod(work.part) * (1 / work.width + 1 / work.run)
    boundaries = []
    for number, name in enumerate(machine.boundaries):
        total = 4 * threads * (registers if number == 0 else done.words[number])
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
        overlaps=False,
    )
