"""The schema of products whose weights are stored in 16 bits: outer products in float32."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.narrow.plan import (
    draw_narrow,
    narrow_lines,
    plan_narrow,
    why_not,
)
from tilewright.kernels.cpu.schemas.outer.code import generate

NARROW = CpuSchema(
    name='narrow',
    words='direct, weights of 16 bits',
    plan=plan_narrow,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_narrow:rank_narrow',
    time='tilewright.search.cpu.rank_narrow:predict_narrow',
    draw=draw_narrow,
    lines=narrow_lines,
    any_dtype=True,
    flattens=True,
)
