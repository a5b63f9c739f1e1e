"""What a block of the dfg schema takes and does, counted from its plan; schedules without a search.

Regions are counted as they are computed: halos that several tiles compute, and what lies outside
the domain of a stage, are work. Bank conflicts are those of the strides that the plan lays out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schema import Detour, Table, each
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Load
from tilewright.kernels.gpu.schemas.dfg.plan import BLOCK, NAME, DfgPlan, check_fits, plan
from tilewright.kernels.gpu.schemas.dfg.products import is_copied_in_fours, reads_fours
from tilewright.kernels.gpu.schemas.dfg.segment import FOUR, Segment, ordered, reach
from tilewright.kernels.gpu.schemas.dfg.text import place
from tilewright.kernels.gpu.work import WARP, Need, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.chain import is_chained, repetition
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 45  # beside operands and sums: addresses, bounds, counters, loads ahead
BANKS = 32
COPY_INSTRUCTIONS = 10  # to find out where an element that is copied lies
UNIT_INSTRUCTIONS = 12  # to find out where a pixel or a column of a thread begins
STORE_INSTRUCTIONS = 4
PROPOSED = 4


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """Warp instructions and bytes of one segment, all warps and pieces of a block together.

    coefficient   COEF_bc: cycles of a load from shared memory, on average
    """

    products: float
    reads: float
    wavefronts: float
    copies: float
    copied: float
    other: float
    pieces: int
    registers: int
    warps: int  # that have a share of it

    @property
    def instructions(self) -> float:
        return self.products + self.reads + self.copies + self.other

    @property
    def coefficient(self) -> float:
        return self.wavefronts / self.reads if self.reads else 1.0


def segment_counts(p: DfgPlan, segment: Segment) -> SegmentCounts:
    """[DfgPlan, Segment] -> [SegmentCounts]"""
    warps = -(-segment.units * segment.lanes // WARP)
    roles = segment.roles
    if roles is None:
        return _points(p, segment, warps)
    points, tk, tp = segment.reduced, segment.tk, segment.tp
    y = tk / FOUR if reads_fours(p, segment) else tk
    conflicts = bank_conflicts(p, segment, roles.along), bank_conflicts(p, segment, roles.across)
    tests = [len(place(p, segment, load).guards) for load in (roles.along, roles.across)]
    copies = copied = 0.0
    turns = segment.turns(p.threads) * segment.chunks if segment.staged else 1
    for load in (roles.along, roles.across):
        if load.name in p.staged:
            item = p.staged[load.name]
            elements = math.prod(span.size for span in item.window)
            four = FOUR if is_copied_in_fours(p, item, segment.depth) else 1
            copies += turns * elements / four / WARP
            copied += 4.0 * turns * elements
    others = _others(segment)
    return SegmentCounts(
        products=warps * points * tk * tp,
        reads=warps * points * (tp + y) + warps * tk * tp * len(others),
        wavefronts=warps * points * (tp * conflicts[0] + y * conflicts[1])
        + warps * tk * tp * len(others),
        copies=copies,
        copied=copied + _direct(p, segment),
        other=warps * points * 2 * (tests[0] * tp + tests[1] * tk)
        + warps * (UNIT_INSTRUCTIONS * (tp + tk) + STORE_INSTRUCTIONS * tk * tp)
        + COPY_INSTRUCTIONS * copies,
        pieces=turns,
        registers=tk * tp * 5 // 4 + tp * (2 + tests[0]) + 2 * tk + OTHER_REGISTERS,
        warps=min(warps, -(-p.threads // WARP)),
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
        reads=warps * (steps * len(loads) + others),
        wavefronts=warps * (steps * sum(conflicts) + others),
        copies=0.0,
        copied=_direct(p, segment),
        other=warps * (steps * (len(loads) + 2 * tests) + UNIT_INSTRUCTIONS + STORE_INSTRUCTIONS)
        + warps * 4 * math.log2(segment.lanes),
        pieces=1,
        registers=OTHER_REGISTERS,
        warps=min(warps, -(-p.threads // WARP)),
    )  # fmt: skip


def _others(segment: Segment) -> list[Load]:
    """What is read once for each result: operands behind the sum."""
    combined = set(segment.combine.inputs) if segment.combine else set()
    return [load for load in segment.loads if load.name not in combined]


def _direct(p: DfgPlan, segment: Segment) -> float:
    """Bytes that loads from global memory touch, each once for a block: the rest is in L1."""
    return 4.0 * sum(
        math.prod(
            min(reach(e, segment).size, extent)
            for e, extent in zip(load.index, p.tensor(load.tensor).shape, strict=True)
        )
        for load in segment.loads
        if load.level == GLOBAL and load.name not in p.staged
    )


def bank_conflicts(p: DfgPlan, segment: Segment, load: Load) -> float:
    """Cycles of a warp's load from shared memory, by the addresses of its first warp; 1 elsewhere.

    Lanes that read one address, as those of a column do, are served together.
    """
    if load.level == GLOBAL and load.name not in p.staged:
        return 1.0
    steps = place(p, segment, load).steps
    dims = segment.region.dims
    addresses = set()
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
        addresses.add(sum(step * point.get(d, 0) for d, step in steps.items()))
    return float(max(Counter(a % BANKS for a in addresses).values()))


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    p = plan(group, schedule)
    computed = sum(s.units * s.tk * s.tp * s.reduced for s in p.segments)
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
    totals: dict[str, float] = defaultdict(float)
    for counts in found:
        for name in ('products', 'reads', 'wavefronts', 'copies', 'copied', 'other', 'pieces'):
            totals[name] += getattr(counts, name)
    # Warps without a share wait for the others at the barrier: a block takes as much longer.
    warps = -(-p.threads // WARP)
    totals['other'] += sum(c.instructions * (warps / c.warps - 1) for c in found)
    two = p.staged and all(item.buffers == 2 for item in p.staged.values())
    return Work(
        p.blocks, 1, p.threads, registers or max(c.registers for c in found), p.shared_bytes,
        2 if two else 1, int(totals['pieces']), totals['products'], 0.0, totals['reads'],
        totals['wavefronts'], totals['copies'], totals['copied'], totals['other'],
        4.0 * math.prod(p.tile.values()), 0.0,
    )  # fmt: skip


def detour(group: Group, schedule: GpuSchedule) -> Detour:
    """[Group, GpuSchedule] -> [Detour]: all stages, and what tiles compute of them again."""
    p = plan(group, schedule)
    if len(p.segments) == 1:
        return Detour(group.flops, ())
    again = repetition(p.group, p.tile)
    return Detour(int(sum(s.stage.flops * again[s.stage.name] for s in p.segments)), ())


def table(group: Group, intrinsic: str) -> Table:
    """Values of each decision, for groups that only this schema keeps together."""
    return decisions(group, intrinsic) if is_chained(group) and group.is_plain else {}


def decisions(group: Group, _: str) -> Table:
    """Values of each decision, for any group."""
    alone = each(
        **_tiles(group), threads=(64, 128, 256, 512), tk=(1, 2, 4, 8, 16), tp=(1, 2, 4, 8),
        format=(0, 1),
    )  # fmt: skip
    pieces = [(ci, cw, n) for ci, cw, n in itertools.product((4, 8, 16, 32), (0, 1), (1, 2))]
    return alone | {('ci', 'cw', 'stages'): [(0, 0, 1), *pieces]}


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
    for values in _coarse(group):
        schedule = GpuSchedule.of(NAME, 'fma', **values)
        try:
            p = plan(group, schedule)
            check_fits(p, machine.shared_bytes_per_block)
        except ScheduleError:
            continue
        found[schedule] = _cycles(work_of(p), machine)
    return tuple(sorted(found, key=lambda s: found[s])[:PROPOSED])


def _coarse(group: Group) -> Iterable[Mapping[str, int]]:
    """Large and small tiles of channels, rows and columns, each with some threads."""
    last = group.stages[-1]
    dims = ordered(last)[-len(BLOCK) :]
    names = BLOCK[-len(dims) :]
    options = []
    for name, d in zip(names, dims, strict=True):
        size = last.sizes[d]
        few = {'bn': (1,), 'bk': (size, 32), 'bh': (2, 4, 8), 'bw': (size, 8, 16)}[name]
        options.append(sorted({min(n, size) for n in few}))
    for tile in itertools.product(*options):
        for threads, (tk, tp), ci in itertools.product((128, 256), ((8, 4), (4, 4)), (0, 8)):
            more = {'threads': threads, 'tk': tk, 'tp': tp, 'ci': ci}
            yield dict(zip(names, tile, strict=True)) | more


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
    return busiest * max(done.instructions / 4, done.wavefronts) + waves * done.pieces * 1000
