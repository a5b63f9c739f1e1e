"""Schedules of the dfg schema: values of each decision for a search, and some without one.

Goes in: a group of several reducing stages, which only this schema keeps together. Comes out: the
table that searches walk; the schedules that keep a machine's multiprocessors busy for the shortest
time, by the counts of a coarse grid.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schema import Table, each
from tilewright.kernels.gpu.schemas.dfg.counts import work_of
from tilewright.kernels.gpu.schemas.dfg.fragments import COLUMNS
from tilewright.kernels.gpu.schemas.dfg.plan import BLOCK, NAME, check_fits, plan
from tilewright.kernels.gpu.schemas.dfg.segment import LEAST_COLUMNS, ordered
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.attention import why_no_attention
from tilewright.ops.chain import is_chained
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.gpu import GpuSchedule

PROPOSED = 4
MOST_EARLY = (
    65536  # bytes of constants that are proposed to be copied ahead without a second thought
)
SLID = ((1, 1), (2, 1), (4, 1), (8, 1), (1, 4), (2, 4), (4, 4))  # outputs of a thread


def table(group: Group, intrinsic: str) -> Table:
    """Values of each decision, for groups that only this schema keeps together."""
    return decisions(group, intrinsic) if _is_own(group) else {}


def _is_own(group: Group) -> bool:
    """Whether no other schema keeps it together: rows of scores do not fit where they are long."""
    return is_chained(group) and group.is_plain and why_no_attention(group) != ''


def decisions(group: Group, intrinsic: str) -> Table:
    """Values of each decision, for any group."""
    matrix = intrinsic != 'fma'
    if matrix and not any(_has_columns(stage) for stage in group.stages):
        return {}
    alone = each(
        **_tiles(group), threads=(64, 128, 256, 512),
        tk=(16, 32, 64) if matrix else (1, 2, 4, 8, 16),
        tp=(8, 16, 32, 64) if matrix else (1, 2, 4, 8), format=(0, 1, 3),
    )  # fmt: skip
    pieces = [(ci, cw, n) for ci, cw, n in itertools.product((4, 8, 16, 32), (0, 1), (1, 2))]
    pieces += [(ci, 0, 1) for ci in (64, 256)]
    if not _has_columns(next(s for s in group.stages if s.combiner)):
        pieces = [one for one in pieces if one[1]]  # only weights of later products are copied
    more = {('ci', 'cw', 'stages'): [(0, 0, 1), *pieces], ('sh', 'sw'): SLID}
    walks = list(itertools.product((0, 1), _walks(group) if matrix else [0]))
    return alone | more | {('early', 'hc'): walks}


def _walks(group: Group) -> list[int]:
    """Parts of the last product's sum for which the stages before it may be computed."""
    last = next((s for s in reversed(group.stages) if s.combiner), None)
    if last is None or not last.is_product_sum or not last.reduction:
        return [0]
    size = max(last.sizes[d] for d in last.reduction)
    return [0, *(n for n in range(COLUMNS, size, COLUMNS) if size % n == 0)]


def _has_columns(stage: Stage) -> bool:
    """Whether it may be a product for matrix instructions: both operands have dimensions of their
    own.
    """
    if not stage.is_product_sum:
        return False
    one, other = ({n for e in a.index for n in e.names} & set(stage.parallel) for a in stage.reads)
    return all(
        math.prod(stage.sizes[n] for n in own) >= LEAST_COLUMNS
        for own in (one - other, other - one)
    )


def _tiles(group: Group) -> dict[str, list[int]]:
    """Sizes of a tile along the last four dimensions of the result: powers of two, shares of it."""
    last = group.stages[-1]
    dims = ordered(last)[-len(BLOCK) :]
    found = {}
    for name, d in zip(BLOCK[-len(dims) :], dims, strict=True):
        size = last.sizes[d]
        shares = [-(-size // n) for n in (1, 2, 4)]
        found[name] = sorted({n for n in (1, 2, 4, 8, 16, 32, 64, *shares) if n <= size})
    return found


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """Few schedules for groups that only this schema keeps together, those that keep the machine's
    multiprocessors busy for the shortest time first.
    """
    if not _is_own(group):
        return ()
    found: dict[GpuSchedule, float] = {}
    known = set()
    for values in _coarse(group, machine):
        intrinsic = 'mma_tf32x3' if values['tk'] >= COLUMNS else 'fma'
        schedule = GpuSchedule.of(NAME, intrinsic, **values)
        try:
            p = plan(group, schedule)
            check_fits(p, machine.shared_bytes_per_block)
        except ScheduleError:
            continue
        done = work_of(p)
        if done not in known:  # decisions for stages that the group does not have
            known.add(done)
            found[schedule] = _cycles(done, machine)
    return tuple(sorted(found, key=lambda s: found[s])[:PROPOSED])


def _coarse(group: Group, machine: GpuMachine) -> Iterable[Mapping[str, int]]:
    """Large and small tiles of channels, rows and columns, each with some threads."""
    last = group.stages[-1]
    dims = ordered(last)[-len(BLOCK) :]
    names = BLOCK[-len(dims) :]
    options = []
    for name, d in zip(names, dims, strict=True):
        size = last.sizes[d]
        few = {'bn': (1,), 'bk': (size, 32), 'bh': (2, 4, 8, 16), 'bw': (size, 8, 16)}[name]
        options.append(sorted({min(n, size) for n in few}))
    matrix = machine.has('mma_tf32x3') and any(map(_has_columns, group.stages))
    names = (*names, 'threads', 'tk', 'tp', 'ci', 'sh', 'sw', 'early', 'hc', 'format')
    if matrix:
        slides = [(4, 1), (4, 4)] if any(map(_has_windows, group.stages)) else [(1, 1)]
        walks = [n for n in _walks(group) if n in (0, 48, 64)]
        constants = sum(t.bytes for t in group.with_role('constant'))
        early = (1,) if constants <= MOST_EARLY else (0, 1)
        shares = [
            (threads, 64, 32, 0, sh, sw, now, hc, 3)
            for threads, (sh, sw), now, hc in itertools.product((128, 256), slides, early, walks)
        ]
    else:
        shares = [
            (threads, tk, 4, ci, 1, 1, 0, 0, 0)
            for threads, tk, ci in itertools.product((128, 256), (8, 4), (0, 8))
        ]
    for tile, share in itertools.product(itertools.product(*options), shares):
        yield dict(zip(names, (*tile, *share), strict=True))


def _has_windows(stage: Stage) -> bool:
    """Whether its outputs may slide over what they read."""
    return stage.combiner is not None and not _has_columns(stage)


def _cycles(done: Work, machine: GpuMachine) -> float:
    """Cycles of the busiest multiprocessor, roughly: what its blocks start, and what they wait."""
    resident = max(
        1,
        min(
            machine.threads // done.threads,
            machine.shared_bytes // max(done.shared_bytes, 1),
            machine.registers // (done.registers * done.threads),
        ),
    )
    busiest = -(-done.blocks // machine.multiprocessors)
    waves = -(-busiest // resident)
    busy = max(done.instructions / 4, done.wavefronts, done.matrix * 2)
    return busiest * busy + waves * (done.pieces * 300 + (done.waits or 0.0) * 600)
