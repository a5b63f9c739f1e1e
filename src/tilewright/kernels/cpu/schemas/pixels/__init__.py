"""The schema of pixels: convolutions whose pixels lie across the lanes, results stored as rows."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.pixels.code import generate
from tilewright.kernels.cpu.schemas.pixels.plan import plan_pixels, why_no_pixels
from tilewright.kernels.cpu.schemas.pixels.space import draw_pixels, pixels_choices
from tilewright.kernels.cpu.schemas.pixels.words import pixels_lines

PIXELS = CpuSchema(
    name='pixels',
    words='direct, pixels across lanes',
    plan=plan_pixels,
    generate=generate,
    why_not=why_no_pixels,
    choices=pixels_choices,
    time='tilewright.model.cpu.pixels_time:predict_pixels',
    draw=draw_pixels,
    lines=pixels_lines,
    front=True,
    flattens=True,
    fixed=True,
)
