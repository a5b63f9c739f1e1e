"""The depthwise schema, `DEPTHWISE`: its decisions are in code.py, what is legal in plan.py."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema, Probe, Table, each
from tilewright.kernels.gpu.schemas.depthwise.code import generate
from tilewright.kernels.gpu.schemas.depthwise.counts import tiling, work
from tilewright.kernels.gpu.schemas.depthwise.plan import NAME
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group


def _table(_: Group, __: str) -> Table:
    return each(
        th=(1, 2, 4, 8), tw=(1, 2, 4, 8), bh=(1, 2, 4, 8, 16), bw=(4, 8, 16, 32, 64),
        bp=(1, 2, 4, 8, 16), shared=(0, 1),
    )  # fmt: skip


DEPTHWISE = GpuSchema(
    name=NAME,
    words='a window over each plane on its own, several outputs a thread',
    generate=generate,
    table=_table,
    pairs=(('bh', 'bw'), ('th', 'tw')),
    work=work,
    measured=('fma',),
    levels={
        'thread_y': 'th', 'thread_x': 'tw', 'block_k': 'bp', 'block_y': 'bh', 'block_x': 'bw',
    },
    tiling=tiling,
    probes=(
        Probe(
            {'th': 2, 'tw': 4, 'bh': 4, 'bw': 4, 'bp': 4, 'shared': 1},
            group=conv2d(c=32, h=28, w=28, k=32, r=3, s=3, pad=1, groups=32), features=False,
        ),
    ),
)  # fmt: skip
