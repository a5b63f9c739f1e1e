"""NEON micro-kernels of floats that finish their sums in registers: rows of pixels go straight out.

Goes in: a turned `MicroKernel` whose pixels are one row, and what follows sums (`micro.Finish`).
Comes out: a C function

    static void NAME_done(const float *a, const float *b, float *out, long count, long pitch,
                          const float *bias, const float *more)

that adds up as the kernel of isa/neon.py does, from `bias` on, adds `more`, cuts off at limits, and
stores the pixels of every lane, `pitch` floats apart. So sums never are in memory: storing them,
loading them again and a second call take 50 cycles of a register tile, as long as four channels.
"""

from __future__ import annotations

import struct

from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.neon import iteration, prefetch_pixels
from tilewright.kernels.cpu.isa.neon_address import clobbers
from tilewright.machine.isa import ISAS


def can_finish(kernel: micro.MicroKernel) -> bool:
    """Whether there is such a kernel."""
    floats = kernel.dtype == kernel.accumulation == kernel.stored == 'f32'
    row = kernel.pixels == tuple(range(len(kernel.pixels)))
    plain = not kernel.fetch and not kernel.deep and kernel.finish is None
    return ISAS[kernel.isa].arch == 'aarch64' and kernel.turned and floats and row and plain


def emit_done(kernel: micro.MicroKernel, finish: micro.Finish) -> str:
    """[MicroKernel, what follows sums] -> [C function]"""
    pixels, vectors = len(kernel.pixels), kernel.vectors
    first = pixels * vectors  # of the registers that hold no sums
    sums = [(p, v, p * vectors + v) for p in range(pixels) for v in range(vectors)]
    if finish.bias:
        lines = [f'ldr q{first + v}, [%[bias], #{16 * v}]' for v in range(vectors)]
        lines += [f'dup v{at}.4s, v{first + v}.s[{p % micro.BLOCK}]' for p, v, at in sums]
    else:
        lines = [f'movi v{at}.4s, #0' for _, _, at in sums]
    lines.append('3:')
    lines += prefetch_pixels(kernel)
    lines += [f'prfm pldl1keep, [%[b], #{4 * place}]' for place in micro.vector_prefetches(kernel)]
    lines += iteration(kernel)
    lines += ['subs %[count], %[count], #1', 'b.ne 3b']
    spare, cuts = list(range(first, ISAS[kernel.isa].registers)), []
    for instruction, limit in (('fmax', finish.low), ('fmin', finish.high)):
        if limit is not None:
            register = spare.pop()
            cuts.append((instruction, register))
            lines += _constant(register, limit)
    turn = 0
    for lane in range(micro.BLOCK * vectors):
        v, j = divmod(lane, micro.BLOCK)
        for block in range(pixels // micro.BLOCK):
            at = (micro.BLOCK * block + j) * vectors + v
            if finish.more:
                more, turn = spare[turn % len(spare)], turn + 1
                lines.append(f'ldr q{more}, [%[more], #{16 * block}]')
                lines.append(f'fadd v{at}.4s, v{at}.4s, v{more}.4s')
            lines += [f'{name} v{at}.4s, v{at}.4s, v{other}.4s' for name, other in cuts]
            lines.append(f'str q{at}, [%[out], #{16 * block}]')
        moved = ['out', 'more'] if finish.more else ['out']
        lines += [f'add %[{name}], %[{name}], %[pitch], lsl #2' for name in moved]
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count), [out] "+r"(out)'
    operands += ', [more] "+r"(more)' if finish.more else ''
    inputs = '[pitch] "r"(pitch)' + (', [bias] "r"(bias)' if finish.bias else '')
    body = micro.asm_block(lines, operands, inputs, [*clobbers(), 'x15'])
    body += [f'(void){n};' for n in ('bias', 'more') if not getattr(finish, n)]
    head = (
        f'static __attribute__((noinline)) void {kernel.name}_done(const float *a, const float *b, '
        f'float *out, long count, long pitch, const float *bias, const float *more)'
    )
    return '\n'.join([head, '{', *(f'    {line}' for line in body), '}', ''])


def _constant(register: int, value: float) -> list[str]:
    """A number in all lanes."""
    bits = struct.unpack('<I', struct.pack('<f', value))[0]
    if not bits:
        return [f'movi v{register}.4s, #0']
    lines = [f'movz w15, #{bits & 0xFFFF}', f'movk w15, #{bits >> 16}, lsl #16']
    return [*lines, f'dup v{register}.4s, w15']
