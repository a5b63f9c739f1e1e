"""From a convolution of whole numbers to ranked Winograd schedules, by modelling alone.

Goes in: a group, a machine, a thread count. Comes out: `Candidate`s, best first; none where what a
machine multiplies has no room for what is transformed. Results are exact, whatever the limit.
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.winograd_words.plan import winograd_words_choices
from tilewright.machine.machine import Machine
from tilewright.model.cpu.winograd_words_time import predict_winograd_words
from tilewright.ops.group import Group
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.search.cpu.rank import Candidate


def rank_winograd_words(
    group: Group, machine: Machine, threads: int, top: int, _max_rel_err: float = DEFAULT_LIMIT
) -> tuple[Candidate, ...]:
    """[Group, Machine] -> [Candidate], best first."""
    if machine.dot is None:
        return ()
    found = [
        Candidate(schedule, predict_winograd_words(group, schedule, machine))
        for schedule in winograd_words_choices(group, machine.isa, machine.dot.dtype, threads)
    ]
    found.sort(key=lambda c: (c.prediction.seconds, c.schedule.digest))
    return tuple(found[:top])
