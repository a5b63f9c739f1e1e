"""The GPU design space: what a machine allows of a schema, and schedules drawn from the rest.

Goes in: a group, a machine and the name of a schema. Comes out: legal schedules, all of them or a
seeded sample, and how many each limit excluded. Which values are sampled, and what a block takes,
is said by the schema (`GpuSchema.sampled`, `need`).

tilewright_lab/collect/cnnopt_space.py has the complete space of CNNOpt's kernels under that paper's
conventions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.precision import precise
from tilewright.kernels.gpu.registry import GPU_SCHEMAS, schema_named
from tilewright.kernels.gpu.work import Need
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

LARGEST_WASTE = 2.0  # a tile may compute at most this much more than the result has
LARGEST_CODE = 2048  # instructions of one piece; more take seconds to compile, and leave caches
MOST_PARTS = 4096  # blocks beyond which a reduction is not split further


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]; raises ScheduleError where the schema refuses."""
    return schema_named(schedule.schema).count_need(group, schedule)


def sampled_kinds() -> list[tuple[str, str]]:
    """(schema, intrinsic) of all that can be sampled."""
    return [
        (schema.name, intrinsic) for schema in GPU_SCHEMAS.values() for intrinsic in schema.sampled
    ]


def choices_of(schema: str, intrinsic: str) -> Mapping[str, Sequence]:
    """Values of each choice of a schema."""
    sampled = schema_named(schema).sampled
    if intrinsic not in sampled:
        raise ScheduleError(
            f'{schema} by {intrinsic} is not sampled; choose one of '
            f'{", ".join(" by ".join(kind) for kind in sampled_kinds())}'
        )
    return sampled[intrinsic]


def _schedule(schema: str, intrinsic: str, values: Mapping) -> GpuSchedule:
    return GpuSchedule.of(schema, intrinsic, **schema_named(schema).decided(values))


def excluded(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> str | None:
    """Why a schedule is not in the space: limits of the machine, errors, waste; None if it is."""
    if not machine.has(schedule.intrinsic):
        return 'instructions'
    if not precise(group, schedule):
        return 'precision'
    try:
        wanted = need(group, schedule)
    except ScheduleError:
        return 'the schema'
    limit = wanted.broken(machine)
    if limit is None and wanted.code > LARGEST_CODE:
        limit = 'code size'
    if limit is None and wanted.computed > LARGEST_WASTE:
        limit = 'waste'
    if limit is None and wanted.split > 1 and wanted.blocks > MOST_PARTS:
        limit = 'too many parts'
    return limit


def draw(
    group: Group, machine: GpuMachine, schema: str, intrinsic: str, count: int, seed: int
) -> tuple[list[GpuSchedule], Counter[str]]:
    """(distinct schedules of the space, how many others each limit excluded), the same for a seed.

    Fewer than `count` where the space is small or nearly all of it excluded.
    """
    choices = choices_of(schema, intrinsic)
    random = Random(f'{seed} {schema} {intrinsic} {group.label}')
    found: dict[GpuSchedule, None] = {}
    reasons: Counter[str] = Counter()
    seen: set[GpuSchedule] = set()
    size = math.prod(len(values) for values in choices.values())
    for _ in range(min(200 * count, 20 * size)):
        if len(found) >= count or len(seen) == size:
            break
        values = {name: random.choice(options) for name, options in choices.items()}
        schedule = _schedule(schema, intrinsic, values)
        if schedule in seen:
            continue
        seen.add(schedule)
        reason = excluded(group, schedule, machine)
        if reason is None:
            found[schedule] = None
        else:
            reasons[reason] += 1
    return list(found), reasons
