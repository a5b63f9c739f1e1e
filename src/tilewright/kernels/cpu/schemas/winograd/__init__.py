"""The Winograd schema: tiles transformed, multiplied point by point, and transformed back."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.winograd.code import generate
from tilewright.kernels.cpu.schemas.winograd.plan import plan_winograd, product, tile
from tilewright.kernels.cpu.schemas.winograd.space import why_not
from tilewright.kernels.cpu.schemas.winograd.words import winograd_lines, winograd_title
from tilewright.ops.winograd_error import predicted_error

WINOGRAD = CpuSchema(
    name='winograd',
    words=winograd_title,
    plan=plan_winograd,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_winograd:rank_winograd',
    time='tilewright.model.cpu.winograd_time:predict_winograd',
    error=lambda group, schedule: predicted_error(group, tile(schedule)),
    lines=winograd_lines,
    stage=product,
    algorithm='winograd',
)
