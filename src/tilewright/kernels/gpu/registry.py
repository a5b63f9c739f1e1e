"""The GPU schemas by name: those of kernels/gpu/schemas, and any that are registered beside them.

To add one, write a folder that exports a `GpuSchema` and name it in `OWN`; or, from outside the
package, call `register` once, in every process that is to know it. The order is that of searches'
draws and of the columns of learned models: append.
"""

from __future__ import annotations

from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.cnnopt import RS, S
from tilewright.kernels.gpu.schemas.depthwise import DEPTHWISE
from tilewright.kernels.gpu.schemas.dfg import DFG
from tilewright.kernels.gpu.schemas.general import GENERAL
from tilewright.kernels.gpu.schemas.patch import PATCH, STRIP
from tilewright.kernels.gpu.schemas.rows import ROWS
from tilewright.kernels.gpu.schemas.tiled import TILED
from tilewright.kernels.gpu.schemas.transposed import TRANSPOSED
from tilewright.kernels.gpu.schemas.winograd import WINOGRAD
from tilewright.schedule.gpu import GpuSchedule

OWN = (TILED, PATCH, STRIP, RS, S, DEPTHWISE, GENERAL, ROWS, TRANSPOSED, WINOGRAD, DFG)
FALLBACK = GENERAL  # computes every group
BESIDE = GpuSchedule.of(FALLBACK.name, threads=256)  # for parts of a group beside the main one
_SCHEMAS: dict[str, GpuSchema] = {one.name: one for one in OWN}


def register(schema: GpuSchema) -> GpuSchema:
    """Make a schema known in this process, behind all that are."""
    if schema.name in _SCHEMAS:
        raise InputError(
            f'there is a GPU schema {schema.name!r} already; choose another name, or unregister it'
        )
    _SCHEMAS[schema.name] = schema
    return schema


def unregister(name: str) -> None:
    """Forget a schema that was registered; those of the package stay."""
    if name not in added():
        raise InputError(
            f'{name!r} was not registered; registered are {", ".join(added()) or "none"}'
        )
    del _SCHEMAS[name]


def added() -> tuple[str, ...]:
    """Names of schemas that were registered beside the package's: other processes lack them."""
    return tuple(_SCHEMAS)[len(OWN) :]


def schemas() -> tuple[GpuSchema, ...]:
    """All that are known, in the order in which they came."""
    return tuple(_SCHEMAS.values())


def schema_named(name: str) -> GpuSchema:
    """The schema of a name; the error lists all names."""
    if name not in _SCHEMAS:
        raise ScheduleError(f'{name!r} is not a GPU schema; choose one of {", ".join(_SCHEMAS)}')
    return _SCHEMAS[name]
