"""The transposing schema, `TRANSPOSED`: code.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.columns import Batch, Tiling, point_tiling
from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.transposed.code import NAME, generate, propose


def _tiling(batch: Batch) -> Tiling:
    return point_tiling(batch, batch.column('side') * batch.column('rows'))


TRANSPOSED = GpuSchema(
    name=NAME,
    words='another layout, through squares in shared memory',
    generate=generate,
    propose=propose,
    measured=('fma',),
    tiling=_tiling,
)
