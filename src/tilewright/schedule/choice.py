"""A choice: the schedule that a group is computed by, and what is known of it. The same everywhere.

Layers and networks, CPUs and GPUs choose, store and save these. A schedule of a CPU and one of a
GPU are told apart by what their JSON holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.errors import InputError
from tilewright.schedule.gpu import GpuSchedule
from tilewright.schedule.schedule import Schedule

AnySchedule = Schedule | GpuSchedule


def schedule_from_json(data: Mapping) -> AnySchedule:
    """A schedule of either kind; raises ScheduleError where it cannot be read."""
    return (Schedule if 'levels' in data else GpuSchedule).from_json(data)


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule, the time expected of it, what limits that, and what no kernel can beat."""

    schedule: Any  # a `Schedule` or a `GpuSchedule`, as the target has them
    predicted_s: float
    bound_s: float
    limit: str = ''

    def to_json(self) -> dict:
        return {
            'schedule': self.schedule.to_json(),
            'predicted_s': self.predicted_s,
            'bound_s': self.bound_s,
            'limit': self.limit,
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Choice:
        try:
            seconds = float(data['predicted_s']), float(data['bound_s'])
            schedule = schedule_from_json(data['schedule'])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f'a stored choice cannot be read: {error!r}') from None
        if not all(0 <= value < math.inf for value in seconds):  # false for nan
            raise InputError(f'a stored choice cannot be read: it takes {seconds} s')
        return cls(schedule, *seconds, str(data.get('limit', '')))
