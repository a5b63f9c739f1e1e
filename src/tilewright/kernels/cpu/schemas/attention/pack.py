"""Keys and columns of an attention: packed into panels, or read where they lie.

Goes in: a plan. Comes out: C functions.

    k_panels   [panel of `width` keys][depth][width]       zero beyond the last key
    v_panels   [panel of columns][keys][columns of it]     zero beyond the last column
"""

from __future__ import annotations

from tilewright.kernels.cpu.schemas.attention.plan import AttentionPlan, Strides
from tilewright.kernels.cpu.transpose import TRANSPOSE
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.attention import COLUMN, DEPTH, KEY


def write_packs(writer: Writer, p: AttentionPlan) -> None:
    """`pack_keys` and `pack_columns`."""
    strides = p.strides(p.form.keys)
    if strides[DEPTH] == 1 and strides[KEY] != 1:
        writer.lines += [*TRANSPOSE.splitlines(), '']
        _write_turned_keys(writer, p, strides[KEY])
    else:
        _write_keys(writer, p, strides[KEY], strides[DEPTH])
    _write_columns(writer, p)


def _write_turned_keys(writer: Writer, p: AttentionPlan, step: int) -> None:
    """Keys lie behind each other: blocks of 4 x 4 are transposed on the way."""
    depth, width, keys = p.size(DEPTH), p.width, p.size(KEY)
    writer.open('static void pack_keys(const float *restrict k, float *restrict to)')
    writer.open(f'for (long j = 0; j < {keys}; j += {width}, to += {width * depth})')
    writer.line(f'const long lanes = min_long({width}, {keys} - j);')
    writer.line('long lane = 0;')
    writer.open('for (; lane + 4 <= lanes; lane += 4)')
    writer.line(f'const float *from = k + (j + lane) * {step};')
    whole = depth // 4 * 4
    if whole:
        writer.line(f'for (long d = 0; d < {whole}; d += 4)')
        writer.line(f'    transpose4(from + d, {step}, to + d * {width} + lane, {width}, 4);')
    if whole < depth:
        writer.line(f'for (long d = {whole}; d < {depth}; d++)')
        writer.line('    for (long n = 0; n < 4; n++)')
        writer.line(f'        to[d * {width} + lane + n] = from[n * {step} + d];')
    writer.close()
    writer.line(f'for (; lane < {width}; lane++)')
    writer.line(f'    for (long d = 0; d < {depth}; d++)')
    writer.line(
        f'        to[d * {width} + lane] = lane < lanes ? k[(j + lane) * {step} + d] : 0.0f;'
    )
    writer.close(2)
    writer.line()


def _write_keys(writer: Writer, p: AttentionPlan, key: int, deep: int) -> None:
    depth, width, keys = p.size(DEPTH), p.width, p.size(KEY)
    writer.open('static void pack_keys(const float *restrict k, float *restrict to)')
    writer.open(f'for (long j = 0; j < {keys}; j += {width})')
    writer.line(f'const long lanes = min_long({width}, {keys} - j);')
    writer.open(f'for (long d = 0; d < {depth}; d++, to += {width})')
    place = total([scaled('(j + lane)', key), scaled('d', deep)])
    writer.line('for (long lane = 0; lane < lanes; lane++)')
    writer.line(f'    to[lane] = k[{place}];')
    writer.line(f'for (long lane = lanes; lane < {width}; lane++)')
    writer.line('    to[lane] = 0.0f;')
    writer.close(3)
    writer.line()


def _write_columns(writer: Writer, p: AttentionPlan) -> None:
    """Row by row, so that what is read lies side by side; panels are written in turns."""
    strides, keys, columns = p.strides(p.form.columns), p.size(KEY), p.size(COLUMN)
    writer.open('static void pack_columns(const float *restrict v, float *restrict to)')
    writer.open(f'for (long j = 0; j < {keys}; j++)')
    if p.full_panels:
        writer.open(f'for (long e = 0; e < {p.full_panels * p.width}; e += {p.width})')
        writer.line(f'float *restrict const at = to + e * {keys} + j * {p.width};')
        _write_piece(writer, strides, 'at', 'e', p.width, p.width)
        writer.close()
    last = p.full_panels * p.width
    writer.line(f'float *restrict const rest = to + {last * keys} + j * {p.tail};')
    _write_piece(writer, strides, 'rest', str(last), columns - last, p.tail)
    writer.close(2)
    writer.line()


