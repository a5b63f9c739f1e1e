"""Vectors of whole numbers in C for NEON: from and to memory, four of them at once as bytes.

Goes in: what follows a sum (`WholeValue`, kernels/cpu/whole_vectors.py) and its operands. Comes
out: C functions

    finish(value, e0_v, ..)     a vector of sums through the epilogue
    take_DTYPE(from, count)     so many numbers, the lanes of a vector or the first few of them
    put_DTYPE(to, all, count)   the same back
    spread_DTYPE(bytes, v)      vector v of the four that 16 bytes become
    put_bytes(to, a, b, c, d, count)   the lowest bytes of four vectors, `count` of them in all

and of tiles the lines that call them. Rounding by an addition leaves small whole numbers in the
lowest bits of lanes (`WholeValue.made`), so that narrowing is picking bytes: three instructions for
four vectors, where conversions take two cycles each on one of two pipes of a Neoverse-N1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.whole_vectors import ABOVE, WholeValue
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.dtypes import DTYPES, is_float, limits

LANES = 4
AT_ONCE = 4  # vectors that are narrowed together

_TYPES = """\
typedef float real_v __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t whole_v __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t bits_v __attribute__((vector_size(16), aligned(4), may_alias));
INLINE real_v every_real(float x) { return (real_v)vdupq_n_f32(x); }
INLINE whole_v every_whole(int32_t x) { return (whole_v)vdupq_n_s32(x); }
INLINE real_v real_max(real_v a, real_v b)
{
    return (real_v)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
}
INLINE real_v real_min(real_v a, real_v b)
{
    return (real_v)vminq_f32((float32x4_t)a, (float32x4_t)b);
}
INLINE whole_v whole_max(whole_v a, whole_v b)
{
    return (whole_v)vmaxq_s32((int32x4_t)a, (int32x4_t)b);
}
INLINE whole_v whole_min(whole_v a, whole_v b)
{
    return (whole_v)vminq_s32((int32x4_t)a, (int32x4_t)b);
}
"""

# x / by for a number that is known, rounded as division is: a quotient that is off by less than a
# unit becomes the nearest float by its remainder times the nearest inverse (Markstein, 'Computation
# of elementary functions on the IBM RISC System/6000 processor', 1990). Five instructions of half a
# cycle on a Neoverse-N1, where a division takes six cycles.
_QUOTIENT = """\
INLINE real_v quotient(real_v x, float by)
{
    const float inverse = 1.0f / by;
    float32x4_t q = vmulq_n_f32((float32x4_t)x, inverse);
    q = vfmaq_n_f32(q, vfmsq_n_f32((float32x4_t)x, q, by), inverse);
    q = vfmaq_n_f32(q, vfmsq_n_f32((float32x4_t)x, q, by), inverse);
    return (real_v)q;
}
"""

_PUT_BYTES = """\
INLINE void put_bytes(void *to, whole_v a, whole_v b, whole_v c, whole_v d, unsigned long count)
{
    const uint16x8_t low = vuzp1q_u16((uint16x8_t)a, (uint16x8_t)b);
    const uint16x8_t high = vuzp1q_u16((uint16x8_t)c, (uint16x8_t)d);
    const uint8x16_t bytes = vuzp1q_u8((uint8x16_t)low, (uint8x16_t)high);
    memcpy(to, &bytes, count);
}
"""

# The same of numbers that fit in 16 bits, moved by a zero point and cut off by what narrows them.
_PUT_NEAR = """\
INLINE void put_near(void *to, whole_v a, whole_v b, whole_v c, whole_v d, unsigned long count)
{
    const int16x8_t zero = vdupq_n_s16(@zero@);
    const int16x8_t low = vaddq_s16(vuzp1q_s16((int16x8_t)a, (int16x8_t)b), zero);
    const int16x8_t high = vaddq_s16(vuzp1q_s16((int16x8_t)c, (int16x8_t)d), zero);
    @kind@8x16_t bytes = vcombine_@s@8(@narrow@_s16(low), @narrow@_s16(high));
@cuts@    memcpy(to, &bytes, count);
}
"""

# Rounded before anything is added to it: compilers would make one instruction of both.
_SETTLED = """\
INLINE real_v settled(real_v x)
{
    __asm__("" : "+w"(x));
    return x;
}
"""

# Bytes as floats: 2^23, and how far each is above the smallest of its type.
_ABOVE = """\
INLINE real_v above_@dtype@(@sign@8x16_t x, int v)
{
    const uint8x16_t from = @from@;
    const uint8x16_t none = vdupq_n_u8(0);
    const uint16x8_t half = (uint16x8_t)(v < 2 ? vzip1q_u8(from, none) : vzip2q_u8(from, none));
    const uint16x8_t high = vdupq_n_u16(0x4B00);
    return (real_v)(v % 2 ? vzip2q_u16(half, high) : vzip1q_u16(half, high));
}
"""

_SPREAD = """\
INLINE whole_v spread_@dtype@(@sign@8x16_t x, int v)
{
    const @sign@16x8_t half = v < 2 ? vmovl_@s@8(vget_low_@s@8(x)) : vmovl_@s@8(vget_high_@s@8(x));
    const @sign@16x4_t part = v % 2 ? vget_high_@s@16(half) : vget_low_@s@16(half);
    return (whole_v)vmovl_@s@16(part);
}
"""


def write_neon_vectors(
    writer: Writer, value: WholeValue, operands: Sequence[Operand], near: WholeValue | None = None,
    sums: str = 'i32',
) -> None:  # fmt: skip
    """The types, what expressions call, and what loads and stores; also for a value that is `near`
    its limits, where there is one. `sums` is the dtype of sums, '' where there are none.
    """
    writer.line('#include <arm_neon.h>')
    text = _TYPES
    dtypes = dict.fromkeys((value.dtype, *(item.dtype for item in operands)))
    if DTYPES[value.dtype] == 1:
        text += _PUT_BYTES
    called = value.made(last=True) + (near.made(last=True) if near else '')
    text += _QUOTIENT if 'quotient(' in called else ''
    kept = next((made for made in (value, near) if made and made.near), None)
    text += _SETTLED + _put_near(kept) if kept else ''
    for dtype in (d for d in dtypes if DTYPES[d] == 1):
        letter = 'u' if dtype[0] == 'u' else 's'
        sign = 'uint' if letter == 'u' else 'int'
        above = 'x' if letter == 'u' else 'veorq_u8((uint8x16_t)x, vdupq_n_u8(128))'
        text += (
            (_SPREAD + _ABOVE).replace('@dtype@', dtype).replace('@sign@', sign)
            .replace('@s@', letter).replace('@from@', above)
        )  # fmt: skip
    writer.lines += text.replace('INLINE', INLINE).splitlines()
    for dtype in dtypes:
        if DTYPES[dtype] > 1:
            _write_memory(writer, dtype)
    kinds = {item.name: _kind(item.dtype) for item in operands}
    given = [f'{_kind(sums)} value'] if sums else []
    given += [f'{kind} {name}_v' for name, kind in kinds.items()]
    given += [f'real_v {item.name}_r' for item in _bytes(operands)]
    for name, made in (('finish', value), ('finish_near', near)):
        if made is None:
            continue
        writer.open(f'{INLINE} {_kind(made.dtype)} {name}({", ".join(given)})')
        writer.line(f'return {made.settled() if made.near else made.made(last=True)};')
        writer.close()
    writer.line()


def _put_near(value: WholeValue) -> str:
    assert value.limits is not None
    signed = value.dtype == 'i8'
    letter, low = ('s', -128) if signed else ('u', 0)
    cuts = ''
    for op, limit, end in (('max', value.limits[0], low), ('min', value.limits[1], low + 255)):
        if limit != end:
            cuts += f'    bytes = v{op}q_{letter}8(bytes, vdupq_n_{letter}8({limit}));\n'
    words = {
        'zero': str(value.zero), 'kind': 'int' if signed else 'uint', 's': letter,
        'narrow': 'vqmovn' if signed else 'vqmovun', 'cuts': cuts,
    }  # fmt: skip
    text = _PUT_NEAR
    for name, word in words.items():
        text = text.replace(f'@{name}@', word)
    return text


def _bytes(operands: Sequence[Operand]) -> list[Operand]:
    """Operands that are also read as floats."""
    return [item for item in operands if DTYPES[item.dtype] == 1]


def _kind(dtype: str) -> str:
    return 'real_v' if is_float(dtype) else 'whole_v'


def _write_memory(writer: Writer, dtype: str) -> None:
    """`take` and `put` of numbers of 16 or 32 bits."""
    kind, wide = C_TYPES[dtype], _kind(dtype)
    take, put, narrow = 'x', 'all', wide
    if dtype == 'f16':
        narrow, take = 'float16x4_t', '(real_v)vcvt_f32_f16(x)'
        put = 'vcvt_f16_f32((float32x4_t)all)'
    elif DTYPES[dtype] == 2:
        letter = 'u' if dtype[0] == 'u' else 's'
        narrow = f'{"u" if letter == "u" else ""}int16x4_t'
        take = f'(whole_v)vmovl_{letter}16(x)'
        put = f'({narrow})vmovn_u32((uint32x4_t)all)'
    writer.open(f'{INLINE} {wide} take_{dtype}(const {kind} *from, unsigned long count)')
    writer.line(f'{narrow} x = {{0}};')
    writer.line('memcpy(&x, from, count * sizeof(*from));')
    writer.line(f'return {take};')
    writer.close()
    writer.open(f'{INLINE} void put_{dtype}({kind} *to, {wide} all, unsigned long count)')
    writer.line(f'const {narrow} x = {put};')
    writer.line('memcpy(to, &x, count * sizeof(*to));')
    writer.close()


def read_lines(
    item: Operand, place: str, vector: str, vectors: Sequence[int], count: int
) -> list[str]:
    """C lines: an operand's vectors `e0_0`, `e0_1` .., of which the last has `count` lanes; a
    stride of 0 along lanes is one number for all of them.
    """
    kind, name = _kind(item.dtype), item.name
    if not item.stride(vector):
        every = 'every_real' if is_float(item.dtype) else 'every_whole'
        lines = [f'const {kind} {name}_{v} = {every}({place}[0]);' for v in vectors]
        if DTYPES[item.dtype] == 1:
            above = f'every_real({ABOVE - limits(item.dtype)[0]}.0f + {place}[0])'
            lines += [f'const real_v {name}_r{v} = {above};' for v in vectors]
        return lines
    if DTYPES[item.dtype] == 1:
        sign = 'uint' if item.dtype[0] == 'u' else 'int'
        size = LANES * (len(vectors) - 1) + count
        first = vectors[0]
        return [
            f'{sign}8x16_t {name}_bytes_{first} = {{0}};',
            f'memcpy(&{name}_bytes_{first}, {place} + {LANES * first}, {size});',
            *(f'const whole_v {name}_{v} = spread_{item.dtype}({name}_bytes_{first}, {v - first});'
              for v in vectors),
            *(f'const real_v {name}_r{v} = above_{item.dtype}({name}_bytes_{first}, {v - first});'
              for v in vectors),
        ]  # fmt: skip
    lines = []
    for v in vectors:
        lanes = count if v == vectors[-1] else LANES
        read = f'take_{item.dtype}({place} + {LANES * v}, {lanes})'
        lines.append(f'const {kind} {name}_{v} = {read};')
    return lines


def store_lines(
    value: WholeValue, operands: Sequence[Operand], sums: Mapping[int, str], to: str,
    count: int | str, near: bool = False,
) -> list[str]:  # fmt: skip
    """C lines that finish the vectors `sums`, '' where there are none, and store them from `to` on;
    of the last one `count` lanes. `near`: where sums are known to be small.
    """
    made, name = {}, 'finish_near' if near else 'finish'
    for v, text in sums.items():
        given = [text] if text else []
        given += [f'{item.name}_{v}' for item in operands]
        given += [f'{item.name}_r{v}' for item in _bytes(operands)]
        made[v] = f'{name}({", ".join(given)})'
    last = max(sums)
    if DTYPES[value.dtype] > 1:
        return [
            f'put_{value.dtype}({to} + {LANES * v}, {text}, {count if v == last else LANES});'
            for v, text in made.items()
        ]
    names = [f'y{v}' for v in made]
    lines = [f'const whole_v y{v} = {text};' for v, text in made.items()]
    names += names[-1:] * (AT_ONCE - len(names))
    size = (
        LANES * (len(made) - 1) + count
        if isinstance(count, int)
        else f'{LANES * (len(made) - 1)} + {count}'
    )
    put = 'put_near' if value.near else 'put_bytes'
    return [*lines, f'{put}({to} + {LANES * min(sums)}, {", ".join(names)}, {size});']


def together(vectors: int) -> list[list[int]]:
    """The vectors of a tile, in the runs that are narrowed at once."""
    return [
        list(range(first, min(first + AT_ONCE, vectors))) for first in range(0, vectors, AT_ONCE)
    ]
