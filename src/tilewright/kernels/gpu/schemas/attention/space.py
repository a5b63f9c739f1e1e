"""Schedules of the attention schema: values of each decision for a search, and some without one."""

from __future__ import annotations

import itertools

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schema import Table, each
from tilewright.kernels.gpu.schemas.attention.counts import need_of, work
from tilewright.kernels.gpu.schemas.attention.plan import NAME, plan
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.attention import ROW, read_attention, why_no_attention
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

PROPOSED = 4
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


def table(group: Group, intrinsic: str) -> Table:
    """Values of each decision; none for groups that are not an attention."""
    if why_no_attention(group):
        return {}
    rows = read_attention(group).sizes[ROW]
    return each(
        bi=[n for n in ROWS if n < 2 * rows], bj=(16, 32, 64, 128), ti=(1, 2, 4, 8),
        lanes=(4, 8, 16, 32, 64), wide=(1,),
    )  # fmt: skip


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """Those whose blocks take the fewest cycles; the last moves one element at a time."""
    if why_no_attention(group):
        return ()
    values = table(group, 'fma')
    found: dict[GpuSchedule, float] = {}
    for chosen in itertools.product(*values.values()):
        tiles = {n: v for names, one in zip(values, chosen, strict=True)
                 for n, v in zip(names, one, strict=True)}  # fmt: skip
        schedule = GpuSchedule.of(NAME, **tiles)
        try:
            needs = need_of(plan(group, schedule))
        except ScheduleError:
            continue
        if needs.broken(machine) or needs.threads < 64:
            continue
        done = work(group, schedule, None)
        resident = max(1, machine.shared_bytes // max(done.shared_bytes, 1))
        waves = -(-done.blocks // (machine.multiprocessors * min(resident, 4)))
        busy = max(done.instructions / 4, done.wavefronts)
        found[schedule] = waves * min(resident, 4) * busy
    best = sorted(found, key=lambda s: found[s])[:PROPOSED]
    return (*best, *(GpuSchedule.of(NAME, **{**dict(s.tiles), 'wide': 0}) for s in best[:1]))
