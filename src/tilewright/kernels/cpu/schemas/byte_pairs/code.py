"""The schema of bytes in C: runs of pixels, packed and limited, by panels of channels.

    blocks of runs       pack_run: bytes of every pixel side by side, unit by unit; what is too
                         large to be added in 16 bits goes to a list     -> packed, lists, counts
      panels of channels
        runs               products: units, then the list, sums of a register tile (micro.py)
                           store: the epilogue, NHWC

Goes in: the plan (plan.py). Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi, whole_avx2
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.byte_pairs.micro import write_micro
from tilewright.kernels.cpu.schemas.byte_pairs.plan import (
    CHUNK,
    GROUP,
    LIMIT,
    UNIT,
    BytePairsPlan,
    line_step,
)
from tilewright.kernels.cpu.schemas.dot.plan import MOVED
from tilewright.kernels.cpu.whole_vectors import vector_operands, write_vectors
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.integer import factors

LONG = 0.28  # of all units, as many as may be too large: with more of them groups stand alone


def generate(p: BytePairsPlan) -> str:
    """[BytePairsPlan] -> [C source]"""
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    writer.line('#include <stdint.h>')
    writer.line('#include <immintrin.h>')
    if p.vector:
        kinds = [p.vector.dtype, *(item.dtype for item in p.epilogue.operands)]
        write_vectors(writer, p.schedule.isa, kinds)
        if _in_fours(p):
            whole_avx2.write_rounded(writer, p.vector, p.epilogue.operands, p.channel)
    else:
        write_functions(writer, p.epilogue.functions)
    write_micro(writer, p)
    _write_list(writer, p)
    _write_pack(writer, p)
    _write_store(writer, p)
    if not _is_inside(p):
        _write_nothing(writer, p)
    _write_weights(writer, p)
    _write_part(writer, p)
    return writer.text()


def _in_fours(p: BytePairsPlan) -> bool:
    """Whether vectors are narrowed to bytes four at once."""
    return p.lanes == whole_avx2.LANES and p.vector is not None and p.vector.in_fours


def _write_list(writer: Writer, p: BytePairsPlan) -> None:
    """list_chunk: an entry for every group of a chunk of which something is left, two where pairs
    of that are too large as well.
    """
    words, run = CHUNK // GROUP, p.run
    group_bytes = GROUP * p.width
    writer.open(
        'static inline int32_t *list_chunk(const __m256i *left, __m256i any, int32_t *to, '
        'int32_t place)'
    )
    writer.line('const __m256i one = _mm256_set1_epi8(1), none = _mm256_setzero_si256();')
    writer.line(f'const __m256i limit = _mm256_set1_epi16({LIMIT});')
    writer.line('const __m256i some = _mm256_cmpeq_epi32(any, none);')
    writer.line('unsigned bits = ~_mm256_movemask_ps((__m256)some) & 255;')
    writer.line(f'int32_t first[{run}][{words}], rest[{run}][{words}];')
    writer.line('__m256i more = none;')
    writer.line(f'#pragma GCC unroll {run}')
    writer.open(f'for (long p = 0; p < {run}; p++)')
    writer.line(f'const __m256i most = {_most("_mm256_maddubs_epi16(left[p], one)")};')
    writer.line('const __m256i part = _mm256_min_epu8(left[p], most);')
    writer.line('const __m256i beyond = _mm256_sub_epi8(left[p], part);')
    writer.line('more = _mm256_or_si256(more, beyond);')
    writer.line('_mm256_storeu_si256((__m256i *)first[p], part);')
    writer.line('_mm256_storeu_si256((__m256i *)rest[p], beyond);')
    writer.close()
    writer.line('const __m256i again = _mm256_cmpeq_epi32(more, none);')
    writer.line('const unsigned twice = ~_mm256_movemask_ps((__m256)again) & 255;')
    writer.open('for (; bits; bits &= bits - 1)')
    writer.line('const long g = __builtin_ctz(bits);')
    for name, condition in (('first', ''), ('rest', 'if (twice >> g & 1)')):
        writer.open(condition)
        writer.line(f'to[0] = place + (int32_t)g * {group_bytes};')
        writer.line(f'#pragma GCC unroll {run}')
        writer.line(f'for (long p = 0; p < {run}; p++)')
        writer.line(f'    to[1 + p] = {name}[p][g];')
        writer.line(f'to += {p.entry_words};')
        writer.close()
    writer.close()
    writer.line('return to;')
    writer.close()
    writer.line()


def _most(pairs: str) -> str:
    """What numbers are cut off at so that no pair of them, given their sums, is too large."""
    large = f'_mm256_cmpgt_epi16({pairs}, limit)'
    half = f'_mm256_set1_epi8({LIMIT // 2 - 1})'
    return f'_mm256_xor_si256(_mm256_set1_epi8(-1), _mm256_and_si256({large}, {half}))'


def _write_pack(writer: Writer, p: BytePairsPlan) -> None:
    """pack_run: numbers of a run of pixels, and its list; comes out: how many units are too large.

    Of these the second group goes to the list, unless groups stand `alone`; and what is too large
    in a pair. pack: that in the way of the run before, and again in the other, which is returned,
    where so many units say so.
    """
    run, (chunks, tail) = p.run, divmod(p.depth, CHUNK)
    writer.open(
        'static inline __attribute__((always_inline)) long pack_run(const uint8_t *const *from, '
        'uint8_t *to, int32_t *list, int32_t *entries, const int alone)'
    )
    writer.line('const __m256i one = _mm256_set1_epi8(1);')
    writer.line(f'const __m256i limit = _mm256_set1_epi16({LIMIT});')
    writer.line('const __m256i second = _mm256_set1_epi64x(-1LL << 32);')
    writer.line('int32_t *end = list;')
    writer.line('long large = 0;')
    if p.taps > 1:
        writer.line('int32_t place = 0;')
        step = p.tap_units * UNIT
        writer.open(
            f'for (long tap = 0; tap < {p.taps}; tap++, from += {run}, to += {step * run}, '
            f'place += {step * p.width})'
        )
    if chunks:
        writer.open(f'for (long c = 0; c < {chunks}; c++)')
        _write_chunk(writer, p, 'c', CHUNK)
        writer.close()
    if tail:
        writer.open('')
        _write_chunk(writer, p, str(chunks), tail)
        writer.close()
    if p.taps > 1:
        writer.close()
    writer.line(f'*entries = (int32_t)((end - list) / {p.entry_words});')
    writer.line('return large;')
    writer.close()
    writer.line()
    writer.open(
        'static int pack(const uint8_t *const *from, uint8_t *to, int32_t *list, int32_t *entries, '
        'int alone)'
    )
    writer.line(f'const long most = {int(LONG * p.units)};')
    writer.line('if (alone && pack_run(from, to, list, entries, 1) > most)')
    writer.line('    return 1;')
    writer.line('if (pack_run(from, to, list, entries, 0) <= most || alone)')
    writer.line('    return 0;')
    writer.line('pack_run(from, to, list, entries, 1);')
    writer.line('return 1;')
    writer.close()
    writer.line()


def _write_chunk(writer: Writer, p: BytePairsPlan, chunk: str, size: int) -> None:
    run, flip = p.run, -128
    writer.line(f'__m256i left[{run}], any = _mm256_setzero_si256(), beside = any;')
    writer.line(f'#pragma GCC unroll {run}')
    writer.open(f'for (long p = 0; p < {run}; p++)')
    at = scaled(chunk, CHUNK)
    source = f'from[p] + {at}'
    if size == CHUNK:
        writer.line(f'__m256i x = _mm256_loadu_si256((const __m256i *)({source}));')
    else:
        zero = 0 if not p.flips else flip
        writer.line(f'__m256i x = _mm256_set1_epi8({zero});')
        writer.line(f'memcpy(&x, {source}, {size});')
    if p.flips:
        writer.line(f'x = _mm256_xor_si256(x, _mm256_set1_epi8({flip}));')
    writer.line('const __m256i pairs = _mm256_maddubs_epi16(x, one);')
    writer.line('const __m256i fours = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));')
    writer.line('const __m256i gone = _mm256_and_si256(second, _mm256_cmpgt_epi16(fours, limit));')
    writer.line(f'const __m256i most = {_most("pairs")};')
    writer.line('beside = _mm256_or_si256(beside, gone);')
    writer.line('__m256i part = _mm256_min_epu8(x, most);')
    writer.line('part = alone ? part : _mm256_andnot_si256(gone, part);')
    writer.line('left[p] = _mm256_sub_epi8(x, part);')
    writer.line('any = _mm256_or_si256(any, left[p]);')
    writer.line('const __m128i low = _mm256_castsi256_si128(part);')
    writer.line('const __m128i high = _mm256_extracti128_si256(part, 1);')
    unit = UNIT * p.run
    writer.line(f'uint8_t *row = to + {total([scaled(chunk, 4 * unit)])} + p * {UNIT};')
    for number in range(-(-size // UNIT)):
        half, store = ('low', 'high')[number // 2], ('storel_epi64', 'storeh_pd')[number % 2]
        if store == 'storeh_pd':
            writer.line(f'_mm_storeh_pd((double *)(row + {number * unit}), (__m128d){half});')
        else:
            writer.line(f'_mm_storel_epi64((__m128i *)(row + {number * unit}), {half});')
    writer.close()
    writer.line('beside = _mm256_cmpeq_epi32(beside, _mm256_setzero_si256());')
    writer.line('large += 8 - __builtin_popcount(_mm256_movemask_ps((__m256)beside));')
    place = total(['place' if p.taps > 1 else '', scaled(chunk, CHUNK * p.width)])
    writer.line('if (!_mm256_testz_si256(any, any))')
    writer.line(f'    end = list_chunk(left, any, end, (int32_t)({place}));')


def _write_store(writer: Writer, p: BytePairsPlan) -> None:
    """store: sums of a register tile through the epilogue: so many pixels, so many channels."""
    result, items = C_TYPES[p.group.output.dtype], p.epilogue.operands
    pointers = ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in items)
    step = line_step(p, access_strides(p.group, p.group.main.write)[0])
    steps = {item.name: line_step(p, dict(item.strides)) for item in items}
    last = p.size - (p.panels - 1) * p.width
    writer.open(
        f'static void store(const int32_t *acc, {result} *out, long pixels, long lanes{pointers})'
    )
    writer.line('(void)lanes;')
    if _in_fours(p):
        whole = f'pixels == {p.run}' + (f' && lanes == {p.width}' if last < p.width else '')
        writer.open(f'if ({whole})')
        writer.lines += [f'        {line}' for line in _stored(p, p.run, p.width, step, steps)]
        writer.line('return;')
        writer.close()
    writer.open(
        f'for (long pixel = 0; pixel < pixels; pixel++, acc += {p.width}, out += {step}'
        + ''.join(f', {name} += {s}' for name, s in steps.items() if s) + ')'
    )  # fmt: skip
    for width in dict.fromkeys((p.width, last)):
        if last < p.width:
            writer.open(f'if (lanes == {width})')
        _write_pixel(writer, p, width)
        if last < p.width:
            writer.close()
    writer.close(2)
    writer.line()


def _stored(
    p: BytePairsPlan, pixels: int, width: int, step: int, steps: dict[str, int]
) -> list[str]:
    """The lines that store so many pixels of so many channels, four vectors at once."""
    found = []
    for pixel in range(pixels):
        for lane in range(0, width, p.lanes):
            operands = tuple(
                f'{i.name} + {pixel * steps[i.name] + lane * i.stride(p.channel)}'
                for i in p.epilogue.operands
            )
            found.append(
                whole_avx2.StoredVector(
                    f'acc + {pixel * p.width + lane}', pixel * step + lane,
                    min(p.lanes, width - lane), operands,
                )
            )  # fmt: skip
    return whole_avx2.store_lines(found)


def _write_pixel(writer: Writer, p: BytePairsPlan, width: int) -> None:
    items, channel = p.epilogue.operands, p.channel
    if _in_fours(p):
        nowhere = dict.fromkeys((i.name for i in items), 0)
        writer.lines += ['            ' + x for x in _stored(p, 1, width, 0, nowhere)]
    elif p.vector:
        for lane in range(0, width, p.lanes):
            writer.open('')
            writer.line(f'const unsigned long count = {min(p.lanes, width - lane)};')
            for item in items:
                at = lane * item.stride(channel)
                writer.line(f'const {C_TYPES[item.dtype]} *{item.name}_p = {item.name} + {at};')
            for item, line in zip(items, vector_operands(items, channel), strict=True):
                head, text = line.split(' = ', 1)
                text = text.replace(f'*{item.name}', f'*{item.name}_p')
                text = text.replace(f'({item.name},', f'({item.name}_p,')
                writer.line(f'{head} = {text}')
            writer.line(f'const whole_v value = *(const whole_v *)(acc + {lane});')
            writer.line(f'put_{p.vector.dtype}(out + {lane}, {p.vector.made(last=True)}, count);')
            writer.close()
    else:
        writer.open(f'for (long lane = 0; lane < {width}; lane++)')
        writer.line('const int32_t value = acc[lane];')
        for item in items:
            writer.line(f'const long {item.name}_at = {scaled("lane", item.stride(channel)) or 0};')
        writer.line(f'out[lane] = {p.epilogue.expression};')
        writer.close()


def constant_places(p: BytePairsPlan) -> tuple[dict[str, int], int]:
    """Where constants lie behind the weights, in floats; and floats of all."""
    weights = factors(p.group)[1].tensor
    more = {MOVED: p.size} if p.flips else {}
    places, floats = abi.behind(p.group, weights, p.panels * p.panel_bytes // 4, more)
    return {weights: 0, **places}, floats


def _write_weights(writer: Writer, p: BytePairsPlan) -> None:
    """tw_pack: weights in panels, four channels of the image in a lane; other constants behind."""
    places, floats = constant_places(p)
    names = [t.name for t in p.group.with_role('constant')]
    access = factors(p.group)[1]
    strides, const = access_strides(p.group, access)
    steps = [scaled(f'at_{d}', strides.get(d, 0)) for d in p.window]
    channels = [scaled('k', strides[p.channel]), scaled('c', strides.get(p.term, 0))]
    address = total([*channels, *steps, str(const)])
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    writer.line(f'memset(packed, 0, {4 * floats});')
    writer.line(f'const int8_t *b = (const int8_t *)constants[{names.index(access.tensor)}];')
    if p.flips:
        writer.line(f'int32_t *moved = (int32_t *)(packed + {places[MOVED]});')
    writer.open(f'for (long k = 0; k < {p.size}; k++)')
    writer.line(
        f'int8_t *to = (int8_t *)packed + k / {p.width} * {p.panel_bytes} + '
        f'k % {p.width} * {GROUP};'
    )
    for name in p.window:
        size = p.group.main.sizes[name]
        writer.open(f'for (long at_{name} = 0; at_{name} < {size}; at_{name}++)')
    writer.open(f'for (long c = 0; c < {p.depth}; c++)')
    writer.line(f'to[c / {GROUP} * {GROUP * p.width} + c % {GROUP}] = b[{address}];')
    if p.flips:
        writer.line(f'moved[k] -= 128 * b[{address}];')
    writer.close()
    writer.line(f'to += {p.tap_units * UNIT * p.width};')
    writer.close(1 + len(p.window))
    abi.write_behind(writer, p.group, access.tensor, places)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, floats)


def _write_part(writer: Writer, p: BytePairsPlan) -> None:
    """Blocks of a thread's runs: packed, then multiplied by each of its panels."""
    group, ways = p.group, p.tile_ways
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    places, _ = constant_places(p)

    def pointer(tensor: str) -> str:
        return inputs.get(tensor) or f'args->packed + {places[tensor]}'

    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line(f'const uint8_t *image = (const uint8_t *)({pointer(p.image.name)}) + {p.first};')
    writer.line(f'const int8_t *weights = (const int8_t *)({pointer(factors(group)[1].tensor)});')
    result = C_TYPES[group.output.dtype]
    strides, const = access_strides(group, group.main.write)
    writer.line(f'{result} *out = ({result} *)args->out + {const};')
    for item in p.epilogue.operands:
        of = C_TYPES[item.dtype]
        writer.line(
            f'const {of} *{item.name} = (const {of} *)({pointer(item.tensor)}) + {item.const};'
        )
    writer.line('float *scratch = (float *)(args->scratch + part * tw_scratch_bytes());')
    for name, kind in (
        ('packed', 'uint8_t'), ('lists', 'int32_t'), ('counts', 'int32_t'), ('sums', 'int32_t')
    ):  # fmt: skip
        writer.line(f'{kind} *{name} = ({kind} *)(scratch + {p.scratch_places[name]});')
    writer.line(f'const long low = {p.pixels}L * (part % {ways}) / {ways};')
    writer.line(f'const long high = {p.pixels}L * (part % {ways} + 1) / {ways};')
    writer.line(f'const long k_low = {p.panels} * (part / {ways}) / {p.k_ways} * {p.width};')
    last = f'{p.panels} * (part / {ways} + 1) / {p.k_ways} * {p.width}'
    writer.line(f'const long k_high = min_long({last}, {p.size});')
    writer.line(f'const long all = (high - low + {p.run - 1}) / {p.run};')
    writer.line('int alone = 0;')
    writer.open(f'for (long begin = 0; begin < all; begin += {p.block})')
    writer.line(f'const long runs = min_long({p.block}, all - begin);')
    writer.open('for (long r = 0; r < runs; r++)')
    writer.line(f'const uint8_t *from[{p.taps * p.run}];')
    writer.open(f'for (long i = 0; i < {p.run}; i++)')
    writer.line(f'const long pixel = min_long(low + (begin + r) * {p.run} + i, high - 1);')
    _write_places(writer, p)
    writer.close()
    writer.line(
        f'alone = pack(from, packed + r * {p.run_bytes}, lists + r * {p.list_words}, '
        f'counts + 2 * r + 1, alone);'
    )
    writer.line('counts[2 * r] = alone;')
    writer.close()
    # Runs ask for the next panel, unit by unit.
    writer.line(f'const long step = ({p.panel_bytes // p.units} + runs - 1) / runs;')
    writer.line(f'const long share = step * {p.units};')
    writer.open(f'for (long k = k_low; k < k_high; k += {p.width})')
    last = f'min_long(k / {p.width} + 1, {p.panels - 1})'
    writer.line(f'const int8_t *next = weights + {last} * {p.panel_bytes};')
    writer.open('for (long r = 0; r < runs; r++)')
    writer.line(f'const long pixel = low + (begin + r) * {p.run};')
    writer.line(
        f'products(packed + r * {p.run_bytes}, weights + k / {p.width} * {p.panel_bytes}, sums, '
        f'counts[2 * r], lists + r * {p.list_words}, counts[2 * r + 1], next + r * share, step);'
    )
    to = total(['out', scaled('pixel', line_step(p, strides)), 'k'])
    given = ''.join(
        ', '
        + total(
            [
                item.name, scaled('pixel', line_step(p, dict(item.strides))),
                scaled('k', item.stride(p.channel)),
            ]
        )
        for item in p.epilogue.operands
    )  # fmt: skip
    writer.line(
        f'store(sums, {to}, min_long({p.run}, high - pixel), '
        f'min_long({p.width}, {p.size} - k){given});'
    )
    writer.close(4)


