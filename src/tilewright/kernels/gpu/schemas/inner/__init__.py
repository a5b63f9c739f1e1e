"""The schema of inner products, `INNER`: plan.py says what its decisions mean."""

from __future__ import annotations

from tilewright.kernels.gpu.schema import STEP, GpuSchema, Table, each
from tilewright.kernels.gpu.schemas.inner.code import JOIN, NAME, generate
from tilewright.kernels.gpu.schemas.inner.counts import need, work
from tilewright.kernels.gpu.schemas.inner.plan import roles
from tilewright.ops.group import Group

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def _table(group: Group, _: str) -> Table:
    joint = [n for n in (0, 1) if roles(group, bool(n)) is not None]
    if not joint:
        return {}
    return each(
        bk=(16, 32, 64, 128), bp=(16, 32, 64, 128), tk=(16, 32, 64), tp=(8, 16, 32, 64),
        kb=(16, 32), stages=(2, 3, 4), split=SPLITS, joint=joint,
    )  # fmt: skip


INNER = GpuSchema(
    name=NAME,
    words='a blocked matrix product of operands that are contiguous along what is summed up',
    generate=generate,
    intrinsics={'mma_tf32x3': 2.0},
    table=_table,
    fixed=lambda kernel: kernel.name == JOIN,
    pairs=(('bk', 'tk'), ('bp', 'tp'), ('bk', 'bp'), ('bk', 'split'), ('bp', 'split')),
    need=need,
    work=work,
    at_once=lambda _group, _schedule: STEP,
)
