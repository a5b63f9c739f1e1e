"""What schemas of sums of products share: the plan's dimensions, its checks, and parts of a module.

Goes in: a group whose main stage is a sum of products, with a constant operand but for schemas that
pack in every call. Comes out:
`ProductPlan`, which the plans of schemas extend; `require`, which refuses schedules; the kernel
that packs an operand, and the module around a kernel whose blocks may share a tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.front import Front
from tilewright.kernels.cpu.pointwise import Epilogue
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

PACK_THREADS = 256


@dataclass(frozen=True)
class ProductPlan:
    """A sum of products whose dimensions have roles (kernels/cpu/contraction.py)."""

    group: Group
    contraction: Contraction
    epilogue: Epilogue

    @property
    def sizes(self) -> dict[str, int]:
        return self.group.main.sizes

    @property
    def columns(self) -> int:
        return self.sizes[self.contraction.vector]

    @property
    def channels(self) -> int:
        return self.sizes[self.contraction.loop] if self.contraction.loop else 1

    @property
    def windows(self) -> list[tuple[str, int]]:
        c = self.contraction
        return [(d, self.sizes[d]) for d in (*c.outer, *c.unrolled)]

    @cached_property
    def window_points(self) -> int:
        return math.prod(size for _, size in self.windows)

    @property
    def batch(self) -> list[tuple[str, int]]:
        """Dimensions of both operands: groups of channels."""
        return [(d, self.sizes[d]) for d in self.contraction.batch]

    @property
    def groups(self) -> int:
        return math.prod(size for _, size in self.batch)

    @property
    def moving(self) -> bool:
        """Whether the operand of columns is computed, and so packed in every call."""
        return self.group.tensor(self.contraction.b.tensor).role != 'constant'


@dataclass(frozen=True)
class BlockedPlan(ProductPlan):
    """A matrix product by blocks of `bk` columns, whose threads or warps own `tk` by `tp`."""

    bk: int
    tk: int
    tp: int
    kb: int
    stages: int
    split: int
    joint: bool

    @property
    def column_tiles(self) -> int:
        return -(-self.columns // self.bk)


@lru_cache(maxsize=256)
def product_of(group: Group, schema: str, moving: bool = False) -> Contraction:
    """The roles of a group's dimensions; raises ScheduleError where it is not a sum of products.

    `moving`: both operands may be computed.
    """
    candidates = vector_candidates(group, moving=moving)
    if not candidates:
        raise ScheduleError(f'{group.label}: the {schema} schema needs a sum of products')
    return contract(group, candidates[0])


def require(group: Group, schedule: GpuSchedule, checks: Iterable[tuple[str, object]]) -> None:
    """Raise ScheduleError for the first (what must be, whether it holds) that does not hold."""
    for text, holds in checks:
        if not holds:
            raise ScheduleError(f'{group.label}: schedule {schedule.tiles}: it must be that {text}')


def pack_kernel(name: str, p: ProductPlan, packed: Array, body: Sequence[str]) -> Kernel:
    """The operand of columns into `packed`, a thread for each element: its number is `flat`."""
    head = [
        f'const int flat = BLOCK_X * {PACK_THREADS} + THREAD;',
        f'if (flat >= {packed.elements})',
        '    return;',
    ]
    args = (pieces.argument(p.group.tensor(p.contraction.b.tensor)), packed)
    grid = (-(-packed.elements // PACK_THREADS), 1, 1)
    return Kernel(name, args, '\n'.join([*head, *body]), grid, PACK_THREADS)


def workspace(split: int, tiles: int, floats: int) -> list[Array]:
    """What blocks that share a tile leave their sums in, and where they count who has come."""
    if split == 1:
        return []
    return [
        Array('partial', ('part', 'tile', 'i'), (split, tiles, floats), written=True),
        Array('counter', ('tile',), (tiles,), 'i32', written=True),
    ]


def buffers_of(arrays: Iterable[Array]) -> list[Buffer]:
    """Memory for arrays beside the group's tensors; counters begin at zero."""
    return [Buffer(a.name, a.dims, a.sizes, a.dtype, a.dtype == 'i32') for a in arrays]


def module_of(
    p: ProductPlan, arrays: Iterable[Array], pack: Kernel | None, kernels: Iterable[Kernel],
    front: Front | None = None,
) -> Module:  # fmt: skip
    """A module that packs and then runs `kernels`, with memory for `arrays`.

    It packs ahead, once, unless the operand is computed.
    """
    packs = (Step.of(pack),) if pack else ()
    operands = {item.name: item.tensor for item in p.epilogue.operands}
    operands |= {number.argument: number.tensor for number in (front.numbers if front else ())}
    return Module(
        p.group,
        (*tensor_buffers(p.group), *buffers_of(arrays)),
        (*(packs if p.moving else ()), *(Step.of(kernel, **operands) for kernel in kernels)),
        () if p.moving else packs,
    )
