"""What the schema of pixels decides before it writes a line.

Goes in: a convolution whose result has pixels innermost, weights that are constant, and a schedule
with schema 'pixels'. Comes out: a `PixelsPlan`, or a ScheduleError that says why the schedule is
not legal.

Input tiles are copied so that vectors of pixels are loaded as they lie, in one of two forms:

    strips    [strip][c][pixels of a register tile]       1x1 without a stride: one row of pixels
    rows      [c][row][phase][column]                     else: padded, columns of a stride apart

so that neighbouring results read neighbours whatever the stride (kernels/cpu/operand.py). What
comes before the products (ops/front.py) is computed on the way.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.contraction import check_plain, contract, vector_candidates
from tilewright.kernels.cpu.front import Front, plan_cpu_front
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.x86 import UNROLL
from tilewright.kernels.cpu.isa.x86_rows import SOURCE_AHEAD, RowKernel, registers_needed
from tilewright.kernels.cpu.operand import LINE_FLOATS, odd_lines
from tilewright.kernels.cpu.pointwise import Epilogue, Operand, access_strides, typed_epilogue
from tilewright.kernels.cpu.schemas.outer.finish import Finished, read_finish
from tilewright.kernels.cpu.schemas.pixels.corner import corner_pixels
from tilewright.machine.isa import ISAS
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine
from tilewright.schedule.schedule import Schedule

FAR_BYTES = 1 << 18  # of weights, which in a network no near cache keeps from call to call
UNROLLED = 9  # points of a window that are written out; of larger ones, those of a row


@dataclass(frozen=True, slots=True)
class Axis:
    """Results along one axis of pixels, and the taps of a window over it.

    Result i reads the input at i * step + tap for each of `taps`, of which `extent` are inside.
    `name` is '' where the result has no such axis, `window` where no window slides.
    """

    name: str = ''
    size: int = 1
    step: int = 1
    taps: tuple[int, ...] = (0,)
    extent: int = 1
    window: str = ''


@dataclass(frozen=True, slots=True)
class Shape:
    """The roles of a convolution's dimensions; `batch` and `rows` may be absent."""

    channels: str  # of the result
    batch: str
    summed: str
    down: Axis
    across: Axis

    @property
    def flat(self) -> bool:
        """Whether pixels are one run of memory, in the input as in the result."""
        return not self.down.name and self.across.step == 1 and self.across.taps == (0,)


@lru_cache(maxsize=256)
def shape_of(group: Group) -> Shape | None:
    """The roles of a group's dimensions; None where it is no convolution of this kind."""
    if not group.is_plain or not group.main.is_product_sum:
        return None
    if group.stages[0] is not group.main and not has_front(group):
        return None
    stage, candidates = group.main, vector_candidates(group)
    if len(candidates) != 1:
        return None
    c = contract(group, candidates[0])
    written = [e for e in stage.write.index if e.terms]
    if any(e.terms != ((e.names[0], 1),) or e.const for e in written) or c.batch or c.columns:
        return None
    order = [e.names[0] for e in written]
    before = {d for e in c.a.index for d in e.names if len(e.terms) > 1}
    plain = [d for d in stage.reduction if d not in before]
    own = [e for e in c.a.index if e.terms]
    if len(plain) != 1 or not order or order[-1] == c.vector or len(own) < 2:
        return None
    at, tensor = [set(e.names) for e in own], group.tensor(c.a.tensor)
    place = order.index(c.vector)
    batch, spatial = order[:place], order[place + 1 :]
    shapes = [s for e, s in zip(c.a.index, tensor.shape, strict=True) if e.terms]
    head = [{d} for d in (*batch, plain[0])]
    straight = all(e.terms == ((e.names[0], 1),) and not e.const for e in own[: len(head)])
    if len(batch) > 1 or len(spatial) not in (1, 2) or at[: len(head)] != head or not straight:
        return None
    if len(own) != len(head) + len(spatial):
        return None
    axes = [
        _axis(group, name, e, extent)
        for name, e, extent in zip(spatial, own[len(head) :], shapes[len(head) :], strict=True)
    ]
    if None in axes or set(stage.parallel) != {*order}:
        return None
    down, across = [Axis(), *(a for a in axes if a)][-2:]
    if {a.window for a in (down, across) if a.window} | {plain[0]} != {*stage.reduction}:
        return None
    return Shape(c.vector, batch[0] if batch else '', plain[0], down, across)


