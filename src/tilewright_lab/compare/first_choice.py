"""A GPU schedule without any search: the most specialised schema that fits, with middling tiles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import contract, vector_candidates
from tilewright.kernels.gpu.schemas.depthwise.plan import NAME, kept_registers, plan, roles
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


def depthwise_schedules(group: Group, machine: GpuMachine) -> Iterator[GpuSchedule]:
    """The legal space on a machine: small tiles first; blocks of about 64 to 256 threads."""
    _, _, rows, columns = roles(group)
    seen = set()
    for th, tw, threads, shared in (
        (th, tw, threads, shared)
        for th in (1, 2, 4, 8)
        for tw in (1, 2, 4, 8)
        for threads in (64, 128, 256)
        for shared in (0, 1)
    ):
        down, across = -(-rows.outputs // th), -(-columns.outputs // tw)
        for bw in {min(across, wide) for wide in (4, 8, 16, 32, 64)}:
            for bh in {min(down, high) for high in (1, 2, 4, 8, 16)}:
                if bw * bh > threads:
                    continue
                made = GpuSchedule.of(
                    NAME, th=th, tw=tw, bh=bh, bw=bw, bp=threads // (bw * bh), shared=shared
                )
                if made not in seen and _fits(group, made, machine):
                    seen.add(made)
                    yield made


def _fits(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> bool:
    try:
        p = plan(group, schedule)
        machine.fits(NAME, p.threads, 4 * p.shared_floats, kept_registers(p))
    except ScheduleError:
        return False
    return True
