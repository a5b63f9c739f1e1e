"""The Winograd schema: blocks of tiles through a thread's own scratch, fused from end to end.

Goes in: a convolution's group and a schedule with schema 'winograd' over the dimensions of the
batched product (`ops.winograd.matmul_stage`), with the options m (outputs of a tile) and run (most
tiles that a micro-kernel takes). Comes out: C with the ABI of codegen/cpu/abi.py.

    l3 band   blocks of n x ph x pw tiles: input transform -> V[t][c][tile]
    l2 band     blocks of k
    l1 band       points t: micro-kernels  V[t] x U[panel][t] -> M[panel][t][tile][lanes]
    reg band        panels of k, runs of tiles flattened over the whole block
                output transform, epilogue, NCHW store of the block of k

Tiles of a block are numbered densely whatever its shape, so that images of 7 x 7 fill register
tiles as well as large ones do. Threads share nothing: cut over k, each transforms all the input.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tilewright.codegen.cpu import abi, micro
from tilewright.codegen.cpu.nest import Nest, tile_sets
from tilewright.codegen.cpu.pointwise import Epilogue, typed_epilogue, write_epilogue
from tilewright.codegen.cpu.store import TRANSPOSE, Quick, quick_epilogue
from tilewright.codegen.cpu.winograd_transform import (
    Buffers,
    Class,
    classes_of,
    write_filter,
    write_input,
    write_output,
)
from tilewright.codegen.cpu.writer import Writer, scaled, total
from tilewright.errors import ScheduleError
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.winograd import Geometry, applies, geometry, matmul_stage
from tilewright.schedule.schedule import Schedule

BLOCK = ('n', 'ph', 'pw')
WEIGHTS_AHEAD = 512  # floats: weights come from afar, faster than hardware asks for them
STRETCH = 4096  # floats of output rows that wait for their transposition, a quarter of an L1


@dataclass(frozen=True)
class Plan:
    """Everything that the generator decides before it writes a line."""

    group: Group
    schedule: Schedule
    shape: Geometry
    stage: Stage
    buffers: Buffers
    epilogue: Epilogue
    lanes: int
    vectors: int
    tail_vectors: int
    panels: int
    blocks: tuple[int, ...]
    classes: tuple[Class, ...]
    panel_floats: int

    @property
    def width(self) -> int:
        """Lanes of a whole panel of k."""
        return self.vectors * self.lanes

    @property
    def k_block(self) -> int:
        """Panels of k whose products are held at once."""
        return -(-min(self.schedule.levels[2].tile['k'], self.shape.k) // self.width)

    @property
    def stretch(self) -> int:
        """Tiles of a row that leave together: as many as keep their outputs small beside M."""
        return min(self.buffers.columns, stretch_tiles(self.shape, self.width))

    @property
    def row_pitch(self) -> int:
        """From one row of outputs of a stretch of tiles to the next."""
        return self.stretch * self.shape.across.m * self.width

    @property
    def group_floats(self) -> int:
        """Transformed weights of one group of channels."""
        padded = (self.panels - 1) * self.width + self.tail_vectors * self.lanes
        return padded * self.shape.weights * self.shape.c

    @property
    def packed_weights(self) -> int:
        return self.shape.g * self.group_floats

    @property
    def v_floats(self) -> int:
        return self.shape.t * self.buffers.v_stride

    @property
    def m_floats(self) -> int:
        return self.k_block * self.panel_floats

    @property
    def row_floats(self) -> int:
        """Rows of one stretch; a transposition looks up to three pixels behind the last."""
        return self.shape.down.m * self.row_pitch + 4 * self.width

    @property
    def scratch_floats(self) -> int:
        parts = (self.v_floats, self.m_floats, self.row_floats, self.buffers.work_floats)
        return sum(abi.aligned(part) for part in parts)


def option(schedule: Schedule, name: str) -> int:
    options = dict(schedule.options)
    if name not in options:
        raise ScheduleError(f'a schedule of the winograd schema needs the option {name!r}')
    return options[name]


def tile(schedule: Schedule) -> tuple[int, int]:
    """(rows, columns) of outputs of a tile: the options m and, where it differs, mw."""
    m = option(schedule, 'm')
    return m, dict(schedule.options).get('mw', m)


def check(group: Group, schedule: Schedule) -> Stage:
    """Raise ScheduleError where the schedule is not legal for this schema."""
    m, run = tile(schedule), option(schedule, 'run')
    reason = applies(group, m)
    if reason:
        raise ScheduleError(f'winograd: {reason}; use the direct algorithm')
    stage, lanes = matmul_stage(group, m), ISAS[schedule.isa].lanes
    names = [level.name for level in schedule.levels]
    if names != ['reg', 'l1', 'l2', 'l3'] or schedule.vector != 'k' or schedule.pack:
        raise ScheduleError(
            f'{group.label}: the winograd schema has the levels reg, l1, l2, l3, the vector '
            f'dimension k and no pack level, not {names}, {schedule.vector!r}, {schedule.pack!r}'
        )
    tiles = [level.tile for level in schedule.levels]
    if set(tiles[0]) != set(stage.sizes):
        raise ScheduleError(
            f'{group.label}: the schedule tiles {sorted(tiles[0])}, not {stage.sizes}'
        )
    reg, whole = tiles[0], stage.sizes
    if reg['k'] % lanes:
        raise ScheduleError(
            f'{group.label}: register tile k={reg["k"]} is not a multiple of the {lanes} lanes of '
            f'{schedule.isa}'
        )
    wide = [d for d in reg if d != 'k' and reg[d] > 1]
    if wide or tiles[1]['t'] > 1 or tiles[3].get('g', 1) > 1:
        raise ScheduleError(
            f'{group.label}: the register tile must be 1 but in k (it is not in {wide}), and so '
            f'must t at l1 and g at every level; tiles are flattened by the option run'
        )
    if any(tiles[2][d] < whole[d] for d in ('t', 'c')) or tiles[1]['c'] < whole['c']:
        raise ScheduleError(f'{group.label}: c from l1 on and t from l2 on must be whole')
    if any(tiles[1][d] != tiles[3][d] for d in BLOCK) or tiles[1]['k'] != tiles[2]['k']:
        raise ScheduleError(
            f'{group.label}: n, ph and pw have one tile for all caches, and k one for l1 and l2'
        )
    if tiles[3]['k'] < whole['k'] or (tiles[1]['k'] % reg['k'] and tiles[1]['k'] < whole['k']):
        raise ScheduleError(
            f'{group.label}: k={tiles[1]["k"]} at l1 is no multiple of the register tile '
            f'{reg["k"]}, or k={tiles[3]["k"]} at l3 is not the whole {whole["k"]}'
        )
    need = micro.registers_needed(run, reg['k'] // lanes)
    if run < 1 or need > ISAS[schedule.isa].registers:
        raise ScheduleError(
            f'{group.label}: runs of {run} tiles x {reg["k"] // lanes} vectors need {need} '
            f'registers; {schedule.isa} has {ISAS[schedule.isa].registers}'
        )
    bad = [d for d, _ in schedule.parallel if d not in (*BLOCK, 'g', 'k')]
    if bad:
        raise ScheduleError(f'{group.label}: {bad} cannot be cut between threads')
    return stage


def split_runs(tiles: int, most: int) -> tuple[int, ...]:
    """A block's tiles in runs of at most `most`, about equal and even: loads come in pairs."""
    sizes = []
    left = -(-tiles // most)
    while tiles:
        size = -(-tiles // left)
        size = min(size + size % 2, most, tiles)
        sizes.append(size)
        tiles, left = tiles - size, left - 1
        left = max(left, -(-tiles // most))
    return tuple(sizes)


def stretch_tiles(shape: Geometry, width: int) -> int:
    """Tiles in a row whose outputs, for one panel, fit `STRETCH`; a multiple of four.

    Whole vectors of four pixels then leave at once whatever m is.
    """
    each = shape.down.m * shape.across.m * width
    return max(STRETCH // each // 4, 1) * 4


def transform_lanes(isa_lanes: int, columns: int) -> int:
    """Lanes of the input transform: no wider than a row of tiles can use, at least four."""
    lanes = isa_lanes
    while lanes > 4 and lanes // 2 >= columns:
        lanes //= 2
    return lanes


def plan(group: Group, schedule: Schedule) -> Plan:
    """[Group, Schedule] -> [Plan]"""
    stage = check(group, schedule)
    shape = geometry(group, tile(schedule))
    lanes = ISAS[schedule.isa].lanes
    width = schedule.reg.tile['k']
    vectors = width // lanes
    panels = -(-shape.k // width)
    tail = -(-(shape.k - (panels - 1) * width) // lanes)
    sets = tile_sets(stage, schedule, 1)
    blocks = sorted({a * b * c for a, b, c in itertools.product(*(sets[d] for d in BLOCK))})
    columns = max(sets['pw'])
    buffers = Buffers(max(blocks), columns, transform_lanes(lanes, columns), shape)
    classes, panel_floats = classes_of(shape, max(blocks), width)
    return Plan(
        group, schedule, shape, stage, buffers, typed_epilogue(group), lanes, vectors, tail, panels,
        tuple(blocks), classes, panel_floats,
    )  # fmt: skip


def generate(group: Group, schedule: Schedule) -> str:
    """[Group, Schedule] -> [C source]"""
    p = plan(group, schedule)
    writer = Writer()
    abi.write_head(writer, group, schedule)
    write_epilogue(writer, p.epilogue.functions)
    for name, count in (('vec', p.buffers.lanes), ('lanes_t', p.lanes)):
        size = f'vector_size({4 * count}), aligned(4), may_alias'
        writer.line(f'typedef float {name} __attribute__(({size}));')
    writer.lines += TRANSPOSE.splitlines()
    writer.line()
    image = group.tensor(group.main.reads[0].tensor)
    write_input(writer, p.buffers, image.strides)
    for vectors in _vector_counts(p):
        for item in {c.shared: c for c in p.classes}.values():
            _write_multiply(writer, p, item, vectors)
        isa = ISAS[schedule.isa]
        write_output(writer, p.shape, vectors, isa, p.classes, p.row_pitch)
    _write_store(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def _vector_counts(p: Plan) -> list[int]:
    """Vectors of the panels that there are."""
    return sorted({p.tail_vectors} | ({p.vectors} if p.panels > 1 else set()))


def _micro(p: Plan, item: Class, run: int, vectors: int) -> micro.MicroKernel:
    name = micro.micro_name(p.schedule.isa, (run,), vectors)
    return micro.MicroKernel(
        p.schedule.isa,
        tuple(range(run)),
        vectors,
        (0,),
        item.shared * p.buffers.tiles,
        tuple(number * item.index_step for number in range(run)),
        name if item.shared == 1 else f'{name}_of{item.shared}',
        b_ahead=WEIGHTS_AHEAD,
    )


def _write_multiply(writer: Writer, p: Plan, item: Class, vectors: int) -> None:
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
                start, to = f'v + {first}', f'm + {first * item.index_step}'
            if count > 1:
                writer.line(f'    for (long i = 0; i < {count}; i++)')
                start, to = f'{start} + i * {run}', f'{to} + i * {run * item.index_step}'
            writer.line(f'    {"    " * (count > 1)}{name}({start}, u, {to}, {p.shape.c}, 0);')
            first += count * run
        writer.line('    break;')
    writer.line('default:')
    writer.line('    __builtin_trap(); /* no block has that many tiles */')
    writer.close(2)
    writer.line()


def _write_store(writer: Writer, p: Plan) -> None:
    """`store_row`: one row of output pixels of a panel, transposed, through the epilogue.

    Where that can be, in blocks of 4 x 4; lanes that are no block go through a small buffer.
    """
    out = p.group.output
    plane = out.strides[1]
    pitch = -(-p.stretch * p.shape.across.m // 4) * 4
    quick = quick_epilogue(p.group, 'k', 'w')
    if quick is not None:
        quick.write(writer)
    operands = ''.join(f', const float *{item.name}' for item in p.epilogue.operands)
    writer.open(
        f'static void store_row(const float *restrict row, float *restrict out, long lanes, '
        f'long width, long pixels{operands})'
    )
    writer.line(f'float turned[4 * {pitch}];')
    writer.open('for (long lane = 0; lane < lanes; lane += 4)')
    if quick is not None:
        _write_quick_row(writer, quick, plane)
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


def _write_quick_row(writer: Writer, quick: Quick, plane: int) -> None:
    """Four lanes of a row in blocks; the last of 1, 2 or 3 pixels."""
    places = {
        item.name: total(
            [item.name, scaled('lane', item.stride('k')), scaled('done', item.stride('w'))]
        )
        for item in quick.epilogue.operands
    }
    block = f'row + done * width + lane, width, out + lane * {plane} + done, {plane}'
    writer.open('if (lane + 4 <= lanes)')
    writer.line('long done = 0;')
    writer.line('for (; done + 4 <= pixels; done += 4)')
    writer.line(f'    {quick.call(f"{block}, 4", places)}')
    for count in (1, 2, 3):
        writer.line(f'{"else " if count > 1 else ""}if (pixels - done == {count})')
        writer.line(f'    {quick.call(f"{block}, {count}", places)}')
    writer.line('continue;')
    writer.close()


def _write_packing(writer: Writer, p: Plan) -> None:
    """tw_pack: weights in the order in which they are read; other constants behind them.

    [g][block of k of every part][weight][panel][c][lane]
    """
    shape = p.shape
    write_filter(writer, shape)
    constants = p.group.with_role('constant')
    weights = p.group.main.reads[1].tensor
    names = [t.name for t in constants]
    taps = shape.down.r * shape.across.r
    writer.open('void tw_pack(const float *const *constants, float *packed)')
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
    places = constant_offsets(p)
    for tensor in constants:
        if tensor.name in places:
            source = f'constants[{names.index(tensor.name)}]'
            writer.line(
                f'memcpy(packed + {places[tensor.name]}, {source}, {tensor.size} * sizeof(float));'
            )
    writer.close()
    writer.line()
    packed = abi.aligned(p.packed_weights) + sum(
        abi.aligned(p.group.tensor(name).size) for name in places
    )
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, packed)


def _whole_lanes(text: str, lanes: int) -> str:
    """A C expression rounded up to whole vectors."""
    return f'({text} + {lanes - 1}) / {lanes} * {lanes}'


def constant_offsets(p: Plan) -> dict[str, int]:
    """Where each constant but the weights lies behind them, in floats."""
    offset = abi.aligned(p.packed_weights)
    places = {}
    for tensor in p.group.with_role('constant'):
        if tensor.name != p.group.main.reads[1].tensor:
            places[tensor.name] = offset
            offset += abi.aligned(tensor.size)
    return places


def _write_part(writer: Writer, p: Plan) -> None:
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
    writer.line(f'const float *weights = args->packed + {place};')
    for item in p.classes:
        _write_products(writer, p, item, first, last)
    writer.open(f'for (long k = {first}; k < {last}; k += {p.width})')
    writer.line(f'const float *panel = m + (k - {first}) / {p.width} * {p.panel_floats};')
    _write_rows(writer, p, nest, g)
    writer.close()
    nest.close()
    writer.close()


def _write_products(writer: Writer, p: Plan, item: Class, first: str, last: str) -> None:
    """All weights of a class, and the panels of k for each."""
    down, across = item.down, item.across
    points, v_stride = p.shape.across.t, p.buffers.v_stride
    writer.open(f'for (long i = 0; i < {down.kinds}; i++)')
    writer.open(f'for (long j = 0; j < {across.kinds}; j++)')
    row = f'(i + {down.first}) * {points * v_stride}'
    column = f'(j + {across.first}) * {down.shared * v_stride}'
    writer.line(f'const float *from = v + {row} + {column};')
    weight = f'((i + {down.kind}) * {p.shape.across.kinds} + j + {across.kind})'
    writer.line(f'const float *u = weights + {weight} * ({p.shape.c} * held);')
    step = scaled(f'(i * {across.kinds} + j)', item.weight_step)
    writer.line(f'float *to = m + {item.place} + {step};')
    writer.open(f'for (long k = {first}; k < {last}; k += {p.width})')
    _by_width(
        writer, p, lambda vectors: f'multiply_v{vectors}_of{item.shared}(from, u, to, tiles);'
    )
    writer.line(f'u += {p.shape.c * p.width};')
    writer.line(f'to += {p.panel_floats};')
    writer.close(3)


def _by_width(writer: Writer, p: Plan, call) -> None:
    """The call for panels of all vectors, or of those that the last one has."""
    if len(_vector_counts(p)) == 1:
        writer.line(call(_vector_counts(p)[0]))
        return
    writer.line(f'if (k + {p.width} < {p.shape.k})')
    writer.line(f'    {call(p.vectors)}')
    writer.line('else')
    writer.line(f'    {call(p.tail_vectors)}')


def _write_rows(writer: Writer, p: Plan, nest: Nest, g: str) -> None:
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
