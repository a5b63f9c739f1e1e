"""The outer-product schema: register tiles by micro-kernels, operands packed, caches tiled."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.outer.code import generate
from tilewright.kernels.cpu.schemas.outer.plan import plan_outer
from tilewright.kernels.cpu.schemas.outer.space import draw_outer, why_not
from tilewright.kernels.cpu.schemas.outer.words import outer_lines

OUTER = CpuSchema(
    name='outer',
    words='direct, outer products',
    plan=plan_outer,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_outer:rank_outer',
    time='tilewright.model.cpu.outer_time:predict_outer',
    draw=draw_outer,
    lines=outer_lines,
    flattens=True,
    front=True,
)
