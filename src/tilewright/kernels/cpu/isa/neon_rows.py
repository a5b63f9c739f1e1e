"""AArch64 NEON micro-kernels along rows that lie where they are: those of a matrix product.

A load brings four numbers of a row, which four iterations use lane by lane, so that rows need no
copy: per four iterations one load for each row beside those of the weights, and a register for each
row beside the accumulators. Where fewer than four iterations are left, numbers come one by one.
"""

from __future__ import annotations

from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.neon_address import Addresses, accumulators, add_immediate, clobbers
from tilewright.machine.isa import ISAS

TOGETHER = 4  # iterations that share a load of each row


def emit(kernel: micro.MicroKernel) -> str:
    """[MicroKernel] -> [C function with one asm block], of a kernel that `micro.along_rows`."""
    rows, vectors = len(kernel.pixels), kernel.vectors
    sums = rows * vectors
    weights = list(range(sums + rows, ISAS[kernel.isa].registers))
    lines = ['cbnz %[resume], 1f', *(f'movi v{n}.4s, #0' for n in range(sums)), 'b 2f', '1:']
    lines += accumulators(kernel, 'ldr')

    def iterations(times: int) -> list[str]:
        """So many iterations: rows, then weights, each of which is loaded a vector ahead."""
        found = _asked(kernel, times)
        addresses = Addresses('%[a]')
        letter, size = ('q', 16) if times > 1 else ('s', 4)
        for row, place in enumerate(kernel.pixels):
            operand = addresses.operand(4 * place, size, found)
            found.append(f'ldr {letter}{sums + row}, {operand}')
        turns = [(lane, v) for lane in range(times) for v in range(vectors)]

        def load(number: int) -> str:
            return f'ldr q{weights[number % len(weights)]}, [%[b], #{16 * number}]'

        found.append(load(0))
        for number, (lane, v) in enumerate(turns):
            if number + 1 < len(turns):
                found.append(load(number + 1))
            weight = weights[number % len(weights)]
            found += [
                f'fmla v{row * vectors + v}.4s, v{weight}.4s, v{sums + row}.s[{lane}]'
                for row in range(rows)
            ]
        found += add_immediate('%[b]', '%[b]', 16 * times * vectors)
        return [*found, f'add %[a], %[a], #{4 * times}']

    lines += ['2:', f'subs %[count], %[count], #{TOGETHER}', 'b.lt 5f', '6:']
    lines += [*iterations(TOGETHER), f'subs %[count], %[count], #{TOGETHER}', 'b.ge 6b', '5:']
    lines += [f'adds %[count], %[count], #{TOGETHER}', 'b.eq 4f', '3:']
    lines += [*iterations(1), 'subs %[count], %[count], #1', 'b.ne 3b', '4:']
    lines += accumulators(kernel, 'str')
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count)'
    operands += ', [next] "+r"(next)' if kernel.fetch else ''
    inputs = '[acc] "r"(acc), [resume] "r"(resume)'
    inputs += ', [stride] "r"(stride)' if kernel.varies else ''
    return micro.function(kernel, micro.asm_block(lines, operands, inputs, clobbers()))


def _asked(kernel: micro.MicroKernel, times: int) -> list[str]:
    """Ask for weights: those of later iterations, and the piece that comes next."""
    behind = micro.vector_prefetches(kernel, times)
    lines = [f'prfm pldl1keep, [%[b], #{4 * place}]' for place in behind]
    if not kernel.fetch:
        return lines
    asked = range(0, times * kernel.fetch, micro.LINE_FLOATS)
    lines += [f'prfm pldl2keep, [%[next], #{4 * place}]' for place in asked]
    if kernel.varies:
        return [*lines, f'add %[next], %[next], %[stride], lsl #{times.bit_length() - 1}']
    return [*lines, *add_immediate('%[next]', '%[next]', 4 * times * kernel.fetch)]
