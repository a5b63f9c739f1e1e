"""Register tiles of the channelwise schema on AVX2, where words are pairs of 16-bit numbers.

    r0, r1       32 channels of a pixel in two rows below each other, or of two pixels side by side
    w0, w1       half of them in words of two: bytes are interleaved, then widened
    sums         of every pixel whose window has this column: vpmaddwd, vpaddd

Goes in: the plan (plan.py) of an instruction set with vectors of 32 bytes. Comes out: C functions
of tiles. Rows are taken in pairs. The last of an odd number of rows is taken in pairs of columns,
so that 3 x 3 taps are five words instead of six. Each half of the channels is summed up by itself,
since 16 registers hold the sums of 16 channels; it is narrowed to 16 bits before the next begins.
Unpacking works inside of 16 bytes, so that lane 4j + q of vector v has channel 16j + 4v + q;
narrowing turns that around (kernels/cpu/whole_avx2.py).
"""

from __future__ import annotations

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.isa.words import words_dot
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.channelwise.plan import ChannelwisePlan
from tilewright.kernels.cpu.whole_avx2 import LANES, write_rounded
from tilewright.kernels.cpu.whole_vectors import write_vectors
from tilewright.kernels.cpu.writer import Writer

# The channel of a chunk whose number stands at a place of it, and the place of a channel.
ORDER = (
    '((at) / 4 % 2 * 16 + (at) / 8 * 4 + (at) % 4)',
    '((at) % 16 / 4 * 8 + (at) / 16 * 4 + (at) % 4)',
)
VECTORS = 4  # of sums for the channels of a chunk

# gcc would put off additions, since any order of them is as good, and run out of registers.
_TAP = """\
static inline __attribute__((always_inline)) sums_v tap(sums_v sum, sums_v a, const int32_t *b)
{
    sum = @dot@;
    __asm__("" : "+x"(sum));
    return sum;
}
"""

_WIDEN = """\
static inline __attribute__((always_inline)) __m256i low_pairs(__m256i x) { return @low@; }
static inline __attribute__((always_inline)) __m256i high_pairs(__m256i x) { return @high@; }
"""


def write_tiles(writer: Writer, p: ChannelwisePlan) -> None:
    """The functions of tiles, one for each number of pixels."""
    value, operands = p.vector, p.epilogue.operands
    assert value is not None
    write_vectors(writer, p.schedule.isa, [value.dtype, *(item.dtype for item in operands)])
    writer.line('typedef whole_v sums_v;')
    dot = words_dot(p.schedule.isa, p.schedule.dtype)[1]
    writer.lines += _TAP.replace('@dot@', dot.replace('(b)', '(*(const sums_v *)b)')).splitlines()
    text = _WIDEN
    for half, name in (('lo', 'low'), ('hi', 'high')):
        wide = f'_mm256_unpack{half}_epi8(x, _mm256_setzero_si256())'
        if p.image.dtype == 'i8':
            wide = f'_mm256_srai_epi16(_mm256_unpack{half}_epi8(x, x), 8)'
        text = text.replace(f'@{name}@', wide)
    writer.lines += text.splitlines()
    write_rounded(writer, value, operands, p.channel)
    for pixels in p.tile_pixels:
        _write_tile(writer, p, pixels)


def _write_tile(writer: Writer, p: ChannelwisePlan, pixels: int) -> None:
    operands, result = p.epilogue.operands, C_TYPES[p.group.output.dtype]
    pointers = ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in operands)
    writer.open(
        f'static __attribute__((noinline)) void tile_{pixels}(const {C_TYPES[p.image.dtype]} '
        f'*const *rows, long at, const int32_t *weights, {result} *restrict out, '
        f'long channels{pointers})'
    )
    for half, name in enumerate(('low', 'high')):
        made = ', '.join(f'{name}{i}' for i in range(pixels))
        writer.line(f'__m256i {made};')
        writer.open('')
        sums = ', '.join(f's{i}_{v} = {{0}}' for i in range(pixels) for v in range(2))
        writer.line(f'sums_v {sums};')
        for (row, below), (column, beside), uses in _words(p, pixels):
            _write_word(writer, p, half, ((row, column), (below, beside)), uses)
        for i in range(pixels):
            parts = []
            for v in range(2):
                first = LANES * (2 * half + v)
                places = ''.join(
                    f', {item.name} + {first * item.stride(p.channel)}' for item in operands
                )
                parts.append(f'rounded(s{i}_{v}, {LANES}{places})')
            writer.line(f'{name}{i} = two({", ".join(parts)});')
        writer.close()
        if not half:  # what is loaded again would be kept in memory
            writer.line('__asm__ volatile("" : : : "memory");')
    step = access_strides(p.group, p.group.main.write)[0].get(p.across.out, 0)
    size = p.group.main.sizes[p.channel]
    for i in range(pixels):
        writer.open('')
        writer.line(f'const __m256i all = bytes(low{i}, high{i});')
        whole = f'_mm256_storeu_si256((__m256i *)(out + {i * step}), all);'
        if size % p.chunk:
            writer.line(f'if (channels == {p.chunk})' if size > p.chunk else '')
            if size > p.chunk:
                writer.line(f'    {whole}')
                writer.line('else')
            writer.line(f'    memcpy(out + {i * step}, &all, {size % p.chunk});')
        else:
            writer.line(whole)
        writer.close()
    if not size % p.chunk or size < p.chunk:
        writer.line('(void)channels;')
    writer.close()
    writer.line()


def _words(
    p: ChannelwisePlan, pixels: int
) -> list[tuple[tuple[int, int], tuple[int, int], list[tuple[int, int]]]]:
    """The words of a tile, by columns: two rows and two columns of the numbers in each, and what
    uses it, pixels with the numbers of terms. A word whose second number nobody asks for has the
    first twice.
    """
    across, found = p.across, {}
    for number, term in enumerate(p.terms):
        (row, first), (below, second) = term[0], term[-1]
        for i in range(pixels):
            column, beside = (i * across.stride + s * across.dilation for s in (first, second))
            key = column, row, below if below != row else -1
            uses, last = found.get(key, ([], column))
            found[key] = [*uses, (i, number)], max(last, beside)
    return [
        ((row, row if below < 0 else below), (column, last if below < 0 else column), uses)
        for (column, row, below), (uses, last) in sorted(found.items())
    ]


def _write_word(
    writer: Writer, p: ChannelwisePlan, half: int, places: tuple[tuple[int, int], ...],
    uses: list[tuple[int, int]],
) -> None:  # fmt: skip
    depth = p.image.shape[3]
    loads = (
        f'_mm256_loadu_si256((const __m256i *)(rows[{row}] + at + {column * depth}))'
        for row, column in places
    )
    writer.open('')
    writer.line(f'const __m256i x = _mm256_unpack{("lo", "hi")[half]}_epi8({", ".join(loads)});')
    writer.line('const sums_v w0 = (sums_v)low_pairs(x), w1 = (sums_v)high_pairs(x);')
    for i, term in uses:
        for v in range(2):
            place = (term * VECTORS + 2 * half + v) * LANES
            writer.line(f's{i}_{v} = tap(s{i}_{v}, w{v}, weights + {place});')
    writer.close()