def _write_places(writer: Writer, p: BytePairsPlan) -> None:
    """Where the image has each tap of a pixel, by its number; `nothing` where it has none."""
    sizes, image = p.group.main.sizes, factors(p.group)[0]
    inner = 1
    for number, (name, size, _) in reversed(list(enumerate(p.walk))):
        index = f'pixel / {inner}' if inner > 1 else 'pixel'
        if any(other > 1 for _, other, _ in p.walk[:number]):
            index = f'{index} % {size}'
        writer.line(f'const long at_{name} = {index if size > 1 else 0};')
        inner *= size
    for name in p.window:
        writer.open(f'for (long at_{name} = 0; at_{name} < {sizes[name]}; at_{name}++)')
    inside = []
    shape = p.group.tensor(image.tensor).shape
    for e, size in zip(image.index[:-1], shape[:-1], strict=True):
        least = e.const + sum(min(c, 0) * (sizes[d] - 1) for d, c in e.terms)
        most = e.const + sum(max(c, 0) * (sizes[d] - 1) for d, c in e.terms)
        if least < 0 or most >= size:
            text = total([*(scaled(f'at_{d}', c) for d, c in e.terms), str(e.const)])
            inside.append(f'(unsigned long)({text}) < {size}')
    strides, _ = access_strides(p.group, image)
    place = total(['image', *(scaled(f'at_{d}', s) for d, s in strides.items() if d != p.term)])
    tap = '0'
    for name in p.window:
        tap = total([scaled(f'({tap})', sizes[name]) if tap != '0' else '', f'at_{name}'])
    found = f'{" && ".join(inside)} ? {place} : nothing' if inside else place
    writer.line(f'from[({tap}) * {p.run} + i] = {found};')
    writer.close(len(p.window))


def _is_inside(p: BytePairsPlan) -> bool:
    """Whether every tap of every pixel lies in the image."""
    image, sizes = factors(p.group)[0], p.group.main.sizes
    for e, size in zip(image.index, p.image.shape, strict=True):
        least, most = (
            e.const + sum(bound(c, 0) * (sizes[d] - 1) for d, c in e.terms) for bound in (min, max)
        )
        if least < 0 or most >= size:
            return False
    return True


def _write_nothing(writer: Writer, p: BytePairsPlan) -> None:
    """What stands outside of the image, which is its zero point."""
    pad = int(p.group.main.pad_value) % 256
    writer.line(f'static const uint8_t nothing[{p.depth}] = {{[0 ... {p.depth - 1}] = {pad}}};')
    writer.line()
