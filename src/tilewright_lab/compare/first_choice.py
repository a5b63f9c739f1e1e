"""A GPU schedule without any search: the most specialised schema that fits, with middling tiles."""

from __future__ import annotations

import math

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import contract, vector_candidates
from tilewright.kernels.gpu.schemas.depthwise.plan import schedules as depthwise_schedules
from tilewright.kernels.gpu.schemas.transposed import code as transposed
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule


def first_choice(group: Group, machine: GpuMachine) -> GpuSchedule:
    """What a GPU would be given if nothing were searched or measured."""
    if transposed.pays(group):
        return GpuSchedule.of('transposed', side=32, rows=8)
    for choice in (_depthwise, _tiled):
        schedule = choice(group, machine)
        if schedule is not None:
            return schedule
    return general_choice(group, machine)


def general_choice(group: Group, machine: GpuMachine) -> GpuSchedule:
    """The fallback; lanes share reductions where there are too few points for the device."""
    stage = group.main
    points = math.prod(stage.sizes[d] for d in stage.parallel)
    length = math.prod(stage.sizes[d] for d in stage.reduction)
    lanes = 1
    while lanes < 128 and points * lanes < machine.multiprocessors * 256 and 4 * lanes < length:
        lanes *= 2
    return GpuSchedule.of('general', threads=128, lanes=lanes)


def _depthwise(group: Group, machine: GpuMachine) -> GpuSchedule | None:
    """Four columns and two rows a thread, blocks of about 128 threads."""
    try:
        space = depthwise_schedules(group, machine)
        wanted = [s for s in space if (s['th'], s['tw'], s['shared']) == (2, 4, 0)]
    except ScheduleError:
        return None
    near = sorted(wanted, key=lambda s: (abs(s['bp'] * s['bh'] * s['bw'] - 128), -s['bw']))
    return near[0] if near else None


def _tiled(group: Group, machine: GpuMachine) -> GpuSchedule | None:
    """Tiles no larger than the problem, and the depth split where there are too few of them."""
    candidates = vector_candidates(group)
    if not candidates:
        return None
    c = contract(group, candidates[0])
    sizes = group.main.sizes
    rows = math.prod(sizes[d] for d in c.pixels)
    channels = sizes[c.loop] if c.loop else 1
    windows = math.prod(sizes[d] for d in (*c.outer, *c.unrolled))
    bk = 64 if sizes[c.vector] > 32 else 32 if sizes[c.vector] > 16 else 16
    bp = 64 if rows > 32 else 32 if rows > 16 else 8
    kb, joint = 8, channels % 8 != 0 and channels < 32
    pieces = -(-windows * channels // kb) if joint else windows * -(-channels // kb)
    tiles = -(-sizes[c.vector] // bk) * -(-rows // bp) * math.prod(sizes[d] for d in c.batch)
    split = max(1, min(machine.multiprocessors * 2 // tiles, pieces // 8, 16))
    return GpuSchedule.of(
        'tiled', bk=bk, bp=bp, tk=4, tp=4, kb=kb, stages=2, split=split, joint=int(joint)
    )
