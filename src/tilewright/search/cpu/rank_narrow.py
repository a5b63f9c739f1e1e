"""From a group whose weights have 16 bits to ranked schedules: those of its float32 form.

Goes in: a group, a machine, a thread count. Comes out: `Candidate`s, best first. What memory is
asked for is predicted in bytes of float32, so that times are upper bounds.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.schemas.narrow.plan import has_narrow, widened
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import predict_outer
from tilewright.model.cpu.prediction import Prediction
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import Candidate
from tilewright.search.cpu.rank_outer import rank_outer


def rank_narrow(
    group: Group, machine: Machine, threads: int, top: int, max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first; none where a set has no such kernels."""
    if not has_narrow(machine.isa):
        return ()
    found = rank_outer(widened(group), machine, threads, top, max_rel_err)
    return tuple(replace(c, schedule=replace(c.schedule, schema='narrow')) for c in found)


def predict_narrow(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    return predict_outer(tiled_form(widened(group), schedule.reg.tile), schedule, machine)
