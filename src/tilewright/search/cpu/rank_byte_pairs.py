"""From an integer product over channels to ranked schedules of bytes, by modelling alone.

Goes in: a group, a machine, a thread count. Comes out: `Candidate`s, best first; none on a machine
that multiplies whole numbers in other ways. Results are exact, whatever the limit.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.byte_pairs.plan import DTYPE, byte_pairs_choices
from tilewright.machine.machine import Machine
from tilewright.model.cpu.byte_pairs_time import predict_byte_pairs
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate


def rank_byte_pairs(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first."""
    if machine.dot is None or machine.dot.dtype != DTYPE:
        return ()
    flat = flatten(group)
    found = [
        Candidate(schedule, predict_byte_pairs(flat, schedule, machine))
        for schedule in byte_pairs_choices(flat, machine.isa, threads)
    ]
    found.sort(key=lambda c: (c.prediction.seconds, c.schedule.digest))
    return tuple(found[:top])
