"""Winograd's transforms in C: straight-line code from the matrices, and the loops around it.

Goes in: a `Geometry` and the buffers' strides. Comes out: C functions.

    transform_input    image -> V[t][c][tile]    two passes of vectors: down the rows of the image,
                                                 whose columns are contiguous as they lie; then
                                                 across, over the phases x = m * tile + i, so that
                                                 neighbouring tiles are neighbours in a vector
    transform_output   M[t][tile][k] -> rows[y][x][k], vectors over k

Symmetric points give rows (B^T) or columns (A^T) that differ in signs only: their even and odd
parts are computed once and added or subtracted (`linear`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from tilewright.codegen.cpu.writer import Writer
from tilewright.machine.isa import Isa
from tilewright.ops.winograd import Geometry, Matrix

LINE = 16  # floats of a cache line: buffers that are walked together start this far out of step


@dataclass(frozen=True, slots=True)
class Buffers:
    """Strides and sizes of one thread's scratch, in floats.

    tiles, columns  most tiles, and most columns of tiles, of a block
    lanes           fp32 lanes of the input transform (a power of two)
    """

    tiles: int
    columns: int
    lanes: int
    shape: Geometry

    @property
    def v_stride(self) -> int:
        """From V[t] to V[t + 1]: a vector may be written past the last tile."""
        return -(-(self.shape.c * self.tiles + self.lanes) // LINE) * LINE + LINE

    @property
    def positions(self) -> int:
        """Positions of each phase: those of whole vectors of tiles, and the overlap of tiles."""
        across = self.shape.across
        whole = -(-self.columns // self.lanes) * self.lanes + (across.t - 1) // across.m
        return -(-whole // 4) * 4

    @property
    def line(self) -> int:
        """One transformed row of the image, with what the last transposition reads behind it."""
        across = self.shape.across
        return -(-(across.m * self.positions + across.r + 4) // LINE) * LINE

    @property
    def phase_floats(self) -> int:
        return -(-max(self.shape.across.m, 4) * self.positions // LINE) * LINE

    @property
    def work_floats(self) -> int:
        """A row of zeros, the transformed rows, the phases of one of them."""
        return self.line * (1 + self.shape.down.t) + self.phase_floats


def number(value: Fraction) -> str:
    return f'{float(value)!r}f'


def combination(terms: Sequence[tuple[Fraction, str]]) -> str:
    """A C expression for a weighted sum, plain terms first so that the rest become FMAs."""
    kept = [(c, x) for c, x in terms if c]
    if not kept:
        return '0.0f * ' + terms[0][1]
    kept.sort(key=lambda term: (term[0] != 1, abs(term[0]) != 1))
    text = ''
    for coefficient, name in kept:
        sign = '-' if coefficient < 0 else '+'
        size = abs(coefficient)
        body = name if size == 1 else f'{number(size)} * {name}'
        text += f' {sign} {body}' if text else (f'-{body}' if sign == '-' else body)
    return text


def linear(
    matrix: Matrix, inputs: Sequence[str], outputs: Sequence[str], kind: str, prefix: str
) -> list[str]:
    """C declarations `kind output = ...` that compute outputs = matrix * inputs."""
    lines: list[str] = []
    columns = list(range(len(inputs)))
    rows: list[list[tuple[Fraction, str]]] = [[] for _ in matrix]
    used: set[int] = set()
    for a in columns:
        partner = next((b for b in columns if b > a and _mirrored(matrix, a, b)), None)
        if a in used:
            continue
        if partner is None or partner in used:
            for i, row in enumerate(matrix):
                rows[i].append((row[a], inputs[a]))
            continue
        used |= {a, partner}
        names = f'{prefix}s{a}', f'{prefix}d{a}'
        lines.append(f'const {kind} {names[0]} = {inputs[a]} + {inputs[partner]};')
        lines.append(f'const {kind} {names[1]} = {inputs[a]} - {inputs[partner]};')
        for i, row in enumerate(matrix):
            rows[i].append((row[a], names[0] if row[a] == row[partner] else names[1]))
    lines += _paired_rows(rows, outputs, kind, prefix)
    return lines


def _mirrored(matrix: Matrix, a: int, b: int) -> bool:
    """Whether two columns differ in signs, and in nothing else, with at least two rows each."""
    same = sum(row[a] == row[b] != 0 for row in matrix)
    opposite = sum(row[a] == -row[b] != 0 for row in matrix)
    whole = all(abs(row[a]) == abs(row[b]) for row in matrix)
    return whole and same + opposite > 2 and same > 0 and opposite > 0


def _paired_rows(
    rows: list[list[tuple[Fraction, str]]], outputs: Sequence[str], kind: str, prefix: str
) -> list[str]:
    lines: list[str] = []
    done: set[int] = set()
    for i, row in enumerate(rows):
        if i in done:
            continue
        partner = next((j for j in range(i + 1, len(rows)) if _opposed(row, rows[j])), None)
        if partner is None or partner in done:
            lines.append(f'const {kind} {outputs[i]} = {combination(row)};')
            continue
        done |= {i, partner}
        other = rows[partner]
        even = [a for a, b in zip(row, other, strict=True) if a[0] and a[0] == b[0]]
        odd = [a for a, b in zip(row, other, strict=True) if a[0] and a[0] == -b[0]]
        # A factor that leaves plain numbers behind is applied by the last addition, as an FMA.
        factor = odd[-1][0]
        if any(not _dyadic(c / factor) for c, _ in odd):
            factor = Fraction(1)
        names = f'{prefix}e{i}', f'{prefix}o{i}'
        lines.append(f'const {kind} {names[0]} = {combination(even)};')
        lines.append(f'const {kind} {names[1]} = {combination([(c / factor, x) for c, x in odd])};')
        for output, sign in ((outputs[i], 1), (outputs[partner], -1)):
            text = combination([(Fraction(1), names[0]), (sign * factor, names[1])])
            lines.append(f'const {kind} {output} = {text};')
    return lines


def _opposed(row: list[tuple[Fraction, str]], other: list[tuple[Fraction, str]]) -> bool:
    pairs = [(a, b) for (a, _), (b, _) in zip(row, other, strict=True) if a or b]
    same = sum(a == b for a, b in pairs)
    opposite = sum(a == -b for a, b in pairs)
    return same + opposite == len(pairs) > 2 and same > 0 and opposite > 0


def _dyadic(value: Fraction) -> bool:
    return value.denominator & (value.denominator - 1) == 0


def operations(matrix: Matrix) -> int:
    """Vector instructions of one application of a matrix, an FMA counting as one."""
    names = [f'x{i}' for i in range(len(matrix[0]))]
    lines = linear(matrix, names, [f'y{i}' for i in range(len(matrix))], 'vec', '')
    return sum(max(line.count(' + ') + line.count(' - '), line.count(' * ')) for line in lines)


def write_input(writer: Writer, buffers: Buffers, strides: tuple[int, ...]) -> None:
    """`transform_input`; `strides` are those of the image (n, c, rows, columns), in floats."""
    shape = buffers.shape
    down, across = shape.down, shape.across
    _write_down(writer, buffers, 'vec', f'transform_down_{buffers.lanes}')
    _write_down(writer, buffers, 'float', 'transform_down_1')
    _write_across(writer, buffers)
    writer.open(
        'static __attribute__((noinline)) void transform_input(const float *restrict image, '
        'float *restrict v, float *restrict work, long n, long n_end, long ph, long ph_end, '
        'long pw, long pw_end)'
    )
    writer.line('const long columns = pw_end - pw;')
    writer.line(f'const long from = pw * {across.m} - {shape.pad_left};')
    writer.line('const long low = max_long(from, 0);')
    reach = f'from + columns * {across.m} + {across.r - 1}'
    writer.line(f'const long count = max_long(min_long({reach}, {shape.width}) - low, 0);')
    writer.line(f'float *const lines = work + {buffers.line};')
    writer.line(f'float *const phases = lines + {down.t * buffers.line};')
    writer.line('float *const inside = lines + (low - from);')
    writer.line(f'memset(work, 0, {buffers.work_floats} * sizeof(float));')
    writer.open(f'for (long c = 0; c < {shape.c}; c++)')
    writer.line(f'float *to = v + c * {buffers.tiles};')
    writer.open('for (long b = n; b < n_end; b++)')
    writer.line(f'const float *plane = image + b * {strides[0]} + c * {strides[1]} + low;')
    writer.open('for (long p = ph; p < ph_end; p++, to += columns)')
    for a in range(down.t):
        writer.line(f'const long y{a} = p * {down.m} + {a - shape.pad_top};')
        writer.line(
            f'const float *r{a} = (unsigned long)y{a} < {shape.height}ul ? '
            f'plane + y{a} * {strides[2]} : work;'
        )
    rows = ', '.join(f'r{a}' for a in range(down.t))
    vector = f'transform_down_{buffers.lanes}({rows}, inside, '
    writer.line('long x = 0;')
    writer.line(f'for (; x + {buffers.lanes} <= count; x += {buffers.lanes})')
    writer.line(f'    {vector}x);')
    writer.line(f'if (x < count && count >= {buffers.lanes})')
    writer.line(f'    {vector}count - {buffers.lanes});')
    writer.line('else')
    writer.line('    for (; x < count; x++)')
    writer.line(f'        transform_down_1({rows}, inside, x);')
    writer.open(f'for (long i = 0; i < {down.t}; i++)')
    writer.line(f'float *const target = to + i * {across.t * buffers.v_stride};')
    writer.line(f'transform_across(lines + i * {buffers.line}, phases, target, columns);')
    writer.close(5)
    writer.line()


def _write_down(writer: Writer, buffers: Buffers, kind: str, name: str) -> None:
    """The first pass, for a vector or for a single column at x of the image."""
    down = buffers.shape.down
    rows = ', '.join(f'const float *r{a}' for a in range(down.t))
    writer.open(
        f'static inline __attribute__((always_inline)) void {name}({rows}, float *line, long x)'
    )
    for a in range(down.t):
        writer.line(f'const {kind} x{a} = *(const {kind} *)(r{a} + x);')
    outputs = [f'y{i}' for i in range(down.t)]
    for line in linear(down.bt, [f'x{a}' for a in range(down.t)], outputs, kind, ''):
        writer.line(line)
    for i, output in enumerate(outputs):
        writer.line(f'*({kind} *)(line + {i * buffers.line} + x) = {output};')
    writer.close()
    writer.line()


def _write_across(writer: Writer, buffers: Buffers) -> None:
    """The second pass: one transformed row of a row of tiles, into V[i * t ... i * t + t - 1]."""
    across = buffers.shape.across
    m, positions = across.m, buffers.positions
    writer.open(
        'static inline void transform_across(const float *restrict line, float *restrict phases, '
        'float *restrict to, long columns)'
    )
    turned = m > 1 and buffers.lanes > 4
    if turned:
        overlap = (across.t - 1) // m
        writer.open(f'for (long q = 0; q < columns + {overlap}; q += 4)')
        for first in sorted({min(i, max(m - 4, 0)) for i in range(0, m, 4)}):
            writer.line(
                f'transpose4(line + q * {m} + {first}, {m}, phases + {first * positions} + q, '
                f'{positions});'
            )
        writer.close()
    else:
        writer.line('(void)phases;')
    writer.open(f'for (long q = 0; q < columns; q += {buffers.lanes})')
    if turned or m == 1:
        source = 'phases' if turned else 'line'
        for b in range(across.t):
            place = b % m * positions + b // m
            writer.line(f'const vec x{b} = *(const vec *)({source} + {place} + q);')
    else:
        for first in range(0, across.t, 4):
            _write_turned(writer, first, min(4, across.t - first), m)
    outputs = [f'y{j}' for j in range(across.t)]
    for line in linear(across.bt, [f'x{b}' for b in range(across.t)], outputs, 'vec', ''):
        writer.line(line)
    for j, output in enumerate(outputs):
        writer.line(f'*(vec *)(to + {j * buffers.v_stride} + q) = {output};')
    writer.close(2)
    writer.line()


def _write_turned(writer: Writer, first: int, count: int, m: int) -> None:
    """x[first .. first + count) of four neighbouring tiles at q, transposed in registers."""
    for e in range(4):
        writer.line(f'const vec l{first}_{e} = *(const vec *)(line + (q + {e}) * {m} + {first});')
    for half, picks in ((0, '0, 4, 1, 5'), (1, '2, 6, 3, 7')):
        if count <= 2 * half:
            continue
        for a in (0, 2):
            pair = f'l{first}_{a}, l{first}_{a + 1}'
            writer.line(f'const vec p{first}_{half}{a} = __builtin_shufflevector({pair}, {picks});')
        for odd, last in ((0, '0, 1, 4, 5'), (1, '2, 3, 6, 7')):
            if 2 * half + odd < count:
                pair = f'p{first}_{half}0, p{first}_{half}2'
                writer.line(
                    f'const vec x{first + 2 * half + odd} = '
                    f'__builtin_shufflevector({pair}, {last});'
                )


def write_output(
    writer: Writer, shape: Geometry, vectors: int, isa: Isa, m_stride: int, pitch: int
) -> None:
    """`transform_output_vN`: a row of tiles, from M to `rows`, `pitch` floats from row to row.

    The half-transformed tile stays in registers where they suffice; else it goes through an array,
    since compilers spill more than that.
    """
    down, across = shape.down, shape.across
    width = vectors * isa.lanes
    held = down.m * across.t + 8 <= isa.registers
    writer.open(
        f'static __attribute__((noinline)) void transform_output_v{vectors}('
        f'const float *restrict m, float *restrict rows, long columns)'
    )
    writer.open('for (long p = 0; p < columns; p++)')
    writer.open(f'for (long lane = 0; lane < {width}; lane += {isa.lanes})')
    writer.line(f'const float *from = m + p * {width} + lane;')
    writer.line(f'float *to = rows + p * {across.m * width} + lane;')
    if held:
        for j in range(across.t):
            names = [f'a{y}_{j}' for y in range(down.m)]
            _write_column(writer, shape, m_stride, f'from + {j * m_stride}', names, f'c{j}')
        for y in range(down.m):
            inputs = [f'a{y}_{j}' for j in range(across.t)]
            _write_row(writer, shape, inputs, f'to + {y * pitch}', width, f'r{y}')
        writer.close(3)
        writer.line()
        return
    writer.line(f'lanes_t half[{down.m}][{across.t}];')
    writer.open(f'for (long j = 0; j < {across.t}; j++)')
    names = [f'a{y}' for y in range(down.m)]
    _write_column(writer, shape, m_stride, f'from + j * {m_stride}', names, '')
    for y, name in enumerate(names):
        writer.line(f'half[{y}][j] = {name};')
    writer.close()
    writer.open(f'for (long y = 0; y < {down.m}; y++, to += {pitch})')
    inputs = [f'half[y][{j}]' for j in range(across.t)]
    _write_row(writer, shape, inputs, 'to', width, '')
    writer.close(4)
    writer.line()


def _write_column(
    writer: Writer, shape: Geometry, m_stride: int, base: str, names: list[str], prefix: str
) -> None:
    """A^T down one column of a tile of products."""
    down, across = shape.down, shape.across
    loaded = [f'{prefix}m{i}' for i in range(down.t)]
    for i, name in enumerate(loaded):
        place = i * across.t * m_stride
        writer.line(f'const lanes_t {name} = *(const lanes_t *)({base} + {place});')
    for line in linear(down.at, loaded, names, 'lanes_t', prefix):
        writer.line(line)


def _write_row(
    writer: Writer, shape: Geometry, inputs: list[str], base: str, width: int, prefix: str
) -> None:
    """A along one row of a half-transformed tile, and out."""
    outputs = [f'{prefix}y{x}' for x in range(shape.across.m)]
    for line in linear(shape.across.at, inputs, outputs, 'lanes_t', prefix):
        writer.line(line)
    for x, output in enumerate(outputs):
        writer.line(f'*(lanes_t *)({base} + {x * width}) = {output};')


def write_filter(writer: Writer, shape: Geometry) -> None:
    """`transform_filter`: G g G^T of one filter, in double, one point every `step` floats."""
    down, across = shape.down, shape.across
    for name, f in (('g_down', down), ('g_across', across)):
        rows = ', '.join('{' + ', '.join(repr(float(x)) for x in row) + '}' for row in f.g)
        writer.line(f'static const double {name}[{f.t}][{f.r}] = {{{rows}}};')
    writer.line()
    writer.open('static void transform_filter(const float *filter, float *to, long step)')
    writer.line(f'double half[{down.t}][{across.r}];')
    writer.open(f'for (long i = 0; i < {down.t}; i++)')
    writer.open(f'for (long s = 0; s < {across.r}; s++)')
    writer.line('half[i][s] = 0.0;')
    writer.line(f'for (long r = 0; r < {down.r}; r++)')
    writer.line(f'    half[i][s] += g_down[i][r] * filter[r * {across.r} + s];')
    writer.close(2)
    writer.open(f'for (long i = 0; i < {down.t}; i++)')
    writer.open(f'for (long j = 0; j < {across.t}; j++)')
    writer.line('double sum = 0.0;')
    writer.line(f'for (long s = 0; s < {across.r}; s++)')
    writer.line('    sum += half[i][s] * g_across[j][s];')
    writer.line(f'to[(i * {across.t} + j) * step] = (float)sum;')
    writer.close(3)
    writer.line()
