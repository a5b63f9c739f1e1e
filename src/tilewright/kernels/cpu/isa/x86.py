"""AVX-512 and AVX2 micro-kernels: broadcast a pixel, multiply by the vectors of the step.

    vbroadcastss pixel, t ; vfmadd231ps t, w0, acc_p0 ; vfmadd231ps t, w1, acc_p1

Accumulators, weights and broadcasts, which take turns in what is left, fill the register file
(28 + 2 + 2 of 32 with 14 x 2 vectors on AVX-512; 12 + 2 + 2 of 16 with 6 x 2 on AVX2).

Small whole numbers come four or two in a word, and a word is broadcast as a float is:

    u8    vpdpbusd w0, t, acc_p0                         four products of u8 and i8, in 32 bits
    i16   vpmaddwd t, w0, u ; vpaddd u, acc_p0, acc_p0   two products; nothing saturates, as pairs
                                                         of u8 and i8 would in vpmaddubsw
"""

from __future__ import annotations

from tilewright.kernels.cpu.isa import micro
from tilewright.machine.isa import ISAS

# A vector of weights as floats, by what it is in memory.
_LOADS = {
    'f32': ('vmovups {}, {}',),
    'f16': ('vcvtph2ps {}, {}',),
    'bf16': ('vpmovzxwd {}, {}', 'vpslld $16, {1}, {1}'),
}
_REGISTER = {64: 'zmm', 32: 'ymm', 16: 'xmm'}  # by bytes of a vector


def emit(kernel: micro.MicroKernel) -> str:
    """[MicroKernel] -> [C function with one asm block]"""
    isa = ISAS[kernel.isa]
    name, total = _REGISTER[isa.vector_bytes], isa.registers
    pixels, vectors, size = len(kernel.pixels), kernel.vectors, 4 * kernel.lanes
    item = 4 if kernel.stored == 'f32' else 2
    weight = item * kernel.lanes

    def register(number: int) -> str:
        return f'%%{name}{number}'

    weights = pixels * vectors
    spare = list(range(weights + vectors, total))
    lines = ['test %[resume], %[resume]', 'jnz 1f']
    for number in range(weights):
        low = f'%%xmm{number}' if number < 16 else register(number)
        clear = 'vxorps' if number < 16 else 'vpxord'
        lines.append(f'{clear} {low}, {low}, {low}')
    lines += ['jmp 2f', '1:']
    places = [
        (p * vectors + v, 4 * offset + v * size)
        for p, offset in enumerate(kernel.acc)
        for v in range(vectors)
    ]
    lines += [f'vmovups {offset}(%[acc]), {register(n)}' for n, offset in places]
    lines += ['2:', 'test %[count], %[count]', 'jz 4f', '.p2align 4', '3:']
    lines += [f'prefetcht0 {4 * place}(%[a])' for place in micro.prefetches(kernel)]
    lines += [f'prefetcht0 {item * place}(%[b])' for place in micro.vector_prefetches(kernel)]
    if kernel.fetch:  # a line that is on its way already is not asked for again
        lines += ['prefetcht1 (%[next])', f'add ${item * kernel.fetch}, %[next]']
    turn, broadcast = 0, ''
    for number, step in enumerate(kernel.steps):
        for v in range(vectors):
            place, vector = f'{(number * vectors + v) * weight}(%[b])', register(weights + v)
            lines += [line.format(place, vector) for line in _LOADS[kernel.stored]]
        for p, pixel in enumerate(kernel.pixels):
            place = f'{4 * (step + pixel)}(%[a])'
            for v in range(vectors):
                vector, target = register(weights + v), register(p * vectors + v)
                if v == 0 or (kernel.dtype == 'i16' and len(spare) == 1):
                    broadcast = register(spare[turn % len(spare)])
                    turn += 1
                    lines.append(f'vbroadcastss {place}, {broadcast}')
                if kernel.dtype == 'u8':
                    lines.append(f'vpdpbusd {vector}, {broadcast}, {target}')
                elif kernel.dtype == 'i16':
                    # The last product may take the place of what was broadcast.
                    last = v + 1 == vectors or len(spare) == 1
                    pairs = broadcast if last else register(spare[turn % len(spare)])
                    lines.append(f'vpmaddwd {broadcast}, {vector}, {pairs}')
                    lines.append(f'vpaddd {pairs}, {target}, {target}')
                else:
                    lines.append(f'vfmadd231ps {broadcast}, {vector}, {target}')
    lines += [
        f'add ${len(kernel.steps) * vectors * weight}, %[b]',
        f'add ${4 * kernel.a_step}, %[a]',
        'dec %[count]',
        'jnz 3b',
        '4:',
    ]
    lines += [f'vmovups {register(n)}, {offset}(%[acc])' for n, offset in places]
    lines.append('vzeroupper')
    clobbers = [f'xmm{i}' for i in range(total)] + ['cc', 'memory']
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count)'
    operands += ', [next] "+r"(next)' if kernel.fetch else ''
    inputs = '[acc] "r"(acc), [resume] "r"(resume)'
    return micro.function(kernel, micro.asm_block(lines, operands, inputs, clobbers))
