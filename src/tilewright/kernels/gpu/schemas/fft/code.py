"""The fft schema: a convolution with a large filter by Fourier's transform of overlapping tiles.

Goes in: a group whose main stage is a dense convolution with stride 1, and a schedule. Comes out: a
module. Three kernels a call, the programs of ops/fft_programs.py written out:

    V[g][c][p]                  inputs of a channel's tile at the points g of ops/fft.py
    M[g][k][p] = U[g] V[g]      a matrix product for each point, by another schema
    Out                         outputs of an output channel's tile, then the epilogue

p counts the tiles of all images, innermost. A block of a transform has a few neighbours of (c, p)
or (k, p), and a thread does one column of a tile, then one row of frequencies of it, or these in
the other order; between them numbers change hands in shared memory. Threads are numbered along
columns where they touch the image or the result, and along tiles where they touch points: side by
side in memory either way. Ahead, once: U = conj(W) as three numbers for each frequency, in double,
then whatever the schema of the products packs. Decisions of a schedule:

    size   inputs of a tile each way, the length of the transforms
    ...    those of the products: `fma` is the tiled schema, others are the patch schema, whose only
           pixel dimension is p (bp)

docs/fft.md has the algorithm and its errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from tilewright.kernels.cpu.schemas.fft.code import straight_line
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Module, Step
from tilewright.kernels.gpu.schemas.fft.plan import FftPlan, block_tiles, cut, plan
from tilewright.kernels.gpu.schemas.winograd.code import (
    around,
    flat_threads,
    last_step,
    tile_of_thread,
)
from tilewright.kernels.gpu.schemas.winograd.plan import PRODUCTS, result
from tilewright.ops.fft_programs import (
    LinearProgram,
    cosine,
    packed,
    points,
    results,
    sine,
    unpacked,
)
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

THREADS = 256  # of the kernel that transforms weights


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    product = PRODUCTS[schedule.intrinsic].generate(p.product, p.schedule)
    return around(group, product, _transforms(group, schedule['size']))


@lru_cache(maxsize=64)
def _transforms(group: Group, size: int) -> tuple[Step, Step, Step]:
    """Of weights, image and products: the same for all schedules of the products."""
    p = cut(group, size)
    return Step.of(filter_kernel(p)), Step.of(input_kernel(p)), last_step(p, output_kernel(p))


def filter_kernel(p: FftPlan) -> Kernel:
    """U: a thread for each row of frequencies of each filter, by the definition."""
    shape, weights = p.shape, p.weights
    target = p.product.tensor(p.product.main.reads[1].tensor)
    size, rows, count = shape.down.length, shape.complex_rows + 2, shape.k * shape.c
    taps, across = shape.down.r, shape.across.r
    lines, grid = flat_threads(rows * count)
    for name, function in (('cosine', cosine), ('sine', sine)):
        table = ', '.join(repr(function(Fraction(i, size))) for i in range(size))
        lines.append(f'const double {name}[{size}] = {{{table}}};')
    real, whole = shape.real_points, shape.complex_points
    lines += [
        f'const int row = flat / {count}, filter = flat % {count};',
        f'const int f = row == 0 ? 0 : row == 1 ? {size // 2} : row - 1;',
        f'const GLOBAL float *const from = @{weights.name} + filter * {taps * across};',
        f'const int place = row < 2 ? row * {real} : {2 * real} + (row - 2) * {whole};',
        f'GLOBAL float *to = @{target.name} + place * {count} + filter;',
        f'double re[{across}], im[{across}];',
        f'for (int s = 0; s < {across}; s++) {{',
        '    re[s] = im[s] = 0.0;',
        f'    for (int r = 0; r < {taps}; r++) {{',
        f'        const double weight = from[r * {across} + s];',
        f'        re[s] += cosine[f * r % {size}] * weight;',
        f'        im[s] += sine[f * r % {size}] * weight;',
        '    }',
        '}',
        f'for (int e = 0; e < (row < 2 ? {size // 2 + 1} : {size}); e++) {{',
        '    double a = 0.0, b = 0.0;',
        f'    for (int s = 0; s < {across}; s++) {{',
        f'        const double c = cosine[e * s % {size}], d = sine[e * s % {size}];',
        '        a += re[s] * c - im[s] * d;',
        '        b += re[s] * d + im[s] * c;',
        '    }',
        f'    const bool single = row < 2 && (e == 0 || e == {size // 2});',
        f'    const double scale = (single ? 1.0 : 2.0) / {size * size}.0;',
        '    to[0] = (float)(scale * a);',
        f'    to += {count};',
        '    if (!single) {',
        '        to[0] = (float)(scale * (b - a));',
        f'        to[{count}] = (float)(scale * (a + b));',
        f'        to += {2 * count};',
        '    }',
        '}',
    ]
    args = (pieces.argument(weights), pieces.argument(target, written=True))
    return Kernel('fft_filter', args, '\n'.join(lines), grid, THREADS)


def _program(program: LinearProgram, inputs: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Loads, steps and stores of a program."""
    names = [f'x{number}' for number in range(program.inputs)]
    loads = [f'const float {x} = {text};' for x, text in zip(names, inputs, strict=True)]
    lines, made = straight_line(program, names, 'float')
    return [*loads, *lines, *(f'{to} = {x};' for to, x in zip(targets, made, strict=True))]


