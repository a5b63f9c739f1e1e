"""The Winograd schema: blocks of tiles through a thread's own scratch, fused from end to end.

Goes in: a plan (plan.py) over the dimensions of the batched product (`ops.winograd.matmul_stage`).
Comes out: C with the ABI of kernels/cpu/abi.py.

    l3 band   blocks of n x ph x pw tiles: input transform -> V[t][c][tile]
    l2 band     blocks of k
    l1 band       points t: micro-kernels  V[t] x U[panel][t] -> M[panel][t][tile][lanes]
    reg band        panels of k, runs of tiles flattened over the whole block
                output transform, epilogue, NCHW store of the block of k

Tiles of a block are numbered densely whatever its shape, so that images of 7 x 7 fill register
tiles as well as large ones do. Threads share nothing: cut over k, each transforms all the input.
What is decided before a line is written is in plan.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import write_epilogue
from tilewright.kernels.cpu.schemas.winograd.plan import BLOCK, PointsPlan, option, split_runs
from tilewright.kernels.cpu.schemas.winograd.transform import (
    Buffers,
    Class,
    Products,
    write_filter,
    write_filters,
    write_input,
    write_output,
)
from tilewright.kernels.cpu.transpose import TRANSPOSE, Quick, quick_epilogue, wide_transpose
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.winograd import Geometry

WEIGHTS_AHEAD = 512  # floats at least: weights come from afar, faster than hardware asks for them


@dataclass(frozen=True, slots=True)
class Transforms:
    """What an algorithm writes of its own.

    input      `transform_input`: from the image to V
    filter     `transform_filter`: from one filter to its weights
    products   the loops over points, from the first to the last of a block of k
    output     `transform_output_vN`: from M to rows, for panels of N vectors
    """

    input: Callable[[Writer, PointsPlan], None]
    filter: Callable[[Writer, PointsPlan], None]
    products: Callable[[Writer, PointsPlan, str, str], None]
    output: Callable[[Writer, PointsPlan, int], None]


def generate(p: PointsPlan) -> str:
    """[PointsPlan] -> [C source]"""
    return generate_points(p, WINOGRAD)


def generate_points(p: PointsPlan, transforms: Transforms) -> str:
    """The source with these transforms around the products."""
    group, schedule, writer = p.group, p.schedule, Writer()
    abi.write_head(writer, group, schedule)
    write_epilogue(writer, p.epilogue.functions)
    for name, count in (('vec', p.buffers.lanes), ('lanes_t', p.lanes)):
        size = f'vector_size({4 * count}), aligned(4), may_alias'
        writer.line(f'typedef float {name} __attribute__(({size}));')
    writer.lines += TRANSPOSE.splitlines()
    writer.line()
    transforms.input(writer, p)
    for vectors in _vector_counts(p):
        for item in {c.shared: c for c in p.classes}.values():
            _write_multiply(writer, p, item, vectors)
        transforms.output(writer, p, vectors)
    _write_store(writer, p)
    if p.moving:
        shape = p.shape
        assert isinstance(shape, Geometry)
        write_filters(writer, shape, p.lanes)
    else:
        transforms.filter(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p, transforms)
    return writer.text()


def _vector_counts(p: PointsPlan) -> list[int]:
    """Vectors of the panels that there are."""
    return sorted({p.tail_vectors} | ({p.vectors} if p.panels > 1 else set()))


def _micro(p: PointsPlan, item: Products, run: int, vectors: int) -> micro.MicroKernel:
    name = micro.micro_name(p.schedule.isa, (run,), vectors)
    return micro.MicroKernel(
        p.schedule.isa,
        tuple(number * p.buffers.tile_step for number in range(run)),
        vectors,
        (0,),
        item.shared * p.buffers.channel_step,
        tuple(number * item.index_step for number in range(run)),
        name if item.shared == 1 else f'{name}_of{item.shared}',
        b_ahead=max(WEIGHTS_AHEAD, ISAS[p.schedule.isa].stream_bytes // 4),
        a_ahead=p.buffers.tile_step == 1,
        dtype=p.schedule.dtype,
        accumulation=p.schedule.accumulation,
    )


def _write_multiply(writer: Writer, p: PointsPlan, item: Products, vectors: int) -> None:
    """The products of one panel and one weight, for every number of tiles a block may have."""
    most = option(p.schedule, 'run')
    runs = {tiles: split_runs(item.shared * tiles, most) for tiles in p.blocks}
    kernels = {
        run: _micro(p, item, run, vectors) for run in sorted({r for x in runs.values() for r in x})
    }
    for kernel in kernels.values():
        writer.lines += micro.emit(kernel).splitlines()
        writer.line()
    writer.open(
        f'static inline void multiply_v{vectors}_of{item.shared}(const float *v, const float *u, '
        f'float *m, long tiles)'
    )
    writer.open('switch (tiles)')
    for tiles, sizes in runs.items():
        writer.line(f'case {tiles}:')
        first = 0
        for run, same in itertools.groupby(sizes):
            count, name = len(list(same)), kernels[run].name
            start, to = 'v', 'm'
            if first:
                place = first * p.buffers.tile_step
                start, to = f'v + {place}', f'm + {first * item.index_step}'
            if count > 1:
                writer.line(f'    for (long i = 0; i < {count}; i++)')
                step = run * p.buffers.tile_step
                start, to = f'{start} + i * {step}', f'{to} + i * {run * item.index_step}'
            writer.line(f'    {"    " * (count > 1)}{name}({start}, u, {to}, {p.shape.c}, 0);')
            first += count * run
        writer.line('    break;')
    writer.line('default:')
    writer.line('    __builtin_trap(); /* no block has that many tiles */')
    writer.close(2)
    writer.line()


def _write_store(writer: Writer, p: PointsPlan) -> None:
    """`store_row`: one row of output pixels of a panel, transposed, through the epilogue.

    Where that can be, in blocks as wide as vectors are, and of 4 x 4; lanes that are no block go
    through a small buffer. The next row of the result is asked for: its lines lie as many pages
    apart as there are lanes, so that no hardware does.
    """
    out = p.group.output
    plane = out.strides[1]
    pitch = -(-p.stretch * p.shape.across.m // 4) * 4
    quick = quick_epilogue(p.group, 'k', 'w')
    wide = p.lanes if quick is not None and p.lanes > 4 else 0
    if quick is not None:
        quick.write(writer)
    if quick is not None and wide:
        writer.lines += [*wide_transpose(wide), '']
        quick.write_wide(writer, wide)
    operands = ''.join(f', const float *{item.name}' for item in p.epilogue.operands)
    writer.open(
        f'static void store_row(const float *restrict row, float *restrict out, long lanes, '
        f'long width, long pixels{operands})'
    )
    writer.line(f'float turned[4 * {pitch}];')
    if quick is not None and wide:
        _write_wide_row(writer, quick, plane, out.strides[2], wide)
    writer.open('for (long lane = 0; lane < lanes; lane += 4)')
    if quick is not None:
        _write_quick_row(writer, quick, plane, wide)
    writer.line('for (long pixel = 0; pixel < pixels; pixel += 4)')
    writer.line(f'    transpose4(row + pixel * width + lane, width, turned + pixel, {pitch}, 4);')
    writer.open('for (long j = 0; j < min_long(4, lanes - lane); j++)')
    writer.line(f'float *restrict to = out + (lane + j) * {plane};')
    writer.open('for (long pixel = 0; pixel < pixels; pixel++)')
    writer.line(f'const float value = turned[j * {pitch} + pixel];')
    for item in p.epilogue.operands:
        place = total([scaled('(lane + j)', item.stride('k')), scaled('pixel', item.stride('w'))])
        writer.line(f'const long {item.name}_at = {place};')
    writer.line(f'to[pixel] = {p.epilogue.expression};')
    writer.close(4)
    writer.line()


def _block_places(quick: Quick) -> dict[str, str]:
    """Where operands of a block begin: of lanes from `lane` on, and of pixels from `done` on."""
    return {
        item.name: total(
            [item.name, scaled('lane', item.stride('k')), scaled('done', item.stride('w'))]
        )
        for item in quick.epilogue.operands
    }


def _write_wide_row(writer: Writer, quick: Quick, plane: int, pitch: int, wide: int) -> None:
    """Whole vectors of lanes in blocks as wide as they are. AVX-512 has masks for the last pixels,
    which pay for more than four of them; `whole` is what is stored so of `all` lanes.
    """
    rest = f'pixels % {wide}'
    left = rest if wide < 16 else f'({rest} > 4 ? 0 : {rest})'
    writer.line(f'const long all = lanes / {wide} * {wide}, whole = pixels - {left};')
    writer.open(f'for (long lane = 0; lane < all; lane += {wide})')
    writer.open(f'for (long done = 0; done < whole; done += {wide})')
    writer.line(f'for (long j = 0; j < {wide}; j++)')
    writer.line(f'    __builtin_prefetch(out + (lane + j) * {plane} + done + {pitch}, 1);')
    block = f'row + done * width + lane, width, out + lane * {plane} + done, {plane}'
    places = _block_places(quick)
    writer.line(quick.call_wide(f'{block}, min_long({wide}, whole - done)', places))
    writer.close(2)


def _write_quick_row(writer: Writer, quick: Quick, plane: int, wide: int) -> None:
    """Four lanes of a row in blocks; the last of 1, 2 or 3 pixels."""
    places = _block_places(quick)
    block = f'row + done * width + lane, width, out + lane * {plane} + done, {plane}'
    writer.open('if (lane + 4 <= lanes)')
    writer.line(f'long done = {"lane < all ? whole : 0" if wide else "0"};')
    writer.line('for (; done + 4 <= pixels; done += 4)')
    writer.line(f'    {quick.call(f"{block}, 4", places)}')
    for count in (1, 2, 3):
        writer.line(f'{"else " if count > 1 else ""}if (pixels - done == {count})')
        writer.line(f'    {quick.call(f"{block}, {count}", places)}')
    writer.line('continue;')
    writer.close()


def _write_packing(writer: Writer, p: PointsPlan) -> None:
    """tw_pack: weights in the order in which they are read; other constants behind them.

    [g][block of k of every part][weight][panel][c][lane]
    """
    shape = p.shape
    weights = p.group.main.reads[1].tensor
    names = [t.name for t in p.group.with_role('constant')]
    taps = shape.down.r * shape.across.r
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    if p.moving:
        _close_packing(writer, p)
        return
    writer.line(f'const float *filters = constants[{names.index(weights)}];')
    writer.line('float *to = packed;')
    writer.line(f'memset(to, 0, {p.packed_weights} * sizeof(float));')
    writer.open(f'for (long g = 0; g < {shape.g}; g++)')
    ways = dict(p.schedule.parallel).get('k', 1)
    writer.open(f'for (long part = 0; part < {ways}; part++)')
    for name, number in (('begin', 'part'), ('end', '(part + 1)')):
        cut = f'{p.panels} * {number} / {ways} * {p.width}'
        writer.line(f'const long {name} = min_long({cut}, {shape.k});')
    held = p.k_block * p.width
    writer.open(f'for (long first = begin; first < end; first += {held})')
    writer.line(f'const long last = min_long(first + {held}, end);')
    writer.line(f'const long held = {_whole_lanes("last - first", p.lanes)};')
    writer.open('for (long k = first; k < last; k++)')
    writer.line(f'const long panel = (k - first) / {p.width} * {p.width};')
    writer.line(f'const long width = min_long({p.width}, held - panel);')
    writer.line(f'float *lane = to + panel * {shape.c} + (k - first - panel);')
    writer.line(f'for (long c = 0; c < {shape.c}; c++)')
    place = f'((g * {shape.k} + k) * {shape.c} + c) * {taps}'
    writer.line(f'    transform_filter(filters + {place}, lane + c * width, {shape.c} * held);')
    writer.close()
    writer.line(f'to += held * {shape.weights * shape.c};')
    writer.close(3)
    _close_packing(writer, p)


def _close_packing(writer: Writer, p: PointsPlan) -> None:
    packed = abi.write_constants(writer, p.group, constant_offsets(p), p.packed_weights)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, packed)


def _whole_lanes(text: str, lanes: int) -> str:
    """A C expression rounded up to whole vectors."""
    return f'({text} + {lanes - 1}) / {lanes} * {lanes}'


def constant_offsets(p: PointsPlan) -> dict[str, int]:
    """Where each constant but the weights lies behind them, in floats."""
    return abi.constant_places(p.group, p.group.main.reads[1].tensor, p.packed_weights)


def _write_part(writer: Writer, p: PointsPlan, transforms: Transforms) -> None:
    shape, group, schedule = p.shape, p.group, p.schedule
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places = constant_offsets(p)
    writer.open('void tw_part(const tw_args *args, long part)')
    image = group.main.reads[0].tensor
    writer.line(f'const float *image = {inputs[image]};')
    writer.line('float *v = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *m = v + {abi.aligned(p.v_floats)};')
    writer.line(f'float *rows = m + {abi.aligned(p.m_floats)};')
    writer.line(f'float *work = rows + {abi.aligned(p.row_floats)};')
    for item in p.epilogue.operands:
        source = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
        writer.line(f'const float *{item.name} = {source};')
    nest = Nest(p.stage, schedule, writer)
    nest.open_parts()
    if p.moving:
        writer.line(f'float *u_own = work + {abi.aligned(p.buffers.work_floats)};')
        _write_own_weights(writer, p, nest, inputs[group.main.reads[1].tensor])
    l2, l3 = schedule.levels[2:]
    for name in nest.loops(l3):
        nest.open_loop(l3, name)
    at = nest.at
    block = ', '.join(f'{low}, {high}' for low, high in (at(d) for d in BLOCK))
    g = at('g')[0] if shape.g > 1 else '0'
    plane = group.tensor(image).strides[1]
    writer.line(f'transform_input(image + {scaled(g, shape.c * plane) or "0"}, v, work, {block});')
    extents = ' * '.join(f'({high} - {low})' for low, high in (at(d) for d in BLOCK))
    writer.line(f'const long tiles = {extents};')
    for name in nest.loops(l2):
        nest.open_loop(l2, name)
    first, last = at('k')
    writer.line(f'const long held = {_whole_lanes(f"{last} - {first}", p.lanes)};')
    place = total([scaled(g, p.group_floats), scaled(first, shape.weights * shape.c)])
    writer.line(f'const float *weights = {"u_own" if p.moving else "args->packed"} + {place};')
    transforms.products(writer, p, first, last)
    writer.open(f'for (long k = {first}; k < {last}; k += {p.width})')
    writer.line(f'const float *panel = m + (k - {first}) / {p.width} * {p.panel_floats};')
    _write_rows(writer, p, nest, g)
    writer.close()
    nest.close()
    writer.close()


def _write_own_weights(writer: Writer, p: PointsPlan, nest: Nest, filters: str) -> None:
    """Weights that are not constant, transformed by each thread as far as its part needs them."""
    shape, held = p.shape, p.k_block * p.width
    begin, end = nest.at('k')
    taps = shape.down.r * shape.across.r
    writer.open(f'for (long g = 0; g < {shape.g}; g++)')
    writer.open(f'for (long first = {begin}; first < {end}; first += {held})')
    writer.line(f'const long last = min_long(first + {held}, {end});')
    writer.line(f'const long held = {_whole_lanes("last - first", p.lanes)};')
    writer.line(f'float *to = u_own + g * {p.group_floats} + first * {shape.weights * shape.c};')
    writer.open(f'for (long k = first; k < last; k += {p.lanes})')
    writer.line(f'const long panel = (k - first) / {p.width} * {p.width};')
    writer.line(f'const long width = min_long({p.width}, held - panel);')
    writer.line(
        f'transform_filters({filters} + (g * {shape.k} + k) * {shape.c * taps}, '
        f'to + panel * {shape.c} + (k - first - panel), min_long({p.lanes}, last - k), width, '
        f'{shape.c} * held);'
    )
    writer.close(3)


def _write_class(
    writer: Writer, p: PointsPlan, shape: Geometry, item: Class, first: str, last: str
) -> None:
    """All weights of a class."""
    down, across = item.down, item.across
    points, v_stride = shape.across.t, p.buffers.v_stride
    writer.open(f'for (long i = 0; i < {down.kinds}; i++)')
    writer.open(f'for (long j = 0; j < {across.kinds}; j++)')
    row = f'(i + {down.first}) * {points * v_stride}'
    column = f'(j + {across.first}) * {down.shared * v_stride}'
    writer.line(f'const float *from = v + {row} + {column};')
    weight = f'((i + {down.kind}) * {shape.across.kinds} + j + {across.kind})'
    writer.line(f'const float *u = weights + {weight} * ({p.shape.c} * held);')
    step = scaled(f'(i * {across.kinds} + j)', item.weight_step)
    writer.line(f'float *to = m + {item.place} + {step};')
    write_panels(writer, p, item.shared, first, last)
    writer.close(2)


def write_panels(writer: Writer, p: PointsPlan, shared: int, first: str, last: str) -> None:
    """The products of one weight `u`, all panels of k: V at `from`, M at `to`."""
    writer.open(f'for (long k = {first}; k < {last}; k += {p.width})')
    _by_width(writer, p, lambda vectors: f'multiply_v{vectors}_of{shared}(from, u, to, tiles);')
    writer.line(f'u += {p.shape.c * p.width};')
    writer.line(f'to += {p.panel_floats};')
    writer.close()


def _by_width(writer: Writer, p: PointsPlan, call) -> None:
    """The call for panels of all vectors, or of those that the last one has."""
    if len(_vector_counts(p)) == 1:
        writer.line(call(_vector_counts(p)[0]))
        return
    writer.line(f'if (k + {p.width} < {p.shape.k})')
    writer.line(f'    {call(p.vectors)}')
    writer.line('else')
    writer.line(f'    {call(p.tail_vectors)}')


def _write_rows(writer: Writer, p: PointsPlan, nest: Nest, g: str) -> None:
    """Output tiles of a panel, one row of tiles at a time, and their rows into the result."""
    shape = p.shape
    down, across = shape.down, shape.across
    (n, n_end), (ph, ph_end), (pw, pw_end) = (nest.at(d) for d in BLOCK)
    width = str(p.width)
    if len(_vector_counts(p)) > 1:
        width = 'width'
        tail = p.tail_vectors * p.lanes
        writer.line(f'const long width = k + {p.width} < {shape.k} ? {p.width} : {tail};')
    elif p.panels == 1:
        width = str(p.tail_vectors * p.lanes)
    writer.line(f'const long all = {pw_end} - {pw};')
    writer.line('long row = 0;')
    writer.open(f'for (long b = {n}; b < {n_end}; b++)')
    writer.open(f'for (long q = {ph}; q < {ph_end}; q++, row++)')
    writer.open(f'for (long p = {pw}; p < {pw_end}; p += {p.stretch})')
    writer.line(f'const long columns = min_long({p.stretch}, {pw_end} - p);')
    writer.line(
        f'const long pixels = min_long(columns * {across.m}, {shape.out_w} - p * {across.m});'
    )
    where = f'row, all, p - {pw}, columns'
    _by_width(writer, p, lambda vectors: f'transform_output_v{vectors}(panel, rows, {where});')
    writer.open(f'for (long y = 0; y < min_long({down.m}, {shape.out_h} - q * {down.m}); y++)')
    point = {'n': 'b', 'k': 'k', 'h': f'(q * {down.m} + y)', 'w': f'p * {across.m}'}
    if shape.g > 1:
        point['g'] = g
    n_step, k_step, row, _ = p.group.output.strides
    out = {'n': n_step, 'k': k_step, 'h': row, 'w': 1, 'g': k_step * shape.k}
    place = total([scaled(at, out[d]) for d, at in point.items()])
    arguments = ''
    for item in p.epilogue.operands:
        shift = total([*(scaled(at, item.stride(d)) for d, at in point.items()), str(item.const)])
        arguments += f', {item.name} + {shift}'
    lanes = f'min_long({width}, {shape.k} - k)'
    writer.line(
        f'store_row(rows + y * {p.row_pitch}, args->out + {place}, {lanes}, {width}, '
        f'pixels{arguments});'
    )
    writer.close(4)


def _own(p: PointsPlan) -> tuple[Geometry, Buffers, list[Class]]:
    """What this schema's plans have, as the transforms know it."""
    assert isinstance(p.shape, Geometry)
    assert isinstance(p.buffers, Buffers)
    return p.shape, p.buffers, [item for item in p.classes if isinstance(item, Class)]


def _write_own_input(writer: Writer, p: PointsPlan) -> None:
    write_input(writer, _own(p)[1], p.group.tensor(p.group.main.reads[0].tensor).strides)


def _write_own_filter(writer: Writer, p: PointsPlan) -> None:
    write_filter(writer, _own(p)[0])


def _write_own_products(writer: Writer, p: PointsPlan, first: str, last: str) -> None:
    shape, _, classes = _own(p)
    for item in classes:
        _write_class(writer, p, shape, item, first, last)


def _write_own_output(writer: Writer, p: PointsPlan, vectors: int) -> None:
    shape, _, classes = _own(p)
    write_output(writer, shape, vectors, ISAS[p.schedule.isa], classes, p.row_pitch)


WINOGRAD = Transforms(_write_own_input, _write_own_filter, _write_own_products, _write_own_output)
