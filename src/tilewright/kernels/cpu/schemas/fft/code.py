"""The FFT schema in C: Winograd's blocks and products (schemas/winograd/code.py), other transforms.

Goes in: a plan (plan.py). Comes out: C with the ABI of kernels/cpu/abi.py.

    transform_input    image -> V[t][tile][c]: a tile of as many channels as a vector has lanes is
                       transposed into vectors, then transformed down its columns, in place, and
                       across its rows of frequencies
    transform_filter   weights -> U, in double: conj(W) by the definition, and three numbers of it
    transform_output   M[tile][t][k] -> rows[y][x][k]: across each row of frequencies, then down;
                       of either, only what outputs need

All but the weights is straight-line code over vectors, from the programs of ops/fft_programs.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from tilewright.kernels.cpu.schemas.fft.plan import FftBuffers
from tilewright.kernels.cpu.schemas.winograd.code import Transforms, generate_points, write_panels
from tilewright.kernels.cpu.schemas.winograd.linear import combination
from tilewright.kernels.cpu.schemas.winograd.plan import PointsPlan
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.fft import FftGeometry
from tilewright.ops.fft_programs import (
    LinearProgram,
    cosine,
    packed,
    points,
    results,
    sine,
    unpacked,
)


def generate(p: PointsPlan) -> str:
    """[PointsPlan] -> [C source]"""
    return generate_points(
        p, Transforms(_write_input, _write_filter, _write_products, _write_output)
    )


def _shape(p: PointsPlan) -> tuple[FftGeometry, FftBuffers]:
    assert isinstance(p.shape, FftGeometry)
    assert isinstance(p.buffers, FftBuffers)
    return p.shape, p.buffers


def straight_line(
    program: LinearProgram, inputs: Sequence[str], kind: str, prefix: str = ''
) -> tuple[list[str], list[str]]:
    """C declarations of a program's steps, and an expression for each output."""
    names = [*inputs, *(f'{prefix}v{number}' for number in range(len(program.steps)))]
    lines = []
    for name, terms in zip(names[program.inputs :], program.steps, strict=True):
        lines.append(f'const {kind} {name} = {combination([(w, names[at]) for w, at in terms])};')
    return lines, [combination([(weight, names[at])]) for weight, at in program.outputs]


def _write_program(
    writer: Writer, name: str, kind: str, program: LinearProgram,
    arguments: str, inputs: Sequence[str], outputs: Sequence[str],
) -> None:  # fmt: skip
    """A function from vectors at `inputs` to vectors at `outputs`, which may be the same."""
    writer.open(f'static __attribute__((noinline)) void {name}({arguments})')
    loaded = [f'x{number}' for number in range(program.inputs)]
    for value, place in zip(loaded, inputs, strict=True):
        writer.line(f'const {kind} {value} = *(const {kind} *)({place});')
    lines, made = straight_line(program, loaded, kind)
    for line in lines:
        writer.line(line)
    for place, text in zip(outputs, made, strict=True):
        writer.line(f'*({kind} *)({place}) = {text};')
    writer.close()
    writer.line()


def _write_input(writer: Writer, p: PointsPlan) -> None:
    shape, buffers = _shape(p)
    down, across, lanes = shape.down.length, shape.across.length, buffers.lanes
    strides = p.group.tensor(p.group.main.reads[0].tensor).strides
    column = [f'x + {i * across * lanes}' for i in range(down)]
    _write_program(writer, 'transform_column', 'vec', packed(down), 'float *x', column, column)
    row = [f'{{}} + {i * lanes}' for i in range(across)]
    for is_real, parts in ((True, ('re',)), (False, ('re', 'im'))):
        program = points(across, is_real=is_real)
        arguments = ''.join(f'const float *restrict {part}, ' for part in parts)
        _write_program(
            writer, 'real_points' if is_real else 'complex_points', 'vec', program,
            f'{arguments}float *restrict to',
            [place.format(part) for part in parts for place in row],
            [f'to + {i * buffers.v_stride}' for i in range(len(program.outputs))],
        )  # fmt: skip
    _write_gather(writer, shape, lanes, strides)
    writer.open(
        'static __attribute__((noinline)) void transform_input(const float *restrict image, '
        'float *restrict v, float *restrict work, long n, long n_end, long ph, long ph_end, '
        'long pw, long pw_end)'
    )
    writer.line('for (long b = n; b < n_end; b++)')
    writer.line('for (long p = ph; p < ph_end; p++)')
    writer.open(f'for (long q = pw; q < pw_end; q++, v += {buffers.tile_step})')
    writer.open(f'for (long c = 0; c < {shape.c}; c += {lanes})')
    writer.line(f'const float *from = image + b * {strides[0]} + c * {strides[1]};')
    top = f'p * {shape.down.m} - {shape.pad_top}'
    left = f'q * {shape.across.m} - {shape.pad_left}'
    writer.line(f'gather(from, work, min_long({lanes}, {shape.c} - c), {top}, {left});')
    writer.line(f'for (long x = 0; x < {across}; x++)')
    writer.line(f'    transform_column(work + x * {lanes});')
    step, real = across * lanes, shape.real_points * buffers.v_stride
    writer.line('real_points(work, v + c);')
    writer.line(f'real_points(work + {(down - 1) * step}, v + c + {real});')
    writer.open(f'for (long f = 0; f < {shape.complex_rows}; f++)')
    writer.line(f'const float *re = work + (2 * f + 1) * {step};')
    to = f'v + c + {2 * real} + f * {shape.complex_points * buffers.v_stride}'
    writer.line(f'complex_points(re, re + {step}, {to});')
    writer.close(4)
    writer.line()


