"""The micro-kernel of bytes: a run of pixels by a panel of channels, on AVX2 or AVX-512.

    of a unit, eight channels of the image, for every pixel and vector of channels of the result

        vbroadcastss x0, s ; vbroadcastss x1, t             four numbers of a pixel each
        vpmaddubsw w0, s, s ; vpmaddubsw w1, t, t           pairs of products in 16 bits,
        vpaddw t, s, s                                      two of them,
        vpmaddwd ones, s, s ; vpaddd s, sum, sum            added up in 32

    the same where groups of channels stand alone

        vpmaddubsw w0, s, s ; vpmaddwd ones, s, s ; vpaddd s, sum, sum      and of t

    of an entry of a list, four channels: where weights lie, then four numbers of every pixel

        vpmaddubsw w, s, t ; vpmaddwd ones, t, t ; vpaddd t, sum, sum

Goes in: the plan. Comes out: a C function with one asm block. In words of i16 the same products of
a unit take eight instructions (kernels/cpu/isa/x86.py), here five.
"""

from __future__ import annotations

from tilewright.kernels.cpu.isa.micro import asm_block
from tilewright.kernels.cpu.schemas.byte_pairs.plan import BytePairsPlan
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import ISAS

_REGISTER = {64: 'zmm', 32: 'ymm'}


def write_micro(writer: Writer, p: BytePairsPlan) -> None:
    """`products`: sums of a run of pixels with a panel of weights."""
    isa, run, vectors = ISAS[p.schedule.isa], p.run, p.vectors
    size, sums = isa.vector_bytes, p.run * p.vectors

    def register(number: int) -> str:
        return f'%%{_REGISTER[size]}{number}'

    ones, *free = (register(n) for n in range(sums, isa.registers))

    def unit(added: bool) -> list[str]:
        """The instructions of a unit, whose products are `added` in 16 bits, or group by group."""
        turns, held = free[:4], free[4 : 4 + p.held]
        # Weights of the first group, then of the second.
        places = [f'{size * n}(%[w])' for n in range(2 * vectors)]
        found = [f'{load} {places[n]}, {r}' for n, r in enumerate(held)]
        weights = [*held, *places[len(held) :]]
        for pixel in range(run):
            first, second, s, t = turns
            turns = [s, t, first, second]
            found.append(f'vbroadcastss {8 * pixel}(%[a]), {first}')
            found.append(f'vbroadcastss {8 * pixel + 4}(%[a]), {second}')
            for v in range(vectors):
                if v + 1 == vectors:  # the last takes the place of what was broadcast
                    s, t = first, second
                total = register(pixel * vectors + v)
                found.append(f'vpmaddubsw {weights[v]}, {first}, {s}')
                found.append(f'vpmaddubsw {weights[vectors + v]}, {second}, {t}')
                if added:
                    found.append(f'vpaddw {t}, {s}, {s}')
                    found.append(f'vpmaddwd {ones}, {s}, {s}')
                else:
                    found.append(f'vpmaddwd {ones}, {s}, {s}')
                    found.append(f'vpmaddwd {ones}, {t}, {t}')
                    found.append(f'vpaddd {t}, {total}, {total}')
                found.append(f'vpaddd {s}, {total}, {total}')
        if p.asks_ahead:
            found += ['prefetcht1 (%[ahead])', 'add %[step], %[ahead]']
        return [*found, f'add ${8 * run}, %[a]', f'add ${2 * vectors * size}, %[w]']

    load = f'vmovdqu{"8" * (size == 64)}'
    lines = [f'vpxor {register(n)}, {register(n)}, {register(n)}' for n in range(sums)]
    if size == 64:
        lines = [line.replace('vpxor', 'vpxord') for line in lines]
    lines += [f'vpbroadcastd %[one], {ones}', 'mov %[b], %[w]']
    lines += ['test %[alone], %[alone]', 'jnz 6f', '.p2align 4', '2:']
    lines += unit(added=True)
    lines += ['dec %[units]', 'jnz 2b', 'jmp 3f', '.p2align 4', '6:']
    lines += unit(added=False)
    lines += ['dec %[units]', 'jnz 6b', '3:', 'test %[count], %[count]', 'jz 5f']
    lines += ['.p2align 4', '4:', 'movslq (%[list]), %[w]']
    weights = [f'{size * v}(%[b],%[w])' for v in range(vectors)]
    turns, held = free[:3], free[3 : 3 + vectors]
    lines += [f'{load} {weights[n]}, {r}' for n, r in enumerate(held)]
    weights = [*held, *weights[len(held) :]]
    for pixel in range(run):
        word, made, other = turns
        turns = [made, other, word]
        lines.append(f'vbroadcastss {4 * pixel + 4}(%[list]), {word}')
        for v in range(vectors):
            if v + 1 == vectors:
                made = word
            total = register(pixel * vectors + v)
            lines += [
                f'vpmaddubsw {weights[v]}, {word}, {made}',
                f'vpmaddwd {ones}, {made}, {made}',
                f'vpaddd {made}, {total}, {total}',
            ]
    lines += [f'add ${4 * p.entry_words}, %[list]', 'dec %[count]', 'jnz 4b', '5:']
    lines += [f'{load} {register(n)}, {size * n}(%[sums])' for n in range(sums)]
    lines.append('vzeroupper')
    clobbers = [f'xmm{i}' for i in range(isa.registers)] + ['cc', 'memory']
    writer.open(
        'static __attribute__((noinline)) void products(const uint8_t *a, const int8_t *b, '
        'int32_t *sums, long alone, const int32_t *list, long count, const int8_t *ahead, '
        'long step)'
    )
    writer.line('const int32_t one = 0x10001;')
    writer.line('const int8_t *w;')
    writer.line(f'long units = {p.units};')
    operands = (
        '[a] "+r"(a), [units] "+r"(units), [list] "+r"(list), [count] "+r"(count), [w] "=&r"(w)'
    )
    operands += ', [ahead] "+r"(ahead)'
    inputs = '[b] "r"(b), [sums] "r"(sums), [one] "m"(one), [alone] "r"(alone), [step] "r"(step)'
    writer.lines += [f'    {line}' for line in asm_block(lines, operands, inputs, clobbers)]
    writer.close()
    writer.line()
