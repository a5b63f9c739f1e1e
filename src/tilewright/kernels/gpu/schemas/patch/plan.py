"""What the patch and strip schemas decide before a line is written, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `PatchPlan`. code.py says what the decisions mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu.epilogue import gpu_epilogue
from tilewright.kernels.gpu.language import Array
from tilewright.kernels.gpu.product import BlockedPlan, product_of, require
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

NAME, STRIP = 'patch', 'strip'
INTRINSICS = ('mma_tf32x3', 'wgmma_tf32x3', 'wgmma_tf32_bf16')
WARPGROUP = 128
ZEROS = ('joint', 'gap', 'late', 'bulk', 'fresh')  # decisions that may be 0
STEP = 8  # depths of one matrix instruction
MIXED_HELD = 224  # registers of a thread's 255 that may hold sums and parts of pixels
UNROLLED = 48  # steps of a warpgroup that are written out; more are a loop


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the input that the patch extends along.

    coordinate = step * (first pixel of the tile) + const + place in the patch
    """

    number: int
    pixel: str
    step: int
    const: int
    extent: int
    stride: int  # in the patch
    memory: int  # in the input
    size: int
    guarded: bool


@dataclass(frozen=True, slots=True)
class Strip:
    """Pixels in the order of the result, through rows of `width` and images of `height` rows.

    padded   rows of the input under one image, halo included    step   those from row to row
    window   rows under one row of pixels                        image  floats between two images
    """

    pixels: int
    width: int
    height: int
    padded: int
    step: int
    window: int
    image: int

    def rows(self, block: int) -> int:
        """Rows of the input under a block's pixels, at most, windows included."""
        first = np.arange(0, self.pixels, block)
        last = np.minimum(first + block, self.pixels) - 1
        return int(np.max(self._row(last) - self._row(first))) + self.window

    def _row(self, pixel: np.ndarray) -> np.ndarray:
        row = pixel // self.width
        return row // self.height * self.padded + row % self.height * self.step


