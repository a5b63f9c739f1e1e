"""The schema of rows: convolutions whose pixels lie across the lanes, results stored as rows."""

from tilewright.kernels.cpu.schema import CpuSchema
from tilewright.kernels.cpu.schemas.rows.code import generate
from tilewright.kernels.cpu.schemas.rows.plan import plan_rows, why_no_rows
from tilewright.kernels.cpu.schemas.rows.space import draw_rows, rows_choices
from tilewright.kernels.cpu.schemas.rows.words import rows_lines

ROWS = CpuSchema(
    name='rows',
    words='direct, pixels across lanes',
    plan=plan_rows,
    generate=generate,
    why_not=why_no_rows,
    choices=rows_choices,
    time='tilewright.model.cpu.rows_time:predict_rows',
    draw=draw_rows,
    lines=rows_lines,
    flattens=True,
)
