"""Windows that slide along rows, reduced by their sum, maximum or minimum: first down, then across.

    buffer[x] = the rows of a window, element by element        R - 1 operations for each column
    out[w]    = the columns of a window, out of the buffer      S - 1 operations for each result

The buffer has borders that change nothing, written once, so that no window leaves it; rows outside
the image are not read. Vectors are written as such, so that the last of a row may overlap the one
before it: rows of a few elements have no remainder. On ARM the maximum that lets NaN through is
one instruction, which compilers do not find by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.cpu.expression import number
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.schemas.general.plan import Loop, Piece
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.stage import COMBINERS, Affine, read

# Every other of sixteen elements, in the order of a shuffle that stays inside the halves of both
# vectors, and what puts the result of several of them in order.
_HALVES = (0, 2, 8, 10, 4, 6, 12, 14)
_JOINED = (0, 1, 4, 5, 2, 3, 6, 7)
MOST_TAPS = 16
MOST_COLUMNS = 4096  # of a buffer on the stack

_COMBINERS = ('sum', 'max', 'min')
# (combiner, lanes) -> (the macro of who has it, how two vectors are joined there). On x86 both give
# their second operand where one is NaN, so that a NaN of `a` stays, and one of `b` is put back.
_NATIVE = {
    ('max', 4): ('__ARM_NEON', 'vmaxq_f32(a, b)'),
    ('min', 4): ('__ARM_NEON', 'vminq_f32(a, b)'),
    **{
        (name, 8): (
            '__AVX__',
            f'_mm256_blendv_ps(_mm256_{name}_ps(b, a), b, _mm256_cmp_ps(b, b, _CMP_UNORD_Q))',
        )
        for name in ('max', 'min')
    },
}


@dataclass(frozen=True, slots=True)
class Axis:
    """`out` windows of `taps` elements, `step` apart, over `size` elements from `-before` on."""

    loop: Loop | None
    tap: str
    size: int
    out: int
    taps: int
    step: int
    dilation: int
    before: int


@dataclass(frozen=True, slots=True)
class Sliding:
    """Rows and columns of the windows; `pitch`: elements from one row to the next."""

    down: Axis
    across: Axis
    pitch: int

    @property
    def columns(self) -> int:
        """Elements of the buffer: all that windows look at."""
        across = self.across
        reach = (across.out - 1) * across.step + (across.taps - 1) * across.dilation + 1
        return max(reach, across.before + across.size)


def sliding(piece: Piece, neutral: bool) -> Sliding | None:
    """[Piece] -> [Sliding], or None where a piece is something else.

    One float32 operand that is reduced as it is, with a window along its rows, perhaps another one
    across them, and borders that change nothing.
    """
    stage = piece.stage
    if stage.combiner not in _COMBINERS or stage.expr != read(0) or not neutral:
        return None
    if stage.combiner == 'sum' and not piece.reads[0].tests:
        return None  # compilers do well without borders
    if piece.dtype != 'f32' or piece.reads[0].dtype != 'f32' or piece.reads[0].tables:
        return None
    access, shape = stage.reads[0], piece.shapes[0]
    last = stage.write.index[-1] if stage.write.index else Affine(())
    if len(last.terms) != 1 or last.terms[0][1] != 1 or not access.is_affine:
        return None
    across = _axis(piece, access.index[-1], shape[-1], last.names[0])
    if across is None or across.loop is None or across.taps < 2:
        return None
    if not across.loop.whole or across.loop.fixed:
        return None
    windows = [
        (axis, e)
        for axis, e in enumerate(access.index[:-1])
        if any(p.name in e.names for p in piece.reductions)
    ]
    down, pitch = Axis(None, '', 1, 1, 1, 1, 1, 0), 0
    if len(windows) == 1:
        axis, expression = windows[0]
        names = [n for n in expression.names if not _loop(piece, n).reduces]
        found = _axis(piece, expression, shape[axis], names[0]) if len(names) == 1 else None
        if found is None:
            return None
        down, pitch = found, piece.reads[0].strides[found.tap] // found.dilation
    known = [{axis.loop.name, axis.tap} for axis in (across, down) if axis.loop]
    if any(not any(set(t.at.names) <= own for own in known) for t in piece.reads[0].tests):
        return None
    if len(windows) > 1 or {across.tap, down.tap} - {''} != {p.name for p in piece.reductions}:
        return None
    made = Sliding(down, across, pitch)
    return made if made.columns <= MOST_COLUMNS and _fits(made) else None


def _fits(made: Sliding) -> bool:
    """Whether rows are at least a vector long and windows not too large."""
    return (
        min(made.across.out, made.across.size) >= 4
        and max(made.across.taps, made.down.taps) <= MOST_TAPS
    )


def _loop(piece: Piece, name: str) -> Loop:
    return next((p for p in piece.loops if p.name == name), Loop(name, 1, False))


def _axis(piece: Piece, expression: Affine, size: int, name: str) -> Axis | None:
    """The windows along one axis of the operand; None where it is walked otherwise."""
    loop = _loop(piece, name)
    taps = [_loop(piece, n) for n in expression.names if _loop(piece, n).reduces]
    others = [n for n in expression.names if n not in (name, *(t.name for t in taps))]
    sizes = piece.stage.sizes
    if len(taps) > 1 or any(sizes[n] > 1 for n in others) or loop.reduces:
        return None
    if loop.size != sizes[name] or any(t.size != sizes[t.name] for t in taps):
        return None
    step = expression.coefficient(name)
    if not step or expression.const > 0 or not taps:
        return None
    tap = taps[0]
    dilation = expression.coefficient(tap.name)
    return Axis(loop, tap.name, size, loop.size, tap.size, step, dilation, -expression.const)


def lanes_of(made: Sliding, isa: str) -> int:
    """Elements of a vector: no more than a row has."""
    short = min(made.across.out, made.across.size) < 8
    return 8 if ISAS[isa].vector_bytes >= 32 and not short else 4


def write_functions(writer: Writer, combiner: str, lanes: int, made: Sliding) -> str:
    """The C functions for one kind of window; comes out: the end of their names."""
    across = made.across
    mark = f'{combiner}{lanes}'
    vector, ints = f'lanes_{lanes}', f'masks_{lanes}'
    text = '\n'.join(writer.lines)
    if f'typedef float {vector} ' not in text:
        size = f'vector_size({4 * lanes}), aligned(4), may_alias'
        writer.line('#if defined(__ARM_NEON)')
        writer.line('#include <arm_neon.h>')
        writer.line('#elif defined(__AVX__)')
        writer.line('#include <immintrin.h>')
        writer.line('#endif')
        writer.line(f'typedef float {vector} __attribute__(({size}));')
        writer.line(f'typedef int32_t {ints} __attribute__(({size}));')
        writer.line()
    if f'join_{mark}(' not in text:
        writer.open(f'{INLINE} {vector} join_{mark}({vector} a, {vector} b)')
        native = _NATIVE.get((combiner, lanes))
        if native:
            writer.line(f'#ifdef {native[0]}')
            writer.line(f'return {native[1]};')
            writer.line('#else')
        if combiner == 'sum':
            writer.line('return a + b;')
        else:
            order = 'a < b' if combiner == 'max' else 'b < a'
            writer.line(f'const {ints} mask = ({order}) | (b != b);')
            writer.line(f'return ({vector})((mask & ({ints})b) | (~mask & ({ints})a));')
        if native:
            writer.line('#endif')
        writer.close()
        writer.line()
    if f'rows_{mark}(' not in text:
        _write_rows(writer, mark, vector, lanes)
    name = f'taps_{mark}_{across.taps}s{across.step}d{across.dilation}'
    if f' {name}(' not in text:
        writer.line(f'/* to[x] = {across.taps} columns from {across.step} * x on, joined. */')
        _write_taps(writer, name, vector, mark, lanes, across)
    return mark


def _write_rows(writer: Writer, mark: str, vector: str, lanes: int) -> None:
    """Vector by vector, the last one overlapping the one before it."""
    writer.line('/* to[x] = from[x] and the rows behind it, joined. */')
    writer.open(
        f'{INLINE} void rows_{mark}(float *restrict to, const float *restrict from, long pitch, '
        f'long rows, long length)'
    )
    writer.open(f'for (long at = 0; at < length; at += {lanes})')
    writer.line(f'const float *p = from + min_long(at, length - {lanes});')
    writer.line(f'{vector} value = *(const {vector} *)p;')
    writer.line('for (long n = 1; n < rows; n++)')
    writer.line(f'    value = join_{mark}(value, *(const {vector} *)(p + n * pitch));')
    writer.line(f'*({vector} *)(to + (p - from)) = value;')
    writer.close(2)
    writer.line()


def _write_taps(
    writer: Writer, name: str, vector: str, mark: str, lanes: int, across: Axis
) -> None:
    writer.open(
        f'{INLINE} void {name}(float *restrict to, const float *restrict from, long length)'
    )
    writer.open(f'for (long at = 0; at < length; at += {lanes})')
    writer.line(f'const long x = min_long(at, length - {lanes});')
    writer.line(f'const float *p = from + {scaled("x", across.step)};')

    halves = across.step == 2 and lanes == 8

    def load(tap: int) -> str:
        place = tap * across.dilation
        if across.step == 1:
            return f'*(const {vector} *)(p + {place})'
        if across.step == 2:
            first = place % 2 if halves else 0
            chosen = ', '.join(
                str(i + first) for i in (_HALVES if halves else range(0, 2 * lanes, 2))
            )
            low, high = (f'*(const {vector} *)(p + {place - first + o})' for o in (0, lanes))
            return f'__builtin_shufflevector({low}, {high}, {chosen})'
        return f'({vector}){{{", ".join(f"p[{place + i * across.step}]" for i in range(lanes))}}}'

    writer.line(f'{vector} value = {load(0)};')
    for tap in range(1, across.taps):
        writer.line(f'value = join_{mark}(value, {load(tap)});')
    if halves:
        order = ', '.join(map(str, _JOINED))
        writer.line(f'value = __builtin_shufflevector(value, value, {order});')
    writer.line(f'*({vector} *)(to + x) = value;')
    writer.close(2)
    writer.line()


def write_buffers(writer: Writer, piece: Piece, made: Sliding, lanes: int) -> None:
    """The buffer with its borders, and a row of results where more follows."""
    slack = lanes * max(made.across.step, 1)
    length = made.columns + slack
    start = number(COMBINERS[piece.stage.combiner or 'sum'], 'f32')
    writer.line(f'float buffer_[{length}];')
    writer.line(f'for (long x_ = 0; x_ < {length}; x_++)')
    writer.line(f'    buffer_[x_] = {start};')
    if piece.after:
        writer.line(f'float line_[{made.across.out}];')


def write_row(writer: Writer, piece: Piece, made: Sliding, mark: str) -> None:
    """One row of results, into `line_` or straight into the output."""
    across, down = made.across, made.down
    place = piece.reads[0].at({p.name: 0 for p in piece.loops if p.reduces})
    assert across.loop is not None
    base = place.at({across.loop.name: 0})
    column = across.before  # where the first element of a row lies in the buffer
    start = total([base.index({}), str(column)])
    target = f'buffer_ + {column}' if column else 'buffer_'
    if down.taps == 1:
        writer.line(f'rows_{mark}({target}, {place.pointer} + {start}, 0, 1, {across.size});')
    else:
        # A single row of results has no loop.
        rows = [p.name for p in piece.loops if down.loop and p.name == down.loop.name]
        row = total([*(scaled(name, down.step) for name in rows), str(-down.before)])
        writer.line(f'const long top_ = {row};')
        writer.line(f'const long from_ = max_long(0, ceil_div(-top_, {down.dilation}));')
        end = f'ceil_div({down.size} - top_, {down.dilation})'
        writer.line(f'const long to_ = min_long({down.taps}, {end});')
        step = made.pitch * down.dilation
        first = f'{place.pointer} + {start} + from_ * {step}'
        writer.line(f'if (to_ - from_ == {down.taps})')
        writer.line(f'    rows_{mark}({target}, {first}, {step}, {down.taps}, {across.size});')
        writer.line('else if (to_ > from_)')
        writer.line(f'    rows_{mark}({target}, {first}, {step}, to_ - from_, {across.size});')
        writer.line('else')
        start_value = number(COMBINERS[piece.stage.combiner or 'sum'], 'f32')
        writer.line(f'    for (long x_ = 0; x_ < {across.size}; x_++)')
        writer.line(f'        buffer_[{total(["x_", str(column)])}] = {start_value};')
    out = 'line_'
    if not piece.after:
        written = piece.write.at({across.loop.name: 0})
        out = f'{piece.write.pointer} + {written.index({})}'
    name = f'taps_{mark}_{across.taps}s{across.step}d{across.dilation}'
    writer.line(f'{name}({out}, buffer_, {across.out});')
