"""What lies between the two products of an attention: scores become weights, row by row.

Goes in: a plan. Comes out: C functions, and what `weigh` reads beside the scores.

    largest        of a row, several vectors at a time
    exponentials   e^(score - peak) of a row, in place, and their sum
    weigh          scores of a block through scale and mask, then both of these

Scores are never above their peak, so that e^x = 2^n 2^r, n the whole number nearest to x log2(e),
needs no care for large arguments. 2^r is 1 + r P(r), with P by Remez's criterion for the relative
error of the whole, 2e-9 for |r| <= 1/2. x log2(e) is rounded once, which costs a weight |x| half
units in the last place: of what a row sums up to, at most a third of one unit, since e^x falls
faster than |x| grows.

A row is filled up with -inf, whose weight is 0, to whole tiles of vectors: rows of scores have room
for that, and no loop has a rest. Vectors of a tile are independent of each other, so that their
latencies overlap.
"""

from __future__ import annotations

from tilewright.kernels.cpu.expression import C_TYPES, Typed
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.attention.plan import AttentionPlan
from tilewright.kernels.cpu.writer import Writer, scaled
from tilewright.machine.isa import ISAS
from tilewright.ops.attention import KEY, ROW
from tilewright.ops.stage import Access

# 2^r = 1 + r P(r) for |r| <= 1/2, the last coefficient of P first
_POWERS = (
    '1.53533620e-4f', '1.33988739e-3f', '9.61843692e-3f', '5.55033237e-2f', '2.40226477e-1f',
    '6.93147182e-1f',
)  # fmt: skip

_FUNCTIONS = """\
typedef float tile_v __attribute__((vector_size(BYTES), aligned(4), may_alias));
typedef int32_t tile_bits __attribute__((vector_size(BYTES), aligned(4), may_alias));

/* The largest of a row of whole tiles; numbers that are none do not count. */
static float largest(const float *row, long count)
{
    tile_v top[UNITS];
    for (int u = 0; u < UNITS; u++)
        top[u] = (tile_v){0} - INFINITY;
    for (long n = 0; n < count; n += WIDTH)
        for (int u = 0; u < UNITS; u++) {
            const tile_v score = *(const tile_v *)(row + n + LANES * u);
            const tile_bits more = score > top[u];
            top[u] = (tile_v)(((tile_bits)score & more) | ((tile_bits)top[u] & ~more));
        }
    LARGEST
}

/* row[n] = e^(row[n] - by) of whole tiles, none of which is above `by`; comes out: their sum. */
static float exponentials(float *row, long count, float by)
{
    const float whole = 12583039.0f; /* added, the lowest bits are n + 127 */
    tile_v sums[UNITS];
    for (int u = 0; u < UNITS; u++)
        sums[u] = (tile_v){0};
    for (long n = 0; n < count; n += WIDTH) {
        tile_v x[UNITS], shifted[UNITS], r[UNITS], p[UNITS];
        for (int u = 0; u < UNITS; u++) {
            x[u] = (*(const tile_v *)(row + n + LANES * u) - by) * 1.44269504f;
            shifted[u] = x[u] + whole;
            r[u] = x[u] - (shifted[u] - whole);
        }
POLYNOMIAL
        for (int u = 0; u < UNITS; u++) {
            const tile_v power = (tile_v)((tile_bits)shifted[u] << 23);
            const tile_bits none = x[u] < -126.0f;
            const tile_v weight = power + power * (r[u] * p[u]);
            const tile_v kept = (tile_v)((tile_bits)weight & ~none);
            *(tile_v *)(row + n + LANES * u) = kept;
            sums[u] += kept;
        }
    }
    for (int u = 1; u < UNITS; u++)
        sums[0] += sums[u];
    SUM
}
"""
# How lanes are joined: in five steps on AVX-512, else one by one.
_LARGEST = """\
float found = -INFINITY;
    for (int u = 0; u < UNITS; u++)
        for (int lane = 0; lane < LANES; lane++)
            found = top[u][lane] > found ? top[u][lane] : found;
    return found;"""
_SUM = """\
float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++)
        sum += sums[0][lane];
    return sum;"""
_WIDE_LARGEST = """\
for (int u = 1; u < UNITS; u++)
        top[0] = (tile_v)_mm512_max_ps((__m512)top[0], (__m512)top[u]);
    return _mm512_reduce_max_ps((__m512)top[0]);"""
