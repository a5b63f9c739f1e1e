"""The schema of pixels: pixels across the lanes, weights broadcast, results stored as they are.

Goes in: a plan (plan.py). Comes out: C with the ABI of kernels/cpu/abi.py.

    part: images, tiles of channels, and rows or pixels of one thread
      for each image, for each block of rows        the input that it needs is copied, in vectors,
                                                    through what comes before the products
        for each tile of channels                   its weights stay in a near cache
          for each tile of rows and vectors         micro-kernel (isa/x86_rows.py): sums, what
                                                    follows them, stores

Where nothing comes before the products, micro-kernels of the first tile of channels copy whole
strips of pixels on their way; what is left of a block is copied by itself, and so is a strip whose
micro-kernel computes the last pixels as well.

Where lanes are channels (schemas/outer) sums go through a buffer and are transposed on their way
out, and every pixel is copied by itself; here neither is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa.x86 import UNROLL
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import Operand, access_strides, write_epilogue
from tilewright.kernels.cpu.schemas.outer.finish import Finished
from tilewright.kernels.cpu.schemas.pixels.corner import corner_name, write_corner
from tilewright.kernels.cpu.schemas.pixels.plan import PixelsPlan, kernel_name
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.stage import Access
from tilewright.registry import resolve

STRIPS_TOGETHER = 2  # that are filled channel by channel: each is a stream of stores of its own
ROWS_AHEAD = 4  # channels whose pixels are asked for while one is copied (kernels/cpu/operand.py)

COPY = """\
typedef float row_v __attribute__((vector_size({size}), aligned(4), may_alias));

/* to[x] = from[first + x * step] for x < count, zero where that index is not below `size`. */
static inline void copy_row(const float *restrict from, float *restrict to, long first, long size,
                            long count, long step{parameters})
{{
    long low = first < 0 ? (step - 1 - first) / step : 0;
    long high = size > first ? (size - first + step - 1) / step : 0;
    low = min_long(low, count);
    high = max_long(low, min_long(high, count));
    for (long x = 0; x < low; x++)
        to[x] = 0.0f;
    if (step == 1)
        {neighbours}
    else
        for (long x = low; x < high; x++)
            to[x] = {element};
    for (long x = high; x < count; x++)
        to[x] = 0.0f;
}}
"""


def generate(plan: PixelsPlan) -> str:
    """[PixelsPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, plan.group, plan.schedule)
    before = plan.front.functions if plan.front else ()
    behind = plan.epilogue.functions if plan.finish is None or plan.corner else ()
    write_epilogue(writer, tuple(dict.fromkeys((*before, *behind))))
    write_copy(writer, plan)
    (_write_strips if plan.shape.flat else _write_rows)(writer, plan)
    write_kernels(writer, plan)
    places = _write_packing(writer, plan)
    write_finish(writer, plan)
    _write_part(writer, plan, places)
    return writer.text()


def write_kernels(writer: Writer, plan: PixelsPlan) -> None:
    """The micro-kernel of every register tile that occurs."""
    emitter = resolve(ISAS[plan.schedule.isa].rows_emit)
    for channels, high, wide in variants(plan):
        writer.lines += [*emitter(plan.kernel(channels, high, wide)).splitlines(), '']
    for channels, high, wide in copying(plan):
        kernel = plan.kernel(channels, high, wide, copies=True)
        writer.lines += [*emitter(kernel).splitlines(), '']
    for channels in sorted(set(plan.counts), reverse=True) if plan.corner else ():
        if plan.joined:
            joined = plan.kernel(channels, 1, plan.wide, plan.corner)
            writer.lines += [*emitter(joined).splitlines(), '']
        write_corner(writer, ISAS[plan.schedule.isa], channels, plan.corner)


def write_finish(writer: Writer, plan: PixelsPlan) -> None:
    """What is called around a micro-kernel; functions of its epilogue are defined by then."""
    _write_fetch(writer, plan)
    if plan.finish is None:
        _write_epilogue(writer, plan)
    if plan.corner:
        _write_corner_results(writer, plan)


