"""Multiply-adds of vectors of words in C: each lane adds up the products of two words.

Goes in: an instruction set and what its words hold (`Isa.dots`). Comes out: the header that is
needed, and a C expression over the vectors `sum`, `a` and `b`.
"""

from __future__ import annotations

from tilewright.machine.isa import ISAS

_X86 = {
    'u8': '{m}_dpbusd_epi32(({v})sum, ({v})(a), ({v})(b))',
    'i16': '{m}_add_epi32(({v})sum, {m}_madd_epi16(({v})(a), ({v})(b)))',
}


def words_dot(isa: str, dtype: str) -> tuple[str, str]:
    """(header, expression)"""
    row = ISAS[isa]
    if dtype in _X86 and row.arch == 'x86_64':
        bits = 8 * row.vector_bytes
        text = _X86[dtype].format(m=f'_mm{bits}', v=f'__m{bits}i')
        return 'immintrin.h', f'(sums_v){text}'
    if dtype == 'i8' and row.arch == 'aarch64':
        return 'arm_neon.h', '(sums_v)vdotq_s32((int32x4_t)sum, (int8x16_t)(a), (int8x16_t)(b))'
    return '', 'sum + (a) * (b)'
