"""The attention schema: scores, weights and sums of a block at a time, none of them stored.

Goes in: a plan (plan.py). Comes out: C with the ABI of kernels/cpu/abi.py.

    for each stacked point                  pack its keys and columns (shared ones once)
      for each block of rows                copy the rows; Peak = -inf, Total = 0
        for each block of keys              scores by micro-kernels, through scale and mask;
                                            weights exp(score - Peak), Peak the largest so far;
                                            Total and sums scaled where Peak grew; sums added up
        store                               sums / Total

The running maximum and sum are those of Milakov and Gimelshein ("Online normalizer calculation for
softmax", 2018), the blocks those of FlashAttention (Dao et al., NeurIPS'22, Alg. 1). A row whose
scores are all -inf has a total of 0, and is NaN as a softmax is; NaN reaches the total of its row.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, Typed
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.schemas.attention.pack import write_direct, write_packs
from tilewright.kernels.cpu.schemas.attention.plan import AttentionPlan
from tilewright.kernels.cpu.schemas.attention.weights import write_weights
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.attention import COLUMN, DEPTH, KEY, ROW
from tilewright.ops.stage import Access

Pointer = Callable[[str], str]  # where a tensor lies, as a C expression


def generate(p: AttentionPlan) -> str:
    """[AttentionPlan] -> [C source]"""
    body, typed = Writer(), Typed()
    typed.functions['exp_f32'] = None
    operands = write_weights(body, p, typed)
    places = abi.constant_places(p.group, '', 0)
    body.open('void tw_pack(const float *const *constants, float *packed)')
    floats = write_constants(body, p, places)
    body.close()
    body.line()
    abi.write_sizes(body, p.schedule.threads, p.scratch_floats, floats)
    _write_part(body, p, operands, places)
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    writer.lines += ['#include <stdint.h>', '']
    write_functions(writer, typed.functions)
    if p.direct:
        write_direct(writer, p)
    else:
        _write_micro(writer, p)
        write_packs(writer, p)
    writer.lines += body.lines
    return writer.text()


def write_constants(writer: Writer, p: AttentionPlan, places: dict[str, int]) -> int:
    """Constants are copied as they are, whatever their dtype; comes out: floats of all of them."""
    if not places:
        writer.line('(void)constants, (void)packed;')
    floats = 0
    for number, tensor in enumerate(p.group.with_role('constant')):
        size = f'{tensor.bytes}'
        writer.line(f'memcpy(packed + {places[tensor.name]}, constants[{number}], {size});')
        floats = places[tensor.name] + abi.aligned(tensor.size)
    return floats


def kernel_name(p: AttentionPlan, product: int, vectors: int) -> str:
    """The scores' kernel has rows alone, that of the sums one layer of rows: 13 and 1x13."""
    extents = (p.high,) if product == 0 else (1, p.high)
    return micro.micro_name(p.schedule.isa, extents, vectors)


