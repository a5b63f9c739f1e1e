"""AVX-512 and AVX2 micro-kernels: broadcast a pixel, multiply by the vectors of the step.

    vbroadcastss pixel, t ; vfmadd231ps t, w0, acc_p0 ; vfmadd231ps t, w1, acc_p1

Accumulators, weights and broadcasts, which take turns in what is left, fill the register file
(28 + 2 + 2 of 32 with 14 x 2 vectors on AVX-512; 12 + 2 + 2 of 16 with 6 x 2 on AVX2).

Where iterations walk along rows (a matrix product), AVX-512 kernels take UNROLL of them at a time,
and every other pixel is broadcast by the multiply-adds themselves:

    vfmadd231ps pixel{1to16}, w0, acc_p0 ; vfmadd231ps pixel{1to16}, w1, acc_p1

which loads it once for each vector, but starts fewer instructions: with everything in the first
cache 0.70 -> 0.78 of the peak of a busy Xeon (9 x 3 vectors).

AVX2 kernels write out as many, and where tiles are copied into strips, too: on two Zen 3 cores 1x1
layers of 7 x 7 pixels take up to 4% less. No multiply-add broadcasts there.

Small whole numbers come four or two in a word, and a word is broadcast as a float is:

    u8    vpdpbusd w0, t, acc_p0                         four products of u8 and i8, in 32 bits
    i16   vpmaddwd t, w0, u ; vpaddd u, acc_p0, acc_p0   two products; nothing saturates, as pairs
                                                         of u8 and i8 would in vpmaddubsw
"""

from __future__ import annotations

from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.machine.isa import ISAS

