"""[Group, GpuSchedule] -> [Module]: the table of schemas."""

from __future__ import annotations

from dataclasses import replace

from tilewright.codegen.cpu.names import safe_iterators
from tilewright.codegen.gpu import general, tiled
from tilewright.codegen.gpu.module import Module
from tilewright.errors import ScheduleError
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

SCHEMAS = {'general': general.generate, 'tiled': tiled.generate}

# Identifiers that the schemas use themselves, and words of the target languages.
_WORDS = """
a acc arrived asm at b base begin bool break case channel char column const continue counter default
do double e else end extern first float for from goto group half high i if inline int j kernel lane
last local long low mine next now out part partial point private q register return row short signed
sizeof static step struct switch there tile to typedef union unsigned v value void volatile warp
while whole window x y expf fabsf fmaxf fminf sqrtf tanhf
"""
_TAKEN = frozenset(_WORDS.split())


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """The kernels that compute `group` by `schedule`; deterministic."""
    if schedule.schema not in SCHEMAS:
        raise ScheduleError(
            f'{schedule.schema!r} is not a GPU schema; choose one of {", ".join(SCHEMAS)}'
        )
    other = [t.name for t in group.tensors if t.dtype != 'f32']
    if other:
        raise ScheduleError(f'{group.label}: {other} are not f32, the only dtype generated')
    if group.stages[0] is not group.main:
        raise ScheduleError(f'{group.label}: stages before {group.main.name} cannot be generated')
    safe, _ = safe_iterators(group, _TAKEN)
    return replace(SCHEMAS[schedule.schema](safe, schedule), group=group)
