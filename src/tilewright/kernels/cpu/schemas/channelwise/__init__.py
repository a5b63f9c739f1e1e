"""The channelwise schema: integer windows that slide over every channel alone, lanes along them."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.channelwise.code import generate
from tilewright.kernels.cpu.schemas.channelwise.plan import (
    draw_channelwise,
    plan_channelwise,
    why_not,
)

CHANNELWISE = CpuSchema(
    name='channelwise',
    words='direct, channels side by side',
    plan=plan_channelwise,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_dot:rank_channelwise',
    time='tilewright.model.cpu.roofline:predict_work',
    draw=draw_channelwise,
    dtypes=(('u8', 'i32'), ('i8', 'i32'), ('i16', 'i32'), ('i32', 'i32')),
    any_dtype=True,
    integer=True,
)
