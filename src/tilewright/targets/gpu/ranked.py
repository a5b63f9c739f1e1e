"""Schedules for a GPU in the order of a model's scores, learned or not; nothing is timed.

Goes in: a ranker (rank/rankers.py), a group, a GPU. Comes out: the best choices, in the ranker's
order: a population of schedules is bred by its scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import ScheduleError
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.time import is_priced
from tilewright.ops.group import Group
from tilewright.rank.rankers import Ranker
from tilewright.schedule.choice import Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright.search.gpu.strategies import search
from tilewright.targets.gpu.choose import choice_of

LOOKED_AT = 600


def ranked_by(
    ranker: Ranker, group: Group, machine: GpuMachine, top: int, seed: int
) -> tuple[Choice, ...]:
    """The best schedules by a model's scores, in its order; the same every time."""
    order: list[GpuSchedule] = []

    def taken(schedules: Sequence[GpuSchedule]) -> list[float | None]:
        order.extend(s for s in schedules if is_priced(group, s, machine))
        return [1.0] * len(schedules)

    search(
        moves(group, machine), taken, 'genetic', trials=4 * top, batch=4 * top, model=ranker,
        sampled=LOOKED_AT, seed=seed,
    )  # fmt: skip
    if not order:
        raise ScheduleError(f'{group.label}: no schedule for {machine.name} was found')
    return tuple(choice_of(group, schedule, machine) for schedule in order[:top])
