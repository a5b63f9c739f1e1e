"""The interleave schema in C: rows of planes are rounded, then put side by side.

    rows of the result     outside: zeros
      channels             a row of floats into a row of bf16, which compilers do in vectors
      32 pixels            as many vectors as there are channels, each picked from all planes
      pixels               those that are left, number by number

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.schemas.interleave.plan import InterleavePlan
from tilewright.kernels.cpu.writer import Writer

LANES = 32  # numbers of 16 bits in a vector
_VECTOR = 'typedef uint16_t bits_v __attribute__((vector_size(64), aligned(2), may_alias));'


def _pick(channels: int, vector: int) -> list[str]:
    """Statements that make `all`: one of the vectors of 32 pixels of so many planes, v0, v1 ..

    Place i of vector j is number 32 j + i of the pixels, whose channel is the rest by `channels`.
    """
    places = [divmod(vector * LANES + i, channels) for i in range(LANES)]
    lines = ['bits_v all = v0;']
    for c in range(1, channels):
        # What is there already stays where it is; the first pick puts channel 0 there as well.
        picks = [
            LANES + pixel if channel == c else pixel if c == 1 else i
            for i, (pixel, channel) in enumerate(places)
        ]
        lines.append(f'all = __builtin_shufflevector(all, v{c}, {", ".join(map(str, picks))});')
    return lines


def generate(p: InterleavePlan) -> str:
    """[InterleavePlan] -> [C source]"""
    writer, group = Writer(), p.group
    (image,) = group.with_role('input')
    images, _, wide, channels = group.output.shape
    _, _, height, width = image.shape
    inside = max(0, min(width, wide - p.left))
    abi.write_head(writer, group, p.schedule)
    writer.line(_VECTOR)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line('(void)constants, (void)packed;')
    writer.close()
    writer.line()
    rows = channels * abi.aligned(-(-inside // 2))
    abi.write_sizes(writer, p.schedule.threads, rows, 0)
    step = 2 * abi.aligned(-(-inside // 2))
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('const float *source = args->in[0];')
    writer.line('bf16_t *made = (bf16_t *)args->out;')
    writer.line('bf16_t *planes = (bf16_t *)(args->scratch + part * tw_scratch_bytes());')
    nest = Nest(group.main, p.schedule, writer)
    nest.open_parts()
    low, high = nest.at(group.main.write.index[1].names[0])
    writer.open(f'for (long image = 0; image < {images}; image++)')
    writer.open(f'for (long row = {low}; row < {high}; row++)')
    line = f'(image * {group.output.shape[1]} + row) * {wide * channels}'
    writer.line(f'bf16_t *restrict to = made + {line};')
    writer.line(f'const long y = row - {p.top};')
    writer.open(f'if ((unsigned long)y >= {height}ul)')
    writer.line(f'memset(to, 0, {2 * wide * channels});')
    writer.line('continue;')
    writer.close()
    writer.open(f'for (long c = 0; c < {channels}; c++)')
    at = f'((image * {channels} + c) * {height} + y) * {width}'
    writer.line(f'const float *restrict from = source + {at};')
    writer.line(f'bf16_t *restrict plane = planes + c * {step};')
    writer.line(f'for (long x = 0; x < {inside}; x++)')
    writer.line('    plane[x] = float_bf16(from[x]);')
    writer.close()
    writer.line(f'memset(to, 0, {2 * p.left * channels});')
    writer.line(f'to += {p.left * channels};')
    whole = inside // LANES * LANES
    writer.open(f'for (long x = 0; x < {whole}; x += {LANES})')
    for c in range(channels):
        writer.line(f'const bits_v v{c} = *(const bits_v *)(planes + {c * step} + x);')
    for vector in range(channels):
        writer.open('')
        for line in _pick(channels, vector):
            writer.line(line)
        writer.line(f'*(bits_v *)(to + x * {channels} + {vector * LANES}) = all;')
        writer.close()
    writer.close()
    writer.line(f'for (long x = {whole}; x < {inside}; x++)')
    writer.line(f'    for (long c = 0; c < {channels}; c++)')
    writer.line(f'        to[x * {channels} + c] = planes[c * {step} + x];')
    rest = 2 * (wide - p.left - inside) * channels
    writer.line(f'memset(to + {inside * channels}, 0, {rest});')
    writer.close(3)
    return writer.text()
