"""The recurrence schema: steps that follow each other, weights packed once, threads in step."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.recurrence.code import generate
from tilewright.kernels.cpu.schemas.recurrence.plan import plan_recurrence
from tilewright.kernels.cpu.schemas.recurrence.space import (
    recurrence_choices,
    recurrence_lines,
    why_no_recurrence,
)

RECURRENCE = CpuSchema(
    name='recurrence',
    words='recurrent, step by step',
    plan=plan_recurrence,
    generate=generate,
    why_not=why_no_recurrence,
    choices=recurrence_choices,
    time='tilewright.model.cpu.recurrence_time:predict_recurrence',
    lines=recurrence_lines,
    flags=('-fno-trapping-math', '-fopenmp-simd'),
    any_dtype=True,
    sequential=True,
)
