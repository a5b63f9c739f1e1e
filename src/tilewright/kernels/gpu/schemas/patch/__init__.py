"""The schemas `PATCH` and `STRIP`: code.py says what their decisions mean, plan.py which are legal.

The image under a block lies in shared memory once, for all windows; a strip's pixels follow each
other through rows and images, a patch has an extent along each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.kernels.gpu.schema import SPLITS, GpuSchema, Probe, Table, each
from tilewright.kernels.gpu.schemas.patch import plan
from tilewright.kernels.gpu.schemas.patch.code import generate
from tilewright.kernels.gpu.schemas.patch.counts import need, tiling, work
from tilewright.ops.group import Group

# Pieces in flight with, for two precisions, `late` and `bulk`.
WAYS = [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 1, 1), (3, 1, 1), (4, 1, 1)]
_TWO = {'queue': 1, 'stages': 3, 'late': 1, 'bulk': 1}
_PROBED = {'kb': 8, 'stages': 2, 'split': 2, 'joint': 0, 'bn': 1, 'bh': 7}


def _table(group: Group, intrinsic: str) -> Table:
    """Warps; of warpgroups, all columns of a block belong to each, 64 pixels to each tile."""
    table = _of_warps(group)
    if not intrinsic.startswith('wgmma'):
        return table
    for name in ('bk', 'tk', 'tp', 'stages'):
        del table[name,]
    columns = (16, 32, 48, 64, 96, 128, 192, 256)
    gaps = (0, 2, 4, 8) if group.main.sizes.get('n', 1) > 1 else (0,)
    table |= {
        ('bk', 'tk'): [(n, n) for n in columns],
        **each(tp=(64, 128, 192, 256), stages=(1, 2, 3, 4), queue=(1, 2), gap=gaps),
    }
    if intrinsic == 'wgmma_tf32_bf16':  # pieces in flight are asked for late and in bulk
        del table['stages',]
        table['stages', 'late', 'bulk'] = WAYS
    return table


def _of_warps(group: Group) -> dict:
    sizes = group.main.sizes
    channels = sizes.get('c', 1)
    few = [n for n in (2, 3, 4, 6) if n <= channels] or [1]
    depths = [(n, 0) for n in (8, 16, 32) if n <= channels] + [(n, 1) for n in few]
    splits = [n for n in SPLITS if n <= max(channels // 2, 1)]
    return {
        **each(
            bk=(16, 32, 64, 128, 256),
            bn=[n for n in (1, 2, 4, 8, 16, 32, 64) if n <= sizes.get('n', 1)],
            bh=_extents(sizes.get('h', 1), 1, 2, 3, 4, 5, 6, 7, 8, 14, 16),
            bw=_extents(sizes.get('w', 1), 2, 4, 7, 8, 14, 16, 24, 28, 32, 64),
            tk=(16, 32, 64), tp=(8, 16, 24, 32, 40, 48, 56, 64), stages=(1, 2, 3), split=splits,
        ),
        ('kb', 'joint'): depths,
    }  # fmt: skip


def _extents(size: int, *further: int) -> list[int]:
    """Extents of a tile along a dimension: shares of it, and usual numbers that are not larger."""
    shares = [-(-size // n) for n in (1, 2, 3, 4, 6, 8)]
    return [n for n in (*shares, *further) if n <= size]


def _strip_table(group: Group, intrinsic: str) -> Table:
    """The same with pixels of a block through rows and images instead of an extent along each."""
    boxes = {('bn',), ('bh',), ('bw',), ('gap',)}
    kept = {names: v for names, v in _table(group, intrinsic).items() if names not in boxes}
    channels = plan.row_channels(group)
    if channels and (not intrinsic.startswith('wgmma') or channels < plan.STEP):
        return {}
    if channels:
        kept['kb', 'joint'] = [(n, 0) for n in (8, 16, 32) if n <= channels]
        kept |= each(split=[n for n in SPLITS if n <= max(channels // 8, 1)])
    return {**each(bp=(64, 128, 192, 256, 320, 384, 448, 512)), **kept}


def _decided(values: Mapping) -> dict[str, int]:
    numbers = dict(values)
    if 'columns' in numbers:  # all columns of a block belong to each warpgroup
        numbers['bk'] = numbers['tk'] = numbers.pop('columns')
    return numbers


PATCH = GpuSchema(
    name=plan.NAME,
    words='the image under a block in shared memory once, for all window points',
    generate=generate,
    intrinsics={'mma_tf32x3': 3.0, 'wgmma_tf32x3': 2.0, 'wgmma_tf32_bf16': 3.0},
    reserved=frozenset({
        'full', 'highs', 'lows', 'owner', 'pair', 'rounds', 'row8', 'strip', 'team', 'upper',
    }),
    table=_table,
    pairs=(('bk', 'tk'), ('bw', 'tp'), ('bh', 'bw'), ('bk', 'split')),
    unsaid={'queue': 1, 'gap': 0, 'late': 0, 'bulk': 0},
    sampled={
        'mma_tf32x3': {
            'bn': (1,), 'bh': (1, 2, 3, 4, 6, 7, 8, 9, 14, 16),
            'bw': (4, 7, 8, 9, 14, 16, 27, 28, 32), 'bk': (16, 32, 64, 96, 128),
            'tk': (16, 32, 64), 'tp': (8, 16, 24, 32, 48, 64), 'kb': (1, 2, 3, 4, 8, 16, 32),
            'stages': (1, 2, 3, 4), 'split': SPLITS, 'joint': (0, 1),
        },
        'wgmma_tf32x3': {
            'bn': (1,), 'bh': (1, 2, 3, 4, 6, 7, 8, 9, 14, 16, 28),
            'bw': (4, 7, 8, 9, 14, 16, 27, 28, 32), 'columns': (16, 32, 48, 64, 96, 128, 192, 256),
            'tp': (64, 128, 192, 256), 'kb': (1, 2, 3, 4, 8, 16, 32), 'stages': (1, 2, 3, 4),
            'split': SPLITS, 'joint': (0, 1),
        },
    },
    decided=_decided,
    need=need,
    work=work,
    at_once=lambda group, schedule: plan.plan(group, schedule).at_once,
    measured=('mma_tf32x3', 'wgmma_tf32x3', 'wgmma_tf32_bf16'),
    levels={
        'thread_k': 'tk', 'thread_x': 'tp', 'block_k': 'bk', 'block_y': 'bh', 'block_x': 'bw',
    },
    tiling=tiling,
    probes=(
        Probe({**_PROBED, 'bw': 8, 'bk': 32, 'tk': 32, 'tp': 16}, 'mma_tf32x3'),
        Probe(
            {**_PROBED, 'bw': 28, 'bk': 32, 'tk': 32, 'tp': 64}, 'wgmma_tf32x3', statistics=False
        ),
        Probe(
            {**_PROBED, 'bw': 28, 'bk': 64, 'tk': 64, 'tp': 64, 'queue': 1, 'gap': 0},
            'wgmma_tf32x3', features=False,
        ),
        Probe(
            {**_PROBED, **_TWO, 'bw': 28, 'bk': 64, 'tk': 64, 'tp': 64, 'gap': 0},
            'wgmma_tf32_bf16', features=False,
        ),
    ),
)  # fmt: skip

STRIP = replace(
    PATCH,
    name=plan.STRIP,
    words='as patch, with pixels that follow each other through rows and images',
    intrinsics={'mma_tf32x3': 1.0, 'wgmma_tf32_bf16': 2.0},
    table=_strip_table,
    pairs=(('bk', 'tk'), ('bp', 'tp'), ('bk', 'bp'), ('bk', 'split')),
    sampled={},
    measured=('mma_tf32x3', 'wgmma_tf32_bf16'),
    levels={},
    probes=(
        Probe(
            {'bp': 128, 'bk': 32, 'tk': 32, 'tp': 32, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0},
            'mma_tf32x3',
            features=False,
        ),
        Probe(
            {'bp': 128, 'bk': 64, 'tk': 64, 'tp': 64, 'kb': 8, 'split': 1, 'joint': 0, **_TWO},
            'wgmma_tf32_bf16',
            features=False,
        ),
    ),
)
