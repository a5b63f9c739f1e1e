"""The schema of long sums, `SUMS`: code.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import GpuSchema, Table, each
from tilewright.kernels.gpu.schemas.sums.code import NAME, generate
from tilewright.kernels.gpu.schemas.sums.counts import applies, need, propose, work
from tilewright.ops.group import Group

SPLITS = (1, 2, 4, 8, 16, 32, 64)


def _table(group: Group, _: str) -> Table:
    if not applies(group):
        return {}
    return each(threads=(128, 256, 512), owners=(1, 2, 4, 8, 16, 32), split=SPLITS)


SUMS = GpuSchema(
    name=NAME,
    words='few results of long sums, which several blocks share',
    generate=generate,
    table=_table,
    pairs=(('threads', 'split'), ('owners', 'split')),
    propose=propose,
    need=need,
    work=work,
)
