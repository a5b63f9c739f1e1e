"""The windows schema in C: every tap of a window is a vector of eight channels of f16.

    for n, rows of the result      where the rows of the window lie
      for tiles of pixels          one function for each set of columns that are inside
        for channels, by eight     taps of all pixels, what follows, into the result

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
Channels innermost are read as they lie in memory, and so are weights.
"""

from __future__ import annotations

import itertools

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, number
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.schemas.windows.plan import LANES, Tile, WindowsPlan
from tilewright.kernels.cpu.vector_epilogue import vector_type, write_functions
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.stage import COMBINERS

WRITTEN_OUT = 320  # multiply-adds of a tile; in larger ones rows of a window are a loop

HELPERS = f"""\
#include <stdint.h>
#include <arm_neon.h>

typedef _Float16 f16;
{INLINE} float16x8_t take_f16(const f16 *from) {{ return vld1q_f16((const float16_t *)from); }}
{INLINE} void put_f16(f16 *to, float16x8_t all) {{ vst1q_f16((float16_t *)to, all); }}
{INLINE} float16x8_t first_f16(const f16 *from, long count)
{{
    f16 all[{LANES}] = {{0}};
    for (long i = 0; i < count; i++)
        all[i] = from[i];
    return take_f16(all);
}}
{INLINE} void put_first_f16(f16 *to, float16x8_t all, long count)
{{
    f16 made[{LANES}];
    put_f16(made, all);
    for (long i = 0; i < count; i++)
        to[i] = made[i];
}}
"""
OF_FLOATS = f"""\
{INLINE} void first_f32(float *to, const float *from, long count)
{{
    for (long i = 0; i < {LANES}; i++)
        to[i] = i < count ? from[i] : 0.0f;
}}
"""
_JOIN = {
    'max': 'vmaxq_f16({}, {})',
    'min': 'vminq_f16({}, {})',
    'sum': 'vaddq_f16({}, {})',
}


