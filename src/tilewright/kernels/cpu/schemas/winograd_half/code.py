"""The Winograd schema of f16 in C: blocks of tiles through a thread's own scratch.

    blocks of tiles      transform_input: eight channels at a time     -> V[t][tile][c]
      panels of k          micro-kernels  V[t] x U[panel][t]           -> M[t][tile][lanes]
                           transform_output, epilogue, NHWC store

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
All of it is f16: channels are innermost, so that both transforms work on vectors as they lie in
memory. Tiles are numbered through images, rows and columns; threads have equal numbers of them, and
so have the blocks of a thread.
"""

from __future__ import annotations

import re

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.half_epilogue import LANES
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.schemas.winograd.linear import linear
from tilewright.kernels.cpu.schemas.winograd.runs import open_blocks, write_products
from tilewright.kernels.cpu.schemas.winograd_half.plan import STEPS, HalfTilesPlan
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.winograd_matrices import Matrix

WEIGHTS_AHEAD = 2048  # floats: weights come from afar, faster than hardware asks for them
_NUMBER = re.compile(r'([\d.]+(?:e-?\d+)?)f\b')


def generate(p: HalfTilesPlan) -> str:
    """[HalfTilesPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    p.epilogue.write_functions(writer)
    writer.line(f'typedef f16 half_v __attribute__((vector_size({2 * LANES}), may_alias));')
    writer.line()
    for run in sorted({r for runs in p.runs.values() for r in runs}):
        writer.lines += [*micro.emit(_micro(p, run)).splitlines(), '']
    write_products(
        writer, p.schedule.isa, p.vectors, p.runs,
        lambda tile: (tile * p.pitch // 2, tile * p.width // 2),
    )  # fmt: skip
    _write_input(writer, p)
    _write_output(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def _micro(p: HalfTilesPlan, run: int) -> micro.MicroKernel:
    return micro.MicroKernel(
        p.schedule.isa,
        tuple(number * p.pitch // 2 for number in range(run)),
        p.vectors,
        tuple(range(STEPS)),
        STEPS,
        tuple(number * p.width // 2 for number in range(run)),
        micro.micro_name(p.schedule.isa, (run,), p.vectors),
        b_ahead=WEIGHTS_AHEAD,
        a_ahead=False,
        dtype='f16',
        accumulation='f16',
    )


def _linear(matrix: Matrix, inputs: list[str], outputs: list[str], prefix: str) -> list[str]:
    """outputs = matrix * inputs on vectors of f16."""
    lines = linear(matrix, inputs, outputs, 'half_v', prefix)
    return [_NUMBER.sub(r'(f16)\1', line) for line in lines]


def _write_input(writer: Writer, p: HalfTilesPlan) -> None:
    """One tile of all channels; rows outside are zeros, and so are columns."""
    shape, f = p.shape, p.shape.down
    t, c, depth = f.t, p.groups * shape.c, p.depth
    writer.line(f'static const f16 nothing[{p.groups * p.channels}];')
    writer.line()
    writer.open(
        'static __attribute__((noinline)) void transform_input('
        'const f16 *image, long y, long x, f16 *v)'
    )
    writer.line(f'const f16 *rows[{t}];')
    writer.line(f'long steps[{t}];')
    writer.open(f'for (long i = 0; i < {t}; i++)')
    writer.line(f'const int inside = (unsigned long)(y + i) < {shape.height}ul;')
    writer.line(f'rows[i] = inside ? image + ((y + i) * {shape.width} + x) * {depth} : nothing;')
    writer.line(f'steps[i] = inside ? {depth} : 0;')
    writer.close()
    writer.line(f'const long low = max_long(0, -x), high = min_long({t}, {shape.width} - x);')
    writer.line(f'half_v half[{t}][{t}] = {{0}};')
    for whole in (True, False):
        if c < LANES if whole else c % LANES == 0:
            continue
        end = c - c % LANES
        writer.open(f'for (long c = 0; c < {end}; c += {LANES})' if whole else '')
        if not whole:
            writer.line(f'const long c = {end}, count = {c - end};')
        writer.open('for (long j = low; j < high; j++)')
        for i in range(t):
            place = f'rows[{i}] + j * steps[{i}] + c'
            text = f'take_f16({place})' if whole else f'first_f16({place}, count)'
            writer.line(f'const half_v d{i} = (half_v){text};')
        for line in _linear(f.bt, [f'd{i}' for i in range(t)], [f'b{i}' for i in range(t)], 'p_'):
            writer.line(line)
        for i in range(t):
            writer.line(f'half[{i}][j] = b{i};')
        writer.close()
        writer.open(f'for (long i = 0; i < {t}; i++)')
        inputs, outputs = [f'half[i][{j}]' for j in range(t)], [f'b{j}' for j in range(t)]
        for j in range(t):
            writer.line(f'const half_v d{j} = {inputs[j]};')
        for line in _linear(f.bt, [f'd{j}' for j in range(t)], outputs, 'p_'):
            writer.line(line)
        for j in range(t):
            place = f'v + (i * {t} + {j}) * {p.block * p.pitch} + c'
            writer.line(f'put_f16({place}, (float16x8_t)b{j});')
        writer.close(2)
    writer.close()
    writer.line()


def _write_output(writer: Writer, p: HalfTilesPlan) -> None:
    """One tile of the channels of a panel, through what follows, into the result."""
    shape, f = p.shape, p.shape.down
    t, m, result = f.t, f.m, C_TYPES[p.group.output.dtype]
    strides = access_strides(p.group, p.group.main.write)[0]
    writer.open(
        f'static __attribute__((noinline)) void transform_output(const f16 *m, {result} *out, '
        f'long rows, long columns, long lanes{p.epilogue.pointers()})'
    )
    for whole in (True, False):
        if not whole and shape.k % LANES == 0:
            continue
        writer.open(
            f'for (long k = 0; k + {LANES} <= lanes; k += {LANES})' if whole
            else f'if (lanes % {LANES})'
        )  # fmt: skip
        if not whole:
            writer.line(f'const long k = lanes / {LANES} * {LANES}, count = lanes - k;')
        writer.line(f'half_v half[{m}][{t}];')
        writer.open(f'for (long j = 0; j < {t}; j++)')
        for i in range(t):
            place = f'm + ({i * t} + j) * {p.block * p.width} + k'
            writer.line(f'const half_v d{i} = (half_v)take_f16({place});')
        names = [f'd{i}' for i in range(t)], [f'a{i}' for i in range(m)]
        for line in _linear(f.at, *names, 'p_'):
            writer.line(line)
        for i in range(m):
            writer.line(f'half[{i}][j] = a{i};')
        writer.close()
        writer.open('for (long i = 0; i < rows; i++)')
        for j in range(t):
            writer.line(f'const half_v d{j} = half[i][{j}];')
        for line in _linear(f.at, *names, 'p_'):
            writer.line(line)
        for j in range(m):
            if j:
                writer.open(f'if (columns > {j})')

            def at(item: Operand, j: int = j) -> str:
                if p.epilogue.kind(item) == 'f16' != item.dtype:
                    return f'{item.name} + k'
                steps = [scaled('i', item.stride('h')), str(j * item.stride('w'))]
                return total([item.name, *steps, scaled('k', item.stride('k'))])

            place = total(['out', scaled('i', strides['h']), str(j * strides['w']), 'k'])
            p.epilogue.write_result(writer, f'(float16x8_t)a{j}', place, at, whole)
            if j:
                writer.close()
        writer.close(2)
    writer.close()
    writer.line()


def _places(p: HalfTilesPlan) -> tuple[dict[str, int], int]:
    """Where constants lie behind the weights, in floats; and floats of all."""
    weights = p.group.main.reads[1].tensor
    places, offset = {weights: 0}, abi.aligned(p.weight_halves // 2)
    for tensor in p.group.with_role('constant'):
        if tensor.name != weights:
            places[tensor.name] = offset
            room = p.panels * p.width // 2
            offset += abi.aligned(max(-(-tensor.bytes // 4), room))
    return places, offset


def _write_packing(writer: Writer, p: HalfTilesPlan) -> None:
    """tw_pack: weights transformed in double, rounded once: U[panel][t][c][lanes]."""
    shape, f = p.shape, p.shape.down
    places, floats = _places(p)
    names = [t.name for t in p.group.with_role('constant')]
    access = p.group.main.reads[1]
    strides, const = access_strides(p.group, access)
    rows = ', '.join('{' + ', '.join(repr(float(x)) for x in row) + '}' for row in f.g)
    writer.line(f'static const double g[{f.t}][{f.r}] = {{{rows}}};')
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line(f'memset(packed, 0, {4 * floats});')
    writer.line(f'const f16 *from = (const f16 *)constants[{names.index(access.tensor)}];')
    writer.open(f'for (long k = 0; k < {shape.k}; k++)')
    writer.open(f'for (long c = 0; c < {shape.c}; c++)')
    start = total([scaled('k', strides['k']), scaled('c', strides.get('c', 0)), str(const)])
    writer.line(f'const f16 *filter = from + {start};')
    writer.line(f'double half[{f.t}][{f.r}];')
    writer.line(f'for (long i = 0; i < {f.t}; i++)')
    writer.open(f'    for (long s = 0; s < {f.r}; s++)')
    writer.line('half[i][s] = 0.0;')
    writer.line(f'for (long r = 0; r < {f.r}; r++)')
    place = total([scaled('r', strides.get('r', 0)), scaled('s', strides.get('s', 0))])
    writer.line(f'    half[i][s] += g[i][r] * (double)filter[{place}];')
    writer.close()
    to = f'(f16 *)packed + (k / {p.width} * {shape.t * p.channels} + c) * {p.width} + k % {p.width}'
    writer.line(f'f16 *to = {to};')
    writer.line(f'for (long i = 0; i < {f.t}; i++)')
    writer.open(f'    for (long j = 0; j < {f.t}; j++)')
    writer.line('double sum = 0.0;')
    writer.line(f'for (long s = 0; s < {f.r}; s++)')
    writer.line('    sum += half[i][s] * g[j][s];')
    writer.line(f'to[(i * {f.t} + j) * {p.channels * p.width}] = (f16)sum;')
    writer.close(3)
    p.epilogue.write_packed(writer, p.group, places, shape.k)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, floats)


def _write_part(writer: Writer, p: HalfTilesPlan) -> None:
    """Blocks of a thread's tiles: input, products and output for each panel."""
    shape, group, f = p.shape, p.group, p.shape.down
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places, _ = _places(p)
    image = inputs[group.main.reads[0].tensor]
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    writer.line(f'const f16 *image = (const f16 *){image};')
    p.epilogue.write_operands(writer, inputs, places)
    writer.line('float *v = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *m = v + {abi.aligned(p.input_halves // 2)};')
    open_blocks(writer, p, shape.k)
    writer.open('for (long tile = 0; tile < tiles; tile++)')
    _write_place(writer, p)
    source = f'image + n * {shape.height * shape.width * p.depth} + {p.first}'
    y, x = f'ph * {f.step} - {shape.pad_top}', f'pw * {f.step} - {shape.pad_left}'
    writer.line(f'transform_input({source}, {y}, {x}, (f16 *)v + tile * {p.pitch});')
    writer.close()
    writer.open(f'for (long k = k_low; k < k_high; k += {p.width})')
    writer.line(f'const float *u = args->packed + k * {shape.t * p.channels // 2};')
    own = f'k / {shape.k // p.groups} * {p.channels // 2} + ' if p.groups > 1 else ''
    writer.open(f'for (long t = 0; t < {shape.t}; t++)')
    count = p.channels // (2 * STEPS)
    run = min(p.run, count)
    writer.open(f'for (long c = 0; c < {count}; c += {run})')
    writer.line(
        f'multiply(v + {own}t * {p.block * p.pitch // 2} + c * {STEPS}, '
        f'u + (t * {p.channels} + c * {2 * STEPS}) * {p.width // 2}, '
        f'm + t * {p.block * p.width // 2}, tiles, min_long({run}, {count} - c), c > 0);'
    )
    writer.close(2)
    writer.open('for (long tile = 0; tile < tiles; tile++)')
    _write_place(writer, p)
    point = {'g': '0', 'n': 'n', 'h': f'(ph * {f.m})', 'w': f'(pw * {f.m})', 'k': 'k'}
    strides, const = access_strides(group, group.main.write)
    place = total([*(scaled(point[d], s) for d, s in strides.items()), str(const)])
    operands = ''
    for item in p.epilogue.operands:
        at = total([*(scaled(point[d], s) for d, s in item.strides), str(item.const)])
        operands += f', {item.name} + ' + (
            'k' if p.epilogue.kind(item) == 'f16' != item.dtype else at
        )
    writer.line(
        f'transform_output((const f16 *)m + tile * {p.width}, '
        f'({C_TYPES[group.output.dtype]} *)args->out + {place}, '
        f'min_long({f.m}, {shape.out_h} - ph * {f.m}), '
        f'min_long({f.m}, {shape.out_w} - pw * {f.m}), '
        f'min_long({p.width}, {shape.k} - k){operands});'
    )
    writer.close(4)


def _write_place(writer: Writer, p: HalfTilesPlan) -> None:
    """n, ph, pw: where a tile of a block lies."""
    writer.line(
        f'const long pw = (first + tile) % {p.shape.pw}, row = (first + tile) / {p.shape.pw};'
    )
    writer.line(f'const long ph = row % {p.shape.ph}, n = row / {p.shape.ph};')
