"""The windows schema: f16 windows that slide over every channel alone, lanes along channels."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.windows.code import generate
from tilewright.kernels.cpu.schemas.windows.plan import (
    counted_windows,
    draw_windows,
    plan_windows,
    why_not,
    window_choices,
)

WINDOWS = CpuSchema(
    name='windows',
    words='direct, channels of f16 side by side',
    plan=plan_windows,
    generate=generate,
    why_not=why_not,
    choices=window_choices,
    time='tilewright.model.cpu.windows_time:predict_windows',
    work=counted_windows,
    draw=draw_windows,
    dtypes=(('f16', 'f32'),),
    any_dtype=True,
    half=True,
)
