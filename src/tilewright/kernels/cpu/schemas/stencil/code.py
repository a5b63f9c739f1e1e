"""The stencil schema: windows that slide along rows, the lanes of a vector along the row.

Goes in: a plan (plan.py), of a depthwise convolution above all. Comes out: C with the ABI of
kernels/cpu/abi.py.

    for each outer dimension (n, k)            weights of one filter in registers
      for each tile of rows                    reg tile: down
        for each strip of vectors              reg tile: across, whole vectors
          for each loop (c)
            for each input row of the tile:    loaded once for each tap across, shifted by its
              for each tap across                address, and used by every output row it meets
                accumulators += row * weight
          epilogue, store

The input is read in place: no padded copy. Tiles at an edge have code of their own, in which rows
of padding do not occur and vectors across the edge are loaded inside the image and shifted. The
last vector of a row overlaps the one before it.
"""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.stencil.cover import (
    CROSSED,
    Columns,
    Gather,
    Rows,
    Strip,
    gather,
    weights_at,
)
from tilewright.kernels.cpu.schemas.stencil.plan import QUAD, StencilPlan
from tilewright.kernels.cpu.vector_epilogue import (
    broadcast,
    write_functions,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total

IN_ORDER = """\
/* Loads stay on their side of it: compilers that gather them in front run out of registers. */
#define IN_ORDER __asm__ volatile("" ::: "memory")
"""


def generate(plan: StencilPlan) -> str:
    """[StencilPlan] -> [C source]"""
    group, schedule, writer = plan.group, plan.schedule, Writer()
    abi.write_head(writer, group, schedule)
    width = 4 * plan.lanes
    writer.line(
        f'typedef float row_v __attribute__((vector_size({width}), aligned(4), may_alias));'
    )
    if plan.by_lane:
        writer.line(
            f'typedef float quad_v __attribute__((vector_size({4 * QUAD}), aligned(4), may_alias));'
        )
    writer.line('static const row_v zero_v;')
    if plan.by_pointer:
        writer.line(f'static const float zero_row[{plan.shape.across.extent}];')
    writer.lines += IN_ORDER.splitlines()
    writer.line()
    write_functions(writer, plan.epilogue, plan.lanes)
    places = _write_packing(writer, plan)
    for number, rows in enumerate(plan.rows):
        _write_rows(writer, plan, number, rows)
    _write_part(writer, plan, places)
    return writer.text()


def _write_packing(writer: Writer, plan: StencilPlan) -> dict[str, int]:
    """Taps of one filter side by side, down before across; other constants as they are."""
    shape, sizes = plan.shape, plan.shape.stage.sizes
    places, offset = {}, 0
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    for number, tensor in enumerate(plan.group.with_role('constant')):
        places[tensor.name] = offset
        if tensor.name != shape.b.tensor:
            writer.line(
                f'memcpy(packed + {offset}, constants[{number}], {tensor.size} * sizeof(float));'
            )
            offset += abi.aligned(tensor.size)
            continue
        strides, const = access_strides(plan.group, shape.b)
        windows = (*shape.down.windows, *shape.across.windows)
        writer.line(f'float *to = packed + {offset};')
        for name in (*shape.kept, *windows):
            writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
        place = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
        writer.line(f'*to++ = constants[{number}][{place}];')
        writer.close(len(windows))
        if plan.padded > shape.taps:
            writer.line(f'for (int i = 0; i < {plan.padded - shape.taps}; i++)')
            writer.line('    *to++ = 0.0f;')
        writer.close(len(shape.kept))
        filters = math.prod(sizes[name] for name in shape.kept)
        offset += abi.aligned(filters * plan.padded)
    writer.close()
    writer.line()
    abi.write_sizes(writer, plan.schedule.threads, 0, offset)
    return places


def _write_rows(writer: Writer, plan: StencilPlan, number: int, rows: Rows) -> None:
    """One tile of rows, strip by strip; `h` is its first output row."""
    shape = plan.shape
    operands = ''.join(f', const float *{item.name}' for item in plan.epilogue.operands)
    row = '' if rows.fixed else f', long {shape.down.name}'
    writer.open(
        f'static inline __attribute__((always_inline)) void rows_{number}(const float *a, '
        f'const float *weights, float *restrict out{operands}{row})'
    )
    if not shape.loops:
        _write_weights(writer, plan)
    if not rows.fixed:
        first = f'{shape.down.name} * {shape.down.step} + {min(shape.down.taps)}'
        if plan.by_pointer:
            for y in sorted({y for line in rows.reads for y in line if y is not None}):
                writer.line(
                    f'const float *r{y} = (unsigned long)({first} + {y}) < {shape.down.extent}ul ? '
                    f'a + ({first} + {y}) * {plan.pitch} : zero_row;'
                )
        else:
            writer.line(f'a += ({first}) * {plan.pitch};')
        for pointer, stride in _down_strides(plan):
            if stride:
                writer.line(f'{pointer} += {shape.down.name} * {stride};')
    for strip in plan.strips:
        if strip.fixed:
            _open_block(writer)
            _write_tile(writer, plan, rows, strip, '' if plan.by_pointer else 'a')
            writer.close()
            continue
        name, width = shape.across.name, plan.lanes * len(strip.starts)
        if strip.when:
            writer.open(f'if ({strip.when[0]} == {strip.when[1]})')
            writer.line(f'const long {name} = {strip.start};')
        else:
            end = strip.start + strip.times * width
            writer.open(f'for (long {name} = {strip.start}; {name} < {end}; {name} += {width})')
        first = f'{name} * {shape.across.step} + {min(shape.across.taps)}'
        if plan.by_pointer:
            writer.line(f'const long column = {first};')
        else:
            writer.line(f'const float *from = a + {first};')
        _write_tile(writer, plan, rows, strip, 'column' if plan.by_pointer else 'from')
        writer.close()
    writer.close()
    writer.line()


def _open_block(writer: Writer) -> None:
    """A scope of its own: tiles use the same names."""
    writer.line('{')
    writer.depth += 1


def _down_strides(plan: StencilPlan) -> list[tuple[str, int]]:
    """(pointer, stride of a row) of the result and of every operand of the epilogue."""
    name = plan.shape.down.name
    strides, _ = access_strides(plan.group, plan.shape.stage.write)
    found = [('out', strides.get(name, 0))]
    return found + [(item.name, item.stride(name)) for item in plan.epilogue.operands]


def _write_weights(writer: Writer, plan: StencilPlan) -> None:
    """Weights in registers; without multiply-adds by lane the compiler broadcasts each itself."""
    if plan.by_lane:
        for number in range(plan.padded // QUAD):
            place = total(['weights', str(QUAD * number)])
            writer.line(f'const quad_v kernel_{number} = *(const quad_v *)({place});')


def _weight(plan: StencilPlan, tap: int) -> str:
    return f'kernel_{tap // QUAD}[{tap % QUAD}]' if plan.by_lane else f'weights[{tap}]'


def _write_tile(writer: Writer, plan: StencilPlan, rows: Rows, strip: Strip, source: str) -> None:
    """Accumulate and store one tile of rows x vectors; `source` is where its first row begins, or
    its column where rows have pointers.
    """
    shape = plan.shape
    strides, _ = access_strides(plan.group, shape.a)
    started: set[tuple[int, int]] = set()
    if shape.loops:
        for i in range(rows.count):
            for v in range(len(strip.starts)):
                writer.line(f'row_v s{i}_{v} = zero_v;')
                started.add((i, v))
        weight_strides = weights_at(shape, shape.stage.sizes, plan.padded)
        writer.line(f'const float *{source}_all = {source}, *weights_all = weights;')
        for name in shape.loops:
            writer.open(f'for (long {name} = 0; {name} < {shape.stage.sizes[name]}; {name}++)')
        at = total([f'{source}_all', *(scaled(d, strides.get(d, 0)) for d in shape.loops)])
        writer.line(f'const float *{source} = {at};')
        at = total(['weights_all', *(scaled(d, weight_strides.get(d, 0)) for d in shape.loops)])
        writer.line(f'const float *weights = {at};')
        _write_weights(writer, plan)
    _write_sums(writer, plan, rows, strip, source, started)
    writer.close(len(shape.loops))
    for i in range(rows.count):
        for v in range(len(strip.starts)):
            if (i, v) not in started:
                writer.line(f'const row_v s{i}_{v} = zero_v;')
            _write_store(writer, plan, rows, strip, i, v)


def _write_sums(
    writer: Writer, plan: StencilPlan, rows: Rows, strip: Strip, source: str, started: set
) -> None:
    shape, across = plan.shape, len(plan.shape.across.taps)
    used = sorted({y for line in rows.reads for y in line if y is not None})
    for y in used:
        meets = [
            (i, t) for i, line in enumerate(rows.reads) for t, at in enumerate(line) if at == y
        ]
        for tap in range(across):
            if shape.across.step == 1 or tap == 0:  # phases of a step share their loads
                writer.line('IN_ORDER;')
            for v, vector in enumerate(strip.reads):
                if all(c is None for c in vector[tap]):
                    continue
                name = f'x{y}_{tap}_{v}'
                row = total([source, str(y * plan.pitch)])
                if plan.by_pointer:
                    row = total([f'r{y}', source])
                text = vector_text(
                    vector[tap], shape.across.step, strip.extent, row, plan.crossed
                )  # fmt: skip
                writer.line(f'const row_v {name} = {text};')
                for i, t in meets:
                    term = f'{name} * {_weight(plan, t * across + tap)}'
                    if (i, v) in started:
                        writer.line(f's{i}_{v} += {term};')
                    else:
                        writer.line(f'row_v s{i}_{v} = {term};')
                        started.add((i, v))


@lru_cache(maxsize=1 << 14)
def vector_text(
    columns: Columns, step: int, extent: int, row: str, cross: bool = False
) -> str:  # fmt: skip
    """The vector of these columns, `step` apart, of an input row of `extent` columns; `cross`: in
    the order CROSSED.
    """
    lanes = len(columns)
    how = gather(columns, step, extent)
    if cross:
        return _crossed_text(how, row)
    if not how.loads:
        elements = ('0.0f' if c is None else f'({row})[{c}]' for c in columns)
        return f'(row_v){{{", ".join(elements)}}}'
    loads = [f'*(const row_v *)({total([row, str(c)])})' for c in how.loads]
    if how.plain:
        return loads[0]
    if len(loads) == 1:
        return _shifted(loads[0], [None if p is None else p[1] for p in how.lanes], lanes)
    picked = ', '.join('-1' if p is None else str(p[0] * lanes + p[1]) for p in how.lanes)
    text = f'__builtin_shufflevector({loads[0]}, {loads[1]}, {picked})'
    if None not in how.lanes:
        return text
    kept = [None if p is None else i for i, p in enumerate(how.lanes)]
    return _shifted(text, kept, lanes)


def _crossed_text(how: Gather, row: str) -> str:
    """Every other column in the order CROSSED: two loads and one shuffle inside their halves.

    Where lanes are zero, those of the vector inside the row move, and zeros are blended in.
    """
    lanes = len(CROSSED)
    picked = [how.lanes[lane] for lane in CROSSED]
    if not how.loads:
        elements = ('0.0f' if p is None else f'({row})[{p[0]}]' for p in picked)
        return f'(row_v){{{", ".join(elements)}}}'
    loads = [f'*(const row_v *)({total([row, str(c)])})' for c in how.loads]
    places = [None if p is None else p[0] * lanes + p[1] for p in picked]
    both = f'__builtin_shufflevector({loads[0]}, {loads[-1]}, '
    if None not in places:
        return f'{both}{", ".join(map(str, places))})'
    if how.loads[-1] - how.loads[0] == lanes:
        first = next(place for place in places if place is not None) % 2
        whole = [first + 2 * lane for lane in CROSSED]
        moved = [lanes if place is None else whole.index(place) for place in places]
        text = f'{both}{", ".join(map(str, whole))})'
    else:
        moved = [i + lanes * (place is None) for i, place in enumerate(places)]
        text = f'{both}{", ".join(str(place or 0) for place in places)})'
    return f'__builtin_shufflevector({text}, zero_v, {", ".join(map(str, moved))})'


def in_order(name: str) -> str:
    """A vector in the order CROSSED, in the order of memory: it is its own inverse."""
    return f'__builtin_shufflevector({name}, {name}, {", ".join(map(str, CROSSED))})'


def _shifted(text: str, picked: list[int | None], lanes: int) -> str:
    """Lanes of one vector, and zeros.

    Neighbours with zeros on one side are the lanes of two vectors side by side, one of zeros, which
    is one instruction everywhere: the zeros are counted so that the indices rise by one.
    """
    index, gap = [], lanes - picked.count(None) if picked[0] is None else lanes
    front = 'zero_v, ' if picked[0] is None else ''
    for lane in picked:
        if lane is None:
            index.append(gap % lanes + (0 if front else lanes))
            gap += 1
        else:
            index.append(lane + (lanes if front else 0))
    back = '' if front else ', zero_v'
    return f'__builtin_shufflevector({front}{text}{back}, {", ".join(map(str, index))})'


def _write_store(
    writer: Writer, plan: StencilPlan, rows: Rows, strip: Strip, i: int, v: int
) -> None:
    """The epilogue of one accumulator, and its store: all lanes, or the row that is shorter."""
    shape, name = plan.shape, f's{i}_{v}'
    name = in_order(name) if plan.crossed else name
    down, across = shape.down.name, shape.across.name

    def place(down_stride: int, across_stride: int) -> str:
        row = i + (rows.start if rows.fixed else 0)
        moving = '' if strip.fixed else scaled(across, across_stride)
        fixed = row * down_stride + strip.starts[v] * across_stride
        return total([moving, str(fixed)])

    if plan.epilogue.expression != 'value':
        _open_block(writer)
        for item in plan.epilogue.operands:
            at = total([item.name, place(item.stride(down), item.stride(across))])
            read = _operand(plan, item.stride(across), at, strip)
            writer.line(f'const row_v {item.name}_v = {read};')
        writer.line(f'const row_v value = {name};')
        writer.line(f'const row_v result_v = {plan.epilogue.expression};')
        name = 'result_v'
    strides, _ = access_strides(plan.group, shape.stage.write)
    to = total(['out', place(strides.get(down, 0), strides[across])])
    if strip.width == plan.lanes:
        writer.line(f'*(row_v *)({to}) = {name};')
    else:
        if plan.crossed and name != 'result_v':
            writer.line(f'const row_v whole{i}_{v} = {name};')
            name = f'whole{i}_{v}'
        writer.line(f'memcpy({to}, &{name}, {strip.width} * sizeof(float));')
    if plan.epilogue.expression != 'value':
        writer.close()


def _operand(plan: StencilPlan, stride: int, at: str, strip: Strip) -> str:
    """The operand of an epilogue for the lanes of one vector."""
    if stride == 0:
        return broadcast(f'*({at})')
    if stride == 1 and strip.width == plan.lanes:
        return f'*(const row_v *)({at})'
    elements = ', '.join(f'({at})[{stride * lane}]' for lane in range(strip.width))
    return f'(row_v){{{elements}}}'


def _write_part(writer: Writer, plan: StencilPlan, places: dict[str, int]) -> None:
    shape, stage = plan.shape, plan.shape.stage
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(plan.group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or total(['args->packed', str(places[tensor])])

    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    nest = Nest(stage, plan.schedule, writer)
    nest.open_parts()
    order = [d for d in plan.schedule.levels[-1].order if d in shape.outer]
    for name in order:
        low, high = nest.at(name)
        writer.open(f'for (long {name} = {low}; {name} < {high}; {name}++)')

    def moved(base: str, strides: dict[str, int], const: int) -> str:
        return total([base, *(scaled(d, strides.get(d, 0)) for d in order), str(const)])

    strides, const = _plane(plan)
    writer.line(f'const float *a = {moved(pointer(shape.a.tensor), strides, const)};')
    packed = weights_at(shape, stage.sizes, plan.padded)
    writer.line(f'const float *weights = {moved(pointer(shape.b.tensor), packed, 0)};')
    strides, const = access_strides(plan.group, stage.write)
    writer.line(f'float *out = {moved("args->out", strides, const)};')
    for item in plan.epilogue.operands:
        at = moved(pointer(item.tensor), dict(item.strides), item.const)
        writer.line(f'const float *{item.name} = {at};')
    _write_calls(writer, plan, nest)
    writer.close(len(order) + 1)


def _plane(plan: StencilPlan) -> tuple[dict[str, int], int]:
    """Strides and constant of the input's first row and column: both axes left out."""
    strides, const = access_strides(plan.group, plan.shape.a)
    steps = plan.group.tensor(plan.shape.a.tensor).strides
    for number in {plan.shape.down_axis, len(steps) - 1} - {-1}:
        const -= steps[number] * plan.shape.a.index[number].const
    return strides, const


def _write_calls(writer: Writer, plan: StencilPlan, nest: Nest) -> None:
    """Every tile of rows that this thread owns."""
    name = plan.shape.down.name
    operands = ''.join(f', {item.name}' for item in plan.epilogue.operands)
    low, high = nest.at(name) if name else ('0', '1')
    whole = low == '0'
    for number, rows in enumerate(plan.rows):
        call = f'rows_{number}(a, weights, out{operands}'
        if rows.fixed:
            if not whole:
                writer.line(f'if ({low} <= {rows.start} && {rows.start} < {high})')
            writer.line(('' if whole else '    ') + f'{call});')
            continue
        if rows.when:
            writer.line(f'if ({rows.when[0]} == {rows.when[1]})')
        end = rows.start + (1 if rows.when else rows.times) * rows.count
        first = str(rows.start) if whole else f'max_long({low}, {rows.start})'
        last = str(end) if whole else f'min_long({high}, {end})'
        writer.line(f'for (long {name} = {first}; {name} < {last}; {name} += {rows.count})')
        writer.line(f'    {call}, {name});')
