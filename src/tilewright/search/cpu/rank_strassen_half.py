"""From a product of f16 to ranked Strassen schedules, by modelling alone.

Goes in: a group, a machine, a thread count, a limit. Comes out: `Candidate`s, best first; none
where the machine has no f16, or no number of levels stays within the limit.
"""

from __future__ import annotations

import math

from tilewright.kernels.cpu.schemas.strassen.plan import levels_of
from tilewright.kernels.cpu.schemas.strassen_half.plan import (
    predicted_error,
    strassen_half_choices,
)
from tilewright.machine.machine import Machine
from tilewright.model.cpu.strassen_half_time import predict_strassen_half
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.strassen import PRODUCTS
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.ops.winograd_half import LENIENT
from tilewright.search.cpu.rank import Candidate


def rank_strassen_half(
    group: Group, machine: Machine, threads: int, top: int, max_rel_err: float = DEFAULT_LIMIT,
    growth: float = math.inf,
) -> tuple[Candidate, ...]:  # fmt: skip
    """[Group, Machine] -> [Candidate], best first.

    `growth` is how many times as many weights there may be as the product has.
    """
    if not machine.half:
        return ()
    flat = flatten(group)
    found = [
        Candidate(schedule, predict_strassen_half(flat, schedule, machine))
        for schedule in strassen_half_choices(flat, machine.isa, threads)
        if (PRODUCTS / 4) ** levels_of(schedule) <= growth
        and predicted_error(flat, schedule) <= LENIENT * max_rel_err
    ]
    found.sort(key=lambda c: (c.prediction.seconds, c.schedule.digest))
    return tuple(found[:top])
