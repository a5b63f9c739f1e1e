"""The last few pixels of an image, with channels across the lanes.

Goes in: channels of a register tile, a number of pixels. Comes out: a C function

    static void NAME(const float *a, const float *b, float *to, long count)

    to[pixel][lane] = sum of a[c][lane] * b[c][pixel] over `count` channels c of the image

of packed weights as micro-kernels along rows read them, and the pixels of every channel side by
side. A vector of which few lanes are pixels takes as many multiply-adds as a whole one, and alone
it makes each sum wait for the one before: 4 of 196 pixels took 5% of the time on a Zen 3. Lanes
behind the channels of a tile have what lies behind its weights, and nobody reads them.

Where registers are left, the micro-kernel of the pixels before them computes them as well
(isa/x86_rows.py), while it waits for its multiply-adds: here every weight is a line of its own.
"""

from __future__ import annotations

from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import Isa


def corner_pixels(pixels: int, lanes: int) -> int:
    """How many pixels behind the last whole vector are computed so: few, or none."""
    rest = pixels % lanes
    return rest if rest <= lanes // 2 else 0


def corner_name(isa: str, channels: int, pixels: int) -> str:
    return f'corner_{isa}_k{channels}_p{pixels}'


def times_written(isa: Isa, pixels: int) -> int:
    """Channels of the image that have sums of their own, so that none waits for the one before."""
    wanted, times = isa.fma_per_cycle * isa.fma_latency_cycles, 1
    while times * pixels < wanted and (2 * times + 1) * pixels < isa.registers:
        times *= 2
    return times


def write_corner(writer: Writer, isa: Isa, channels: int, pixels: int) -> None:
    """The function for so many channels and pixels; `row_v` is a vector of all lanes."""
    times = times_written(isa, pixels)
    writer.open(
        f'static __attribute__((noinline)) void {corner_name(isa.name, channels, pixels)}'
        '(const float *a, const float *b, float *to, long count)'
    )
    names = [[f's{t}_{i}' for i in range(pixels)] for t in range(times)]
    for each in names:
        writer.line(f'row_v {", ".join(f"{name} = {{0}}" for name in each)};')

    def step(number: int) -> None:
        place = f'*(const row_v *)(a + {number * channels})'
        writer.line(f'const row_v w{number} = {place};')
        for i, name in enumerate(names[number]):
            writer.line(f'{name} += w{number} * b[{number * pixels + i}];')

    if times > 1:
        advance = f'count -= {times}, a += {times * channels}, b += {times * pixels}'
        writer.open(f'for (; count >= {times}; {advance})')
        for number in range(times):
            step(number)
        writer.close()
    writer.open(f'for (; count > 0; count--, a += {channels}, b += {pixels})')
    step(0)
    writer.close()
    for i in range(pixels):
        text = ' + '.join(each[i] for each in names)
        writer.line(f'*(row_v *)(to + {i * isa.lanes}) = {text};')
    writer.close()
    writer.line()
