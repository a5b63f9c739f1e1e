"""DeepCuts' performance upper limit for fused kernels: rows of its Tables 6-8, and their sum.

Goes in: a group, a schedule of the dfg schema, which are DeepCuts' own kernels, and a machine.
Comes out: a `Pul` (model/gpu/pul.py has the corrections), and the row of every stage. The rules of
fusion (Sec. "Shared-Memory-Level and Register-Level Fusion") follow from the data-flow graph
instead of being applied to formulas:

    register   computations are added; transactions and loads are the predecessor's, and those of a
               second operand, if there is one (the deck forgets it)
    shared     what the predecessor left causes no transaction; weights of the successor do. Regions
               match, and all of C is resident, because regions are derived from the accesses

Halos, strides and padding come from the access maps, where Tables 7-8 hold for stride 1 alone.
COEF_bc is counted on the addresses of a warp under the strides that the schedule lays out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schemas.dfg.counts import segment_counts, touched, work_of
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Apply, Load
from tilewright.kernels.gpu.schemas.dfg.plan import DfgPlan, plan
from tilewright.kernels.gpu.schemas.dfg.segment import Segment, reach
from tilewright.kernels.gpu.work import TRANSACTION
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.occupancy import occupancy
from tilewright.model.gpu.pul import SHARED_LATENCY, Pul, balance
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One stage of a fused kernel.

    fusion        how it is joined to those before it: 'first', 'register' or 'shared'
    computations  COMP_block                    transactions   NUM_trans of a block
    loads         warp loads of all its threads, N_load        conflicts   COEF_bc
    """

    stage: str
    fusion: str
    computations: float
    transactions: float
    loads: float
    conflicts: float


def operator_rows(group: Group, schedule: GpuSchedule) -> tuple[OperatorRow, ...]:
    """[Group, GpuSchedule] -> [OperatorRow of every stage]"""
    return _rows(plan(group, schedule))


def _rows(p: DfgPlan) -> tuple[OperatorRow, ...]:
    rows = []
    for number, segment in enumerate(p.segments):
        counts = segment_counts(p, segment)
        combined = segment.combine.inputs if segment.combine else ()
        before = [n for n in segment.loads if n.name in combined or not segment.combine]
        points = segment.region.points
        each = segment.stage.flops / segment.stage.points
        rows.append(
            OperatorRow(
                segment.stage.name, 'shared' if number else 'first', points * each,
                sum(_transactions(p, segment, load) for load in before), counts.reads,
                counts.coefficient,
            )
        )  # fmt: skip
        elements = segment.size(segment.ordered)
        for node in segment.graph.nodes:
            if not isinstance(node, Apply) or node.name == segment.stage.name:
                continue
            beside = [n for n in map(segment.graph.node, node.inputs) if isinstance(n, Load)]
            flops = next(s.flops / s.points for s in p.group.stages if s.name == node.name)
            moved = sum(_transactions(p, segment, load) for load in beside)
            rows.append(OperatorRow(node.name, 'register', elements * flops, moved, 0.0, 1.0))
    return tuple(rows)


def _transactions(p: DfgPlan, segment: Segment, load: Load) -> float:
    """Transactions of `TRANSACTION` elements that bring what a block reads of a tensor."""
    if load.level != GLOBAL:
        return 0.0
    if segment.fragments and segment.fragments.tensor.name == load.tensor:
        return touched(p, segment, load) / TRANSACTION
    spans = [reach(e, segment).size for e in load.index]
    spans = [min(n, extent) for n, extent in zip(spans, p.tensor(load.tensor).shape, strict=True)]
    return math.prod(spans[:-1]) * math.ceil(spans[-1] / TRANSACTION)


def fused_pul(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> Pul:
    """[Group, GpuSchedule, GpuMachine] -> [Pul] of one kernel for all stages."""
    p = plan(group, schedule)
    done, rows = work_of(p), _rows(p)
    try:
        resident = occupancy(machine, done.threads, done.registers, done.shared_bytes).blocks
    except ScheduleError:
        return Pul(0.0, 0.0, 0.0, False)
    computed = sum(row.computations for row in rows)
    moved = 4 * TRANSACTION * sum(row.transactions for row in rows)
    loads = sum(row.loads for row in rows)
    cycles = SHARED_LATENCY * sum(row.loads * row.conflicts for row in rows) / loads
    return Pul(
        min(1.0, computed / moved / (machine.peak_gflops / machine.global_gbps)),
        min(1.0, computed / machine.warp / loads / cycles),
        balance(done.blocks, machine.multiprocessors, resident),
        True,
    )
