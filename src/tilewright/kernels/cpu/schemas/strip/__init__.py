"""The strip schema: convolutions in tiles, whose pixels follow each other through rows."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.strip.code import generate
from tilewright.kernels.cpu.schemas.strip.plan import (
    draw_byte_strip,
    draw_strip,
    plan_strip,
    why_not,
    why_not_bytes,
)
from tilewright.kernels.cpu.schemas.strip.words import strip_lines

STRIP = CpuSchema(
    name='strip',
    words='direct, products of bf16 in tiles along strips of pixels',
    plan=plan_strip,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_strip:rank_strip',
    time='tilewright.model.cpu.strip_time:predict_strip',
    draw=draw_strip,
    lines=strip_lines,
    dtypes=(('bf16', 'f32'),),
    any_dtype=True,
    flattens=True,
    tiles=True,
    fixed=True,
)

BYTE_STRIP = CpuSchema(
    name='byte_strip',
    words='direct, products of bytes in tiles along strips of pixels',
    plan=plan_strip,
    generate=generate,
    why_not=why_not_bytes,
    rank='tilewright.search.cpu.rank_strip:rank_byte_strip',
    time='tilewright.model.cpu.strip_time:predict_strip',
    draw=draw_byte_strip,
    lines=strip_lines,
    dtypes=(('u8', 'i32'), ('i8', 'i32'), ('i16', 'i32'), ('i32', 'i32')),
    any_dtype=True,
    flattens=True,
    integer=True,
    fixed=True,
)
