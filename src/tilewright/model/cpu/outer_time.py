"""The time of one schedule of the outer-product schema on one machine.

Goes in: a group, a schedule, a machine. Comes out: a `Prediction` with the time of each resource.

    compute   cycles of the micro-kernel for every register tile, tails included (MOpt Sec. 6):
              max(FMAs / throughput, loads / throughput, latency when too few accumulators)
    traffic   bytes over each boundary / its bandwidth (Secs. 3-5, 7, 12), with the working set of
              each cache found from the nest (model/cpu/working_set.py)
    pack, store, fork   copying input tiles, transposing results, starting the threads

Caches are warm: a cache that holds everything a thread touches is not filled again.
MOpt takes the maximum over levels: transfers overlap perfectly. Here times add up, of a transfer
only the share that computing does not hide (`exposed`). Constants are those of the machine
(machine/constants.py). The slowest thread's part is what is timed, which prices load imbalance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.contraction import Contraction, contract
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.tiles import depth, tile_step_cycles
from tilewright.kernels.cpu.nest import part_extents
from tilewright.machine.constants import COMMON, TimeConstants
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.model.cpu.cache_sets import crowded, overflows
from tilewright.model.cpu.copies import Copies, copies_of, pieces_of, tile_counts
from tilewright.model.cpu.pages import PAGE_BYTES, first_misses, second_misses
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, direct_prediction
from tilewright.model.cpu.traffic import footprint
from tilewright.model.cpu.working_set import Loop, Rows, boxes, crossing, flatten, words
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.stage import Access
from tilewright.schedule.schedule import Schedule

STORE_RUN = 4  # results of a row that are transposed and stored together, needed or not
SHARED_LINE_CYCLES = 70.0  # a line of results of which two threads have a part each
ISSUE_PER_CYCLE = 4  # instructions that every core of interest can start in a cycle
# Of what a core could load and start, where every pixel is broadcast by itself: copies that arrive
# in the first cache take turns, too. On a Cascade Lake 30 x 1 vectors took 1.15 to 1.25 times as
# long as 14 x 2 that do as much, where loads and instructions alone say 1.07.
SUSTAINED = 0.93


@dataclass(frozen=True)
class _Case:
    """A group with one schedule, and what several terms of its time need, each found once.

    `part` is what the slowest thread owns.
    """

    group: Group
    schedule: Schedule
    contraction: Contraction
    part: Mapping[str, int]
    machine: Machine

    @classmethod
    def of(cls, group: Group, schedule: Schedule, machine: Machine) -> _Case:
        group = tiled_form(group, schedule.reg.tile)
        contraction = contract(group, schedule.vector)
        part = part_extents(group.main, schedule)
        return cls(group, schedule, contraction, part, machine)

    @cached_property
    def k(self) -> TimeConstants:
        return self.machine.time_constants

    @cached_property
    def lane(self) -> str:
        return operand.lane_of(self.contraction, self.schedule)

    @cached_property
    def held(self) -> bool:
        """Whether the second cache holds the results of the part from one call to the next."""
        room = MARGIN * self.machine.capacity_bytes(
            min(1, len(self.machine.caches) - 1), self.schedule.threads
        )
        return 4 * footprint(self.contraction.stage.write, self.part) <= room

    @cached_property
    def packed(self) -> dict[str, int]:
        return operand.packed_tile(self.schedule, self.part)

    @cached_property
    def strips(self) -> dict[str, int]:
        return operand.strips_of(self.contraction, self.schedule, self.packed)

    @cached_property
    def buffer(self) -> operand.Operand:
        return operand.buffered(self.contraction, self.packed, self.lane, self.strips)

    @cached_property
    def copies(self) -> Copies:
        return copies_of(self.contraction, self.schedule, self.part, self.buffer)

    @cached_property
    def nest(self) -> tuple[list[Loop], list[dict[str, int]]]:
        """(loops, outermost first; the boxes that they grow, innermost first)."""
        loops, innermost = flatten(self.group.main, self.schedule, self.part)
        return loops, boxes(loops, innermost)

    @cached_property
    def along(self) -> str:
        """The pixel dimension whose neighbours are neighbours in the result; '' if none is."""
        result = self.contraction.stage.write
        return next((d for d in self.contraction.pixels if self.stride(result, d) == 1), '')

    @cached_property
    def until_next(self) -> tuple[int, int] | None:
        """Planes and rows that are stored to before the next register tile along a row is."""
        loops, grown = self.nest
        for loop, box in zip(reversed(loops), grown, strict=False):
            if loop.name == self.along and loop.trips > 1:
                rows = math.prod(box[d] for d in self.contraction.pixels if d != self.along)
                return box[self.contraction.vector], rows
        return None

    def stride(self, access: Access, name: str) -> int:
        """Floats from one element of an access to the next along an iterator."""
        strides = self.group.tensor(access.tensor).strides
        return sum(e.coefficient(name) * s for e, s in zip(access.index, strides, strict=True))


def predict_outer(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    case = _Case.of(group, schedule, machine)
    group, threads, isa = case.group, schedule.threads, ISAS[schedule.isa]
    cycle_s = isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)
    compute, store = _micro_cycles(case, isa)
    pack = _pack_cycles(case) + _panel_cycles(case)
    pack += (_pack_seconds(case, machine) + _panel_seconds(case, machine)) / cycle_s
    compute += _page_cycles(case)
    result = group.main.write
    missed = second_misses(result, group.tensor(result.tensor), *case.nest)
    store += case.k.walk_cycles * missed
    boundaries, wasted = _traffic(case, machine), _wasted_bytes(case)
    if wasted:
        last = boundaries[-1]
        more_s = wasted / (1e9 * machine.bandwidth_gbps(len(boundaries) - 1, threads))
        asked = replace(last, bytes=last.bytes + wasted, seconds=last.seconds + more_s)
        boundaries = (*boundaries[:-1], asked)
    seconds = (compute * cycle_s, pack * cycle_s, store * cycle_s)
    return direct_prediction(group, machine, threads, seconds, boundaries, wasted)


def tile_cycles(group: Group, schedule: Schedule, machine: Machine) -> tuple[float, float]:
    """(cycles in micro-kernels, cycles in stores) of the largest part: register tiles alone."""
    return _micro_cycles(_Case.of(group, schedule, machine), ISAS[schedule.isa])


def compute_seconds(group: Group, schedule: Schedule, machine: Machine) -> float:
    """The part of the prediction that tile sizes of caches do not change: cheap to rank by.

    Which cache copied pixels come from is not known yet. They count as those in place do, once in
    an iteration, whose steps find the same lines again.
    """
    isa, threads = ISAS[schedule.isa], schedule.threads
    case = _Case.of(group, schedule, machine)
    cycles = sum(_micro_cycles(case, isa, streamed=True)) + _panel_cycles(case)
    return cycles * isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)


def step_cycles(
    isa: Isa, pixels: int, run: int, vectors: int, steps: int = 1,
    k: TimeConstants = COMMON, along_rows: bool = False,
) -> float:  # fmt: skip
    """Cycles of one reduction step of a micro-kernel over `pixels`, `run` of them side by side.

    Where multiply-adds take a lane, up to four neighbours are loaded at once and each further row
    needs an address; `along_rows` four steps share a load of each pixel, and vectors are loaded
    before they are needed. Elsewhere every pixel is broadcast on its own. An iteration has `steps`
    of them and is as long as the units that are busiest: in a first-level cache nothing else was
    seen on a Neoverse-N1.
    """
    fmas, rows = pixels * vectors, pixels // run
    loads, addresses = vectors + pixels, 0
    if isa.by_lane:
        loads, addresses = vectors + rows * _lane_loads(run), 2 * (rows - 1)
    if along_rows:
        loads, addresses, steps = vectors + pixels / micro.BLOCK, 0, steps * micro.BLOCK
    share = 1.0 if isa.by_lane else SUSTAINED
    started = fmas + loads + addresses + (isa.loop_instructions + rows) / steps
    busiest = max(
        fmas / isa.fma_per_cycle,
        loads / (share * isa.loads_per_cycle),
        started / (share * ISSUE_PER_CYCLE),
        k.chain * isa.fma_chain_cycles,
    )
    return busiest if along_rows else busiest + k.vector_cycles * vectors


def _lane_loads(run: int) -> int:
    """Loads of `run` neighbours: by four, two and one."""
    return run // 4 + (0, 1, 1, 2)[run % 4]


def _micro_cycles(case: _Case, isa: Isa, streamed: bool = False) -> tuple[float, float]:
    """(cycles in micro-kernels, cycles in stores) of the largest part; `streamed`: copied pixels
    come from further away than the first cache.
    """
    contraction, schedule, part, k = case.contraction, case.schedule, case.part, case.k
    sizes = contraction.stage.sizes
    points = math.prod(sizes[d] for d in contraction.reduction)
    calls = math.prod(
        sum(tile_counts(schedule, d, sizes[d]).values())
        if d != contraction.loop and d not in contraction.outer
        else _reduction_tiles(schedule, d, sizes[d])
        for d in contraction.reduction
        if d not in contraction.unrolled
    )
    outside = math.prod(
        sum(tile_counts(schedule, d, part[d]).values())
        for d in (*contraction.batch, *contraction.columns)
    )
    pixel_tiles = [((), 1)]
    for name in contraction.pixels:
        counts = tile_counts(schedule, name, part[name]).items()
        pixel_tiles = [((*e, size), n * m) for e, n in pixel_tiles for size, m in counts]
    width = schedule.reg.tile[schedule.vector]
    full, rest = divmod(part[schedule.vector], width)
    panels = [(width // isa.lanes, full)] + ([(-(-rest // isa.lanes), 1)] if rest else [])
    lane = _lane(case)
    place = contraction.pixels.index(lane) if lane else 0
    steps = math.prod(sizes[d] for d in contraction.unrolled)
    several = sum(schedule.reg.tile[d] > 1 for d in contraction.pixels) > 1
    strips = several and schedule.pack and case.strips
    along_rows = case.stride(contraction.a, contraction.loop) == 1
    in_place = k.row_cycles if along_rows else k.in_place_cycles
    walked = along_rows and isa.by_lane and not schedule.pack
    each_result = k.store_cycles
    if not _stored_together(case):
        each_result += k.store_apart_cycles
    turned, deep = _turned(case), depth(contraction)[0] if isa.rows else 1
    line_cycles = _line_cycles(case, isa, points * width) if isa.rows else 0.0
    compute = store = 0.0
    alike = every = 0
    for extents, tiles in pixel_tiles:
        for vectors, count in panels:
            pixels = math.prod(extents)
            accumulators = pixels * vectors
            run = extents[place] if lane else 1
            by_four = walked and micro.rows_fit(isa, pixels, vectors)
            if isa.rows:
                each = points * tile_step_cycles(isa, extents, vectors, deep, line_cycles)
            else:
                each = points * step_cycles(
                    isa, pixels, pixels if strips else run, vectors, steps, k, by_four
                )
            if (streamed or not schedule.pack) and not isa.rows:
                loads = pixels / micro.BLOCK if by_four else (pixels // run) * _lane_loads(run)
                each += points * in_place * loads / (steps if schedule.pack else 1)
            each += calls * k.call_cycles + k.accumulator_cycles * accumulators
            each += (calls - 1) * (k.resume_cycles * accumulators + k.resume_pixel_cycles * pixels)
            compute += outside * tiles * count * each
            stored = pixels // run * -(-run // STORE_RUN) * STORE_RUN * vectors * isa.lanes
            result = k.store_turned_cycles if turned and run % STORE_RUN == 0 else each_result
            lost = _lost_line_cycles(case, extents, vectors * isa.lanes)
            each = k.tile_cycles + stored * result + lost
            store += outside * tiles * count * each
            alike = max(alike, tiles * count)
            every += tiles * count
    compute += outside * calls * (every - alike) * k.switch_cycles
    return compute, store + SHARED_LINE_CYCLES * _shared_lines(case)


def _shared_lines(case: _Case) -> int:
    """Lines of results that end one thread's part and begin another's, which move between them.

    A cut between rows or pixels leaves one in every plane, a cut of columns one in every row,
    unless lines end there.
    """
    sizes, ways = case.contraction.stage.sizes, dict(case.schedule.parallel)
    result, line = case.contraction.stage.write, case.machine.caches[0].line_bytes // 4
    strides = {d: case.stride(result, d) for d in case.contraction.stage.parallel}
    found = 0
    for name in (d for d, count in ways.items() if count > 1):
        around = [d for d in strides if strides[d] > strides[name] and sizes[d] > 1]
        pitches = [strides[d] for d in around] + [case.part[name] * strides[name]]
        if any(pitch % line for pitch in pitches):
            found += math.prod(case.part[d] for d in around)
    return found


def _line_cycles(case: _Case, isa: Isa, panel: int) -> float:
    """Cycles to load a line of a panel of so many words: it comes from the second cache, unless the
    first keeps it from one tile of pixels to the next.
    """
    machine = case.machine
    near = machine.caches[0]
    if 8 * panel <= near.bytes or len(machine.caches) < 2:
        return 1 / isa.loads_per_cycle
    return near.line_bytes * machine.clock_ghz / machine.bandwidth_one_gbps[1]


def _lane(case: _Case) -> str:
    """The pixel dimension whose neighbours one load brings; '' if there is none.

    A copy is laid out for the longest one. In place it is whichever lies side by side, unless a
    stride is between them.
    """
    if case.schedule.pack:
        return case.lane
    strides = operand.in_place(case.group, case.contraction).strides
    return next((d for d in case.contraction.pixels if strides.get(d) == 1), '')


def _stored_together(case: _Case) -> bool:
    """Whether results that a register tile has side by side are neighbours in the result."""
    result = case.contraction.stage.write
    together = not case.lane or case.stride(result, case.lane) == 1
    return together or case.stride(result, case.contraction.vector) == 1


def _lost_line_cycles(case: _Case, extents: Sequence[int], planes: int) -> float:
    """Cycles for lines of results that a register tile brings in for its neighbour to do so again.

    A tile stores a piece of each of some rows of each of `planes`. Planes may lie so that their
    lines share few sets of the first cache, where more than its ways push each other out before the
    next tile along the row comes to them; or that many others are stored to in between. Seen only
    where the second cache does not hold the results either.
    """
    result, along, near = case.contraction.stage.write, case.along, case.machine.caches[0]
    if not case.k.store_line_cycles or not along or case.held:
        return 0.0
    line = near.line_bytes // 4
    run = extents[case.contraction.pixels.index(along)]
    rows = math.prod(extents) // run
    down = [case.stride(result, d) for d in case.contraction.pixels if d != along]
    plane, row = case.stride(result, case.contraction.vector), min(down, default=0)
    whole = run % line == 0 == row % line and plane % line == 0
    pieces = run / line if whole else (run + line - 1) / line
    sets = near.bytes // (near.line_bytes * near.ways)
    apart = plane // line, row // line
    if not whole and case.until_next and overflows(sets, near.ways, case.until_next, apart):
        return case.k.store_line_cycles * planes * rows * pieces
    if along != case.lane:
        return 0.0
    lines = crowded(planes, apart[0], rows, apart[1], sets, near.ways)
    return case.k.store_line_cycles * lines * pieces


def _turned(case: _Case) -> bool:
    """Whether register tiles of whole runs are stored as they are
    (kernels/cpu/schemas/outer/plan.py).
    """
    contraction, lane = case.contraction, case.lane
    if not ISAS[case.schedule.isa].turns or not lane or lane != contraction.pixels[-1]:
        return False
    if contraction.stage.sizes[contraction.vector] % STORE_RUN:
        return False
    result = contraction.stage.write
    return case.stride(result, lane) == 1 != case.stride(result, contraction.vector)


def _reduction_tiles(schedule: Schedule, name: str, size: int) -> int:
    """Tiles of a reduction at the innermost cache level: one micro-kernel call for each."""
    tiles = tuple(level.tile[name] for level in reversed(schedule.levels[1:]))
    return sum(pieces_of(size, tiles).values())


def _pack_cycles(case: _Case) -> float:
    """Copying every tile of the broadcast operand that the pack level asks for."""
    if not case.schedule.pack:
        return 0.0
    k = case.k
    lane, made, each = case.lane, case.copies, k.pack_cycles
    if lane and case.stride(case.contraction.a, lane) != 1:
        each += k.pack_apart_cycles
    cycles = made.calls * k.pack_call_cycles + made.elements * each
    if lane in case.buffer.strips:
        return cycles + made.strips * k.pack_strip_cycles + made.broken * k.pack_broken_cycles
    return cycles + made.rows * k.pack_row_cycles


def _pack_seconds(case: _Case, machine: Machine) -> float:
    """Moving copied tiles: out of the cache that holds the tensor, into that which holds the copy.

    Nothing is computed meanwhile, so most of this is not hidden, unlike the bytes of `_traffic`.
    What is copied comes in whole lines: a narrow tile uses little of each.
    """
    if not case.schedule.pack:
        return 0.0
    contraction, threads, k = case.contraction, case.schedule.threads, case.k
    buffer, made, tile = case.buffer, case.copies, case.packed
    own = sum(footprint(a, case.part) for a in contraction.stage.accesses)
    line_words = machine.caches[0].line_bytes // 4
    whole = source_words(case.group, contraction.a, tile, line_words)
    each = math.prod(
        (e.extent(tile) - 1) // s.factor * len(s.phases) + len(s.phases)
        for s in buffer.splits
        for e in (contraction.a.index[s.axis],)
    )
    read = whole * made.elements / each
    # The copy is allocated and written back, and shares its cache with what is copied.
    seconds = k.pack_from * home_seconds(machine, threads, own, threads * read, 1)
    written = threads * made.elements
    return seconds + k.pack_into * home_seconds(machine, threads, 2 * buffer.size, 2 * written, 2)


def _panel_floats(case: _Case) -> int:
    """Elements of the panels that a thread packs in every call; none of constant weights."""
    c = case.contraction
    if case.group.tensor(c.b.tensor).role == 'constant':
        return 0
    own = math.prod(case.part[d] for d in (*c.batch, *c.columns, c.vector))
    return own * math.prod(c.stage.sizes[d] for d in c.reduction)


def _panel_cycles(case: _Case) -> float:
    copied, k = case.stride(case.contraction.b, case.contraction.vector) == 1, case.k
    return _panel_floats(case) * (k.panel_cycles if copied else k.panel_turned_cycles)


def _panel_seconds(case: _Case, machine: Machine) -> float:
    """Moving panels that are packed in every call: read once, allocated and written back."""
    packed, threads, k = _panel_floats(case), case.schedule.threads, case.k
    moved = threads * packed * (k.pack_from + 2 * k.pack_into)
    return home_seconds(machine, threads, 2 * packed, moved, 1)


def _wasted_bytes(case: _Case) -> float:
    """What is asked for behind the ends of runs, where panels are read once, from memory.

    A run is what lies together in the order in which it is read: it ends where a loop over panels
    turns inside one over reductions.
    """
    c, sizes, reg = case.contraction, case.contraction.stage.sizes, case.schedule.reg.tile
    constant = case.group.tensor(c.b.tensor).role == 'constant'
    once = all(case.part[d] <= reg[d] for d in c.pixels) and not c.columns
    if not constant or not once or case.schedule.pack or c.reduction != (c.loop,):
        return 0.0
    own, last = case.part[c.vector] * sizes[c.loop], len(case.machine.caches) - 1
    if 4 * own <= case.machine.capacity_bytes(last, case.schedule.threads):
        return 0.0
    run = dict(case.nest[1][0])
    for loop in reversed(case.nest[0]):
        if loop.name == c.vector and run[c.loop] < sizes[c.loop]:
            break
        run[loop.name] = loop.outer
    ends = max(0.0, own / (run[c.vector] * run[c.loop]) - 1)
    return case.schedule.threads * ends * ISAS[case.schedule.isa].stream_bytes


def source_words(group: Group, access: Access, tile: Mapping[str, int], line_words: int) -> float:
    """Words of whole lines under a tile: rows that begin anywhere, as long as they go on."""
    tensor, last = group.tensor(access.tensor), len(access.index) - 1
    extents = [
        min(e.extent(tile), n, math.prod(tile[d] for d in e.names) if axis < last else n)
        for axis, (e, n) in enumerate(zip(access.index, tensor.shape, strict=True))
    ]
    axis = last
    length = extents[axis]
    while axis > 0 and extents[axis] == tensor.shape[axis]:
        axis -= 1
        length *= extents[axis]
    return math.prod(extents[:axis]) * (length + line_words - 1)


def home_seconds(machine: Machine, threads: int, held: float, moved: float, nearest: int) -> float:
    """Seconds to move so many words from the cache that holds `held`; nothing inside `nearest`."""
    home = next(
        (
            number
            for number in range(len(machine.caches))
            if 4 * held <= MARGIN * machine.capacity_bytes(number, threads)
        ),
        len(machine.caches),
    )
    if home < nearest:
        return 0.0
    return 4.0 * moved / (1e9 * machine.bandwidth_gbps(home, threads))


def _page_cycles(case: _Case) -> float:
    """Address translations that walking over the channels of a tile costs."""
    contraction, schedule, part = case.contraction, case.schedule, case.part
    if not contraction.loop:
        return 0.0
    source = case.buffer if schedule.pack else operand.in_place(case.group, contraction)
    channels = min(schedule.levels[1].tile[contraction.loop], part[contraction.loop])
    calls = math.prod(
        sum(tile_counts(schedule, d, part[d]).values()) for d in contraction.stage.parallel
    )
    return case.k.page_cycles * first_misses(
        channels,
        4 * source.strides.get(contraction.loop, 0),
        1 + 4 * (max(source.steps) - min(source.steps)) / PAGE_BYTES,
        calls * part[contraction.loop] / channels,
    )


def _traffic(case: _Case, machine: Machine) -> tuple[Boundary, ...]:
    """Bytes and seconds over every boundary, for all threads."""
    schedule, part, threads, k = case.schedule, case.part, case.schedule.threads, case.k
    loops, nested = case.nest
    line_words = machine.caches[0].line_bytes // 4
    accesses = [(a, _rows(case, a)) for a in case.group.main.accesses]
    result, plain = accesses[0]
    resumed = _resumes(case)
    if resumed:
        axis = next(i for i, e in enumerate(result.index) if schedule.vector in e.names)
        accesses[0] = (result, Rows(axis, part[schedule.vector]))
    sizes: list[list[float]] = []  # of the boxes that some cache may hold

    def sized(number: int) -> list[float]:
        while len(sizes) <= number:
            box = nested[len(sizes)]
            sizes.append([words(a, box, rows, line_words) for a, rows in accesses])
        return sizes[number]

    boundaries = [boundary_of(machine, 0, _register_words(case), threads)]
    fits = 0
    for number in range(len(machine.caches)):
        room = MARGIN * machine.capacity_bytes(number, threads) / 4
        while fits + 1 < len(nested) and room >= sum(sized(fits + 1)):
            fits += 1
        outside = loops[: len(loops) - fits]
        read = written = again = 0.0
        stays = fits + 1 == len(nested)  # all of the part, from one call to the next
        held = sum(sized(fits)) <= room  # else what one micro-kernel call reads is gone behind it
        for position, (access, _) in enumerate([] if stays else accesses):
            size = sized(fits)[position]
            if position == 0:
                written = crossing(access, outside, nested[fits], size)
            elif held:
                read += crossing(access, outside, nested[fits], size)
            else:
                read += size * math.prod(loop.trips for loop in outside)
        if resumed and not stays:
            written, again = words(result, part, plain, line_words), written
        weighted = read + k.written * written + k.resumed * again
        moved = read + 2 * (written + again)  # a line that is written is brought in before
        boundaries.append(boundary_of(machine, number + 1, moved, threads, weighted))
    return tuple(boundaries)


def _resumes(case: _Case) -> bool:
    """Whether sums are cut: accumulators of the whole part are then kept, pixel by pixel."""
    contraction, tile = case.contraction, case.schedule.levels[1].tile
    sizes, unrolled = contraction.stage.sizes, contraction.unrolled
    return any(tile[d] < sizes[d] for d in contraction.stage.reduction if d not in unrolled)


def _rows(case: _Case, access: Access) -> Rows:
    """How the tensor of an access lies in memory under this schedule."""
    tensor = case.group.tensor(access.tensor)
    plain = Rows(len(tensor.shape) - 1, tensor.shape[-1])
    if access is case.group.main.write:
        return plain
    if access == case.contraction.b:
        return Rows(0, 0, packed=True)
    if not case.schedule.pack:
        return plain
    if case.strips:
        return Rows(0, 0, packed=True)
    axis = next((i for i, e in enumerate(access.index) if case.lane in e.names), plain.axis)
    return Rows(axis, access.index[axis].extent(case.packed))


def _register_words(case: _Case) -> float:
    """Words loaded into and stored from registers: every step of every register tile (Sec. 6)."""
    stage, schedule, part = case.group.main, case.schedule, case.part
    reg = {d: min(t, part[d]) for d, t in schedule.reg.tiles}
    steps = math.prod(part[d] / reg[d] for d in part)
    loads = sum(footprint(a, reg) for a in stage.reads)
    passes = math.prod(part[d] / min(schedule.levels[1].tile[d], part[d]) for d in stage.reduction)
    return steps * loads + footprint(stage.write, part) * (2 * passes - 1)


def boundary_of(
    machine: Machine, number: int, words: float, threads: int, weighted: float | None = None
) -> Boundary:
    """What crosses a boundary: `words` of one thread; `weighted` are what time is counted by."""
    shares = machine.time_constants.exposed
    exposed = shares[min(number, len(shares)) - 1] if number else 1.0
    timed = 4.0 * threads * (words if weighted is None else weighted)
    seconds = exposed * timed / (1e9 * machine.bandwidth_gbps(number, threads))
    return Boundary(machine.boundaries[number], 4.0 * words * threads, seconds)