def _axis(group: Group, name: str, index: Affine, extent: int) -> Axis | None:
    sizes, others = group.main.sizes, [d for d in index.names if d != name]
    if name not in index.names or len(others) > 1 or any(d in group.main.parallel for d in others):
        return None
    window = others[0] if others else ''
    step = index.coefficient(window)
    taps = tuple(index.const + step * i for i in range(sizes[window] if window else 1))
    return Axis(name, sizes[name], index.coefficient(name), taps, extent, window)


def finish_of(group: Group, shape: Shape) -> tuple[Finished | None, Epilogue]:
    """What micro-kernels do behind their sums; None where they cannot, and sums that were stored
    go through the epilogue in C.
    """
    out, _ = access_strides(group, group.main.write)
    pixels = [a.name for a in (shape.down, shape.across) if a.name]
    around = [*pixels, shape.batch]

    def is_bias(item: Operand) -> bool:
        alone = item.stride(shape.channels) == 1 and not any(item.stride(d) for d in around)
        return alone and item.dtype == 'f32'

    def is_more(item: Operand) -> bool:
        same = all(item.stride(d) == out.get(d, 0) for d in (*around, shape.channels))
        return same and item.dtype == 'f32'

    epilogue = typed_epilogue(group)
    return read_finish(group, epilogue.operands, is_bias, is_more), epilogue


def why_no_pixels(group: Group) -> str:
    """Why no schedule of the schema can compute a group; '' where one can."""
    shape = shape_of(group)
    if shape is None:
        return f'{group.label} is no convolution whose result has pixels innermost'
    if any(t.dtype != 'f32' for t in group.tensors):
        return f'{group.label} has tensors that are not f32'
    return ''


