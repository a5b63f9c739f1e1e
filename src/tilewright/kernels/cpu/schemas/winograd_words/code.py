"""The Winograd schema of whole numbers in C: blocks of tiles through a thread's own scratch.

    blocks of tiles      transform_input: a vector of channels at a time    -> V[t][tile][c]
      panels of k          transform_weights, unless they were packed so    -> U[t][c][lanes]
        chunks of c          micro-kernels  V[t] x U[t]                     -> M[piece][tile][t][lanes]
                           transform_output, epilogue, NHWC store

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
V and U are words of numbers of 16 bits (of one of 32 where a set multiplies those), M is whole
numbers modulo 2^32 (ops/winograd_words.py). Into how many pieces the channels of a sum are cut is
decided as weights are packed: as few as keep every sum within what is brought back right.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.schemas.dot.plan import MOVED
from tilewright.kernels.cpu.schemas.winograd.linear import linear
from tilewright.kernels.cpu.schemas.winograd_words.plan import STEPS, WordTilesPlan
from tilewright.kernels.cpu.whole_vectors import BITS, vector_operands, write_vectors
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.integer import factors
from tilewright.ops.winograd_matrices import Matrix
from tilewright.ops.winograd_words import LARGEST

WEIGHTS_AHEAD = 2048  # words: weights that were packed so come from afar
PIECES = '@pieces'  # into how many pieces sums are cut
_NUMBER = re.compile(r'\b([\d.]+)f\b')


def generate(p: WordTilesPlan) -> str:
    """[WordTilesPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    _write_types(writer, p)
    for run in sorted({r for runs in p.runs.values() for r in runs}):
        writer.lines += [*micro.emit(_micro(p, run)).splitlines(), '']
    _write_products(writer, p)
    _write_input(writer, p)
    if not p.ahead:
        _write_weights(writer, p)
    _write_output(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def _number(p: WordTilesPlan) -> str:
    """The C type of a transformed number."""
    return f'int{32 // p.products}_t'


def _write_types(writer: Writer, p: WordTilesPlan) -> None:
    """Vectors, whose numbers wrap around, and what the epilogue calls."""
    writer.line('#include <stdint.h>')
    size, bits = p.lanes * 4, 32 // p.products
    for name, kind, count, align in (
        ('wrap_v', 'uint32_t', size, 4),
        ('number_v', f'uint{bits}_t', size, bits // 8),
        ('signed_v', f'int{bits}_t', size, bits // 8),
        ('image_v', C_TYPES[p.image.dtype], p.numbers, 1),
        ('byte_v', 'int8_t', p.numbers, 1),
    ):
        writer.line(
            f'typedef {kind} {name} __attribute__((vector_size({count}), aligned({align}), '
            'may_alias));'
        )
    if ISAS[p.schedule.isa].arch == 'x86_64':
        writer.line('#include <immintrin.h>')
    widen = '(number_v)__builtin_convertvector(x, signed_v)'
    if ISAS[p.schedule.isa].arch == 'x86_64' and p.products == 2:  # of which compilers make two, and join them
        narrow, call = BITS[size] // 2, f'_mm{BITS[size]}'
        inner = f'__m{narrow}i'
        widen = f'(number_v){call}_cvtep##sign##8_epi16(({inner})(x))'
    writer.line(f'#define WIDEN(x, sign) ({widen})')
    if p.vector:
        write_vectors(
            writer, p.schedule.isa, [p.vector.dtype, *(i.dtype for i in p.epilogue.operands)]
        )
    else:
        writer.line(
            f'typedef int32_t whole_v __attribute__((vector_size({size}), aligned(4), may_alias));'
        )
        writer.line()
        write_functions(writer, p.epilogue.functions)
    writer.line()


def _micro(p: WordTilesPlan, run: int) -> micro.MicroKernel:
    return micro.MicroKernel(
        p.schedule.isa,
        tuple(number * p.pitch for number in range(run)),
        p.vectors,
        tuple(range(STEPS)),
        STEPS,
        tuple(number * p.shape.t * p.width for number in range(run)),
        micro.micro_name(p.schedule.isa, (run,), p.vectors),
        b_ahead=WEIGHTS_AHEAD if p.ahead else 0,
        a_ahead=False,
        dtype=p.schedule.dtype,
        accumulation='i32',
    )


def _linear(matrix: Matrix, inputs: list[str], outputs: list[str], kind: str) -> list[str]:
    """outputs = matrix * inputs on vectors of whole numbers."""

    def whole(match: re.Match[str]) -> str:
        value = Fraction(match[1])
        assert value.denominator == 1
        return str(value)

    return [_NUMBER.sub(whole, line) for line in linear(matrix, inputs, outputs, kind, 'p_')]


def _write_products(writer: Writer, p: WordTilesPlan) -> None:
    """The products of one panel at one point, for every number of tiles of a block."""
    writer.open(
        'static void multiply(const float *v, const float *u, float *m, long tiles, long count, '
        'long resume)'
    )
    writer.line('switch (tiles) {')
    for tiles, runs in p.runs.items():
        writer.line(f'case {tiles}:')
        done = 0
        for run in runs:
            name = micro.micro_name(p.schedule.isa, (run,), p.vectors)
            tile, sums = f'v + {done * p.pitch}', f'm + {done * p.shape.t * p.width}'
            writer.line(f'    {name}({tile}, u, {sums}, count, resume);')
            done += run
        writer.line('    break;')
    writer.line('}')
    writer.close()
    writer.line()


def _write_input(writer: Writer, p: WordTilesPlan) -> None:
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
        f'const {kind} *image, long y, long x, {_number(p)} *v)'
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


def _write_weights(writer: Writer, p: WordTilesPlan) -> None:
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
        f'{_number(p)} *u, long words)'
    )
    odd = {abs(x) for line in f.g for x in line if x.numerator & (x.numerator - 1)}
    for factor in sorted(odd):
        writer.line(f'static volatile {_number(p)} given_{factor} = {factor};')
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


def _write_output(writer: Writer, p: WordTilesPlan) -> None:
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
        writer.line(
            f'const wrap_v d{i} = *(const wrap_v *)(from + ({i * t} + j) * {p.width});'
        )
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


def _places(p: WordTilesPlan) -> tuple[dict[str, int], int]:
    """Where constants lie behind the weights, in floats; and floats of all."""
    weights = factors(p.group)[1].tensor
    places, offset = {weights: 0}, abi.aligned(p.packed_words)
    sizes = {t.name: -(-t.bytes // 4) for t in p.group.with_role('constant') if t.name != weights}
    sizes |= {MOVED: p.shape.k} if p.moves else {}
    sizes |= {PIECES: 1} if p.pieces > 1 else {}
    for name, floats in sizes.items():
        places[name] = offset
        offset += abi.aligned(floats)
    return places, offset


def _write_packing(writer: Writer, p: WordTilesPlan) -> None:
    """tw_pack: weights in panels of words, transformed or tap by tap; other constants behind."""
    shape, f = p.shape, p.shape.down
    places, floats = _places(p)
    names = [t.name for t in p.group.with_role('constant')]
    access = factors(p.group)[1]
    strides, const = access_strides(p.group, access)
    row = p.width * p.products
    terms = [scaled(d, strides.get(d, 0)) for d in 'kcrs']
    address = total([*terms, str(const)])
    if p.ahead:
        rows = ', '.join('{' + ', '.join(str(int(x)) for x in line) + '}' for line in f.g)
        writer.line(f'static const long g[{f.t}][{f.r}] = {{{rows}}};')
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line(f'memset(packed, 0, {4 * floats});')
    writer.line(f'const int8_t *b = (const int8_t *)constants[{names.index(access.tensor)}];')
    writer.open(f'for (long k = 0; k < {shape.k}; k++)')
    writer.open(f'for (long c = 0; c < {shape.c}; c++)')
    lane = f'k % {p.width} * {p.products} + c % {p.products}'
    if p.ahead:
        panel = f'k / {p.width} * {p.filter_words * p.products}'
        writer.line(
            f'{_number(p)} *to = ({_number(p)} *)packed + {panel} + c / {p.products} * {row} + '
            f'{lane};'
        )
        writer.line(f'long half[{f.t}][{f.r}];')
        writer.line(f'for (long i = 0; i < {f.t}; i++)')
        writer.open(f'    for (long s = 0; s < {f.r}; s++)')
        writer.line('half[i][s] = 0;')
        writer.line(f'for (long r = 0; r < {f.r}; r++)')
        writer.line(f'    half[i][s] += g[i][r] * b[{address}];')
        writer.close()
        writer.line(f'for (long i = 0; i < {f.t}; i++)')
        writer.open(f'    for (long j = 0; j < {f.t}; j++)')
        writer.line('long sum = 0;')
        writer.line(f'for (long s = 0; s < {f.r}; s++)')
        writer.line('    sum += half[i][s] * g[j][s];')
        writer.line(f'to[(i * {f.t} + j) * {p.words * row}] = ({_number(p)})sum;')
        writer.close()
    else:
        taps = f.r * f.r
        panel = f'k / {p.width} * {p.panel_bytes}'
        writer.line(
            f'int8_t *to = (int8_t *)packed + {panel} + c / {p.products} * {taps * row} + {lane};'
        )
        writer.line(f'for (long r = 0; r < {f.r}; r++)')
        writer.line(f'    for (long s = 0; s < {f.r}; s++)')
        writer.line(f'        to[(r * {f.r} + s) * {row}] = b[{address}];')
    writer.close(2)
    if p.moves:
        writer.line(f'int32_t *moved = (int32_t *)(packed + {places[MOVED]});')
        _open_weights(writer, p)
        writer.line(f'moved[k] += {LARGEST} * b[{address}];')
        writer.close(3)
    if p.pieces > 1:
        _write_pieces(writer, p, places[PIECES], address)
    for number, tensor in enumerate(p.group.with_role('constant')):
        if tensor.name != access.tensor:
            place = f'packed + {places[tensor.name]}'
            writer.line(f'memcpy({place}, constants[{number}], {tensor.bytes});')
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, floats)


def _open_weights(writer: Writer, p: WordTilesPlan) -> None:
    """Loops over all weights; the last is without a brace."""
    r = p.shape.down.r
    writer.open(f'for (long k = 0; k < {p.shape.k}; k++)')
    writer.open(f'for (long c = 0; c < {p.shape.c}; c++)')
    writer.open(f'for (long r = 0; r < {r}; r++)')
    writer.line(f'for (long s = 0; s < {r}; s++)')


def _write_pieces(writer: Writer, p: WordTilesPlan, place: int, address: str) -> None:
    """The least number of pieces of which no channel's weights make a sum too large."""
    r = p.shape.down.r
    writer.line('long pieces = 1;')
    writer.open(f'for (; pieces < {p.pieces}; pieces++)')
    size = p.chunk * p.products
    writer.line(f'const long piece = ({p.chunks} + pieces - 1) / pieces * {size};')
    writer.line('long most = 0;')
    writer.open(f'for (long k = 0; k < {p.shape.k}; k++)')
    writer.open(f'for (long first = 0; first < {p.shape.c}; first += piece)')
    writer.line('long size = 0;')
    writer.open(f'for (long c = first; c < min_long({p.shape.c}, first + piece); c++)')
    writer.line(f'for (long r = 0; r < {r}; r++)')
    writer.line(f'    for (long s = 0; s < {r}; s++)')
    writer.line(f'        size += b[{address}] < 0 ? -b[{address}] : b[{address}];')
    writer.close()
    writer.line('most = max_long(most, size);')
    writer.close(2)
    writer.line(f'if ({LARGEST} * most <= {p.shape.down.most_size})')
    writer.line('    break;')
    writer.close()
    writer.line(f'*(int32_t *)(packed + {place}) = (int32_t)pieces;')


def _write_part(writer: Writer, p: WordTilesPlan) -> None:
    """Blocks of a thread's tiles: input, products and output for each panel."""
    shape, group, f = p.shape, p.group, p.shape.down
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places, _ = _places(p)
    kind, number = C_TYPES[p.image.dtype], _number(p)

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    writer.line(f'const {kind} *image = (const {kind} *)({pointer(p.image.name)});')
    for item in p.epilogue.operands:
        of = C_TYPES[item.dtype]
        writer.line(f'const {of} *{item.name} = (const {of} *)({pointer(item.tensor)});')
    writer.line('float *v = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *m = v + {abi.aligned(p.input_words)};')
    if not p.ahead:
        writer.line(f'float *u = m + {abi.aligned(p.pieces * p.piece_sums)};')
    if p.pieces > 1:
        writer.line(f'const long most = *(const int32_t *)(args->packed + {places[PIECES]});')
        writer.line(f'const long piece = ({p.chunks} + most - 1) / most * {p.chunk};')
        writer.line(f'const long pieces = ({p.words} + piece - 1) / piece;')
    ways, tiles = p.tile_ways, p.tiles
    writer.line(f'const long low = {tiles} * (part % {ways}) / {ways};')
    writer.line(f'const long high = {tiles} * (part % {ways} + 1) / {ways};')
    writer.line(f'const long k_low = {p.panels} * (part / {ways}) / {p.k_ways} * {p.width};')
    last = f'{p.panels} * (part / {ways} + 1) / {p.k_ways} * {p.width}'
    writer.line(f'const long k_high = min_long({last}, {shape.k});')
    writer.line(f'const long blocks = (high - low + {p.block - 1}) / {p.block};')
    writer.open('for (long block = 0; block < blocks; block++)')
    writer.line('const long first = low + (high - low) * block / blocks;')
    writer.line('const long tiles = low + (high - low) * (block + 1) / blocks - first;')
    writer.open('for (long tile = 0; tile < tiles; tile++)')
    _write_place(writer, p)
    source = f'image + n * {shape.height * shape.width * p.depth} + {p.first}'
    y, x = f'ph * {f.step} - {shape.pad_top}', f'pw * {f.step} - {shape.pad_left}'
    to = f'({number} *)v + tile * {p.pitch * p.products}'
    writer.line(f'transform_input({source}, {y}, {x}, {to});')
    writer.close()
    writer.open(f'for (long k = k_low; k < k_high; k += {p.width})')
    _write_chunks(writer, p)
    writer.open('for (long tile = 0; tile < tiles; tile++)')
    _write_place(writer, p)
    point = {'n': 'n', 'h': f'(ph * {f.m})', 'w': f'(pw * {f.m})', 'k': 'k'}
    strides, const = access_strides(group, group.main.write)
    place = total([*(scaled(point[d], s) for d, s in strides.items()), str(const)])
    given = ', pieces' if p.pieces > 1 else ''
    for item in p.epilogue.operands:
        at = total([*(scaled(point[d], s) for d, s in item.strides), str(item.const)])
        given += f', {item.name} + {at}'
    writer.line(
        f'transform_output((const uint32_t *)m + tile * {shape.t * p.width}, '
        f'({C_TYPES[group.output.dtype]} *)args->out + {place}, '
        f'min_long({f.m}, {shape.out_h} - ph * {f.m}), '
        f'min_long({f.m}, {shape.out_w} - pw * {f.m}), '
        f'min_long({p.width}, {shape.k} - k){given});'
    )
    writer.close(4)


def _write_chunks(writer: Writer, p: WordTilesPlan) -> None:
    """The products of a panel at all points: chunk by chunk of channels, each piece of them to sums
    of its own.
    """
    several, at = p.chunks > 1, '0'
    if several:
        at = 'word'
        writer.open(f'for (long word = 0; word < {p.words}; word += {p.chunk})')
    words = f'min_long({p.chunk}, {p.words} - word)' if p.words % p.chunk else str(p.chunk)
    sums, resume = ('m', f'{at} > 0') if several else ('m', '0')
    if p.pieces > 1:
        sums, resume = f'm + word / piece * {p.piece_sums}', 'word % piece > 0'
    t, v = p.shape.down.t, total(['v', at])
    rest = f'tiles, {words} / {STEPS}, {resume}'
    if p.ahead:
        place = total([f'k / {p.width} * {p.filter_words}', scaled('word', p.width * several)])
        writer.line(f'const float *u = args->packed + {place};')
        writer.line(f'for (long t = 0; t < {p.shape.t}; t++)')
        writer.line(
            f'    multiply({v} + t * {p.point_pitch}, u + t * {p.filter_pitch}, {sums} + t * '
            f'{p.width}, {rest});'
        )
    else:
        taps = p.shape.down.r * p.shape.across.r * p.width * p.products
        place = total([f'k / {p.width} * {p.panel_bytes}', scaled('word', taps * several)])
        writer.line(f'const int8_t *from = (const int8_t *)args->packed + {place};')
        for number, rows in enumerate(p.shape.down.pairs):
            writer.line(f'transform_weights_{number}(from, ({_number(p)} *)u, {words});')
            for first, row in enumerate(rows):
                writer.line(f'for (long t = 0; t < {t}; t++)')
                writer.line(
                    f'    multiply({v} + ({row * t} + t) * {p.point_pitch}, u + ({first * t} + t) '
                    f'* {p.filter_pitch}, {sums} + ({row * t} + t) * {p.width}, {rest});'
                )
    if several:
        writer.close()


def _write_place(writer: Writer, p: WordTilesPlan) -> None:
    """n, ph, pw: where a tile of a block lies."""
    writer.line(
        f'const long pw = (first + tile) % {p.shape.pw}, row = (first + tile) / {p.shape.pw};'
    )
    writer.line(f'const long ph = row % {p.shape.ph}, n = row / {p.shape.ph};')
