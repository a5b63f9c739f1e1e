"""Estimates that order GPU schedules before any of them is measured, by name: `--prune`.

Goes in: a name, a group, a schedule and a machine. Comes out: seconds, of which the least is to be
measured first; a ScheduleError where an estimate says nothing of a schedule.

    time    model/gpu/time.py: what a kernel is expected to take
    bound   model/gpu/pul.py: what no kernel with these tiles can beat
    pul     DeepCuts' performance upper limit, corrected (model/gpu/pul.py): the time of the group's
            operations at that share of the peak; of kernels for several stages by the rules of
            fusion (model/gpu/pul_fused.py)
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.gpu.registry import schema_named
from tilewright.kernels.gpu.schemas.dfg.plan import NAME as DFG
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.pul import bound, pul
from tilewright.model.gpu.pul_fused import fused_pul
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.front import has_front, without_front
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

Estimate = Callable[[Group, GpuSchedule, GpuMachine], float]
TIME = 'time'


def _time(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> float:
    return predict_gpu(group, schedule, machine).seconds


def _bound(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> float:
    return bound(_products(group, schedule), schedule, machine).seconds


def _pul(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> float:
    of = fused_pul if schedule.schema == DFG else pul
    share = of(_products(group, schedule), schedule, machine).value
    if not share > 0:
        raise ScheduleError(f'{group.label}: a block of {schedule.tiles} does not fit')
    return group.flops / (share * machine.peak_gflops * 1e9)


def _products(group: Group, schedule: GpuSchedule) -> Group:
    """The group without stages before the products, where the schema leaves them to a kernel."""
    apart = has_front(group) and not schema_named(schedule.schema).front
    return without_front(group) if apart else group


ESTIMATES: dict[str, Estimate] = {'pul': _pul, 'bound': _bound, TIME: _time}


def check_estimate(name: str) -> None:
    if name not in ESTIMATES:
        raise InputError(f'prune is {name!r}; choose one of {", ".join(ESTIMATES)}')
