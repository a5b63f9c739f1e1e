"""The loops of one piece of the general schema.

Goes in: a `Piece`. Comes out: C, written into a `Writer`. The innermost loop runs over neighbours
and has no branch, so that compilers make vectors of it ('#pragma omp simd' promises that nothing is
carried from one to the next). One loop of the piece is the *strip*:

    strip is parallel    for strips of 64:  partial[j] = 0; reductions: partial[j] += ..; store
                         or, where all reductions are written out, one loop without partial results
    strip is a reduction partial[j] += .. for 16 partial results, which are joined at the end

Windows that leave their tensor (padding) are split: where all of a window is inside, as above; at
the border points are skipped if they change nothing, or chosen one by one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.kernels.cpu.expression import C_TYPES, Typed, narrowed, number, widened
from tilewright.kernels.cpu.schemas.general import bytes_neon, halves, window
from tilewright.kernels.cpu.schemas.general.plan import (
    Loop,
    Piece,
    Place,
    Test,
    affine_text,
    at_point,
    inside,
    is_windowed,
    read_texts,
    strip_of,
    unrolled,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.dtypes import computed
from tilewright.ops.stage import COMBINERS, Expr

Kept = Callable[[Test], bool]  # the tests that are made for each point
SIMD = '#pragma omp simd'
WIDE, NARROW = 64, 16  # elements of a strip
COLUMNS = 4  # at the border of a row, each of which is written out
BLOCK = 16  # rows of a block that is transposed


class PieceWriter:
    """State while one piece is written; functions of its own go into `functions`. A piece that is
    `alone` in its translation unit may have vectors of bytes.
    """

    def __init__(
        self, writer: Writer, functions: Writer, typed: Typed, piece: Piece, isa: str,
        alone: bool = False,
    ) -> None:  # fmt: skip
        self.writer, self.functions, self.typed, self.piece = writer, functions, typed, piece
        self.isa = isa
        self.strip = strip_of(piece)
        self.window = unrolled(piece, self.strip)
        self.looped = _outside_in(
            piece, [p for p in piece.reductions if p not in self.window and p != self.strip]
        )
        self.kind = C_TYPES[piece.dtype]
        self.windowed = self._windowed()
        self.block: halves.Block | None = None  # while a loop over f16 is written
        self.bytes = bytes_neon.byte_row(piece, self.strip, isa) if alone else None

    def write(self) -> None:
        piece = self.piece
        neutral = padding_is_neutral(piece) or not any(p.tests for p in piece.reads)
        slides = window.sliding(piece, neutral)
        if slides is not None:
            self._sliding(slides)
            return
        rows = _outside_in(piece, [p for p in piece.parallel if p != self.strip], of_write=True)
        across = None if self.windowed else self._transposed(rows)
        for loop in rows:
            if loop != across:
                self._open(loop)
        if self.strip.reduces:
            self._along_reduction()
        elif self.strip.size == 1:
            self._point_loop(None, '', '', _every)
        elif across is not None:
            self._blocks(across)
        elif self.windowed:
            self._split_window(rows)
        else:
            self._strips(self.strip.low, self.strip.end)
        self.writer.close(len(rows) - (across is not None))

    def _sliding(self, slides: window.Sliding) -> None:
        """Windows along rows, reduced down and across."""
        piece, writer, across = self.piece, self.writer, slides.across.loop
        assert across is not None
        lanes = window.lanes_of(slides, self.isa)
        mark = window.write_functions(self.functions, piece.stage.combiner or 'sum', lanes, slides)
        window.write_buffers(writer, piece, slides, lanes)
        rows = _outside_in(piece, [p for p in piece.parallel if p != across], of_write=True)
        for loop in rows:
            self._open(loop)
        window.write_row(writer, piece, slides, mark)
        if piece.after:
            writer.line(SIMD)
            self._open(across)
            writer.line(f'const {self.kind} value_0 = line_[{across.name}];')
            self._finish()
            writer.close()
        writer.close(len(rows))

    # Which points are inside

    def _windowed(self) -> tuple[Test, ...]:
        """Tests that depend on one parallel loop and on what is written out."""
        parallel = [p for p in self.piece.loops if not p.reduces]
        return tuple(
            test
            for place in self.piece.reads
            for test in place.tests
            if any(
                p.name in test.at.names and is_windowed(test, (p, *self.window)) for p in parallel
            )
        )

    def _split_window(self, rows: Sequence[Loop]) -> None:
        """Inside the image without a test; at its border with all of them."""
        piece, writer, strip = self.piece, self.writer, self.strip
        given = [p for p in piece.loops if p.fixed and not p.reduces]
        outer = (*rows, *given)
        border = self._border(outer)
        ranges = {p.name: inside(piece, p, self.window) for p in (*outer, strip)}
        if any(low >= high for low, high in ranges.values()):
            writer.line(border(strip.low, strip.end))
            return
        conditions = []
        for loop in outer:
            low, high = ranges[loop.name]
            conditions += [f'{loop.name} >= {low}'] if low else []
            conditions += [f'{loop.name} < {high}'] if high < loop.size else []
        if conditions:
            writer.open(f'if ({" && ".join(conditions)})')
        low, high = ranges[strip.name]
        few = strip.whole and not self.looped and max(low, strip.size - high) <= COLUMNS
        if few:
            for at in range(low):
                self._column(at)
            self._strips(str(low), str(high))
            for at in range(high, strip.size):
                self._column(at)
        elif (low, high) == (0, strip.size):
            self._strips(strip.low, strip.end)
        else:
            ends = strip.low, strip.end
            writer.line(f'const long first_ = min_long(max_long({ends[0]}, {low}), {ends[1]});')
            writer.line(f'const long last_ = max_long(first_, min_long({high}, {ends[1]}));')
            writer.line(border(ends[0], 'first_'))
            self._strips('first_', 'last_')
            writer.line(border('last_', ends[1]))
        if conditions:
            writer.close()
            writer.line('else')
            writer.line(f'    {border(strip.low, strip.end)}')

    def _border(self, outer: Sequence[Loop]) -> Callable[[str, str], str]:
        """A C function for points at the border; comes out: how it is called for a range."""
        places, names = self.piece.places, [p.name for p in outer]
        number = sum(line.startswith('static __attribute__((noinline, unused)) void border_')
                     for line in self.functions.lines)  # fmt: skip
        pointers = [
            f'{"" if p is self.piece.write else "const "}{C_TYPES[p.dtype]} *restrict {p.pointer}'
            for p in places
        ]
        arguments = [*pointers, *(f'long {n}' for n in names), 'long low_', 'long high_']
        body, self.writer = self.writer, self.functions
        self.writer.open(
            f'static __attribute__((noinline, unused)) void border_{number}({", ".join(arguments)})'
        )
        if padding_is_neutral(self.piece):
            self._strip_loop('low_', 'high_', NARROW, self._unskipped, True)
        elif self.looped:
            self._strip_loop('low_', 'high_', NARROW, _every, False)
        else:
            self._point_loop(self.strip, 'low_', 'high_', _every)
        self.writer.close()
        self.writer.line()
        self.writer = body
        values = ', '.join([*(p.pointer for p in places), *names])
        return lambda low, high: f'border_{number}({values}, {low}, {high});'

    def _column(self, at: int) -> None:
        """One point at the border of a row; which of its taps are outside is known."""
        writer, strip = self.writer, self.strip
        writer.open('')
        writer.line(f'const long {strip.name} = {at};')
        if padding_is_neutral(self.piece):
            taps = [
                point
                for point in self._points()
                if all(
                    t.holds({**point, strip.name: at})
                    for t in self.windowed
                    if strip.name in t.at.names
                )
            ]
            kept = self._unwindowed
        else:
            taps, kept = self._points(), _every
        self._finish_taps(taps, kept)
        writer.close()

    def _transposed(self, rows: Sequence[Loop]) -> Loop | None:
        """A loop with neighbours side by side in what is read, if the strip's lie far apart."""
        if self.piece.stage.combiner or self.strip.reduces:
            return None
        for place in self.piece.reads:
            if abs(place.strides.get(self.strip.name, 0)) > 4:
                for loop in rows:
                    if abs(place.strides.get(loop.name, 0)) == 1 and loop.size >= 4:
                        return loop
        return None

    # Loops

    def _open(self, loop: Loop) -> None:
        self.writer.open(
            f'for (long {loop.name} = {loop.low}; {loop.name} < {loop.end}; {loop.name}++)'
        )

    def _blocks(self, across: Loop) -> None:
        """Blocks of rows, each line of which is read once while it is in the first cache."""
        writer, strip = self.writer, self.strip
        writer.open(f'for (long at_ = {strip.low}; at_ < {strip.end}; at_ += {BLOCK})')
        writer.line(f'const long end_ = min_long(at_ + {BLOCK}, {strip.end});')
        self._open(across)
        self._point_loop(strip, 'at_', 'end_', _every)
        writer.close(2)

    def _strips(self, low: str, high: str) -> None:
        """The points from `low` to `high` of the strip, where no window leaves."""
        if low == high:
            return
        if not self.looped:
            self._point_loop(self.strip, low, high, self._unwindowed)
            return
        writer, kept = self.writer, self._unwindowed
        width = WIDE if self.strip.size >= WIDE else NARROW
        if not (low.isdigit() and high.isdigit()):
            writer.open('')
            writer.line(f'long at_ = {low};')
            writer.open(f'for (; at_ + {width} <= {high}; at_ += {width})')
            self._strip('at_', str(width), width, kept, False)
            writer.close()
            self._strip_loop('at_', high, width, kept, False)
            writer.close()
            return
        length = int(high) - int(low)
        whole = int(low) + length // width * width
        if length >= width:
            writer.open(f'for (long at_ = {low}; at_ < {whole}; at_ += {width})')
            self._strip('at_', str(width), width, kept, False)
            writer.close()
        if length % width:
            self._strip(str(whole), str(length % width), width, kept, False)

    def _strip_loop(self, low: str, high: str, width: int, kept: Kept, skips: bool) -> None:
        """Strips of up to `width` points."""
        writer = self.writer
        writer.open(f'for (long at_ = {low}; at_ < {high}; at_ += {width})') if low != 'at_' else (
            writer.open(f'if (at_ < {high})')
        )
        writer.line(f'const long count_ = min_long({width}, {high} - at_);')
        self._strip('at_', 'count_', width, kept, skips)
        writer.close()

    def _unwindowed(self, test: Test) -> bool:
        """Inside the image windows need no test."""
        return test not in self.windowed

    def _unskipped(self, test: Test) -> bool:
        """Points outside are skipped, unless a table along the strip leads there."""
        return test.table is not None and self.strip.name in test.at.names

    def _strip(self, at: str, count: str, width: int, kept: Kept, skips: bool) -> None:
        """`count` points from `at`, their partial results in a small array."""
        writer, strip = self.writer, self.strip
        here = f'const long {strip.name} = {total([at, "j_"])};'
        writer.open('')
        self._clear(width)
        loops = _outside_in(self.piece, self.piece.reductions if skips else self.looped)
        for loop in loops:
            self._open(loop)
        low, high = '0', count
        if skips:
            low, high = 'from_', 'to_'
            self._clip(at, count, in_loop=bool(loops))
        points = [{}] if skips else self._points()
        self._neighbours(
            'j_', low, high, here, lambda: self._accumulate('partial_[j_]', points, kept)
        )
        writer.close(len(loops))

        def finish() -> None:
            self.writer.line(f'const {self.kind} value_0 = partial_[j_];')
            self._finish()

        self._neighbours('j_', '0', count, here, finish)
        writer.close()

    def _clip(self, at: str, count: str, in_loop: bool) -> None:
        """Go on with the points of a strip, `from_` to `to_`, that are inside for this tap."""
        writer, strip = self.writer, self.strip
        tests = [t for p in self.piece.reads for t in p.tests]
        rows = [t.text() for t in tests if strip.name not in t.at.names]
        inside = ' && '.join(dict.fromkeys(rows))
        if rows and in_loop:
            writer.line(f'if (!({inside}))')
            writer.line('    continue;')
        # A single tap has no loop to go on with: none of its points is inside.
        last = f'({inside}) ? {count} : 0' if rows and not in_loop else count
        writer.line(f'long from_ = 0, to_ = {last};')
        for test in tests:
            if strip.name not in test.at.names or test.table:
                continue
            step, rest = test.at.coefficient(strip.name), at_point(test.at, {strip.name: 0})
            start = total([affine_text(rest), scaled(at, step) if at != '0' else ''])
            writer.line(f'from_ = max_long(from_, ceil_div(-({start}), {step}));')
            writer.line(f'to_ = min_long(to_, ceil_div({test.extent} - ({start}), {step}));')

    def _along_reduction(self) -> None:
        """Partial results along a reduction, joined at the end."""
        writer, strip = self.writer, self.strip
        width = NARROW if strip.size >= 2 * NARROW else 8 if strip.size >= 16 else 4
        writer.open('')
        self._clear(width)
        for loop in self.looped:
            self._open(loop)
        whole, rest = strip.size // width * width, strip.size % width
        if whole:
            writer.open(f'for (long at_ = 0; at_ < {whole}; at_ += {width})')
            self._lanes('at_', width)
            writer.close()
        if rest:
            self._lanes(str(whole), rest)
        writer.close(len(self.looped))
        writer.line(f'{self.kind} value_0 = partial_[0];')
        writer.line(f'for (long j_ = 1; j_ < {width}; j_++)')
        joined = self._combined('value_0', 'partial_[j_]')
        writer.line(f'    value_0 = {joined};')
        self._finish()
        writer.close()

    def _lanes(self, at: str, count: int) -> None:
        here = f'const long {self.strip.name} = {total([at, "j_"])};'
        points = self._points()
        self._neighbours(
            'j_', '0', str(count), here, lambda: self._accumulate('partial_[j_]', points, _every)
        )

    def _clear(self, width: int) -> None:
        combiner = self.piece.stage.combiner
        assert combiner is not None
        self.writer.line(f'{self.kind} partial_[{width}];')
        self.writer.line(SIMD)
        self.writer.line(f'for (long j_ = 0; j_ < {width}; j_++)')
        start = number(COMBINERS[combiner], self.piece.dtype)
        self.writer.line(f'    partial_[j_] = {start};')

    # Points

    def _point_loop(self, strip: Loop | None, low: str, high: str, kept: Kept) -> None:
        """One loop, each of whose points is finished at once; without a strip a single point."""
        if strip is None:
            self.writer.open('')
            self._finish_taps(self._points(), kept)
            self.writer.close()
            return
        points = self._points()
        self._neighbours(strip.name, low, high, '', lambda: self._finish_taps(points, kept))

    def _neighbours(
        self, name: str, low: str, high: str, here: str, body: Callable[[], None]
    ) -> None:
        """A loop whose points lie side by side; `here` stands before its body."""
        first = low
        length = int(high) - int(low) if low.isdigit() and high.isdigit() else -1
        if self.bytes is not None:
            self.bytes.write_functions(self.functions)
            first = self._blocks_of_bytes(self.bytes, name, low, high)
            if length >= 0 and length % bytes_neon.RUN == 0:
                return
        elif any(halves.runs(p, self.strip.name) for p in self.piece.places):
            if length < 0 or length >= halves.RUN:
                first = self._blocks_of_halves(name, low, high, here, body)
            if length >= 0 and length % halves.RUN == 0:
                return
        self.writer.line(SIMD)
        self.writer.open(f'for (long {name} = {first}; {name} < {high}; {name}++)')
        if here:
            self.writer.line(here)
        body()
        self.writer.close()

    def _blocks_of_halves(
        self, name: str, low: str, high: str, here: str, body: Callable[[], None]
    ) -> str:
        """The same for whole blocks of f16; comes out: where the rest begins."""
        writer, self.writer, self.block = self.writer, Writer(), halves.Block()
        body()
        inner, block = self.writer.lines, self.block
        self.writer, self.block = writer, None
        whole = self._open_blocks(name, low, high, halves.RUN)
        if here:
            writer.line(here)
        block.before(writer)
        writer.line(f'const long block_ = {name};')
        writer.line(SIMD)
        writer.open(f'for (long i_ = 0; i_ < {halves.RUN}; i_++)')
        writer.line(f'const long {name} = block_ + i_;')
        if here:
            writer.line(here)
        for line in inner:
            writer.line(line)
        writer.close()
        block.after(writer)
        writer.close()
        return whole

    def _blocks_of_bytes(self, row: bytes_neon.ByteRow, name: str, low: str, high: str) -> str:
        """The same for blocks of bytes and of what they are computed with."""
        whole = self._open_blocks(name, low, high, bytes_neon.RUN)
        row.write_block(self.writer)
        self.writer.close()
        return whole

    def _open_blocks(self, name: str, low: str, high: str, run: int) -> str:
        """Open a loop over whole blocks; comes out: where the rest begins."""
        if low.isdigit() and high.isdigit():
            whole = str(int(low) + (int(high) - int(low)) // run * run)
        else:
            whole = f'{name}from_'
            self.writer.line(f'const long {whole} = {high} - ({high} - ({low})) % {run};')
        self.writer.open(f'for (long {name} = {low}; {name} < {whole}; {name} += {run})')
        return whole

    def _finish_taps(self, taps: list[dict[str, int]], kept: Kept) -> None:
        """A point from the taps of its window, and what follows."""
        combiner = self.piece.stage.combiner
        constant = 'const ' if len(taps) < 2 else ''
        if taps:
            first = self._value(taps[0], kept)
        else:
            first = number(COMBINERS[combiner or 'sum'], self.piece.dtype)
        self.writer.line(f'{constant}{self.kind} value_0 = {first};')
        self._accumulate('value_0', taps[1:], kept)
        self._finish()

    def _points(self) -> list[dict[str, int]]:
        """The points of the window that is written out."""
        names = [p.name for p in self.window]
        ranges = (range(p.size) for p in self.window)
        return [dict(zip(names, point, strict=True)) for point in itertools.product(*ranges)]

    def _accumulate(self, target: str, points: list[dict[str, int]], kept: Kept) -> None:
        for point in points:
            self.writer.line(f'{target} = {self._combined(target, self._value(point, kept))};')

    def _combined(self, left: str, right: str) -> str:
        return self.typed.combine(self.piece.stage.combiner or 'sum', self.piece.dtype, left, right)

    def _value(self, point: Mapping[str, int], kept: Kept) -> str:
        """The expression at a point of the window, in the dtype that is accumulated."""
        piece = self.piece
        places = [replace(p, tests=tuple(filter(kept, p.tests))).at(point) for p in piece.reads]
        iterators = {n: affine_text(at_point(at, point)) for n, at in piece.iterators.items()}
        text, dtype = self.typed.text(
            piece.stage.expr, read_texts(places, [], self._element), iterators
        )
        return self.typed.convert(text, dtype, piece.dtype)

    def _element(self, place: Place, looked_up: Mapping[int, str]) -> str:
        if place.lookups:
            self.typed.functions['lookup'] = None
        beyond = number(self.piece.stage.pad_value, computed(place.dtype))
        if self.block is not None and halves.runs(place, self.strip.name):
            return self.block.read(place, beyond)
        element = f'{place.pointer}[{place.index(looked_up)}]'
        element = widened(element, place.dtype)
        if not place.tests:
            return element
        tests = ' && '.join(dict.fromkeys(t.text() for t in place.tests))
        return f'({tests} ? {element} : {beyond})'

    def _finish(self) -> None:
        """What follows the sum, and the store."""
        piece, writer = self.piece, self.writer
        dtypes = [piece.dtype]
        for n, after in enumerate(piece.after, 1):
            iterators = {name: affine_text(at) for name, at in after.iterators.items()}
            text, dtype = self.typed.text(
                after.expr, read_texts(after.reads, dtypes, self._element), iterators
            )
            value = self.typed.convert(text, dtype, after.dtype)
            writer.line(f'const {C_TYPES[after.dtype]} value_{n} = {value};')
            dtypes.append(after.dtype)
        target = f'{piece.write.pointer}[{piece.write.index({})}]'
        if self.block is not None and halves.runs(piece.write, self.strip.name):
            target = self.block.write(piece.write)
        writer.line(f'{target} = {narrowed(f"value_{len(piece.after)}", piece.write.dtype)};')


def _every(_: Test) -> bool:
    return True


def _outside_in(piece: Piece, loops: Sequence[Loop], of_write: bool = False) -> list[Loop]:
    """Loops, those with the largest steps outside."""
    places = [piece.write] if of_write else piece.reads[:1] or [piece.write]
    return sorted(loops, key=lambda p: -abs(places[0].strides.get(p.name, 0)))


def padding_is_neutral(piece: Piece) -> bool:
    """Whether a point that reads padding contributes nothing, so that it can be skipped.

    Decided for products of reads and numbers, which are `pad_value` there, and for a plain read.
    """
    stage = piece.stage
    if stage.combiner is None or not _is_product(stage.expr):
        return False
    if stage.expr.op == 'read':
        return stage.pad_value == COMBINERS[stage.combiner]
    return stage.combiner == 'sum' and stage.pad_value == 0


def _is_product(expr: Expr) -> bool:
    if expr.op == 'mul':
        return all(map(_is_product, expr.args))
    return expr.op == 'read' or (expr.op == 'const' and math.isfinite(expr.value))
