"""Schemas of steps that follow each other: `RECURRENCE`, a kernel for each phase of a step
(code.py), `PERSISTENT`, one kernel for all steps (persistent.py), and `MATRIX_STEPS`, products of
many sequences by matrix instructions (matrix.py).
"""

from __future__ import annotations

from tilewright.kernels.gpu.schema import STEP, GpuSchema
from tilewright.kernels.gpu.schemas.recurrence import code, matrix, persistent

RECURRENCE = GpuSchema(
    name=code.NAME,
    words='recurrent: a kernel for each phase of a step, some lanes for each unit',
    generate=code.generate,
    whole=True,
    propose=code.propose,
    work=code.work,
)
PERSISTENT = GpuSchema(
    name=persistent.NAME,
    words='recurrent: one kernel for all steps, weights in registers and shared memory',
    generate=persistent.generate,
    whole=True,
    propose=persistent.propose,
    work=persistent.work,
)
MATRIX_STEPS = GpuSchema(
    name=matrix.NAME,
    words='recurrent: products of a step by matrix instructions, then its functions',
    generate=matrix.generate,
    intrinsics={matrix.INTRINSIC: 1.0},
    whole=True,
    propose=matrix.propose,
    work=matrix.work,
    at_once=lambda _group, _schedule: STEP,
)
