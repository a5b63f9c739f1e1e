"""The schemas of integer products and of f16 in C: loops and micro-kernels of outer products, on
words.

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.

    pack_tile    rows of channels, number by number, into words; outside the image its zero point
    tw_pack      weights into panels of words, zeros beyond the last channel
    store_row    sums, which are i32 or float, through the epilogue, into whatever the result is
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu import abi, operand
from tilewright.kernels.cpu.bounded import NEAR, START, write_near
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.dot.plan import MOVED, SUMS, DotPlan
from tilewright.kernels.cpu.schemas.outer.code import write_kernels, write_nest
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.integer import IN_BYTES, Row, factors


def generate(p: DotPlan) -> str:
    """[DotPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.words.schedule)
    writer.line('#include <stdint.h>')
    if p.words.sums == SUMS:
        writer.line(f'typedef int32_t {SUMS} __attribute__((may_alias));')
    writer.line()
    write_functions(writer, p.words.functions)
    if p.words.schedule.pack:
        _write_pack(writer, p)
    write_kernels(writer, p.words, a_ahead=False)
    write_weights(writer, p)
    _write_part(writer, p)
    return writer.text()


def _write_pack(writer: Writer, p: DotPlan) -> None:
    """pack_tile: every pixel's channels, a row of words."""
    image = p.image
    flip = f' ^ {128 if image.dtype == "i8" else -128}' if p.flips else ''
    if p.form.row:
        _write_columns(writer, p, p.form.row)
        return
    if _in_rows(p):
        _write_word_rows(writer, p, flip)
        return
    pad = _pad(p)
    kind, inner = p.source, p.words.operand.splits[-1]
    step, size = image.strides[inner.axis], image.shape[inner.axis]
    known = '' if p.whole else 'long from, long size, long count, '
    writer.open(
        f'static inline void copy_row(const {kind} *restrict source, {p.number} *restrict to, '
        f'{known}int inside)'
    )
    count = 'count'
    if p.whole and size <= p.products:
        _write_word(writer, p, step, size, pad, flip)
    elif p.whole:  # loops over numbers that are known become a few moves
        count = str(-(-size // p.products) * p.products)
        writer.line('if (inside)')
        writer.line(f'    for (long i = 0; i < {size}; i++)')
        writer.line(f'        to[i] = ({p.number})(source[{scaled("i", step)}]{flip});')
        writer.line(f'const long have = inside ? {size} : 0;')
    else:
        writer.line('const long have = inside ? max_long(0, min_long(size - from, count)) : 0;')
        writer.line('for (long i = 0; i < have; i++)')
        writer.line(f'    to[i] = ({p.number})(source[{scaled("(from + i)", step)}]{flip});')
    if not p.whole or size > p.products:
        writer.line(f'for (long i = have; i < {count}; i++)')
        writer.line(f'    to[i] = ({p.number})({pad});')
    writer.close()
    writer.line()
    writer.open(
        f'static void pack_tile(const {kind} *restrict source, float *restrict buffer, '
        f'const long *from, const long *extent)'
    )
    _, places, row = operand.open_rows(writer, p.words.operand, image)
    count = f'extent[{inner.axis}] * {p.products}'
    known = '' if p.whole else f'from[{inner.axis}] * {p.products}, {size}, {count}, '
    to = f'({p.number} *)(buffer + {total(places)})'
    writer.line(f'copy_row(source + ({row}), {to}, {known}inside);')
    writer.close(writer.depth)
    writer.line()


def _in_rows(p: DotPlan) -> bool:
    """Whether channels are planes of at most a word, whose rows lie side by side in the image and
    in the copied tile: compilers put neighbours of such rows into words at once.
    """
    image, splits = p.image, p.words.operand.splits
    neon = ISAS[p.words.schedule.isa].arch == 'aarch64'  # which stores four rows interleaved
    if not neon or not p.whole or len(splits) < 2 or p.products != IN_BYTES:
        return False
    inner, row = splits[-1], splits[-2]
    one = image.shape[inner.axis] <= p.products and image.strides[inner.axis] > 1
    return one and image.strides[row.axis] == 1 and row.stride == 1 and not row.strip


def _write_word_rows(writer: Writer, p: DotPlan, flip: str) -> None:
    """pack_tile for planes: a row of words from a row of every plane, the border around it."""
    image, splits = p.image, p.words.operand.splits
    inner, row = splits[-1], splits[-2]
    kind, planes, size = C_TYPES[image.dtype], image.shape[inner.axis], image.shape[row.axis]
    pad = _pad(p)
    writer.open(
        f'static void copy_row(const {kind} *restrict source, {p.number} *restrict to, long from, '
        f'long count, int inside)'
    )
    factor = row.factor
    low = f'min_long(count, from < 0 ? (-from + {factor - 1}) / {factor} : 0)'
    high = f'min_long(count, from < {size} ? ({size + factor - 1} - from) / {factor} : 0)'
    writer.line(f'const long low = inside ? {low} : count;')
    writer.line(f'const long high = inside ? max_long(low, {high}) : count;')
    writer.line(f'const {kind} *restrict s = source + from;')
    for begin, end in (('0', 'low'), ('high', 'count')):
        writer.open(f'for (long x = {begin}; x < {end}; x++)')
        for i in range(p.products):
            writer.line(f'to[{p.products} * x + {i}] = ({p.number})({pad});')
        writer.close()
    writer.open('for (long x = low; x < high; x++)')
    for i in range(p.products):
        at = total([scaled('x', factor), str(i * image.strides[inner.axis])])
        number = f's[{at}]{flip}' if i < planes else '0'
        writer.line(f'to[{p.products} * x + {i}] = ({p.number})({number});')
    writer.close(2)
    writer.line()
    writer.open(
        f'static void pack_tile(const {kind} *restrict source, float *restrict buffer, '
        f'const long *from, const long *extent)'
    )
    _, places, first = operand.open_rows(
        writer, replace(p.words.operand, splits=splits[:-1]), image
    )
    for number, phase in enumerate(row.phases):
        place = total([*places, str(number * row.count * row.stride)])
        writer.line(
            f'copy_row(source + ({first}), ({p.number} *)(buffer + {place}), from[{row.axis}] + '
            f'{phase}, (extent[{row.axis}] - 1) / {row.factor} + 1, inside);'
        )
    writer.close(writer.depth)
    writer.line()


def _write_columns(writer: Writer, p: DotPlan, row: Row) -> None:
    """pack_tile for words of rows: all channels of a column, then those of the next."""
    image, axis, channels = p.image, p.form.axis, row.channels
    kind, size, pad = C_TYPES[image.dtype], image.shape[axis], _pad(p)
    step, apart = image.strides[axis], image.strides[row.channel_axis]
    writer.open(
        f'static inline void copy_row(const {kind} *restrict source, {p.number} *restrict to, '
        f'long from, long words, int inside)'
    )
    # The last column may reach into the next row, which is copied behind this one.
    writer.line(f'const long count = (words * {p.products} + {channels - 1}) / {channels};')
    writer.line(f'const long first = from * {p.products} / {channels} - {row.before};')
    writer.line('const long low = inside ? min_long(count, max_long(0, -first)) : count;')
    writer.line(f'const long high = max_long(low, min_long(count, {size} - first));')
    for begin, end in (('0', 'low'), ('high', 'count')):
        writer.line(f'for (long i = {begin} * {channels}; i < {end} * {channels}; i++)')
        writer.line(f'    to[i] = {pad};')
    writer.line(f'const {kind} *restrict s = source + {scaled("(first + low)", step)};')
    writer.line(f'to += low * {channels};')
    writer.open('for (long x = 0; x < high - low; x++)')
    for i in range(channels):
        place = total([scaled('x', step), str(i * apart)])
        writer.line(f'to[{channels} * x + {i}] = s[{place}];')
    writer.close(2)
    writer.line()
    writer.open(
        f'static void pack_tile(const {kind} *restrict source, float *restrict buffer, '
        f'const long *from, const long *extent)'
    )
    _, places, line = operand.open_rows(writer, p.words.operand, image)
    to = f'({p.number} *)(buffer + {total(places)})'
    writer.line(f'copy_row(source + ({line}), {to}, from[{axis}], extent[{axis}], inside);')
    writer.close(writer.depth)
    writer.line()


def _pad(p: DotPlan) -> int:
    """What stands outside the image, as words hold it."""
    pad = int(p.group.main.pad_value)
    if not p.flips:
        return pad
    return (pad ^ 128) - (256 if pad ^ 128 > 127 and p.image.dtype == 'u8' else 0)


def _write_word(writer: Writer, p: DotPlan, step: int, size: int, pad: int, flip: str) -> None:
    """All channels of a pixel, which are one word: stored at once."""
    bits = 32 // p.products
    numbers = [f'source[{scaled(str(i), step) or 0}]{flip}' for i in range(size)]
    words = []
    for given in (numbers, [str(pad)] * p.products):
        parts = (f'(uint32_t)(uint{bits}_t)({n}) << {bits * i}' for i, n in enumerate(given))
        words.append(' | '.join(parts))
    writer.line(f'const uint32_t word = inside ? {words[0]} : {words[1]};')
    writer.line('memcpy(to, &word, 4);')


def constant_places(p: DotPlan) -> tuple[dict[str, int], int]:
    """Where constants beside the weights lie, in floats behind the panels; and floats of all."""
    more: dict[str, int] = {}
    if p.flips:
        more[MOVED] = p.words.panels.size * _loose_points(p)
    if p.near:
        more |= {START: p.words.panels.size, NEAR: 1}
    return abi.behind(p.group, p.weights.name, p.words.packed_floats, more)


def _loose_points(p: DotPlan) -> int:
    points = 1
    for name in p.words.loose:
        points *= p.group.main.sizes[name]
    return points


def write_weights(writer: Writer, p: DotPlan) -> None:
    """tw_pack: weights into panels of words, other constants behind them."""
    c, panels, words = p.words.contraction, p.words.panels, p.words.group.main.sizes
    sizes, names = p.group.main.sizes, [t.name for t in p.group.with_role('constant')]
    strides, const = access_strides(p.group, factors(p.group)[1])
    places, floats = constant_places(p)
    row, terms = p.form.row, {p.form.dim: 'number'}
    numbers = sizes[p.form.dim]
    if row:
        numbers = row.taps * row.channels
        terms = {p.form.dim: f'(number % {row.channels})', row.tap: f'(number / {row.channels})'}
    inside = f'{c.vector} < {panels.size} && number < {numbers}'
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    source = f'constants[{names.index(p.weights.name)}]'
    kind = p.weight if p.halves else 'int8_t'
    writer.line(f'const {kind} *b = (const {kind} *){source};')
    writer.line(f'{p.weight} *to = ({p.weight} *)packed;')
    for name in p.words.loose:
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    writer.open(f'for (long panel = 0; panel < {panels.count}; panel++)')
    writer.line(
        f'const long width = panel + 1 < {panels.count} ? {panels.width} : {panels.tail_width};'
    )
    loops = len(c.reduction)
    if p.words.deep and not p.words.taps and c.loop:  # words of a tile lie together
        deep = p.words.deep
        for name in c.outer:
            writer.open(f'for (long {name} = 0; {name} < {words[name]}; {name}++)')
        writer.open(f'for (long tile = 0; tile < {words[c.loop] // deep}; tile++)')
        for name in c.unrolled:
            writer.open(f'for (long {name} = 0; {name} < {words[name]}; {name}++)')
        writer.open(f'for (long row = 0; row < {deep}; row++)')
        writer.line(f'const long {c.loop} = tile * {deep} + row;')
        loops += 1
    else:
        for name in c.reduction:
            writer.open(f'for (long {name} = 0; {name} < {words[name]}; {name}++)')
    if p.apart:
        writer.open(f'for (long spot = 0; spot < {p.products}; spot++)')
    writer.open('for (long lane = 0; lane < width; lane++)')
    writer.line(f'const long {c.vector} = panel * {panels.width} + lane;')
    if not p.apart:
        writer.open(f'for (long spot = 0; spot < {p.products}; spot++)')
    writer.line(f'const long number = {p.form.dim} * {p.products} + spot;')
    steps = [scaled(terms.get(d, d), s) for d, s in strides.items()]
    address = total([*steps, str(const)])
    writer.line(f'*to++ = {inside} ? b[{address}] : 0;')
    writer.close(3 + loops + len(p.words.loose))
    weight = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
    if p.flips:
        _write_moved(writer, p, places[MOVED], weight)
    if p.near:
        loops = [f'for (long {d} = 0; {d} < {sizes[d]}; {d}++)' for d in c.reduction]
        moved = (-128 if p.image.dtype == 'i8' else 128) if p.flips else 0
        largest = 128 if p.products == IN_BYTES else 255
        write_near(writer, p.group, p.near, c.vector, places, (loops, weight), moved, largest)
    abi.write_behind(writer, p.group, p.weights.name, places)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.words.schedule.threads, p.words.scratch_floats, floats)


def _write_moved(writer: Writer, p: DotPlan, place: int, address: str) -> None:
    """What is to be added to the sums of each channel, since numbers were moved by 128."""
    sizes, c = p.group.main.sizes, p.words.contraction
    sign = '-' if p.image.dtype == 'i8' else ''
    writer.line(f'int32_t *moved = (int32_t *)(packed + {place});')
    for name in (*p.words.loose, c.vector):
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    writer.line('int32_t sum = 0;')
    for name in c.reduction:
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    writer.line(f'sum += b[{address}];')
    writer.close(len(c.reduction))
    writer.line(f'*moved++ = {sign}128 * sum;')
    writer.close(len(p.words.loose) + 1)


def _write_part(writer: Writer, p: DotPlan) -> None:
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    places, _ = constant_places(p)

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    kind = p.source if p.words.schedule.pack else 'float'
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line(f'const {kind} *source = (const {kind} *)({pointer(p.image.name)});')
    write_nest(writer, p.words, pointer, 'pack_tile(source, buffer, from, extent);')
    writer.close()
