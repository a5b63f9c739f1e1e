"""The schema of products of bf16 in tiles: outer products of words, two numbers each."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.dot.code import generate
from tilewright.kernels.cpu.schemas.tiles.plan import draw_tiles, plan_tiles, tile_lines, why_not

TILES = CpuSchema(
    name='tiles',
    words='direct, products of bf16 in tiles',
    plan=plan_tiles,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_tiles:rank_tiles',
    time='tilewright.model.cpu.tile_time:predict_tiles',
    draw=draw_tiles,
    lines=tile_lines,
    dtypes=(('bf16', 'f32'),),
    any_dtype=True,
    flattens=True,
    tiles=True,
)
