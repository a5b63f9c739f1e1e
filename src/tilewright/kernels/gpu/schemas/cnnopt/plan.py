"""What CNNOpt's two kernels decide before a line is written (PACT'22, Secs. 3.1-3.2, Table 1).

Goes in: a group whose main stage is a convolution over a two-dimensional window with a constant
kernel, and a schedule of schema `rs` or `s`. Comes out: a `CnnoptPlan`, or an error that says what
is wrong. The paper's symbols, for each of k (output channels), y and x (rows and columns of
outputs)

    rk ry rx   R^k R^y R^x   outputs that a thread holds in registers
    tk ty tx   T_k T_y T_x   threads of a warp along each dimension, 32 in all
    wk wy wx   W_k W_y W_x   warps of a block

so that a block computes W^d = W_d T_d R^d outputs along d. Further decisions:

    split      CMult: blocks that share the input channels of one tile
    join       how their sums are joined: 0 atomics on a zeroed result, 1 a second pass over a
               workspace, 2 a workspace that the tile's last block sums up in a fixed order
    cb stages  channels that are staged at once, and how many such pieces are in flight; the paper
               has 1 and 1

Differences from the paper: tiles need not divide the sizes; strides, dilation and padding are those
of the access maps; any dimension beside (batch, channel groups) is a dimension of the grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.language import Array
from tilewright.kernels.gpu.product import ProductPlan, product_of, require
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine
from tilewright.schedule.gpu import GpuSchedule

RS, S = 'rs', 's'
JOINS = ('atomics', 'second pass', 'last block')
DECISIONS = (
    'rk', 'ry', 'rx', 'tk', 'ty', 'tx', 'wk', 'wy', 'wx', 'cb', 'stages', 'split', 'join',
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Axis:
    """A spatial dimension: outputs `pixel`, window `window`, input index stride p + dilation w + c.

    place    which index of the input tensor it is
    """

    pixel: str
    window: str
    stride: int
    dilation: int
    const: int
    outputs: int
    taps: int
    extent: int
    place: int

    def slice(self, outputs: int) -> int:
        """Inputs that neighbouring outputs read: stride 1 gives the paper's W + F - 1."""
        return (outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class CnnoptPlan(ProductPlan):
    """A legal schedule, with everything that follows from it."""

    y: Axis
    x: Axis
    registers: tuple[int, int, int]  # k, y, x; likewise the next two
    lanes: tuple[int, int, int]
    warps: tuple[int, int, int]
    cb: int
    stages: int
    split: int
    join: int
    rows: bool  # the S kernel: one row of the input slice in registers at a time

    @property
    def threads(self) -> int:
        return WARP * math.prod(self.warps)

    @property
    def block(self) -> tuple[int, int, int]:
        """W^k, W^y, W^x: outputs of a block."""
        k, y, x = (
            r * t * w for r, t, w in zip(self.registers, self.lanes, self.warps, strict=True)
        )
        return k, y, x

    @property
    def iterations(self) -> int:
        """Pieces of `cb` channels."""
        return -(-self.channels // self.cb)

    @property
    def share(self) -> int:
        """Pieces of one part; the last part may have fewer."""
        return -(-self.iterations // self.split)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Blocks along k, y and x."""
        k, y, x = self.block
        return -(-self.columns // k), -(-self.y.outputs // y), -(-self.x.outputs // x)

    @property
    def images(self) -> list[tuple[str, int]]:
        """Dimensions of the input alone that no window slides over."""
        spatial = (self.y.pixel, self.x.pixel)
        return [(d, self.sizes[d]) for d in self.contraction.pixels if d not in spatial]

    @property
    def grid(self) -> tuple[int, int, int]:
        k, y, x = self.tiles
        return math.prod(size for _, size in self.images) * y * x, k * self.groups, self.split

    @property
    def taps(self) -> int:
        """F_y F_x."""
        return self.y.taps * self.x.taps

    @property
    def plane(self) -> tuple[int, int]:
        """Rows and columns of the input that a block stages for each channel."""
        return self.y.slice(self.block[1]), self.x.slice(self.block[2])

    @property
    def slice(self) -> tuple[int, int]:
        """Rows and columns of the input that a thread has in registers at once."""
        return 1 if self.rows else self.y.slice(self.registers[1]), self.x.slice(self.registers[2])

    @property
    def shared_floats(self) -> int:
        """Floats of shared memory: input plane and weights of every staged channel.

        The paper gives no equation for this limit.
        """
        rows, columns = self.plane
        return self.stages * self.cb * (rows * columns + self.taps * self.block[0])

    @property
    def operands(self) -> int:
        """Registers of a thread for outputs, inputs and a weight: Eqs. 2 and 3.

        Eq. 2 prints the sum of the sides of the input slice; the text means their product.
        """
        return math.prod(self.registers) + math.prod(self.slice) + 1

    @property
    def padded_columns(self) -> int:
        return self.tiles[0] * self.block[0]

    @property
    def packed(self) -> Array:
        """The weights: [group][C][R S][K]."""
        sizes = (self.groups, self.channels, self.taps, self.padded_columns)
        return Array(f'{self.contraction.b.tensor}_packed', ('g', 'c', 'tap', 'k'), sizes)


def plan(group: Group, schedule: GpuSchedule) -> CnnoptPlan:
    """[Group, GpuSchedule] -> [CnnoptPlan]; raises ScheduleError where that is not legal."""
    contraction = product_of(group, schedule.schema)
    y, x = _axes(group, contraction, schedule.schema)
    registers, lanes, warps = (_level(schedule, level) for level in 'rtw')
    cb, stages, split, join = (schedule[name] for name in ('cb', 'stages', 'split', 'join'))
    numbers = (*registers, *lanes, *warps, cb, stages, split)
    require(
        group,
        schedule,
        [
            ("the intrinsic is 'fma'", schedule.intrinsic == 'fma'),
            ('every decision but join is at least 1', min(numbers) >= 1),
            (f'tk ty tx are {WARP} threads', math.prod(lanes) == WARP),
            (f'join is below {len(JOINS)}: {", ".join(JOINS)}', join < len(JOINS)),
        ],
    )
    p = CnnoptPlan(
        group, contraction, gpu_epilogue(group), y, x, registers, lanes, warps, cb, stages,
        split, join, schedule.schema == S,
    )  # fmt: skip
    pieces = p.iterations
    require(group, schedule, [(f'split is at most the {pieces} pieces', split <= pieces)])
    return p


def _level(schedule: GpuSchedule, level: str) -> tuple[int, int, int]:
    return schedule[f'{level}k'], schedule[f'{level}y'], schedule[f'{level}x']


def _axes(group: Group, contraction: Contraction, schema: str) -> tuple[Axis, Axis]:
    """The two spatial dimensions, in the order of the input's indices."""
    c, sizes = contraction, group.main.sizes
    shape = group.tensor(c.a.tensor).shape
    found = [
        axis
        for place, expression in enumerate(c.a.index)
        if (axis := _axis(expression, place, shape[place], c.pixels, sizes)) is not None
    ]
    windows = {axis.window for axis in found}
    left = [d for d in c.reduction if d not in windows and d != c.loop]
    if len(found) != 2 or left or c.columns:
        raise ScheduleError(
            f'{group.label}: schema {schema} needs a window over two dimensions of the input and '
            f'one reduction beside; choose tiled or general'
        )
    return found[0], found[1]


def _axis(
    expression: Affine, place: int, extent: int, pixels: tuple[str, ...], sizes: dict[str, int]
) -> Axis | None:
    moving = [n for n in expression.names if n in pixels]
    other = [n for n in expression.names if n not in pixels]
    if len(moving) != 1 or len(other) != 1:
        return None
    pixel, window = moving[0], other[0]
    return Axis(
        pixel, window, expression.coefficient(pixel), expression.coefficient(window),
        expression.const, sizes[pixel], sizes[window], extent, place,
    )  # fmt: skip
