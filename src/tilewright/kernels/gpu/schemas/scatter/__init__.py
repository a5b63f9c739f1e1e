"""The schema of scattered rows, `SCATTER`: code.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.scatter.code import NAME, detour, generate, propose

SCATTER = GpuSchema(
    name=NAME,
    words='rows are added to those of a table that a list names, in the order of the list',
    generate=generate,
    whole=True,
    propose=propose,
    detour=detour,
)
