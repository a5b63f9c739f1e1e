"""The channelwise schema: integer windows that slide over every channel alone, lanes along them."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.channelwise.code import generate
from tilewright.kernels.cpu.schemas.channelwise.plan import (
    channelwise_choices,
    plan_channelwise,
    why_not,
)

CHANNELWISE = CpuSchema(
    name='channelwise',
    words='direct, channels side by side',
    plan=plan_channelwise,
    generate=generate,
    why_not=why_not,
    choices=channelwise_choices,
    any_dtype=True,
)
