"""The schema of bytes: products of u8 and i8 whose pairs are added in 16 bits, exactly."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.byte_pairs.code import generate
from tilewright.kernels.cpu.schemas.byte_pairs.plan import (
    draw_byte_pairs,
    plan_byte_pairs,
    why_not,
)
from tilewright.kernels.cpu.schemas.byte_pairs.words import byte_pairs_lines

BYTE_PAIRS = CpuSchema(
    name='byte_pairs',
    words='direct, products of bytes added in 16 bits, exact',
    plan=plan_byte_pairs,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_byte_pairs:rank_byte_pairs',
    time='tilewright.model.cpu.byte_pairs_time:predict_byte_pairs',
    draw=draw_byte_pairs,
    lines=byte_pairs_lines,
    dtypes=(('i16', 'i32'),),
    any_dtype=True,
    flattens=True,
    integer=True,
    fixed=True,
)
