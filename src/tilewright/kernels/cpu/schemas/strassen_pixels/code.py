"""Strassen along pixels: sums of strips, seven products, and results made of these.

Goes in: a plan (plan.py). Comes out: C with the ABI of kernels/cpu/abi.py.

    part: images, tiles of channels, and pairs of strips of one thread
      for each image, for each block of pixels      sums of what either half of the channels has in
                                                    both strips of every pair -> V
        for each tile of channels
          for each product                          its weights stay in the first cache
            for each piece of the block             micro-kernel (isa/x86_rows.py) -> M
          for each piece of the block               results of both halves and both strips, what
                                                    follows them, stores

Weights are summed in float64 when they are packed, and lie in the order in which they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa.x86 import UNROLL
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import access_strides, write_epilogue
from tilewright.kernels.cpu.schemas.pixels.code import (
    ROWS_AHEAD,
    weights_of,
    write_called,
    write_shares,
    write_tile,
)
from tilewright.kernels.cpu.schemas.pixels.corner import corner_name, write_corner
from tilewright.kernels.cpu.schemas.pixels.plan import kernel_name
from tilewright.kernels.cpu.schemas.strassen.code import namer
from tilewright.kernels.cpu.schemas.strassen_pixels.plan import StrassenPixelsPlan
from tilewright.kernels.cpu.vector_epilogue import broadcast, vector_type, write_functions
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.strassen import LEFT, PRODUCTS, RIGHT, SINGLE, gather, spread
from tilewright.registry import resolve

INLINE = 'static inline __attribute__((always_inline))'
QUARTERS = ((0, 0), (0, 1), (1, 0), (1, 1))  # (half of the channels, strip of a pair)


def generate(plan: StrassenPixelsPlan) -> str:
    """[StrassenPixelsPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, plan.group, plan.schedule)
    before = plan.front.functions if plan.front else ()
    functions = (*before, *plan.epilogue.functions, *plan.after.functions)
    write_epilogue(writer, tuple(dict.fromkeys(functions)))
    writer.lines += [*vector_type(plan.lanes), '']
    write_functions(writer, replace(plan.after, functions=()), plan.lanes)
    if plan.front:
        plan.front.write_function(writer)
        plan.front.write_strip(writer, plan.strip, plan.lanes)
    emitter = resolve(ISAS[plan.schedule.isa].rows_emit)
    for channels, wide in _variants(plan):
        writer.lines += [*emitter(plan.kernel(channels, 1, wide)).splitlines(), '']
    for channels in sorted(set(plan.counts), reverse=True) if plan.corner else ():
        write_corner(writer, ISAS[plan.schedule.isa], channels, plan.corner)
    _write_sums(writer, plan)
    _write_fill(writer, plan)
    _write_after(writer, plan)
    if plan.wide in _pairs(plan):
        _write_fetch(writer, plan)
    for wide in dict.fromkeys(_pairs(plan)):
        _write_results(writer, plan, wide)
    if _vectors(plan):
        _write_single_results(writer, plan)
    if plan.corner:
        _write_corner_results(writer, plan)
    places = _write_packing(writer, plan)
    _write_part(writer, plan, places)
    return writer.text()


def _pairs(plan: StrassenPixelsPlan) -> list[int]:
    """Vectors of each strip of the pairs that occur, the whole ones first."""
    found = [plan.wide] if plan.shape.across.size >= plan.pair else []
    return found + ([plan.narrow] if plan.narrow else [])


def _vectors(plan: StrassenPixelsPlan) -> tuple[int, ...]:
    """Pixels of the single vectors that micro-kernels along rows compute."""
    return plan.singles[:-1] if plan.corner else plan.singles


def _variants(plan: StrassenPixelsPlan) -> list[tuple[int, int]]:
    """Channels and vectors of every register tile that occurs."""
    wides = list(dict.fromkeys(_pairs(plan) + ([1] if _vectors(plan) else [])))
    return [(k, w) for k in sorted(set(plan.counts), reverse=True) for w in wides]


def _numbers(plan: StrassenPixelsPlan, half: str) -> list[str]:
    return [f'{n.name}_{half}' for n in (plan.front.numbers if plan.front else ())]


def _loaded(plan: StrassenPixelsPlan, half: str, text: str) -> str:
    """A vector of the image, through what comes before the products."""
    if not plan.front:
        return text
    return f'front_lanes({", ".join([text, *_numbers(plan, half)])})'


