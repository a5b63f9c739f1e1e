"""The time of windows of bf16 in vectors of float32: instructions of two pipes, or memory.

Goes in: a group, a schedule with schema 'wide', a machine. Comes out: a `Prediction`.
Multiply-adds, two instructions that widen each vector that is loaded and four that finish and round
each result share the same pipes.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.half_vectors import MOST_LANES
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

WIDEN, FINISH = 2, 4  # instructions of a vector that is loaded, of a result


def predict_wide(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    work, isa = SCHEMAS[schedule.schema].work(group, schedule), ISAS[machine.isa]
    joins = group.main.points / MOST_LANES * (1 if group.main.is_product_sum else 3)
    finish = FINISH * group.output.size / MOST_LANES
    cycles = (joins + WIDEN * work.loads + finish) / isa.fma_per_cycle
    seen = replace(schedule, isa=machine.isa, dtype='f32')
    return roofline(
        group, seen, machine, cycles / schedule.threads, work.flops, float(work.moved)
    )  # fmt: skip