_WIDE_SUM = 'return _mm512_reduce_add_ps((__m512)sums[0]);'
_WIDE = 64  # bytes of a vector of AVX-512


def write_weights(writer: Writer, p: AttentionPlan, typed: Typed) -> list[tuple[str, Access]]:
    """[plan] -> C, and (name of an argument of `weigh`, what it reads)."""
    first, *others = _POWERS
    steps = [f'p[u] = r[u] * {first} + {others[0]};']
    steps += [f'p[u] = p[u] * r[u] + {one};' for one in others[1:]]
    loop = 'for (int u = 0; u < UNITS; u++)'
    polynomial = '\n'.join(f'        {loop}\n            {step}' for step in steps)
    wide = ISAS[p.schedule.isa].arch == 'x86_64' and 4 * p.lanes == _WIDE
    if wide:
        writer.lines += ['#include <immintrin.h>', '']
    text = _FUNCTIONS.replace('POLYNOMIAL', polynomial)
    text = text.replace('LARGEST', _WIDE_LARGEST if wide else _LARGEST)
    text = text.replace('SUM\n', f'{_WIDE_SUM if wide else _SUM}\n')
    sizes = {'UNITS': p.width // p.lanes, 'WIDTH': p.width, 'LANES': p.lanes, 'BYTES': 4 * p.lanes}
    for name, size in sizes.items():
        text = text.replace(name, str(size))
    writer.lines += [*text.splitlines(), '']
    return _write_weigh(writer, p, typed)


def _write_weigh(writer: Writer, p: AttentionPlan, typed: Typed) -> list[tuple[str, Access]]:
    operands: list[tuple[str, Access]] = []
    value, values = 'row[n]', {p.form.scores.write.tensor: 'row[n]'}
    for stage in p.form.between:
        reads = []
        for access in stage.reads:
            kind = p.group.tensor(access.tensor).dtype
            if access.tensor in values:
                reads.append((values[access.tensor], 'f32'))
                continue
            name = f'm{len(operands)}'
            operands.append((name, access))
            step = access_strides(p.group, access)[0].get(KEY, 0)
            reads.append((f'{name}[{scaled("n", step) or "0"}]', kind))
        at = {ROW: 'i', KEY: '(j + n)'} | {d: d for d in p.form.stack}
        text, kind = typed.text(stage.expr, reads, at)
        value = values[stage.write.tensor] = typed.convert(text, kind, 'f32')
    given = ''.join(
        f', const {C_TYPES[p.group.tensor(a.tensor).dtype]} *restrict {name}'
        for name, a in operands
    )
    used = {n for s in p.form.between for n in s.expr.iterators()}
    stack = ''.join(f', long {d}' for d in p.form.stack if d in used)
    writer.line('/* row[n] = exp(score - peak), peak the largest score so far; sums follow it. */')
    writer.open(
        f'{INLINE} void weigh(float *restrict row, float *restrict sums, float *peak, '
        f'float *sum, long count, long i, long j{stack}{given})'
    )
    writer.line('(void)i;')
    if value != 'row[n]':
        writer.line('#pragma omp simd')
        writer.line('for (long n = 0; n < count; n++)')
        writer.line(f'    row[n] = {value};')
    writer.line(f'const long whole = (count + {p.width - 1}) / {p.width} * {p.width};')
    writer.line('for (long n = count; n < whole; n++)')
    writer.line('    row[n] = -INFINITY;')
    writer.line('const float top = largest(row, whole);')
    if p.size(KEY) <= p.keys:  # no other block
        writer.line('(void)sums;')
        writer.line('*peak = top;')
        writer.line('*sum = exponentials(row, whole, top == -INFINITY ? 0.0f : top);')
        writer.close()
        writer.line()
        return operands
    writer.line('const float old = *peak, most = old > top ? old : top;')
    writer.line('const float by = most == -INFINITY ? 0.0f : most;')
    writer.line('const float added = exponentials(row, whole, by);')
    writer.line('const float less = exp_f32(old - by);')
    writer.line('*sum = j ? *sum * less + added : added;')
    writer.line('*peak = most;')
    writer.line('if (j && less != 1.0f)')
    writer.line(f'    for (long n = 0; n < {p.columns}; n++)')
    writer.line('        sums[n] *= less;')
    writer.close()
    writer.line()
    return operands