def _rows(p: FftPlan, real: Sequence[str], whole: Sequence[str]) -> list[str]:
    """The two real rows of frequencies, and the complex ones behind them."""
    rows = p.shape.complex_rows + 2
    return [
        'if (row < 2) {', *pieces.indented(real),
        f'}} else if (row < {rows}) {{', *pieces.indented(whole), '}',
    ]  # fmt: skip


def _by_columns(p: FftPlan, channel: str, channels: int, body: Sequence[str]) -> list[str]:
    """`body` for column x of tile b of the block, numbered along columns."""
    size = p.shape.across.length
    return [
        '{',
        f'    const int b = THREAD / {size}, x = THREAD % {size};',
        f'    const int flat = BLOCK_X * {block_tiles(size)} + b;',
        *pieces.indented(tile_of_thread(p, channel, channels)),
        *pieces.indented(body),
        '}',
    ]


def _by_tiles(p: FftPlan, count: int, body: Sequence[str]) -> list[str]:
    """`body` for a row of frequencies of tile b of the block, numbered along tiles."""
    tiles = block_tiles(p.shape.across.length)
    return [
        '{',
        f'    const int b = THREAD % {tiles}, row = THREAD / {tiles};',
        f'    const int flat = BLOCK_X * {tiles} + b;',
        f'    if (flat < {count}) {{',
        *pieces.indented(body, 2),
        '    }',
        '}',
    ]


