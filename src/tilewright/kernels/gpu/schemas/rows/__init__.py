"""The rows schema, `ROWS`: code.py says what its decision means."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.rows.code import NAME, generate, propose

ROWS = GpuSchema(
    name=NAME,
    words='all parts of a group in one kernel, a block for each row',
    generate=generate,
    whole=True,
    propose=propose,
    measured=('fma',),
)