def generate(p: WindowsPlan) -> str:
    """[WindowsPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    writer.lines += [*HELPERS.splitlines(), '']
    if not p.native:
        writer.lines += vector_type(4)
        writer.lines += [*OF_FLOATS.splitlines(), '']
        write_functions(writer, p.vector, 4)
        _write_finish(writer, p)
    kinds = {tile.columns: tile for tile in p.tiles}
    names = {columns: f'tile_{number}' for number, columns in enumerate(kinds)}
    for columns, tile in kinds.items():
        _write_tile(writer, p, tile, names[columns])
    _write_packing(writer, p)
    _write_part(writer, p, names)
    return writer.text()


def _followers(p: WindowsPlan) -> list[Operand]:
    """The operands of what follows, without a bias that sums start from."""
    bias = p.native.bias if p.native else ''
    return [item for item in p.operands if item.name != bias]


def _write_finish(writer: Writer, p: WindowsPlan) -> None:
    """Four sums through the epilogue, in float32."""
    given = ''.join(f', row_v {item.name}_v' for item in p.operands)
    writer.line(f'{INLINE} row_v finish(row_v value{given}) {{ return {p.vector.expression}; }}')
    writer.line()


def _pointers(p: WindowsPlan) -> str:
    return ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in p.operands)


def _write_tile(writer: Writer, p: WindowsPlan, tile: Tile, name: str) -> None:
    """One register tile: all channels of a thread, by vectors, what is left in a part of one."""
    result = C_TYPES[p.group.output.dtype]
    weights = ', const f16 *weights' if p.weights else ''
    writer.open(
        f'static __attribute__((noinline)) void {name}(const f16 *const *rows, long at{weights}, '
        f'{result} *restrict out, long from, long to{_pointers(p)})'
    )
    unrolled = p.down.taps * p.across.taps * len(tile.columns) <= WRITTEN_OUT
    if unrolled:
        for r in range(p.down.taps):
            writer.line(f'const f16 *r{r} = rows[{r}] + at;')
    writer.line('long c = from;')
    for whole in (True, False):
        if not whole and p.size % LANES == 0:
            continue
        writer.open(f'for (; c + {LANES} <= to; c += {LANES})' if whole else 'if (c < to)')
        if not whole:
            writer.line('const long count = to - c;')
        _write_sums(writer, p, tile, unrolled, whole)
        for i in range(len(tile.columns)):
            _write_result(writer, p, i, whole)
        writer.close()
    writer.close()
    writer.line()


def _take(place: str, whole: bool) -> str:
    return f'take_f16({place})' if whole else f'first_f16({place}, count)'


def _write_sums(writer: Writer, p: WindowsPlan, tile: Tile, unrolled: bool, whole: bool) -> None:
    """s0, s1 ..: the taps of every pixel joined."""
    pixels = range(len(tile.columns))
    start = f'vdupq_n_f16((float16_t){number(COMBINERS[p.combiner], "f32")})'
    if p.native and p.native.bias:
        start = f'take_f16((const f16 *){p.native.bias} + c)'
    begun = {i: bool(p.native and p.native.bias) or not unrolled for i in pixels}
    if any(begun.values()):
        writer.line(f'const float16x8_t start = {start};')
    for i in pixels:
        writer.line(f'float16x8_t s{i}{" = start" if begun[i] else ""};')
    if not unrolled:
        writer.open(f'for (long r = 0; r < {p.down.taps}; r++)')
        writer.line('const f16 *row = rows[r] + at;')
        step = p.across.taps * p.channels
        if p.weights:
            writer.line(f'const f16 *w = weights + r * {step};')
    for r in range(p.down.taps if unrolled else 1):
        row, taken = f'r{r}' if unrolled else 'row', set()
        for s in range(p.across.taps):
            users = [i for i in pixels if tile.columns[i][s] is not None]
            if not users:
                continue
            if p.weights:
                place = (r * p.across.taps + s) * p.channels if unrolled else s * p.channels
                of = 'weights' if unrolled else 'w'
                writer.line(f'const float16x8_t w{r}_{s} = take_f16({of} + {place} + c);')
            for i in users:
                column = tile.columns[i][s]
                assert column is not None
                value = f'x{r}_{column}'
                if column not in taken:
                    taken.add(column)
                    place = f'{row} + {column * p.image.shape[3]} + c'
                    writer.line(f'const float16x8_t {value} = {_take(place, whole)};')
                if p.weights and begun[i]:
                    text = f'vfmaq_f16(s{i}, {value}, w{r}_{s})'
                elif p.weights:
                    text = f'vmulq_f16({value}, w{r}_{s})'
                else:
                    text = _JOIN[p.combiner].format(f's{i}', value) if begun[i] else value
                writer.line(f's{i} = {text};')
                begun[i] = True
    if not unrolled:
        writer.close()
    for i in pixels:  # a window that lies outside
        if not begun[i]:
            writer.line(f's{i} = {start};')


def _write_result(writer: Writer, p: WindowsPlan, i: int, whole: bool) -> None:
    """A pixel of the tile through what follows, into its place."""
    writer.open('')
    step = access_strides(p.group, p.group.main.write)[0].get(p.across.out, 0)
    place = total(['out', str(i * step), 'c'])
    if p.native:
        writer.line(f'const float16x8_t value = s{i};')
        for item in _followers(p):
            at = _place(p, item, i)
            text = _take(at, whole) if item.stride(p.channel) else f'vdupq_n_f16(*({at}))'
            writer.line(f'const float16x8_t {item.name}_v = {text};')
        made = p.native.expression
        put = f'put_f16({place}, {made})' if whole else f'put_first_f16({place}, {made}, count)'
        writer.line(f'{put};')
        writer.close()
        return
    for item in p.operands:
        at = _place(p, item, i)
        if not item.stride(p.channel):
            writer.line(f'const row_v {item.name}_l = (float)*({at}) - zero_v;')
            writer.line(f'const row_v {item.name}_h = {item.name}_l;')
        elif item.dtype == 'f16':
            writer.line(f'const float16x8_t {item.name}_n = {_take(at, whole)};')
            _halves(writer, item.name, f'{item.name}_n')
        elif whole:
            writer.line(f'const row_v {item.name}_l = *(const row_v *)({at});')
            writer.line(f'const row_v {item.name}_h = *(const row_v *)({at} + 4);')
        else:
            writer.line(f'float {item.name}_n[{LANES}];')
            writer.line(f'first_f32({item.name}_n, {at}, count);')
            writer.line(f'const row_v {item.name}_l = *(const row_v *){item.name}_n;')
            writer.line(f'const row_v {item.name}_h = *(const row_v *)({item.name}_n + 4);')
    _halves(writer, 'value', f's{i}')
    for half in 'lh':
        given = ''.join(f', {item.name}_{half}' for item in p.operands)
        writer.line(f'const row_v made_{half} = finish(value_{half}{given});')
    if p.group.output.dtype == 'f16':
        made = 'vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)made_l), (float32x4_t)made_h)'
        put = f'put_f16({place}, {made})' if whole else f'put_first_f16({place}, {made}, count)'
        writer.line(f'{put};')
    elif whole:
        writer.line(f'*(row_v *)({place}) = made_l;')
        writer.line(f'*(row_v *)({place} + 4) = made_h;')
    else:
        writer.line('for (long i = 0; i < count; i++)')
        writer.line(f'    ({place})[i] = i < 4 ? made_l[i] : made_h[i - 4];')
    writer.close()


def _halves(writer: Writer, name: str, of: str) -> None:
    writer.line(f'const row_v {name}_l = (row_v)vcvt_f32_f16(vget_low_f16({of}));')
    writer.line(f'const row_v {name}_h = (row_v)vcvt_high_f32_f16({of});')


def _place(p: WindowsPlan, item: Operand, i: int) -> str:
    return total(
        [item.name, str(i * item.stride(p.across.out)), scaled('c', item.stride(p.channel))]
    )


def _places(p: WindowsPlan) -> tuple[dict[str, int], int, int]:
    """Where constants lie, in floats; the row outside the image; and floats of all."""
    places, offset = {}, 0
    if p.weights:
        places[p.weights.tensor] = 0
        offset = abi.aligned(p.down.taps * p.across.taps * p.channels // 2)
    for tensor in p.group.with_role('constant'):
        if tensor.name not in places:
            places[tensor.name] = offset
            offset += abi.aligned(max(-(-tensor.bytes // 4), p.channels // 2))
    border = offset
    if p.leaves:
        offset += abi.aligned(-(-p.across.extent * p.image.shape[3] // 2))
    return places, border, offset


def _write_packing(writer: Writer, p: WindowsPlan) -> None:
    """tw_pack: weights by taps, zeros beyond the last channel; a bias in f16; a row outside."""
    places, border, floats = _places(p)
    names = [t.name for t in p.group.with_role('constant')]
    bias = next((i for i in p.operands if p.native and i.name == p.native.bias), None)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line('(void)constants;')
    writer.line(f'memset(packed, 0, {4 * floats});')
    if p.weights:
        strides, const = access_strides(p.group, p.weights)
        terms = {p.down.tap: 'r', p.across.tap: 's', p.channel: 'lane'}
        address = total([*(scaled(terms[d], step) for d, step in strides.items()), str(const)])
        source = f'constants[{names.index(p.weights.tensor)}]'
        writer.line(f'const uint16_t *b = (const uint16_t *){source};')
        writer.line('uint16_t *to = (uint16_t *)packed;')
        writer.line(f'for (long r = 0; r < {p.down.taps}; r++)')
        writer.line(f'    for (long s = 0; s < {p.across.taps}; s++)')
        writer.line(f'        for (long lane = 0; lane < {p.channels}; lane++)')
        writer.line(f'            *to++ = lane < {p.size} ? b[{address}] : 0;')
    for index, tensor in enumerate(p.group.with_role('constant')):
        if p.weights and tensor.name == p.weights.tensor:
            continue
        place = f'packed + {places[tensor.name]}'
        if bias and tensor.name == bias.tensor:
            writer.line(f'for (long lane = 0; lane < {p.size}; lane++)')
            writer.line(f'    ((f16 *)({place}))[lane] = '
                        f'(f16)(constants[{index}] + {bias.const})[lane];')  # fmt: skip
        else:
            writer.line(f'memcpy({place}, constants[{index}], {tensor.bytes});')
    if p.leaves and COMBINERS[p.combiner]:
        value = number(COMBINERS[p.combiner], 'f32')
        writer.line(f'for (long i = 0; i < {p.across.extent * p.image.shape[3]}; i++)')
        writer.line(f'    ((f16 *)(packed + {border}))[i] = (f16){value};')
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, 0, floats)


def _write_part(writer: Writer, p: WindowsPlan, names: dict) -> None:
    """Rows of the result, tile by tile."""
    group, down, across, depth = p.group, p.down, p.across, p.image.shape[3]
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places, border, _ = _places(p)
    result, bias = C_TYPES[group.output.dtype], p.native.bias if p.native else ''
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    writer.line(f'const f16 *source = (const f16 *){inputs[p.image.name]};')
    if p.weights:
        writer.line('const f16 *weights = (const f16 *)args->packed;')
    if p.leaves:
        writer.line(f'const f16 *border = (const f16 *)(args->packed + {border});')
    for item in p.operands:
        place = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
        kind = C_TYPES[item.dtype]
        writer.line(f'const {kind} *{item.name} = (const {kind} *)({place});')
    nest = Nest(group.main, p.schedule, writer)
    nest.open_parts()
    (low, high), (first, last) = nest.at(down.out), nest.at(p.channel)
    writer.open(f'for (long image = 0; image < {group.main.sizes[p.batch]}; image++)')
    writer.open(f'for (long line = {low}; line < {high}; line++)')
    writer.line(f'const f16 *rows[{down.taps}];')
    writer.open(f'for (long r = 0; r < {down.taps}; r++)')
    writer.line(f'const long y = line * {down.stride} + r * {down.dilation} - {down.before};')
    row = f'source + (image * {down.extent} + y) * {across.extent * depth}'
    if p.leaves:
        row = f'(unsigned long)y < {down.extent}ul ? {row} : border'
    writer.line(f'rows[r] = {row};')
    writer.close()
    strides, const = access_strides(group, group.main.write)
    pixel = {p.batch: 'image', down.out: 'line', across.out: 'pixel'}

    def place_of(steps: dict[str, int], start: int) -> str:
        return total([*(scaled(pixel[d], s) for d, s in steps.items() if d in pixel), str(start)])

    operands = ''.join(
        f', {item.name}' if item.name == bias
        else f', {item.name} + {place_of(dict(item.strides), item.const)}'
        for item in p.operands
    )  # fmt: skip
    weights = ', weights' if p.weights else ''
    for columns, run in itertools.groupby(p.tiles, key=lambda tile: tile.columns):
        alike = list(run)
        count, start = len(columns), alike[0]
        at = f'{start.base * depth}'
        end = alike[-1].first + count
        writer.open(f'for (long pixel = {start.first}; pixel < {end}; pixel += {count})')
        if len(alike) > 1:
            at = f'(pixel - {start.first}) * {across.stride * depth} + {start.base * depth}'
        to = f'({result} *)args->out + {place_of(strides, const)}'
        writer.line(f'{names[columns]}(rows, {at}{weights}, {to}, {first}, {last}{operands});')
        writer.close()
    writer.close(3)
