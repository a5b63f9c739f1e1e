"""The winograd schema, `WINOGRAD`: its decisions are in code.py, where it applies in plan.py."""

from __future__ import annotations

from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.schema import GpuSchema, Table, each
from tilewright.kernels.gpu.schemas import tiled
from tilewright.kernels.gpu.schemas.patch import WAYS
from tilewright.kernels.gpu.schemas.winograd.code import generate
from tilewright.kernels.gpu.schemas.winograd.counts import detour, error, need, shortcut, work
from tilewright.kernels.gpu.schemas.winograd.plan import NAME, PRODUCTS, TILES
from tilewright.ops.group import Group


def table(group: Group, intrinsic: str) -> Table:
    """The size of a tile, and decisions of the products: rows without a window, many blocks."""
    size, splits = each(m=TILES), (1, 2, 3, 4)
    plain = {('joint',): [(0,)]}
    depths = [n for n in (8, 16, 32) if n <= max(group.main.sizes['c'], 8)]
    if intrinsic == 'fma':
        return {**size, **tiled.table(group, intrinsic), **each(split=splits), **plain}
    if intrinsic == 'mma_tf32x3':
        return size | plain | each(
            bk=(16, 32, 64, 128, 256), bp=(32, 64, 128, 256), tk=(16, 32, 64), tp=(16, 32, 64),
            kb=depths, stages=(1, 2, 3, 4), split=splits,
        )  # fmt: skip
    return size | plain | {
        ('bk', 'tk'): [(n, n) for n in (32, 48, 64, 96, 128, 192, 256)],
        ('stages', 'late', 'bulk'): WAYS,
        **each(
            bp=(64, 128, 192, 256, 384, 512), tp=(64, 128), kb=depths, split=splits, queue=(1, 2),
        ),
    }  # fmt: skip


def _is_transform(kernel: Kernel) -> bool:
    """Transforms have a thread for each tile, whatever is decided."""
    return kernel.name.startswith(NAME)


WINOGRAD = GpuSchema(
    name=NAME,
    words='3x3 windows by fewer products, between two transforms',
    generate=generate,
    intrinsics={'fma': 1.0, 'mma_tf32x3': 2.0, 'wgmma_tf32_bf16': 3.0},
    algorithm='winograd',
    reserved=PRODUCTS['mma_tf32x3'].reserved,
    table=table,
    pairs=(('bk', 'tk'), ('bp', 'tp'), ('bk', 'bp'), ('bk', 'split')),
    unsaid=PRODUCTS['mma_tf32x3'].unsaid,
    fixed=_is_transform,
    shortcut=shortcut,
    need=need,
    work=work,
    detour=detour,
    error=error,
)
