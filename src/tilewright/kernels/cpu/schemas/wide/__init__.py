"""The wide schema: bf16 windows that slide over every channel alone, in vectors of float32."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.wide.code import generate
from tilewright.kernels.cpu.schemas.wide.plan import (
    counted_wide,
    draw_wide,
    plan_wide,
    why_not,
    wide_choices,
)

WIDE = CpuSchema(
    name='wide',
    words='direct, channels of bf16 side by side',
    plan=plan_wide,
    generate=generate,
    why_not=why_not,
    choices=wide_choices,
    time='tilewright.model.cpu.wide_time:predict_wide',
    work=counted_wide,
    draw=draw_wide,
    dtypes=(('bf16', 'f32'),),
    any_dtype=True,
    tiles=True,
    fixed=True,
)
