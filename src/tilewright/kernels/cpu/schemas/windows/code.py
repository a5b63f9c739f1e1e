"""The windows schema in C: every tap of a window is a vector of eight channels of f16.

    for n, rows of the result      where the rows of the window lie
      for tiles of pixels          one function for each set of columns that are inside
        for channels, by eight     taps of all pixels, what follows, into the result

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
Channels innermost are read as they lie in memory, and so are weights.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, number
from tilewright.kernels.cpu.half_epilogue import LANES, take
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.schemas.windows.nest import write_rows
from tilewright.kernels.cpu.schemas.windows.plan import Tile, WindowsPlan
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.stage import COMBINERS

WRITTEN_OUT = 320  # multiply-adds of a tile; in larger ones rows of a window are a loop

_JOIN = {
    'max': 'vmaxq_f16({}, {})',
    'min': 'vminq_f16({}, {})',
    'sum': 'vaddq_f16({}, {})',
}


def generate(p: WindowsPlan) -> str:
    """[WindowsPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    p.epilogue.write_functions(writer)
    kinds = {tile.columns: tile for tile in p.tiles}
    names = {columns: f'tile_{number}' for number, columns in enumerate(kinds)}
    for columns, tile in kinds.items():
        _write_tile(writer, p, tile, names[columns])
    _write_packing(writer, p)
    _write_part(writer, p, names)
    return writer.text()


def _write_tile(writer: Writer, p: WindowsPlan, tile: Tile, name: str) -> None:
    """One register tile: all channels of a thread, by vectors, what is left in a part of one."""
    result = C_TYPES[p.group.output.dtype]
    weights = ', const f16 *weights' if p.weights else ''
    writer.open(
        f'static __attribute__((noinline)) void {name}(const f16 *const *rows, long at{weights}, '
        f'{result} *restrict out, long from, long to{p.epilogue.pointers()})'
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


def _write_sums(writer: Writer, p: WindowsPlan, tile: Tile, unrolled: bool, whole: bool) -> None:
    """s0, s1 ..: the taps of every pixel joined."""
    pixels = range(len(tile.columns))
    start = f'vdupq_n_f16((float16_t){number(COMBINERS[p.combiner], "f32")})'
    bias = p.epilogue.bias
    if bias:
        start = f'take_f16({bias} + c)'
    begun = {i: bool(bias) or not unrolled for i in pixels}
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
                    writer.line(f'const float16x8_t {value} = {take(place, whole)};')
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
    step = access_strides(p.group, p.group.main.write)[0].get(p.across.out, 0)

    def at(item: Operand) -> str:
        moved = str(i * item.stride(p.across.out))
        return total([item.name, moved, scaled('c', item.stride(p.channel))])

    place = total(['out', str(i * step), 'c'])
    p.epilogue.write_result(writer, f's{i}', place, at, whole)


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
    p.epilogue.write_packed(writer, p.group, places, p.size)
    if p.leaves and COMBINERS[p.combiner]:
        value = number(COMBINERS[p.combiner], 'f32')
        writer.line(f'for (long i = 0; i < {p.across.extent * p.image.shape[3]}; i++)')
        writer.line(f'    ((f16 *)(packed + {border}))[i] = (f16){value};')
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, 0, floats)


def _write_part(writer: Writer, p: WindowsPlan, names: dict) -> None:
    """Rows of the result, tile by tile."""
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    places, border, _ = _places(p)
    ahead = p.epilogue
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    writer.line(f'const f16 *source = (const f16 *){inputs[p.image.name]};')
    if p.weights:
        writer.line('const f16 *weights = (const f16 *)args->packed;')
    if p.leaves:
        writer.line(f'const f16 *border = (const f16 *)(args->packed + {border});')
    p.epilogue.write_operands(writer, inputs, places)
    write_rows(
        writer, p, 'f16', names, p.epilogue.operands,
        lambda item: ahead.kind(item) != 'f16' or item.dtype == 'f16',
    )  # fmt: skip
