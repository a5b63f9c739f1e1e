"""AArch64 micro-kernels of f16: `fmla v.8h` by element, sums of a call added up in float32.

A word of the image holds two neighbours of a reduction. It is loaded once and both of its lanes are
used, each with the vectors that belong to it; words that are consecutive are loaded together. The
lane of an f16 is one of the lower sixteen registers, so that words stand there, and accumulators
behind them. Cores without a multiply-add that widens add in f16: how many products that may be is a
decision of the schedule, which is how long a call is (kernels/cpu/schemas/half). Where one call has
all of a sum, what follows it may be computed in registers, too (`micro.Finish`). Where sums of
calls are few and are transformed in f16 (kernels/cpu/schemas/winograd_half), they stay f16.
"""

from __future__ import annotations

import numpy as np

from tilewright.kernels.cpu.half_epilogue import BYTES, ONE_APART, ONE_APART_BITS
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.neon import LETTER, chunks, prefetch_pixels
from tilewright.kernels.cpu.isa.neon_address import (
    ADDRESS_REGISTERS,
    Addresses,
    add_immediate,
    clobbers,
)
from tilewright.machine.isa import ISAS
from tilewright.ops.dtypes import limits
from tilewright.ops.stored import Stored

LOW = 16  # registers that may be the element of a multiply-add of f16
TOGETHER = 2  # loads whose multiply-adds take turns, so that none waits for its own accumulator


def emit(kernel: micro.MicroKernel) -> str:
    """[MicroKernel] -> [C function with one asm block]"""
    pixels, vectors = len(kernel.pixels), kernel.vectors
    loaded = list(chunks(kernel.pixels))
    spare = ISAS[kernel.isa].registers - (pixels + 2) * vectors
    passed = registers_finishing(kernel.finish) - 2 * vectors if kernel.finish else 0
    words = list(range(min(spare, LOW, max(TOGETHER, len(loaded), passed))))
    weights = len(words)
    first = weights + 2 * vectors  # of the accumulators

    lines = [f'movi v{first + i}.4s, #0' for i in range(pixels * vectors)]
    lines += ['cbz %[count], 4f', '3:']
    addresses = Addresses('%[a]')
    lines += prefetch_pixels(kernel)
    lines += [f'prfm pldl1keep, [%[b], #{4 * place}]' for place in micro.vector_prefetches(kernel)]
    taken = 0
    for number, step in enumerate(kernel.steps):
        for v in range(2 * vectors):
            lines.append(f'ldr q{weights + v}, [%[b], #{16 * (number * 2 * vectors + v)}]')
        together = min(TOGETHER, len(words))
        for start in range(0, len(loaded), together):
            group = loaded[start : start + together]
            held = []
            for chunk in group:
                register = words[taken % len(words)]
                taken, size = taken + 1, len(chunk)
                offset = 4 * (step + kernel.pixels[chunk[0]])
                operand = addresses.operand(offset, 4 * size, lines)
                lines.append(f'ldr {LETTER[size]}{register}, {operand}')
                held.append(register)
            for half in (0, 1):
                for chunk, register in zip(group, held, strict=True):
                    for place, pixel in enumerate(chunk):
                        for v in range(vectors):
                            target = first + pixel * vectors + v
                            factor = weights + half * vectors + v
                            element = f'v{register}.h[{2 * place + half}]'
                            lines.append(f'fmla v{target}.8h, v{factor}.8h, {element}')
    lines += add_immediate('%[b]', '%[b]', len(kernel.steps) * vectors * 32)
    lines += add_immediate('%[a]', '%[a]', 4 * kernel.a_step)
    lines += ['subs %[count], %[count], #1', 'b.ne 3b', '4:']
    inputs = '[acc] "r"(acc), [resume] "r"(resume)'
    if kernel.finish:
        inputs = '[out] "r"(out), [bias] "r"(bias), [more] "r"(more)'
        lines += _results(kernel, kernel.finish, first)
    else:
        sums = _narrow_sums if kernel.accumulation == 'f16' else _sums
        lines += ['cbnz %[resume], 5f', *sums(kernel, first, False), 'b 6f']
        lines += ['5:', *sums(kernel, first, True), '6:']
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count)'
    return micro.function(kernel, micro.asm_block(lines, operands, inputs, clobbers()))


def _sums(kernel: micro.MicroKernel, first: int, resume: bool) -> list[str]:
    """Every accumulator widened to float32 and stored, or added to what acc has."""
    lines: list[str] = []
    reads, writes = Addresses('%[acc]'), Addresses('%[acc]')
    free = list(range(first))  # words and weights
    turn = 0
    for p, offset in enumerate(kernel.acc):
        for v in range(kernel.vectors):
            register = first + p * kernel.vectors + v
            for half, (widen, kind) in enumerate((('fcvtl', '4h'), ('fcvtl2', '8h'))):
                place = 4 * offset + 32 * v + 16 * half
                wide = free[turn % len(free)]
                lines.append(f'{widen} v{wide}.4s, v{register}.{kind}')
                turn += 1
                if resume:
                    held = free[turn % len(free)]
                    turn += 1
                    lines.append(f'ldr q{held}, {reads.operand(place, 16, lines)}')
                    lines.append(f'fadd v{wide}.4s, v{wide}.4s, v{held}.4s')
                    # One base serves both: the same place is written next.
                    writes.register, writes.base = reads.register, reads.base
                lines.append(f'str q{wide}, {writes.operand(place, 16, lines)}')
    return lines


