"""A chain whose last part has pixels across the lanes: its strips are computed, not copied.

Goes in: a group of a sliding part and a 1x1 convolution, and a schedule whose vector dimension are
the columns. Comes out: a plan, and C whose micro-kernels, stores and loops are those of the schema
of pixels (schemas/pixels).

    for each block of rows
      for each channel: rows of it (rows.py), side by side in a near cache -> strips
      for each tile of channels of the result, for each strip: micro-kernel, stores

Rows of an image may end anywhere in a strip. So a plane is computed as it would lie in memory, with
vectors that stay inside its rows, and copied from there into strips.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.nest import tile_sets
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import write_epilogue
from tilewright.kernels.cpu.schemas.chain.rows import SlidingPlan, plan_planes, write_sliding
from tilewright.kernels.cpu.schemas.pixels import code as pixels_code
from tilewright.kernels.cpu.schemas.pixels.plan import PixelsPlan, plan_pixels, shape_of
from tilewright.kernels.cpu.schemas.pixels.space import pixels_schedule
from tilewright.kernels.cpu.schemas.stencil.plan import option
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import ISAS
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True)
class AcrossPlan:
    """A sliding part, and a 1x1 convolution of the pixels that it made.

    pixels  the last part, rows and columns joined, threads and blocks in whole rows of `width`
    """

    group: Group
    schedule: Schedule
    pixels: PixelsPlan
    sliding: SlidingPlan
    width: int

    @property
    def plane_floats(self) -> int:
        """Floats of the rows of one channel."""
        return abi.aligned(self.pixels.block)

    @property
    def scratch_floats(self) -> int:
        return self.plane_floats + self.pixels.scratch_floats


def rows_and_columns(last: Group) -> tuple[str, str]:
    """The iterators of the last part along rows and columns of its result."""
    down, across = last.main.write.index[-2:]
    return down.names[0], across.names[0]


def plan_across(group: Group, schedule: Schedule) -> AcrossPlan:
    """[Group, Schedule] -> [AcrossPlan]; ScheduleError where the schedule is not legal."""
    *before, slides, last = parts(group)
    if before:
        raise ScheduleError(
            f'{group.label} has {len(before) + 2} parts; with columns as the vector dimension two '
            f'are chained'
        )
    flat, lanes = flatten(last), ISAS[schedule.isa].lanes
    shape = shape_of(flat)
    if shape is None or not shape.flat or len(last.main.write.index) != 4:
        raise ScheduleError(
            f'{group.label}: {last.label} is not a 1x1 convolution without a stride; choose '
            f'channels as the vector dimension'
        )
    down, across = rows_and_columns(last)
    reg, around = schedule.reg.tile, schedule.levels[-1].tile
    if len(schedule.levels) != 2 or schedule.pack != schedule.levels[1].name:
        raise ScheduleError(
            f'{group.label}: a schedule along columns has one level around reg, whose tiles are '
            f'computed; this one has {[level.name for level in schedule.levels]}'
        )
    sizes, axis = last.main.sizes, shape.across.name
    inner = [d for d in reg if d not in (shape.channels, across) and reg[d] > 1]
    cut = [d for d in sizes if d not in (shape.batch, down) and around[d] < sizes[d]]
    bad = [d for d, _ in schedule.parallel if d == across]
    if inner or cut or bad or reg[across] % lanes:
        raise ScheduleError(
            f'{group.label}: {inner or cut or bad or across} may not be tiled so; blocks are whole '
            f'rows, register tiles channels and whole vectors of {lanes} columns'
        )
    width, wide = sizes[across], reg[across] // lanes
    block = min(around[down], sizes[down]) * width
    parallel = tuple((axis if d == down else d, ways) for d, ways in schedule.parallel)
    pack, tile = schedule.pack, (reg[shape.channels], 1, wide)
    made = plan_pixels(flat, pixels_schedule(flat, schedule.isa, tile, block, parallel, pack))
    made = replace(made, corners=False, copies=False)
    heights = tile_sets(last.main, schedule, 1)[down]
    sliding = plan_planes(
        slides, schedule.isa, option(schedule, 'lanes'), heights, option(schedule, 'rows')
    )
    read = last.main.reads[0 if across in last.main.reads[0].names else 1]
    if read.tensor != slides.output.name:
        raise ScheduleError(f'{slides.label}: {read.tensor} is multiplied, not its result')
    spread = f'spread_plane(buffer, strips + i1 * {made.strip}, height * {width});'
    return AcrossPlan(
        group, schedule, replace(made, block=block, dealt=width), replace(sliding, behind=spread),
        width,
    )  # fmt: skip


def generate_across(p: AcrossPlan) -> str:
    """[AcrossPlan] -> [C source]"""
    group, pixels, sliding, writer = p.group, p.pixels, p.sliding, Writer()
    abi.write_head(writer, group, p.schedule)
    functions = sliding.epilogue.functions
    functions += () if pixels.finish else pixels.epilogue.functions
    write_epilogue(writer, tuple(dict.fromkeys(functions)))
    _write_spread(writer, pixels)
    write_sliding(writer, sliding)
    pixels_code.write_kernels(writer, pixels)
    packed = pixels_code.weights_of(pixels).tensor
    constants = [tensor.name for tensor in group.with_role('constant')]
    places = abi.constant_places(group, packed, pixels.packed_floats)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    pixels_code.write_weights(writer, pixels, f'constants[{constants.index(packed)}]')
    floats = abi.write_constants(writer, group, places, pixels.packed_floats)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, floats)
    pixels_code.write_finish(writer, pixels)
    _write_part(writer, p, places)
    return writer.text()


def _write_spread(writer: Writer, pixels: PixelsPlan) -> None:
    """`count` pixels of one channel into strips, whose last one is filled up with zeros."""
    strip, step = pixels.strip, pixels.strip_floats
    pixels_code.write_copy(writer, pixels)
    writer.open(
        'static inline void spread_plane(const float *restrict plane, float *restrict to, '
        'long count)'
    )
    writer.line('long x = 0;')
    writer.open(f'for (; x + {strip} <= count; x += {strip}, to += {step})')
    for at in range(0, strip, pixels.lanes):
        writer.line(f'*(row_v *)(to + {at}) = *(const row_v *)(plane + x + {at});')
    writer.close()
    writer.line('if (x < count)')
    writer.line(f'    copy_row(plane, to, x, count, {strip}, 1);')
    writer.close()
    writer.line()


def _write_part(writer: Writer, p: AcrossPlan, places: Mapping[str, int]) -> None:
    group, sliding = p.group, p.sliding
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    operands = (item.tensor for item in sliding.epilogue.operands)
    read = (sliding.shape.a.tensor, sliding.shape.b.tensor, *operands)
    channels = sliding.part.output.shape[1]
    writer.open('void tw_part(const tw_args *args, long part)')
    fill = [
        f'const long from[] = {{n, 0, block / {p.width}, 0}};',
        f'const long extent[] = {{1, {channels}, (end - block) / {p.width}, {p.width}}};',
        f'fill_tile({", ".join(map(pointer, read))}, plane, buffer, from, extent);',
    ]
    place = abi.aligned(p.pixels.buffer_floats + LINE_FLOATS)
    pixels_code.write_nest(writer, p.pixels, pointer, fill, [f'float *plane = buffer + {place};'])
    writer.close()
