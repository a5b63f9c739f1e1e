"""The channels schema, `CHANNELS`: code.py says what is decided, plan.py what is legal."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import SPLITS, GpuSchema, Table, each
from tilewright.kernels.gpu.schemas.channels.code import generate
from tilewright.kernels.gpu.schemas.channels.counts import need, work
from tilewright.kernels.gpu.schemas.channels.plan import (
    BYTE_INTRINSICS,
    HALF_INTRINSICS,
    NAME,
    ROW_BYTES,
    is_served,
)
from tilewright.kernels.gpu.schemas.channels.space import COLUMNS, starts
from tilewright.ops.group import Group


def _windows(group: Group) -> list[str]:
    """Reductions that slide over the image."""
    reads = group.main.reads
    shared = {n for a in reads for e in a.index if len(e.terms) > 1 for n in e.names}
    return [d for d in group.main.reduction if d in shared and group.main.sizes[d] > 1]


def _table(group: Group, intrinsic: str) -> Table:
    intrinsics, item = (HALF_INTRINSICS, 2) if group.half else (BYTE_INTRINSICS, 1)
    if intrinsic not in intrinsics or not is_served(group):
        return {}
    window = len(_windows(group)) > 0
    kb = [size // item for size in ROW_BYTES]
    depths = each(kb=kb, split=SPLITS, near=(0, 1) if window else (0,))
    if intrinsic == intrinsics[0]:
        return each(
            bk=(16, 32, 64, 128, 256), bp=(16, 32, 64, 128, 256), tk=(16, 32, 64),
            tp=(16, 32, 64), stages=(2, 3, 4, 6),
        ) | depths  # fmt: skip
    ways = [(n, queue, 1) for n in (2, 3, 4, 5, 6) for queue in (1, 2) if n > queue]
    return {
        ('bk', 'tk'): [(n, n) for n in COLUMNS],
        **each(bp=(64, 128, 192, 256), tp=(64, 128)),
        ('stages', 'queue', 'bulk'): [*ways, (1, 1, 1), (3, 1, 0)],
        **depths,
        **each(cluster=(0, 1)),
    }


CHANNELS = GpuSchema(
    name=NAME,
    words='a matrix product of f16, bf16 or 8-bit numbers along contiguous channels',
    generate=generate,
    intrinsics={'mma_half': 2.0, 'wgmma_half': 3.0, 'mma_int8': 2.0, 'wgmma_int8': 3.0},
    half=True,
    integers=True,
    reserved=frozenset({'bits', 'chunk', 'come', 'full', 'owner', 'tiles', 'turn', 'unit', 'word'}),
    table=_table,
    starts=starts,
    pairs=(('bk', 'tk'), ('bp', 'tp'), ('bk', 'bp'), ('bk', 'split'), ('bp', 'split')),
    unsaid={'queue': 1, 'bulk': 0, 'near': 0, 'cluster': 0},
    need=need,
    work=work,
)
