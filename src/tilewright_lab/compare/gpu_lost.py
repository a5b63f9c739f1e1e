"""Work whose process may be lost: what both runs of measurements do with its results.

Goes in: a future of a crew (runtime/pool.py) and what it was given. Comes out: what it made, or
what stands for it: schedules that nobody compiled are `refused`; of schedules that nobody measured,
the one that ends a process is `crashed`, found by trying again in smaller parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

from tilewright.errors import TilewrightError
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.gpu_measure import Compiled

Of = TypeVar('Of')
Measured = TypeVar('Measured')


def compiled_or_refused(
    future: Future[list[Compiled[Of]]], of: Of, schedules: Iterable[GpuSchedule]
) -> list[Compiled[Of]]:
    """What was compiled. Where the process was lost, all schedules are refused."""
    try:
        return future.result()
    except TilewrightError as error:
        return [Compiled(of, b'', (), (), tuple((s, str(error)) for s in schedules))]


def rows_or_again(
    future: Future[list[Measured]],
    made: Compiled[Of],
    row: Callable[[Of, GpuSchedule, str], Measured],
    again: Callable[[Compiled[Of]], object],
    say: Callable[[str], object],
) -> list[Measured]:
    """What was measured. Where the process was lost, smaller parts go to `again`, to know which.

    row   a row of a schedule without a time, with its status
    """
    try:
        return future.result()
    except TilewrightError as error:
        say(f'{made.of}: {error}')
    if len(made.schedules) > 1 and made.parts:
        for part in made.smaller():
            again(part)
        return [row(made.of, schedule, 'refused') for schedule, _ in made.refused]
    return [row(made.of, schedule, 'crashed') for schedule in made.schedules]
