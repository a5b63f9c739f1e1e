"""The transposing schema, `TRANSPOSED`: code.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.transposed.code import NAME, generate, propose

TRANSPOSED = GpuSchema(
    name=NAME,
    words='another layout, through squares in shared memory',
    generate=generate,
    propose=propose,
    measured=('fma',),
)
