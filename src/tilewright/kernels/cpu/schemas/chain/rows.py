"""A sliding producer, a depthwise convolution above all, computed straight into packed strips.

Goes in: the first part of a chain and the buffer that the second part's micro-kernels read
(kernels/cpu/operand.py). Comes out: a C function that fills the buffer, in the place of the one
that copies a tile of an image.

    for each image and channel of the tile       weights of the filter in registers
      for each block of rows                     rows outside the image are a row of zeros
        for each strip of columns                lanes along the row, as in the stencil schema
          sums over the window, epilogue, store: the pixels of a register tile, side by side

Strips are as wide as the register tile, so that vectors may reach a little further; what they
compute there is stored in the rest of the strip's row, which nobody reads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.nest import every, part_extents, tile_sets
from tilewright.kernels.cpu.operand import ROW_FLOATS, Split, packed_tile
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan
from tilewright.kernels.cpu.schemas.stencil.code import IN_ORDER, in_order, vector_text
from tilewright.kernels.cpu.schemas.stencil.cover import (
    Axis,
    Stencil,
    Strip,
    bounded,
    crossed,
    every_end,
    first_read,
    inner_strip,
    stencil,
)
from tilewright.kernels.cpu.schemas.stencil.plan import option
from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    broadcast,
    plan_vector_epilogue,
    renamed,
    vector_type,
    write_functions,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine

HELD = 9  # weights that stay in registers
LINE_FLOATS = 16  # of a line that is asked for ahead of time
MOST_VECTORS = 4  # of a strip of a plane


@dataclass(frozen=True)
class SlidingPlan:
    """Everything about the producer that is decided before a line is written.

    counts  every number of rows that is computed together: `rows`, and what tiles leave over; of
            tiles of `every_height` what is left is computed by fewer at a time
    splits  how the buffer keeps each axis of the producer's result
    plane   floats between channels of what is read, where that is a region of one image (expand.py)
    single  one block of rows is all that a tile has
    behind  a C statement behind every plane, that knows its position along each outer axis
    crossed whether lanes of sums are in another order (stencil/cover.py)
    """

    part: Group
    shape: Stencil
    lanes: int
    counts: tuple[int, ...]
    strips: tuple[Strip, ...]
    splits: tuple[Split, ...]
    epilogue: VectorEpilogue
    plane: int = 0
    every_height: bool = False
    single: bool = False
    behind: str = ''
    crossed: bool = False

    @property
    def rows(self) -> int:
        return max(self.counts)

    @property
    def axes(self) -> tuple[str, ...]:
        """The iterator along each axis of the result."""
        return tuple(e.names[0] for e in self.shape.stage.write.index)

    @property
    def pitch(self) -> int:
        """From one row of the input to the next."""
        return self.part.tensor(self.shape.a.tensor).strides[self.shape.down_axis]


def why_not_sliding(part: Group) -> str:
    """Why a part cannot be a sliding producer; '' where it can."""
    try:
        shape = stencil(part)
    except ScheduleError as error:
        return str(error)
    if shape.loops:
        return f'{part.label} sums over {list(shape.loops)}; only windows are summed over here'
    if not shape.down.name:
        return f'{part.label} slides along rows alone'
    if any(e.const or [c for _, c in e.terms] != [1] for e in shape.stage.write.index):
        return f'{part.label} does not write at single iterators'
    moving = [
        e
        for axis, e in enumerate(shape.a.index[:-1])
        if axis != shape.down_axis and any(n not in shape.outer for n in e.names)
    ]
    if moving:
        return f'{part.label} has a window along more than rows and columns'
    image = (shape.across.name, shape.down.name)
    if any(item.stride(d) for item in plan_vector_epilogue(part).operands for d in image):
        return f'{part.label} adds a tensor that changes along rows or columns'
    return ''


def plan_sliding(part: Group, p: OuterPlan) -> SlidingPlan:
    """[first part, plan of the second] -> [SlidingPlan]; ScheduleError where it cannot be."""
    why = why_not_sliding(part)
    if why:
        raise ScheduleError(f'{why}; without a vector dimension it can be chained')
    shape, access, label = stencil(part), p.contraction.a, part.label
    if access.tensor != part.output.name:
        raise ScheduleError(f'{label}: {access.tensor} is multiplied, not {part.output.name}')
    sizes = p.group.main.sizes
    walked = [
        [t for t in e.terms if t[0] not in p.group.main.reduction or sizes[t[0]] > 1]
        for e in access.index
    ]
    if any(e.const for e in access.index) or any([c for _, c in w] != [1] for w in walked):
        raise ScheduleError(
            f'{label}: {p.group.label} reads it by windows or steps; without a vector dimension '
            f'they can be chained'
        )
    row_axis = shape.stage.write.index.index(Affine(((shape.down.name, 1),)))
    column, row = walked[-1][0][0], walked[row_axis][0][0]
    splits = tuple(sorted(p.operand.splits, key=lambda split: split.axis))
    if not splits[-1].strip:
        raise ScheduleError(f'{label}: the tile of {p.group.label} is not cut into strips')
    if splits[-1].stride != 1:
        raise ScheduleError(
            f'{label}: strips of {p.group.label} hold {row} side by side; choose a register tile '
            f'that is longer along {column}'
        )
    tile = packed_tile(p.schedule, part_extents(p.group.main, p.schedule))
    if tile[column] < shape.across.size:
        raise ScheduleError(
            f'{label}: the tile has {tile[column]} of {shape.across.size} columns; choose whole '
            f'rows'
        )
    lanes, rows = option(p.schedule, 'lanes'), option(p.schedule, 'rows')
    strip = splits[-1].strip
    pitch = -(-strip // ROW_FLOATS) * ROW_FLOATS
    most = min(pitch, ISAS[p.schedule.isa].lanes)
    if lanes < 2 or lanes > most or lanes & (lanes - 1):
        raise ScheduleError(
            f'{label}: lanes={lanes} is not a vector of {p.schedule.isa} inside strips of {pitch} '
            f'columns; choose a power of two from 2 to {most}'
        )
    if rows < 1:
        raise ScheduleError(f'{label}: rows={rows} are computed together; choose at least 1')
    index = [level.name for level in p.schedule.levels].index(p.schedule.pack)
    heights = tile_sets(p.group.main, p.schedule, index)[row]
    counts = {rows for e in heights if e >= rows} | {e % rows for e in heights if e % rows}
    strips, varying = cover_strips(shape.across, lanes, strip, pitch), every(p.schedule)
    if row in varying:
        counts = {rows, min(rows, 2), 1}
    if column in varying:
        strips = every_strips(shape.across, lanes, strip, pitch)
    epilogue = plan_vector_epilogue(part)
    return SlidingPlan(
        part, shape, lanes, tuple(sorted(counts)), strips, splits, epilogue,
        every_height=row in varying, single=row not in varying and max(heights) <= rows,
        crossed=crossed(ISAS[p.schedule.isa], lanes, shape.across.step),
    )  # fmt: skip


def plan_planes(part: Group, isa: str, lanes: int, heights: set[int], rows: int) -> SlidingPlan:
    """[first part] -> [SlidingPlan] of planes whose rows lie behind each other, all at one place;
    ScheduleError where it cannot be. `heights` that occur, of which `rows` are computed together.
    """
    why = why_not_sliding(part)
    if why:
        raise ScheduleError(f'{why}; without a vector dimension it can be chained')
    shape = stencil(part)
    axis, index = shape.across, shape.stage.write.index
    if lanes < 2 or lanes > min(axis.size, ISAS[isa].lanes) or lanes & (lanes - 1):
        raise ScheduleError(
            f'{part.label}: lanes={lanes} is not a vector of {isa} inside rows of {axis.size} '
            f'columns; choose a power of two'
        )
    if rows < 1:
        raise ScheduleError(f'{part.label}: rows={rows} are computed together; choose at least 1')
    if [e.names[0] for e in index[-2:]] != [shape.down.name, axis.name]:
        raise ScheduleError(f'{part.label}: rows and columns are not the last axes of its result')
    width = plane_strip(axis.size, lanes)
    sizes = part.output.shape
    splits = [Split(number, 1, (0,), count, 0) for number, count in enumerate(sizes[:-2])]
    splits.append(Split(len(sizes) - 2, 1, (0,), sizes[-2], axis.size))
    splits.append(Split(len(sizes) - 1, 1, (0,), sizes[-1], 1, width, width))
    counts = {rows for e in heights if e >= rows} | {e % rows for e in heights if e % rows}
    return SlidingPlan(
        part, shape, lanes, tuple(sorted(counts)), cover_strips(axis, lanes, width, 0),
        tuple(splits), plan_vector_epilogue(part), single=max(heights) <= rows,
        crossed=crossed(ISAS[isa], lanes, axis.step),
    )  # fmt: skip


def plane_strip(size: int, lanes: int) -> int:
    """Columns of the strips of a row: as many vectors as may be, none of which leaves the row."""
    for vectors in range(MOST_VECTORS, 0, -1):
        width = min(vectors * lanes, size)
        if not size % width or size % width >= lanes:
            return width
    return size


def cover_strips(axis: Axis, lanes: int, width: int, pitch: int) -> tuple[Strip, ...]:
    """Strips of `width` outputs, in vectors that stay inside `pitch` (0: inside the outputs of each
    strip); those that touch no edge and follow each other come as one.
    """
    found: list[Strip] = []
    for start in range(0, axis.size, width):
        count = min(width, axis.size - start)
        room = pitch or count
        starts = tuple(start + min(x, room - lanes) for x in range(0, count, lanes))
        reads = tuple(
            tuple(
                tuple(_inside(axis, axis.step * (x + lane) + tap) for lane in range(lanes))
                for tap in axis.taps
            )
            for x in starts
        )
        strip = Strip(start, 1, starts, reads, axis.extent, lanes)
        before = found[-1] if found else None
        if before and _regular(before) and _regular(strip) and _places(before) == _places(strip):
            found[-1] = replace(before, times=before.times + 1)
        else:
            found.append(strip)
    return tuple(strip if strip.fixed else _own(strip, axis, width) for strip in found)


def every_strips(axis: Axis, lanes: int, width: int, pitch: int) -> tuple[Strip, ...]:
    """Strips that differ by numbers alone between sizes: the first one, those that touch no edge,
    and last ones of every number of vectors, or of fewer outputs than a vector has. A row of one
    strip has those of every number of vectors at both edges. Rows that are shorter than a vector,
    or whose last outputs others read behind, have strips of their own.
    """
    many, most = -(-axis.size // width), -(-width // lanes)
    count = axis.size - (many - 1) * width
    starts = tuple(min(x, pitch - lanes) for x in range(0, width, lanes))
    vectors = -(-count // lanes)
    left = count - (vectors - 1) * lanes if count >= lanes else lanes
    if many == 1 and count >= lanes:
        return tuple(
            _whole_row(axis, lanes, number, left, vectors) for number in range(1, most + 1)
        )
    before = (many - 2) * width  # the strip in front of the last one
    ends = (
        axis.step * width + min(axis.taps),
        axis.step * (before + starts[-1] + lanes - 1) + max(axis.taps),
    )
    if many == 1 or any(_inside(axis, place) is None for place in ends):
        return cover_strips(axis, lanes, width, pitch)
    first = cover_strips(replace(axis, size=width), lanes, width, pitch)
    middle = Strip(width, many - 2, starts, (), 0, lanes, True)
    start = (many - 1) * width
    kind = vectors if count >= lanes else most + count
    found = [
        every_end(axis, lanes, number, left if number > 1 else lanes, start, (kind, number))
        for number in range(1, most + 1)
    ]
    found += [
        every_end(axis, lanes, 1, short, start, (kind, most + short)) for short in range(1, lanes)
    ]
    return (bounded(first[0], axis), inner_strip(axis, lanes, middle), *found)


def _whole_row(axis: Axis, lanes: int, count: int, left: int, have: int) -> Strip:
    """A row of `count` vectors, side by side but for the last one, which ends with the row; this
    size has a row of `have`.
    """
    size = (count - 1) * lanes + left if count > 1 else lanes
    row = replace(axis, size=size, extent=axis.extent - axis.step * (axis.size - size))
    starts = (*range(0, (count - 1) * lanes, lanes), size - lanes)
    reads = tuple(
        tuple(
            tuple(_inside(row, row.step * (x + lane) + tap) for lane in range(lanes))
            for tap in row.taps
        )
        for x in starts
    )
    return Strip(
        0, int(count == have), starts, reads, row.extent, lanes, when=(have, count)
    )  # fmt: skip


def _inside(axis: Axis, place: int) -> int | None:
    return place if 0 <= place < axis.extent else None


def _regular(strip: Strip) -> bool:
    return all(c is not None for vector in strip.reads for tap in vector for c in tap)


def _places(strip: Strip) -> list[int]:
    return [x - strip.start for x in strip.starts]


def _own(strip: Strip, axis: Axis, width: int) -> Strip:
    """A strip that occurs several times counts from its own first output and column."""
    first = first_read(axis, strip.start)
    last = first_read(axis, strip.start + (strip.times - 1) * width)
    reads = tuple(
        tuple(tuple(c - first for c in tap if c is not None) for tap in vector)
        for vector in strip.reads
    )
    starts = tuple(x - strip.start for x in strip.starts)
    return replace(strip, starts=starts, reads=reads, extent=axis.extent - last)


def write_sliding(writer: Writer, plan: SlidingPlan) -> None:
    """`fill_tile(in, ker, operands.., buffer, from, extent)`, and what it calls.

    Names that the second part's functions have, too, get a prefix.
    """
    own = Writer()
    own.lines += vector_type(plan.lanes)
    own.line(f'static const float zero_row[{plan.shape.across.extent}];')
    own.lines += [*IN_ORDER.splitlines(), '']
    write_functions(own, replace(plan.epilogue, functions=()), plan.lanes)
    for count in plan.counts:
        _write_rows(own, plan, count)
    _write_fill(own, plan)
    writer.lines += renamed(own.lines, 'first')


def _weight_texts(plan: SlidingPlan) -> list[str]:
    """Where each weight is, row of taps by row."""
    shape, (strides, const) = plan.shape, access_strides(plan.part, plan.shape.b)
    names = (*shape.down.windows, *shape.across.windows)
    found = []
    for down, across in itertools.product(shape.down.points, shape.across.points):
        steps = zip(names, (*down, *across), strict=True)
        found.append(f'weights[{const + sum(strides.get(d, 0) * i for d, i in steps)}]')
    return found


def _write_rows(writer: Writer, plan: SlidingPlan, count: int) -> None:
    """`count` rows from row `h` of the image, `row` of the tile, in all strips."""
    shape, down = plan.shape, plan.shape.down
    values = ''.join(f', row_v {item.name}_v' for item in plan.epilogue.operands)
    writer.open(
        f'static inline __attribute__((always_inline)) void slide_{count}(const float *a, '
        f'const float *weights{values}, float *restrict to, long h, long row)'
    )
    offsets = sorted({down.step * i + tap for i in range(count) for tap in down.taps})
    for number, offset in enumerate(offsets):
        at = total([scaled('h', down.step), str(offset)])
        writer.line(
            f'const float *r{number} = (unsigned long)({at}) < {down.extent}ul ? '
            f'a + ({at}) * {plan.pitch} : zero_row;'
        )
    split = plan.splits[_row_axis(plan)]
    for i in range(count):
        place = split.place(f'(row + {i})' if i else 'row')
        writer.line(f'float *const t{i} = to + {place};')
    weights = _weight_texts(plan)
    if shape.taps <= HELD:
        for number, text in enumerate(weights):
            writer.line(f'const row_v w{number} = {broadcast(text)};')
        weights = [f'w{number}' for number in range(shape.taps)]
    across = plan.splits[-1]
    for strip in plan.strips:
        first = strip.start // across.strip
        if strip.fixed:
            writer.open(f'if ({strip.when[0]} == {strip.when[1]})' if strip.when else '')
            place = first * across.pitch
            _write_strip(writer, plan, count, offsets, weights, strip, '', place, '')
        else:
            if strip.when:
                writer.open(f'if ({strip.when[0]} == {strip.when[1]})')
                writer.line(f'const long q = {first};')
            else:
                writer.open(f'for (long q = {first}; q < {first + strip.times}; q++)')
            step = across.strip * shape.across.step
            column = total([scaled('q', step), str(min(shape.across.taps))])
            writer.line(f'const long column = {column};')
            place = scaled('q', across.pitch)
            _write_strip(writer, plan, count, offsets, weights, strip, 'column', 0, place)
        writer.close()
    writer.close()
    writer.line()


def _row_axis(plan: SlidingPlan) -> int:
    return plan.axes.index(plan.shape.down.name)


def _write_strip(
    writer: Writer, plan: SlidingPlan, count: int, offsets: list[int], weights: list[str],
    strip: Strip, column: str, fixed: int, moving: str,
) -> None:  # fmt: skip
    """The sums of `count` rows in the vectors of one strip, their epilogue and stores."""
    shape, started = plan.shape, set()
    _write_ahead(writer, plan, count, offsets, strip, column)
    for number, offset in enumerate(offsets):
        meets = [
            (i, t)
            for i in range(count)
            for t, tap in enumerate(shape.down.taps)
            if shape.down.step * i + tap == offset
        ]
        writer.line('IN_ORDER;')
        for tap in range(len(shape.across.taps)):
            for v, vector in enumerate(strip.reads):
                if all(c is None for c in vector[tap]):
                    continue
                name = f'x{number}_{tap}_{v}'
                row = total([f'r{number}', column])
                text = vector_text(
                    vector[tap], shape.across.step, strip.extent, row, plan.crossed
                )  # fmt: skip
                writer.line(f'const row_v {name} = {text};')
                for i, t in meets:
                    term = f'{name} * {weights[t * len(shape.across.taps) + tap]}'
                    known = (i, v) in started
                    writer.line(f's{i}_{v} += {term};' if known else f'row_v s{i}_{v} = {term};')
                    started.add((i, v))
    for i in range(count):
        for v, start in enumerate(strip.starts):
            inside = start - (strip.start if strip.fixed else 0)
            place = total([f't{i}', moving, str(fixed + inside)])
            value = f's{i}_{v}' if (i, v) in started else 'zero_v'
            if plan.crossed and value != 'zero_v':
                value = in_order(value)
            if plan.epilogue.expression != 'value':
                writer.open('')
                writer.line(f'const row_v value = {value};')
                writer.line(f'*(row_v *)({place}) = {plan.epilogue.expression};')
                writer.close()
            else:
                writer.line(f'*(row_v *)({place}) = {value};')


def _plane_strides(plan: SlidingPlan) -> tuple[dict[str, int], int]:
    """Floats between planes of the input, by iterator of the result; floats to the first one."""
    shape, strides, const = plan.shape, {}, 0
    steps = (0, plan.plane) if plan.plane else plan.part.tensor(shape.a.tensor).strides
    for axis, expression in enumerate(shape.a.index[:-1]):
        if axis != shape.down_axis:
            const += steps[axis] * expression.const
            for name, c in expression.terms:
                strides[name] = strides.get(name, 0) + c * steps[axis]
    return strides, const


def _write_ahead(
    writer: Writer, plan: SlidingPlan, count: int, offsets: list[int], strip: Strip, column: str
) -> None:
    """Ask for the same columns of the next plane: a tile has few rows of a plane, which lie too far
    from those of the next to be foreseen. Of blocks below each other, rows that the one above did
    not ask for.
    """
    if plan.plane:
        return
    name = next(n for n in reversed(plan.axes) if n in plan.shape.outer)
    ahead = _plane_strides(plan)[0].get(name, 0)
    read = [c for vector in strip.reads for tap in vector for c in tap if c is not None]
    if not ahead or not read:
        return
    above = 0 if plan.single else len(offsets) - plan.shape.down.step * count
    for number in range(max(0, above), len(offsets)):
        for first in range(min(read), max(read) + 1, LINE_FLOATS):
            place = total([f'r{number}', column, str(ahead + first)])
            writer.line(f'__builtin_prefetch({place});')


def _write_fill(writer: Writer, plan: SlidingPlan) -> None:
    """All images and channels of a tile, block of rows by block of rows."""
    shape, operands = plan.shape, plan.epilogue.operands
    row_axis = _row_axis(plan)
    more = ', float *restrict strips' if plan.behind else ''
    pointers = ''.join(f', const float *{item.name}' for item in operands)
    writer.line('/* A tile of the first part, in the strips that the second part reads. */')
    writer.open(
        f'static __attribute__((noinline)) void fill_tile(const float *in, const float *ker'
        f'{pointers}, float *restrict buffer{more}, const long *from, const long *extent)'
    )
    outer = [axis for axis in range(len(plan.axes) - 1) if axis != row_axis]
    places, at = [], {}
    for axis in outer:
        writer.open(f'for (long i{axis} = 0; i{axis} < extent[{axis}]; i{axis}++)')
        places.append(plan.splits[axis].place(f'i{axis}'))
        at[plan.axes[axis]] = f'(from[{axis}] + i{axis})'

    def moved(base: str, stride: Callable[[str], int], const: int) -> str:
        return total([base, *(scaled(text, stride(d)) for d, text in at.items()), str(const)])

    strides, const = _plane_strides(plan)
    weights, _ = access_strides(plan.part, shape.b)
    writer.line(f'const float *a = {moved("in", lambda d: strides.get(d, 0), const)};')
    writer.line(f'const float *weights = {moved("ker", lambda d: weights.get(d, 0), 0)};')
    writer.line(f'float *to = buffer + {total(places)};')
    for item in operands:
        value = broadcast(f'*({moved(item.name, item.stride, item.const)})')
        writer.line(f'const row_v {item.name}_v = {value};')
    values = ''.join(f', {item.name}_v' for item in operands)
    writer.line(f'const long height = extent[{row_axis}];')
    writer.line('long row = 0;')
    for count in sorted(plan.counts, reverse=True):
        if count == plan.rows or plan.every_height:
            writer.line(f'for (; row + {count} <= height; row += {count})')
        else:
            writer.line(f'if (row + {count} == height)')
        writer.line(f'    slide_{count}(a, weights{values}, to, from[{row_axis}] + row, row);')
    if plan.behind:
        writer.line(plan.behind)
    writer.close(len(outer) + 1)
    writer.line()
