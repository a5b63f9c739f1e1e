"""[Group, Schedule] -> [C source], by the schema that the schedule names."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import safe_names
from tilewright.kernels.cpu.schema import SCHEMAS, CpuSchema
from tilewright.machine.isa import ISAS
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def check(group: Group, schedule: Schedule) -> CpuSchema:
    """The schema; ScheduleError for what none can generate. Its plan adds checks of its own."""
    for table, name in ((SCHEMAS, schedule.schema), (ISAS, schedule.isa)):
        if name not in table:
            raise ScheduleError(table.unknown(name))
    schema = SCHEMAS[schedule.schema]
    lacks = schema.lacks(group, ISAS[schedule.isa], (schedule.dtype, schedule.accumulation))
    if lacks:
        raise ScheduleError(f'{group.label}: {lacks}')
    cut = [name for name, _ in schedule.parallel]
    if len(set(cut)) < len(cut):
        raise ScheduleError(
            f'{group.label}: parallel={schedule.parallel} cuts a dimension twice; give each '
            f'dimension one number of ways'
        )
    return schema


def generate(group: Group, schedule: Schedule) -> str:
    """The C translation unit that computes `group` by `schedule`; deterministic."""
    plan = planned(group, schedule)
    return SCHEMAS[schedule.schema].generate(plan)


def planned(group: Group, schedule: Schedule) -> Any:
    """What `generate` decides before it writes a line: much less work than the lines; ScheduleError
    where the schedule is not legal.
    """
    return _plan(check(group, schedule).plan, group, schedule)


@lru_cache(maxsize=8)
def _plan(plan: Callable[[Group, Schedule], Any], group: Group, schedule: Schedule) -> Any:
    """Kept for a while: what was found to be legal is often generated next."""
    return plan(*safe_names(tiled_form(group, schedule.reg.tile), schedule))


def compiler_flags(schedule: Schedule) -> tuple[str, ...]:
    isa = ISAS[schedule.isa]
    dot = isa.dot(schedule.dtype)
    more = dot.compiler_flags if dot else ()
    return (*isa.compiler_flags, *more, *SCHEMAS[schedule.schema].flags)
