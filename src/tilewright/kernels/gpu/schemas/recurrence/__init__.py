"""The recurrence schema, `RECURRENCE`: steps that follow each other; code.py says how."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema
from tilewright.kernels.gpu.schemas.recurrence.code import NAME, generate, propose

RECURRENCE = GpuSchema(
    name=NAME,
    words='recurrent: a kernel for each phase of a step, some lanes for each unit',
    generate=generate,
    whole=True,
    propose=propose,
)
