"""What a block of the dfg schema takes and does, counted from its plan.

Regions are counted as they are computed: halos that several tiles compute, and what lies outside
the domain of a stage, are work. Bank conflicts are those of the strides that the plan lays out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from tilewright.kernels.gpu.schema import Detour
from tilewright.kernels.gpu.schemas.dfg.banks import bank_conflicts
from tilewright.kernels.gpu.schemas.dfg.fragments import COLUMNS, PER_COLUMN, Depths
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Load
from tilewright.kernels.gpu.schemas.dfg.matrix import in_pairs, unrolled
from tilewright.kernels.gpu.schemas.dfg.plan import DfgPlan, plan
from tilewright.kernels.gpu.schemas.dfg.products import is_copied_in_fours, reads_fours
from tilewright.kernels.gpu.schemas.dfg.segment import (
    FOUR,
    PIXELS,
    Segment,
    reach,
)
from tilewright.kernels.gpu.schemas.dfg.sliding import fours
from tilewright.kernels.gpu.schemas.dfg.storage import Staged
from tilewright.kernels.gpu.schemas.dfg.text import place
from tilewright.kernels.gpu.schemas.dfg.windows import Slide
from tilewright.kernels.gpu.work import CUT_INSTRUCTIONS, WARP, Need, Work
from tilewright.ops.chain import repetition
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 45  # beside operands and sums: addresses, bounds, counters, loads ahead
COPY_INSTRUCTIONS = 10  # to find out where an element that is copied lies
UNIT_INSTRUCTIONS = 12  # to find out where a pixel or a column of a thread begins
STORE_INSTRUCTIONS = 4
PACKED_INSTRUCTIONS = 3  # to cut an element that came with three others, in one load
JOINT_INSTRUCTIONS = 24  # to find out where two depths lie, if all reductions are walked as one
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
    items = [p.staged[load.name] for load in segment.loads if load.name in p.staged]
    copies = sum(_warp_copies(p, item, segment.depth) for item in items)
    elements = sum(math.prod(span.size for span in item.window) for item in items)
    return turns, turns * copies, 4.0 * turns * elements


def _warp_copies(p: DfgPlan, item: Staged, depth: int) -> float:
    four = FOUR if is_copied_in_fours(p, item, depth) else 1
    return math.prod(span.size for span in item.window) / four / WARP


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
    early = sum(_warp_copies(p, item, 0) for item in p.early.values())
    totals['copies'] += early
    totals['other'] += COPY_INSTRUCTIONS * early
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