def _write_sums(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """`sum_pair`, `sum_single`: what products read of one vector of either half and strip."""
    step = plan.strip_floats
    if _pairs(plan):
        writer.open(f'{INLINE} void sum_pair(float *to, row_v u0, row_v u1, row_v l0, row_v l1)')
        blocks = {(0, 0): 'u0', (0, 1): 'u1', (1, 0): 'l0', (1, 1): 'l1'}
        for number, name in enumerate(spread(blocks, RIGHT, namer(writer, 'row_v'), 1)):
            writer.line(f'*(row_v *)(to + {number * step}) = {name};')
        writer.close()
        writer.line()
    if plan.singles:
        writer.open(f'{INLINE} void sum_single(float *to, row_v u, row_v l)')
        combine = namer(writer, 'row_v')
        for number, signs, _ in SINGLE:
            terms = [(sign, name) for sign, name in zip(signs, 'ul', strict=True) if sign]
            writer.line(f'*(row_v *)(to + {number * step}) = {combine(terms)};')
        writer.close()
        writer.line()


def _write_fill(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """`fill`: what products read of the pixels from `first` to `end`."""
    size, strip, lanes, front = plan.shape.across.size, plan.strip, plan.lanes, plan.front
    writer.open(
        'static void fill(const float *restrict image, float *restrict v, long first, long end'
        f'{front.pointers if front else ""})'
    )
    writer.open(f'for (long c = 0; c < {plan.deep}; c++)')
    writer.line(f'const float *u = image + c * {size};')
    writer.line(f'const float *l = u + {plan.deep * size};')
    for half, row in (('u', 'c'), ('l', f'(c + {plan.deep})')):
        for n in front.numbers if front else ():
            element = f'{n.argument}[{n.place({1: row})}]'
            writer.line(f'const row_v {n.name}_{half} = {broadcast(element)};')
    writer.line(f'float *to = v + c * {strip};')
    writer.line('long x = first;')

    def pair(wide: int) -> None:
        for v in range(wide):
            texts = [
                _loaded(plan, half, f'*(const row_v *)({half} + x + {(v + i * wide) * lanes})')
                for half in 'ul'
                for i in (0, 1)
            ]
            writer.line(f'sum_pair(to + {v * lanes}, {", ".join(texts)});')

    if plan.wide in _pairs(plan):
        writer.open(f'for (; x + {plan.pair} <= end; x += {plan.pair}, to += {plan.piece_floats})')
        writer.open(f'if (c < {plan.deep - ROWS_AHEAD})')
        for half in 'ul':
            for at in range(0, plan.pair, LINE_FLOATS):
                writer.line(f'__builtin_prefetch({half} + x + {ROWS_AHEAD * size + at});')
        writer.close()
        pair(plan.wide)
        writer.close()
    if plan.rest:
        writer.line('if (x == end)')
        writer.line('    continue;')
    if plan.narrow:
        pair(plan.narrow)
        writer.line(f'x += {2 * plan.narrow * lanes};')
        writer.line(f'to += {plan.piece_floats};')
    for number, count in enumerate(plan.singles):
        at = number * lanes
        texts = [f'*(const row_v *)({half} + x + {at})' for half in 'ul']
        if count < lanes:
            writer.line('row_v us = zero_v, ls = zero_v;')
            writer.open(f'for (int i = 0; i < {count}; i++)')
            for half in 'ul':
                writer.line(f'{half}s[i] = {half}[x + {at} + i];')
            writer.close()
            texts = ['us', 'ls']
        texts = [_loaded(plan, half, text) for half, text in zip('ul', texts, strict=True)]
        # The last few pixels of every channel lie side by side; what is written behind them goes.
        closer = f' - c * {strip - plan.corner}' if count == plan.corner else ''
        place = f'to + {number * plan.piece_floats}{closer}'
        writer.line(f'sum_single({place}, {", ".join(texts)});')
    writer.close(2)
    writer.line()


def _write_after(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """`after`: what follows the sums, on one vector of results."""
    operands = ''.join(f', row_v {item.name}_v' for item in plan.after.operands)
    writer.open(f'{INLINE} row_v after(row_v value{operands})')
    writer.line(f'return {plan.after.expression};')
    writer.close()
    writer.line()


def _operands(plan: StrassenPixelsPlan) -> str:
    return ''.join(f', const float *{item.name}' for item in plan.after.operands)


def _places(plan: StrassenPixelsPlan, half: int, shift: int, x: str) -> tuple[str, dict[str, str]]:
    """Where channel k of a half and pixel `shift` + x lie: in the result, in every operand."""
    out, _ = access_strides(plan.group, plan.group.main.write)
    channels, across = plan.shape.channels, plan.shape.across.name

    def place(stride: Callable[[str], int]) -> str:
        const = half * plan.half * stride(channels) + shift * stride(across)
        terms = [scaled('k', stride(channels))] if stride(channels) else []
        terms += [scaled(x, stride(across))] if stride(across) else []
        return total([*terms, str(const)])

    found = {item.name: place(item.stride) for item in plan.after.operands}
    return place(lambda d: out.get(d, 0)), found


def _store(plan: StrassenPixelsPlan, name: str, half: int, shift: int, x: str) -> str:
    """The store of a whole vector of results."""
    across = plan.shape.across.name
    out, places = _places(plan, half, shift, x)
    given = [name]
    for item in plan.after.operands:
        at = places[item.name]
        near = item.stride(across) == 1
        given.append(
            f'*(const row_v *)({item.name} + {at})' if near else broadcast(f'{item.name}[{at}]')
        )
    return f'*(row_v *)(out + {out}) = after({", ".join(given)});'


def _write_results(writer: Writer, plan: StrassenPixelsPlan, wide: int) -> None:
    """`results_W`: both halves and strips of a pair, of its seven products."""
    lanes, strip = plan.lanes, plan.strip
    writer.open(
        f'static __attribute__((noinline)) void results_{wide}(const float *restrict m, '
        f'float *out, long channels{_operands(plan)})'
    )
    writer.open('for (long k = 0; k < channels; k++)')
    writer.open(f'for (long x = 0; x < {wide * lanes}; x += {lanes})')
    for t in range(PRODUCTS):
        place = f'm + k * {strip} + x + {t * plan.tile_floats}'
        writer.line(f'const row_v p{t} = *(const row_v *)({place});')
    found = gather([f'p{t}' for t in range(PRODUCTS)], namer(writer, 'row_v'), 1)
    for half, right in QUARTERS:
        writer.line(_store(plan, found[half, right], half, right * wide * lanes, 'x'))
    writer.close(3)
    writer.line()


def _write_single_results(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """`results_single`: both halves of the first `width` pixels of a vector."""
    writer.open(
        'static __attribute__((noinline)) void results_single(const float *restrict m, '
        f'float *out, long channels, long width{_operands(plan)})'
    )
    writer.open('for (long k = 0; k < channels; k++)')
    for t, _, _ in SINGLE:
        place = f'm + k * {plan.strip} + {t * plan.tile_floats}'
        writer.line(f'const row_v p{t} = *(const row_v *)({place});')
    for half, name in enumerate(('upper', 'lower')):
        text = ' + '.join(f'p{t}' for t, _, of in SINGLE if of == half)
        writer.line(f'const row_v {name} = {text};')
    if plan.lanes in _vectors(plan):
        writer.open(f'if (width == {plan.lanes})')
        for half, name in enumerate(('upper', 'lower')):
            writer.line(_store(plan, name, half, 0, ''))
        writer.line('continue;')
        writer.close()
    for half, name in enumerate(('upper', 'lower')):
        writer.open('for (long x = 0; x < width; x++)')
        _write_result(writer, plan, half, f'{name}[x]')
        writer.close()
    writer.close(2)
    writer.line()


def _write_result(writer: Writer, plan: StrassenPixelsPlan, half: int, value: str) -> None:
    """One result, of channel k of a half and pixel x."""
    out, places = _places(plan, half, 0, 'x')
    for item in plan.epilogue.operands:
        writer.line(f'const long {item.name}_at = {places[item.name]};')
    writer.line(f'const float value = {value};')
    writer.line(f'out[{out}] = {plan.epilogue.expression};')


def _write_corner_results(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """`results_corner`: both halves of the last pixels, with channels across the lanes."""
    lanes = plan.lanes
    writer.open(
        'static __attribute__((noinline)) void results_corner(const float *restrict m, '
        f'float *out, long channels{_operands(plan)})'
    )
    writer.line(f'float sums[{2 * plan.corner * lanes}];')
    writer.open(f'for (long x = 0; x < {plan.corner * lanes}; x += {lanes})')
    for half in (0, 1):
        places = (f'm + x + {t * plan.tile_floats}' for t, _, of in SINGLE if of == half)
        text = ' + '.join(f'*(const row_v *)({place})' for place in places)
        writer.line(f'*(row_v *)(sums + x + {half * plan.corner * lanes}) = {text};')
    writer.close()
    for half in (0, 1):
        writer.open('for (long k = 0; k < channels; k++)')
        writer.open(f'for (long x = 0; x < {plan.corner}; x++)')
        shift = half * plan.corner * lanes
        _write_result(writer, plan, half, f'sums[x * {lanes} + k + {shift}]')
        writer.close(2)
    writer.close()
    writer.line()


def _write_packing(writer: Writer, plan: StrassenPixelsPlan) -> dict[str, int]:
    """tw_pack: sums of the weights of a tile of channels, product by product."""
    group, shape = plan.group, plan.shape
    filters = weights_of(plan)
    places = abi.constant_places(group, filters.tensor, plan.packed_end)
    number = [t.name for t in group.with_role('constant')].index(filters.tensor)
    strides, const = access_strides(group, filters)
    channel, summed = strides[shape.channels], strides[shape.summed]
    tiles = len(plan.counts)
    writer.open(f'{INLINE} void sum_weights(float *to, long apart, const float *from)')
    blocks = {(r, c): f'w{r}_{c}' for r, c in QUARTERS}
    for (r, c), name in blocks.items():
        shift = r * plan.half * channel + c * plan.deep * summed
        writer.line(f'const double {name} = from[{shift}];')
    for t, name in enumerate(spread(blocks, LEFT, namer(writer, 'double'), 1)):
        writer.line(f'to[{t} * apart] = (float)({name});')
    writer.close()
    writer.line()
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line(f'const float *from = constants[{number}];')
    writer.open(f'for (long tile = 0; tile < {tiles}; tile++)')
    writer.line(f'const long first = tile * {plan.half} / {tiles};')
    writer.line(f'const long channels = (tile + 1) * {plan.half} / {tiles} - first;')
    writer.line(f'float *to = packed + first * {PRODUCTS * plan.deep};')
    writer.open(f'for (long c = 0; c < {plan.deep}; c++)')
    writer.open('for (long k = 0; k < channels; k++, to++)')
    place = total([scaled('(first + k)', channel), scaled('c', summed), str(const)])
    writer.line(f'sum_weights(to, channels * {plan.deep}, from + {place});')
    writer.close(3)
    floats = abi.write_constants(writer, group, places, plan.packed_end)
    writer.close()
    writer.line()
    abi.write_sizes(writer, plan.schedule.threads, plan.scratch_floats, floats)
    return places


def _write_part(writer: Writer, plan: StrassenPixelsPlan, places: dict[str, int]) -> None:
    group, shape = plan.group, plan.shape
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    image = next(a.tensor for a in group.main.reads if shape.across.name in a.names)

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('float *v = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *m = v + {abi.aligned(plan.buffer_floats)};')
    for item in plan.after.operands:
        writer.line(f'const float *{item.name} = {pointer(item.tensor)};')
    write_shares(writer, plan)
    writer.open('for (long n = n_low; n < n_high; n++)')
    writer.open(f'for (long block = x_low; block < x_high; block += {plan.block})')
    writer.line(f'const long end = min_long(block + {plan.block}, x_high);')
    source = plan.front.source if plan.front else image
    size = group.tensor(image).size // plan.sizes.get(shape.batch, 1)
    numbers = ''.join(f', {pointer(n.tensor)}' for n in (plan.front.numbers if plan.front else ()))
    # Few streams of stores at a time: all pairs of a block would be seven each.
    step = f'x += {plan.pair}, to += {plan.piece_floats}'
    writer.line('float *to = v;')
    writer.line(f'for (long x = block; x < end; {step})')
    last = f'min_long(x + {plan.pair}, end)'
    writer.line(f'    fill({pointer(source)} + n * {size}, to, x, {last}{numbers});')
    writer.open('for (long tile = tile_low; tile < tile_high; tile++)')
    write_tile(writer, plan)
    writer.line(f'const float *weights = args->packed + k * {PRODUCTS * plan.deep};')
    _write_products(writer, plan)
    _write_stores(writer, plan)
    writer.close(4)


def _write_fetch(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """Ask for the lines that a quarter of the results of a pair will be stored to."""
    out, _ = access_strides(plan.group, plan.group.main.write)
    writer.open(f'{INLINE} void fetch_quarter(const float *out, long channels)')
    writer.open('for (long k = 0; k < channels; k++)')
    for at in range(0, plan.strip, LINE_FLOATS):
        place = total([scaled('k', out[plan.shape.channels]), str(at)])
        writer.line(f'__builtin_prefetch(out + {place}, 1);')
    writer.close(2)
    writer.line()


def _write_products(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """Every product of a tile of channels with the pieces of a block, into M. The first four ask
    for the lines of the results, a quarter of them each.
    """
    isa, share = plan.schedule.isa, plan.deep // UNROLL * LINE_FLOATS
    out, _ = access_strides(plan.group, plan.group.main.write)
    half, along = plan.half * out[plan.shape.channels], plan.strip * out[plan.shape.across.name]
    step = f'pixels += {plan.piece_floats}, at += {PRODUCTS * plan.tile_floats}, next += {share}'

    def call(wide: int) -> None:
        given = f'weights, pixels, at, {plan.deep}, {plan.lanes}, NULL, NULL, next'
        write_called(writer, plan, lambda channels: kernel_name(isa, channels, 1, wide), given)

    writer.open(f'for (long t = 0; t < {PRODUCTS}; t++)')
    writer.line(f'const float *next = weights + channels * {plan.deep};')
    writer.line(f'const float *pixels = v + t * {plan.strip_floats};')
    writer.line(f'float *at = m + t * {plan.tile_floats};')
    writer.line('long x = block;')
    if plan.wide in _pairs(plan):
        writer.open(f'for (; x + {plan.pair} <= end; x += {plan.pair}, {step})')
        writer.line('if (t < 4)')
        quarter = f't / 2 * {half} + t % 2 * {along}'
        writer.line(f'    fetch_quarter({_result(plan)} + {quarter}, channels);')
        call(plan.wide)
        writer.close()
    if plan.rest:
        writer.open('if (x < end)')
        if plan.narrow:
            call(plan.narrow)
            writer.line(f'{step};')
        if plan.singles:
            numbers = [t for t, _, _ in SINGLE]
            writer.open(f'if (t >= {min(numbers)} && t <= {max(numbers)})')
            for _ in _vectors(plan):
                call(1)
                writer.line(f'{step};')
            if plan.corner:
                write_called(
                    writer, plan, lambda channels: corner_name(isa, channels, plan.corner),
                    f'weights, pixels, at, {plan.deep}',
                )  # fmt: skip
            writer.close()
        writer.close()
    writer.line(f'weights += channels * {plan.deep};')
    writer.close()


def _piece(plan: StrassenPixelsPlan, stride: Callable[[str], int], const: int) -> str:
    """Where a piece begins in a tensor of these strides."""
    shape = plan.shape
    names = {shape.channels: 'k', shape.across.name: 'x'}
    names |= {shape.batch: 'n'} if shape.batch else {}
    terms = [scaled(text, stride(d)) for d, text in names.items() if stride(d)]
    return total([*terms, str(const)])


def _result(plan: StrassenPixelsPlan) -> str:
    """Where the results of a piece begin."""
    out, const = access_strides(plan.group, plan.group.main.write)
    return f'args->out + {_piece(plan, lambda d: out.get(d, 0), const)}'


def _write_stores(writer: Writer, plan: StrassenPixelsPlan) -> None:
    """Results of a tile of channels and the pieces of a block."""
    to = _result(plan)

    def given() -> str:
        return ''.join(
            f', {item.name} + {_piece(plan, item.stride, item.const)}'
            for item in plan.after.operands
        )

    step = f'at += {PRODUCTS * plan.tile_floats}'
    writer.line('const float *at = m;')
    writer.line('long x = block;')
    if plan.wide in _pairs(plan):
        writer.line(f'for (; x + {plan.pair} <= end; x += {plan.pair}, {step})')
        writer.line(f'    results_{plan.wide}(at, {to}, channels{given()});')
    if plan.rest:
        writer.open('if (x < end)')
        if plan.narrow:
            writer.line(f'results_{plan.narrow}(at, {to}, channels{given()});')
            writer.line(f'x += {2 * plan.narrow * plan.lanes}, {step};')
        for count in _vectors(plan):
            writer.line(f'results_single(at, {to}, channels, {count}{given()});')
            writer.line(f'x += {plan.lanes}, {step};')
        if plan.corner:
            writer.line(f'results_corner(at, {to}, channels{given()});')
        writer.close()