def _write_gather(writer: Writer, shape: FftGeometry, lanes: int, strides: tuple[int, ...]) -> None:
    """`gather`: a tile of `count` channels, pixel by pixel, zeros beyond the image."""
    down, across, plane = shape.down.length, shape.across.length, strides[1]
    writer.open(
        'static void gather(const float *restrict image, float *restrict to, long count, '
        'long top, long left)'
    )
    writer.line('const long y0 = max_long(-top, 0), x0 = max_long(-left, 0);')
    writer.line(f'const long y1 = min_long({down}, {shape.height} - top);')
    writer.line(f'const long x1 = min_long({across}, {shape.width} - left);')
    writer.open(f'for (long y = 0; y < {down}; y++)')
    writer.line(f'const float *row = image + (top + y) * {strides[2]} + left;')
    writer.line(f'float *line = to + y * {across * lanes};')
    writer.line(
        f'const long held = y < y0 || y >= y1 || x1 <= x0 || count < {lanes} ? 0 : x1 - x0;'
    )
    # Zeros around what is copied: left and right of it, or everywhere.
    writer.line(f'memset(line, 0, (held ? x0 : {across}) * {4 * lanes});')
    writer.line('if (held)')
    writer.line(f'    memset(line + x1 * {lanes}, 0, ({across} - x1) * {4 * lanes});')
    writer.line('if (y < y0 || y >= y1)')
    writer.line('    continue;')
    writer.line('long lane = 0;')
    writer.line('for (; lane + 4 <= count && x1 - x0 >= 4; lane += 4)')
    writer.open('    for (long x = x0; x < x1; x += 4)')
    writer.line('const long at = min_long(x, x1 - 4);')
    block = f'row + lane * {plane} + at, {plane}, line + at * {lanes} + lane, {lanes}'
    writer.line(f'transpose4({block}, 4);')
    writer.close()
    writer.line('for (; lane < count; lane++)')
    writer.line('    for (long x = x0; x < x1; x++)')
    writer.line(f'        line[x * {lanes} + lane] = row[lane * {plane} + x];')
    writer.close(2)
    writer.line()


