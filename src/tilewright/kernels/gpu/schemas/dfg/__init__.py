"""The dfg schema, `DFG`: plan.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.dfg.code import generate
from tilewright.kernels.gpu.schemas.dfg.plan import NAME, UNSAID

DFG = GpuSchema(
    name=NAME,
    words='all stages of a group in one kernel, from its data-flow graph',
    generate=generate,
    whole=True,
    unsaid=UNSAID,
)
