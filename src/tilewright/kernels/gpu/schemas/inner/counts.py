"""What a block of the schema of inner products takes and does, counted from its plan."""

from __future__ import annotations

from tilewright.kernels.gpu.schemas.inner.plan import InnerPlan, plan
from tilewright.kernels.gpu.work import ADDED, CUT_INSTRUCTIONS, WARP, Need, Work, matrix_code
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

OTHER_REGISTERS = 40  # beside operands and sums: addresses, bounds, counters
PLACED = 4  # instructions around a copy: whether its row is there, where it goes
BOUNDED = 14  # instructions of an element whose row decides whether it is outside
DECODED = 12  # instructions of a thread for each piece: where its depth lies in an operand


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]"""
    return _need(plan(group, schedule))


def _need(p: InnerPlan) -> Need:
    columns, rows = p.own
    fragments = (p.tp // 8 * 2 + p.tk // 16 * 4) * 2
    tall, wide = p.tiles
    return Need(
        p.threads, 4 * p.stages * p.pitch * (p.bk + p.bp),
        columns * rows + fragments + OTHER_REGISTERS + (rows * 2 if p.fresh else 0),
        tall * wide * p.groups * p.split, p.split,
        tall * p.bk * wide * p.bp / (p.roles.tall.count * p.roles.wide.count),
        p.kb // 8 * matrix_code(p.tk, p.tp),
    )  # fmt: skip


def work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """[Group, GpuSchedule] -> [Work]"""
    p = plan(group, schedule)
    wanted = _need(p)
    warps = p.threads // WARP
    depth = p.share * p.kb
    across, down = p.tp // 8, p.tk // 16
    steps = warps * depth / 8
    reads = steps * (across * 2 + down * 4)
    copies = sum(depth * count / p.run(operand) / WARP for _, operand, count in p.sides)
    # Neighbours that lie two apart come with those between them.
    inner = p.roles.depth[-1][0]
    copied = sum(4.0 * depth * count * operand.strides[inner] for _, operand, count in p.sides)
    other = reads * CUT_INSTRUCTIONS + PLACED * copies + 2 * DECODED * p.share * warps
    other += ADDED * steps * 3 * across * down if p.fresh else 0.0
    other += sum(BOUNDED * depth * count / WARP for _, operand, count in p.sides if operand.each)
    tile = 4.0 * p.bk * p.bp
    shared = p.split > 1
    return Work(
        wanted.blocks, p.split, p.threads, registers or wanted.registers, wanted.shared_bytes,
        p.stages, p.share, 0.0, steps * 3 * across * down, reads, reads, copies, copied, other,
        tile, 0.0, extra_kernels=int(shared),
        extra_bytes=8.0 * p.split * p.results if shared else 0.0,
    )  # fmt: skip
