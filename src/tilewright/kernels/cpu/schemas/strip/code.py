"""The strip schema in C: micro-kernels of tiles that finish the sums of those before them.

    copy the image                       rows of pixels with their border, phases of a stride apart
    for blocks of register tiles
      for panels of weights
        for register tiles of the block
          strip_MxV     for every step: some pixels of the tile before through what follows their
                        sums; tiles of weights, tiles of the image, products
                        asks for a share of the next panel's weights
    finish the last register tile

Products and vectors have units of their own, so that one takes no time while the other does. Goes
in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.half_vectors import HalfValue
from tilewright.kernels.cpu.isa import tiles
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.channelwise.plan import Slide
from tilewright.kernels.cpu.schemas.dot.code import constant_places, write_weights
from tilewright.kernels.cpu.schemas.dot.plan import SUMS
from tilewright.kernels.cpu.schemas.outer.store import (
    stores_fours,
    write_half_vectors,
    write_whole_vectors,
)
from tilewright.kernels.cpu.schemas.strip.plan import Copy, StripPlan, strip_pixels
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.dtypes import DTYPES

LINE = 64


def generate(p: StripPlan) -> str:
    """[StripPlan] -> [C source]"""
    writer, words = Writer(), p.words
    abi.write_head(writer, p.dot.group, words.schedule)
    writer.line('#include <stdint.h>')
    if words.sums == SUMS:
        writer.line(f'typedef int32_t {SUMS} __attribute__((may_alias));')
    writer.line()
    write_functions(writer, words.functions)
    if p.copy:
        _write_copy(writer, p, p.copy)
    writer.lines += tiles.prologue(words.schedule.isa, words.schedule.dtype).splitlines()
    writer.line()
    if isinstance(words.whole, HalfValue):
        write_half_vectors(writer, words, words.whole)
    elif words.whole:
        write_whole_vectors(writer, words, words.whole)
    else:
        _write_lanes(writer, p)
    _write_pending(writer, p)
    widths = sorted({words.panels.vectors, words.panels.tail_vectors})
    for vectors in widths:
        _write_finish(writer, p, vectors)
        for count in _counts(p):
            _write_kernel(writer, p, count, vectors)
    write_weights(writer, p.dot)
    _write_part(writer, p)
    return writer.text()


def _counts(p: StripPlan) -> list[int]:
    """Tiles of pixels of the micro-kernels that occur."""
    return list(range(1, min(p.tiles, strip_pixels(p)[1]) + 1))


def _registers(p: StripPlan) -> tuple[tuple[int, ...], int]:
    """Registers behind those of sums: of weights, of the image."""
    vectors = p.words.panels.vectors
    sums = p.tiles * vectors
    return tuple(range(sums, sums + vectors)), sums + vectors


def _write_copy(writer: Writer, p: StripPlan, copy: Copy) -> None:
    """`copy_rows`: so many rows of every phase, from the row of the image that `first` is."""
    image = p.dot.image
    kind, size = p.dot.source, DTYPES[image.dtype]
    depth, pad = image.shape[3], int(p.dot.group.main.pad_value) & 255
    down, across = copy.down, copy.across
    writer.open(
        f'static void copy_rows(const {kind} *restrict source, {kind} *restrict to, long first, '
        f'long rows)'
    )
    word = 4 // size  # elements
    line, deep, chunk = (word * n for n in (copy.apart, copy.deep, copy.chunk))
    plain = across.stride == 1 and copy.apart == copy.words  # pixels are copied as they lie
    for a, phase in enumerate(copy.row_phases):
        writer.open('for (long row = 0; row < rows; row++)')
        writer.line(f'const long y = first + row * {down.stride} + {phase};')
        for b, column in enumerate(copy.column_phases):
            plane = (a * len(copy.column_phases) + b) * copy.plane * word
            writer.open('')
            place = f'to + {plane} + row * {copy.pitch * line}'
            writer.line(f'{kind} *restrict line = {place};')
            low, high = _inside(across, column, copy.pitch)

            def fill(first: int, last: int, copy: Copy = copy) -> None:
                if first < last:
                    bytes_ = (last - first) * line * size
                    writer.line(f'for (long chunk = 0; chunk < {copy.chunks}; chunk++)')
                    at = f'chunk * {chunk} + {first * line}'
                    writer.line(f'    memset(line + {at}, {pad}, {bytes_});')

            writer.open(f'if ((unsigned long)y < {down.extent}ul)')
            at = low * across.stride + column - across.before
            writer.line(
                f'const {kind} *restrict from = source + (y * {across.extent} + {at}) * {depth};'
            )
            fill(0, low)
            if plain:
                writer.line(f'memcpy(line + {low * line}, from, {(high - low) * depth * size});')
            else:
                writer.line(f'for (long x = 0; x < {high - low}; x++)')
                writer.line(f'    for (long chunk = 0; chunk < {copy.chunks}; chunk++)')
                writer.line(
                    f'        memcpy(line + chunk * {chunk} + ({low} + x) * {line}, from + x * '
                    f'{across.stride * depth} + chunk * {deep}, {deep * size});'
                )
            fill(high, copy.pitch)
            writer.close()
            writer.open('else')
            fill(0, copy.pitch)
            writer.close()
            writer.close()
        writer.close()
    writer.close()
    writer.line()


def _inside(across: Slide, column: int, pitch: int) -> tuple[int, int]:
    """The positions of a row of a phase that lie inside the image: from the first, to the last."""
    low = max(0, -((column - across.before) // across.stride))
    high = -((column - across.before - across.extent) // across.stride)
    low = min(low, pitch)
    return low, max(low, min(high, pitch))


def _write_lanes(writer: Writer, p: StripPlan) -> None:
    """`store_vector`, number by number."""
    words = p.words
    operands = ''.join(f', const {C_TYPES[i.dtype]} *{i.name}' for i in words.epilogue.operands)
    writer.open(
        f'static inline void store_vector(const float *acc, {words.result} *restrict out, '
        f'unsigned long count{operands})'
    )
    writer.open('for (unsigned long lane = 0; lane < count; lane++)')
    sums = 'acc' if words.sums == 'float' else f'((const {words.sums} *)acc)'
    writer.line(f'const {words.sums} value = {sums}[lane];')
    for item in words.epilogue.operands:
        place = scaled('lane', item.stride(words.contraction.vector)) or '0'
        writer.line(f'const long {item.name}_at = {place};')
    writer.line(f'out[lane] = {words.epilogue.expression};')
    writer.close(2)
    writer.line()


def _write_pending(writer: Writer, p: StripPlan) -> None:
    """`pending`: sums that are complete, and where what follows them reads and writes."""
    writer.line('/* `left` pixels of a tile, the next of them in column x; `lanes` channels. */')
    writer.open('typedef struct')
    writer.line('const float *acc;')
    writer.line(f'{p.words.result} *out;')
    for item in p.words.epilogue.operands:
        writer.line(f'const {C_TYPES[item.dtype]} *{item.name};')
    writer.line('long left, x, lanes;')
    writer.depth -= 1
    writer.line('} pending;')
    writer.line()


def _write_finish(writer: Writer, p: StripPlan, vectors: int) -> None:
    """`finish_V`: so many pixels of what is pending, each with V vectors of channels, up to the end
    of a row at a time.
    """
    words, panels, column = p.words, p.words.panels, p.pixels[-1]
    items, lanes = words.epilogue.operands, p.words.panels.lanes
    width, broken = vectors * lanes, _is_broken(p)
    moving = [('out', words.out_strides), *((i.name, dict(i.strides)) for i in items)]
    writer.open(
        f'static inline __attribute__((always_inline)) void finish_{vectors}(pending *f, '
        f'long pixels)'
    )
    writer.line('long rest = min_long(pixels, f->left);')
    writer.open('while (rest > 0)' if broken else '')
    run = f'min_long(rest, {p.copy.across.size} - f->x)' if broken and p.copy else 'rest'
    writer.line(f'const long run = {run};')
    writer.line('const float *acc = f->acc;')
    writer.line(f'{words.result} *out = f->out;')
    for item in items:
        writer.line(f'const {C_TYPES[item.dtype]} *{item.name} = f->{item.name};')
    even = panels.size % lanes == 0
    if not even:
        writer.line('const long lanes = f->lanes;')
    writer.open('for (long i = 0; i < run; i++)')

    def place(name: str, strides: dict[str, int], v: int) -> str:
        step = scaled('i', strides.get(column, 0))
        return total([name, step, str(v * lanes * strides.get(words.contraction.vector, 0))])

    at_once = words.whole is not None and stores_fours(vectors, lanes, words.whole)
    for v in [0] if at_once else range(vectors):
        last = at_once or v + 1 == vectors
        count = str(lanes) if even or not last else f'lanes - {(vectors - 1) * lanes}'
        given = ''.join(f', {place(i.name, dict(i.strides), v)}' for i in items)
        name = f'store_{vectors}' if at_once else 'store_vector'
        out = place('out', words.out_strides, v)
        writer.line(f'{name}(acc + i * {width} + {v * lanes}, {out}, {count}{given});')
    writer.close()
    gap = p.copy.pitch - p.copy.across.size if p.copy else 0
    for name, steps in moving:
        if steps.get(column):
            writer.line(f'f->{name} = {name} + run * {steps[column]};')
    writer.line(f'f->acc = acc + run * {width};')
    writer.line('f->left -= run;')
    if broken:
        assert p.copy is not None
        writer.line('rest -= run;')
        writer.line('f->x += run;')
        writer.open(f'if (f->x == {p.copy.across.size})')
        writer.line('f->x = 0;')
        for name, steps in moving:
            jump = _jump(p, steps)
            if jump:
                writer.line(f'f->{name} += {jump};')
        if gap:
            writer.line(f'f->acc += {gap * width};')
            writer.line(f'f->left -= {gap};')
            writer.line(f'rest -= {gap};')
        writer.close()
    writer.close(2)
    writer.line()


def _jump(p: StripPlan, strides: Mapping[str, int]) -> int:
    """Elements from behind the last pixel of a row to the first of the next."""
    if p.copy is None:
        return 0
    row = strides.get(p.copy.down.out, 0)
    return row - p.copy.across.size * strides.get(p.copy.across.out, 0)


def _is_broken(p: StripPlan) -> bool:
    """Whether something lies between the rows of a strip, there or in the result."""
    if p.copy is None:
        return False
    items = p.words.epilogue.operands
    moving = [p.words.out_strides, *(dict(i.strides) for i in items)]
    return p.copy.pitch > p.copy.across.size or any(_jump(p, steps) for steps in moving)


def _write_kernel(writer: Writer, p: StripPlan, count: int, vectors: int) -> None:
    """`strip_MxV`: the sums of M tiles of pixels and V of channels.

    from the first pixel `a` and the weights `b` into `acc`, pixel by pixel, the last tile `last`
    pixels behind the first; asks for `lines` of what is at `ahead` in each step.
    """
    words = p.words
    lanes, deep, width = words.panels.lanes, words.deep, vectors * words.panels.lanes
    pixel = words.operand.strides[p.pixels[-1]]
    steps, rows = p.steps, p.rows
    share = -(-count * rows // (p.chunks * len(steps)))
    of_weights, image = _registers(p)
    writer.open(
        f'static __attribute__((noinline)) void strip_{count}x{vectors}(const float *a, '
        f'const float *b, float *acc, long last, const char *ahead, long lines, pending *f)'
    )
    writer.line(f'static const long steps[] = {{{", ".join(map(str, steps))}}};')
    sums = [(m, v) for m in range(count) for v in range(vectors)]

    def first(m: int) -> str:
        return str(m * rows) if m + 1 < count else 'last'

    for m, v in sums:
        writer.line(f'TILE_ZERO({m * vectors + v});')
    writer.open(f'for (long chunk = 0; chunk < {p.chunks}; chunk++)')
    writer.open(f'for (long s = 0; s < {len(steps)}; s++)')
    writer.line('const float *from = a + steps[s];')
    writer.line('for (long j = 0; j < lines; j++)')
    writer.line(f'    __builtin_prefetch(ahead + j * {LINE}, 0, 2);')
    writer.line(f'ahead += lines * {LINE};')
    writer.line(f'finish_{vectors}(f, {share});')
    for v in range(vectors):
        writer.line(f'TILE_LOAD({of_weights[v]}, b + {v * lanes}, {4 * width});')
    for m in range(count):
        place = total(['from', f'{first(m)} * {pixel}' if m else ''])
        writer.line(f'TILE_LOAD({image}, {place}, {4 * pixel});')
        for v in range(vectors):
            writer.line(f'TILE_DOT({m * vectors + v}, {image}, {of_weights[v]});')
    writer.line(f'b += {deep * width};')
    writer.close()
    writer.line(f'a += {p.chunk_step};')
    writer.close()
    writer.line(f'finish_{vectors}(f, f->left);')
    for m, v in sums:
        place = total([f'acc + {v * lanes}', f'{first(m)} * {width}' if m else ''])
        writer.line(f'TILE_STORE({m * vectors + v}, {place}, {4 * width});')
    writer.close()
    writer.line()


def _config(p: StripPlan) -> str:
    """The 64 bytes that say which rows and columns every tile has: sums, weights, the image."""
    wide, deep = 4 * p.words.panels.lanes, p.words.deep
    weights, image = _registers(p)
    sums, free = weights[0], 7 - image
    rows = [p.rows] * sums + [deep] * len(weights) + [p.rows] + [0] * free
    columns = [wide] * image + [4 * deep] + [0] * free
    pairs = [byte for size in columns for byte in (size & 255, size >> 8)]
    return ', '.join(map(str, [1, *[0] * 15, *pairs, *[0] * 16, *rows, *[0] * 8]))


def _write_part(writer: Writer, p: StripPlan) -> None:
    words, panels = p.words, p.words.panels
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.dot.group.with_role('input'))}
    places = constant_places(p.dot)[0]
    kind = p.dot.source if p.copy else 'float'
    image = p.dot.image.name
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line(
        f'static const unsigned char own[64] __attribute__((aligned(64))) = {{{_config(p)}}};'
    )
    writer.line(f'const {kind} *source = (const {kind} *)({inputs[image]});')
    writer.line('float *buffer = (float *)(args->scratch + part * tw_scratch_bytes());')
    writer.line(f'float *sums = buffer + {abi.aligned(words.operand.size + 16)};')
    for item in words.epilogue.operands:
        place = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
        writer.line(f'const {C_TYPES[item.dtype]} *{item.name} = (const void *)({place});')
    writer.line('pending both[2] = {{0}};')
    writer.line('pending *made = both, *coming = both + 1;')
    writer.line('long turn = 0;')
    writer.line('tiles_begin();')
    writer.line('TILE_CONFIG(own);')
    nest = Nest(words.group.main, words.schedule, writer)
    nest.open_parts()
    if p.copy:
        _write_strip(writer, p, p.copy, nest)
    else:
        _write_rows(writer, p, nest)
    widths = {panels.vectors, panels.tail_vectors}
    if len(widths) == 1:
        writer.line(f'finish_{panels.vectors}(made, made->left);')
    writer.line('tiles_end();')
    writer.close()


def _write_strip(writer: Writer, p: StripPlan, copy: Copy, nest: Nest) -> None:
    """The strip of every image, behind the copy of it."""
    image = p.dot.image
    low, high = nest.at(copy.down.out)
    at = dict.fromkeys(p.pixels, '0') | {copy.down.out: low}
    source = 'source'
    if len(p.pixels) == 3:
        begin, end = nest.at(p.pixels[0])
        writer.open(f'for (long image = {begin}; image < {end}; image++)')
        at[p.pixels[0]] = 'image'
        source = f'source + image * {image.strides[0]}'
    writer.line(
        f'const long run = ({high} - {low}) * {copy.pitch} - {copy.pitch - copy.across.size};'
    )
    first = f'{low} * {copy.down.stride} - {copy.down.before}'
    kind = p.dot.source
    # All rows that there is room for, also where a thread has fewer: behind the last pixel of a row
    # lies the border of the next one.
    writer.line(f'copy_rows({source}, ({kind} *)buffer, {first}, {copy.rows});')
    beyond = len(copy.row_phases) * len(copy.column_phases) * copy.plane
    pad = int(p.dot.group.main.pad_value) & 255
    writer.line(f'memset(buffer + {beyond}, {pad}, {4 * (copy.size - beyond)});')
    _write_tiles(writer, p, 'buffer', at, nest)
    if len(p.pixels) == 3:
        writer.close()


def _write_rows(writer: Writer, p: StripPlan, nest: Nest) -> None:
    """Every row of pixels where it lies."""
    strides = p.words.operand.strides
    at = {}
    for name in p.pixels[:-1]:
        low, high = nest.at(name)
        writer.open(f'for (long {name} = {low}; {name} < {high}; {name}++)')
        at[name] = name
    low, high = nest.at(p.pixels[-1])
    at[p.pixels[-1]] = low
    writer.line(f'const long run = {high} - {low};')
    place = total([scaled(d, strides.get(d, 0)) for d in p.pixels[:-1]])
    _, const = access_strides(p.words.group, p.contraction.a)
    start = scaled(low, strides[p.pixels[-1]])
    _write_tiles(writer, p, total(['source', place, start, str(const)]), at, nest)
    writer.close(len(p.pixels) - 1)


def _write_tiles(writer: Writer, p: StripPlan, image: str, at: dict[str, str], nest: Nest) -> None:
    """Blocks of register tiles, panels, register tiles; `image` is where the first pixel lies."""
    words, panels, c = p.words, p.words.panels, p.contraction
    rows, size, column = p.rows, p.tiles * p.rows, p.pixels[-1]
    low, high = nest.at(c.vector)
    pixel = words.operand.strides[column]
    names = {**at, c.vector: 'k'}
    narrow = panels.tail_vectors != panels.vectors

    def place(strides: dict[str, int], const: int) -> str:
        return total([*(scaled(names[d], s) for d, s in strides.items() if d in names), str(const)])

    writer.line(f'const float *image_at = {image};')
    block = p.block * size
    groups = f'(min_long({block}, run) + {size - 1}) / {size}'
    writer.line(f'const long groups = {groups};')
    writer.open(f'for (long block = 0; block < run; block += {block})')
    writer.line(f'const long end = min_long(block + {block}, run);')
    writer.open(f'for (long k = {low}; k < {high}; k += {panels.width})')
    writer.line(f'const float *weights = args->packed + k * {panels.points};')
    bytes_ = 4 * panels.points * panels.width
    steps = p.chunks * len(p.steps)
    each = -(-bytes_ // (LINE * steps))
    far, asked = bytes_ // LINE, f'((groups - 1) * {steps})'
    writer.line(f'const long share = groups > 1 ? ({far} + {asked} - 1) / {asked} : {each};')
    writer.line(f'const int next = k + {panels.width} < {high};')
    writer.open(f'for (long at = block; at < end; at += {size})')
    writer.line('float *acc = sums + turn;')
    writer.line(f'turn ^= {size * panels.width};')
    # The first register tile of a run asks for its own weights, later ones for the next panel;
    # blocks behind the first find them.
    writer.line(f'const long number = (at - block) / {size} - 1;')
    writer.line(f'const char *ahead = (const char *)weights + {tiles.AHEAD_BYTES};')
    writer.line('const int far = block == 0;')
    writer.line(f'long lines = far && number < 0 && (groups == 1 || k == {low}) ? {each} : 0;')
    writer.open('if (far && next && number >= 0)')
    writer.line(f'ahead = (const char *)weights + {bytes_} + number * share * {steps * LINE};')
    writer.line('lines = share;')
    writer.close()
    writer.line(f'const long left = min_long({size}, end - at);')
    if p.copy:
        writer.line('const long start = at;')
        writer.line(f'const long last = (left - 1) / {rows} * {rows};')
    else:
        # Tiles of the last pixels begin earlier, so that all have as many rows.
        writer.line(f'const long start = min_long(at, run - {rows});')
        writer.line(f'const long last = left > {rows} ? left - {rows} : 0;')
    writer.line(f'const float *tile = image_at + start * {pixel};')
    tile_width = str(panels.width)
    if narrow:
        tile_width = f'(k + {panels.width} < {panels.size} ? {tile_width} : {panels.tail_width})'
    first = 'at'
    if p.copy and _is_broken(p):
        pitch, inside = p.copy.pitch, p.copy.across.size
        writer.line(f'const long x = at % {pitch}, gap = x < {inside} ? 0 : {pitch} - x;')
        writer.line('const long first = at + gap;')
        writer.line(f'coming->x = first % {pitch};')
        first = 'first'
    writer.line(f'coming->acc = acc + ({first} - start) * {tile_width};')
    writer.line(f'coming->left = left - ({first} - at);')
    out = f'(({words.result} *)args->out)'
    moves = [('out', out, words.out_strides, words.out_const)]
    moves += [(i.name, i.name, dict(i.strides), i.const) for i in words.epilogue.operands]
    for name, base, strides, const in moves:
        more = scaled(first, strides.get(column, 0))
        if p.copy and _jump(p, strides):
            more = scaled(f'({first} / {p.copy.pitch})', strides.get(p.copy.down.out, 0))
            more = total([more, scaled('coming->x', strides.get(column, 0))])
        elif p.copy and _is_broken(p):
            steps = strides.get(column, 0)
            places = f'({first} / {p.copy.pitch} * {p.copy.across.size} + coming->x)'
            more = scaled(places, steps)
        writer.line(f'coming->{name} = {total([base, place(strides, const), more])};')
    writer.line(f'coming->lanes = min_long({panels.width}, {panels.size} - k);')
    counts = _counts(p)
    for vectors in sorted({panels.vectors, panels.tail_vectors}, reverse=True):
        if narrow:
            sign = '>=' if vectors == panels.tail_vectors else '<'
            writer.open(f'if (k + {panels.width} {sign} {panels.size})')
        for number, count in enumerate(counts):
            test = f'if (left <= {count * rows})' if count < counts[-1] else ''
            word = f'{"else " if number and test else ""}{test}' or ('else' if number else '')
            call = f'strip_{count}x{vectors}(tile, weights, acc, last, ahead, lines, made);'
            if word:
                writer.line(word)
            writer.line(('    ' if word else '') + call)
        if narrow:
            writer.close()
    writer.line('pending *const swap = made;')
    writer.line('made = coming;')
    writer.line('coming = swap;')
    writer.close()
    if narrow:
        writer.line(f'if (k + {panels.width} < {panels.size})')
        writer.line(f'    finish_{panels.vectors}(made, made->left);')
        writer.line('else')
        writer.line(f'    finish_{panels.tail_vectors}(made, made->left);')
    writer.close(2)
