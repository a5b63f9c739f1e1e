"""Register tiles of the channelwise schema on NEON: bytes of rows are interleaved in registers.

    r0, r1, r2     16 channels of a pixel in three rows below each other: a load each
    w0 .. w3       their taps in words of four: eight `zip`
    sums           of every pixel whose window has this column: `sdot` with the weights of the tap

Goes in: the plan (plan.py). Comes out: C functions of tiles. Interleaving keeps channels in their
order, so that vector v has channels 4v to 4v + 3, and four vectors become 16 bytes of the result
(kernels/cpu/whole_neon.py), or sixteen floats. Where sums are known to be small they begin with the
bias and with what makes a float of them (kernels/cpu/bounded.py).
"""

from __future__ import annotations

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.schemas.channelwise.plan import ChannelwisePlan
from tilewright.kernels.cpu.whole_neon import LANES, read_lines, store_lines, write_neon_vectors
from tilewright.kernels.cpu.whole_vectors import WholeValue
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.dtypes import DTYPES

VECTORS = 4
_ALL = list(range(VECTORS))


def write_neon_tiles(writer: Writer, p: ChannelwisePlan) -> None:
    """The functions of tiles, one for each number of pixels; two where sums may be small."""
    assert p.vector is not None
    near = p.near.value if p.near else None
    write_neon_vectors(writer, p.vector, _vectors(p), near)
    pointers = ''.join(
        f', const {C_TYPES[item.dtype]} *{item.name}' for item in p.epilogue.operands
    )
    for pixels in p.tile_pixels:
        given = (
            f'(const {C_TYPES[p.image.dtype]} *const *rows, long at, const int32_t *weights, '
            f'{C_TYPES[p.group.output.dtype]} *restrict out, long channels{pointers})'
        )
        if near:
            _write_tile(writer, p, pixels, f'tile_near_{pixels}', given, near)
        _write_tile(writer, p, pixels, f'tile_{pixels}', given, p.vector)


def _vectors(p: ChannelwisePlan) -> tuple[Operand, ...]:
    """The operands that are vectors: the last is a number where sums may be small."""
    return p.epilogue.operands[: -1 if p.near else None]


def _write_tile(
    writer: Writer, p: ChannelwisePlan, pixels: int, name: str, given: str, value: WholeValue
) -> None:
    across, near = p.across, p.near if p.near and value is p.near.value else None
    writer.open(f'static __attribute__((noinline)) void {name}{given}')
    if p.near and not near:
        arguments = ''.join(f', {item.name}' for item in p.epilogue.operands)
        writer.open(f'if (*{p.near.near.name})')
        writer.line(f'tile_near_{pixels}(rows, at, weights, out, channels{arguments});')
        writer.line('return;')
        writer.close()
    if near:
        for v in _ALL:
            writer.line(f'const int32x4_t start{v} = vld1q_s32({near.start.name} + {LANES * v});')
    first = 'start{}' if near else 'vdupq_n_s32(0)'
    for i in range(pixels):
        for v in _ALL:
            writer.line(f'int32x4_t s{i}_{v} = {first.format(v)};')
    for row in range(p.word_rows):
        taps = range(4 * row, min(4 * row + 4, p.down.taps))
        columns = {i * across.stride + s * across.dilation for i in range(pixels)
                   for s in range(across.taps)}  # fmt: skip
        for column in sorted(columns):
            writer.open('')
            _write_words(writer, p, list(taps), column * p.image.shape[3])
            for i in range(pixels):
                tap, rest = divmod(column - i * across.stride, across.dilation)
                if rest or tap not in range(across.taps):
                    continue
                for v in _ALL:
                    place = ((row * across.taps + tap) * VECTORS + v) * LANES
                    weight = f'vreinterpretq_s8_s32(vld1q_s32(weights + {place}))'
                    writer.line(f's{i}_{v} = vdotq_s32(s{i}_{v}, w{v}, {weight});')
            writer.close()
    _write_stores(writer, p, pixels, value)
    writer.close()
    writer.line()


def _write_words(writer: Writer, p: ChannelwisePlan, taps: list[int], offset: int) -> None:
    """w0 .. w3: words of the taps below each other; a tap beyond the last has weights of zero."""
    sign = C_TYPES[p.image.dtype]
    load = 'vld1q_s8' if sign == 'int8_t' else 'vld1q_u8'
    for tap in taps:
        text = f'{load}(rows[{tap}] + at + {offset})'
        if p.flips:
            text = f'vreinterpretq_s8_u8(veorq_u8({text}, vdupq_n_u8(128)))'
        writer.line(f'const int8x16_t r{tap} = {text};')
    a, b, c, d = (f'r{tap}' for tap in [*taps, *[taps[-1]] * (4 - len(taps))])
    for name, first, second in (('x', a, b), ('y', c, d)):
        for half in (1, 2):
            text = f'vreinterpretq_s16_s8(vzip{half}q_s8({first}, {second}))'
            writer.line(f'const int16x8_t {name}{half} = {text};')
    for v in _ALL:
        half, side = v // 2 + 1, v % 2 + 1
        text = f'vreinterpretq_s8_s16(vzip{side}q_s16(x{half}, y{half}))'
        writer.line(f'const int8x16_t w{v} = {text};')


def _write_stores(writer: Writer, p: ChannelwisePlan, pixels: int, value: WholeValue) -> None:
    step = access_strides(p.group, p.group.main.write)[0].get(p.across.out, 0)
    near, items = bool(p.near and value is p.near.value), _vectors(p)
    for item in items:
        if near and p.near and item is p.near.start:  # added before
            lines = [f'const whole_v {item.name}_{v} = {{0}};' for v in _ALL]
        else:
            lines = read_lines(item, item.name, p.channel, _ALL, LANES)
        for line in lines:
            writer.line(line)
    for whole in (True, False):  # copies of a number that is known are moves
        writer.line(f'if (channels >= {VECTORS * LANES}) {{' if whole else '} else {')
        for i in range(pixels):
            sums, to = {v: f'(whole_v)s{i}_{v}' for v in _ALL}, f'(out + {i * step})'
            if not whole and DTYPES[value.dtype] > 1:  # vectors are stored one by one
                for v, text in sums.items():
                    count = f'min_long({LANES}, channels - {LANES * v})'
                    writer.line(f'if (channels > {LANES * v})')
                    for line in store_lines(value, items, {v: text}, to, count, near):
                        writer.line(f'    {line}')
                continue
            count = LANES if whole else f'channels - {(VECTORS - 1) * LANES}'
            writer.open('')
            for line in store_lines(value, items, sums, to, count, near):
                writer.line(line)
            writer.close()
    writer.line('}')
