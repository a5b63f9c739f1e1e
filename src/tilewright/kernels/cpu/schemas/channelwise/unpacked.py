"""Register tiles of the channelwise schema where bytes of rows are interleaved in registers.

    r0, r1, r2     64 channels of a pixel in three rows below each other: a load each
    w0 .. w3       their taps in words of four: two steps of unpacking
    sums           of every pixel whose window has this column: vpdpbusd with the weights of the tap

Goes in: the plan (plan.py) of an instruction set with vectors of 64 bytes and words of four u8.
Comes out: C functions of tiles, and of `tw_pack`. Unpacking works inside of 16 bytes, so that lane
4j + q of vector v has channel 16j + 4v + q; weights and numbers of channels are packed in that
order, and narrowing four vectors of sums to bytes turns it around (kernels/cpu/whole_vectors.py).
"""

from __future__ import annotations

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.isa.words import words_dot
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.channelwise.plan import ChannelwisePlan
from tilewright.kernels.cpu.whole_vectors import vector_operands, write_four, write_vectors
from tilewright.kernels.cpu.writer import Writer

# The channel of a chunk whose number stands at a place of it, and the place of a channel: a 4 x 4
# matrix of fours is transposed, which undoes itself.
_TURNED = '((at) / 4 % 4 * 16 + (at) / 16 * 4 + (at) % 4)'
ORDER = (_TURNED, _TURNED)


def write_tiles(writer: Writer, p: ChannelwisePlan) -> None:
    """The functions of tiles, one for each number of pixels."""
    value, operands = p.vector, p.epilogue.operands
    assert value is not None
    write_vectors(writer, p.schedule.isa, [value.dtype, *(item.dtype for item in operands)])
    writer.line(f'#define DOT(sum, a, b) ({words_dot(p.schedule.isa, p.schedule.dtype)[1]})')
    writer.line('typedef whole_v sums_v;')
    write_four(writer, value)
    pointers = ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in operands)
    writer.open(
        f'static inline __attribute__((always_inline)) __m512i rounded(whole_v value{pointers})'
    )
    writer.line('enum { count = 16 };')
    for line in vector_operands(operands, p.channel):
        writer.line(line)
    writer.line(f'return {value.rounded()};')
    writer.close()
    writer.line()
    for pixels in p.tile_pixels:
        _write_tile(writer, p, pixels, pointers)


def _write_tile(writer: Writer, p: ChannelwisePlan, pixels: int, pointers: str) -> None:
    across, depth, result = p.across, p.image.shape[3], C_TYPES[p.group.output.dtype]
    writer.open(
        f'static __attribute__((noinline)) void tile_{pixels}(const {C_TYPES[p.image.dtype]} '
        f'*const *rows, long at, const int32_t *weights, {result} *restrict out, '
        f'__mmask64 mask{pointers})'
    )
    sums = ', '.join(f's{i}_{v} = {{0}}' for i in range(pixels) for v in range(4))
    writer.line(f'whole_v {sums};')
    for row in range(p.word_rows):
        taps = range(4 * row, min(4 * row + 4, p.down.taps))
        columns = {i * across.stride + s * across.dilation for i in range(pixels)
                   for s in range(across.taps)}  # fmt: skip
        for column in sorted(columns):
            writer.open('')
            _write_words(writer, p, [*taps, *[taps[-1]] * (4 - len(taps))], column * depth)
            for i in range(pixels):
                tap, rest = divmod(column - i * across.stride, across.dilation)
                if rest or tap not in range(across.taps):
                    continue
                for v in range(4):
                    place = ((row * across.taps + tap) * 4 + v) * 16
                    weight = f'*(const whole_v *)(weights + {place})'
                    writer.line(f's{i}_{v} = DOT(s{i}_{v}, w{v}, {weight});')
            writer.close()
    step = access_strides(p.group, p.group.main.write)[0].get(across.out, 0)
    for i in range(pixels):
        parts = []
        for v in range(4):
            places = ''.join(
                f', {item.name} + {16 * v * item.stride(p.channel)}' for item in p.epilogue.operands
            )
            parts.append(f'rounded(s{i}_{v}{places})')
        made = f'four({", ".join(parts)})'
        writer.line(f'_mm512_mask_storeu_epi8(out + {i * step}, mask, {made});')
    writer.close()
    writer.line()


def _write_words(writer: Writer, p: ChannelwisePlan, taps: list[int], offset: int) -> None:
    """w0 .. w3: words of the taps below each other; a tap beyond the last has weights of zero."""
    flip = '_mm512_xor_si512({}, _mm512_set1_epi8(-128))' if p.flips else '{}'
    for tap in dict.fromkeys(taps):
        load = flip.format(f'_mm512_loadu_si512(rows[{tap}] + at + {offset})')
        writer.line(f'const __m512i r{tap} = {load};')
    a, b, c, d = (f'r{tap}' for tap in taps)
    for name, first, second in (('x', a, b), ('y', c, d)):
        for half in ('lo', 'hi'):
            text = f'_mm512_unpack{half}_epi8({first}, {second})'
            writer.line(f'const __m512i {name}_{half} = {text};')
    for v in range(4):
        half, side = ('lo', 'hi')[v // 2], ('lo', 'hi')[v % 2]
        text = f'_mm512_unpack{side}_epi16(x_{half}, y_{half})'
        writer.line(f'const whole_v w{v} = (whole_v){text};')
