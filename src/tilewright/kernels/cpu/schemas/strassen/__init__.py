"""The Strassen schema: products of sums of blocks, seven for every eight, or 49 for 64."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.strassen.code import generate
from tilewright.kernels.cpu.schemas.strassen.plan import (
    block_stage,
    plan_strassen,
    schedule_error,
    why_not,
)
from tilewright.kernels.cpu.schemas.strassen.words import strassen_lines, strassen_title

STRASSEN = CpuSchema(
    name='strassen',
    words=strassen_title,
    plan=plan_strassen,
    generate=generate,
    why_not=why_not,
    rank='tilewright.search.cpu.rank_strassen:rank_strassen',
    time='tilewright.model.cpu.strassen_time:predict_strassen',
    error=schedule_error,
    lines=strassen_lines,
    stage=block_stage,
    flattens=True,
    algorithm='strassen',
    selective=True,
)
