"""A measured schedule as a row to learn from: what the store keeps beside its time.

Goes in: a group, a machine, a schedule. Comes out: plain values (JSON): the features, the two
analytical times and what a row belongs to, so that a model can be trained again from measurements
of any search without the groups (`tilewright model update`).
"""

from __future__ import annotations

import math
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schema import kind_name
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.rank.features import VERSION, problem_of
from tilewright.rank.online import features_of
from tilewright.schedule.gpu import GpuSchedule

PROBLEM = ('k', 'h', 'w', 'c', 'r', 'stride')


def row_of(group: Group, machine: GpuMachine, schedule: GpuSchedule) -> dict[str, Any]:
    """What is stored of a schedule; nothing where the features cannot be told."""
    if has_front(group) or not group.is_plain:
        return {}
    try:
        x, base = features_of(group, machine, [schedule])
        predicted = math.log(predict_gpu(group, schedule, machine).seconds)
        sizes = problem_of(group)
    except (ScheduleError, KeyError, IndexError):
        return {}
    return {
        'version': VERSION, 'machine': machine.name,
        'kind': kind_name(schedule.schema, schedule.intrinsic),
        'problem': [sizes[name] for name in PROBLEM], 'base': float(f'{base[0]:.6g}'),
        'predicted': float(f'{predicted:.6g}'), 'x': [float(f'{v:.6g}') for v in x[0]],
    }  # fmt: skip