# A vector of weights as floats, by what it is in memory.
_LOADS = {
    'f32': ('vmovups {}, {}',),
    'f16': ('vcvtph2ps {}, {}',),
    'bf16': ('vpmovzxwd {}, {}', 'vpslld $16, {1}, {1}'),
}
_REGISTER = {64: 'zmm', 32: 'ymm', 16: 'xmm'}  # by bytes of a vector
UNROLL = 4  # iterations that are written out
LONG = 16  # steps of words that take two instructions, beyond which their rows are a loop
EMBEDDED_VECTORS = 3  # with more of them, loads would be what is waited for


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
    single = kernel.steps == (0,) and kernel.dtype == 'f32' and isa.vector_bytes >= 32
    wide = isa.vector_bytes == 64
    # Of AVX2 also copied tiles, whose rows nothing asks for.
    written_out = kernel.a_step == 1 or not (wide or micro.prefetches(kernel))
    unroll = UNROLL if single and written_out else 1
    embedded = wide and unroll > 1 and vectors <= EMBEDDED_VECTORS
    turn = 0

    def step_lines(number: int, step: int) -> list[str]:
        """One step: vectors behind `number` others, pixels `step` floats from the first."""
        nonlocal turn
        found = [
            line.format(f'{(number * vectors + v) * weight}(%[b])', register(weights + v))
            for v in range(vectors)
            for line in _LOADS[kernel.stored]
        ]
        broadcast = ''
        for p, pixel in enumerate(kernel.pixels):
            place = f'{4 * (step + pixel)}(%[a])'
            for v in range(vectors):
                vector, target = register(weights + v), register(p * vectors + v)
                if embedded and p % 2:
                    found.append(f'vfmadd231ps {place}%{{1to16%}}, {vector}, {target}')
                    continue
                if v == 0 or (kernel.dtype == 'i16' and len(spare) == 1):
                    broadcast = register(spare[turn % len(spare)])
                    turn += 1
                    found.append(f'vbroadcastss {place}, {broadcast}')
                if kernel.dtype == 'u8':
                    found.append(f'vpdpbusd {vector}, {broadcast}, {target}')
                elif kernel.dtype == 'i16':
                    # The last product may take the place of what was broadcast.
                    last = v + 1 == vectors or len(spare) == 1
                    pairs = broadcast if last else register(spare[turn % len(spare)])
                    found.append(f'vpmaddwd {broadcast}, {vector}, {pairs}')
                    found.append(f'vpaddd {pairs}, {target}, {target}')
                else:
                    found.append(f'vfmadd231ps {broadcast}, {vector}, {target}')
        return found

    def iteration(times: int) -> list[str]:
        """Everything between a label and the jump to it, `times` iterations at once."""
        found = [f'prefetcht0 {4 * place}(%[a])' for place in micro.prefetches(kernel)]
        behind = micro.vector_prefetches(kernel, times)
        found += [f'prefetcht0 {item * place}(%[b])' for place in behind]
        if kernel.fetch:  # a line that is on its way already is not asked for again
            asked = range(0, times * kernel.fetch, LINE_FLOATS)
            found += [f'prefetcht1 {item * place or ""}(%[next])' for place in asked]
            step = f'add ${item * times * kernel.fetch}, %[next]'
            found.append(f'lea (%[next],%[stride],{times}), %[next]' if kernel.varies else step)
        for time in range(times):
            for number, step in enumerate(kernel.steps, time * len(kernel.steps)):
                found += step_lines(number, step + time * kernel.a_step)
        found.append(f'add ${times * len(kernel.steps) * vectors * weight}, %[b]')
        found.append(f'add ${4 * times * kernel.a_step}, %[a]')
        return found

    rows, apart = _rows(kernel)

    def looped() -> list[str]:
        """An iteration whose steps are so many rows, one behind the other."""
        steps = kernel.steps[: len(kernel.steps) // rows]
        found = [f'mov ${rows}, %[rows]', '.p2align 4', '7:']
        for number, step in enumerate(steps):
            found += step_lines(number, step)
        found += [f'add ${len(steps) * vectors * weight}, %[b]', f'add ${4 * apart}, %[a]']
        found += ['dec %[rows]', 'jnz 7b', f'add ${4 * (kernel.a_step - rows * apart)}, %[a]']
        return found

    lines.append('2:')
    if unroll > 1:
        lines += [f'sub ${unroll}, %[count]', 'jl 5f', '.p2align 4', '6:', *iteration(unroll)]
        lines += [f'sub ${unroll}, %[count]', 'jge 6b', '5:', f'add ${unroll}, %[count]']
    once = looped() if rows > 1 else iteration(1)
    lines += ['test %[count], %[count]', 'jz 4f', '.p2align 4', '3:', *once]
    lines += ['dec %[count]', 'jnz 3b', '4:']
    lines += [f'vmovups {register(n)}, {offset}(%[acc])' for n, offset in places]
    lines.append('vzeroupper')
    clobbers = [f'xmm{i}' for i in range(total)] + ['cc', 'memory']
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count)'
    operands += ', [next] "+r"(next)' if kernel.fetch else ''
    operands += ', [rows] "=&r"(rows)' if rows > 1 else ''
    inputs = '[acc] "r"(acc), [resume] "r"(resume)'
    inputs += ', [stride] "r"(stride)' if kernel.varies else ''
    body = micro.asm_block(lines, operands, inputs, clobbers)
    return micro.function(kernel, ['long rows;', *body] if rows > 1 else body)


def _rows(kernel: micro.MicroKernel) -> tuple[int, int]:
    """How many rows the steps of an iteration are, all alike, and how far these are apart: where
    instructions would be too many for what cores keep of them decoded. 49 steps of 6 x 2 vectors
    took 1.3 times as long as the same in a loop on a Zen 3.
    """
    steps, plain = kernel.steps, not kernel.fetch and not micro.prefetches(kernel)
    if kernel.dtype != 'i16' or len(steps) <= LONG or not plain or kernel.b_ahead:
        return 1, 0
    for length in range(2, len(steps) // 2 + 1):
        count, rest = divmod(len(steps), length)
        apart = steps[length] - steps[0]
        if not rest and all(
            steps[i] == steps[i - length] + apart for i in range(length, len(steps))
        ):
            return count, apart
    return 1, 0
