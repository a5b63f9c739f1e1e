"""The fft schema, `FFT`: its decisions are in code.py, where it applies in plan.py."""

from __future__ import annotations

from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.schema import GpuSchema, Table, each
from tilewright.kernels.gpu.schemas.fft.code import generate
from tilewright.kernels.gpu.schemas.fft.counts import detour, error, need, shortcut, work
from tilewright.kernels.gpu.schemas.fft.plan import NAME, sizes_of
from tilewright.kernels.gpu.schemas.winograd import WINOGRAD
from tilewright.kernels.gpu.schemas.winograd import table as product_table
from tilewright.ops.group import Group


def _table(group: Group, intrinsic: str) -> Table:
    """The length of transforms, and decisions of the products."""
    products = product_table(group, intrinsic)
    return each(size=sizes_of(group)) | {k: v for k, v in products.items() if k != ('m',)}


def _is_transform(kernel: Kernel) -> bool:
    """Transforms have blocks of their own, whatever is decided."""
    return kernel.name.startswith(NAME)


FFT = GpuSchema(
    name=NAME,
    words='large windows by fewer products, between two Fourier transforms',
    generate=generate,
    intrinsics=WINOGRAD.intrinsics,
    algorithm='fft',
    reserved=WINOGRAD.reserved,
    table=_table,
    pairs=WINOGRAD.pairs,
    unsaid=WINOGRAD.unsaid,
    fixed=_is_transform,
    shortcut=shortcut,
    need=need,
    work=work,
    detour=detour,
    error=error,
)
