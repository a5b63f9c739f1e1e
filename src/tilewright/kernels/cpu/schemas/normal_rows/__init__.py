"""The schema of normalised rows: sums along a row, then the row by them, on vectors of float32."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.general.code import FLAGS
from tilewright.kernels.cpu.schemas.normal_rows.code import generate
from tilewright.kernels.cpu.schemas.normal_rows.plan import (
    plan_rows,
    row_choices,
    row_lines,
    row_work,
    why_not,
)

NORMAL_ROWS = CpuSchema(
    name='normal_rows',
    words='rows by their sums, on vectors',
    plan=plan_rows,
    generate=generate,
    why_not=why_not,
    choices=row_choices,
    work=row_work,
    lines=row_lines,
    stage=lambda group, _schedule: group.stages[-1],
    flags=FLAGS,
    dtypes=(('bf16', 'f32'),),
    any_dtype=True,
    registers=False,
    tiles=True,
    fixed=True,
)
