"""Rows, keys and columns of an attention in words of two bf16.

Goes in: a plan. Comes out: C functions.

    pack_rows      [row][words of its depth]
    pack_keys      [panel of `width` keys][words of the depth][width]      turned, 16 x 16 at a time
    pack_columns   [panel of columns][words of two keys][columns of it]
    pack_weights   a row of weights, rounded

Zeros stand beyond the last depth, key and column. Floats are rounded as they are copied.
"""

from __future__ import annotations

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.schemas.attention_tiles.plan import PRODUCTS, TiledAttentionPlan
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS, TILE_ROWS
from tilewright.ops.attention import COLUMN, DEPTH, KEY, ROW
from tilewright.ops.stage import Access

_PLAIN = f"""\
/* The first `numbers` of `keys` keys, at most 32 of 16, as words of a tile: row by row of depth. */
{INLINE} void turn(const uint16_t *k, long step, long keys, long numbers, uint32_t *to, long width)
{{
    for (long row = 0; row < 16; row++)
        for (long lane = 0; lane < 16; lane++) {{
            const uint16_t *from = k + lane * step + 2 * row;
            const uint32_t low = lane < keys && 2 * row < numbers ? from[0] : 0;
            const uint32_t high = lane < keys && 2 * row + 1 < numbers ? from[1] : 0;
            to[row * width + lane] = low | high << 16;
        }}
}}
/* Floats as bf16, a multiple of 32. */
{INLINE} void pack_weights(const float *from, uint16_t *to, long count)
{{
    for (long n = 0; n < count; n++)
        to[n] = float_bf16(from[n]);
}}
"""

_AVX512 = f"""\
/* The first `numbers` of `keys` keys, at most 32 of 16, as words of a tile: row by row of depth. */
{INLINE} void turn(const uint16_t *k, long step, long keys, long numbers, uint32_t *to, long width)
{{
    const __mmask32 some = numbers < 32 ? (1u << numbers) - 1 : -1u;
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_maskz_loadu_epi16(i < keys ? some : 0, k + (i < keys ? i * step : 0));
    for (int i = 0; i < 16; i += 2) {{
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }}
    for (int i = 0; i < 16; i += 4) {{
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }}
    for (int i = 0; i < 4; i++) {{
        const __m512i even = _mm512_shuffle_i32x4(a[i], a[4 + i], 0x88);
        const __m512i odd = _mm512_shuffle_i32x4(a[i], a[4 + i], 0xdd);
        const __m512i more_even = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0x88);
        const __m512i more_odd = _mm512_shuffle_i32x4(a[8 + i], a[12 + i], 0xdd);
        _mm512_storeu_si512(to + i * width, _mm512_shuffle_i32x4(even, more_even, 0x88));
        _mm512_storeu_si512(to + (4 + i) * width, _mm512_shuffle_i32x4(odd, more_odd, 0x88));
        _mm512_storeu_si512(to + (8 + i) * width, _mm512_shuffle_i32x4(even, more_even, 0xdd));
        _mm512_storeu_si512(to + (12 + i) * width, _mm512_shuffle_i32x4(odd, more_odd, 0xdd));
    }}
}}
/* Floats as bf16, a multiple of 32. */
{INLINE} void pack_weights(const float *from, uint16_t *to, long count)
{{
    for (long n = 0; n < count; n += 32) {{
        const __m512 low = _mm512_loadu_ps(from + n), high = _mm512_loadu_ps(from + n + 16);
        _mm512_storeu_si512(to + n, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }}
}}
"""


def kind_of(p: TiledAttentionPlan, access: Access) -> str:
    """The C type of a factor's elements."""
    return C_TYPES[p.group.tensor(access.tensor).dtype]


def _bits(p: TiledAttentionPlan, access: Access, element: str) -> str:
    """An element as the 16 bits of a bf16."""
    return element if p.group.tensor(access.tensor).dtype == 'bf16' else f'float_bf16({element})'


def write_packs(writer: Writer, p: TiledAttentionPlan) -> None:
    """All functions above."""
    if ISAS[p.schedule.isa].arch == 'x86_64':
        writer.lines += ['#include <immintrin.h>', '', *_AVX512.splitlines(), '']
    else:
        writer.lines += [*_PLAIN.splitlines(), '']
    _write_rows(writer, p)
    _write_keys(writer, p)
    _write_columns(writer, p)


