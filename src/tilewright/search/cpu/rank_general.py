"""The general schema's one candidate: with all threads, or with one where that is quicker."""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.machine import Machine
from tilewright.model.cpu.general_time import predict_general
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.search.cpu.rank import Candidate


def rank_general(
    group: Group, machine: Machine, threads: int, _top: int, _max_rel_err: float
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], one."""
    group, found = flatten(group), []
    for count in dict.fromkeys((1, threads)):
        schedule = general_schedule(group, machine.isa, count, len(machine.caches))
        found.append(Candidate(schedule, predict_general(group, schedule, machine)))
    return (min(found, key=lambda c: c.prediction.seconds),)
