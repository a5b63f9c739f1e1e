"""The dfg schema, `DFG`: plan.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.dfg.code import generate
from tilewright.kernels.gpu.schemas.dfg.counts import detour, need, work
from tilewright.kernels.gpu.schemas.dfg.plan import NAME, UNSAID
from tilewright.kernels.gpu.schemas.dfg.space import propose, table

DFG = GpuSchema(
    name=NAME,
    words='all stages of a group in one kernel, from its data-flow graph',
    generate=generate,
    intrinsics={'fma': 1.0, 'mma_tf32x3': 2.0},
    whole=True,
    table=table,
    pairs=(('bh', 'bw'), ('tk', 'tp'), ('bk', 'tk'), ('bh', 'threads')),
    unsaid=UNSAID,
    propose=propose,
    need=need,
    work=work,
    detour=detour,
)
