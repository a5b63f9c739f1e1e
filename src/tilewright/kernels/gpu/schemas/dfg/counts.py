"""What a block of the dfg schema takes and does, counted from its plan; schedules without a search.

Regions are counted as they are computed: halos that several tiles compute, and what lies outside
the domain of a stage, are work. Bank conflicts are those of the strides that the plan lays out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schema import Detour, Table, each
from tilewright.kernels.gpu.schemas.dfg.fragments import COLUMNS, PER_COLUMN, Depths
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Load
from tilewright.kernels.gpu.schemas.dfg.matrix import in_pairs, unrolled
from tilewright.kernels.gpu.schemas.dfg.plan import BLOCK, NAME, DfgPlan, check_fits, plan
from tilewright.kernels.gpu.schemas.dfg.products import is_copied_in_fours, reads_fours
from tilewright.kernels.gpu.schemas.dfg.segment import (
    FOUR,
    LEAST_COLUMNS,
    PIXELS,
    Segment,
    ordered,
    reach,
)
from tilewright.kernels.gpu.schemas.dfg.sliding import fours
from tilewright.kernels.gpu.schemas.dfg.text import place
from tilewright.kernels.gpu.schemas.dfg.windows import Slide
from tilewright.kernels.gpu.work import CUT_INSTRUCTIONS, WARP, Need, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.chain import is_chained, repetition
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 45  # beside operands and sums: addresses, bounds, counters, loads ahead
BANKS = 32
COPY_INSTRUCTIONS = 10  # to find out where an element that is copied lies
UNIT_INSTRUCTIONS = 12  # to find out where a pixel or a column of a thread begins
STORE_INSTRUCTIONS = 4
PACKED_INSTRUCTIONS = 3  # to cut an element that came with three others, in one load
JOINT_INSTRUCTIONS = 24  # to find out where two depths lie, if all reductions are walked as one
PROPOSED = 4
SLID = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (2, 4), (4, 4))  # outputs of a thread
SUMMED = (
    'products', 'matrix', 'reads', 'wavefronts', 'copies', 'copied', 'other', 'pieces',
    'waits',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """Warp instructions and bytes of one segment, all warps and pieces of a block together.

    waits         times that a warp waits for global memory
    share         how busy the block's warps are with it, 0 to 1
    coefficient   COEF_bc: cycles of a load from shared memory, on average
    """

    products: float
    matrix: float
    reads: float
    wavefronts: float
    copies: float
    copied: float
    other: float
    pieces: int
    waits: float
    registers: int
    share: float

    @property
    def instructions(self) -> float:
        return self.products + self.matrix + self.reads + self.copies + self.other

    @property
    def coefficient(self) -> float:
        return self.wavefronts / self.reads if self.reads else 1.0


def segment_counts(p: DfgPlan, segment: Segment) -> SegmentCounts:
    """[DfgPlan, Segment] -> [SegmentCounts]"""
    warps = -(-segment.units * segment.unit_threads // WARP)
    roles = segment.roles
    if segment.slide:
        return _slid(p, segment, segment.slide, warps)
    if segment.depths:
        return _by_matrix(p, segment, segment.depths)
    if roles is None:
        return _points(p, segment, warps)
    points, tk, tp = segment.reduced, segment.tk, segment.tp
    y = tk / FOUR if reads_fours(p, segment) else tk
    conflicts = bank_conflicts(p, segment, roles.along), bank_conflicts(p, segment, roles.across)
    tests = [len(place(p, segment, load).guards) for load in (roles.along, roles.across)]
    turns, copies, copied = _copies(p, segment)
    others = _others(segment)
    return SegmentCounts(
        products=float(warps * points * tk * tp),
        matrix=0.0,
        reads=warps * points * (tp + y) + warps * tk * tp * len(others),
        wavefronts=warps * points * (tp * conflicts[0] + y * conflicts[1])
        + warps * tk * tp * len(others),
        copies=copies,
        copied=copied + _direct(p, segment),
        other=warps * points * 2 * (tests[0] * tp + tests[1] * tk)
        + warps * (UNIT_INSTRUCTIONS * (tp + tk) + STORE_INSTRUCTIONS * tk * tp)
        + COPY_INSTRUCTIONS * copies,
        pieces=turns,
        waits=_waits(p, segment),
        registers=tk * tp * 5 // 4 + tp * (2 + tests[0]) + 2 * tk + OTHER_REGISTERS,
        share=_share(p, warps),
    )  # fmt: skip


def _share(p: DfgPlan, warps: int) -> float:
    """How busy a block's warps are with the work of so many: some wait while others do more."""
    have = -(-p.threads // WARP)
    return warps / (-(-warps // have) * have)


def _copies(p: DfgPlan, segment: Segment) -> tuple[int, float, float]:
    """(pieces, warp copies, bytes) of operands that go through shared memory."""
    turns = segment.turns(p.threads) * segment.chunks if segment.chunks > 1 else 1
    copies = copied = 0.0
    for load in segment.loads:
        if load.name in p.staged:
            item = p.staged[load.name]
            elements = math.prod(span.size for span in item.window)
            four = FOUR if is_copied_in_fours(p, item, segment.depth) else 1
            copies += turns * elements / four / WARP
            copied += 4.0 * turns * elements
    return turns, copies, copied


def _waits(p: DfgPlan, segment: Segment) -> float:
    """Times that a warp waits for global memory: in each turn for operands that it reads there (by
    matrix instructions, for every few steps that are written out), and behind a loop for those that
    follow; for each piece that is not copied while one is used.
    """
    turns = segment.turns(p.threads)
    combined = set(segment.combine.inputs) if segment.combine else set()
    direct = [n for n in segment.loads if n.level == GLOBAL and n.name not in p.early]
    staged = [p.staged[n.name] for n in direct if n.name in p.staged]
    before = float(any(n.name in combined and n.name not in p.staged for n in direct))
    if segment.depths:
        before *= -(-segment.depths.steps * segment.depths.chunks // unrolled(segment))
    behind = any(n.name not in combined for n in direct) and not segment.slide
    pieces = turns * segment.chunks if segment.chunks > 1 else 1
    copies = (pieces if any(s.buffers == 1 for s in staged) else 1) if staged else 0
    return turns * (before + behind) + copies


def _by_matrix(p: DfgPlan, segment: Segment, depths: Depths) -> SegmentCounts:
    """Shares of warps, in steps of eight depths; both operands are cut where they are read."""
    roles, item = segment.roles, segment.fragments
    assert roles is not None
    units, down, across = segment.units, segment.tk // COLUMNS, segment.tp // PIXELS
    steps = units * depths.steps * depths.chunks
    turns, copies, copied = _copies(p, segment)
    tests = len(place(p, segment, roles.along).guards)
    columns = down if item else 4 * down
    sums = units * segment.tk * segment.tp / WARP
    others = sums * len(_others(segment))
    found = 2 * across * tests + (JOINT_INSTRUCTIONS if depths.joint else 0)
    return SegmentCounts(
        products=0.0,
        matrix=steps * 3 * down * across,
        reads=steps * (2 * across + columns) + others,
        wavefronts=steps * (2 * across * bank_conflicts(p, segment, roles.along) + 4 * down)
        + others,
        copies=copies,
        copied=copied + _direct(p, segment),
        other=steps * (CUT_INSTRUCTIONS * 2 * across + PACKED_INSTRUCTIONS * 4 * down + found)
        + units * UNIT_INSTRUCTIONS * 3 * across
        + STORE_INSTRUCTIONS * sums / (2 if in_pairs(p, segment) else 1)
        + COPY_INSTRUCTIONS * copies,
        pieces=turns,
        waits=_waits(p, segment),
        registers=4 * down * across + 2 * (2 * across + 4 * down) + across + OTHER_REGISTERS,
        share=_share(p, units),
    )  # fmt: skip


def _slid(p: DfgPlan, segment: Segment, slide: Slide, warps: int) -> SegmentCounts:
    """Threads that read what their outputs share once."""
    assert segment.combine is not None
    groups = fours(p, segment, slide)
    alone = slide.columns.span - len({n for g in groups for n in g if n < slide.columns.span})
    rows = slide.rows.span
    shared = len(_others(segment)) * slide.sums
    weights = slide.taps * (len(segment.combine.inputs) - 1)
    tests = len(place(p, segment, slide.image).guards)
    conflicts = bank_conflicts(p, segment, slide.image)
    turns, copies, copied = _copies(p, segment)
    reads = warps * rows * (alone + len(groups))
    return SegmentCounts(
        products=float(warps * slide.sums * slide.taps),
        matrix=0.0,
        reads=reads + warps * (weights + shared),
        wavefronts=warps * rows * (alone * conflicts + FOUR * len(groups))
        + warps * (weights + shared),
        copies=copies,
        copied=copied + _direct(p, segment),
        other=reads * (1 + tests) + warps * 3 * UNIT_INSTRUCTIONS
        + warps * STORE_INSTRUCTIONS * slide.sums + COPY_INSTRUCTIONS * copies,
        pieces=turns,
        waits=_waits(p, segment),
        registers=slide.read + slide.sums + slide.taps + OTHER_REGISTERS,
        share=_share(p, warps),
    )  # fmt: skip


def _points(p: DfgPlan, segment: Segment, warps: int) -> SegmentCounts:
    """One point of a thread at a time; every element is addressed anew."""
    combined = set(segment.combine.inputs) if segment.combine else set()
    loads = [load for load in segment.loads if load.name in combined]
    steps = segment.reduced / segment.lanes
    conflicts = [bank_conflicts(p, segment, load) for load in loads]
    tests = sum(len(place(p, segment, load).guards) for load in loads)
    others = len(_others(segment))
    return SegmentCounts(
        products=warps * steps if segment.combine else 0.0,
        matrix=0.0,
        reads=warps * (steps * len(loads) + others),
        wavefronts=warps * (steps * sum(conflicts) + others),
        copies=0.0,
        copied=_direct(p, segment),
        other=warps * (steps * (len(loads) + 2 * tests) + UNIT_INSTRUCTIONS + STORE_INSTRUCTIONS)
        + warps * 4 * math.log2(segment.lanes),
        pieces=1,
        waits=_waits(p, segment),
        registers=OTHER_REGISTERS,
        share=_share(p, warps),
    )  # fmt: skip


def _others(segment: Segment) -> list[Load]:
    """What is read once for each result: operands behind the sum."""
    combined = set(segment.combine.inputs) if segment.combine else set()
    return [load for load in segment.loads if load.name not in combined]


def _direct(p: DfgPlan, segment: Segment) -> float:
    """Bytes that loads from global memory touch, each once for a block: the rest is in L1."""
    return 4.0 * sum(
        touched(p, segment, load)
        for load in segment.loads
        if load.level == GLOBAL and load.name not in p.staged
    )


def touched(p: DfgPlan, segment: Segment, load: Load) -> int:
    """Elements of a tensor that a block reads."""
    item = segment.fragments
    if item is not None and item.tensor.name == load.tensor:
        batch = segment.size([d for d, _ in item.batch])
        own = segment.column_units * segment.tk * item.depths.steps * PER_COLUMN
        return batch * item.depths.chunks * own
    sizes = zip(load.index, p.tensor(load.tensor).shape, strict=True)
    return math.prod(min(reach(e, segment).size, extent) for e, extent in sizes)


def bank_conflicts(p: DfgPlan, segment: Segment, load: Load) -> float:
    """Cycles of a warp's load from shared memory, by the addresses of its first warp; 1 elsewhere.

    Lanes that read one address, as those of a column do, are served together.
    """
    if load.level == GLOBAL and load.name not in p.staged and load.name not in p.early:
        return 1.0
    steps = place(p, segment, load).steps
    if segment.slide:
        points = _strip_points(segment, segment.slide)
    elif segment.depths:
        points = _fragment_points(segment, segment.depths)
    else:
        points = _thread_points(segment)
    addresses = {sum(step * point.get(d, 0) for d, step in steps.items()) for point in points}
    return float(max(Counter(a % BANKS for a in addresses).values()))


def _strip_points(segment: Segment, slide: Slide) -> Iterable[Mapping[str, int]]:
    """The first output of each lane."""
    runs = {axis.dim: axis.run for axis in (slide.rows, slide.columns)}
    strips = segment.strips[::-1]
    for lane in range(min(WARP, segment.units)):
        left, point = lane, {}
        for d, count in strips:
            left, own = divmod(left, count)
            point[d] = own * runs.get(d, 1)
        yield point


def _fragment_points(segment: Segment, depths: Depths) -> Iterable[Mapping[str, int]]:
    """Pixels and depths of the lanes of a warp."""
    for lane in range(WARP):
        left, point = min(lane // 4, segment.size(segment.pixels) - 1), {}
        for d in reversed(segment.pixels):
            left, point[d] = divmod(left, segment.region.dims[d].size)
        left = lane % 4
        for d, size in reversed(depths.over):
            left, point[d] = divmod(left, size)
        yield point


def _thread_points(segment: Segment) -> Iterable[Mapping[str, int]]:
    """Where each lane begins."""
    dims = segment.region.dims
    for lane in range(min(WARP, segment.units * segment.lanes)):
        unit, point = lane // segment.lanes, {}
        for names, units, run in (
            (segment.pixels, segment.pixel_units, 1),
            (segment.columns, segment.column_units, segment.tk),
            (segment.batch, segment.size(segment.batch), 1),
        ):
            unit, own = divmod(unit, units)
            own *= run
            for d in reversed(names):
                own, point[d] = divmod(own, dims[d].size)
        if segment.lanes > 1 and segment.combine:
            own = lane % segment.lanes
            for d, size in reversed(segment.combine.over):
                own, point[d] = divmod(own, size)
        yield point


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    p = plan(group, schedule)
    computed = sum(
        s.units * (s.slide.sums if s.slide else s.tk * s.tp) * s.reduced for s in p.segments
    )
    return Need(
        p.threads, p.shared_bytes, max(segment_counts(p, s).registers for s in p.segments),
        p.blocks, 1, p.blocks * computed / sum(s.stage.points for s in p.segments),
        max(s.tk * s.tp for s in p.segments),
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]"""
    return work_of(plan(group, schedule), registers)


def work_of(p: DfgPlan, registers: int | None = None) -> Work:
    """[DfgPlan] -> [Work]: the sum over its segments."""
    found = [segment_counts(p, s) for s in p.segments]
    if p.walk:
        found = [*(_repeated(c, p.walk.parts) for c in found[:-1]), found[-1]]
    totals: dict[str, float] = defaultdict(float)
    for counts in found:
        for name in SUMMED:
            totals[name] += getattr(counts, name)
        # Warps without a share wait for the others at the barrier: a block takes as much longer.
        totals['other'] += counts.instructions * (1 / counts.share - 1)
    two = p.staged and all(item.buffers == 2 for item in p.staged.values())
    return Work(
        p.blocks, 1, p.threads, registers or max(c.registers for c in found), p.shared_bytes,
        2 if two else 1, int(totals['pieces']), totals['products'], totals['matrix'],
        totals['reads'], totals['wavefronts'], totals['copies'], totals['copied'], totals['other'],
        4.0 * p.results, 0.0, waits=max(totals['waits'] - 1, 0.0),
    )  # fmt: skip


def _repeated(counts: SegmentCounts, parts: int) -> SegmentCounts:
    """What is done for every part of a walk."""
    return replace(counts, **{name: parts * getattr(counts, name) for name in SUMMED})


def detour(group: Group, schedule: GpuSchedule) -> Detour:
    """[Group, GpuSchedule] -> [Detour]: all stages, and what tiles compute of them again."""
    p = plan(group, schedule)
    if len(p.segments) == 1:
        return Detour(group.flops, ())
    again = repetition(p.group, {d: p.tile[d] for d, _ in p.tiles})
    return Detour(int(sum(s.stage.flops * again[s.stage.name] for s in p.segments)), ())


def table(group: Group, intrinsic: str) -> Table:
    """Values of each decision, for groups that only this schema keeps together."""
    return decisions(group, intrinsic) if is_chained(group) and group.is_plain else {}


def decisions(group: Group, intrinsic: str) -> Table:
    """Values of each decision, for any group."""
    matrix = intrinsic != 'fma'
    if matrix and not any(_has_columns(stage) for stage in group.stages):
        return {}
    alone = each(
        **_tiles(group), threads=(64, 128, 256, 512),
        tk=(16, 32, 64) if matrix else (1, 2, 4, 8, 16),
        tp=(8, 16, 32, 64) if matrix else (1, 2, 4, 8), format=(0, 1, 3),
    )  # fmt: skip
    pieces = [(ci, cw, n) for ci, cw, n in itertools.product((4, 8, 16, 32), (0, 1), (1, 2))]
    pieces += [(ci, 0, 1) for ci in (64, 256)]
    if not _has_columns(next(s for s in group.stages if s.combiner)):
        pieces = [one for one in pieces if one[1]]  # only weights of later products are copied
    more = {('ci', 'cw', 'stages'): [(0, 0, 1), *pieces], ('sh', 'sw'): SLID}
    walks = list(itertools.product((0, 1), _walks(group) if matrix else [0]))
    return alone | more | {('early', 'hc'): walks}


def _walks(group: Group) -> list[int]:
    """Parts of the last product's sum for which the stages before it may be computed."""
    last = next((s for s in reversed(group.stages) if s.combiner), None)
    if last is None or not last.is_product_sum or not last.reduction:
        return [0]
    size = max(last.sizes[d] for d in last.reduction)
    return [0, *(n for n in range(COLUMNS, size, COLUMNS) if size % n == 0)]


def _has_columns(stage: Stage) -> bool:
    """Whether it may be a product for matrix instructions: both operands have dimensions of their
    own.
    """
    if not stage.is_product_sum:
        return False
    one, other = ({n for e in a.index for n in e.names} & set(stage.parallel) for a in stage.reads)
    return all(
        math.prod(stage.sizes[n] for n in own) >= LEAST_COLUMNS
        for own in (one - other, other - one)
    )


def _tiles(group: Group) -> dict[str, list[int]]:
    """Sizes of a tile along the last four dimensions of the result: powers of two, shares of it."""
    last = group.stages[-1]
    dims = ordered(last)[-len(BLOCK) :]
    found = {}
    for name, d in zip(BLOCK[-len(dims) :], dims, strict=True):
        size = last.sizes[d]
        shares = [-(-size // n) for n in (1, 2, 4)]
        found[name] = sorted({n for n in (1, 2, 4, 8, 16, 32, 64, *shares) if n <= size})
    return found


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """Few schedules for groups that only this schema keeps together, those that keep the machine's
    multiprocessors busy for the shortest time first.
    """
    if not is_chained(group) or not group.is_plain:
        return ()
    found: dict[GpuSchedule, float] = {}
    known = set()
    for values in _coarse(group, machine):
        intrinsic = 'mma_tf32x3' if values['tk'] >= COLUMNS else 'fma'
        schedule = GpuSchedule.of(NAME, intrinsic, **values)
        try:
            p = plan(group, schedule)
            check_fits(p, machine.shared_bytes_per_block)
        except ScheduleError:
            continue
        done = work_of(p)
        if done not in known:  # decisions for stages that the group does not have
            known.add(done)
            found[schedule] = _cycles(done, machine)
    return tuple(sorted(found, key=lambda s: found[s])[:PROPOSED])


def _coarse(group: Group, machine: GpuMachine) -> Iterable[Mapping[str, int]]:
    """Large and small tiles of channels, rows and columns, each with some threads."""
    last = group.stages[-1]
    dims = ordered(last)[-len(BLOCK) :]
    names = BLOCK[-len(dims) :]
    options = []
    for name, d in zip(names, dims, strict=True):
        size = last.sizes[d]
        few = {'bn': (1,), 'bk': (size, 32), 'bh': (2, 4, 8, 16), 'bw': (size, 8, 16)}[name]
        options.append(sorted({min(n, size) for n in few}))
    matrix = machine.has('mma_tf32x3') and any(map(_has_columns, group.stages))
    names = (*names, 'threads', 'tk', 'tp', 'ci', 'sh', 'sw', 'early', 'hc', 'format')
    if matrix:
        slides = [(4, 1), (4, 4)] if any(map(_has_windows, group.stages)) else [(1, 1)]
        walks = [n for n in _walks(group) if n in (0, 48, 64)]
        shares = [
            (threads, 64, 32, 0, sh, sw, 1, hc, 3)
            for threads, (sh, sw), hc in itertools.product((128, 256), slides, walks)
        ]
    else:
        shares = [
            (threads, tk, 4, ci, 1, 1, 0, 0, 0)
            for threads, tk, ci in itertools.product((128, 256), (8, 4), (0, 8))
        ]
    for tile, share in itertools.product(itertools.product(*options), shares):
        yield dict(zip(names, (*tile, *share), strict=True))


def _has_windows(stage: Stage) -> bool:
    """Whether its outputs may slide over what they read."""
    return stage.combiner is not None and not _has_columns(stage)


def _cycles(done: Work, machine: GpuMachine) -> float:
    """Cycles of the busiest multiprocessor, roughly: what its blocks start, and what they wait."""
    resident = max(
        1,
        min(
            machine.threads // done.threads,
            machine.shared_bytes // max(done.shared_bytes, 1),
            machine.registers // (done.registers * done.threads),
        ),
    )
    busiest = -(-done.blocks // machine.multiprocessors)
    waves = -(-busiest // resident)
    busy = max(done.instructions / 4, done.wavefronts, done.matrix * 2)
    return busiest * busy + waves * (done.pieces * 300 + (done.waits or 0.0) * 600)
