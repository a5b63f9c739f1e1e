"""[Group, Schedule] -> [C source]: the table of schemas."""

from __future__ import annotations

from tilewright.codegen.cpu import general, outer
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

SCHEMAS = {'outer': outer.generate, 'general': general.generate}


def generate(group: Group, schedule: Schedule) -> str:
    """The C translation unit that computes `group` by `schedule`; deterministic."""
    return SCHEMAS[schedule.schema](group, schedule)


def compiler_flags(schedule: Schedule) -> tuple[str, ...]:
    return ISAS[schedule.isa].compiler_flags
