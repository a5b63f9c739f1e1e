"""The transforms of Winograd's integer schema in C, on vectors as numbers lie in memory.

Goes in: the plan (plan.py). Comes out: functions that transform one tile of the image, the weights
of a panel, and the sums of a tile, which they take through the epilogue into the result. Numbers
wrap around, so that intermediate ones need no room (ops/winograd_words.py).
"""

from __future__ import annotations

import re
from fractions import Fraction

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.schemas.winograd.linear import linear
from tilewright.kernels.cpu.schemas.winograd_words.plan import WordTilesPlan
from tilewright.kernels.cpu.whole_vectors import vector_operands
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.winograd_matrices import Matrix
from tilewright.ops.winograd_words import LARGEST

_NUMBER = re.compile(r'\b([\d.]+)f\b')


def number_type(p: WordTilesPlan) -> str:
    """The C type of a transformed number."""
    return f'int{32 // p.products}_t'


def _linear(matrix: Matrix, inputs: list[str], outputs: list[str], kind: str) -> list[str]:
    """outputs = matrix * inputs on vectors of whole numbers."""

    def whole(match: re.Match[str]) -> str:
        value = Fraction(match[1])
        assert value.denominator == 1
        return str(value)

    return [_NUMBER.sub(whole, line) for line in linear(matrix, inputs, outputs, kind, 'p_')]


def write_input(writer: Writer, p: WordTilesPlan) -> None:
    """One tile of all channels, pixels outside the image are its zero point. What moving numbers by
    128 would change is the same for every tile, and not 0 at few points.
    """
    shape, f = p.shape, p.shape.down
    t, c, depth, kind = f.t, shape.c, p.depth, C_TYPES[p.image.dtype]
    pad = int(p.group.main.pad_value)
    writer.line(f'static const {kind} outside[{c}] = {{{", ".join([str(pad)] * c)}}};' if pad else
                f'static const {kind} outside[{c}];')  # fmt: skip
    writer.line()
    writer.open(
        'static __attribute__((noinline)) void transform_input('
        f'const {kind} *image, long y, long x, {number_type(p)} *v)'
    )
    writer.line(f'const {kind} *from[{t}][{t}];')
    writer.open(f'for (long i = 0; i < {t}; i++)')
    writer.line(f'const int row = (unsigned long)(y + i) < {shape.height}ul;')
    writer.line(f'const {kind} *first = image + ((y + i) * {shape.width} + x) * {depth};')
    writer.line(f'for (long j = 0; j < {t}; j++)')
    writer.line(
        f'    from[i][j] = row && (unsigned long)(x + j) < {shape.width}ul ? first + j * {depth} : '
        'outside;'
    )
    writer.close()
    writer.line(f'number_v half[{t}][{t}];')
    sums = [int(sum(row)) for row in f.bt]
    for whole in (True, False):
        if c < p.numbers if whole else c % p.numbers == 0:
            continue
        end = c - c % p.numbers
        writer.open(f'for (long c = 0; c < {end}; c += {p.numbers})' if whole else '')
        if not whole:
            writer.line(f'const long c = {end};')
        writer.open(f'for (long j = 0; j < {t}; j++)')
        for i in range(t):
            if whole:
                writer.line(f'const image_v n{i} = *(const image_v *)(from[{i}][j] + c);')
            else:
                writer.line(f'image_v n{i} = {{0}};')
                writer.line(f'memcpy(&n{i}, from[{i}][j] + c, {c - end});')
            writer.line(f'const number_v d{i} = WIDEN(n{i}, {"u" if p.moves else "i"});')
        names = [f'd{i}' for i in range(t)], [f'b{i}' for i in range(t)]
        for line in _linear(f.bt, *names, 'number_v'):
            writer.line(line)
        for i in range(t):
            writer.line(f'half[{i}][j] = b{i};')
        writer.close()
        for i in range(t):
            writer.open('')
            for j in range(t):
                writer.line(f'const number_v d{j} = half[{i}][{j}];')
            for line in _linear(f.bt, *names, 'number_v'):
                writer.line(line)
            for j in range(t):
                moved = LARGEST * sums[i] * sums[j] if p.moves else 0
                less = f' - {moved}' if moved else ''
                place = f'v + {(i * t + j) * p.point_pitch * p.products} + c'
                writer.line(f'*(number_v *)({place}) = b{j}{less};')
            writer.close()
        writer.close()
    writer.close()
    writer.line()


def write_weights(writer: Writer, p: WordTilesPlan) -> None:
    """Weights of a panel from the bytes of all taps, for each pair of rows of G: so few points that
    they stay in the first cache, and numbers in registers.
    """
    for number, rows in enumerate(p.shape.down.pairs):
        _write_pair(writer, p, number, rows)


def _write_pair(writer: Writer, p: WordTilesPlan, number: int, rows: tuple[int, ...]) -> None:
    f, row = p.shape.down, p.width * p.products
    t, r = f.t, f.r
    writer.open(
        f'static __attribute__((noinline)) void transform_weights_{number}(const int8_t *from, '
        f'{number_type(p)} *u, long words)'
    )
    odd = {abs(x) for line in f.g for x in line if x.numerator & (x.numerator - 1)}
    for factor in sorted(odd):
        writer.line(f'static volatile {number_type(p)} given_{factor} = {factor};')
        writer.line(f'const number_v times_{factor} = given_{factor} - (number_v){{0}};')
    writer.open(f'for (long at = 0; at < words * {row}; at += {row}, from += {r * r * row})')
    writer.open(f'for (long lane = 0; lane < {row}; lane += {p.numbers})')
    for s in range(r):
        for i in range(r):
            if any(f.g[k][i] for k in rows):
                place = f'from + {(i * r + s) * row} + lane'
                writer.line(f'const number_v g{i}_{s} = WIDEN(*(const byte_v *)({place}), i);')
    for s in range(r):
        names = [f'g{i}_{s}' for i in range(r)], [f'h{i}_{s}' for i in rows]
        lines = _multiplied(_linear(tuple(f.g[i] for i in rows), *names, 'number_v'))
        for line in lines:
            writer.line(line.replace('p_', f'p{s}_'))
    for place, i in enumerate(rows):
        writer.open('')
        names = [f'h{i}_{s}' for s in range(r)], [f'u{j}' for j in range(t)]
        for line in _multiplied(_linear(f.g, *names, 'number_v')):
            writer.line(line)
        for j in range(t):
            to = f'u + {(place * t + j) * p.filter_pitch * p.products} + at + lane'
            writer.line(f'*(number_v *)({to}) = u{j};')
        writer.close()
    writer.close(3)
    writer.line()


