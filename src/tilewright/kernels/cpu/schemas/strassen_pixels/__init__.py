"""Strassen's algorithm for 1x1 convolutions whose pixels lie across the lanes."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.strassen_pixels.code import generate
from tilewright.kernels.cpu.schemas.strassen_pixels.plan import (
    plan_strassen_pixels,
    schedule_error,
    why_not,
)
from tilewright.kernels.cpu.schemas.strassen_pixels.space import (
    draw_strassen_pixels,
    strassen_pixels_choices,
)
from tilewright.kernels.cpu.schemas.strassen_pixels.words import strassen_pixels_lines

STRASSEN_PIXELS = CpuSchema(
    name='strassen_pixels',
    words='Strassen, 7 products for 8, pixels across lanes',
    plan=plan_strassen_pixels,
    generate=generate,
    why_not=why_not,
    choices=strassen_pixels_choices,
    time='tilewright.model.cpu.strassen_pixels_time:predict_strassen_pixels',
    draw=draw_strassen_pixels,
    error=schedule_error,
    lines=strassen_pixels_lines,
    algorithm='strassen',
    front=True,
    flattens=True,
    fixed=True,
)
