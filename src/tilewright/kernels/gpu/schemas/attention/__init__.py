"""The attention schema, `ATTENTION`: code.py says what decisions mean, plan.py what is legal."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.attention.code import generate
from tilewright.kernels.gpu.schemas.attention.counts import need, work
from tilewright.kernels.gpu.schemas.attention.plan import NAME
from tilewright.kernels.gpu.schemas.attention.space import propose, table

ATTENTION = GpuSchema(
    name=NAME,
    words='attention in one kernel: a block of rows against all keys, no scores stored',
    generate=generate,
    intrinsics={'fma': 1.0, 'mma_tf32x3': 2.0, 'mma_half': 2.0},
    whole=True,
    table=table,
    pairs=(('bi', 'ti'), ('bj', 'lanes'), ('bj', 'share')),
    unsaid={'share': 1},
    propose=propose,
    need=need,
    work=work,
)
