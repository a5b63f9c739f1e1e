"""Schedules of the attention schema: values of each decision for a search, and some without one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schema import Table, each
from tilewright.kernels.gpu.schemas.attention.counts import need_of, work
from tilewright.kernels.gpu.schemas.attention.plan import INTRINSICS, NAME, plan
from tilewright.kernels.gpu.work import WARP, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.attention import ROW, read_attention, why_no_attention
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

PROPOSED, PROPOSED_HALVES = (
    4,
    16,
)  # kernels of halves are a tenth apart where they are counted alike
# Fitted to 44 kernels of f16 on an H200, BERT's and ViT's at batch 1; they deviate by 9%. Cycles
# of an instruction of a warp that waits for the one before it, of one where all warps have some, to
# add up what one more warp has of the same rows; bytes from L2 in a cycle of a multiprocessor.
CHAIN_CYCLES, ISSUE_CYCLES, JOIN_CYCLES, L2_BYTES = 1.8, 1.6, 1140.0, 63.0
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


def table(group: Group, intrinsic: str) -> Table:
    """Values of each decision; none for groups that are not an attention."""
    if why_no_attention(group):
        return {}
    rows = read_attention(group).sizes[ROW]
    if intrinsic == 'mma_half' and not group.half:
        return {}
    if intrinsic != 'fma':
        # Halves of all keys of a short sequence fit shared memory: they are asked for at once.
        many = (96, 192, 224, 256, 384) if intrinsic == 'mma_half' else ()
        return each(
            bi=[n for n in (16, 32, 64, 128) if n < rows + 16], bj=(16, 32, 64, 128, *many),
            ti=(16, 32), lanes=(WARP,), share=(1, 2, 4), wide=(1,),
        )  # fmt: skip
    return each(
        bi=[n for n in ROWS if n < 2 * rows], bj=(16, 32, 64, 128), ti=(1, 2, 4, 8),
        lanes=(4, 8, 16, 32, 64), wide=(1,),
    )  # fmt: skip


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """Those whose blocks take the fewest cycles; the last moves one element at a time."""
    if why_no_attention(group):
        return ()
    found: dict[GpuSchedule, float] = {}
    for schedule in _all(group, machine):
        try:
            needs = need_of(plan(group, schedule))
        except ScheduleError:
            continue
        if needs.broken(machine) or needs.threads < 64:
            continue
        done = work(group, schedule, None)
        halves = schedule.intrinsic == 'mma_half'
        sharing = dict(schedule.tiles).get('share', 1)
        found[schedule] = (
            _half_cycles(done, machine, sharing) if halves else _cycles(done, machine)
        )  # fmt: skip
    best = sorted(found, key=lambda s: found[s])
    best = best[: PROPOSED_HALVES if best and best[0].intrinsic == 'mma_half' else PROPOSED]
    narrow = (GpuSchedule.of(NAME, s.intrinsic, **{**dict(s.tiles), 'wide': 0}) for s in best[:1])
    return (*best, *narrow)


def _busy(done: Work) -> float:
    """Cycles that a block keeps a multiprocessor busy."""
    return max(done.instructions / 4, done.wavefronts, 2 * done.matrix)


def _cycles(done: Work, machine: GpuMachine) -> float:
    resident = min(max(1, machine.shared_bytes // max(done.shared_bytes, 1)), 4)
    return -(-done.blocks // (machine.multiprocessors * resident)) * resident * _busy(done)


def _half_cycles(done: Work, machine: GpuMachine, sharing: int) -> float:
    """Of kernels of halves, which take some microseconds: what each block waits for, a warp's
    instructions one after the other and the joining of its sums, and what all of them move.
    """
    resident = max(1, min(
        machine.shared_bytes // max(done.shared_bytes, 1),
        machine.registers // (done.threads * done.registers),
    ))  # fmt: skip
    layers = math.ceil(done.blocks / (machine.multiprocessors * resident))
    busiest = math.ceil(done.blocks / machine.multiprocessors)
    waiting = done.instructions / done.warps * CHAIN_CYCLES + (sharing - 1) * JOIN_CYCLES
    moving = done.instructions / 4 * ISSUE_CYCLES + done.copied / L2_BYTES
    return layers * waiting + busiest * moving


def _all(group: Group, machine: GpuMachine) -> Iterator[GpuSchedule]:
    for intrinsic in INTRINSICS:
        values = table(group, intrinsic) if machine.has(intrinsic) else {}
        names = [name for (name,) in values]
        for chosen in itertools.product(*values.values()):
            tiles = (one for (one,) in chosen)
            if values:
                yield GpuSchedule.of(NAME, intrinsic, **dict(zip(names, tiles, strict=True)))