def _write_filter(writer: Writer, p: PointsPlan) -> None:
    """`transform_filter`: the points of one filter, in double, one every `step` floats."""
    shape, _ = _shape(p)
    down, across = shape.down, shape.across
    for name, f in (('down', down), ('across', across)):
        for kind, function in (('cos', cosine), ('sin', sine)):
            table = ', '.join(repr(function(Fraction(i, f.length))) for i in range(f.length))
            writer.line(f'static const double {kind}_{name}[{f.length}] = {{{table}}};')
    writer.line()
    writer.open('static void transform_filter(const float *filter, float *to, long step)')
    rows = down.length // 2 + 1
    writer.line(f'double re[{rows}][{across.r}], im[{rows}][{across.r}];')
    writer.open(f'for (long f = 0; f < {rows}; f++)')
    writer.open(f'for (long s = 0; s < {across.r}; s++)')
    writer.line('re[f][s] = im[f][s] = 0.0;')
    writer.open(f'for (long r = 0; r < {down.r}; r++)')
    writer.line(f'const long turn = f * r % {down.length};')
    for part, kind in (('re', 'cos'), ('im', 'sin')):
        writer.line(f'{part}[f][s] += {kind}_down[turn] * filter[r * {across.r} + s];')
    writer.close(3)
    # Rows of frequencies in the order of their points: the real ones come first.
    half = across.length // 2
    writer.open(f'for (long row = 0; row < {rows}; row++)')
    writer.line(f'const long f = row == 0 ? 0 : row == 1 ? {rows - 1} : row - 1;')
    writer.open(f'for (long e = 0; e < (row < 2 ? {half + 1} : {across.length}); e++)')
    writer.line('double a = 0.0, b = 0.0;')
    writer.open(f'for (long s = 0; s < {across.r}; s++)')
    writer.line(f'const long turn = e * s % {across.length};')
    writer.line('a += re[f][s] * cos_across[turn] - im[f][s] * sin_across[turn];')
    writer.line('b += re[f][s] * sin_across[turn] + im[f][s] * cos_across[turn];')
    writer.close()
    writer.line(f'const long real = row < 2 && (e == 0 || e == {half});')
    scale = down.length * across.length
    writer.line(f'const double scale = (real ? 1.0 : 2.0) / {scale}.0;')
    writer.line('*to = (float)(scale * a);')
    writer.line('to += step;')
    writer.line('if (real)')
    writer.line('    continue;')
    writer.line('to[0] = (float)(scale * (b - a));')
    writer.line('to[step] = (float)(scale * (a + b));')
    writer.line('to += 2 * step;')
    writer.close(3)
    writer.line()


def _write_products(writer: Writer, p: PointsPlan, first: str, last: str) -> None:
    writer.open(f'for (long t = 0; t < {p.shape.t}; t++)')
    writer.line(f'const float *from = v + t * {p.buffers.v_stride};')
    writer.line(f'const float *u = weights + t * ({p.shape.c} * held);')
    writer.line(f'float *to = m + t * {p.classes[0].weight_step};')
    write_panels(writer, p, 1, first, last)
    writer.close()


def _write_output(writer: Writer, p: PointsPlan, vectors: int) -> None:
    """`transform_output_vN`, with the arguments of Winograd's."""
    shape, _ = _shape(p)
    down, across, lanes = shape.down, shape.across, p.lanes
    width, step = vectors * lanes, p.classes[0].weight_step
    column = down.length * lanes
    for is_real, parts in ((True, ('re',)), (False, ('re', 'im'))):
        program = results(across.length, across.m, is_real=is_real)
        arguments = ''.join(f', float *restrict {part}' for part in parts)
        _write_program(
            writer, f'{"real" if is_real else "complex"}_results_v{vectors}', 'lanes_t', program,
            f'const float *restrict m{arguments}',
            [f'm + {i * step}' for i in range(program.inputs)],
            [f'{part} + {x * column}' for part in parts for x in range(across.m)],
        )  # fmt: skip
    _write_program(
        writer, f'column_results_v{vectors}', 'lanes_t', unpacked(down.length, down.m),
        'const float *restrict x, float *restrict to',
        [f'x + {i * lanes}' for i in range(down.length)],
        [f'to + {y * p.row_pitch}' for y in range(down.m)],
    )  # fmt: skip
    writer.open(
        f'static __attribute__((noinline)) void transform_output_v{vectors}('
        f'const float *restrict m, float *restrict rows, long row, long all, long first, '
        f'long columns)'
    )
    writer.line(f'float half[{across.m * column}] __attribute__((aligned(64)));')
    writer.open('for (long p = 0; p < columns; p++)')
    writer.open(f'for (long lane = 0; lane < {width}; lane += {lanes})')
    place = f'(row * all + first + p) * {p.classes[0].index_step} + lane'
    writer.line(f'const float *from = m + {place};')
    real = shape.real_points * step
    writer.line(f'real_results_v{vectors}(from, half);')
    writer.line(f'real_results_v{vectors}(from + {real}, half + {(down.length - 1) * lanes});')
    writer.open(f'for (long f = 0; f < {shape.complex_rows}; f++)')
    writer.line(f'float *re = half + (2 * f + 1) * {lanes};')
    source = f'from + {2 * real} + f * {shape.complex_points * step}'
    writer.line(f'complex_results_v{vectors}({source}, re, re + {lanes});')
    writer.close()
    writer.line(f'float *to = rows + p * {across.m * width} + lane;')
    writer.line(f'for (long x = 0; x < {across.m}; x++)')
    writer.line(f'    column_results_v{vectors}(half + x * {column}, to + x * {width});')
    writer.close(3)
    writer.line()
