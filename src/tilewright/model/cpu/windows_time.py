"""The time of windows of f16: vectors that are multiplied, and vectors that are loaded and stored.

Goes in: a group, a schedule with schema 'windows', a machine. Comes out: a `Prediction`. A tile
reads a row of pixels for each of its taps, and the next tile reads other lines: loads and
multiply-adds follow each other more than they overlap, so that their times add up. Depthwise layers
of MobileNet-v2 take 8 to 17 cycles for a vector of results on a Neoverse-N1, where this says 9 to
12; the larger of both said 4 to 5.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

# Of a vector of results: a bias, two limits, a store (kernels/cpu/half_epilogue.py).
FINISH_INSTRUCTIONS = 4


def predict_windows(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    work, isa = SCHEMAS[schedule.schema].work(group, schedule), ISAS[schedule.isa]
    cycles = work.flops / isa.flops_per_cycle + work.loads / isa.loads_per_cycle
    # A multiply-add of words is one instruction for each of its two numbers.
    cycles += FINISH_INSTRUCTIONS * group.output.size / isa.lanes / (2 * isa.fma_per_cycle)
    return roofline(
        group, schedule, machine, cycles / schedule.threads, work.flops, float(work.moved)
    )
