"""The FFT schema: tiles transformed, multiplied frequency by frequency, and transformed back."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.fft.code import generate
from tilewright.kernels.cpu.schemas.fft.plan import plan_fft, product, why_not
from tilewright.kernels.cpu.schemas.fft.words import fft_lines, fft_title
from tilewright.kernels.cpu.schemas.winograd.plan import tile
from tilewright.ops.fft_error import predicted_error

FFT = CpuSchema(
    name='fft',
    words=fft_title,
    plan=plan_fft,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_fft:rank_fft',
    time='tilewright.model.cpu.fft_time:predict_fft',
    error=lambda group, schedule: predicted_error(group, tile(schedule)),
    lines=fft_lines,
    stage=product,
    algorithm='fft',
)
