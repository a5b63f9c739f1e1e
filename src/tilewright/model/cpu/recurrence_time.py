"""The time of the recurrence schema: what a step loads and computes, and how threads keep in step.

Goes in: a group, a schedule with schema 'recurrence', a machine. Comes out: a `Prediction`. Every
step reads all recurrent weights, to and fro, so that a cache still holds as many of them as fit;
those that do not are what most such layers wait for:

    seconds = T * (max(sums, (weights - room) / bandwidth) + functions + waits)

Directions that are apart have a turn each, with the whole cache for the weights of one of them.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.recurrence.plan import plan_recurrence
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.general_time import stage_cycles
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, bound_times
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

WAIT_S = 5e-7  # until every thread knows that all others are done


def predict_recurrence(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    plan = plan_recurrence(group, schedule)
    steps, isa, threads = plan.steps, ISAS[schedule.isa], schedule.threads
    turns = steps.directions if plan.apart else 1
    cycle_s = isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)
    products = [s for s in group.stages if s.combiner]
    points = [s for s in group.stages if not s.combiner]
    # A weight serves the sequences of a register tile; a step cannot do more than load it.
    served = min(schedule.reg.tile['n'], steps.batch)
    macs = sum(s.points for s in products)
    sums = max(
        macs / isa.lanes / isa.fma_per_cycle, macs / isa.lanes / served / isa.loads_per_cycle
    )
    cycles = sums + sum(stage_cycles(group, s, isa.lanes) for s in points)
    compute = cycles * cycle_s / threads
    weights = sum(group.tensor(s.reads[0].tensor).bytes for s in products)
    boundaries = [Boundary(machine.boundaries[0], 0.0, 0.0)]
    for number in range(len(machine.caches)):
        room = MARGIN * threads * machine.capacity_bytes(number, threads)
        moved = steps.steps * max(0.0, weights - turns * room)
        rate = 1e9 * machine.bandwidth_gbps(number + 1, threads)
        boundaries.append(Boundary(machine.boundaries[number + 1], moved, moved / rate))
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    if threads > 1:
        fork += plan.rounds * WAIT_S
    total = max(compute, *(b.seconds for b in boundaries[1:])) + fork
    flops = float(sum(s.flops for s in products))
    bounds = bound_times(flops, float(group.compulsory_bytes), machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    return Prediction(
        max(total, bounds[largest]), compute, 0.0, 0.0, fork, tuple(boundaries), bounds[largest],
        flops, float(group.compulsory_bytes), largest if total < bounds[largest] else '',
    )  # fmt: skip
