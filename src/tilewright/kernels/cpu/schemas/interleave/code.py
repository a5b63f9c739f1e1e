"""The interleave schema in C: rows of planes are rounded, then put side by side.

    rows of the result     outside: zeros
      channels             a row of floats into a row of bf16, which compilers do in vectors
      pixels               their channels, in one number of 64 bits: the next pixel is stored over
                           what lies behind them

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.schemas.interleave.plan import MOST, InterleavePlan
from tilewright.kernels.cpu.writer import Writer


def generate(p: InterleavePlan) -> str:
    """[InterleavePlan] -> [C source]"""
    writer, group = Writer(), p.group
    (image,) = group.with_role('input')
    images, _, wide, channels = group.output.shape
    _, _, height, width = image.shape
    inside = max(0, min(width, wide - p.left))
    abi.write_head(writer, group, p.schedule)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line('(void)constants, (void)packed;')
    writer.close()
    writer.line()
    rows = channels * abi.aligned(-(-inside // 2))
    abi.write_sizes(writer, p.schedule.threads, rows, 0)
    step = 2 * abi.aligned(-(-inside // 2))
    behind = -(-MOST // channels) - 1  # pixels that 64 bits reach into
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
    whole = max(0, inside - behind - 1)
    writer.open(f'for (long x = 0; x < {whole}; x++)')
    parts = ' | '.join(f'(uint64_t)planes[{c * step} + x] << {16 * c}' for c in range(channels))
    writer.line(f'const uint64_t all = {parts};')
    writer.line(f'memcpy(to + x * {channels}, &all, 8);')
    writer.close()
    writer.line(f'for (long x = {whole}; x < {inside}; x++)')
    writer.line(f'    for (long c = 0; c < {channels}; c++)')
    writer.line(f'        to[x * {channels} + c] = planes[c * {step} + x];')
    rest = 2 * (wide - p.left - inside) * channels
    writer.line(f'memset(to + {inside * channels}, 0, {rest});')
    writer.close(3)
    return writer.text()