def _write_micro(writer: Writer, p: AttentionPlan) -> None:
    """Rows of either product lie behind each other in a thread's own memory."""
    vectors = {(0, p.width), (1, p.tail)} | ({(1, p.width)} if p.full_panels else set())
    for product, width in sorted(vectors):
        step, out = (p.size(DEPTH), p.pitch) if product == 0 else (p.pitch, p.columns)
        kernel = micro.MicroKernel(
            p.schedule.isa,
            tuple(row * step for row in range(p.high)),
            width // p.lanes,
            (0,),
            1,
            tuple(row * out for row in range(p.high)),
            kernel_name(p, product, width // p.lanes),
            a_ahead=False,
        )
        writer.lines += micro.emit(kernel).splitlines()
        writer.line()


def _write_part(
    writer: Writer, p: AttentionPlan, operands: list[tuple[str, Access]], places: dict[str, int]
) -> None:
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'(args->packed + {places[tensor]})'

    writer.open('void tw_part(const tw_args *args, long part)')
    at = '(float *)(args->scratch + part * tw_scratch_bytes())'
    for name, size in p.buffers:
        writer.line(f'float *{name} = {at};')
        at = f'{name} + {size}'
    nest = Nest(p.form.values, p.schedule, writer)
    nest.open_parts()
    for d in p.packed_by:
        low, high = nest.at(d)
        writer.open(f'for (long {d} = {low}; {d} < {high}; {d}++)')
    keys, columns = p.form.keys, p.form.columns
    writer.line(f'const float *k_at = {pointer(keys.tensor)} + {place_of(p, keys, p.form.stack)};')
    v_at = f'{pointer(columns.tensor)} + {place_of(p, columns, p.form.stack)}'
    writer.line(f'const float *v_at = {v_at};')
    if not p.direct:
        writer.line('pack_keys(k_at, k_panels);')
        writer.line('pack_columns(v_at, v_panels);')
    for d in p.sharing:
        low, high = nest.at(d)
        writer.open(f'for (long {d} = {low}; {d} < {high}; {d}++)')
    low, high = nest.at(ROW)
    writer.open(f'for (long i_block = {low}; i_block < {high}; i_block += {p.rows})')
    writer.line(f'const long rows = min_long({p.rows}, {high} - i_block);')
    _write_rows(writer, p, pointer)
    _write_keys(writer, p, operands, pointer)
    _write_store(writer, p)
    writer.close(len(p.form.stack) + 2)


def place_of(p: AttentionPlan, access: Access, names: tuple[str, ...]) -> str:
    """The offset of an access at a point of some iterators."""
    strides = p.strides(access)
    return total([*(scaled(d, strides[d]) for d in names), str(strides.const)])


def _write_rows(writer: Writer, p: AttentionPlan, pointer: Pointer) -> None:
    """The rows of a block, copied; those of the last tile that are not there are zero."""
    access = p.form.queries
    strides, depth = p.strides(access), p.size(DEPTH)
    writer.line(
        f'const float *q_at = {pointer(access.tensor)} + {place_of(p, access, p.form.stack)};'
    )
    writer.line(f'const long tiles = (rows + {p.high - 1}) / {p.high};')
    writer.open('for (long r = 0; r < rows; r++)')
    first = total([scaled('(i_block + r)', strides[ROW])])
    writer.line(f'for (long d = 0; d < {depth}; d++)')
    writer.line(
        f'    q_rows[r * {depth} + d] = q_at[{total([first, scaled("d", strides[DEPTH])])}];'
    )
    writer.line('peaks[r] = -INFINITY;')
    writer.line('totals[r] = 0.0f;')
    writer.close()
    if p.high > 1:
        writer.line(
            f'memset(q_rows + rows * {depth}, 0, 4 * (unsigned long)(tiles * {p.high} - rows) * '
            f'{depth});'
        )
    writer.line(f'memset(sums, 0, 4 * {p.columns} * (unsigned long)(tiles * {p.high}));')


def _write_keys(
    writer: Writer, p: AttentionPlan, operands: list[tuple[str, Access]], pointer: Pointer
) -> None:
    """The blocks of keys that one of the rows sees."""
    write_key_blocks(writer, p)
    for product in (0, 1):
        if product:
            write_weighing(writer, p, operands, pointer)
        if p.direct:
            call = 'score_rows(q_rows, k_at' if product == 0 else 'sum_rows(scores, v_at'
            buffer = 'scores' if product == 0 else 'sums'
            writer.line(f'{call}, {buffer}, rows, j_block, count);')
        elif product == 0:
            _write_products(writer, p)
        else:
            _write_sums(writer, p)
    writer.close()


def write_key_blocks(writer: Writer, p: AttentionPlan) -> None:
    """Opens the loop over blocks of keys that one of the rows sees."""
    end = str(p.size(KEY))
    if p.form.causal is not None:
        end = f'min_long({end}, i_block + rows + {p.form.causal})'
    writer.line(f'const long end = {end};')
    writer.open(f'for (long j_block = 0; j_block < end; j_block += {p.keys})')
    writer.line(f'const long count = min_long({p.keys}, end - j_block);')


def _write_products(writer: Writer, p: AttentionPlan) -> None:
    depth, name = p.size(DEPTH), kernel_name(p, 0, p.width // p.lanes)
    writer.open(f'for (long n = 0; n < count; n += {p.width})')
    writer.open('for (long t = 0; t < tiles; t++)')
    writer.line(
        f'{name}(q_rows + t * {p.high * depth}, k_panels + (j_block + n) * {depth}, '
        f'scores + t * {p.high * p.pitch} + n, {depth}, 0);'
    )
    writer.close(2)


def write_weighing(
    writer: Writer, p: AttentionPlan, operands: list[tuple[str, Access]], pointer: Pointer
) -> None:
    given = ''
    for _, access in operands:
        kind, strides = C_TYPES[p.group.tensor(access.tensor).dtype], p.strides(access)
        place = [scaled(d, strides[d]) for d in p.form.stack]
        place += [scaled('(i_block + r)', strides[ROW]), scaled('j_block', strides[KEY])]
        base = f'(const {kind} *)({pointer(access.tensor)})'
        given += f', {base} + {total([*place, str(strides.const)])}'
    used = {n for s in p.form.between for n in s.expr.iterators()}
    stack = ''.join(f', {d}' for d in p.form.stack if d in used)
    writer.line('for (long r = 0; r < rows; r++)')
    writer.line(
        f'    weigh(scores + r * {p.pitch}, sums + r * {p.columns}, peaks + r, totals + r, count, '
        f'i_block + r, j_block{stack}{given});'
    )


def _write_sums(writer: Writer, p: AttentionPlan) -> None:
    keys, high = p.size(KEY), p.high
    panels = ((str(p.full_panels), p.width), ('', p.tail))
    for count, width in panels:
        if count == '0':
            continue
        name = kernel_name(p, 1, width // p.lanes)
        first = scaled('e', p.width) if count else str(p.full_panels * p.width)
        panel = f'v_panels + ({first}) * {keys} + j_block * {width}'
        if count:
            writer.open(f'for (long e = 0; e < {count}; e++)')
        writer.open('for (long t = 0; t < tiles; t++)')
        writer.line(
            f'{name}(scores + t * {high * p.pitch}, {panel}, '
            f'sums + t * {high * p.columns} + {first}, count, j_block);'
        )
        writer.close(2 if count else 1)


def _write_store(writer: Writer, p: AttentionPlan) -> None:
    strides = p.strides(p.form.values.write)
    place = [scaled(d, strides[d]) for d in p.form.stack]
    place += [scaled('(i_block + r)', strides[ROW]), str(strides.const)]
    writer.open('for (long r = 0; r < rows; r++)')
    writer.line(f'float *restrict to = args->out + {total(place)};')
    divided = '1.0f / totals[r]'
    if p.form.guarded:
        divided = f'totals[r] == 0.0f ? 0.0f : {divided}'
    writer.line(f'const float part_of = {divided};')
    writer.line(f'for (long e = 0; e < {p.size(COLUMN)}; e++)')
    writer.line(
        f'    to[{scaled("e", strides[COLUMN]) or "0"}] = sums[r * {p.columns} + e] * part_of;'
    )
    writer.close()
