"""The Strassen schema of f16 in C: a few rows of every block at a time through a thread's scratch.

    rows of a block      add_inputs: sums of blocks, eight channels at a time  -> V[row][t][c]
      panels of columns    micro-kernels  V[t] x U[panel][t]                   -> M[t][row][lanes]
                           results: blocks of the result, epilogue, store

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
All of it is f16: channels are innermost, so that sums of blocks are sums of vectors as they lie in
memory. Inputs are divided by the number of blocks of a row, so that no sum of them is larger than
the largest input, and results are multiplied by it: powers of two, which round nothing. Rows behind
the last one of the last blocks are zeros, and are not stored. Weights are added in double, once.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.half_epilogue import LANES
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.schemas.strassen.code import namer
from tilewright.kernels.cpu.schemas.strassen_half.plan import STEPS, HalfBlocksPlan
from tilewright.kernels.cpu.schemas.winograd_half.code import WEIGHTS_AHEAD
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.strassen import LEFT, RIGHT, gather, spread


def generate(p: HalfBlocksPlan) -> str:
    """[HalfBlocksPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    p.epilogue.write_functions(writer)
    kind = f'vector_size({2 * LANES}), aligned(2), may_alias'
    writer.line(f'typedef f16 half_v __attribute__(({kind}));')
    writer.line()
    for vectors in p.widths:
        for run in sorted({r for runs in p.runs.values() for r in runs}):
            writer.lines += [*micro.emit(_micro(p, run, vectors)).splitlines(), '']
        _write_products(writer, p, vectors)
    _write_inputs(writer, p)
    _write_results(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def _micro(p: HalfBlocksPlan, run: int, vectors: int) -> micro.MicroKernel:
    return micro.MicroKernel(
        p.schedule.isa,
        tuple(number * p.pitch // 2 for number in range(run)),
        vectors,
        tuple(range(STEPS)),
        STEPS,
        tuple(number * p.width // 2 for number in range(run)),
        micro.micro_name(p.schedule.isa, (run,), vectors),
        b_ahead=WEIGHTS_AHEAD,
        a_ahead=False,
        dtype='f16',
        accumulation='f16',
    )


def _points(p: HalfBlocksPlan) -> list[tuple[int, int]]:
    """Row and column of every block of a matrix."""
    return [(r, c) for r in range(p.parts) for c in range(p.parts)]


def _write_products(writer: Writer, p: HalfBlocksPlan, vectors: int) -> None:
    """One product with a panel of so many vectors, for every number of rows."""
    writer.open(
        f'static void multiply_v{vectors}(const float *v, const float *u, float *m, long rows, '
        'long count, long resume)'
    )
    writer.line('switch (rows) {')
    for rows, runs in p.runs.items():
        writer.line(f'case {rows}:')
        done = 0
        for run in runs:
            name = micro.micro_name(p.schedule.isa, (run,), vectors)
            places = f'v + {done * p.pitch // 2}, u, m + {done * p.width // 2}'
            writer.line(f'    {name}({places}, count, resume);')
            done += run
        writer.line('    break;')
    writer.line('}')
    writer.close()
    writer.line()


def _write_inputs(writer: Writer, p: HalfBlocksPlan) -> None:
    """`add_inputs`: what is multiplied, of `rows` rows of every block from `row` on."""
    strides, const = access_strides(p.group, p.contraction.a)
    whole, step = p.group.main.sizes[p.row], strides[p.row]
    short = p.parts * p.high > whole
    if short:
        writer.line(f'static const f16 nothing[{p.parts * p.deep}];')
        writer.line()
    writer.open(
        'static __attribute__((noinline)) void add_inputs(const f16 *source, long row, long rows, '
        'f16 *v)'
    )
    writer.line(f'const half_v scale = (half_v)vdupq_n_f16({1 / p.parts});')
    writer.open('for (long i = 0; i < rows; i++)')
    for r in range(p.parts):
        place = f'source + (row + i + {r * p.high}) * {step} + {const}'
        if (r + 1) * p.high > whole:
            place = f'row + i + {r * p.high} < {whole} ? {place} : nothing'
        writer.line(f'const f16 *r{r} = {place};')
    writer.line(f'f16 *to = v + i * {p.pitch};')
    writer.open(f'for (long x = 0; x < {p.deep}; x += {LANES})')
    for r, c in _points(p):
        writer.line(f'const half_v a{r}_{c} = scale * *(const half_v *)(r{r} + x + {c * p.deep});')
    names = {(r, c): f'a{r}_{c}' for r, c in _points(p)}
    for number, name in enumerate(spread(names, LEFT, namer(writer, 'half_v'), p.levels)):
        writer.line(f'*(half_v *)(to + x + {number * p.deep}) = {name};')
    writer.close(3)
    writer.line()


def _write_results(writer: Writer, p: HalfBlocksPlan) -> None:
    """`results`: every block of the result, of `rows` rows and the columns of a panel."""
    result, whole = C_TYPES[p.group.output.dtype], p.group.main.sizes[p.row]
    strides, const = access_strides(p.group, p.group.main.write)
    writer.open(
        f'static __attribute__((noinline)) void results(const f16 *m, {result} *out, long row, '
        f'long rows, long column, long lanes{p.epilogue.pointers()})'
    )
    writer.line(f'const half_v scale = (half_v)vdupq_n_f16({p.parts}.0);')
    writer.open('for (long i = 0; i < rows; i++)')
    writer.open(f'for (long j = 0; j < lanes; j += {LANES})')
    writer.line(f'const f16 *from = m + i * {p.width} + j;')
    step = p.rows * p.width
    for number in range(p.products):
        writer.line(f'const half_v p{number} = *(const half_v *)(from + {number * step});')
    names = [f'p{number}' for number in range(p.products)]
    found = gather(names, namer(writer, 'half_v'), p.levels)
    for (r, c), name in found.items():
        down, across = f'(row + i + {r * p.high})', f'column + j + {c * p.wide}'
        beyond = (r + 1) * p.high > whole
        if beyond:
            writer.open(f'if ({down} < {whole})')

        def at(item: Operand, down: str = down, across: str = across) -> str:
            if p.epilogue.kind(item) == 'f16' != item.dtype:
                return f'{item.name} + {across}'
            along = across if item.stride(p.vector) else ''
            return total(
                [item.name, scaled(down, item.stride(p.row)), *filter(None, [along]),
                 str(item.const)]
            )  # fmt: skip

        place = total(['out', scaled(down, strides[p.row]), across, str(const)])
        p.epilogue.write_result(writer, f'(float16x8_t)(scale * {name})', place, at, True)
        if beyond:
            writer.close()
    writer.close(3)
    writer.line()


def _places(p: HalfBlocksPlan) -> tuple[dict[str, int], int]:
    """Where constants lie behind the weights, in floats; and floats of all."""
    weights = p.contraction.b.tensor
    places = abi.constant_places(p.group, weights, abi.aligned(p.weight_halves // 2))
    ends = [
        places[t.name] + abi.aligned(-(-t.bytes // 4))
        for t in p.group.with_role('constant')
        if t.name != weights
    ]
    return places, max([abi.aligned(p.weight_halves // 2), *ends])


def _write_packing(writer: Writer, p: HalfBlocksPlan) -> None:
    """tw_pack: sums of weights in double, rounded once: U[panel][t][c][lanes]."""
    strides, const = access_strides(p.group, p.contraction.b)
    along, across = strides[p.contraction.loop], strides[p.vector]
    places, floats = _places(p)
    names = [t.name for t in p.group.with_role('constant')]
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    source = f'constants[{names.index(p.contraction.b.tensor)}]'
    writer.line(f'const f16 *from = (const f16 *){source} + {const};')
    writer.open(f'for (long first = 0; first < {p.wide}; first += {p.width})')
    writer.line(f'const long width = min_long({p.width}, {p.wide} - first);')
    writer.line(f'f16 *panel = (f16 *)packed + first * {p.products * p.deep};')
    writer.open(f'for (long c = 0; c < {p.deep}; c++)')
    writer.open('for (long lane = 0; lane < width; lane++)')
    start = total([scaled('c', along), scaled('(first + lane)', across)])
    writer.line(f'const f16 *weights = from + {start};')
    for r, c in _points(p):
        place = r * p.deep * along + c * p.wide * across
        writer.line(f'const double a{r}_{c} = (double)weights[{place}];')
    blocks = {(r, c): f'a{r}_{c}' for r, c in _points(p)}
    writer.line('f16 *to = panel + c * width + lane;')
    for number, name in enumerate(spread(blocks, RIGHT, namer(writer, 'double'), p.levels)):
        writer.line(f'to[{number * p.deep} * width] = (f16)({name});')
    writer.close(3)
    p.epilogue.write_packed(writer, p.group, places, p.parts * p.wide)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, floats)


def _write_part(writer: Writer, p: HalfBlocksPlan) -> None:
    """A thread's rows, some at a time: sums, products and results for each of its panels."""
    group = p.group
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places, _ = _places(p)
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line(f'const f16 *source = (const f16 *){inputs[p.contraction.a.tensor]};')
    p.epilogue.write_operands(writer, inputs, places)
    writer.line('float *v = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *m = v + {abi.aligned(p.input_halves // 2)};')
    ways, across = p.row_ways, p.column_ways
    writer.line(f'const long low = {p.high} * (part % {ways}) / {ways};')
    writer.line(f'const long high = {p.high} * (part % {ways} + 1) / {ways};')
    writer.line(f'const long left = {p.panels} * (part / {ways}) / {across} * {p.width};')
    last = f'{p.panels} * (part / {ways} + 1) / {across} * {p.width}'
    writer.line(f'const long right = min_long({last}, {p.wide});')
    writer.line(f'const long blocks = (high - low + {p.rows - 1}) / {p.rows};')
    writer.open('for (long block = 0; block < blocks; block++)')
    writer.line('const long row = low + (high - low) * block / blocks;')
    writer.line('const long rows = low + (high - low) * (block + 1) / blocks - row;')
    writer.line('add_inputs(source, row, rows, (f16 *)v);')
    writer.open(f'for (long column = left; column < right; column += {p.width})')
    writer.line(f'const float *u = args->packed + column * {p.products * p.deep // 2};')
    writer.line(f'const long width = min_long({p.width}, {p.wide} - column);')
    count, run = p.deep // (2 * STEPS), p.run

    def every_product(vectors: int) -> None:
        writer.open(f'for (long t = 0; t < {p.products}; t++)')
        writer.open(f'for (long c = 0; c < {count}; c += {run})')
        writer.line(
            f'multiply_v{vectors}(v + t * {p.deep // 2} + c * {STEPS}, '
            f'u + (t * {count} + c) * {STEPS * vectors * LANES}, '
            f'm + t * {p.rows * p.width // 2}, rows, min_long({run}, {count} - c), c > 0);'
        )
        writer.close(2)

    _by_width(writer, p, every_product)
    operands = ''.join(f', {item.name}' for item in p.epilogue.operands)
    writer.line(
        f'results((const f16 *)m, ({C_TYPES[group.output.dtype]} *)args->out, row, rows, column, '
        f'width{operands});'
    )
    writer.close(3)


def _by_width(writer: Writer, p: HalfBlocksPlan, write: Callable[[int], None]) -> None:
    """The loop for whole panels, and for the last one where that is narrower."""
    first, *others = p.widths
    if not others:
        write(first)
        return
    writer.open(f'if (width == {p.width})')
    write(first)
    writer.close()
    writer.open('else')
    write(others[0])
    writer.close()
