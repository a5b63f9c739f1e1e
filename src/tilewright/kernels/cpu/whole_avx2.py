"""Vectors of whole numbers in C for AVX2: sums of a register tile, narrowed to bytes four at once.

Goes in: what follows a sum (`WholeValue`, kernels/cpu/whole_vectors.py), its operands, and where
the vectors of a tile lie. Comes out: C functions, and the lines that store a tile. Packing works
inside of 16 bytes, so that a permutation puts four vectors in order; those that are neighbours in
the result are stored together, of one pixel or of several.

    rounded(value, count, e0, ..)   a vector of sums as whole numbers
    two(a, b)                       two of those as numbers of 16 bits, moved by the zero point
    bytes(low, high)                two of those as bytes, cut off at their limits
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.whole_vectors import WholeValue, narrowed, vector_operands
from tilewright.kernels.cpu.writer import Writer

LANES = 8
AT_ONCE = 4  # vectors that are narrowed together
_ORDER = '_mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)'


@dataclass(frozen=True, slots=True)
class StoredVector:
    """A vector of a tile: where its sums lie, its results from those of the tile, how many of its
    lanes are stored, and where its operands lie, as C expressions.
    """

    sums: str
    place: int
    count: int
    operands: tuple[str, ...]


def write_rounded(
    writer: Writer, value: WholeValue, operands: Sequence[Operand], vector: str
) -> None:
    """`rounded`, and what narrows its numbers: `two`, `bytes`."""
    moved = '_mm256_packs_epi32(a, b)'
    if value.zero:
        moved = f'_mm256_adds_epi16({moved}, _mm256_set1_epi16({value.zero}))'
    writer.line(f'{INLINE} __m256i two(__m256i a, __m256i b) {{ return {moved}; }}')
    writer.open(f'{INLINE} __m256i bytes(__m256i low, __m256i high)')
    writer.line(f'return {narrowed(value, 256)};')
    writer.close()
    pointers = ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in operands)
    writer.open(f'{INLINE} __m256i rounded(whole_v value, const unsigned long count{pointers})')
    writer.lines += [f'    {line}' for line in vector_operands(operands, vector)]
    writer.line(f'return {value.rounded(256)};')
    writer.close()
    writer.line()


def store_lines(vectors: Sequence[StoredVector]) -> list[str]:
    """The C lines that store the vectors of a tile to `out`."""
    lines = []
    for first in range(0, len(vectors), AT_ONCE):
        four = vectors[first : first + AT_ONCE]
        given = [
            f'rounded(*(const whole_v *)({", ".join([f"{v.sums})", str(v.count), *v.operands])})'
            for v in four
        ]
        given += given[-1:] * (AT_ONCE - len(four))
        made = f'bytes(two({", ".join(given[:2])}), two({", ".join(given[2:])}))'
        lines += [
            '{',
            f'    const __m256i all = _mm256_permutevar8x32_epi32({made}, {_ORDER});',
            *(f'    {line}' for line in _pieces(four)),
            '}',
        ]
    return lines


def _pieces(four: Sequence[StoredVector]) -> list[str]:
    """What stores those bytes, as many of them at once as lie together."""

    def together(first: int, count: int) -> bool:
        run = four[first : first + count]
        places = [v.place - i * LANES for i, v in enumerate(run)]
        return len(run) == count and len(set(places)) == 1 and all(v.count == LANES for v in run)

    if together(0, 4):
        return [f'_mm256_storeu_si256((__m256i *)(out + {four[0].place}), all);']
    lines = []
    for half in range(0, len(four), 2):
        if together(half, 2):
            text = f'_mm256_extracti128_si256(all, {half // 2})'
            lines.append(f'_mm_storeu_si128((__m128i *)(out + {four[half].place}), {text});')
            continue
        for i, one in enumerate(four[half : half + 2], half):
            lines.append(f'const int64_t x{i} = _mm256_extract_epi64(all, {i});')
            lines.append(f'memcpy(out + {one.place}, &x{i}, {one.count});')
    return lines
