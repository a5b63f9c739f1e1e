"""What a sliding sum of products looks like to the stencil schema, and how tiles cover it.

Goes in: a stage `Out += A * B` whose rows are contiguous in A and in Out. Comes out: the axes along
which a window slides, and for tiles of outputs the places in A that they read.

    across     the dimension that lies along the lanes: contiguous in A and Out     conv2d: w
    down       a second one that a window slides along, blocked in registers                h
    outer      other parallel dimensions: loops
    loops      reductions that move no window: loops around the taps                        c
    taps       window reductions, unrolled                                                  r s

Where a tile lies is known when code is generated, so what falls into the padding is known too:
rows outside the image are left out, vectors across its edge are loaded inside it and shifted.
Tiles that touch no edge are all alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from tilewright.errors import ScheduleError
from tilewright.machine.isa import Isa
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Stage

MOST_TAPS = 128  # of a window, unrolled
MOST_STATEMENTS = 6000  # multiply-adds that are written out, the tiles at all edges together

# The columns that the lanes of one vector read; None is padding, or no output at all.
Columns = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """Outputs along `name` read the input at `step * output + tap`, for every tap.

    `points` has the values of `windows`, the reductions that make up each tap.
    """

    name: str
    size: int
    extent: int
    step: int
    windows: tuple[str, ...]
    points: tuple[tuple[int, ...], ...]
    taps: tuple[int, ...]

    def reach(self, outputs: int) -> int:
        """Positions of the input from the first to the last that so many neighbours read."""
        return self.step * (outputs - 1) + max(self.taps) - min(self.taps) + 1


@dataclass(frozen=True)
class Stencil:
    """Roles of the dimensions of `stage`, with `a` read in place and `b` broadcast."""

    stage: Stage
    a: Access
    b: Access
    across: Axis
    down: Axis
    down_axis: int  # the index of `a` that `down` moves, -1 where there is none
    outer: tuple[str, ...]
    loops: tuple[str, ...]

    @property
    def taps(self) -> int:
        return len(self.across.taps) * len(self.down.taps)

    @property
    def kept(self) -> tuple[str, ...]:
        """Outer dimensions that choose the weights, in the order in which these are packed."""
        return tuple(d for d in (*self.outer, *self.loops) if d in self.b.names)


def why_not(group: Group) -> str:
    """Why the stencil schema cannot compute a group; '' where it can."""
    try:
        stencil(group)
    except ScheduleError as error:
        return str(error)
    return ''


@lru_cache(maxsize=64)
def stencil(group: Group) -> Stencil:
    """[Group] -> [Stencil]; ScheduleError where rows do not slide along contiguous rows."""

    def refuse(why: str) -> ScheduleError:
        return ScheduleError(f'{group.label}: {why}; the stencil schema cannot compute it')

    stage = group.main
    if not stage.is_product_sum or stage.pad_value != 0:
        raise refuse('it is not a sum of products padded with zeros')
    a, b = stage.reads
    if group.tensor(a.tensor).role == 'constant':
        a, b = b, a
    if group.tensor(b.tensor).role != 'constant':
        raise refuse(f'neither {a.tensor} nor {b.tensor} is constant')
    last = stage.write.index[-1]
    if len(last.terms) != 1 or last.terms[0][1] != 1 or last.const:
        raise refuse(f'{stage.write.tensor} has no dimension of its own along its rows')
    across = _axis(group, a, b, last.names[0], len(a.index) - 1)
    if across is None:
        raise refuse(f'no rows of {a.tensor} slide along those of {stage.write.tensor}')
    down, down_axis = Axis('', 1, 1, 1, (), ((),), (0,)), -1
    for number in range(len(a.index) - 2, -1, -1):
        names = [d for d in a.index[number].names if d in stage.parallel]
        found = _axis(group, a, b, names[0], number) if len(names) == 1 else None
        if found is not None and _alone(stage, found.name):
            down, down_axis = found, number
            break
    windows = (*across.windows, *down.windows)
    for access in (a, b):
        for number, expression in enumerate(access.index):
            if access is a and number in (down_axis, len(a.index) - 1):
                continue
            if access is a and set(expression.names) & set(windows):
                raise refuse(f'a window moves two indices of {a.tensor}')
            size = group.tensor(access.tensor).shape[number]
            if expression.const < 0 or expression.const + expression.extent(stage.sizes) > size:
                raise refuse(f'index {number} of {access.tensor} leaves it')
    made = Stencil(
        stage,
        a,
        b,
        across,
        down,
        down_axis,
        tuple(d for d in stage.parallel if d not in (across.name, down.name)),
        tuple(d for d in stage.reduction if d not in windows),
    )
    if made.taps > MOST_TAPS:
        raise refuse(f'its window has {made.taps} taps, of which {MOST_TAPS} can be unrolled')
    if not fits(made, 2, 1, 1):
        raise refuse('its edges need too much code')
    return made


def _alone(stage: Stage, name: str) -> bool:
    """Whether the result has an index that is this dimension and nothing else."""
    return Affine(((name, 1),)) in stage.write.index


def _axis(group: Group, a: Access, b: Access, name: str, number: int) -> Axis | None:
    """The axis along `name` in index `number` of `a`; None where it is not one."""
    stage, expression = group.main, a.index[number]
    windows = tuple(d for d in expression.names if d != name)
    only = (
        sum(name in e.names for e in a.index)
        == 1
        == sum(name in e.names for e in stage.write.index)
    )
    if not only or name not in expression.names or name in b.names:
        return None
    if any(d not in stage.reduction for d in windows):
        return None
    points = tuple(itertools.product(*(range(stage.sizes[d]) for d in windows)))
    if len(points) > MOST_TAPS:
        return None
    taps = tuple(expression.at(dict(zip(windows, point, strict=True))) for point in points)
    extent = group.tensor(a.tensor).shape[number]
    return Axis(
        name, stage.sizes[name], extent, expression.coefficient(name), windows, points, taps
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """Output rows that are computed together, from row `start`, `times` times.

    `reads[i][t]` is the input row of output row i and tap t, None in the padding. It counts from
    the tile's own first input row where the tile `moves`, as one does that occurs several times,
    else from the image's. `when` two numbers are equal it occurs: what this size has, and its own.
    """

    start: int
    count: int
    times: int
    reads: tuple[tuple[int | None, ...], ...]
    moves: bool = False
    when: tuple[int, int] | None = None

    @property
    def fixed(self) -> bool:
        return self.times == 1 and not self.moves

    @property
    def inside(self) -> bool:
        return all(y is not None for line in self.reads for y in line)


@dataclass(frozen=True, slots=True)
class Strip:
    """Vectors that are computed together, the first at output `start`, `times` times side by side.

    `starts` are the first outputs of the vectors, `reads[v][t]` the columns of vector v and tap t,
    and `extent` the end of the shortest row; these count from the strip's own first output and
    column where it `moves`, as one does that occurs several times, else from the image's. `width`
    is how many outputs a vector has: all lanes, or a row that is shorter. `when` two numbers are
    equal the strip occurs: what this size has, and its own; at other sizes `times` is 0.
    """

    start: int
    times: int
    starts: tuple[int, ...]
    reads: tuple[tuple[Columns, ...], ...]
    extent: int
    width: int
    moves: bool = False
    when: tuple[int, int] | None = None

    @property
    def fixed(self) -> bool:
        return not self.moves and (self.times == 1 or self.when is not None)


@lru_cache(maxsize=4096)
def cover_rows(axis: Axis, tile: int) -> tuple[Rows, ...]:
    """Tiles of `tile` rows, the last one shorter; those that touch no edge come as one."""
    found: list[Rows] = []
    for start in range(0, axis.size, tile):
        count = min(tile, axis.size - start)
        reads = tuple(
            tuple(_within(axis, axis.step * (start + i) + tap) for tap in axis.taps)
            for i in range(count)
        )
        inside = all(y is not None for line in reads for y in line)
        if inside and count == tile and found and found[-1].inside and found[-1].count == count:
            found[-1] = replace(found[-1], times=found[-1].times + 1)
        else:
            found.append(Rows(start, count, 1, reads))
    return tuple(rows if rows.fixed else _own_rows(rows, axis) for rows in found)


def _within(axis: Axis, place: int) -> int | None:
    return place if 0 <= place < axis.extent else None


def _own_rows(rows: Rows, axis: Axis) -> Rows:
    """Rows that occur several times count from their own first input row."""
    first = first_read(axis, rows.start)
    reads = tuple(tuple(y - first for y in line if y is not None) for line in rows.reads)
    return replace(rows, reads=reads)


def first_read(axis: Axis, start: int) -> int:
    """The first input that the tile at `start` reads, where it touches no edge."""
    return axis.step * start + min(axis.taps)


@lru_cache(maxsize=4096)
def cover_columns(axis: Axis, lanes: int, vectors: int) -> tuple[Strip, ...]:
    """Strips of `vectors` vectors; the last vector of a row overlaps the one before it."""
    width = min(lanes, axis.size)
    starts = [min(x, axis.size - width) for x in range(0, axis.size, lanes)]
    found: list[Strip] = []
    # Regular ones follow each other: what they read is written out for the first of them only,
    # since a long row has thousands and a wide filter many taps.
    regular = False
    for first in range(0, len(starts), vectors):
        at = tuple(starts[first : first + vectors])
        before, regular_before = found[-1] if found else None, regular
        regular = _regular(axis, lanes, at, width)
        if before is not None and regular_before and regular:
            follows = at[0] == before.start + before.times * lanes * vectors
            if follows and len(at) == len(before.starts):
                found[-1] = replace(before, times=before.times + 1)
                continue
        found.append(_strip(axis, lanes, at, width))
    return tuple(strip if strip.fixed else _own_columns(strip, axis, lanes) for strip in found)


def _strip(axis: Axis, lanes: int, starts: tuple[int, ...], width: int) -> Strip:
    reads = tuple(
        tuple(
            tuple(
                _within(axis, axis.step * (x + lane) + tap) if lane < width else None
                for lane in range(lanes)
            )
            for tap in axis.taps
        )
        for x in starts
    )
    return Strip(starts[0], 1, starts, reads, axis.extent, width)


def _regular(axis: Axis, lanes: int, starts: tuple[int, ...], width: int) -> bool:
    """Whether a strip of vectors touches no edge, and they lie side by side."""
    if width < lanes or any(x != starts[0] + lanes * v for v, x in enumerate(starts)):
        return False
    first, last = starts[0], starts[-1] + lanes - 1
    ends = axis.step * first + min(axis.taps), axis.step * last + max(axis.taps)
    return all(_within(axis, place) is not None for place in ends)


def _own_columns(strip: Strip, axis: Axis, lanes: int) -> Strip:
    """A strip that occurs several times counts from its own first output and column."""
    first = first_read(axis, strip.start)
    last = first_read(axis, strip.start + (strip.times - 1) * lanes * len(strip.starts))
    reads = tuple(
        tuple(tuple(c - first for c in columns if c is not None) for columns in vector)
        for vector in strip.reads
    )
    starts = tuple(x - strip.start for x in strip.starts)
    return replace(strip, starts=starts, reads=reads, extent=axis.extent - last)


@lru_cache(maxsize=4096)
def every_rows(axis: Axis, tile: int) -> tuple[Rows, ...]:
    """Tiles of rows that are the same at every size: of `tile` rows, and of each number that may be
    left over. Rows in the padding are read like others, from a row of zeros.
    """
    whole, left = divmod(axis.size, tile)
    first = min(axis.taps)
    found = []
    for count in range(tile, 0, -1):
        reads = tuple(tuple(axis.step * i + tap - first for tap in axis.taps) for i in range(count))
        if count == tile:
            found.append(Rows(0, count, whole, reads, True))
        else:
            only = left, count
            found.append(Rows(whole * tile, count, int(left == count), reads, True, only))
    return tuple(found)


@lru_cache(maxsize=4096)
def every_columns(axis: Axis, lanes: int, vectors: int) -> tuple[Strip, ...]:
    """Strips that differ by numbers alone between sizes: the first vector of a row, `vectors` of
    them at a time, and last ones of every number, which end where the row does. Rows that are no
    longer than a vector, or whose last outputs others read behind, have strips of their own.
    """
    many = -(-axis.size // lanes)
    times, last = divmod(many - 2, vectors)
    start = lanes * (1 + times * vectors)
    ends = axis.step * lanes + min(axis.taps), axis.step * (start - 1) + max(axis.taps)
    if many < 2 or any(_within(axis, place) is None for place in ends):
        return cover_columns(axis, lanes, vectors)
    first = _strip(axis, lanes, (0,), lanes)
    middle = Strip(lanes, times, tuple(range(0, vectors * lanes, lanes)), (), 0, lanes, True)
    left = axis.size - lanes * (many - 1)
    found = [
        every_end(axis, lanes, count, left, start, (last + 1, count))
        for count in range(2, vectors + 1)
    ]
    alone = every_end(axis, lanes, 1, lanes, axis.size - lanes, (last + 1, 1))
    return (bounded(first, axis), inner_strip(axis, lanes, middle), alone, *found)


def inner_strip(axis: Axis, lanes: int, strip: Strip) -> Strip:
    """A strip that touches no edge at any size: what it reads, and no column behind that."""
    first = min(axis.taps)
    reads = tuple(
        tuple(
            tuple(axis.step * (x + lane) + tap - first for lane in range(lanes))
            for tap in axis.taps
        )
        for x in strip.starts
    )
    end = 1 + max(c for vector in reads for tap in vector for c in tap)
    return replace(strip, reads=reads, extent=end)


def every_end(
    axis: Axis, lanes: int, count: int, left: int, start: int, when: tuple[int, int]
) -> Strip:
    """The last `count` vectors of a row, from output `start` on: side by side but for the last one,
    which ends with the row and adds `left` outputs to those before it.
    """
    size = (count - 1) * lanes + left
    starts = (*range(0, (count - 1) * lanes, lanes), max(0, size - lanes))
    first, extent = min(axis.taps), axis.extent - axis.step * (axis.size - size)

    def read(x: int, tap: int) -> int | None:
        place = axis.step * x + tap
        return place - first if place < extent else None

    reads = tuple(
        tuple(tuple(read(x + lane, tap) for lane in range(lanes)) for tap in axis.taps)
        for x in starts
    )
    times = int(when[0] == when[1])
    return Strip(start, times, starts, reads, extent - first, lanes, True, when)


def bounded(strip: Strip, axis: Axis) -> Strip:
    """A strip at the left edge, which reads no column behind those that it needs."""
    end = 1 + max(c for vector in strip.reads for tap in vector for c in tap if c is not None)
    return replace(strip, extent=min(axis.extent, max(end, len(strip.reads[0][0]))))


def statements(shape: Stencil, rows: tuple[Rows, ...], strips: tuple[Strip, ...]) -> int:
    """Multiply-adds that are written out, for tiles of every kind."""
    down = sum(y is not None for tile in rows for line in tile.reads for y in line)
    return down * len(shape.across.taps) * sum(len(strip.starts) for strip in strips)


def fits(shape: Stencil, lanes: int, rows: int, vectors: int) -> bool:
    """Whether tiles of `rows` x `vectors` of `lanes` floats need no more code than is allowed."""
    strips = cover_columns(shape.across, lanes, vectors)
    return statements(shape, cover_rows(shape.down, rows), strips) <= MOST_STATEMENTS


@dataclass(frozen=True, slots=True)
class Gather:
    """How one vector is read: `loads` at these columns, then `lanes` picked from them.

    `lanes` has (load, lane) for each lane, None for zero. Without loads, element by element.
    """

    loads: tuple[int, ...]
    lanes: tuple[tuple[int, int] | None, ...]

    @property
    def plain(self) -> bool:
        return len(self.loads) == 1 and self.lanes == tuple((0, i) for i in range(len(self.lanes)))

    @property
    def shuffles(self) -> int:
        """Shuffles behind the loads: one, and one more where two loads leave lanes at zero."""
        if self.plain:
            return 0
        return 2 if len(self.loads) == 2 and None in self.lanes else 1


@lru_cache(maxsize=65536)
def gather(columns: Columns, step: int, extent: int) -> Gather:
    """Loads inside a row of `extent` columns that bring these, which are `step` apart.

    Two vectors hold the neighbours of a step of two. They begin at even columns, so that the even
    and the odd ones come from the same loads.
    """
    lanes = len(columns)
    wanted = [c for c in columns if c is not None]
    if not wanted:
        return Gather((), (None,) * lanes)
    most = extent - lanes
    start = min(min(wanted) // step * step, most)
    second = min(start + lanes, most)
    if start < 0 or max(wanted) >= second + lanes:
        return Gather((), tuple(None if c is None else (c, 0) for c in columns))
    picked = tuple(
        None if c is None else (0, c - start) if c < start + lanes else (1, c - second)
        for c in columns
    )
    both = any(lane is not None and lane[0] for lane in picked)
    return Gather((start, second) if both else (start,), picked)


# Of eight lanes in two halves: columns that a shuffle inside halves brings, of two vectors.
CROSSED = (0, 1, 4, 5, 2, 3, 6, 7)


def crossed(isa: Isa, lanes: int, step: int) -> bool:
    """Whether sums have their lanes in the order CROSSED until they are stored.

    AVX2 needs two instructions to pick every other column of two vectors, one of which crosses its
    halves; without that one the lanes of all sums lie in the same other order.
    """
    return isa.arch == 'x86_64' and isa.vector_bytes == 32 and lanes == 8 and step == 2


def weights_at(shape: Stencil, sizes: Mapping[str, int], padded: int) -> dict[str, int]:
    """Strides of packed weights: taps of one filter together, `padded` floats each."""
    strides, step = {}, padded
    for name in reversed(shape.kept):
        strides[name] = step
        step *= sizes[name]
    return strides
