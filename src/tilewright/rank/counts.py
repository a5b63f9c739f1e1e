"""What the blocks of many schedules do, counted at once: arrays in the place of one `Work`.

Goes in: a `Batch`, schedules of one group and one schema as columns of decisions. Comes out: a
`Counts`, the fields of `Work` as arrays, and the tiles by level: by the schema's own formulas for
whole columns where it has some, else schedule by schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import lru_cache, partial

import numpy as np

from tilewright.kernels.gpu.columns import TILE_FIELDS, Array, Batch, Counts
from tilewright.kernels.gpu.registry import schema_named
from tilewright.kernels.gpu.work import Work
from tilewright.model.gpu.transactions import work
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule


def batches_of(group: Group, schedules: Sequence[GpuSchedule]) -> list[tuple[Batch, Array]]:
    """Schedules of any schemas as batches, each with the places that its rows had."""
    kinds: dict[tuple, list[int]] = {}
    for place, s in enumerate(schedules):
        kinds.setdefault((s.schema, s.intrinsic, *(n for n, _ in s.tiles)), []).append(place)
    return [
        (
            Batch(
                group, schema, intrinsic,
                {n: np.array([schedules[p].tiles[i][1] for p in places])
                 for i, n in enumerate(names)},
            ),
            np.array(places),
        )
        for (schema, intrinsic, *names), places in kinds.items()
    ]  # fmt: skip


def count(batch: Batch) -> Counts:
    """[Batch] -> [Counts]; raises ScheduleError where a schedule is not legal."""
    return (schema_named(batch.schema).count_many or _one_by_one)(batch)


@lru_cache(maxsize=64)
def _counter(group: Group) -> Callable[[GpuSchedule], Work]:
    """`work` of a group's schedules, remembered: a population is scored again every generation, and
    some schemas are counted from the source that they generate.
    """
    return lru_cache(maxsize=1 << 13)(partial(work, group))


def _one_by_one(batch: Batch) -> Counts:
    counted_once = _counter(batch.group)
    done = [counted_once(batch.schedule(row)) for row in range(len(batch))]
    none = np.zeros(len(batch))
    named = schema_named(batch.schema).levels
    counted = {f.name for f in fields(Counts)} & {f.name for f in fields(Work)}
    return Counts(
        **{name: np.array([getattr(one, name) for one in done]) for name in counted},
        tiles={
            name: np.asarray(batch.tiles.get(named.get(name, ''), none)) for name in TILE_FIELDS
        },
        staged_rows=none, staged_columns=none, depth=np.asarray(batch.tiles.get('kb', none)),
    )  # fmt: skip
