"""AVX-512 and AVX2 micro-kernels with pixels across the lanes: rows of results go straight out.

Goes in: a `RowKernel`, which fixes every offset. Comes out: a C function

    static void NAME(const float *a, const float *b, float *out, long count, long lanes,
                     const float *bias, const float *more, const float *next)

that for each of `count` channels, each of `rows` rows of a window and each of its `steps` adds

    sums[k][v] += a[k] * b[steps[i] + vectors[v] ..]

with `a` moving behind the weights that it has read, `b` by `row` floats from one row of a window to
the next and by `channel` floats from one channel to the next. A weight is broadcast, pixels are
loaded as they lie: sums are results of neighbouring pixels, which need no transposition and no
buffer on their way into rows of the result. `bias` is added, one for each k (sums of AVX2 begin
with it), then `more`, which lies as results do; limits cut off; then k's results are stored `pitch`
floats apart, of vectors in `ends` the first `lanes` alone.

Kernels that look `ahead` ask for so many lines behind `next` with every UNROLL channels: weights
that the next tile of channels will read come from afar, and tiles of pixels share in asking for
them.

Kernels with a `corner` have two more arguments, `const float *last, float *sums`: so many pixels
more, `corner` apart from channel to channel, have channels across the lanes,

    sums[pixel][lane] = sum of a[lane] * last[pixel]

beside the others. Lanes behind the channels have what lies behind the weights.

Kernels with a `source_pitch` have a last argument, `const float *from`: pixels are read there, so
many floats apart from channel to channel, and stored to `b`, where later kernels read them. Stores
have units of their own, and lines of channels further on are asked for: such a copy takes less time
than one before the products (docs/model.md).

Every other weight is broadcast by the multiply-adds themselves on AVX-512 (isa/x86.py says why).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.isa.x86 import EMBEDDED_VECTORS, UNROLL
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.machine.isa import ISAS

SOURCE_AHEAD = 8  # channels whose pixels are asked for while one is multiplied

_REGISTER = {64: 'zmm', 32: 'ymm'}  # by bytes of a vector


@dataclass(frozen=True, slots=True)
class RowKernel:
    """Offsets in floats: `vectors` of pixels in the input, `places` of them in the result."""

    isa: str
    channels: int
    vectors: tuple[int, ...]
    places: tuple[int, ...]
    ends: tuple[int, ...]
    steps: tuple[int, ...]
    rows: int
    row: int
    channel: int
    pitch: int
    name: str
    bias: bool = False
    more: bool = False
    low: float | None = None
    high: float | None = None
    ahead: int = 0
    corner: int = 0
    source_pitch: int = 0

    def __post_init__(self) -> None:
        isa = ISAS[self.isa]
        if isa.vector_bytes not in _REGISTER or isa.arch != 'x86_64':
            raise ScheduleError(f'{self.name}: {self.isa} has no micro-kernels along rows')
        if self.source_pitch and (self.rows > 1 or len(self.steps) > 1 or self.corner):
            raise ScheduleError(
                f'{self.name}: pixels are copied where one point of a window is read alone, not '
                f'{self.rows} x {len(self.steps)} with {self.corner} more pixels'
            )
        need = registers_needed(self.channels, len(self.vectors)) + self.corner
        if need > isa.registers:
            raise ScheduleError(
                f'{self.name}: {self.channels} x {len(self.vectors)} vectors'
                f'{f" and {self.corner} more pixels" if self.corner else ""} need {need} '
                f'registers; {self.isa} has {isa.registers}: choose a smaller register tile'
            )


def registers_needed(channels: int, vectors: int) -> int:
    """Sums, the vectors of one step, and one weight."""
    return channels * vectors + vectors + 1


def emit(kernel: RowKernel) -> str:
    """[RowKernel] -> [C function with one asm block]"""
    isa = ISAS[kernel.isa]
    name, lanes, wide = _REGISTER[isa.vector_bytes], isa.lanes, isa.vector_bytes == 64
    vectors, sums = len(kernel.vectors), kernel.channels * len(kernel.vectors)

    def register(number: int) -> str:
        return f'%%{name}{number}'

    pixels = [register(sums + v) for v in range(vectors)]
    corners = [register(sums + vectors + i) for i in range(kernel.corner)]
    spare = [register(n) for n in range(sums + vectors + kernel.corner, isa.registers)]
    clear = 'vpxord' if wide else 'vxorps'
    lines = [f'{clear} {name}, {name}, {name}' for name in corners]
    if not kernel.bias or wide:
        lines += [f'{clear} {register(n)}, {register(n)}, {register(n)}' for n in range(sums)]
    else:  # what sums begin with; nothing waits for it behind them
        for k in range(kernel.channels):
            first = register(k * vectors)
            lines.append(f'vbroadcastss {4 * k}(%[bias]), {first}')
            lines += [f'vmovaps {first}, {register(k * vectors + v)}' for v in range(1, vectors)]
    embedded = wide and vectors <= EMBEDDED_VECTORS
    turn = 0

    def last_pixels(number: int) -> list[str]:
        """The last pixels, with channels across the lanes; their weights begin anywhere, so one
        vector of them is loaded once where pixels need no register.
        """
        nonlocal turn
        found, weights = [], f'{4 * number * kernel.channels}(%[a])'
        if corners and wide:
            held, turn = spare[turn % len(spare)], turn + 1
            found.append(f'vmovups {weights}, {held}')
            weights = held
        for i, target in enumerate(corners):
            pixel = f'{4 * (number * kernel.corner + i)}(%[last])'
            if wide:
                found.append(f'vfmadd231ps {pixel}%{{1to16%}}, {weights}, {target}')
                continue
            held, turn = spare[turn % len(spare)], turn + 1
            found.append(f'vbroadcastss {pixel}, {held}')
            found.append(f'vfmadd231ps {weights}, {held}, {target}')
        return found

    def iteration(times: int) -> list[str]:
        """So many rows of windows, `row` floats apart where there are several."""
        nonlocal turn
        found = []
        for number, (time, step) in enumerate((t, s) for t in range(times) for s in kernel.steps):
            first = time * (kernel.row if kernel.rows > 1 else kernel.channel) + step
            for v, place in enumerate(kernel.vectors):
                copied = f'{4 * (first + place)}(%[b])'
                if not kernel.source_pitch:
                    found.append(f'vmovups {copied}, {pixels[v]}')
                    continue
                found.append(
                    f'vmovups {4 * (time * kernel.source_pitch + place)}(%[from]), {pixels[v]}'
                )
                found.append(f'vmovups {pixels[v]}, {copied}')
                if place % LINE_FLOATS == 0:
                    further = (time + SOURCE_AHEAD) * kernel.source_pitch + place + LINE_FLOATS - 1
                    found.append(f'prefetcht0 {4 * further}(%[from])')
            for k in range(kernel.channels):
                weight = f'{4 * (number * kernel.channels + k)}(%[a])'
                targets = [register(k * vectors + v) for v in range(vectors)]
                if embedded and k % 2:
                    weight += '%{1to16%}'
                else:
                    held, turn = spare[turn % len(spare)], turn + 1
                    found.append(f'vbroadcastss {weight}, {held}')
                    weight = held
                for pixel, target in zip(pixels, targets, strict=True):
                    found.append(f'vfmadd231ps {weight}, {pixel}, {target}')
            found += last_pixels(number)
        if corners:
            found.append(f'add ${4 * times * kernel.corner}, %[last]')
        found.append(f'add ${4 * times * len(kernel.steps) * kernel.channels}, %[a]')
        return found

    if kernel.rows > 1:
        lines += ['.p2align 4', '2:', f'mov ${kernel.rows}, %[left]', '.p2align 4', '3:']
        lines += [*iteration(1), f'add ${4 * kernel.row}, %[b]', 'dec %[left]', 'jnz 3b']
        rest = 4 * (kernel.channel - kernel.rows * kernel.row)
        lines += [f'add ${rest}, %[b]', 'dec %[count]', 'jnz 2b']
    else:
        if len(kernel.steps) == 1:
            lines += [f'sub ${UNROLL}, %[count]', 'jl 5f', '.p2align 4', '6:', *iteration(UNROLL)]
            lines += [f'add ${4 * UNROLL * kernel.channel}, %[b]']
            if kernel.source_pitch:
                lines.append(f'add ${4 * UNROLL * kernel.source_pitch}, %[from]')
            if kernel.ahead:
                places = (4 * LINE_FLOATS * line for line in range(kernel.ahead))
                lines += [f'prefetcht1 {place or ""}(%[next])' for place in places]
                lines += [f'add ${4 * LINE_FLOATS * kernel.ahead}, %[next]']
            lines += [f'sub ${UNROLL}, %[count]', 'jge 6b', '5:', f'add ${UNROLL}, %[count]']
        lines += ['test %[count], %[count]', 'jz 4f', '.p2align 4', '3:', *iteration(1)]
        lines += [f'add ${4 * kernel.channel}, %[b]']
        if kernel.source_pitch:
            lines.append(f'add ${4 * kernel.source_pitch}, %[from]')
        lines += ['dec %[count]', 'jnz 3b', '4:']
    for i, register_name in enumerate(corners):
        lines.append(f'vmovups {register_name}, {4 * lanes * i}(%[sums])')
    if wide:
        lines += _finish(kernel, [pixels, spare], wide)
    else:
        lines += [f'cmp ${lanes}, %[lanes]', 'jne 7f', *_finish(kernel, [pixels, spare], wide)]
        lines += ['jmp 8f', '7:', *_finish(kernel, [pixels, spare], wide, cut=True), '8:']
    lines.append('vzeroupper')
    clobbers = [f'xmm{i}' for i in range(isa.registers)] + (['k1'] if wide else [])
    clobbers += ['cc', 'memory']
    operands = '[a] "+r"(a), [b] "+r"(b), [count] "+r"(count)'
    operands += ', [left] "=&r"(left)' if kernel.rows > 1 else ''
    operands += ', [next] "+r"(next)' if kernel.ahead else ''
    operands += ', [last] "+r"(last)' if kernel.corner else ''
    operands += ', [from] "+r"(from)' if kernel.source_pitch else ''
    inputs = '[out] "r"(out)' + (', [bias] "r"(bias)' if kernel.bias else '')
    inputs += ', [more] "r"(more)' if kernel.more else ''
    inputs += ', [mask] "r"(mask)' + ('' if wide else ', [lanes] "r"(lanes)')
    inputs += ', [sums] "r"(sums)' if kernel.corner else ''
    body = ['long left;'] if kernel.rows > 1 else []
    if wide:
        body.append('const unsigned mask = (1u << lanes) - 1;')
    else:
        body.append(f'static const int masks[] = {{{", ".join(["-1"] * lanes + ["0"] * lanes)}}};')
        body.append(f'const int *mask = masks + {lanes} - lanes;')
    body += micro.asm_block(lines, operands, inputs, clobbers)
    unused = {'bias': kernel.bias, 'more': kernel.more, 'next': kernel.ahead > 0}
    body += [f'(void){name};' for name, used in unused.items() if not used]
    head = (
        f'static __attribute__((noinline)) void {kernel.name}(const float *a, const float *b, '
        f'float *out, long count, long lanes, const float *bias, const float *more, '
        f'const float *next{", const float *last, float *sums" if kernel.corner else ""}'
        f'{", const float *from" if kernel.source_pitch else ""})'
    )
    return '\n'.join([head, '{', *(f'    {line}' for line in body), '}', ''])


def _finish(
    kernel: RowKernel, free: list[list[str]], wide: bool, cut: bool = False
) -> list[str]:  # fmt: skip
    """Bias, what else is added, limits, stores; registers in `free` hold nothing any more.

    `cut`: AVX2's vectors in `ends` are not whole. Masked stores are for those alone, since Zen
    takes 12 cycles for each.
    """
    name, vectors = '%%zmm' if wide else '%%ymm', len(kernel.vectors)
    left = [register for group in free for register in group]
    mask, lines = '%%k1', ['kmovw %[mask], %%k1'] if wide else []
    if cut:
        mask = left.pop()
        lines = [f'vmovups (%[mask]), {mask}']
    held = left.pop()

    def each(k: int):
        for v, place in enumerate(kernel.places):
            end = v in kernel.ends and (wide or cut)
            yield 4 * (k * kernel.pitch + place), f'{name}{k * vectors + v}', end

    for k in range(kernel.channels):
        if kernel.bias and wide:
            lines.append(f'vbroadcastss {4 * k}(%[bias]), {held}')
            lines += [f'vaddps {held}, {sums}, {sums}' for _, sums, _ in each(k)]
        for place, sums, end in each(k) if kernel.more else ():
            if end and wide:
                lines.append(f'vaddps {place}(%[more]), {sums}, {sums}%{{%%k1%}}')
                continue
            if end:
                lines.append(f'vmaskmovps {place}(%[more]), {mask}, {held}')
            lines.append(f'vaddps {held if end else f"{place}(%[more])"}, {sums}, {sums}')
    # A number that is none comes out where it went in: instructions give their second operand then.
    for limit, instruction in ((kernel.low, 'vmaxps'), (kernel.high, 'vminps')):
        if limit is not None:
            bits = struct.unpack('<I', struct.pack('<f', limit))[0]
            low = held.replace('zmm', 'xmm').replace('ymm', 'xmm')
            lines += [f'mov ${bits}, %k[count]', f'vmovd %k[count], {low}']
            lines.append(f'vbroadcastss {low}, {held}')
            lines += [
                f'{instruction} {sums}, {held}, {sums}'
                for k in range(kernel.channels)
                for _, sums, _ in each(k)
            ]
    for k in range(kernel.channels):
        for place, sums, end in each(k):
            if not end:
                lines.append(f'vmovups {sums}, {place}(%[out])')
            elif wide:
                lines.append(f'vmovups {sums}, {place}(%[out])%{{%%k1%}}')
            else:
                lines.append(f'vmaskmovps {sums}, {mask}, {place}(%[out])')
    return lines