def _narrow_sums(kernel: micro.MicroKernel, first: int, resume: bool) -> list[str]:
    """Every accumulator stored as it is, or added in f16 to what acc has: sums of runs are few."""
    lines: list[str] = []
    reads, writes = Addresses('%[acc]'), Addresses('%[acc]')
    for p, offset in enumerate(kernel.acc):
        for v in range(kernel.vectors):
            register, place = first + p * kernel.vectors + v, 4 * offset + 16 * v
            if resume:
                held = (p * kernel.vectors + v) % first
                lines.append(f'ldr q{held}, {reads.operand(place, 16, lines)}')
                lines.append(f'fadd v{register}.8h, v{register}.8h, v{held}.8h')
                writes.register, writes.base = reads.register, reads.base
            lines.append(f'str q{register}, {writes.operand(place, 16, lines)}')
    return lines


def _results(kernel: micro.MicroKernel, finish: micro.Finish, first: int) -> list[str]:
    """Every accumulator with what is added to it, cut off, and stored. Words and weights are free:
    at least three registers.
    """
    lines: list[str] = []
    pixels, vectors = len(kernel.pixels), kernel.vectors
    for v in range(vectors if finish.bias else 0):
        low, high = 2 * v % (first - 1), 2 * v % (first - 1) + 1
        lines += [f'ldr q{low}, [%[bias], #{32 * v}]', f'ldr q{high}, [%[bias], #{32 * v + 16}]']
        lines += [f'fcvtn v{low}.4h, v{low}.4s', f'fcvtn2 v{low}.8h, v{high}.4s']
        for register in range(first + v, first + pixels * vectors, vectors):
            lines.append(f'fadd v{register}.8h, v{register}.8h, v{low}.8h')
    kept: dict[str, int] = {}  # what every result is cut off at and quantised by -> its register

    def hold(name: str, bits: int) -> None:
        lines.extend((f'mov w13, #{bits}', f'dup v{len(kept)}.8h, w13'))
        kept[name] = len(kept)

    for name, limit in _limits(finish):
        hold(name, int(np.float16(limit).view(np.uint16)))
    cuts, stored = dict(kept), finish.stored
    if stored:
        start, *_ = BYTES[stored.dtype]
        for name, number in (('inverse', stored.inverse), ('start', _start(stored))):
            hold(name, int(np.float16(number).view(np.uint16)))
        hold('from', ONE_APART_BITS + start)
    spare = range(len(kept), first)
    reads = Addresses('%[more]', ADDRESS_REGISTERS[:2])
    writes = Addresses('%[out]', ADDRESS_REGISTERS[2:])
    for number, (p, v) in enumerate((p, v) for p in range(pixels) for v in range(vectors)):
        place, register = 2 * finish.out[p] + 16 * v, first + p * vectors + v
        other = spare[number % len(spare)]
        if finish.more:
            lines.append(f'ldr q{other}, {reads.operand(place, 16, lines)}')
            lines.append(f'fadd v{register}.8h, v{register}.8h, v{other}.8h')
        if stored:
            lines.append(f'mov v{other}.16b, v{kept["start"]}.16b')
            lines.append(f'fmla v{other}.8h, v{register}.8h, v{kept["inverse"]}.8h')
            register = other
        lines += [f'{name} v{register}.8h, v{register}.8h, v{at}.8h' for name, at in cuts.items()]
        if stored:
            narrow = 'sqxtun' if stored.dtype == 'u8' else 'sqxtn'
            lines.append(f'sqsub v{register}.8h, v{register}.8h, v{kept["from"]}.8h')
            lines.append(f'{narrow} v{register}.8b, v{register}.8h')
            lines.append(f'str d{register}, {writes.operand(place // 2, 8, lines)}')
        else:
            lines.append(f'str q{register}, {writes.operand(place, 16, lines)}')
    return lines


def registers_finishing(finish: micro.Finish) -> int:
    """Registers beside those of sums that results pass through."""
    return max(3, len(_limits(finish)) + (3 if finish.stored else 0) + 1)


def _start(stored: Stored) -> int:
    return ONE_APART + BYTES[stored.dtype][0] + stored.zero


def _limits(finish: micro.Finish) -> list[tuple[str, float]]:
    """What results are cut off at: as f16, or where they are quantised as the sum that has the
    whole number in its bits. Rounding is monotone, so that both give the same; limits that the
    type has itself go.
    """
    found = [(n, x) for n, x in (('fmax', finish.low), ('fmin', finish.high)) if x is not None]
    stored = finish.stored
    if not stored:
        return found
    low, high = limits(stored.dtype)
    made = []
    for name, limit in found:
        whole = round(float(np.float16(limit)) * stored.inverse + stored.zero)
        inside = whole > low if name == 'fmax' else whole < high
        if inside:
            made.append((name, float(_start(stored) - stored.zero + whole)))
    return made
