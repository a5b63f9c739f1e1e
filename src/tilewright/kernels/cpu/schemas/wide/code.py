"""The wide schema in C: every tap of a window is a vector of sixteen channels, widened to float32.

    for n, rows of the result      where the rows of the window lie
      for tiles of pixels          one function for each set of columns that are inside
        for channels, by sixteen   taps of all pixels, what follows, rounded, into the result

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, number, widened
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.half_vectors import MOST_LANES as LANES
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.wide.plan import LINE, WidePlan
from tilewright.kernels.cpu.schemas.windows.nest import write_rows
from tilewright.kernels.cpu.schemas.windows.plan import Tile
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.stage import COMBINERS

WRITTEN_OUT = 160  # multiply-adds of a tile; in larger ones rows of a window are a loop
# Columns of a tile may be the next channels of others: compilers would keep them for the next turn.
_APART = '__asm__ volatile("" : : : "memory");'
# NaN comes out where it went in: x86 gives the second of two where either is one.
_EXTREMES = """\
@inline@ row_v join(row_v a, row_v b)
{
#if defined(__AVX512F__)
    const __m512 both = _mm512_@op@_ps((__m512)a, (__m512)b);
    const __mmask16 nan = _mm512_cmp_ps_mask((__m512)a, (__m512)a, _CMP_UNORD_Q);
    return (row_v)_mm512_mask_mov_ps(both, nan, (__m512)a);
#else
    row_v made;
    for (int i = 0; i < 16; i++)
        made[i] = a[i] @sign@ b[i] || a[i] != a[i] ? a[i] : b[i];
    return made;
#endif
}
"""
# Bits of bf16 as whole numbers in the order of the numbers, NaN of either sign before all others.
_ORDERED = """\
typedef uint16_t bits_v __attribute__((vector_size(64), aligned(2), may_alias));
typedef int16_t signs_v __attribute__((vector_size(64), aligned(2), may_alias));
@inline@ bits_v turned(bits_v x) { return x ^ ((bits_v)((signs_v)x >> 15) & 0x7fff); }
@inline@ bits_v take_bits(const bf16_t *from)
{
    return turned(*(const bits_v *)from) + @first@;
}
@inline@ void put_bits(bf16_t *to, bits_v all) { *(bits_v *)to = turned(all - @first@); }
@inline@ bits_v join(bits_v a, bits_v b)
{
#if defined(__AVX512BW__)
    return (bits_v)_mm512_@op@_@kind@16((__m512i)a, (__m512i)b);
#else
    const bits_v first = (bits_v)((@order@)a @sign@ (@order@)b);
    return (a & first) | (b & ~first);
#endif
}
"""
_KINDS = {  # what is added, the type that is compared
    'max': ('0x7f81', 'epu', 'bits_v', '>'),
    'min': ('0x7f', 'epi', 'signs_v', '<'),
}


def generate(p: WidePlan) -> str:
    """[WidePlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    p.value.write_functions(writer)
    if p.ordered:
        first, kind, order, sign = _KINDS[p.combiner]
        text = _ORDERED.replace('@first@', first).replace('@kind@', kind).replace('@order@', order)
        text = text.replace('@sign@', sign).replace('@op@', p.combiner).replace('@inline@', INLINE)
        writer.lines += [*text.splitlines(), '']
    elif p.combiner != 'sum':
        sign = '>' if p.combiner == 'max' else '<'
        writer.lines += (
            _EXTREMES.replace('@inline@', INLINE)
            .replace('@op@', p.combiner)
            .replace('@sign@', sign)
            .splitlines()
        )
        writer.line()
    kinds = {tile.columns: tile for tile in p.tiles}
    names = {columns: f'tile_{number}' for number, columns in enumerate(kinds)}
    for columns, tile in kinds.items():
        (_write_ordered if p.ordered else _write_tile)(writer, p, tile, names[columns])
    _write_packing(writer, p)
    _write_part(writer, p, names)
    return writer.text()


def _pointers(p: WidePlan) -> str:
    """The operands of what follows as parameters."""
    return ''.join(f', const {C_TYPES[i.dtype]} *{i.name}' for i in p.value.epilogue.operands)


def _write_tile(writer: Writer, p: WidePlan, tile: Tile, name: str) -> None:
    """One register tile: all channels of a thread, by vectors."""
    result = C_TYPES[p.group.output.dtype]
    weights = ', const float *weights' if p.weights else ''
    writer.open(
        f'static __attribute__((noinline)) void {name}(const bf16_t *const *rows, long at'
        f'{weights}, {result} *restrict out, long from, long to{_pointers(p)})'
    )
    unrolled = p.down.taps * p.across.taps * len(tile.columns) <= WRITTEN_OUT
    if unrolled:
        for r in range(p.down.taps):
            writer.line(f'const bf16_t *r{r} = rows[{r}] + at;')
    writer.open(f'for (long c = from; c < to; c += {LANES})')
    writer.line(_APART)
    _write_sums(writer, p, tile, unrolled)
    step = access_strides(p.group, p.group.main.write)[0].get(p.across.out, 0)
    for i in range(len(tile.columns)):
        writer.open('')
        writer.line(f'const row_v value = s{i};')
        for item in p.value.epilogue.operands:
            moved = str(i * item.stride(p.across.out))
            place = total([item.name, moved, scaled('c', item.stride(p.channel))])
            text = f'take_{item.dtype}({place})'
            if not item.stride(p.channel):
                text = f'{widened(f"*({place})", item.dtype)} - zero_v'
            writer.line(f'const row_v {item.name}_v = {text};')
        place = total(['out', str(i * step), 'c'])
        writer.line(f'{p.value.put}({place}, {p.value.epilogue.expression});')
        writer.close()
    writer.close(2)
    writer.line()


def _write_ordered(writer: Writer, p: WidePlan, tile: Tile, name: str) -> None:
    """One register tile of maxima or minima: columns of the window first, each once, then rows."""
    writer.open(
        f'static __attribute__((noinline)) void {name}(const bf16_t *const *rows, long at, '
        f'bf16_t *restrict out, long from, long to)'
    )
    writer.open(f'for (long c = from; c < to; c += {LINE})')
    writer.line(_APART)
    columns = sorted({x for row in tile.columns for x in row if x is not None})
    for column in columns:
        place = f'at + {column * p.image.shape[3]} + c'
        writer.line(f'bits_v x{column} = take_bits(rows[0] + {place});')
        writer.line(f'for (long r = 1; r < {p.down.taps}; r++)')
        writer.line(f'    x{column} = join(x{column}, take_bits(rows[r] + {place}));')
    step = access_strides(p.group, p.group.main.write)[0].get(p.across.out, 0)
    outside = number(COMBINERS[p.combiner], 'f32')
    for i, taps in enumerate(tile.columns):
        inside = [f'x{x}' for x in taps if x is not None]
        text = f'take_bits((bf16_t[{LINE}]){{[0 ... {LINE - 1}] = float_bf16({outside})}})'
        if inside:
            text = inside[0]
            for other in inside[1:]:
                text = f'join({text}, {other})'
        writer.line(f'put_bits(out + {i * step} + c, {text});')
    writer.close(2)
    writer.line()


def _write_sums(writer: Writer, p: WidePlan, tile: Tile, unrolled: bool) -> None:
    """s0, s1 ..: the taps of every pixel joined."""
    pixels = range(len(tile.columns))
    start = f'{number(COMBINERS[p.combiner], "f32")} - zero_v'
    begun = dict.fromkeys(pixels, not unrolled)
    for i in pixels:
        writer.line(f'row_v s{i}{"" if unrolled else f" = {start}"};')
    if not unrolled:
        writer.open(f'for (long r = 0; r < {p.down.taps}; r++)')
        writer.line('const bf16_t *row = rows[r] + at;')
        if p.weights:
            writer.line(f'const float *w = weights + r * {p.across.taps * p.size};')
    for r in range(p.down.taps if unrolled else 1):
        row, taken = f'r{r}' if unrolled else 'row', set()
        for s in range(p.across.taps):
            users = [i for i in pixels if tile.columns[i][s] is not None]
            if p.weights and users:
                place = (r * p.across.taps + s) * p.size if unrolled else s * p.size
                of = 'weights' if unrolled else 'w'
                writer.line(f'const row_v w{r}_{s} = take_f32({of} + {place} + c);')
            for i in users:
                column = tile.columns[i][s]
                assert column is not None
                value = f'x{r}_{column}'
                if column not in taken:
                    taken.add(column)
                    place = f'{row} + {column * p.image.shape[3]} + c'
                    writer.line(f'const row_v {value} = take_bf16({place});')
                made = f'{value} * w{r}_{s}' if p.weights else value
                if begun[i]:
                    made = f's{i} + {made}' if p.combiner == 'sum' else f'join(s{i}, {made})'
                writer.line(f's{i} = {made};')
                begun[i] = True
    if not unrolled:
        writer.close()
    for i in pixels:  # a window that lies outside
        if not begun[i]:
            writer.line(f's{i} = {start};')


def _places(p: WidePlan) -> tuple[dict[str, int], int, int]:
    """Where constants lie, in floats; the row outside the image; and floats of all."""
    places, offset = {}, 0
    if p.weights:
        places[p.weights.tensor] = 0
        offset = abi.aligned(p.down.taps * p.across.taps * p.size)
    for tensor in p.group.with_role('constant'):
        if tensor.name not in places:
            places[tensor.name] = offset
            offset += abi.aligned(-(-tensor.bytes // 4))
    border = offset
    if p.leaves:
        offset += abi.aligned(-(-p.across.extent * p.image.shape[3] // 2))
    return places, border, offset


def _write_packing(writer: Writer, p: WidePlan) -> None:
    """tw_pack: weights by taps, as floats; other constants; a row outside."""
    places, border, floats = _places(p)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line('(void)constants;')
    writer.line(f'memset(packed, 0, {4 * floats});')
    for index, tensor in enumerate(p.group.with_role('constant')):
        if p.weights is None or tensor.name != p.weights.tensor:
            place = f'packed + {places[tensor.name]}'
            writer.line(f'memcpy({place}, constants[{index}], {tensor.bytes});')
            continue
        strides, const = access_strides(p.group, p.weights)
        terms = {p.down.tap: 'r', p.across.tap: 's', p.channel: 'lane'}
        address = total([*(scaled(terms[d], step) for d, step in strides.items()), str(const)])
        writer.line(f'const bf16_t *b = (const bf16_t *)constants[{index}];')
        writer.line('float *to = packed;')
        writer.line(f'for (long r = 0; r < {p.down.taps}; r++)')
        writer.line(f'    for (long s = 0; s < {p.across.taps}; s++)')
        writer.line(f'        for (long lane = 0; lane < {p.size}; lane++)')
        writer.line(f'            *to++ = bf16_float(b[{address}]);')
    if p.leaves and COMBINERS[p.combiner]:
        value = number(COMBINERS[p.combiner], 'f32')
        writer.line(f'for (long i = 0; i < {p.across.extent * p.image.shape[3]}; i++)')
        writer.line(f'    ((bf16_t *)(packed + {border}))[i] = float_bf16({value});')
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, 0, floats)


def _write_part(writer: Writer, p: WidePlan, names: dict) -> None:
    """Rows of the result, tile by tile."""
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    places, border, _ = _places(p)
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    writer.line(f'const bf16_t *source = (const bf16_t *){inputs[p.image.name]};')
    if p.weights:
        writer.line('const float *weights = args->packed;')
    if p.leaves:
        writer.line(f'const bf16_t *border = (const bf16_t *)(args->packed + {border});')
    for item in p.value.epilogue.operands:
        place = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
        writer.line(f'const {C_TYPES[item.dtype]} *{item.name} = (const void *)({place});')
    write_rows(writer, p, 'bf16_t', names, p.value.epilogue.operands)
