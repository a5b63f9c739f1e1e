"""The channelwise schema in C: every tap of a window is a vector of channels times its weights.

    for n, rows of the result      rows of the image that are new are copied, the border around them
      for channels, for pixels     sums of a register tile in vectors, taps unrolled by the compiler
                                   through the epilogue, into the result

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
Products are of 32 bits, in compiler vectors, on any processor.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.channelwise.plan import ChannelwisePlan
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.integer import factors


def generate(p: ChannelwisePlan) -> str:
    """[ChannelwisePlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    writer.line('#include <stdint.h>')
    lanes, number = p.lanes, C_TYPES[p.image.dtype]
    attributes = 'aligned(1), may_alias'
    writer.line(f'typedef int32_t sums_v __attribute__((vector_size({4 * lanes})));')
    writer.line('typedef sums_v weights_v __attribute__((aligned(4), may_alias));')
    writer.line(f'typedef {number} bytes_v __attribute__((vector_size({lanes}), {attributes}));')
    writer.line()
    write_functions(writer, p.epilogue.functions)
    _write_store(writer, p)
    pixels = p.schedule.reg.tile[p.across.out]
    for count in sorted({pixels, p.across.size % pixels or pixels}):
        _write_tile(writer, p, count)
    _write_packing(writer, p)
    _write_part(writer, p)
    return writer.text()


def _places(p: ChannelwisePlan) -> tuple[dict[str, int], int]:
    """Where constants lie, in floats; weights first, an i32 each; and floats of all."""
    weights = factors(p.group)[1].tensor
    places, offset = {weights: 0}, abi.aligned(p.down.taps * p.across.taps * p.channels)
    for tensor in p.group.with_role('constant'):
        if tensor.name != weights:
            places[tensor.name] = offset
            offset += abi.aligned(-(-tensor.bytes // 4))
    return places, offset


def _pointers(p: ChannelwisePlan) -> str:
    """The operands of the epilogue as parameters."""
    return ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in p.epilogue.operands)


def _write_store(writer: Writer, p: ChannelwisePlan) -> None:
    """Sums of some channels of a pixel through the epilogue."""
    result = C_TYPES[p.group.output.dtype]
    writer.open(
        f'static inline __attribute__((always_inline)) void store(const int32_t *sums, '
        f'{result} *restrict out, long channels{_pointers(p)})'
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
    """One register tile: `rows` are the copied rows of the window, weights lie tap by tap."""
    width, result = p.schedule.reg.tile[p.channel], C_TYPES[p.group.output.dtype]
    vectors, depth = width // p.lanes, p.image.shape[3]
    number = C_TYPES[p.image.dtype]
    sums = [(i, v) for i in range(pixels) for v in range(vectors)]
    out_step = access_strides(p.group, p.group.main.write)[0].get(p.across.out, 0)
    writer.open(
        f'static __attribute__((noinline)) void tile_{pixels}(const {number} *const *rows, '
        f'long at, const int32_t *weights, {result} *restrict out, long channels{_pointers(p)})'
    )
    writer.line(f'sums_v {", ".join(f"s{i}_{v} = {{0}}" for i, v in sums)};')
    writer.open(f'for (long r = 0; r < {p.down.taps}; r++)')
    writer.line(f'const {number} *row = rows[r] + at;')
    for tap in range(p.across.taps):
        for v in range(vectors):
            place = f'(r * {p.across.taps} + {tap}) * {p.channels} + {v * p.lanes}'
            writer.line(f'const sums_v w{tap}_{v} = *(const weights_v *)(weights + {place});')
        for i, v in sums:
            place = (i * p.across.stride + tap * p.across.dilation) * depth + v * p.lanes
            read = f'__builtin_convertvector(*(const bytes_v *)(row + {place}), sums_v)'
            writer.line(f's{i}_{v} += {read} * w{tap}_{v};')
    writer.close()
    writer.line(f'int32_t sums[{pixels}][{width}] __attribute__((aligned(64)));')
    for i, v in sums:
        writer.line(f'*(sums_v *)&sums[{i}][{v * p.lanes}] = s{i}_{v};')
    for whole in (True, False):
        writer.line(f'if (channels >= {width}) {{' if whole else '} else {')
        count = str(width) if whole else 'channels'
        for i in range(pixels):
            operands = ''.join(
                f', {item.name} + {i * item.stride(p.across.out)}' for item in p.epilogue.operands
            )
            writer.line(f'    store(sums[{i}], out + {i * out_step}, {count}{operands});')
    writer.line('}')
    writer.close()
    writer.line()


def _write_packing(writer: Writer, p: ChannelwisePlan) -> None:
    """tw_pack: weights tap by tap as i32, zeros behind the last channel; other constants."""
    places, floats = _places(p)
    weights = factors(p.group)[1]
    strides, const = access_strides(p.group, weights)
    size, names = p.group.main.sizes[p.channel], [t.name for t in p.group.with_role('constant')]
    terms = {p.down.tap: 'r', p.across.tap: 's', p.channel: 'lane'}
    address = total([*(scaled(terms[d], step) for d, step in strides.items()), str(const)])
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line(f'const int8_t *b = (const int8_t *)constants[{names.index(weights.tensor)}];')
    writer.line('int32_t *to = (int32_t *)packed;')
    writer.open(f'for (long r = 0; r < {p.down.taps}; r++)')
    writer.open(f'for (long s = 0; s < {p.across.taps}; s++)')
    writer.open(f'for (long lane = 0; lane < {p.channels}; lane++)')
    writer.line(f'*to++ = lane < {size} ? b[{address}] : 0;')
    writer.close(3)
    for number, tensor in enumerate(p.group.with_role('constant')):
        if tensor.name != weights.tensor:
            place = f'packed + {places[tensor.name]}'
            writer.line(f'memcpy({place}, constants[{number}], {tensor.bytes});')
    writer.close()
    writer.line()
    rows = (p.down.span + 1) * p.row_bytes
    abi.write_sizes(writer, p.schedule.threads, rows // 4, floats)


def _write_part(writer: Writer, p: ChannelwisePlan) -> None:
    """Rows of the result: those of the image that are new are copied, each once."""
    group, down, across = p.group, p.down, p.across
    number, depth = C_TYPES[p.image.dtype], p.image.shape[3]
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places, _ = _places(p)
    result, sizes = C_TYPES[group.output.dtype], group.main.sizes
    pad = int(group.main.pad_value)
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line(f'const {number} *source = (const {number} *){inputs[p.image.name]};')
    writer.line('const int32_t *weights = (const int32_t *)args->packed;')
    for item in p.epilogue.operands:
        place = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
        kind = C_TYPES[item.dtype]
        writer.line(f'const {kind} *{item.name} = (const {kind} *)({place});')
    writer.line(f'{number} *buffer = ({number} *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'memset(buffer, {pad & 255}, {(down.span + 1) * p.row_bytes});')
    nest = Nest(group.main, p.schedule, writer)
    nest.open_parts()
    low, high = nest.at(down.out)
    writer.open(f'for (long image = 0; image < {sizes[p.batch]}; image++)')
    writer.line('long next = 0;')
    writer.open(f'for (long line = {low}; line < {high}; line++)')
    writer.line(f'const long top = line * {down.stride} - {down.before};')
    writer.line(f'const long end = min_long(top + {down.span}, {down.extent});')
    writer.line('for (next = max_long(next, top); next < end; next++)')
    copied = f'buffer + next % {down.span} * {p.row_bytes} + {across.before * depth}'
    from_row = f'source + (image * {down.extent} + next) * {across.extent * depth}'
    writer.line(f'    memcpy({copied}, {from_row}, {across.extent * depth});')
    writer.line(f'const {number} *rows[{down.taps}];')
    writer.open(f'for (long r = 0; r < {down.taps}; r++)')
    writer.line(f'const long y = top + r * {down.dilation};')
    inside = f'(unsigned long)y < {down.extent}ul'
    writer.line(f'rows[r] = buffer + ({inside} ? y % {down.span} : {down.span}) * {p.row_bytes};')
    writer.close()
    _write_row(writer, p, result, sizes[p.channel])
    writer.close(3)


def _write_row(writer: Writer, p: ChannelwisePlan, result: str, size: int) -> None:
    """The tiles of one row of the result."""
    across, width = p.across, p.schedule.reg.tile[p.channel]
    pixels = p.schedule.reg.tile[across.out]
    strides, const = access_strides(p.group, p.group.main.write)
    names = {p.batch: 'image', p.down.out: 'line', across.out: 'pixel', p.channel: 'first'}
    writer.open(f'for (long first = 0; first < {size}; first += {width})')
    writer.line(f'const long channels = min_long({width}, {size} - first);')
    tail = across.size % pixels
    whole = across.size - tail
    for count, low, high in ((pixels, 0, whole), (tail, whole, across.size)):
        if low >= high:
            continue
        writer.open(f'for (long pixel = {low}; pixel < {high}; pixel += {count})')
        out = total([*(scaled(names[d], s) for d, s in strides.items()), str(const)])
        operands = ''.join(
            f', {item.name} + '
            + total([*(scaled(names[d], s) for d, s in item.strides), str(item.const)])
            for item in p.epilogue.operands
        )
        at = f'pixel * {across.stride * p.image.shape[3]} + first'
        writer.line(
            f'tile_{count}(rows, {at}, weights + first, ({result} *)args->out + {out}, '
            f'channels{operands});'
        )
        writer.close()
    writer.close()
