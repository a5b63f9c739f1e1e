"""The schema of first places, `PLACES`: code.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.places.code import NAME, generate, propose

PLACES = GpuSchema(
    name=NAME,
    words='the first place of every number in a list, without comparing all with all',
    generate=generate,
    whole=True,
    propose=propose,
)
