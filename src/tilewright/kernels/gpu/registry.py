"""The GPU schemas by name: those of kernels/gpu/schemas, and any that are registered beside them.

To add one, write a folder that exports a `GpuSchema` and name it in `OWN`; or, from outside the
package, call `GPU_SCHEMAS.register` once, in every process that is to know it. The order is that of
searches' draws and of the columns of learned models: append. Vendors' libraries (schemas/library)
have names here as well, but no search draws them: they say themselves what they can do.
"""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.attention import ATTENTION
from tilewright.kernels.gpu.schemas.channels import CHANNELS
from tilewright.kernels.gpu.schemas.cnnopt import RS, S
from tilewright.kernels.gpu.schemas.depthwise import DEPTHWISE
from tilewright.kernels.gpu.schemas.dfg import DFG
from tilewright.kernels.gpu.schemas.fft import FFT
from tilewright.kernels.gpu.schemas.general import GENERAL
from tilewright.kernels.gpu.schemas.inner import INNER
from tilewright.kernels.gpu.schemas.library import LIBRARIES
from tilewright.kernels.gpu.schemas.patch import PATCH, STRIP
from tilewright.kernels.gpu.schemas.recurrence import MATRIX_STEPS, PERSISTENT, RECURRENCE
from tilewright.kernels.gpu.schemas.rows import ROWS
from tilewright.kernels.gpu.schemas.scatter import SCATTER
from tilewright.kernels.gpu.schemas.sums import SUMS
from tilewright.kernels.gpu.schemas.tiled import TILED
from tilewright.kernels.gpu.schemas.transposed import TRANSPOSED
from tilewright.kernels.gpu.schemas.vector import VECTOR
from tilewright.kernels.gpu.schemas.winograd import WINOGRAD
from tilewright.registry import Registry
from tilewright.schedule.gpu import GpuSchedule

OWN = (
    TILED, PATCH, STRIP, RS, S, DEPTHWISE, GENERAL, ROWS, TRANSPOSED, WINOGRAD, DFG, FFT,
    RECURRENCE, ATTENTION, PERSISTENT, VECTOR, CHANNELS, SUMS, INNER, SCATTER, MATRIX_STEPS,
)  # fmt: skip
FALLBACK = GENERAL  # computes every group but those whose steps follow each other
BESIDE = GpuSchedule.of(FALLBACK.name, threads=256)  # for parts of a group beside the main one
GPU_SCHEMAS: Registry[GpuSchema] = Registry('a GPU schema', OWN)
_LIBRARIES: dict[str, GpuSchema] = {one.name: one for one in LIBRARIES}


def schema_named(name: str) -> GpuSchema:
    """The schema of a name; the error lists all names."""
    if name in _LIBRARIES:
        return _LIBRARIES[name]
    return GPU_SCHEMAS.named(name, ScheduleError)


def is_library(schedule: GpuSchedule) -> bool:
    """Whether a schedule calls a vendor's library."""
    return schedule.schema in _LIBRARIES