def _write_piece(
    writer: Writer, strides: Strides, to: str, first: str, count: int, room: int
) -> None:
    """`count` columns of a key from the `first` on, zero beyond them up to `room`."""
    if strides[COLUMN] == 1:
        start = total([scaled('j', strides[KEY]), first])
        writer.line(f'memcpy({to}, v + {start}, {4 * count});')
    else:
        start = total([scaled('j', strides[KEY]), scaled(f'({first} + lane)', strides[COLUMN])])
        writer.line(f'for (long lane = 0; lane < {count}; lane++)')
        writer.line(f'    {to}[lane] = v[{start}];')
    if count < room:
        writer.line(f'for (long lane = {count}; lane < {room}; lane++)')
        writer.line(f'    {to}[lane] = 0.0f;')


def write_direct(writer: Writer, p: AttentionPlan) -> None:
    """`score_rows` and `sum_rows`: products of a few rows with what lies where it was computed."""
    keys, columns = p.strides(p.form.keys), p.strides(p.form.columns)
    depth = p.size(DEPTH)
    head = 'long rows, long j, long count'
    writer.open(
        'static void score_rows(const float *restrict q, const float *restrict k, '
        f'float *restrict scores, {head})'
    )
    writer.open('for (long r = 0; r < rows; r++)')
    writer.line(f'const float *row = q + r * {depth};')
    writer.line(f'float *restrict to = scores + r * {p.pitch};')
    if keys[KEY] == 1 and keys[DEPTH] != 1:
        writer.line('for (long n = 0; n < count; n++)')
        writer.line('    to[n] = 0.0f;')
        writer.line(f'for (long d = 0; d < {depth}; d++)')
        writer.line('    for (long n = 0; n < count; n++)')
        writer.line(f'        to[n] += row[d] * k[{total(["j", "n", scaled("d", keys[DEPTH])])}];')
    else:
        writer.open('for (long n = 0; n < count; n++)')
        writer.line(f'const float *key = k + (j + n) * {keys[KEY]};')
        writer.line('float sum = 0.0f;')
        writer.line('#pragma omp simd reduction(+ : sum)')
        writer.line(f'for (long d = 0; d < {depth}; d++)')
        writer.line(f'    sum += row[d] * key[{scaled("d", keys[DEPTH]) or "0"}];')
        writer.line('to[n] = sum;')
        writer.close()
    writer.close(2)
    writer.line()
    _write_direct_sums(writer, p, columns[KEY], columns[COLUMN], head)


def _write_direct_sums(writer: Writer, p: AttentionPlan, key: int, column: int, head: str) -> None:
    """Four keys at a time, so that sums are loaded and stored once for them."""
    writer.open(
        'static void sum_rows(const float *restrict scores, const float *restrict v, '
        f'float *restrict sums, {head})'
    )
    writer.open('for (long r = 0; r < rows; r++)')
    writer.line(f'const float *row = scores + r * {p.pitch};')
    writer.line(f'float *restrict to = sums + r * {p.columns};')
    writer.line('long n = 0;')
    for step in (4, 1):
        writer.open(f'for (; n + {step} <= count; n += {step})')
        writer.line(f'const float *from = v + (j + n) * {key};')
        writer.line(f'for (long e = 0; e < {p.size(COLUMN)}; e++)')
        terms = [
            f'row[n + {m}] * from[{total([scaled("e", column), str(m * key)])}]'
            for m in range(step)
        ]
        writer.line(f'    to[e] += {" + ".join(terms)};')
        writer.close()
    writer.close(2)
    writer.line()
