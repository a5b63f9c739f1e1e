"""What a GPU schedule does and moves, as its schema counts it (kernels/gpu/work.py).

Goes in: a group and a schedule of any schema. Comes out: a `Work`, counts for one block in warp
instructions and bytes, and how many blocks there are; the bytes that pass through memory.
"""

from __future__ import annotations

from tilewright.kernels.gpu.registry import schema_named
from tilewright.kernels.gpu.schema import Detour
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule


def work(group: Group, schedule: GpuSchedule, registers: int | None = None) -> Work:
    """[Group, GpuSchedule] -> [Work]; `registers` of a thread as the compiler counted them."""
    return schema_named(schedule.schema).count_work(group, schedule, registers)


def detour(group: Group, schedule: GpuSchedule) -> Detour:
    """[Group, GpuSchedule] -> [Detour]: the group's own operations where there is none."""
    counted = schema_named(schedule.schema).detour
    return Detour(group.flops, ()) if counted is None else counted(group, schedule)


def memory_bytes(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> int:
    """Bytes that pass through memory where L2 cannot hold them: tensors once; what kernels leave
    for each other is written and read, unless it fits L2 with what a kernel moves beside it.
    """
    between = detour(group, schedule).between
    left = sum(2 * own for own, beside in between if own + beside > machine.l2_bytes)
    return group.compulsory_bytes + left
