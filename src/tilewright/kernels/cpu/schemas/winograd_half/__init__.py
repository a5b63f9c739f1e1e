"""The Winograd schema of f16: tiles of NHWC images, transformed along vectors of channels."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.winograd_half.code import generate
from tilewright.kernels.cpu.schemas.winograd_half.plan import (
    draw_winograd_half,
    plan_winograd_half,
    predicted_error,
    product,
    title,
)
from tilewright.ops.winograd_half import why_not_half

WINOGRAD_HALF = CpuSchema(
    name='winograd_half',
    words=title,
    plan=plan_winograd_half,
    generate=generate,
    why_not=why_not_half,
    rank='tilewright.search.cpu.rank_winograd_half:rank_winograd_half',
    time='tilewright.model.cpu.winograd_half_time:predict_winograd_half',
    draw=draw_winograd_half,
    error=predicted_error,
    stage=product,
    algorithm='winograd',
    dtypes=(('f16', 'f16'), ('f16', 'f32')),
    any_dtype=True,
    half=True,
)
