"""From a convolution of f16 to ranked Winograd schedules, by modelling alone.

Goes in: a group, a machine, a thread count, a limit. Comes out: `Candidate`s, best first; none
where the machine has no f16, or no size of tiles stays within the limit.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.winograd_half.plan import (
    predicted_error,
    winograd_half_choices,
)
from tilewright.machine.machine import Machine
from tilewright.model.cpu.winograd_half_time import predict_winograd_half
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.ops.winograd_half import LENIENT
from tilewright.search.cpu.rank import Candidate


def rank_winograd_half(
    group: Group, machine: Machine, threads: int, top: int, max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first."""
    if not machine.half:
        return ()
    found = [
        Candidate(schedule, predict_winograd_half(group, schedule, machine))
        for schedule in winograd_half_choices(group, machine.isa, threads)
        if predicted_error(group, schedule) <= LENIENT * max_rel_err
    ]
    found.sort(key=lambda c: (c.prediction.seconds, c.schedule.digest))
    return tuple(found[:top])