def input_kernel(p: FftPlan) -> Kernel:
    """V: down each column of a tile, then across each row of frequencies."""
    shape, image = p.shape, p.image
    size, tiles = shape.across.length, block_tiles(shape.across.length)
    target = p.product.tensor(p.product.main.reads[0].tensor)
    count, pitch, step = shape.c * p.tiles, block_tiles(size) + 1, target.strides[0]
    plane = shape.height * shape.width
    columns = [
        f'const int top = py * {shape.down.m} - {shape.pad_top};',
        f'const int left = px * {shape.across.m} - {shape.pad_left} + x;',
        f'const bool inside = flat < {count} && (unsigned)left < {shape.width}u;',
        f'const int at = (n * {image.shape[1]} + c) * {plane} + top * {shape.width} + left;',
        f'SHARED float *const to = kept + x * {pitch} + b;',
    ]
    loads = [
        f'inside && (unsigned)(top + {i}) < {shape.height}u ? '
        f'(@{image.name})[at + {i * shape.width}] : 0.0f'
        for i in range(size)
    ]
    slots = [f'to[{j * size * pitch}]' for j in range(size)]
    columns += _program(packed(size), loads, slots)
    real, whole = points(size, is_real=True), points(size, is_real=False)
    row = [f're[{x * pitch}]' for x in range(size)]
    rows = _rows(
        p,
        [
            f'const SHARED float *const re = kept + row * {(size - 1) * size * pitch} + b;',
            f'GLOBAL float *const to = @{target.name} + flat + row * {shape.real_points * step};',
            *_program(real, row, [f'to[{i * step}]' for i in range(len(real.outputs))]),
        ],
        [
            f'const SHARED float *const re = kept + (2 * row - 3) * {size * pitch} + b;',
            f'const SHARED float *const im = re + {size * pitch};',
            f'GLOBAL float *const to = @{target.name} + flat + {2 * shape.real_points * step} + '
            f'(row - 2) * {shape.complex_points * step};',
            *_program(
                whole, [*row, *(text.replace('re', 'im') for text in row)],
                [f'to[{i * step}]' for i in range(len(whole.outputs))],
            ),
        ],
    )  # fmt: skip
    lines = [
        *_by_columns(p, 'c', shape.c, columns), 'BARRIER;', *_by_tiles(p, count, rows)
    ]  # fmt: skip
    args = (pieces.argument(image), pieces.argument(target, written=True))
    return Kernel(
        'fft_input', args, '\n'.join(lines), (-(-count // tiles), 1, 1), tiles * size,
        (('kept', size * size * pitch),),
    )  # fmt: skip


def output_kernel(p: FftPlan) -> Kernel:
    """Out: across each row of frequencies, then down each column of outputs and the epilogue."""
    shape, source = p.shape, p.product.output
    down, across = shape.down, shape.across
    size, tiles = across.length, block_tiles(across.length)
    count, pitch, step = shape.k * p.tiles, block_tiles(size) + 1, source.strides[0]
    real = results(size, across.m, is_real=True)
    whole = results(size, across.m, is_real=False)
    line = across.m * pitch
    row = [f'to[{x * pitch}]' for x in range(across.m)]
    rows = _rows(
        p,
        [
            f'const GLOBAL float *const from = @{source.name} + flat + '
            f'row * {shape.real_points * step};',
            f'SHARED float *const to = kept + row * {(size - 1) * line} + b;',
            *_program(real, [f'from[{i * step}]' for i in range(real.inputs)], row),
        ],
        [
            f'const GLOBAL float *const from = @{source.name} + flat + '
            f'{2 * shape.real_points * step} + (row - 2) * {shape.complex_points * step};',
            f'SHARED float *const to = kept + (2 * row - 3) * {line} + b;',
            *_program(
                whole, [f'from[{i * step}]' for i in range(whole.inputs)],
                [*row, *(f'to[{line + x * pitch}]' for x in range(across.m))],
            ),
        ],
    )  # fmt: skip
    columns = [
        f'const int w = px * {across.m} + x;',
        f'const SHARED float *const from = kept + x * {pitch} + b;',
        f'if (x < {across.m} && flat < {count} && w < {shape.out_w}) {{',
        *pieces.indented(_column(p, [f'from[{j * line}]' for j in range(down.length)])),
        '}',
    ]
    lines = [
        *_by_tiles(p, count, rows), 'BARRIER;', *_by_columns(p, 'k', shape.k, columns)
    ]  # fmt: skip
    args = (
        Array(source.name, source.dims, source.shape),
        *pieces.epilogue_arrays(p.group, p.epilogue),
        pieces.argument(p.group.output, written=True),
    )
    return Kernel(
        'fft_output', args, '\n'.join(lines), (-(-count // tiles), 1, 1), tiles * size,
        (('kept', size * line),), helpers(p.group, p.epilogue),
    )  # fmt: skip


def _column(p: FftPlan, inputs: Sequence[str]) -> list[str]:
    """One column of a tile's outputs through the epilogue."""
    down = p.shape.down
    lines = _program(
        unpacked(down.length, down.m), inputs, [f'const float y{y}' for y in range(down.m)]
    )
    for y in range(down.m):
        guard = f'if (py * {down.m} + {y} < {p.shape.out_h}) ' if p.shape.out_h % down.m else ''
        stored = [
            f'const int h = py * {down.m} + {y};',
            f'const float value = y{y};',
            *pieces.epilogue_lines(p.epilogue),
            f'{pieces.element(p.group, result(p.group))} = {p.epilogue.expression};',
        ]
        lines += [f'{guard}{{', *pieces.indented(stored), '}']
    return lines
