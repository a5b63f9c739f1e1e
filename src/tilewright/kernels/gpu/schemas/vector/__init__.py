"""The vector schema, `VECTOR`: code.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.vector.code import NAME, generate, propose

VECTOR = GpuSchema(
    name=NAME,
    words='neighbouring points of a thread, moved at once',
    generate=generate,
    whole=True,
    propose=propose,
)
