"""The Winograd schema of whole numbers in C: blocks of tiles through a thread's own scratch.

    blocks of tiles      transform_input: a vector of channels at a time    -> V[t][tile][c]
      panels of k          transform_weights, unless they were packed so    -> U[t][c][lanes]
        chunks of c          micro-kernels  V[t] x U[t]                     -> M[piece][tile][t]
                           transform_output, epilogue, NHWC store

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
V and U are words of numbers of 16 bits (of one of 32 where a set multiplies those), M is whole
numbers modulo 2^32 (ops/winograd_words.py). Into how many pieces the channels of a sum are cut is
decided as weights are packed: as few as keep every sum within what is brought back right.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.dot.plan import MOVED
from tilewright.kernels.cpu.schemas.winograd.runs import open_blocks, write_products
from tilewright.kernels.cpu.schemas.winograd_words.plan import STEPS, WordTilesPlan
from tilewright.kernels.cpu.schemas.winograd_words.transforms import (
    number_type,
    write_input,
    write_output,
    write_weights,
)
from tilewright.kernels.cpu.whole_vectors import BITS, write_vectors
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.integer import factors
from tilewright.ops.winograd_words import LARGEST

WEIGHTS_AHEAD = 2048  # words: weights that were packed so come from afar
PIECES = '@pieces'  # into how many pieces sums are cut


def generate(p: WordTilesPlan) -> str:
    """[WordTilesPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    _write_types(writer, p)
    for run in sorted({r for runs in p.runs.values() for r in runs}):
        writer.lines += [*micro.emit(_micro(p, run)).splitlines(), '']
    write_products(
        writer, p.schedule.isa, p.vectors, p.runs,
        lambda tile: (tile * p.pitch, tile * p.shape.t * p.width),
    )  # fmt: skip
    write_input(writer, p)
    if not p.ahead:
        write_weights(writer, p)
    write_output(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


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
    if (
        ISAS[p.schedule.isa].arch == 'x86_64' and p.products == 2
    ):  # of which compilers make two, and join them
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


def constant_places(p: WordTilesPlan) -> tuple[dict[str, int], int]:
    """Where constants lie behind the weights, in floats; and floats of all."""
    weights = factors(p.group)[1].tensor
    more = {MOVED: p.shape.k} if p.moves else {}
    more |= {PIECES: 1} if p.pieces > 1 else {}
    places, floats = abi.behind(p.group, weights, p.packed_words, more)
    return {weights: 0, **places}, floats


def _write_packing(writer: Writer, p: WordTilesPlan) -> None:
    """tw_pack: weights in panels of words, transformed or tap by tap; other constants behind."""
    shape, f = p.shape, p.shape.down
    places, floats = constant_places(p)
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
            f'{number_type(p)} *to = ({number_type(p)} *)packed + {panel} + '
            f'c / {p.products} * {row} + {lane};'
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
        writer.line(f'to[(i * {f.t} + j) * {p.words * row}] = ({number_type(p)})sum;')
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
    abi.write_behind(writer, p.group, access.tensor, places)
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
    places, _ = constant_places(p)
    kind, number = C_TYPES[p.image.dtype], number_type(p)

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
    open_blocks(writer, p, shape.k)
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
            writer.line(f'transform_weights_{number}(from, ({number_type(p)} *)u, {words});')
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
