"""The Strassen schema of f16: rows of channels, added, multiplied and added again as vectors."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.strassen_half.code import generate
from tilewright.kernels.cpu.schemas.strassen_half.plan import (
    block_stage,
    draw_strassen_half,
    plan_strassen_half,
    predicted_error,
    title,
    why_not,
)

STRASSEN_HALF = CpuSchema(
    name='strassen_half',
    words=title,
    plan=plan_strassen_half,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_strassen_half:rank_strassen_half',
    time='tilewright.model.cpu.strassen_half_time:predict_strassen_half',
    draw=draw_strassen_half,
    error=predicted_error,
    stage=block_stage,
    flattens=True,
    algorithm='strassen',
    dtypes=(('f16', 'f16'), ('f16', 'f32')),
    any_dtype=True,
    half=True,
)
