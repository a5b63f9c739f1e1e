"""The channelwise schema in C: every tap of a window is a vector of channels times its weights.

    for n, rows of the result      rows of the image that are new are copied, the border around them
                                   taps below each other are put into words
      for channels, for pixels     sums of a register tile in vectors, words times words
                                   through the epilogue, into the result

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.bounded import NEAR, START, write_near
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.isa.words import words_dot
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.channelwise import paired
from tilewright.kernels.cpu.schemas.channelwise.interleaved import write_neon_tiles
from tilewright.kernels.cpu.schemas.channelwise.plan import PAIR, ChannelwisePlan
from tilewright.kernels.cpu.schemas.channelwise.unpacked import ORDER, write_tiles
from tilewright.kernels.cpu.schemas.dot.plan import MOVED
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.integer import IN_BYTES, factors


def generate(p: ChannelwisePlan) -> str:
    """[ChannelwisePlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    writer.line('#include <stdint.h>')
    if p.vector:
        (channel, place), write = _in_registers(p)
        writer.line(f'#define CHANNEL(at) {channel}')
        if place != channel:
            writer.line(f'#define PLACE(at) {place}')
        write(writer, p)
    else:
        _write_functions(writer, p)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def _in_registers(
    p: ChannelwisePlan,
) -> tuple[tuple[str, str], Callable[[Writer, ChannelwisePlan], None]]:
    """What writes tiles that make words in registers; the channel of a chunk whose number stands at
    a place `at` of it, and the place of a channel.
    """
    if ISAS[p.schedule.isa].arch == 'aarch64':
        return ('(at)', '(at)'), write_neon_tiles
    return (paired.ORDER, paired.write_tiles) if p.products == PAIR else (ORDER, write_tiles)


def _write_functions(writer: Writer, p: ChannelwisePlan) -> None:
    """Tiles of words, which stand in memory, and what stores their sums."""
    header, dot = words_dot(p.schedule.isa, p.schedule.dtype)
    if header:
        writer.line(f'#include <{header}>')
    writer.line(f'typedef int32_t sums_v __attribute__((vector_size({4 * p.lanes})));')
    writer.line('typedef sums_v words_v __attribute__((aligned(4), may_alias));')
    writer.line(f'#define DOT(sum, a, b) ({dot})')
    writer.line()
    write_functions(writer, p.epilogue.functions)
    _write_store(writer, p)
    for count in p.tile_pixels:
        _write_tile(writer, p, count)


def _places(p: ChannelwisePlan) -> tuple[dict[str, int], int]:
    """Where constants lie, in floats, words of weights first; and floats of all."""
    weights = factors(p.group)[1].tensor
    places, offset = {weights: 0}, abi.aligned(len(p.terms) * p.channels)
    floats = {t.name: -(-t.bytes // 4) for t in p.group.with_role('constant')}
    floats |= {MOVED: p.channels} if p.flips else {}
    floats |= {START: p.channels, NEAR: 1} if p.near else {}
    if p.vector:  # in chunks, in the order of their lanes
        floats |= {
            item.tensor: p.channels for item in p.epilogue.operands if item.stride(p.channel)
        }
    for name, size in floats.items():
        if name != weights:
            places[name] = offset
            offset += abi.aligned(size)
    return places, offset


def _place(p: ChannelwisePlan) -> str:
    """Where the number of channel `lane` lies."""
    channel, place = _in_registers(p)[0]
    name = 'CHANNEL' if place == channel else 'PLACE'
    return f'lane / {p.chunk} * {p.chunk} + {name}(lane % {p.chunk})'


def _row_floats(p: ChannelwisePlan) -> int:
    """Floats of the copied rows: those of a window, and one that lies outside the image."""
    return (p.down.span + 1) * p.row_bytes // 4


def _pointers(p: ChannelwisePlan) -> str:
    """The operands of the epilogue as parameters."""
    return ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in p.epilogue.operands)


def _write_store(writer: Writer, p: ChannelwisePlan) -> None:
    """Sums of some channels of a pixel through the epilogue."""
    writer.open(
        f'static inline __attribute__((always_inline)) void store(const int32_t *sums, '
        f'{C_TYPES[p.group.output.dtype]} *restrict out, long channels{_pointers(p)})'
    )
    writer.open('for (long lane = 0; lane < channels; lane++)')
    writer.line('const int32_t value = sums[lane];')
    for item in p.epilogue.operands:
        place = scaled('lane', item.stride(p.channel)) or '0'
        writer.line(f'const long {item.name}_at = {place};')
    writer.line(f'out[lane] = {p.epilogue.expression};')
    writer.close(2)
    writer.line()


def _write_tile(writer: Writer, p: ChannelwisePlan, pixels: int) -> None:
    """One register tile: `words` are the rows of words at its first pixel."""
    width, across = p.schedule.reg.tile[p.channel], p.across
    vectors, depth = width // p.lanes, p.image.shape[3]
    sums = [(i, v) for i in range(pixels) for v in range(vectors)]
    out_step = access_strides(p.group, p.group.main.write)[0].get(across.out, 0)
    writer.open(
        f'static __attribute__((noinline)) void tile_{pixels}(const int32_t *words, '
        f'const int32_t *weights, {C_TYPES[p.group.output.dtype]} *restrict out, '
        f'long channels{_pointers(p)})'
    )
    writer.line(f'sums_v {", ".join(f"s{i}_{v} = {{0}}" for i, v in sums)};')
    writer.open(
        f'for (long r = 0; r < {p.word_rows}; r++, words += {p.row_words}, '
        f'weights += {across.taps * p.channels})'
    )
    for tap in range(across.taps):
        for v in range(vectors):
            place = tap * p.channels + v * p.lanes
            writer.line(f'const sums_v w{tap}_{v} = *(const words_v *)(weights + {place});')
        for i, v in sums:
            place = (i * across.stride + tap * across.dilation) * depth + v * p.lanes
            read = f'*(const words_v *)(words + {place})'
            writer.line(f's{i}_{v} = DOT(s{i}_{v}, {read}, w{tap}_{v});')
    writer.close()
    writer.line(f'int32_t sums[{pixels}][{width}] __attribute__((aligned(64)));')
    for i, v in sums:
        writer.line(f'*(words_v *)&sums[{i}][{v * p.lanes}] = s{i}_{v};')
    for whole in (True, False):  # loops over a number that is known become vectors
        writer.line(f'if (channels >= {width}) {{' if whole else '} else {')
        for i in range(pixels):
            operands = ''.join(
                f', {item.name} + {i * item.stride(across.out)}' for item in p.epilogue.operands
            )
            count = width if whole else 'channels'
            writer.line(f'    store(sums[{i}], out + {i * out_step}, {count}{operands});')
    writer.line('}')
    writer.close()
    writer.line()


def _write_packing(writer: Writer, p: ChannelwisePlan) -> None:
    """tw_pack: weights in words of taps below each other, zeros beyond the last tap and channel."""
    places, floats = _places(p)
    weights = factors(p.group)[1]
    strides, const = access_strides(p.group, weights)
    size, names = p.group.main.sizes[p.channel], [t.name for t in p.group.with_role('constant')]
    terms = {p.down.tap: 'tap', p.across.tap: 's', p.channel: 'lane'}
    address = total([*(scaled(terms[d], step) for d, step in strides.items()), str(const)])
    kind = f'int{32 // p.products}_t'
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    if p.vector:  # lanes beyond the last channel are computed, and slowly where floats are tiny
        writer.line(f'memset(packed, 0, {4 * floats});')
    writer.line(f'const int8_t *b = (const int8_t *)constants[{names.index(weights.tensor)}];')
    writer.line(f'{kind} *to = ({kind} *)packed;')
    if p.vector:
        writer.open(f'for (long first = 0; first < {size}; first += {p.chunk})')
    if p.vector and p.products == PAIR:
        _write_pairs(writer, p, size, address)
    else:
        writer.open(f'for (long r = 0; r < {p.word_rows}; r++)')
        writer.open(f'for (long s = 0; s < {p.across.taps}; s++)')
        lanes = p.chunk if p.vector else p.channels
        writer.open(f'for (long at = 0; at < {lanes}; at++)')
        writer.line(f'const long lane = {"first + CHANNEL(at)" if p.vector else "at"};')
        writer.open(f'for (long tap = r * {p.products}; tap < (r + 1) * {p.products}; tap++)')
        writer.line(f'*to++ = lane < {size} && tap < {p.down.taps} ? b[{address}] : 0;')
        writer.close(4)
    writer.close(1 if p.vector else 0)
    if p.flips:
        sign = '-' if p.image.dtype == 'i8' else ''
        writer.line(f'int32_t *moved = (int32_t *)(packed + {places[MOVED]});')
        writer.open(f'for (long lane = 0; lane < {size}; lane++)')
        writer.line('int32_t sum = 0;')
        writer.line(f'for (long tap = 0; tap < {p.down.taps}; tap++)')
        writer.line(f'    for (long s = 0; s < {p.across.taps}; s++)')
        writer.line(f'        sum += b[{address}];')
        at = _place(p) if p.vector else 'lane'
        writer.line(f'moved[{at}] = {sign}128 * sum;')
        writer.close()
    if p.near:
        loops = [
            f'for (long tap = 0; tap < {p.down.taps}; tap++)',
            f'for (long s = 0; s < {p.across.taps}; s++)',
        ]
        terms[p.channel] = p.channel
        weight = total([*(scaled(terms[d], step) for d, step in strides.items()), str(const)])
        moved = (-128 if p.image.dtype == 'i8' else 128) if p.flips else 0
        write_near(writer, p.group, p.near, p.channel, places, (loops, weight), moved, 128)
    of_channels = {
        item.tensor: item for item in p.epilogue.operands if item.stride(p.channel) and p.vector
    }
    for number, tensor in enumerate(p.group.with_role('constant')):
        if tensor.name == weights.tensor:
            continue
        place = f'packed + {places[tensor.name]}'
        if tensor.name in of_channels:
            kind = C_TYPES[tensor.dtype]
            source = (
                f'((const {kind} *)constants[{number}])[{of_channels[tensor.name].const} + lane]'
            )
            writer.line(f'for (long lane = 0; lane < {size}; lane++)')
            writer.line(f'    (({kind} *)({place}))[{_place(p)}] = {source};')
        else:
            writer.line(f'memcpy({place}, constants[{number}], {tensor.bytes});')
    writer.close()
    writer.line()
    scratch = _row_floats(p) + (0 if p.vector else p.word_rows * p.row_words)
    abi.write_sizes(writer, p.schedule.threads, scratch, floats)


def _write_pairs(writer: Writer, p: ChannelwisePlan, size: int, address: str) -> None:
    """The weights of a chunk, of which the taps of a word may lie side by side."""
    taps = [(*term, *[(-1, 0)] * (PAIR - len(term))) for term in p.terms]
    table = ', '.join(f'{{{r}, {s}}}' for term in taps for r, s in term)
    writer.line(f'static const signed char taps[][2] = {{{table}}};')
    writer.open(f'for (long term = 0; term < {len(taps)}; term++)')
    writer.open(f'for (long at = 0; at < {p.chunk}; at++)')
    writer.line('const long lane = first + CHANNEL(at);')
    writer.open(f'for (long spot = term * {PAIR}; spot < (term + 1) * {PAIR}; spot++)')
    writer.line('const long tap = taps[spot][0], s = taps[spot][1];')
    writer.line(f'*to++ = lane < {size} && tap >= 0 ? b[{address}] : 0;')
    writer.close(3)


def _write_part(writer: Writer, p: ChannelwisePlan) -> None:
    """Rows of the result: those of the image that are new are copied, each once."""
    group, down, across = p.group, p.down, p.across
    number, depth = C_TYPES[p.image.dtype], p.image.shape[3]
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places, _ = _places(p)
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line(f'const {number} *source = (const {number} *){inputs[p.image.name]};')
    writer.line('const int32_t *weights = (const int32_t *)args->packed;')
    for item in p.epilogue.operands:
        place = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
        kind = C_TYPES[item.dtype]
        writer.line(f'const {kind} *{item.name} = (const {kind} *)({place});')
    writer.line(f'{number} *buffer = ({number} *)(args->scratch + part * tw_scratch_bytes());')
    if not p.vector:
        writer.line(f'int32_t *restrict words = (int32_t *)buffer + {_row_floats(p)};')
    writer.line(f'memset(buffer, {int(group.main.pad_value) & 255}, {4 * _row_floats(p)});')
    nest = Nest(group.main, p.schedule, writer)
    nest.open_parts()
    low, high = nest.at(down.out)
    writer.open(f'for (long image = 0; image < {group.main.sizes[p.batch]}; image++)')
    writer.line('long next = 0;')
    writer.open(f'for (long line = {low}; line < {high}; line++)')
    writer.line(f'const long top = line * {down.stride} - {down.before};')
    writer.line(f'const long end = min_long(top + {down.span}, {down.extent});')
    writer.line('for (next = max_long(next, top); next < end; next++)')
    to = f'buffer + next % {down.span} * {p.row_bytes} + {across.before * depth}'
    from_row = f'source + (image * {down.extent} + next) * {across.extent * depth}'
    pixels = min(across.extent, p.positions - across.before)
    writer.line(f'    memcpy({to}, {from_row}, {pixels * depth});')
    writer.line(f'const {number} *rows[{down.taps}];')
    writer.open(f'for (long r = 0; r < {down.taps}; r++)')
    writer.line(f'const long y = top + r * {down.dilation};')
    inside = f'(unsigned long)y < {down.extent}ul'
    writer.line(f'rows[r] = buffer + ({inside} ? y % {down.span} : {down.span}) * {p.row_bytes};')
    writer.close()
    if not p.vector:
        _write_words(writer, p)
    _write_row(writer, p)
    writer.close(3)


def _write_words(writer: Writer, p: ChannelwisePlan) -> None:
    """Taps below each other, number by number, into words; compilers make vectors of it."""
    bits, count = 32 // p.products, p.positions * p.image.shape[3]
    flip = ' ^ 128' if p.flips else ''
    number = C_TYPES[p.image.dtype]
    for row in range(p.word_rows):
        taps = range(row * p.products, min((row + 1) * p.products, p.down.taps))
        writer.open('')
        for t in taps:
            writer.line(f'const {number} *restrict t{t} = rows[{t}];')
        parts = (f'(uint32_t)(uint{bits}_t)(t{t}[i]{flip}) << {(t - taps[0]) * bits}' for t in taps)
        writer.line(f'for (long i = 0; i < {count}; i++)')
        writer.line(f'    words[{row * p.row_words} + i] = (int32_t)({" | ".join(parts)});')
        writer.close()


def _write_row(writer: Writer, p: ChannelwisePlan) -> None:
    """The tiles of one row of the result."""
    across, width = p.across, p.schedule.reg.tile[p.channel]
    size, pixels = p.group.main.sizes[p.channel], p.schedule.reg.tile[across.out]
    strides, const = access_strides(p.group, p.group.main.write)
    names = {p.batch: 'image', p.down.out: 'line', across.out: 'pixel', p.channel: 'first'}
    out = total([*(scaled(names[d], s) for d, s in strides.items()), str(const)])
    operands = ''.join(
        f', {item.name} + '
        + total([*(scaled(names[d], s) for d, s in item.strides), str(item.const)])
        for item in p.epilogue.operands
    )
    writer.open(f'for (long first = 0; first < {size}; first += {width})')
    writer.line(f'const long channels = min_long({width}, {size} - first);')
    mask = 'channels'
    if p.vector and p.products == IN_BYTES and ISAS[p.schedule.isa].arch == 'x86_64':
        mask = 'mask'
        writer.line(f'const __mmask64 mask = -1ull >> ({p.chunk} - channels);')
    tail = across.size % pixels
    whole = across.size - tail
    for count, low, high in ((pixels, 0, whole), (tail, whole, across.size)):
        if low >= high:
            continue
        writer.open(f'for (long pixel = {low}; pixel < {high}; pixel += {count})')
        at = f'pixel * {across.stride * p.image.shape[3]} + first'
        to = f'({C_TYPES[p.group.output.dtype]} *)args->out + {out}'
        given = f'words + {at}, weights + first, {to}, channels{operands}'
        if p.vector:
            place = f'weights + first * {len(p.terms)}'
            given = f'rows, {at}, {place}, {to}, {mask}{operands}'
        writer.line(f'tile_{count}({given});')
        writer.close()
    writer.close()