@dataclass(frozen=True)
class PixelsPlan:
    """Everything that the generator decides before it writes a line.

    `front` is computed as the input is copied. Without `finish` what follows the sums is left to
    the epilogue. `high` and `wide` are rows and vectors of a register tile, `most` the most
    channels of one, `block` the results along rows (or along the run of pixels) whose input is
    copied at once. `dealt`: results along rows that threads deal out together (0: one row, or one
    vector of the run of pixels). `corners`: the last few pixels of a run are computed by themselves
    (corner.py). `copies`: micro-kernels may copy pixels as they multiply them.
    """

    group: Group
    schedule: Schedule
    shape: Shape
    front: Front | None
    finish: Finished | None
    epilogue: Epilogue
    most: int
    high: int
    wide: int
    block: int
    dealt: int = 0
    corners: bool = True
    copies: bool = True

    @property
    def lanes(self) -> int:
        return ISAS[self.schedule.isa].lanes

    @property
    def sizes(self) -> dict[str, int]:
        return self.group.main.sizes

    @property
    def axis(self) -> Axis:
        """Along which blocks are cut."""
        return self.shape.down if self.shape.down.name else self.shape.across

    @property
    def unit(self) -> int:
        """Results along that axis that threads deal out."""
        return self.dealt or (1 if self.shape.down.name else self.lanes)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Channels of the register tiles: as even as they can be, also among threads."""
        size = self.sizes[self.shape.channels]
        tiles = -(-size // self.most)
        starts = [tile * size // tiles for tile in range(tiles + 1)]
        return tuple(end - start for start, end in itertools.pairwise(starts))

    @property
    def held_floats(self) -> int:
        """What the tiles of channels of most blocks read again."""
        return self.buffer_floats

    @property
    def corner(self) -> int:
        """Pixels at the end of a run that are computed with channels across the lanes."""
        if not (self.corners and self.shape.flat) or max(self.counts) > self.lanes:
            return 0
        found = corner_pixels(self.shape.across.size, self.lanes)
        return found if self.shape.across.size % self.strip == found else 0

    @property
    def joined(self) -> bool:
        """Whether the micro-kernel of the strip before them computes them as well."""
        need = registers_needed(max(self.counts), self.wide) + self.corner
        return self.corner > 0 and need <= ISAS[self.schedule.isa].registers

    @property
    def packed_end(self) -> int:
        """Floats of packed weights, and of lanes behind the last that are read."""
        return self.packed_floats + (self.lanes if self.corner else 0)

    @property
    def source_pitch(self) -> int:
        """Floats from channel to channel of the input, where the first tile of channels copies
        whole strips as it multiplies them, but for one that is joined with the last pixels; 0 where
        all are copied before.
        """
        size = self.shape.across.size
        alone = self.copies and self.shape.flat and self.front is None
        return size if alone and self.copied_beside(size) else 0

    def copied_beside(self, size: int) -> int:
        """Of the last `size` pixels of a run, those in strips that micro-kernels may copy."""
        strips = size // self.strip
        if self.joined and size % self.strip == self.corner:
            strips -= 1
        return max(0, strips) * self.strip

    @property
    def taps(self) -> int:
        return len(self.shape.down.taps) * len(self.shape.across.taps)

    @cached_property
    def vectors(self) -> int:
        """Vectors of a whole row of results."""
        return -(-self.shape.across.size // self.lanes)

    # The copy, in floats; in strips `channel` is the width of a strip.
    @property
    def jump(self) -> int:
        """Rows of the input from one that is copied to the next: a stride leaves out rows that no
        window needs.
        """
        return self.shape.down.step if len(self.shape.down.taps) == 1 else 1

    @property
    def copied_rows(self) -> int:
        """Rows that a block of results needs."""
        return self.rows_of(self.block)

    def rows_of(self, results: int) -> int:
        down = self.shape.down
        reach = (results - 1) * down.step + down.taps[-1] - down.taps[0]
        return reach // self.jump + 1

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """Columns of the input from the first tap, modulo the step, that windows need."""
        across = self.shape.across
        return tuple(sorted({(t - across.taps[0]) % across.step for t in across.taps}))

    @property
    def columns(self) -> int:
        """Floats of a row of one phase: whole vectors behind the last tap."""
        across = self.shape.across
        reach = (across.taps[-1] - across.taps[0]) // across.step
        return -(-(self.vectors * self.lanes + reach) // LINE_FLOATS) * LINE_FLOATS

    @property
    def row(self) -> int:
        return self.columns * len(self.phases)

    @property
    def strip(self) -> int:
        """Pixels of a strip."""
        return self.wide * self.lanes

    @property
    def channel(self) -> int:
        return self.strip if self.shape.flat else odd_lines(self.copied_rows * self.row)

    @property
    def strip_floats(self) -> int:
        return odd_lines(self.sizes[self.shape.summed] * self.strip)

    @property
    def buffer_floats(self) -> int:
        if self.shape.flat:
            return -(-self.block // self.strip) * self.strip_floats
        return self.sizes[self.shape.summed] * self.channel

    @property
    def packed_floats(self) -> int:
        return (
            math.prod(self.sizes[d] for d in (self.shape.channels, self.shape.summed)) * self.taps
        )

    def steps(self) -> tuple[tuple[int, ...], int]:
        """(offsets of the points of a window that are written out, rows around them)."""
        down, across = self.shape.down, self.shape.across
        inside = [
            self.phases.index((t - across.taps[0]) % across.step) * self.columns
            + (t - across.taps[0]) // across.step
            for t in across.taps
        ]
        if self.taps > UNROLLED:
            return tuple(inside), len(down.taps)
        starts = [(t - down.taps[0]) // self.jump * self.row for t in down.taps]
        return tuple(a + b for a, b in itertools.product(starts, inside)), 1

    @property
    def tap_row(self) -> int:
        """Floats of the copy from one row of a window to the next."""
        taps = self.shape.down.taps
        return (taps[1] - taps[0]) // self.jump * self.row if len(taps) > 1 else 0

    @property
    def result_row(self) -> int:
        """Floats of the copy from one row of results to the next."""
        return self.shape.down.step // self.jump * self.row

    @property
    def ahead(self) -> int:
        """Lines of weights that a tile of pixels asks for with every UNROLL channels, where weights
        come from afar: its share of the next tile of channels.
        """
        if not self.shape.flat or 4 * self.packed_floats < FAR_BYTES:
            return 0
        lines = -(-UNROLL * self.most // LINE_FLOATS)
        return -(-lines // max(1, min(self.block, self.shape.across.size) // self.strip))

    def kernel(
        self, channels: int, high: int, wide: int, corner: int = 0, copies: bool = False
    ) -> RowKernel:
        """The micro-kernel of a register tile: vectors of `high` rows, `wide` in each, and so many
        of the last pixels; `copies`: that reads pixels from the input, and copies them.
        """
        out, _ = access_strides(self.group, self.group.main.write)
        steps, rows = self.steps()
        finish = self.finish or Finished()
        tile = list(itertools.product(range(high), range(wide)))
        down = out.get(self.shape.down.name, 0)
        return RowKernel(
            self.schedule.isa,
            channels,
            tuple(i * self.result_row + j * self.lanes for i, j in tile),
            tuple(i * down + j * self.lanes for i, j in tile),
            tuple(n for n, (_, j) in enumerate(tile) if j + 1 == wide),
            steps,
            rows,
            self.tap_row,
            self.channel,
            out[self.shape.channels],
            kernel_name(self.schedule.isa, channels, high, wide, corner, copies),
            bool(finish.bias),
            bool(finish.more),
            finish.low,
            finish.high,
            self.ahead,
            corner,
            self.source_pitch if copies else 0,
        )

    @property
    def scratch_floats(self) -> int:
        corner = self.corner * self.lanes
        return abi.aligned(self.buffer_floats + LINE_FLOATS) + abi.aligned(corner)


def kernel_name(
    isa: str, channels: int, high: int, wide: int, corner: int = 0, copies: bool = False
) -> str:
    further = (f'_c{corner}' if corner else '') + ('_copy' if copies else '')
    return f'rows_{isa}_k{channels}_p{high}x{wide}{further}'


def plan_pixels(group: Group, schedule: Schedule) -> PixelsPlan:
    """[Group, Schedule] -> [PixelsPlan]"""
    check_plain(group, front=True)
    label, isa, stage = group.label, ISAS[schedule.isa], group.main
    why = why_no_pixels(group)
    if why:
        raise ScheduleError(f'{why}; use the outer schema')
    shape = shape_of(group)
    assert shape is not None
    finish, epilogue = finish_of(group, shape)
    if not isa.rows_emit:
        raise ScheduleError(f'{label}: {isa.name} has no micro-kernels along rows; use outer')
    if schedule.vector != shape.across.name:
        raise ScheduleError(
            f'{label}: the vector dimension is {schedule.vector!r}; rows lie along '
            f'{shape.across.name}'
        )
    if len(schedule.levels) != 2 or schedule.pack != schedule.levels[1].name:
        raise ScheduleError(
            f'{label}: a schedule of pixels has one level around reg, whose tiles are copied; this '
            f'one has {[level.name for level in schedule.levels]} and pack={schedule.pack!r}'
        )
    reg, tile = schedule.reg.tile, schedule.levels[1].tile
    if set(reg) != set(stage.sizes):
        raise ScheduleError(f'{label}: the schedule does not tile {sorted(stage.sizes)}')
    if reg[shape.across.name] % isa.lanes:
        raise ScheduleError(
            f'{label}: register tile {shape.across.name}={reg[shape.across.name]} is not a '
            f'multiple of the {isa.lanes} lanes of {isa.name}'
        )
    axis = shape.down if shape.down.name else shape.across
    cut = [d for d in stage.sizes if d not in (axis.name, shape.batch) and tile[d] < stage.sizes[d]]
    cut += [d for d in stage.reduction if reg[d] > 1] + [
        d for d in (shape.batch,) if d and reg[d] > 1
    ]
    if cut or tile[axis.name] % reg[axis.name]:
        raise ScheduleError(
            f'{label}: {cut or axis.name} may not be tiled so; rows of results are cut between '
            f'register tiles and for copies, in whole register tiles, and channels for registers'
        )
    bad = [d for d, _ in schedule.parallel if d not in (shape.batch, shape.channels, axis.name)]
    if bad:
        raise ScheduleError(f'{label}: {bad} cannot be cut between threads')
    high = reg[shape.down.name] if shape.down.name else 1
    wide = reg[shape.across.name] // isa.lanes
    need = registers_needed(reg[shape.channels], high * wide)
    if need > isa.registers:
        raise ScheduleError(
            f'{label}: {reg[shape.channels]} x {high * wide} vectors need {need} registers; '
            f'{isa.name} has {isa.registers}: choose a smaller register tile'
        )
    plan = PixelsPlan(
        group, schedule, shape, plan_cpu_front(group), finish, epilogue, reg[shape.channels], high,
        wide, tile[axis.name],
    )  # fmt: skip
    kernel = plan.kernel(plan.counts[0], high, wide)
    reach = 4 * (kernel.pitch * kernel.channels + max(kernel.places))
    reach = max(reach, 16 * (kernel.channel + max(kernel.steps) + max(kernel.vectors)))
    reach = max(reach, 4 * (UNROLL + SOURCE_AHEAD) * plan.source_pitch)
    if reach > micro.REACH_BYTES:
        raise ScheduleError(f'{label}: {reach} bytes are further than an instruction addresses')
    return plan
