"""The Strassen schema: sums of blocks of both operands, their products, and results made of these.

Goes in: a plan (plan.py) over the dimensions of one block. Comes out: C with the ABI of
kernels/cpu/abi.py.

    l3 band   rows and columns of a block that are computed together
    l2 band     pieces of the sum: sums of blocks of the input -> V[row][product][term]
                  every product
    l1 band         panels of weights
    reg band          register tiles: V[product] x U[product] -> M[panel][tile][product]
                results of every register tile, one for each block, through the epilogue

Weights are summed once, in float64, when they are packed, and lie in the order in which they are
read. Rows behind the end of the last block are zeros in V, and are not stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.nest import Nest, every
from tilewright.kernels.cpu.pointwise import access_strides, write_epilogue
from tilewright.kernels.cpu.schemas.outer.code import write_kernels
from tilewright.kernels.cpu.schemas.strassen.plan import StrassenPlan
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.strassen import LEFT, RIGHT, gather, spread


def generate(p: StrassenPlan) -> str:
    """[StrassenPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    write_epilogue(writer, p.block.functions)
    kind = f'vector_size({4 * ISAS[p.schedule.isa].lanes}), aligned(4), may_alias'
    writer.line(f'typedef float vec __attribute__(({kind}));')
    writer.line()
    write_kernels(writer, p.block, a_ahead=False)
    _write_sums(writer, p)
    _write_fill(writer, p)
    _write_results(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def namer(writer: Writer, kind: str) -> Callable[[Sequence[tuple[int, str]]], str]:
    """What writes a sum of terms as a variable of its own; a single term stays what it is."""
    count = 0

    def combine(terms: Sequence[tuple[int, str]]) -> str:
        nonlocal count
        if len(terms) == 1 and terms[0][0] == 1:
            return terms[0][1]
        text = ' '.join(f'{"+" if sign > 0 else "-"} {name}' for sign, name in terms)
        count += 1
        writer.line(f'const {kind} s{count} = {text.removeprefix("+ ")};')
        return f's{count}'

    return combine


def _points(p: StrassenPlan) -> list[tuple[int, int]]:
    return [(r, c) for r in range(p.parts) for c in range(p.parts)]


def _write_sums(writer: Writer, p: StrassenPlan) -> None:
    """`sum_vec`, `sum_float`: what is multiplied, of one vector or number of every block."""
    for kind in ('vec', 'float')[: 2 - p.whole_vectors]:
        blocks = ''.join(f', {kind} a{r}_{c}' for r, c in _points(p))
        writer.open(f'static inline void sum_{kind}(float *to{blocks})')
        names = {(r, c): f'a{r}_{c}' for r, c in _points(p)}
        found = spread(names, LEFT, namer(writer, kind), p.levels)
        for number, name in enumerate(found):
            writer.line(f'*({kind} *)(to + {number * p.v_step}) = {name};')
        writer.close()
        writer.line()


def _write_fill(writer: Writer, p: StrassenPlan) -> None:
    """`fill`: the left operands of all products, `count` terms of rows `from` to `end`."""
    strides, const = access_strides(p.group, p.block.contraction.a)
    rows, deep, whole = p.sizes[p.row], p.sizes[p.loop], p.group.main.sizes[p.row]
    short = rows * p.parts > whole or p.row in every(p.schedule)
    if short:
        writer.line(f'static const float zeros[{(p.parts - 1) * deep + p.piece}];')
        writer.line()
    writer.open(
        'static void fill(const float *restrict source, float *restrict v, long from, long end, '
        'long count)'
    )
    writer.open('for (long row = from; row < end; row++)')
    writer.line(f'float *to = v + (row - from) * {p.block.operand.strides[p.row]};')
    for r in range(p.parts):
        start = f'source + row * {strides[p.row]} + {r * rows * strides[p.row] + const}'
        if short and r + 1 == p.parts:
            start = f'row + {r * rows} < {whole} ? {start} : zeros'
        writer.line(f'const float *r{r} = {start};')
    writer.line('long x = 0;')
    lanes = ISAS[p.schedule.isa].lanes
    for kind, step in (('vec', lanes), ('float', 1))[: 2 - p.whole_vectors]:
        blocks = ', '.join(f'*(const {kind} *)(r{r} + x + {c * deep})' for r, c in _points(p))
        writer.line(f'for (; x + {step} <= count; x += {step})')
        writer.line(f'    sum_{kind}(to + x, {blocks});')
    writer.close(2)
    writer.line()


def _write_results(writer: Writer, p: StrassenPlan) -> None:
    """`results`: the register tiles of every block of the result, of those of all products."""
    writer.open('static void results(const float *restrict m, float *restrict to)')
    writer.open(f'for (long i = 0; i < {p.tile_floats}; i += {ISAS[p.schedule.isa].lanes})')
    products = [f'(*(const vec *)(m + {n * p.tile_floats} + i))' for n in range(p.products)]
    for number, text in enumerate(products):
        writer.line(f'const vec p{number} = {text};')
    found = gather([f'p{n}' for n in range(p.products)], namer(writer, 'vec'), p.levels)
    for (r, c), name in found.items():
        writer.line(f'*(vec *)(to + {(r * p.parts + c) * p.tile_floats} + i) = {name};')
    writer.close(2)
    writer.line()


def _padded(p: StrassenPlan, text: str) -> str:
    """A C expression rounded up to whole vectors."""
    lanes = p.block.panels.lanes
    return f'({text} + {lanes - 1}) / {lanes} * {lanes}'


def constant_offsets(p: StrassenPlan) -> dict[str, int]:
    """Where each constant that is no weight lies behind the weights, in floats."""
    return abi.constant_places(p.group, p.block.contraction.b.tensor, p.packed_floats)


def _write_packing(writer: Writer, p: StrassenPlan) -> None:
    """tw_pack: sums of weights in the order in which they are read; other constants behind them."""
    c, panels, deep = p.block.contraction, p.block.panels, p.sizes[p.loop]
    strides, const = access_strides(p.group, c.b)
    names = [tensor.name for tensor in p.group.with_role('constant')]
    blocks = ''.join(f', double a{r}_{c}' for r, c in _points(p))
    writer.open(f'static inline void sum_weights(float *restrict to{blocks})')
    found = spread(
        {(r, c): f'a{r}_{c}' for r, c in _points(p)}, RIGHT, namer(writer, 'double'), p.levels
    )
    for number, name in enumerate(found):
        writer.line(f'to[{number * panels.width}] = (float)({name});')
    writer.close()
    writer.line()
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line(f'const float *b = constants[{names.index(c.b.tensor)}];')
    ways = dict(p.schedule.parallel).get(p.vector, 1)
    units = -(-panels.size // panels.width)
    writer.open(f'for (long part = 0; part < {ways}; part++)')
    writer.line(f'const long begin = {units} * part / {ways} * {panels.width};')
    cut = f'{units} * (part + 1) / {ways} * {panels.width}'
    writer.line(f'const long end = min_long({cut}, {panels.size});')
    writer.open(f'for (long first = begin; first < end; first += {p.columns})')
    writer.line(f'const long last = min_long(first + {p.columns}, end);')
    writer.line(f'const long held = {_padded(p, "last - first")};')
    writer.line(f'float *u = packed + first * {p.products * deep};')
    writer.open(f'for (long piece = 0; piece < {deep}; piece += {p.piece})')
    writer.line(f'const long count = min_long({p.piece}, {deep} - piece);')
    writer.open(f'for (long panel = first; panel < last; panel += {panels.width})')
    writer.line(f'const long width = min_long({panels.width}, first + held - panel);')
    writer.line(f'float *to = u + piece * held * {p.products} + (panel - first) * count;')
    writer.open(f'for (long {p.loop} = piece; {p.loop} < piece + count; {p.loop}++)')
    writer.line('const long lanes = min_long(width, last - panel);')
    writer.line(f'float sums[{p.products * panels.width}] = {{0}};')
    shift = total([scaled(p.loop, strides[p.loop]), scaled('panel', strides[p.vector])])
    writer.line(f'const float *from = b + {shift};')
    writer.open('for (long lane = 0; lane < lanes; lane++)')
    weights = ', '.join(
        'from['
        + total(
            [
                scaled('lane', strides[p.vector]),
                str(r * deep * strides[p.loop] + c * panels.size * strides[p.vector] + const),
            ]
        )
        + ']'
        for r, c in _points(p)
    )
    writer.line(f'sum_weights(sums + lane, {weights});')
    writer.close()
    # Products lie so far apart that their lines share few sets of a cache: each is written once.
    writer.line(f'for (long t = 0; t < {p.products}; t++)')
    place = f'sums + t * {panels.width}'
    writer.line(f'    memcpy(to + t * count * held, {place}, width * sizeof(float));')
    writer.line('to += width;')
    writer.close(5)
    packed = abi.write_constants(writer, p.group, constant_offsets(p), p.packed_floats)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, packed)


def _write_part(writer: Writer, p: StrassenPlan) -> None:
    block, schedule, c = p.block, p.schedule, p.block.contraction
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    places = constant_offsets(p)
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line(f'const float *source = {inputs[c.a.tensor]};')
    writer.line('float *v = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *m = v + {p.v_floats};')
    writer.line(f'float *blocks = m + {p.m_floats};')
    for item in block.epilogue.operands:
        place = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
        writer.line(f'const float *{item.name} = {place};')
    nest = Nest(block.group.main, schedule, writer)
    nest.open_parts()
    l3 = schedule.levels[-1]
    for name in (*c.pixels, p.vector):
        if name in nest.loops(l3):
            nest.open_loop(l3, name)
    _write_products(writer, p, nest)
    _write_stores(writer, p, nest)
    nest.close()
    writer.close()


def _write_products(writer: Writer, p: StrassenPlan, nest: Nest) -> None:
    """Every product of the columns and rows at hand, into M."""
    panels, deep, c = p.block.panels, p.sizes[p.loop], p.block.contraction
    (first, last), (row, row_end) = nest.at(p.vector), nest.at(p.row)
    strides, _ = access_strides(p.group, c.a)
    high, row_floats = p.schedule.reg.tile[p.row], p.block.operand.strides[p.row]
    assert p.block.ahead is not None
    writer.line(f'const long held = {_padded(p, f"{last} - {first}")};')
    writer.line(f'const float *u = args->packed + {first} * {p.products * deep};')
    writer.open(f'for (long piece = 0; piece < {deep}; piece += {p.piece})')
    writer.line(f'const long count = min_long({p.piece}, {deep} - piece);')
    shift = total([scaled(nest.start(d), strides[d]) for d in c.pixels[:-1]] + ['piece'])
    writer.line(f'fill(source + {shift}, v, {row}, {row_end}, count);')
    writer.open(f'for (long t = 0; t < {p.products}; t++, u += count * held)')
    writer.open(f'for (long panel = {first}; panel < {last}; panel += {panels.width})')
    writer.line(f'const long last = panel + {panels.width} >= {panels.size};')
    writer.line(f'const float *weights = u + (panel - {first}) * count;')
    writer.line(f'const float *next = weights + count * {panels.width};')
    writer.line(f'const float *tile = v + t * {p.v_step};')
    place = f'(panel - {first}) / {panels.width} * {p.panel_floats}'
    writer.line(f'float *acc = m + {place} + t * {p.tile_floats};')
    writer.open(f'for (long row = {row}; row < {row_end}; row += {high})')
    writer.line(f'const long rows = min_long({high}, {row_end} - row);')
    _by_size(
        writer, p, lambda extents, vectors: (
            f'{micro.micro_name(p.schedule.isa, extents, vectors)}'
            f'(tile, weights, acc, count, piece > 0, next);'
        ),
    )  # fmt: skip
    writer.line(f'tile += {high * row_floats}, acc += {p.products * p.tile_floats};')
    writer.line(f'next += count * {p.block.ahead.floats};')
    writer.close(4)


def _write_stores(writer: Writer, p: StrassenPlan, nest: Nest) -> None:
    """Results of the columns and rows at hand, block by block."""
    block, panels, c = p.block, p.block.panels, p.block.contraction
    (first, last), (row, row_end) = nest.at(p.vector), nest.at(p.row)
    high, whole = p.schedule.reg.tile[p.row], p.group.main.sizes[p.row]
    writer.open(f'for (long panel = {first}; panel < {last}; panel += {panels.width})')
    writer.line(f'const long last = panel + {panels.width} >= {panels.size};')
    writer.line(f'const long lanes = min_long({panels.width}, {panels.size} - panel);')
    writer.open(f'for (long row = {row}; row < {row_end}; row += {high})')
    panel = f'(panel - {first}) / {panels.width} * {p.panel_floats}'
    writer.line(
        f'results(m + {panel} + (row - {row}) / {high} * {p.products * p.tile_floats}, blocks);'
    )
    writer.open(f'for (long q = 0; q < {p.parts**2}; q++)')
    at = {d: nest.start(d) for d in c.pixels[:-1]}
    at |= {p.row: 'down', p.vector: 'across'}
    writer.line(f'const long down = row + q / {p.parts} * {p.sizes[p.row]};')
    writer.line(f'const long across = panel + q % {p.parts} * {panels.size};')
    writer.line(f'const long rows = min_long(min_long({high}, {row_end} - row), {whole} - down);')
    writer.line(f'const float *acc = blocks + q * {p.tile_floats};')

    def place(stride: Callable[[str], int], const: int) -> str:
        return total([*(scaled(i, stride(d)) for d, i in at.items()), str(const)])

    out = place(lambda d: block.out_strides.get(d, 0), block.out_const)
    operands = ''.join(
        f', {item.name} + {place(item.stride, item.const)}' for item in block.epilogue.operands
    )
    writer.line('if (rows <= 0)')
    writer.line('    continue;')
    _by_size(
        writer, p, lambda extents, vectors: (
            f'store_p{"x".join(map(str, extents))}_v{vectors}'
            f'(acc, args->out + {out}, lanes{operands});'
        ),
    )  # fmt: skip
    writer.close(3)


def _by_size(writer: Writer, p: StrassenPlan, call: Callable[[tuple[int, ...], int], str]) -> None:
    """The variant for so many `rows`, and for the last panel where that is narrower."""
    panels, extents = p.block.panels, sorted(p.block.pixel_extents, reverse=True)
    variants = [
        (extent, vectors)
        for vectors in sorted({panels.vectors, panels.tail_vectors}, reverse=True)
        for extent in extents
    ]
    narrow = panels.tail_vectors != panels.vectors
    if not narrow:
        writer.line('(void)last;')
    for number, (extent, vectors) in enumerate(variants):
        tests = [f'{"" if vectors == panels.tail_vectors else "!"}last'] if narrow else []
        tests += [f'rows == {math.prod(extent)}'] if len(extents) > 1 else []
        if number + 1 == len(variants):
            writer.line('else' if number else '(void)rows;')
            writer.line(f'    {call(extent, vectors)}' if number else call(extent, vectors))
        else:
            writer.line(f'{"else " if number else ""}if ({" && ".join(tests)})')
            writer.line(f'    {call(extent, vectors)}')
