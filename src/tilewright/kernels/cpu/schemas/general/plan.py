"""What the general schema decides before it writes a line: pieces, addresses, loops.

Goes in: one part of a group (ops/parts.py), a stage with the pointwise stages behind it. Comes out:
a `Piece`: where every operand lies as a function of the stage's iterators, what may fall outside
its tensor, and loops with neighbours joined that every operand walks as one,

    Out[c] += In[c, h, w]   ->   Out[c] += In[c, hw]     everywhere stride(h) = W * stride(w)

which needs no names or layouts, only strides.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernels.cpu.pointwise import axes_of
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.ops.compose import placed
from tilewright.ops.dtypes import computed
from tilewright.ops.group import Group, row_major_strides
from tilewright.ops.stage import Access, Affine, Expr, Stage

UNROLLED = 32  # points of a window that are written out one by one


@dataclass(frozen=True, slots=True)
class Table:
    """Positions that are known now; those outside their tensor are -1. `name` is that in C."""

    name: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Test:
    """An index that may be outside: an affine one of an axis of `extent`, or one from a table."""

    at: Affine
    extent: int
    table: Table | None = None

    def holds(self, point: Mapping[str, int]) -> bool:
        position = self.at.at(point)
        return self.table.values[position] >= 0 if self.table else 0 <= position < self.extent

    def text(self) -> str:
        if self.table:
            return f'{self.table.name}[{affine_text(self.at)}] >= 0'
        return f'(unsigned long)({affine_text(self.at)}) < {self.extent}ul'


@dataclass(frozen=True, slots=True)
class Place:
    """An element of a tensor: `pointer[sum of strides * iterators + const + ...]`.

    tables   (table, position, stride): further terms `table[position] * stride`
    lookups  (read, extent, stride): further terms that are the value of another read
    tests    what must hold for the element to exist
    """

    tensor: str
    pointer: str
    dtype: str
    strides: Mapping[str, int]
    const: int
    tables: tuple[tuple[Table, Affine, int], ...] = ()
    lookups: tuple[tuple[int, int, int], ...] = ()
    tests: tuple[Test, ...] = ()

    def at(self, point: Mapping[str, int]) -> Place:
        """The place with numbers for some iterators."""
        moved = sum(s * point[n] for n, s in self.strides.items() if n in point)
        return replace(
            self,
            strides={n: s for n, s in self.strides.items() if n not in point},
            const=self.const + moved,
            tables=tuple((t, at_point(at, point), s) for t, at, s in self.tables),
            tests=tuple(replace(t, at=at_point(t.at, point)) for t in self.tests),
        )

    def names(self) -> set[str]:
        """Iterators that it cannot do without: those of tables and tests."""
        return {
            n for at in (*(t.at for t in self.tests), *(a for _, a, _ in self.tables))
            for n in at.names
        }  # fmt: skip

    def index(self, looked_up: Mapping[int, str]) -> str:
        terms = [scaled(n, s) for n, s in self.strides.items()]
        for table, at, stride in self.tables:
            terms.append(scaled(f'{table.name}[{affine_text(at)}]', stride))
        for read, extent, stride in self.lookups:
            terms.append(scaled(f'lookup((long){looked_up[read]}, {extent})', stride))
        return total([*terms, str(self.const) if self.const else ''])


@dataclass(frozen=True, slots=True)
class Loop:
    """One iterator; `low`, `high` are its range in C, `fixed` if it is given from outside."""

    name: str
    size: int
    reduces: bool
    low: str = '0'
    high: str = ''
    fixed: bool = False

    @property
    def whole(self) -> bool:
        return not self.high

    @property
    def end(self) -> str:
        return self.high or str(self.size)


@dataclass(frozen=True, slots=True)
class After:
    """A pointwise stage behind the sum: its expression over `reads`, values or places.

    A value is the number of an earlier one: 0 the sum, 1 what the first of these stages makes.
    """

    expr: Expr
    dtype: str
    reads: tuple[int | Place, ...]
    iterators: Mapping[str, Affine]


@dataclass(frozen=True)
class Piece:
    """One part, ready to be written; `shapes` are those of the tensors it reads."""

    stage: Stage
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    iterators: Mapping[str, Affine]
    reads: tuple[Place, ...]
    after: tuple[After, ...]
    write: Place
    loops: tuple[Loop, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        return (*self.reads, *(r for a in self.after for r in a.reads if isinstance(r, Place)), self.write)  # fmt: skip # noqa: E501

    @property
    def parallel(self) -> tuple[Loop, ...]:
        return tuple(p for p in self.loops if not p.reduces and not p.fixed)

    @property
    def reductions(self) -> tuple[Loop, ...]:
        return tuple(p for p in self.loops if p.reduces)


class Tables:
    """The tables of a translation unit, or of a part of it, each once; names have a `prefix`."""

    def __init__(self, prefix: str = 'table') -> None:
        self._prefix = prefix
        self._known: dict[tuple[int, ...], Table] = {}

    def of(self, values: Sequence[int], extent: int) -> Table:
        clean = tuple(v if 0 <= v < extent else -1 for v in values)
        return self._known.setdefault(clean, Table(f'{self._prefix}_{len(self._known)}', clean))

    def all(self) -> Iterable[Table]:
        return self._known.values()


Pointer = Callable[[str, Access], tuple[str, tuple[int, ...]]]


def piece_of(
    part: Group, tables: Tables, pointer: Pointer, ranges: Mapping[str, tuple[str, str]],
    fixed: Iterable[str],
) -> Piece:  # fmt: skip
    """[Group of one part] -> [Piece].

    pointer  tensor, access -> its C pointer and the strides of its axes
    ranges   iterators of which only a range is computed, fixed: those that are given
    """
    stage, given = part.main, set(fixed)
    # An iterator of one point is 0.
    same = {d: Affine(((d, 1),) if size > 1 else ()) for d, size in stage.sizes.items()}
    reads = tuple(_place(part, stage, a, same, tables, pointer) for a in stage.reads)
    write = replace(stage.write, tensor=part.output.name)
    after, values = [], {stage.write.tensor: 0}
    for number, behind in enumerate(part.epilogue, 1):
        place = {n: placed(at, same) for n, at in axes_of(behind, stage.write.index).items()}
        after.append(
            After(
                behind.expr,
                computed(part.tensor(behind.write.tensor).dtype),
                tuple(
                    values[a.tensor]
                    if a.tensor in values
                    else _place(part, behind, a, place, tables, pointer)
                    for a in behind.reads
                ),
                {n: place[n] for n in behind.expr.iterators()},
            )
        )
        values[behind.write.tensor] = number
    loops = tuple(
        Loop(d.name, d.size, d.kind == 'reduction', *ranges.get(d.name, ('0', '')), d.name in given)
        for d in stage.dims
        if d.size > 1
    )
    accumulated = computed(part.tensor(stage.write.tensor).dtype)
    shapes = tuple(part.tensor(a.tensor).shape for a in stage.reads)
    iterators = {n: same[n] for n in stage.expr.iterators()}
    made = Piece(
        stage, accumulated, shapes, iterators, reads, tuple(after),
        _place(part, stage, write, same, tables, pointer), loops,
    )  # fmt: skip
    return _joined(made)


def _place(
    part: Group, stage: Stage, access: Access, place: Mapping[str, Affine], tables: Tables,
    pointer: Pointer,
) -> Place:  # fmt: skip
    tensor = part.tensor(access.tensor)
    text, steps = pointer(access.tensor, access)
    positions, looked = dict(access.tables), dict(access.lookups)
    strides: dict[str, int] = {}
    const, indirect, lookups, tests = 0, [], [], []
    for axis, (expression, step) in enumerate(zip(access.index, steps, strict=True)):
        extent, at = tensor.shape[axis], placed(expression, place)
        if axis in looked:
            lookups.append((looked[axis], extent, step))
            continue
        if axis in positions:
            line = _line(positions[axis], extent)
            if line is None:
                table = tables.of(positions[axis], extent)
                indirect.append((table, at, step))
                if -1 in table.values:
                    tests.append(Test(at, extent, table))
                continue
            first, slope = line
            const += step * (first + slope * at.const)
            terms = [(n, slope * c) for n, c in at.terms]
        else:
            const += step * at.const
            terms = list(at.terms)
            if expression.const < 0 or expression.const + expression.extent(stage.sizes) > extent:
                tests.append(Test(at, extent))
        for name, coefficient in terms:
            strides[name] = strides.get(name, 0) + step * coefficient
    kept = {n: s for n, s in strides.items() if s}
    return Place(
        tensor.name, text, tensor.dtype, kept, const, tuple(indirect), tuple(lookups), tuple(tests)
    )


def _line(values: Sequence[int], extent: int) -> tuple[int, int] | None:
    """(first, slope) of a table that is a straight line inside its axis: steps backwards."""
    slope = values[1] - values[0] if len(values) > 1 else 0
    straight = all(b - a == slope for a, b in itertools.pairwise(values))
    return (values[0], slope) if straight and min(values) >= 0 and max(values) < extent else None


def local_strides(shape: tuple[int, ...], extents: Mapping[int, int]) -> tuple[int, ...]:
    """Strides of a tensor of which only `extents` of some axes are kept; 0 for those of one."""
    kept = tuple(extents.get(axis, size) for axis, size in enumerate(shape))
    return tuple(
        0 if extents.get(axis) == 1 else stride
        for axis, stride in enumerate(row_major_strides(kept))
    )


def _joined(piece: Piece) -> Piece:
    """Loops joined in pairs, as long as there are any that all places walk as one."""
    used = {n for p in piece.places for n in p.names()} | set(piece.stage.expr.iterators())
    used |= {n for a in piece.after for at in a.iterators.values() for n in at.names}
    while True:
        free = [p for p in piece.loops if p.whole and not p.fixed and p.name not in used]
        pair = next(
            (
                (a, b)
                for a, b in itertools.permutations(free, 2)
                if a.reduces == b.reduces and _walks_as_one(piece, a, b)
            ),
            None,
        )
        if pair is None:
            return piece
        piece = _join(piece, *pair)


def _walks_as_one(piece: Piece, outer: Loop, inner: Loop) -> bool:
    return all(
        p.strides.get(outer.name, 0) == inner.size * p.strides.get(inner.name, 0)
        for p in piece.places
    )


def _join(piece: Piece, outer: Loop, inner: Loop) -> Piece:
    """`inner` runs over both; `outer` goes."""

    def strip(place: Place) -> Place:
        return replace(place, strides={n: s for n, s in place.strides.items() if n != outer.name})

    after = tuple(
        replace(a, reads=tuple(strip(r) if isinstance(r, Place) else r for r in a.reads))
        for a in piece.after
    )
    loops = tuple(
        replace(p, size=outer.size * inner.size) if p is inner else p
        for p in piece.loops
        if p is not outer
    )
    return replace(
        piece, reads=tuple(map(strip, piece.reads)), after=after, write=strip(piece.write),
        loops=loops,
    )  # fmt: skip


def unrolled(piece: Piece, strip: Loop) -> tuple[Loop, ...]:
    """Reductions whose points are written out: the shortest, while there are few of them."""
    chosen, points = [], len(piece.reads) or 1
    for loop in sorted(piece.reductions, key=lambda p: p.size):
        if loop is not strip and points * loop.size <= UNROLLED:
            points *= loop.size
            chosen.append(loop)
    return tuple(p for p in piece.reductions if p in chosen)


def strip_of(piece: Piece) -> Loop:
    """The loop whose points lie side by side in vectors.

    The one that makes loads and stores cheapest for a point: next to each other, else all the same,
    else some apart. A reduction pays for joining its lanes at the end.
    """
    length = 1
    for loop in piece.reductions:
        length *= loop.size

    def cost(loop: Loop) -> tuple[float, int]:
        reads = sum(_load(p, loop.name) for p in piece.reads)
        others = sum(_load(p, loop.name) for p in piece.places[len(piece.reads) : -1])
        store = 2 * _load(piece.write, loop.name)
        joining = (others + store + 6.0) / loop.size
        once = joining if loop.reduces else (others + store) / length
        waste = (-(-loop.size // 4) * 4) / loop.size
        return (reads + once) * waste, abs(piece.write.strides.get(loop.name, 0))

    free = [p for p in piece.loops if not p.fixed]
    return min(free, key=cost) if free else Loop('none_', 1, False)


def _load(place: Place, name: str) -> float:
    if any(name in at.names for _, at, _ in place.tables):
        return 1.5
    step = abs(place.strides.get(name, 0))
    if step == 0:
        return 0.05
    return 0.3 if step == 1 else 0.6 if step <= 4 else 1.2


def inside(piece: Piece, loop: Loop, window: Sequence[Loop]) -> tuple[int, int]:
    """The range of a parallel loop in which no windowed test of it can fail: its longest run."""
    tests = [t for p in piece.reads for t in p.tests if _windowed(t, loop, window)]
    low, high = 0, loop.size
    for test in (t for t in tests if t.table is None):
        step = test.at.coefficient(loop.name)
        reach = sum(c * (p.size - 1) for p in window for c in [test.at.coefficient(p.name)])
        low = max(low, -(test.at.const // step))
        high = min(high, (test.extent - 1 - test.at.const - reach) // step + 1)
    tables = [t for t in tests if t.table is not None]
    if not tables:
        return low, max(low, high)
    return _longest(lambda at: all(_holds(t, {loop.name: at}, window) for t in tables), low, high)


def _longest(good: Callable[[int], bool], low: int, high: int) -> tuple[int, int]:
    """The longest run of numbers in a range for which something holds."""
    best, start = (0, 0), low
    for at in range(low, high + 1):
        if at == high or not good(at):
            best, start = max(best, (start, at), key=lambda r: r[1] - r[0]), at + 1
    return best


def _holds(test: Test, point: Mapping[str, int], window: Sequence[Loop]) -> bool:
    moving = [p for p in window if p.name in test.at.names]
    return all(
        test.holds({**point, **dict(zip((p.name for p in moving), values, strict=True))})
        for values in itertools.product(*(range(p.size) for p in moving))
    )


def _windowed(test: Test, loop: Loop, window: Sequence[Loop]) -> bool:
    return loop.name in test.at.names and is_windowed(test, (loop, *window))


def is_windowed(test: Test, loops: Sequence[Loop]) -> bool:
    """Whether a test depends on these loops alone."""
    return set(test.at.names) <= {p.name for p in loops}


def affine_text(at: Affine) -> str:
    """An affine index in C."""
    return total([*(scaled(n, c) for n, c in at.terms), str(at.const) if at.const else ''])


def at_point(at: Affine, point: Mapping[str, int]) -> Affine:
    """An affine index with numbers for some iterators."""
    rest = tuple((n, c) for n, c in at.terms if n not in point)
    return Affine(rest, at.const + sum(c * point[n] for n, c in at.terms if n in point))


def read_texts(
    reads: Sequence[Place | int],
    values: Sequence[str],
    element: Callable[[Place, Mapping[int, str]], str],
) -> list[tuple[str, str]]:
    """(C text, dtype) of every read: an element, or one of the values with these dtypes.

    `element` writes one, given the texts of reads that are looked up in it: those come first.
    """
    made: dict[int, tuple[str, str]] = {}
    indirect = [n for n, r in enumerate(reads) if isinstance(r, Place) and r.lookups]
    for n in (*(n for n in range(len(reads)) if n not in indirect), *indirect):
        item = reads[n]
        if isinstance(item, Place):
            known = {k: text for k, (text, _) in made.items()}
            made[n] = element(item, known), computed(item.dtype)
        else:
            made[n] = f'value_{item}', values[item]
    return [made[n] for n in range(len(reads))]
