"""The schema of integer products: outer products of words, each several small whole numbers."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.dot.code import generate
from tilewright.kernels.cpu.schemas.dot.plan import dot_lines, draw_dot, plan_dot, why_not

DOT = CpuSchema(
    name='dot',
    words='direct, dot products of integers',
    plan=plan_dot,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_dot:rank_dot',
    time='tilewright.model.cpu.dot_time:predict_dot',
    draw=draw_dot,
    lines=dot_lines,
    dtypes=(('u8', 'i32'), ('i8', 'i32'), ('i16', 'i32'), ('i32', 'i32')),
    any_dtype=True,
    flattens=True,
    integer=True,
)
