"""The tiled schema, `TILED`: code.py says what its decisions mean, plan.py which are legal."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import SPLITS, STEP, GpuSchema, Probe, Table, each
from tilewright.kernels.gpu.schemas.tiled.code import PACK, generate
from tilewright.kernels.gpu.schemas.tiled.counts import need, tiling, work
from tilewright.ops.front import has_front
from tilewright.ops.group import Group

_PROBED = {'kb': 8, 'stages': 2, 'split': 2, 'joint': 0, 'bk': 64, 'bp': 64}


def table(group: Group, intrinsic: str) -> Table:
    matrix = intrinsic != 'fma'
    thread = (16, 32, 64) if matrix else (4, 8)
    return each(
        bk=(16, 32, 64, 128), bp=(16, 32, 64, 128, 256), tk=thread, tp=thread,
        kb=(8, 16, 32) if matrix else (4, 8, 16, 32), stages=(2, 3, 4), split=SPLITS,
        joint=(0,) if has_front(group) else (0, 1),
    )  # fmt: skip


TILED = GpuSchema(
    name='tiled',
    words='a blocked matrix product whose rows are gathered',
    generate=generate,
    intrinsics={'fma': 1.0, 'mma_tf32x3': 2.0},
    front=True,
    table=table,
    fixed=lambda kernel: kernel.name == PACK,
    pairs=(('bk', 'tk'), ('bp', 'tp'), ('bk', 'bp'), ('bk', 'split')),
    sampled={
        'fma': {
            'bk': (16, 32, 64, 96, 128), 'bp': (16, 32, 64, 96, 128, 256), 'tk': (4, 8, 12, 16),
            'tp': (4, 8, 12, 16), 'kb': (4, 8, 16, 32), 'stages': (1, 2, 3, 4), 'split': SPLITS,
            'joint': (0, 1),
        },
        'mma_tf32x3': {
            'bk': (16, 32, 64, 96, 128), 'bp': (16, 32, 48, 64, 96, 128, 256), 'tk': (16, 32, 64),
            'tp': (16, 32, 48, 64), 'kb': (8, 16, 32, 64), 'stages': (1, 2, 3, 4), 'split': SPLITS,
            'joint': (0, 1),
        },
    },
    need=need,
    work=work,
    at_once=lambda _group, _schedule: STEP,
    measured=('fma', 'mma_tf32x3'),
    levels={'thread_k': 'tk', 'thread_x': 'tp', 'block_k': 'bk', 'block_x': 'bp'},
    tiling=tiling,
    probes=(
        Probe({**_PROBED, 'tk': 8, 'tp': 8}),
        Probe({**_PROBED, 'tk': 32, 'tp': 32}, 'mma_tf32x3'),
    ),
)  # fmt: skip
