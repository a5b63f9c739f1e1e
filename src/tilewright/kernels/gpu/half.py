"""f16 and bf16 in CUCL: an element is an unsigned short, which is computed with as a float.

Goes in: a dtype. Comes out: `CONVERSIONS`, definitions of `from_f16`, `to_f16` and of pairs in one
word, and lines that load or store up to eight neighbours at once (`loaded`, `stored`). Rounding is
to nearest, ties to even; where a GPU has instructions for it, by those.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ops.dtypes import HALVES

# Bits of a float below those of an f16; what is below the least normal number is rounded by adding
# one half, whose last bit is that of the least f16.
_F16 = """\
#ifndef TW_F16
#define TW_F16
#ifdef __CUDA_ARCH__
FUNCTION float from_f16(unsigned short bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
FUNCTION unsigned short to_f16(float value)
{
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#else
FUNCTION float from_f16(unsigned short bits)
{
    const unsigned sign = (unsigned)(bits & 0x8000) << 16, rest = (unsigned)(bits & 0x7fff) << 13;
    const float least = BITS_FLOAT(0x38800000u);
    if (rest < 0x00800000u)
        return BITS_FLOAT(sign | FLOAT_BITS(BITS_FLOAT(rest + 0x38800000u) - least));
    return BITS_FLOAT(sign | (rest + (rest >= 0x0f800000u ? 0x70000000u : 0x38000000u)));
}
FUNCTION unsigned short to_f16(float value)
{
    const unsigned whole = FLOAT_BITS(value), sign = whole >> 16 & 0x8000u;
    const unsigned rest = whole & 0x7fffffffu;
    if (rest >= 0x47800000u)
        return (unsigned short)(sign | (rest > 0x7f800000u ? 0x7e00u : 0x7c00u));
    if (rest < 0x38800000u)
        return (unsigned short)(sign | (FLOAT_BITS(BITS_FLOAT(rest) + 0.5f) - 0x3f000000u));
    return (unsigned short)(sign | (rest + 0xc8000fffu + (rest >> 13 & 1u)) >> 13);
}
#endif
#if __CUDA_ARCH__ >= 800
FUNCTION unsigned pair_f16(float low, float high)
{
    unsigned both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#else
FUNCTION unsigned pair_f16(float low, float high)
{
    return (unsigned)to_f16(low) | (unsigned)to_f16(high) << 16;
}
#endif
#endif
"""

_BF16 = """\
#ifndef TW_BF16
#define TW_BF16
FUNCTION float from_bf16(unsigned short bits) { return BITS_FLOAT((unsigned)bits << 16); }
FUNCTION unsigned short to_bf16(float value)
{
    const unsigned whole = FLOAT_BITS(value);
    return (unsigned short)(
        value != value ? 0x7fffu : (whole + 0x7fffu + (whole >> 16 & 1u)) >> 16);
}
#if __CUDA_ARCH__ >= 800
FUNCTION unsigned pair_bf16(float low, float high)
{
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#else
FUNCTION unsigned pair_bf16(float low, float high)
{
    return (unsigned)to_bf16(low) | (unsigned)to_bf16(high) << 16;
}
#endif
#endif
"""
CONVERSIONS = {'f16': _F16, 'bf16': _BF16}


def load(name: str, count: int, place: str, dtype: str, space: str = 'GLOBAL') -> list[str]:
    """name[0] to name[count - 1] from `count` neighbours at `place`, which is aligned to them."""
    if count == 1:
        element = f'*({place})'
        return [f'{name}[0] = {f"from_{dtype}({element})" if dtype in HALVES else element};']
    if dtype not in HALVES:
        return _of_floats(name, count, place, space)
    words = count // 2
    if words == 1:
        lines = [f'const unsigned bits = *(const {space} unsigned *)({place});']
        texts = ['bits']
    else:
        lines = [f'const float{words} v = LOAD{words}({space}, {place});']
        texts = [f'FLOAT_BITS(v.{part})' for part in 'xyzw'[:words]]
    return ['{', *(f'    {line}' for line in [*lines, *_apart(name, texts, dtype)]), '}']


def unpacked(name: str, words: Sequence[str], dtype: str) -> list[str]:
    """name[0], name[1], .. from the halves of some words, which are floats by their type."""
    return _apart(name, [f'FLOAT_BITS({word})' for word in words], dtype)


def _apart(name: str, words: Sequence[str], dtype: str) -> list[str]:
    lines = []
    for number, text in enumerate(words):
        low, high = f'(unsigned short)({text} & 0xffffu)', f'(unsigned short)({text} >> 16)'
        lines.append(f'{name}[{2 * number}] = from_{dtype}({low});')
        lines.append(f'{name}[{2 * number + 1}] = from_{dtype}({high});')
    return lines


def _of_floats(name: str, count: int, place: str, space: str) -> list[str]:
    wide = min(count, 4)
    lines = []
    for first in range(0, count, wide):
        lines.append(f'const float{wide} v{first} = LOAD{wide}({space}, {place} + {first});')
        lines += [
            f'{name}[{first + number}] = v{first}.{part};'
            for number, part in enumerate('xyzw'[:wide])
        ]
    return ['{', *(f'    {line}' for line in lines), '}']


def store(values: Sequence[str], place: str, dtype: str) -> list[str]:
    """Neighbours at `place`, which is aligned to them, at once."""
    if len(values) == 1:
        value = f'to_{dtype}({values[0]})' if dtype in HALVES else values[0]
        return [f'*({place}) = {value};']
    if dtype not in HALVES:
        if len(values) == 2:
            return [f'STORE2(GLOBAL, {place}, {values[0]}, {values[1]});']
        return [
            f'STORE4(GLOBAL, {place} + {n}, FLOAT4({", ".join(values[n : n + 4])}));'
            for n in range(0, len(values), 4)
        ]
    words = [f'pair_{dtype}({a}, {b})' for a, b in zip(values[::2], values[1::2], strict=True)]
    if len(words) == 1:
        return [f'*(GLOBAL unsigned *)({place}) = {words[0]};']
    floats = [f'BITS_FLOAT({word})' for word in words]
    if len(words) == 2:
        return [f'STORE2(GLOBAL, (GLOBAL float *)({place}), {floats[0]}, {floats[1]});']
    return [f'STORE4(GLOBAL, {place}, FLOAT4({", ".join(floats)}));']
