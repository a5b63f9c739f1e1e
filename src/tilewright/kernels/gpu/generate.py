"""[Group, GpuSchedule] -> [Module], by the schema that the schedule names."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import safe_iterators
from tilewright.kernels.gpu.module import Module, joined, with_own_dims
from tilewright.kernels.gpu.registry import BESIDE, FALLBACK, schema_named
from tilewright.kernels.gpu.schema import RESERVED, GpuSchema
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.gpu import GpuSchedule


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """The kernels that compute `group` by `schedule`; deterministic.

    A group of several parts (ops/parts.py) becomes as many kernels or more, with buffers for what
    is stored between them: the schedule is that of the part with the main stage, the others are
    general; some schemas take all parts themselves. Parts that need no input run once, ahead.
    """
    schema = schema_named(schedule.schema)
    group = with_own_dims(group)
    if schema.whole:
        return schema.generate(group, schedule)
    if not schema.takes(group):
        kinds = (
            'f16 or bf16' if schema.half else 'float32, f16 and bf16' if schema.both else 'float32'
        )
        raise ScheduleError(
            f'{group.label}: {schema.name} computes {kinds} at affine indices only; use '
            f'{FALLBACK.name}'
        )
    return joined(
        group,
        [
            _part(schema, part, schedule) if group.main in part.stages
            else FALLBACK.generate(part, BESIDE)
            for part in parts_by(schema, group)
        ],
    )  # fmt: skip


def parts_by(schema: GpuSchema, group: Group) -> tuple[Group, ...]:
    """The parts that a schema computes one by one (ops/parts.py)."""
    return (group,) if schema.front and has_front(group) else parts(group)


def _part(schema: GpuSchema, group: Group, schedule: GpuSchedule) -> Module:
    safe = _with_safe_names(group, schema.reserved)
    return replace(schema.generate(safe, schedule), group=group)


@lru_cache(maxsize=256)
def _with_safe_names(group: Group, reserved: frozenset[str]) -> Group:
    return safe_iterators(group, RESERVED | reserved)[0]
