"""The time of a schedule on one machine, by the model of its schema.

Goes in: a group, a schedule, a machine. Comes out: a `Prediction` with the time of each resource.
"""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import predict_work
from tilewright.ops.group import Group
from tilewright.registry import resolve
from tilewright.schedule.schedule import Schedule


def predict(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]; without a model it is priced by its work."""
    if schedule.schema not in SCHEMAS:
        raise ScheduleError(SCHEMAS.unknown(schedule.schema))
    model = resolve(SCHEMAS[schedule.schema].time or predict_work)
    return model(group, schedule, machine)
