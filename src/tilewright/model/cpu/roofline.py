"""A rough time: units that are busy, or memory, whichever takes longer.

Goes in: a group, a schedule, a machine, cycles of one thread. Comes out: a `Prediction`. Every
tensor crosses, once, the boundaries inside which not all of them fit. It serves schemas whose inner
loops compilers make, which no model foresees: whether a second thread pays is what it can tell.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import MARGIN, Boundary, Prediction, bound_times
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def predict_work(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction] from the work that a schema counts."""
    work, isa = SCHEMAS[schedule.schema].work(group, schedule), ISAS[schedule.isa]
    busiest = max(work.flops / isa.flops_per_cycle, work.loads / isa.loads_per_cycle)
    return roofline(
        group, schedule, machine, busiest / schedule.threads, work.flops, float(work.moved)
    )


def roofline(
    group: Group, schedule: Schedule, machine: Machine, cycles: float, flops: float, moved: float
) -> Prediction:
    """The time of so many cycles of one thread, of these operations and bytes of all threads."""
    isa, threads = ISAS[schedule.isa], schedule.threads
    cycle_s = isa.flops_per_cycle / (1e9 * machine.peak_gflops(threads) / threads)
    compute = cycles * cycle_s
    boundaries = [_crossed(machine, 0, moved, threads)]
    for number in range(len(machine.caches)):
        copies = min(threads, max(1, machine.cores // machine.caches[number].shared_by))
        room = MARGIN * copies * machine.capacity_bytes(number, threads)
        boundaries.append(_crossed(machine, number + 1, moved if moved > room else 0.0, threads))
    fork = machine.fork_join_us * 1e-6 if threads > 1 else 0.0
    total = max(compute, *(b.seconds for b in boundaries[1:])) + fork
    bounds = bound_times(flops, moved, machine, threads)
    largest = max(bounds, key=lambda name: bounds[name])
    return Prediction(
        max(total, bounds[largest]), compute, 0.0, 0.0, fork, tuple(boundaries), bounds[largest],
        flops, moved, largest if total < bounds[largest] else '',
    )  # fmt: skip


def _crossed(machine: Machine, number: int, moved: float, threads: int) -> Boundary:
    seconds = moved / (1e9 * machine.bandwidth_gbps(number, threads))
    return Boundary(machine.boundaries[number], moved, seconds)