def variants(plan: PixelsPlan) -> list[tuple[int, int, int]]:
    """Channels, rows and vectors of every register tile that occurs."""
    channels = sorted(set(plan.counts), reverse=True)
    return [(k, h, w) for k in channels for h in _highs(plan) for w in _wides(plan)]


def copying(plan: PixelsPlan) -> list[tuple[int, int, int]]:
    """Those among them that copy their pixels, too: strips that are whole."""
    return [v for v in variants(plan) if v[1:] == (1, plan.wide)] if plan.source_pitch else []


def _highs(plan: PixelsPlan) -> list[int]:
    """Rows of register tiles. Threads and blocks may end anywhere."""
    return list(range(plan.high, 0, -1)) if plan.shape.down.name else [1]


def _wides(plan: PixelsPlan) -> list[int]:
    """Vectors of register tiles; parts of a flat run are whole vectors of any number."""
    if plan.shape.flat:
        return list(range(plan.wide, 0, -1))
    rest = plan.vectors % plan.wide
    return [w for w in (plan.wide, rest) if w and (w == rest or plan.vectors >= plan.wide)]


def write_copy(writer: Writer, plan: PixelsPlan) -> None:
    """`copy_row`; each element goes through what comes before the products."""
    front = plan.front
    element, parameters = 'from[first + x * step]', ''
    neighbours = 'memcpy(to + low, from + first + low, 4 * (unsigned long)(high - low));'
    if front:
        front.write_function(writer)
        element, parameters = front.element(element), front.parameters
        near = front.element('from[first + x]')
        neighbours = f'for (long x = low; x < high; x++) to[x] = {near};'
    text = COPY.format(
        size=4 * plan.lanes, parameters=parameters, element=element, neighbours=neighbours
    )
    writer.lines += [*text.splitlines(), '']


def _open_copy(writer: Writer, plan: PixelsPlan) -> str:
    """The head of `copy_tile`; what its calls of `copy_row` end in."""
    front = plan.front
    writer.open(
        'static void copy_tile(const float *restrict image, float *restrict buffer, long first, '
        f'long end{front.pointers if front else ""})'
    )
    return front.arguments if front else ''


