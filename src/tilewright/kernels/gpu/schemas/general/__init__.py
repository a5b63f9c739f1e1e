"""The general schema, `GENERAL`: one thread a point; code.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema, Probe, Table, each
from tilewright.kernels.gpu.schemas.general.code import NAME, generate
from tilewright.kernels.gpu.schemas.general.counts import need, propose, work
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows


def _table(_: Group, __: str) -> Table:
    return each(threads=(64, 128, 256))


GENERAL = GpuSchema(
    name=NAME,
    words='one thread, or some lanes, for each point of the result',
    generate=generate,
    intrinsics={'fma': 0.05},
    whole=True,
    table=_table,
    propose=propose,
    sampled={'fma': {'threads': (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)}},
    need=need,
    work=work,
    measured=('fma',),
    levels={'lanes_x': 'threads'},
    probes=(
        Probe({'threads': 128}, statistics=False),
        Probe(
            {'threads': 128}, group=max_pool((1, 32, 28, 28), windows((28, 28), 3, 2)),
            features=False,
        ),
    ),
)  # fmt: skip
