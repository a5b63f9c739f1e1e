"""Where searches of the channels schema begin: tiles that fill a machine, deep pipelines.

Goes in: a group and a machine. Comes out: legal schedules, in no order. Few decisions matter at
once: rows and columns of a block, and how many blocks share a depth so that all multiprocessors
have one. Random draws and single changes seldom meet the best of these together.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.language import LARGEST_CLUSTER
from tilewright.kernels.gpu.schema import SPLITS
from tilewright.kernels.gpu.schemas.channels.plan import (
    BYTE_INTRINSICS,
    HALF_INTRINSICS,
    NAME,
    ROW_BYTES,
    ChannelsPlan,
    is_served,
    plan,
)
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

COLUMNS = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)  # of warpgroups
WIDE_ROWS = ((64, 64), (128, 64), (128, 128))  # of a block, of a warpgroup
SMALL = ((32, 16), (64, 16), (128, 16), (32, 32), (64, 32), (32, 64))  # columns, rows of a block
DEEPEST = 6  # pieces in shared memory
HELD_SHARE = 0.85  # of a multiprocessor's shared memory that pieces may take


def starts(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """[Group, GpuMachine] -> [GpuSchedule]"""
    if not is_served(group):
        return ()
    return tuple(dict.fromkeys(_all(group, machine)))


def _all(group: Group, machine: GpuMachine) -> Iterator[GpuSchedule]:
    small, wide = HALF_INTRINSICS if group.half else BYTE_INTRINSICS
    item = DTYPES[group.half] if group.half else 1
    kb = ROW_BYTES[-1] // item
    near = int(any(len(e.terms) > 1 for read in group.main.reads for e in read.index))
    for bk in COLUMNS:
        for bp, tp in WIDE_ROWS:
            piece = (bp + bk) * ROW_BYTES[-1]
            stages = min(int(HELD_SHARE * machine.shared_bytes_per_block) // piece, DEEPEST)
            tiles = {
                'bk': bk, 'tk': bk, 'bp': bp, 'tp': tp, 'stages': stages, 'queue': 2, 'bulk': 1,
                'kb': kb, 'split': 1, 'near': near, 'cluster': 0,
            }  # fmt: skip
            yield from _filling(group, machine, wide, tiles)
    for bk, bp in SMALL:
        tiles = {
            'bk': bk, 'bp': bp, 'tk': 16, 'tp': 16, 'stages': 4, 'kb': kb, 'split': 1, 'near': near
        }  # fmt: skip
        yield from _filling(group, machine, small, tiles)


def _filling(
    group: Group, machine: GpuMachine, intrinsic: str, tiles: dict[str, int]
) -> Iterator[GpuSchedule]:
    """Without a split, and with the two largest ones whose blocks all run at once."""
    alone = GpuSchedule.of(NAME, intrinsic, **tiles)
    try:
        p = plan(group, alone)
    except ScheduleError:
        return
    if _wastes(p):
        return
    yield alone
    clusters = 'cluster' in tiles
    joined = {'cluster': 1} if clusters else {}
    fitting = [
        n for n in SPLITS
        if 1 < n <= min(p.iterations, machine.multiprocessors // p.tiles)
        and (not clusters or n <= LARGEST_CLUSTER)
    ]  # fmt: skip
    for n in fitting[-2:]:
        yield GpuSchedule.of(NAME, intrinsic, **{**tiles, 'split': n, **joined})


def _wastes(p: ChannelsPlan) -> bool:
    """Whether a block has twice as many columns as there are."""
    return p.bk >= 2 * max(p.columns, 16)