def _write_strips(writer: Writer, plan: PixelsPlan) -> None:
    """Pixels from `first` to `end` of all channels, in strips."""
    channels, size = plan.sizes[plan.shape.summed], plan.shape.across.size
    pitch, strip, front = size, plan.strip, plan.front
    vectors = front.write_strip(writer, strip, plan.lanes) if front else ''
    numbers = _open_copy(writer, plan)
    writer.line(f'const long past = {channels - ROWS_AHEAD};')
    writer.open(f'for (long c = 0; c < {channels}; c++)')
    writer.line(f'const float *row = image + c * {pitch};')
    _write_numbers(writer, plan)
    writer.line(f'float *to = buffer + c * {strip};')
    writer.line('long x = first;')
    writer.open(f'for (; x + {strip} <= end; x += {strip}, to += {plan.strip_floats})')
    if vectors:
        writer.line(f'front_strip(row + x, to{numbers});')
    elif front:
        writer.line(f'copy_row(row, to, x, end, {strip}, 1{numbers});')
    for v in range(0 if front else plan.wide):
        at = v * plan.lanes
        writer.line(f'*(row_v *)(to + {at}) = *(const row_v *)(row + x + {at});')
    writer.open('if (c < past)')
    for at in range(0, strip, 16):
        writer.line(f'__builtin_prefetch(row + x + {ROWS_AHEAD * pitch + at});')
    writer.close(2)
    if plan.corner:  # of every channel side by side: whole strips would be a line for each
        writer.open(f'if (x == {size - plan.corner} && x < end)')
        writer.line(f'float *last = to - c * {strip - plan.corner};')
        if front:
            writer.line(f'copy_row(row, last, x, end, {plan.corner}, 1{numbers});')
        else:
            writer.line(f'for (long i = 0; i < {plan.corner}; i++)')
            writer.line('    last[i] = row[x + i];')
        writer.line('continue;')
        writer.close()
    # What is behind the last pixel lies in the rows that follow, and is not stored.
    followed = channels - -(-(plan.lanes - 1) // pitch)
    if not front and followed > 0:
        writer.open(f'if (x < end && c < {followed})')
        for at in range(0, strip, plan.lanes):
            test = f'if (x + {at} < end) ' if at else ''
            writer.line(f'{test}*(row_v *)(to + {at}) = *(const row_v *)(row + x + {at});')
        writer.line('continue;')
        writer.close()
    writer.line('if (x < end)')
    writer.line(f'    copy_row(row, to, x, end, {strip}, 1{numbers});')
    writer.close(2)
    writer.line()


def _write_numbers(writer: Writer, plan: PixelsPlan) -> None:
    """The numbers of channel c that what comes before the products needs."""
    if plan.front and plan.front.numbers:
        writer.line('const int inside = 1; /* every channel is one of the image */')
        plan.front.write_numbers(writer, {1: 'c'})


def _write_rows(writer: Writer, plan: PixelsPlan) -> None:
    """What results from row `first` to `end` need, of all channels."""
    shape = plan.shape
    down, across = shape.down, shape.across
    channels = plan.sizes[shape.summed]
    pitch, plane = across.extent, across.extent * down.extent
    span = (down.taps[-1] - down.taps[0]) // plan.jump + 1
    numbers = _open_copy(writer, plan)
    if down.name:
        writer.line(f'const long rows = (end - first - 1) * {down.step // plan.jump} + {span};')
    else:
        writer.line('const long rows = 1;')
    writer.open(f'for (long c = 0; c < {channels}; c++)')
    _write_numbers(writer, plan)
    writer.open('for (long y = 0; y < rows; y++)')
    start = f'first * {down.step} + ' if down.name else ''
    writer.line(f'const long at = {start}y * {plan.jump} + ({down.taps[0]});')
    writer.line(f'const int there = (unsigned long)at < {down.extent}ul;')
    writer.line(f'const float *row = image + c * {plane} + (there ? at : 0) * {pitch};')
    writer.line(f'float *to = buffer + c * {plan.channel} + y * {plan.row};')
    writer.line(f'const long width = there ? {across.extent} : 0;')
    for number, phase in enumerate(plan.phases):
        place, first = number * plan.columns, across.taps[0] + phase
        writer.line(
            f'copy_row(row, to + {place}, {first}, width, {plan.columns}, {across.step}{numbers});'
        )
    writer.close(3)
    writer.line()


def _image(plan: PixelsPlan) -> int:
    """Which of the main stage's reads is the image."""
    reads = plan.group.main.reads
    return next(i for i, a in enumerate(reads) if plan.shape.across.name in a.names)


def _write_packing(writer: Writer, plan: PixelsPlan) -> dict[str, int]:
    """Weights of a tile of channels side by side, for each channel and point of the window."""
    group, filters = plan.group, weights_of(plan).tensor
    places = abi.constant_places(group, filters, plan.packed_end)
    number = [t.name for t in group.with_role('constant')].index(filters)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    write_weights(writer, plan, f'constants[{number}]')
    floats = abi.write_constants(writer, group, places, plan.packed_end)
    writer.close()
    writer.line()
    abi.write_sizes(writer, plan.schedule.threads, plan.scratch_floats, floats)
    return places


def weights_of(plan: PixelsPlan) -> Access:
    """How the main stage reads weights."""
    return plan.group.main.reads[1 - _image(plan)]


def write_weights(writer: Writer, plan: PixelsPlan, source: str) -> None:
    """In tw_pack: the weights at `source`, packed from the beginning on."""
    shape, sizes = plan.shape, plan.sizes
    strides, const = access_strides(plan.group, weights_of(plan))
    writer.line(f'const float *from = {source};')
    writer.line('float *to = packed;')
    starts = [sum(plan.counts[:i]) for i in range(len(plan.counts) + 1)]
    writer.line(f'static const long starts[] = {{{", ".join(map(str, starts))}}};')
    writer.open(f'for (long tile = 0; tile < {len(plan.counts)}; tile++)')
    inner = [shape.summed, *(a.window for a in (shape.down, shape.across) if a.window)]
    for name in inner:
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    channels = shape.channels
    writer.line(
        f'for (long {channels} = starts[tile]; {channels} < starts[tile + 1]; {channels}++)'
    )
    place = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
    writer.line(f'    *to++ = from[{place}];')
    writer.close(len(inner) + 1)


def _write_fetch(writer: Writer, plan: PixelsPlan) -> None:
    """Ask for the lines that a register tile will be stored to, before it is computed."""
    out, _ = access_strides(plan.group, plan.group.main.write)
    length = plan.wide * plan.lanes
    writer.open('static inline void fetch_result(const float *out, long channels, long rows)')
    writer.open('for (long k = 0; k < channels; k++)')
    writer.open('for (long row = 0; row < rows; row++)')
    place = total([scaled('k', out[plan.shape.channels]),
                   scaled('row', out.get(plan.shape.down.name, 0))])  # fmt: skip
    writer.line(f'const float *at = out + {place};')
    for at in [*range(0, length, 16)]:
        writer.line(f'__builtin_prefetch(at + {at}, 1);')
    writer.close(3)
    writer.line()


def _write_epilogue(writer: Writer, plan: PixelsPlan) -> None:
    """A register tile that was stored, through an epilogue that micro-kernels do not know."""
    out, _ = access_strides(plan.group, plan.group.main.write)
    names = {plan.shape.channels: 'k', plan.shape.down.name: 'row', plan.shape.across.name: 'x'}
    operands = ''.join(f', const float *{item.name}' for item in plan.epilogue.operands)
    writer.open(
        f'static __attribute__((noinline)) void finish(float *restrict out, long channels, '
        f'long rows, long width{operands})'
    )
    for name, count in (('k', 'channels'), ('row', 'rows'), ('x', 'width')):
        writer.open(f'for (long {name} = 0; {name} < {count}; {name}++)')
    for item in plan.epilogue.operands:
        terms = [scaled(text, item.stride(d)) for d, text in names.items() if d]
        writer.line(f'const long {item.name}_at = {total(terms)};')
    place = total([scaled(text, out.get(d, 0)) for d, text in names.items() if d])
    writer.line(f'const float value = out[{place}];')
    writer.line(f'out[{place}] = {plan.epilogue.expression};')
    writer.close(4)
    writer.line()


def _write_corner_results(writer: Writer, plan: PixelsPlan) -> None:
    """`store_corner`: sums with channels across the lanes, through the epilogue."""
    out, _ = access_strides(plan.group, plan.group.main.write)
    names = {plan.shape.channels: 'k', plan.shape.across.name: 'x'}
    operands = ''.join(f', const float *{item.name}' for item in plan.epilogue.operands)
    writer.open(
        'static __attribute__((noinline)) void store_corner(const float *restrict sums, '
        f'float *restrict out, long channels{operands})'
    )
    writer.open('for (long k = 0; k < channels; k++)')
    writer.open(f'for (long x = 0; x < {plan.corner}; x++)')
    for item in plan.epilogue.operands:
        terms = [scaled(text, item.stride(d)) for d, text in names.items()]
        writer.line(f'const long {item.name}_at = {total(terms)};')
    writer.line(f'const float value = sums[x * {plan.lanes} + k];')
    place = total([scaled(text, out.get(d, 0)) for d, text in names.items()])
    writer.line(f'out[{place}] = {plan.epilogue.expression};')
    writer.close(3)
    writer.line()


def _write_part(writer: Writer, plan: PixelsPlan, places: dict[str, int]) -> None:
    group = plan.group
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    image = group.main.reads[_image(plan)].tensor
    size = group.tensor(image).size // plan.sizes.get(plan.shape.batch, 1)

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    writer.open('void tw_part(const tw_args *args, long part)')
    source = plan.front.source if plan.front else image
    numbers = ''.join(f', {pointer(n.tensor)}' for n in (plan.front.numbers if plan.front else ()))
    copy = [f'copy_tile({pointer(source)} + n * {size}, buffer, block, end{numbers});']
    if plan.source_pitch:
        copy = [f'const float *image = {pointer(source)} + n * {size};']
    elif plan.shape.flat:
        step, floats = STRIPS_TOGETHER * plan.strip, STRIPS_TOGETHER * plan.strip_floats
        copy = [
            'float *to = buffer;',
            f'for (long x = block; x < end; x += {step}, to += {floats})',
            f'    copy_tile({pointer(source)} + n * {size}, to, x, min_long(x + {step}, end)'
            f'{numbers});',
        ]
    write_nest(writer, plan, pointer, copy)
    writer.close()


def write_nest(
    writer: Writer, plan: PixelsPlan, pointer: Callable[[str], str], fill: list[str],
    first: Sequence[str] = (),
) -> None:  # fmt: skip
    """The loops of a thread, inside `tw_part`.

    `pointer` says where tensors lie; `fill` are C statements that fill `buffer` with what results
    from `block` to `end` of image `n` read, `first` those before all loops.
    """
    shape = plan.shape
    writer.line('float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.lines += [f'{"    " * writer.depth}{line}' for line in first]
    for item in plan.epilogue.operands:
        writer.line(f'const float *{item.name} = {pointer(item.tensor)};')
    write_shares(writer, plan)
    floats = plan.packed_floats // plan.sizes[shape.channels]
    writer.open('for (long n = n_low; n < n_high; n++)')
    writer.open(f'for (long block = x_low; block < x_high; block += {plan.block})')
    writer.line(f'const long end = min_long(block + {plan.block}, x_high);')
    writer.lines += [f'{"    " * writer.depth}{line}' for line in fill]
    writer.open('for (long tile = tile_low; tile < tile_high; tile++)')
    write_tile(writer, plan)
    writer.line(f'const float *weights = args->packed + k * {floats};')
    if shape.flat:
        _write_flat(writer, plan)
    else:
        _write_tiles(writer, plan)
    writer.close(3)


def write_shares(writer: Writer, plan: PixelsPlan) -> None:
    """What one thread computes: images, tiles of channels, and results along the axis of blocks."""
    shape, axis, unit = plan.shape, plan.axis, plan.unit
    dims = (
        ('n', shape.batch, plan.sizes.get(shape.batch, 1)),
        ('tile', shape.channels, len(plan.counts)),
        ('x', axis.name, -(-axis.size // unit)),
    )
    rest = 'part'
    for letter, name, count in dims:
        ways = dict(plan.schedule.parallel).get(name, 1) if name else 1
        index = f'({rest} % {ways})' if ways > 1 else '0'
        rest = f'({rest} / {ways})' if ways > 1 else rest
        low, high = f'{count} * {index} / {ways}', f'{count} * ({index} + 1) / {ways}'
        if letter == 'x':
            low, high = f'{low} * {unit}', f'min_long({high} * {unit}, {axis.size})'
        writer.line(f'const long {letter}_low = {low}, {letter}_high = {high};')


def write_tile(writer: Writer, plan: PixelsPlan) -> None:
    """The first channel of a tile, and how many it has."""
    tiles, counts = len(plan.counts), plan.counts
    if len(set(counts)) > 1:
        writer.line(f'const long k = tile * {sum(counts)} / {tiles};')
        writer.line(f'const long channels = (tile + 1) * {sum(counts)} / {tiles} - k;')
    else:
        writer.line(f'const long k = tile * {counts[0]};')
        writer.line(f'const long channels = {counts[0]};')


def write_called(
    writer: Writer, plan: PixelsPlan, name: Callable[[int], str], given: str
) -> None:  # fmt: skip
    """A call of the function for a tile's channels, by its `name`."""
    counts = sorted(set(plan.counts), reverse=True)
    for number, channels in enumerate(counts):
        test = '' if number + 1 == len(counts) else f'if (channels == {channels}) '
        writer.line(f'{"else " if number else ""}{test}{name(channels)}({given});')


def _write_flat(writer: Writer, plan: PixelsPlan) -> None:
    lanes, strip, size = plan.lanes, plan.strip, plan.shape.across.size
    writer.line('const float *pixels = buffer;')
    writer.open(f'for (long x = block; x < end; x += {strip}, pixels += {plan.strip_floats})')
    if plan.source_pitch:
        _write_copying(writer, plan)
    if plan.corner:
        writer.open(f'if (x == {size - plan.corner})')
        _write_corner_call(writer, plan)
        writer.line('continue;')
        writer.close()
    if plan.joined:
        writer.open(f'if (x == {size - plan.corner - strip} && end == {size})')
        writer.line(f'const long lanes = {lanes};')
        _write_sums(writer, plan)
        _write_call(
            writer, plan, lambda d: {plan.shape.across.name: 'x'}.get(d, ''),
            [(k, 1, plan.wide) for k in sorted(set(plan.counts), reverse=True)], plan.corner,
        )  # fmt: skip
        writer.open('')
        _write_corner_store(writer, plan, f'(x + {strip})')
        writer.close()
        writer.line('break;')
        writer.close()
    writer.line(f'const long vectors = min_long({plan.wide}, (end - x + {lanes - 1}) / {lanes});')
    writer.line(f'const long lanes = min_long({lanes}, end - x - (vectors - 1) * {lanes});')
    _write_call(writer, plan, lambda d: {plan.shape.across.name: 'x'}.get(d, ''))
    writer.close()


def _write_copying(writer: Writer, plan: PixelsPlan) -> None:
    """In the first tile of channels: the strip at x is copied as it is multiplied, or before."""
    strip, size = plan.strip, plan.shape.across.size
    writer.open('if (tile == tile_low)')
    alone = f' && x != {size - plan.corner - strip}' if plan.joined else ''
    writer.open(f'if (x + {strip} <= end{alone})')
    writer.line(f'const long lanes = {plan.lanes};')
    _write_call(
        writer, plan, lambda d: {plan.shape.across.name: 'x'}.get(d, ''), copying(plan), copies=True
    )
    writer.line('continue;')
    writer.close()
    writer.line('copy_tile(image, (float *)pixels, x, end);')
    writer.close()


def _write_tiles(writer: Writer, plan: PixelsPlan) -> None:
    lanes, across = plan.lanes, plan.shape.across
    places = {across.name: 'x'}
    if plan.shape.down.name:
        places[plan.shape.down.name] = 'y'
        writer.open(f'for (long y = block; y < end; y += {plan.high})')
        writer.line(f'const long high = min_long({plan.high}, end - y);')
    last = across.size - (plan.vectors - 1) * lanes
    writer.open(f'for (long x = 0; x < {across.size}; x += {plan.strip})')
    writer.line(f'const long vectors = min_long({plan.wide}, {plan.vectors} - x / {lanes});')
    writer.line(f'const long lanes = x + {plan.strip} < {across.size} ? {lanes} : {last};')
    shift = [scaled('(y - block)', plan.result_row)] if plan.shape.down.name else []
    writer.line(f'const float *pixels = buffer + {total([*shift, "x"])};')
    _write_call(writer, plan, lambda d: places.get(d, ''))
    writer.close(2 if plan.shape.down.name else 1)


def _write_corner_call(writer: Writer, plan: PixelsPlan) -> None:
    """The sums of the last pixels, and what becomes of them."""
    isa, count = plan.schedule.isa, plan.sizes[plan.shape.summed]
    _write_sums(writer, plan)
    write_called(
        writer, plan, lambda channels: corner_name(isa, channels, plan.corner),
        f'weights, pixels, sums, {count}',
    )  # fmt: skip
    _write_corner_store(writer, plan, 'x')


def _write_sums(writer: Writer, plan: PixelsPlan) -> None:
    """Where the sums of the last pixels lie."""
    writer.line(
        f'float *sums = buffer + {plan.scratch_floats - abi.aligned(plan.corner * plan.lanes)};'
    )


def _write_corner_store(writer: Writer, plan: PixelsPlan, at: str) -> None:
    """What becomes of the sums of the last pixels, the first of which is the one `at`."""
    out, const = access_strides(plan.group, plan.group.main.write)
    place = _placed(plan, lambda d: {plan.shape.across.name: at}.get(d, ''))
    operands = ''.join(
        f', {item.name} + {place(item.stride, item.const)}' for item in plan.epilogue.operands
    )
    target = f'args->out + {place(lambda d: out.get(d, 0), const)}'
    writer.line(f'store_corner(sums, {target}, channels{operands});')


def _placed(
    plan: PixelsPlan, at: Callable[[str], str]
) -> Callable[[Callable[[str], int], int], str]:  # fmt: skip
    """Where a tile begins in a tensor of these strides; `at` says where it does along pixels."""
    shape = plan.shape
    names = {shape.channels: 'k'} | ({shape.batch: 'n'} if shape.batch else {})

    def place(strides: Callable[[str], int], const: int) -> str:
        found = ((names.get(d) or at(d), strides(d)) for d in plan.sizes)
        return total([*(scaled(text, stride) for text, stride in found if text), str(const)])

    return place


def _write_call(
    writer: Writer, plan: PixelsPlan, at: Callable[[str], str],
    tiles: Sequence[tuple[int, int, int]] = (), corner: int = 0, copies: bool = False,
) -> None:  # fmt: skip
    """The micro-kernel that fits this tile, of all or of these; `at` says where it begins along
    pixels, `corner` how many of the last pixels it computes as well, `copies` that it copies its
    pixels.
    """
    shape, sizes = plan.shape, plan.sizes
    out, const = access_strides(plan.group, plan.group.main.write)
    place = _placed(plan, at)

    def operand(name: str) -> str:
        found: dict[str, Operand] = {i.name: i for i in plan.epilogue.operands}
        return f'{name} + {place(found[name].stride, found[name].const)}' if name else 'NULL'

    writer.line(f'float *out = args->out + {place(lambda d: out.get(d, 0), const)};')
    high = 'high' if shape.down.name else '1'
    writer.line(f'fetch_result(out, channels, {high});')
    given = f'weights, pixels, out, {sizes[shape.summed]}, lanes, '
    done = plan.finish or Finished()
    given += f'{operand(done.bias)}, {operand(done.more)}, '
    floats = plan.packed_floats // sizes[shape.channels]
    share = sizes[shape.summed] // UNROLL * LINE_FLOATS * plan.ahead
    far = f'weights + channels * {floats} + (x - block) / {plan.strip} * {share}'
    given += far if plan.ahead else 'NULL'
    given += f', pixels + {plan.strip_floats}, sums' if corner else ''
    given += ', image + x' if copies else ''
    chosen = tiles or variants(plan)
    sets = [{v[i] for v in chosen} for i in range(3)]
    for number, variant in enumerate(chosen):
        tests = [
            f'{name} == {value}'
            for name, value, values in zip(
                ('channels', 'high', 'vectors'), variant, sets, strict=True
            )
            if len(values) > 1
        ]
        name = kernel_name(plan.schedule.isa, *variant, corner, copies)
        last = number + 1 == len(chosen)
        if len(chosen) > 1:
            test = '' if last else f'if ({" && ".join(tests)})'
            writer.line(f'{"else " if number else ""}{test}'.rstrip())
        writer.line(f'{"    " if len(chosen) > 1 else ""}{name}({given});')
    if plan.finish is None:
        places = ''.join(f', {operand(item.name)}' for item in plan.epilogue.operands)
        whole = corner or copies
        width = f'{plan.strip}' if whole else f'(vectors - 1) * {plan.lanes} + lanes'
        writer.line(f'finish(out, channels, {high}, {width}{places});')