@dataclass(frozen=True)
class PatchPlan(BlockedPlan):
    """Everything that is decided before a line is written."""

    tile: tuple[tuple[str, int], ...]
    wide: bool
    mixed: bool
    axes: tuple[Axis, ...]
    queue: int
    late: bool
    bulk: bool
    strip: Strip | None
    pixels_are_rows: bool = False  # of a matrix: the channels of each lie side by side
    fresh: bool = False

    @property
    def pixels(self) -> int:
        return math.prod(extent for _, extent in self.tile)

    @property
    def bp(self) -> int:
        """Pixels of a block, those that only fill up the last warp included."""
        return -(-self.pixels // self.tp) * self.tp

    @property
    def team(self) -> int:
        """Threads that multiply together: a warp or a warpgroup."""
        return WARPGROUP if self.wide else WARP

    @property
    def threads(self) -> int:
        return (self.bk // self.tk) * (self.bp // self.tp) * self.team

    @property
    def own(self) -> tuple[int, int]:
        """Extents of the sums that one thread holds, as they are declared."""
        return (self.tp // 64, self.tk // 2) if self.wide else (self.tk // 8, self.tp // 4)

    @property
    def grid(self) -> list[tuple[str, int]]:
        """Tiles along every pixel dimension, or of the strip that they all make."""
        sizes = self.sizes | ({} if self.strip is None else {STRIP: self.strip.pixels})
        return [(d, -(-sizes[d] // extent)) for d, extent in self.tile]

    @property
    def pixel_tiles(self) -> int:
        return math.prod(count for _, count in self.grid)

    @property
    def iterations(self) -> int:
        return -(-self.channels // self.kb)

    @property
    def depth(self) -> int:
        """Rows of the packed operand in one piece: whole steps."""
        return -(-self.kb * self.window_points // STEP) * STEP

    @property
    def steps(self) -> int:
        """Steps of eight depths in one piece."""
        return self.depth // STEP

    @property
    def pairs(self) -> int:
        """Steps of sixteen depths; the last one may be half empty."""
        return -(-self.steps // 2)

    @property
    def at_once(self) -> int:
        """Terms of a sum that matrix units add up before they begin anew, where they do."""
        return self.depth if self.wide else STEP

    @property
    def tiles(self) -> int:
        return self.pixel_tiles * self.column_tiles * self.groups

    @property
    def plane(self) -> int:
        """Places of the patch in one channel."""
        return self.bp if self.pixels_are_rows else math.prod(axis.extent for axis in self.axes)

    @property
    def spread(self) -> bool:
        """Whether places of the patch do not lie side by side."""
        return self.axes[0].extent * self.axes[0].stride != self.plane

    @property
    def plane_pitch(self) -> int:
        """Floats between two channels: eight banks apart, so that four of them do not collide."""
        floats = self.axes[0].extent * self.axes[0].stride
        return floats + (8 - floats) % 32

    @property
    def row_pitch(self) -> int:
        """Floats between two pixels that are rows: an odd number of fours, so that eight pixels
        by four channels do not collide.
        """
        return self.kb + 4

    @property
    def channel_pitch(self) -> int:
        """Floats between two channels of a pixel in shared memory."""
        return 1 if self.pixels_are_rows else self.plane_pitch

    @property
    def piece_floats(self) -> int:
        """Floats of one piece of the pixels in shared memory."""
        return self.bp * self.row_pitch if self.pixels_are_rows else self.kb * self.plane_pitch

    @property
    def pitch(self) -> int:
        """Floats between two depths of the packed operand in shared memory."""
        return self.bk + 8

    @property
    def packed(self) -> Array:
        """The operand of columns as pieces of it lie in shared memory."""
        name = f'{self.contraction.b.tensor}_packed'
        if not self.wide:
            sizes = (self.groups, self.iterations * self.depth, self.column_tiles * self.bk)
            return Array(name, ('g', 'e', 'k'), sizes)
        pieces = (self.groups, self.iterations, self.column_tiles)
        parts = (self.steps + 2 * self.pairs,) if self.mixed else (self.steps, 2)
        named = ('part',) if self.mixed else ('step', 'low')
        return Array(
            name, ('g', 'piece', 'tile', *named, 'four', 'row8', 'row', 'q'),
            (*pieces, *parts, 2, self.bk // 8, 8, 4),
        )  # fmt: skip

    @cached_property
    def unit(self) -> int:
        """Places that are copied at once: fours where pixels lie in one aligned row."""
        strides, const = access_strides(self.group, self.contraction.a)
        axis = self.axes[0]
        steps = [stride for name, stride in strides.items() if name != axis.pixel]
        row = len(self.axes) == 1 and axis.step == axis.memory == 1 and not self.windows
        return 1 if not row or any(n % 4 for n in (axis.extent, axis.size, const, *steps)) else 4

    @property
    def copied(self) -> int:
        """Copies of one channel; of rows, a quarter of them copies four."""
        return self.plane // (4 if self.pixels_are_rows else self.unit)

    @property
    def lanes(self) -> int:
        """Threads that copy one channel together: whole warps."""
        return min(self.threads, -(-self.copied // WARP) * WARP)

    @property
    def places(self) -> int:
        """Copies of a channel that one thread makes."""
        return -(-self.copied // self.lanes)


def plan(group: Group, schedule: GpuSchedule) -> PatchPlan:
    """[Group, GpuSchedule] -> [PatchPlan]; raises ScheduleError where the schedule is not legal."""
    c = product_of(group, 'patch', moving=True)
    if c.columns or not c.loop:
        raise ScheduleError(
            f'{group.label}: the patch schema needs one column and one channel axis'
        )
    if c.batch and group.tensor(c.b.tensor).role != 'constant':
        # Many small matrices: packing each in every call does not pay.
        raise ScheduleError(f'{group.label}: the patch schema packs computed operands of one batch')
    told = dict(schedule.tiles)
    numbers = [value for name, value in schedule.tiles if name not in ZEROS]
    require(group, schedule, [('every decision is at least 1', min(numbers) >= 1)])
    rows = schedule.schema == STRIP and is_rows(group, c)
    if schedule.schema == STRIP:
        tile = ((STRIP, schedule['bp']),)
        strip, axes = (_row_strip(group, c), ()) if rows else _strip(group, c, schedule['bp'])
    else:
        tile = tuple((d, schedule[f'b{d.rstrip("_")}']) for d in c.pixels)
        strip, axes = None, _axes(group, c, dict(tile), told.get('gap', 0))
    p = PatchPlan(
        group, c, gpu_epilogue(group), schedule['bk'], schedule['tk'], schedule['tp'],
        schedule['kb'], schedule['stages'], schedule['split'], bool(schedule['joint']), tile,
        schedule.intrinsic.startswith('wgmma'), schedule.intrinsic == 'wgmma_tf32_bf16',
        axes, told.get('queue', 1), bool(told.get('late', 0)),
        bool(told.get('bulk', 0)), strip, rows, bool(told.get('fresh', 0)),
    )  # fmt: skip
    held = (2 if p.fresh else 1) * p.tk * p.tp // WARPGROUP + 32 * (p.tp // 64)
    checks = [
        (f'the intrinsic is one of {INTRINSICS}', schedule.intrinsic in INTRINSICS),
        ('bk is a multiple of tk, and tk of 16', p.tk % 16 == 0 and p.bk % max(p.tk, 1) == 0),
        (f'tp is a multiple of {64 if p.wide else 8}', p.tp % (64 if p.wide else 8) == 0),
        ('tk is bk, and at most 256, for a warpgroup', not p.wide or p.tk == p.bk <= 256),
        (
            f'sums of a thread and parts of its pixels, {held}, are at most {MIXED_HELD} in two '
            f'precisions; choose a smaller tk or tp',
            not (p.mixed or (p.wide and p.fresh)) or held <= MIXED_HELD,
        ),
        ('kb is a multiple of 8 unless depths are joint', p.joint or p.kb % STEP == 0),
        (
            'rows are for warpgroups, and not joint',
            not p.pixels_are_rows or (p.wide and not p.joint),
        ),
        (
            f'split, {p.split}, is at most the number of pieces, {-(-p.channels // max(p.kb, 1))}',
            p.split <= -(-p.channels // max(p.kb, 1)),
        ),
        (
            f'queue is 1, or 2 for warpgroups and at most {UNROLLED} steps a piece',
            p.queue == 1 or (p.queue == 2 and p.wide and p.steps <= UNROLLED),
        ),
        (
            'bulk is for warpgroups, late or with one stage',
            not p.bulk or (p.wide and (p.late or p.stages == 1)),
        ),
        ('late is for warpgroups with several stages', not p.late or (p.wide and p.stages > 1)),
        (
            f'bp, {p.pixels}, is a multiple of tp, {p.tp}; change either',
            p.strip is None or p.pixels % max(p.tp, 1) == 0,
        ),
        *(
            (
                f'b{d.rstrip("_")}, {e}, is at most {p.sizes[d]}; choose a smaller one',
                e <= p.sizes[d],
            )
            for d, e in (tile if p.strip is None else ())
        ),
    ]
    require(group, schedule, checks)
    return p


def _axes(
    group: Group, c: Contraction, tile: dict[str, int], gap: int
) -> tuple[Axis, ...]:  # fmt: skip
    """The axes of the input that pixels or windows move along, fastest last.

    Steps along the first of them are `gap` floats longer than they need to be.
    """
    tensor, stage = group.tensor(c.a.tensor), group.main
    windows = {d: stage.sizes[d] for d in (*c.outer, *c.unrolled)}
    found = []
    for number, expression in enumerate(c.a.index):
        moving = [n for n in expression.names if n in tile]
        if not moving and not set(expression.names) & set(windows):
            continue
        if len(moving) != 1 or set(expression.names) - set(windows) - {moving[0]}:
            raise ScheduleError(f'{group.label}: axis {number} of its input moves with {moving}')
        pixel = moving[0]
        step = expression.coefficient(pixel)
        extent = expression.extent({**windows, **tile})
        covered = -(-stage.sizes[pixel] // tile[pixel]) * tile[pixel]
        last = expression.const + expression.extent({**windows, pixel: covered}) - 1
        size = tensor.shape[number]
        guarded = expression.const < 0 or last >= size
        found.append((number, pixel, step, expression.const, extent, size, guarded))
    if not found:
        raise ScheduleError(f'{group.label}: no pixel moves along its input')
    strides, step = [], 1
    for *_, extent, _, _ in reversed(found):
        strides.append(step)
        step *= extent
    strides[-1] += gap if len(strides) > 1 else 0
    return tuple(
        Axis(
            number, pixel, coefficient, const, extent, stride, tensor.strides[number], size, guarded
        )
        for (number, pixel, coefficient, const, extent, size, guarded), stride in zip(
            found, reversed(strides), strict=True
        )
    )


def _strip(group: Group, c: Contraction, block: int) -> tuple[Strip, tuple[Axis, ...]]:
    """The strip of all pixels, and the two axes of its patch: rows through all images, columns."""
    sizes, tensor = group.main.sizes, group.tensor(c.a.tensor)
    whole = _axes(group, c, {d: sizes[d] for d in c.pixels}, 0)
    if len(c.pixels) != 3 or [a.pixel for a in whole] != list(c.pixels):
        raise ScheduleError(
            f'{group.label}: a strip needs images, rows and columns, each along an input axis'
        )
    images, down, across = whole
    if (images.step, images.const, images.extent) != (1, 0, sizes[c.pixels[0]]) or block < 1:
        raise ScheduleError(f'{group.label}: a strip of {block} pixels needs whole images')
    count, height, width = (sizes[d] for d in c.pixels)
    window = down.extent - (height - 1) * down.step
    strip = Strip(
        count * height * width, width, height, down.extent, down.step, window,
        tensor.strides[images.number],
    )  # fmt: skip
    rows = replace(down, extent=strip.rows(block), stride=across.extent, guarded=True)
    return strip, (rows, replace(across, stride=1))


def is_rows(group: Group, c: Contraction) -> bool:
    """Whether pixels are rows of a matrix: channels side by side, four at a time aligned, pixel
    after pixel, and no window.
    """
    strides, const = access_strides(group, c.a)
    sizes, tensor = group.main.sizes, group.tensor(c.a.tensor)
    windows = any(sizes[d] > 1 for d in (*c.outer, *c.unrolled))
    if windows or not c.loop or strides.get(c.loop) != 1 or c.columns:
        return False
    inside = all(
        e.const == 0 and e.extent(sizes) <= n for e, n in zip(c.a.index, tensor.shape, strict=True)
    )
    moving = [d for d in c.pixels if sizes[d] > 1]
    if not moving or not inside:
        return False
    step = strides.get(moving[-1], 0)
    for d in reversed(moving):
        if strides.get(d) != step:
            return False
        step *= sizes[d]
    others = [strides.get(d, 0) for d in c.batch]
    return not any(n % 4 for n in (strides[moving[-1]], const, sizes[c.loop], *others))


def row_channels(group: Group) -> int:
    """Channels of a group whose pixels are rows; 0 where they are not."""
    found = vector_candidates(group, moving=True)
    c = contract(group, found[0]) if found else None
    return group.main.sizes[c.loop] if c is not None and is_rows(group, c) else 0


def _row_strip(group: Group, c: Contraction) -> Strip:
    """All pixels, each a row; `image` is the floats from one to the next."""
    strides, _ = access_strides(group, c.a)
    moving = [d for d in c.pixels if group.main.sizes[d] > 1]
    count = math.prod(group.main.sizes[d] for d in c.pixels)
    return Strip(count, 1, count, count, 1, 1, strides[moving[-1]])


def window_stride(p: PatchPlan, name: str) -> int:
    """Places of the patch that one step of a window dimension moves by."""
    index = p.contraction.a.index
    return sum(axis.stride * index[axis.number].coefficient(name) for axis in p.axes)
