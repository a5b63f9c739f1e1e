"""AArch64 NEON micro-kernels: `fmla` by element, so that pixels need no broadcast.

Pixels whose offsets are consecutive are loaded together (four, two or one to a register) and
used lane by lane; weights stream through immediate offsets of one pointer. In a turned kernel it is
the weights that are used lane by lane, so that accumulators hold neighbouring pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernels.cpu.isa import micro, neon_rows
from tilewright.kernels.cpu.isa.neon_address import Addresses, accumulators, add_immediate, clobbers
from tilewright.machine.isa import ISAS

LETTER = {4: 'q', 2: 'd', 1: 's'}


def chunks(pixels: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Pixels that are loaded together: runs of consecutive offsets, cut into 4, 2 and 1."""
    order = sorted(range(len(pixels)), key=lambda p: pixels[p])
    start = 0
    while start < len(order):
        stop = start + 1
        while stop < len(order) and pixels[order[stop]] == pixels[order[stop - 1]] + 1:
            stop += 1
        while start < stop:
            size = next(s for s in (4, 2, 1) if start + s <= stop)
            yield tuple(order[start : start + size])
            start += size


# What is multiplied -> the instruction: a vector by one lane of another, of four bytes each.
_MULTIPLY = {
    'f32': 'fmla v{t}.4s, v{v}.4s, v{e}.s[{lane}]',
    'i8': 'sdot v{t}.4s, v{v}.16b, v{e}.4b[{lane}]',
    'i32': 'mla v{t}.4s, v{v}.4s, v{e}.s[{lane}]',
}


def emit(kernel: micro.MicroKernel) -> str:
    """[MicroKernel] -> [C function with one asm block]"""
    if micro.along_rows(kernel):
        return neon_rows.emit(kernel)
    pixels, vectors = len(kernel.pixels), kernel.vectors
    tiles = [(p, v) for p in range(pixels) for v in range(vectors)]

    lines = ['cbnz %[resume], 1f']
    lines += [f'movi v{p * vectors + v}.4s, #0' for p, v in tiles]
    lines += ['b 2f', '1:']
    lines += accumulators(kernel, 'ldr')
    lines += ['2:', 'cbz %[count], 4f', '3:']
    lines += prefetch_pixels(kernel)
    lines += [f'prfm pldl1keep, [%[b], #{4 * place}]' for place in micro.vector_prefetches(kernel)]
    lines += iteration(kernel)
    lines += ['subs %[count], %[count], #1', 'b.ne 3b', '4:']
    lines += accumulators(kernel, 'str')
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count)'
    inputs = '[acc] "r"(acc), [resume] "r"(resume)'
    return micro.function(kernel, micro.asm_block(lines, operands, inputs, clobbers()))


def iteration(kernel: micro.MicroKernel) -> list[str]:
    """The products of all steps; then `a` and `b` are moved behind what was read."""
    vectors, weights = kernel.vectors, len(kernel.pixels) * kernel.vectors
    multiply = _MULTIPLY[kernel.dtype]
    spare = list(range(weights + vectors, ISAS[kernel.isa].registers))
    loaded = list(chunks(kernel.pixels))
    addresses, lines = Addresses('%[a]'), []
    for number, step in enumerate(kernel.steps):
        b_offset = number * vectors * 16
        for v in range(vectors):
            lines.append(f'ldr q{weights + v}, [%[b], #{b_offset + 16 * v}]')
        for turn, together in enumerate(loaded):
            register = spare[(number * len(loaded) + turn) % len(spare)]
            size = len(together)
            offset = 4 * (step + kernel.pixels[together[0]])
            operand = addresses.operand(offset, 4 * size, lines)
            lines.append(f'ldr {LETTER[size]}{register}, {operand}')
            for lane, pixel in enumerate(together):
                for v in range(vectors):
                    target = pixel * vectors + v
                    vector, element = weights + v, register
                    if kernel.turned:
                        vector, element = element, vector
                    lines.append(multiply.format(t=target, v=vector, e=element, lane=lane))
    lines += add_immediate('%[b]', '%[b]', len(kernel.steps) * vectors * 16)
    return lines + add_immediate('%[a]', '%[a]', 4 * kernel.a_step)


def prefetch_pixels(kernel: micro.MicroKernel) -> list[str]:
    """Ask for the lines that a later iteration reads, relative to one extra base."""
    places = micro.prefetches(kernel)
    if not places:
        return []
    lines = add_immediate('x14', '%[a]', 4 * places[0])
    for place in places:
        offset = 4 * (place - places[0])
        lines.append(f'prfm pldl1keep, [x14, #{min(offset - offset % 8, 32760)}]')
    return lines
