"""What the depthwise schema decides before a line is written, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `DepthwisePlan`. code.py says what the decisions mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.pointwise import Epilogue
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.product import require
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Stage
from tilewright.schedule.gpu import GpuSchedule

NAME = 'depthwise'
# Weights of larger windows are read where they are used instead of being kept in registers.
KEPT_WEIGHTS = 49
# Sums, a row and weights of a thread, in registers; addresses and temporaries come on top.
MOST_REGISTERS = 160
# Multiply-adds of a thread: all are written out, and code beyond this leaves the instruction cache.
MOST_STEPS = 4096


@dataclass(frozen=True, slots=True)
class Axis:
    """Rows or columns: output iterator, window iterator ('' if there is none), and the index."""

    out: str
    tap: str
    outputs: int
    taps: int
    stride: int
    dilation: int
    const: int
    extent: int

    def span(self, outputs: int) -> int:
        """Elements of the image between the first and the last that so many outputs read."""
        return (outputs - 1) * self.stride + (self.taps - 1) * self.dilation + 1


@dataclass(frozen=True)
class DepthwisePlan:
    """Everything that is decided before a line is written."""

    group: Group
    image: Access
    weights: Access
    epilogue: Epilogue
    rows: Axis
    columns: Axis
    th: int
    tw: int
    bh: int
    bw: int
    bp: int
    shared: bool

    @property
    def stage(self) -> Stage:
        return self.group.main

    @property
    def threads(self) -> int:
        return self.bp * self.bh * self.bw

    @property
    def planes(self) -> list[tuple[str, int]]:
        images = (self.rows.out, self.columns.out)
        return [(d, self.stage.sizes[d]) for d in self.stage.parallel if d not in images]

    @property
    def plane_count(self) -> int:
        return math.prod(size for _, size in self.planes)

    @property
    def tiles(self) -> tuple[int, int, int]:
        """Blocks along planes, rows and columns."""
        return (
            -(-self.plane_count // self.bp),
            -(-self.rows.outputs // (self.bh * self.th)),
            -(-self.columns.outputs // (self.bw * self.tw)),
        )

    @property
    def fours(self) -> bool:
        """Whether columns of the image that are four apart from its edge begin 16 bytes."""
        return self.columns.extent % 4 == 0 and self.tw * self.columns.stride % 4 == 0

    @property
    def phase(self) -> int:
        """Elements between 16 bytes and the first column of any thread."""
        return self.columns.const % 4 if self.fours else 0

    @property
    def block_rows(self) -> int:
        """Rows of the image that a block needs."""
        return self.rows.span(self.bh * self.th)

    @property
    def pitch(self) -> int:
        """Floats of a row in shared memory."""
        return -(-(self.columns.span(self.bw * self.tw) + self.phase) // 4) * 4

    @property
    def shared_floats(self) -> int:
        """The block's part of the image, padding included."""
        return self.bp * self.block_rows * self.pitch if self.shared else 0

    @property
    def kept(self) -> bool:
        return self.rows.taps * self.columns.taps <= KEPT_WEIGHTS


def plan(group: Group, schedule: GpuSchedule) -> DepthwisePlan:
    """[Group, GpuSchedule] -> [DepthwisePlan]; raises ScheduleError where that is not legal."""
    image, weights, rows, columns = roles(group)
    numbers = th, tw, bh, bw, bp = [schedule[name] for name in ('th', 'tw', 'bh', 'bw', 'bp')]
    p = DepthwisePlan(
        group, image, weights, gpu_epilogue(group), rows, columns, th, tw, bh, bw, bp,
        bool(schedule['shared']),
    )  # fmt: skip
    require(
        group,
        schedule,
        [
            ("the intrinsic is 'fma'", schedule.intrinsic == 'fma'),
            ('th, tw, bh, bw and bp are at least 1', min(numbers) >= 1),
            (f'th*tw*r*s is at most {MOST_STEPS}', _steps(p) <= MOST_STEPS),
            (
                f'a thread keeps at most {MOST_REGISTERS} numbers',
                kept_registers(p) <= MOST_REGISTERS,
            ),
        ],
    )
    return p


def _steps(p: DepthwisePlan) -> int:
    return p.th * p.tw * p.rows.taps * p.columns.taps


def kept_registers(p: DepthwisePlan) -> int:
    weights = p.rows.taps * p.columns.taps if p.kept else 1
    return p.th * p.tw + p.columns.span(p.tw) + weights


def roles(group: Group) -> tuple[Access, Access, Axis, Axis]:
    """(image, weights, rows, columns), or a ScheduleError that says what does not fit."""
    stage = group.main
    if not stage.is_product_sum or stage.pad_value != 0:
        raise ScheduleError(f'{group.label}: the depthwise schema needs a sum of products')
    for image, weights in (stage.reads, stage.reads[::-1]):
        found = [_axis(group, stage, image, place) for place in (-2, -1)]
        if len(image.index) < 2 or None in found:
            continue
        rows, columns = (axis for axis in found if axis)
        window = {rows.tap, columns.tap}
        outer = {d for d in stage.reduction if stage.sizes[d] > 1} - window
        outside = {n for e in image.index[:-2] for n in e.names} | set(weights.names)
        if not outer and not outside & {rows.out, columns.out}:
            return image, weights, rows, columns
    raise ScheduleError(
        f'{group.label}: the depthwise schema needs an image whose last two dimensions are rows '
        f'and columns under a window, and no other sum'
    )


def _axis(group: Group, stage: Stage, image: Access, place: int) -> Axis | None:
    """The image's dimension at `place` as outputs under a window; None where it is none."""
    if len(image.index) < 2 or len(stage.write.index) < 2:
        return None
    index, target = image.index[place], stage.write.index[place]
    out = [n for n in index.names if n in stage.parallel]
    taps = [n for n in index.names if n not in stage.parallel]
    if len(out) != 1 or len(taps) > 1 or target != Affine(((out[0], 1),)):
        return None
    tap = taps[0] if taps else ''
    return Axis(
        out[0], tap, stage.sizes[out[0]], stage.sizes[tap] if tap else 1,
        index.coefficient(out[0]), index.coefficient(tap) if tap else 1, index.const,
        group.tensor(image.tensor).shape[place],
    )  # fmt: skip
