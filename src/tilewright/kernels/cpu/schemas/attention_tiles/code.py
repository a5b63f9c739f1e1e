"""The schema of attention in tiles: both products of bf16, added in float32, by tiles.

Goes in: a plan (plan.py). Comes out: C with the ABI of kernels/cpu/abi.py.

    for each stacked point                  pack its keys and columns in words (shared ones once)
      for each block of rows                copy the rows
        for each block of keys              scores by tiles; through scale and mask, exponentials
                                            and running sums as with floats (schemas/attention);
                                            weights are rounded to bf16; sums added up by tiles
        store                               sums / Total

Totals are those of weights before they are rounded: what rounding takes from some it gives others.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, Typed
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.isa import micro, tiles
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.schemas.attention.code import (
    kernel_name,
    place_of,
    write_constants,
    write_key_blocks,
    write_weighing,
)
from tilewright.kernels.cpu.schemas.attention.weights import write_weights
from tilewright.kernels.cpu.schemas.attention_tiles.pack import kind_of, write_packs
from tilewright.kernels.cpu.schemas.attention_tiles.plan import PRODUCTS, TiledAttentionPlan
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import TILE_ROWS
from tilewright.ops.attention import COLUMN, ROW
from tilewright.ops.stage import Access


def generate(p: TiledAttentionPlan) -> str:
    """[TiledAttentionPlan] -> [C source]"""
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
    writer.lines += [*tiles.prologue(p.schedule.isa, p.schedule.dtype).splitlines(), '']
    _write_micro(writer, p)
    write_packs(writer, p)
    writer.lines += body.lines
    return writer.text()


def _write_micro(writer: Writer, p: TiledAttentionPlan) -> None:
    """Rows of words lie behind each other in a thread's own memory."""
    vectors = {(0, p.width), (1, p.tail)} | ({(1, p.width)} if p.full_panels else set())
    for product, width in sorted(vectors):
        step, out = (p.deep, p.pitch) if product == 0 else (p.weight_pitch, p.columns)
        kernel = micro.MicroKernel(
            p.schedule.isa, tuple(row * step for row in range(p.high)), width // p.lanes, (0,), 1,
            tuple(row * out for row in range(p.high)), kernel_name(p, product, width // p.lanes),
            dtype=p.schedule.dtype, accumulation=p.schedule.accumulation, deep=TILE_ROWS,
        )  # fmt: skip
        writer.lines += micro.emit(kernel).splitlines()
        writer.line()


def _write_part(
    writer: Writer, p: TiledAttentionPlan, operands: list[tuple[str, Access]],
    places: dict[str, int],
) -> None:  # fmt: skip
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'(args->packed + {places[tensor]})'

    def source(access: Access) -> str:
        kind = kind_of(p, access)
        place = place_of(p, access, p.form.stack)
        return f'(const {kind} *){pointer(access.tensor)} + {place}'

    writer.open('void tw_part(const tw_args *args, long part)')
    at = '(float *)(args->scratch + part * tw_scratch_bytes())'
    for name, size in p.buffers:
        writer.line(f'float *{name} = {at};')
        at = f'{name} + {size}'
    writer.line('const void *shape = NULL;')
    writer.line('tiles_begin();')
    nest = Nest(p.form.values, p.schedule, writer)
    nest.open_parts()
    for d in p.packed_by:
        low, high = nest.at(d)
        writer.open(f'for (long {d} = {low}; {d} < {high}; {d}++)')
    writer.line(f'pack_keys({source(p.form.keys)}, (uint32_t *)k_panels);')
    writer.line(f'pack_columns({source(p.form.columns)}, (uint32_t *)v_panels);')
    for d in p.sharing:
        low, high = nest.at(d)
        writer.open(f'for (long {d} = {low}; {d} < {high}; {d}++)')
    low, high = nest.at(ROW)
    writer.open(f'for (long i_block = {low}; i_block < {high}; i_block += {p.rows})')
    writer.line(f'const long rows = min_long({p.rows}, {high} - i_block);')
    writer.line(f'const long tiles = (rows + {p.high - 1}) / {p.high};')
    first = scaled('i_block', p.strides(p.form.queries)[ROW])
    writer.line(f'pack_rows({source(p.form.queries)} + {first}, (uint16_t *)q_rows, rows);')
    writer.open('for (long r = 0; r < rows; r++)')
    writer.line('peaks[r] = -INFINITY;')
    writer.line('totals[r] = 0.0f;')
    writer.close()
    if p.form.causal is not None:  # of rows that see nothing
        writer.line(f'memset(sums, 0, 4 * {p.rows * p.columns});')
    write_key_blocks(writer, p)
    _write_scores(writer, p)
    write_weighing(writer, p, operands, pointer)
    _write_sums(writer, p)
    writer.close()
    _write_store(writer, p)
    writer.close(len(p.form.stack) + 1)
    writer.line('tiles_end();')
    writer.close()


def _write_scores(writer: Writer, p: TiledAttentionPlan) -> None:
    name = kernel_name(p, 0, p.width // p.lanes)
    writer.open(f'for (long n = 0; n < count; n += {p.width})')
    writer.open('for (long t = 0; t < tiles; t++)')
    writer.line(
        f'{name}(q_rows + t * {p.high * p.deep}, k_panels + (j_block + n) * {p.deep}, '
        f'scores + t * {p.high * p.pitch} + n, {p.deep}, 0, &shape);'
    )
    writer.close(2)


def _write_sums(writer: Writer, p: TiledAttentionPlan) -> None:
    """Weights in words, whole tiles of them, times columns."""
    writer.line(f'const long whole = (count + {p.width - 1}) / {p.width} * {p.width};')
    writer.line('for (long r = 0; r < rows; r++)')
    writer.line(
        f'    pack_weights(scores + r * {p.pitch}, (uint16_t *)(weights + r * {p.weight_pitch}), '
        f'whole);'
    )
    first = 0
    writer.open('for (long t = 0; t < tiles; t++)')
    while first < p.columns:
        width = p.width if first < p.full_panels * p.width else p.tail
        panel = f'v_panels + {first * p.key_words} + j_block / {PRODUCTS} * {width}'
        writer.line(
            f'{kernel_name(p, 1, width // p.lanes)}(weights + t * {p.high * p.weight_pitch}, '
            f'{panel}, sums + t * {p.high * p.columns} + {first}, whole / {PRODUCTS}, j_block, '
            f'&shape);'
        )
        first += width
    writer.close()


def _write_store(writer: Writer, p: TiledAttentionPlan) -> None:
    strides, dtype = p.strides(p.form.values.write), p.group.output.dtype
    place = [scaled(d, strides[d]) for d in p.form.stack]
    place += [scaled('(i_block + r)', strides[ROW]), str(strides.const)]
    writer.open('for (long r = 0; r < rows; r++)')
    writer.line(f'{C_TYPES[dtype]} *restrict to = ({C_TYPES[dtype]} *)args->out + {total(place)};')
    divided = '1.0f / totals[r]'
    if p.form.guarded:
        divided = f'totals[r] == 0.0f ? 0.0f : {divided}'
    writer.line(f'const float part_of = {divided};')
    writer.line(f'for (long e = 0; e < {p.size(COLUMN)}; e++)')
    made = f'sums[r * {p.columns} + e] * part_of'
    made = f'float_bf16({made})' if dtype == 'bf16' else made
    writer.line(f'    to[{scaled("e", strides[COLUMN]) or "0"}] = {made};')
    writer.close()
