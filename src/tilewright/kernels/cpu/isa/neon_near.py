"""NEON micro-kernels of integer products that finish their sums in registers.

Goes in: a `MicroKernel` of words of i8, where its pixels lie in the result, and what follows sums
that are known to be small (kernels/cpu/bounded.py). Comes out: a C function

    static void NAME_near(const float *a, const float *b, const int32_t *start, const float *scale,
                          TYPE *out, long count)

that adds up as the kernel of isa/neon.py does, from `start` on, and stores bytes: sums are never in
memory. Words of a pixel that follow each other are loaded four at a time, for four iterations.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.neon import LETTER, iteration
from tilewright.kernels.cpu.isa.neon_address import Addresses, add_immediate, clobbers
from tilewright.kernels.cpu.whole_vectors import MAGIC_BITS, WholeValue
from tilewright.machine.isa import ISAS
from tilewright.ops.dtypes import limits

UNROLLED = 4  # iterations whose words are loaded at once


def why_not(kernel: micro.MicroKernel, value: WholeValue) -> str:
    """Why there is no such kernel; '' where there is."""
    if kernel.dtype != 'i8' or kernel.turned or not value.near or value.divisor:
        return 'sums are not finished in registers'
    spare = ISAS[kernel.isa].registers - len(kernel.pixels) * kernel.vectors - kernel.vectors
    return '' if kernel.vectors in (2, 4) and spare >= 2 else 'too few registers'


def emit_near(kernel: micro.MicroKernel, places: Sequence[int], value: WholeValue) -> str:
    """[MicroKernel, elements from `out` to each pixel, what follows] -> [C function]"""
    pixels, vectors = len(kernel.pixels), kernel.vectors
    first = pixels * vectors  # the registers of weights; what is left holds words of pixels
    spare = list(range(first + vectors, ISAS[kernel.isa].registers))
    lines = [
        f'ldr q{p * vectors + v}, [%[start], #{16 * v}]'
        for p in range(pixels)
        for v in range(vectors)
    ]
    four = kernel.a_step == 1 and len(kernel.steps) == 1
    if four:
        lines += ['lsr x15, %[count], #2', 'and %[count], %[count], #3', 'cbz x15, 2f', '1:']
        lines += _words(kernel, spare)
        lines += ['subs x15, x15, #1', 'b.ne 1b', '2:']
    lines += ['cbz %[count], 4f', '3:']
    lines += iteration(kernel)
    lines += ['subs %[count], %[count], #1', 'b.ne 3b', '4:']
    lines += _finish(kernel, places, value, spare)
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count)'
    inputs = '[start] "r"(start), [scale] "r"(scale), [out] "r"(out)'
    body = micro.asm_block(lines, operands, inputs, [*clobbers(), 'x15'])
    head = (
        f'static __attribute__((noinline)) void {kernel.name}_near(const float *a, const float *b, '
        f'const int32_t *start, const float *scale, {C_TYPES[value.dtype]} *out, long count)'
    )
    return '\n'.join([head, '{', *(f'    {line}' for line in body), '}', ''])


def _products(kernel: micro.MicroKernel, pixel: int, register: int, lane: int) -> list[str]:
    vectors, weights = kernel.vectors, len(kernel.pixels) * kernel.vectors
    return [
        f'sdot v{pixel * vectors + v}.4s, v{weights + v}.16b, v{register}.4b[{lane}]'
        for v in range(vectors)
    ]


def _words(kernel: micro.MicroKernel, spare: list[int]) -> list[str]:
    """Four iterations: four words of as many pixels as there are registers for; the words of others
    are loaded one by one.
    """
    pixels, vectors = len(kernel.pixels), kernel.vectors
    weights, lines, addresses = pixels * vectors, [], Addresses('%[a]')
    kept = dict(zip(range(pixels), spare[: max(len(spare) - 2, 0)], strict=False))
    rest = spare[len(kept) :]
    step = kernel.steps[0]
    for pixel, register in kept.items():
        operand = addresses.operand(4 * (step + kernel.pixels[pixel]), 16, lines)
        lines.append(f'ldr q{register}, {operand}')
    for number in range(UNROLLED):
        for v in range(vectors):
            lines.append(f'ldr q{weights + v}, [%[b], #{16 * (number * vectors + v)}]')
        for pixel in range(pixels):
            register, lane = kept.get(pixel), number
            if register is None:
                register, lane = rest[pixel % len(rest)], 0
                offset = 4 * (step + kernel.pixels[pixel] + number)
                lines.append(f'ldr s{register}, {addresses.operand(offset, 4, lines)}')
            lines += _products(kernel, pixel, register, lane)
    lines += add_immediate('%[b]', '%[b]', UNROLLED * vectors * 16)
    return lines + add_immediate('%[a]', '%[a]', 4 * UNROLLED)


def _finish(
    kernel: micro.MicroKernel, places: Sequence[int], value: WholeValue, spare: list[int]
) -> list[str]:
    """Floats times scales, rounded in their lowest bits, narrowed, cut off and stored."""
    pixels, vectors = len(kernel.pixels), kernel.vectors
    assert value.limits is not None
    weights, (magic, zero), lines = pixels * vectors, spare[:2], []
    lines += [f'movz w15, #{MAGIC_BITS >> 16}, lsl #16', f'dup v{magic}.4s, w15']
    for v in range(vectors):
        lines.append(f'ldr q{weights + v}, [%[scale], #{16 * v}]')
    for p in range(pixels):
        for op in ('fsub', 'fmul', 'fadd'):
            for v in range(vectors):
                at, other = p * vectors + v, weights + v if op == 'fmul' else magic
                lines.append(f'{op} v{at}.4s, v{at}.4s, v{other}.4s')
    signed = value.dtype == 'i8'
    if value.zero:
        lines += [f'mov w15, #{value.zero}', f'dup v{zero}.8h, w15']
    cuts = []
    for register, op, limit, end in zip(
        (magic, weights), ('max', 'min'), value.limits, limits(value.dtype), strict=True
    ):
        if limit != end:
            cuts.append((register, f'{"s" if signed else "u"}{op}'))
            lines += [f'mov w15, #{limit}', f'dup v{register}.16b, w15']
    narrow, addresses = 'sqxtn' if signed else 'sqxtun', Addresses('%[out]')
    for p, place in enumerate(places):
        at = [p * vectors + v for v in range(vectors)]
        halves = at[::2]
        lines += [f'uzp1 v{h}.8h, v{h}.8h, v{h + 1}.8h' for h in halves]
        if value.zero:
            lines += [f'add v{h}.8h, v{h}.8h, v{zero}.8h' for h in halves]
        lines.append(f'{narrow} v{at[0]}.8b, v{at[0]}.8h')
        if vectors == 4:
            lines.append(f'{narrow}2 v{at[0]}.16b, v{at[2]}.8h')
        lines += [f'{op} v{at[0]}.16b, v{at[0]}.16b, v{register}.16b' for register, op in cuts]
        operand = addresses.operand(place, 4 * vectors, lines)
        lines.append(f'str {LETTER[vectors]}{at[0]}, {operand}')
    return lines
