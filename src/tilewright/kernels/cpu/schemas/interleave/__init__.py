"""The interleave schema: planes of float32 as an image of bf16 with its few channels last."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.interleave.code import generate
from tilewright.kernels.cpu.schemas.interleave.plan import (
    interleave_choices,
    plan_interleave,
    why_not,
)

INTERLEAVE = CpuSchema(
    name='interleave',
    words='planes into pixels of bf16, row by row',
    plan=plan_interleave,
    generate=generate,
    why_not=why_not,
    choices=interleave_choices,
    time='tilewright.model.cpu.interleave_time:predict_interleave',
    dtypes=(('bf16', 'f32'),),
    any_dtype=True,
    tiles=True,
    fixed=True,
)
