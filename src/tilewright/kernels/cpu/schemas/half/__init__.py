"""The schema of products of f16: outer products of words, two numbers each."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.dot.code import generate
from tilewright.kernels.cpu.schemas.half.plan import (
    draw_half,
    half_lines,
    plan_half,
    run_error,
    why_not,
)

HALF = CpuSchema(
    name='half',
    words='direct, products of f16',
    plan=plan_half,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_half:rank_half',
    time='tilewright.model.cpu.half_time:predict_half',
    draw=draw_half,
    error=run_error,
    lines=half_lines,
    dtypes=(('f16', 'f32'),),
    any_dtype=True,
    flattens=True,
    half=True,
)