def _write_rows(writer: Writer, p: TiledAttentionPlan) -> None:
    access, strides = p.form.queries, p.strides(p.form.queries)
    depth, words = p.size(DEPTH), p.deep
    writer.open(
        f'static void pack_rows(const {kind_of(p, access)} *restrict q, uint16_t *restrict to, '
        f'long rows)'
    )
    writer.open(f'for (long r = 0; r < rows; r++, to += {PRODUCTS * words})')
    writer.line(f'for (long d = 0; d < {depth}; d++)')
    place = total([scaled('r', strides[ROW]), scaled('d', strides[DEPTH])])
    writer.line(f'    to[d] = {_bits(p, access, f"q[{place}]")};')
    if depth < PRODUCTS * words:
        writer.line(f'for (long d = {depth}; d < {PRODUCTS * words}; d++)')
        writer.line('    to[d] = 0;')
    writer.close(2)
    writer.line()


def _write_keys(writer: Writer, p: TiledAttentionPlan) -> None:
    access, strides = p.form.keys, p.strides(p.form.keys)
    depth, words, width, keys = p.size(DEPTH), p.deep, p.width, p.size(KEY)
    kind = kind_of(p, access)
    writer.open(f'static void pack_keys(const {kind} *restrict k, uint32_t *restrict to)')
    if strides[DEPTH] == 1 and kind == C_TYPES['bf16']:
        step, whole = strides[KEY], PRODUCTS * TILE_ROWS
        writer.open(f'for (long j = 0; j < {keys}; j += {width}, to += {width * words})')
        writer.open(f'for (long d = 0; d < {depth}; d += {whole})')
        writer.open(f'for (long lane = 0; lane < {width}; lane += {TILE_ROWS})')
        writer.line(f'const long some = max_long(0, min_long({TILE_ROWS}, {keys} - j - lane));')
        writer.line(
            f'turn(k + (some ? j + lane : j) * {step} + d, {step}, some, '
            f'min_long({whole}, {depth} - d), to + d / {PRODUCTS} * {width} + lane, {width});'
        )
        writer.close(4)
        writer.line()
        return
    writer.open(f'for (long j = 0; j < {keys}; j += {width})')
    writer.open(f'for (long word = 0; word < {words}; word++, to += {width})')
    writer.open(f'for (long lane = 0; lane < {width}; lane++)')
    writer.line(f'const long d = {PRODUCTS} * word, n = j + lane;')
    for name, at in (('low', 'd'), ('high', '(d + 1)')):
        place = total([scaled('n', strides[KEY]), scaled(at, strides[DEPTH])])
        bits = _bits(p, access, f'k[{place}]')
        writer.line(f'const uint32_t {name} = n < {keys} && {at} < {depth} ? {bits} : 0;')
    writer.line('to[lane] = low | high << 16;')
    writer.close(4)
    writer.line()


def _write_columns(writer: Writer, p: TiledAttentionPlan) -> None:
    """Two keys at a time, so that what is read lies side by side; panels are written in turns."""
    access, strides = p.form.columns, p.strides(p.form.columns)
    keys, columns, kind = p.size(KEY), p.size(COLUMN), kind_of(p, access)
    writer.open(f'static void pack_columns(const {kind} *restrict v, uint32_t *restrict to)')
    writer.open(f'for (long word = 0; word < {p.key_words}; word++)')
    writer.line(f'const long j = {PRODUCTS} * word;')
    first = 0
    while first < p.columns:
        width = p.width if first < p.full_panels * p.width else p.tail
        writer.line(f'uint32_t *restrict at{first} = to + {first * p.key_words} + word * {width};')
        some = max(0, min(width, columns - first))
        texts = []
        for at in ('j', '(j + 1)'):
            lane = f'({first} + lane)' if first else 'lane'
            place = total([scaled(at, strides[KEY]), scaled(lane, strides[COLUMN])])
            texts.append(_bits(p, access, f'v[{place}]'))
        for number, (test, text) in enumerate((
            (f'j + 1 < {keys}', f'{texts[0]} | (uint32_t){texts[1]} << 16'),
            (f'j < {keys}', texts[0]),
            ('', '0'),
        )):  # fmt: skip
            head = f'{"else " if number else ""}{f"if ({test})" if test else ""}'.strip()
            writer.open(head)
            writer.line(f'for (long lane = 0; lane < {some if test else width}; lane++)')
            writer.line(f'    at{first}[lane] = {text};')
            if test and some < width:
                writer.line(f'for (long lane = {some}; lane < {width}; lane++)')
                writer.line(f'    at{first}[lane] = 0;')
            writer.close()
        first += width
    writer.close(2)
    writer.line()