def _multiplied(lines: list[str]) -> list[str]:
    """What is multiplied by other numbers than powers of two is so by an instruction, not by shifts
    and additions, which compilers prefer.
    """

    def variable(match: re.Match[str]) -> str:
        value = int(match[1])
        return f'times_{value} * ' if value & (value - 1) else match[0]

    return [re.sub(r'\b(\d+) \* ', variable, line) for line in lines]


def write_output(writer: Writer, p: WordTilesPlan) -> None:
    """One tile of the channels of a panel, through what follows, into the result."""
    f, lanes = p.shape.down, p.lanes
    t, m, result = f.t, f.m, C_TYPES[p.group.output.dtype]
    strides = access_strides(p.group, p.group.main.write)[0]
    pointers = ''.join(f', const {C_TYPES[i.dtype]} *{i.name}' for i in p.epilogue.operands)
    several = p.pieces > 1
    writer.open(
        f'static __attribute__((noinline)) void transform_output(const uint32_t *m, {result} *out, '
        f'long rows, long columns, long lanes{", long pieces" if several else ""}{pointers})'
    )
    writer.open(f'for (long k = 0; k < lanes; k += {lanes})')
    writer.line(f'whole_v sums[{m}][{m}]{" = {0}" if several else ""};')
    if several:
        writer.open('for (long piece = 0; piece < pieces; piece++)')
        writer.line(f'const uint32_t *from = m + piece * {p.piece_sums} + k;')
    else:
        writer.line('const uint32_t *from = m + k;')
    writer.line(f'wrap_v half[{m}][{t}];')
    writer.open(f'for (long j = 0; j < {t}; j++)')
    names = [f'd{i}' for i in range(t)], [f'a{i}' for i in range(m)]
    for i in range(t):
        writer.line(f'const wrap_v d{i} = *(const wrap_v *)(from + ({i * t} + j) * {p.width});')
    for line in _linear(f.at, *names, 'wrap_v'):
        writer.line(line)
    for i in range(m):
        writer.line(f'half[{i}][j] = a{i};')
    writer.close()
    for i in range(m):
        writer.open('')
        for j in range(t):
            writer.line(f'const wrap_v d{j} = half[{i}][{j}];')
        for line in _linear(f.at, *names, 'wrap_v'):
            writer.line(line)
        for j in range(m):
            text = f'(whole_v)(a{j} * {f.factor(i, j)}u) >> {f.shift}'
            writer.line(f'sums[{i}][{j}] {"+=" if several else "="} {text};')
        writer.close()
    if several:
        writer.close()
    _write_store(writer, p, strides)
    writer.close(2)
    writer.line()


def _write_store(writer: Writer, p: WordTilesPlan, strides: dict[str, int]) -> None:
    """A vector of sums of every pixel through the epilogue; as many lanes as there are channels."""
    operands, last = p.epilogue.operands, p.shape.k % p.lanes

    def moving(item: Operand) -> bool:
        return any(item.stride(d) for d in 'hw')

    def offset(item: Operand) -> str:
        return total([scaled(at, item.stride(d)) for at, d in zip('ijk', 'hwk', strict=True)])

    to = total(['out', scaled('i', strides['h']), scaled('j', strides['w']), 'k'])
    for whole in (True, False):
        if not whole and not last:
            continue
        if last:
            writer.open(f'if (lanes - k >= {p.lanes})' if whole else 'else')
        count = p.lanes if whole else last
        if p.vector:
            writer.line(f'const unsigned long count = {count};')
            for item, line in zip(operands, vector_operands(operands, 'k'), strict=True):
                if not moving(item):
                    writer.line(_moved_by(item, line, offset(item)))
        writer.open('for (long i = 0; i < rows; i++)')
        writer.open('for (long j = 0; j < columns; j++)')
        if p.vector:
            for item, line in zip(operands, vector_operands(operands, 'k'), strict=True):
                if moving(item):
                    writer.line(_moved_by(item, line, offset(item)))
            writer.line('const whole_v value = sums[i][j];')
            writer.line(f'put_{p.vector.dtype}({to}, {p.vector.made(last=True)}, count);')
        else:
            writer.open(f'for (long lane = 0; lane < {count}; lane++)')
            writer.line('const int32_t value = sums[i][j][lane];')
            for item in operands:
                at = total([offset(item), scaled('lane', item.stride('k'))])
                writer.line(f'const long {item.name}_at = {at};')
            writer.line(f'({to})[lane] = {p.epilogue.expression};')
            writer.close()
        writer.close(2)
        if last:
            writer.close()


def _moved_by(item: Operand, line: str, offset: str) -> str:
    """The line that reads an operand, from another place."""
    head, text = line.split(' = ', 1)
    return head + ' = ' + re.sub(rf'\b{item.name}\b', f'({item.name} + {offset})', text)
