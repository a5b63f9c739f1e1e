"""The stencil schema: windows that slide along rows, the lanes of a vector along the row."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.stencil.code import generate
from tilewright.kernels.cpu.schemas.stencil.plan import plan_stencil
from tilewright.kernels.cpu.schemas.stencil.space import (
    draw_stencil,
    stencil_choices,
    why_no_stencil,
)
from tilewright.kernels.cpu.schemas.stencil.words import stencil_lines

STENCIL = CpuSchema(
    name='stencil',
    words='direct, along rows',
    plan=plan_stencil,
    generate=generate,
    why_not=why_no_stencil,
    choices=stencil_choices,
    time='tilewright.model.cpu.stencil_time:predict_stencil',
    draw=draw_stencil,
    lines=stencil_lines,
)
