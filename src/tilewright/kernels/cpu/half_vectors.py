"""What follows a sum of f16 or bf16 products, on vectors of float32: bias, activations, residuals.

Goes in: a group. Comes out: a `HalfValue`: the expression of its epilogue over vectors of floats
(kernels/cpu/vector_epilogue.py), and what is loaded and stored around it. Operands of f16 or bf16
are widened as they are loaded, and results are narrowed, rounded once, as they are stored. What is
quantised (ops/stored.py) is multiplied by the inverse of its scale, rounded and saturated as bits
are narrowed.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.cpu.expression import C_TYPES, number, widened
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    plan_vector_epilogue,
    vector_type,
    write_functions,
)
from tilewright.kernels.cpu.whole_vectors import MAGIC, MAGIC_BITS
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import Isa
from tilewright.ops.dtypes import limits
from tilewright.ops.group import Group
from tilewright.ops.stored import Stored, as_stored

# By architecture: floats of a vector, and what is loaded and stored, each with its load and store.
LANES = {'aarch64': 4}
MOST_LANES = 16
NEON = {
    'f32': ('(row_v)vld1q_f32(from)', 'vst1q_f32(to, (float32x4_t)all)'),
    'f16': (
        '(row_v)vcvt_f32_f16(vld1_f16((const float16_t *)from))',
        'vst1_f16((float16_t *)to, vcvt_f16_f32((float32x4_t)all))',
    ),
}
AVX512 = {
    'f32': ('(row_v)_mm512_loadu_ps(from)', '_mm512_storeu_ps(to, (__m512)all)'),
    'bf16': (
        '(row_v)_mm512_slli_epi32(_mm512_cvtepu16_epi32('
        '_mm256_loadu_si256((const __m256i *)from)), 16)',
        '_mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh((__m512)all))',
    ),
}
PLAIN = {
    'f32': ('*(const row_v *)from', '*(row_v *)to = all'),
    'bf16': (
        'row_v all; for (int i = 0; i < 16; i++) all[i] = bf16_float(from[i]); return all',
        'for (int i = 0; i < 16; i++) to[i] = float_bf16(all[i])',
    ),
}
MOVES = {'aarch64': NEON, 'x86_64': AVX512, 'any': PLAIN}
HEADERS = {'aarch64': 'arm_neon.h', 'x86_64': 'immintrin.h'}


@dataclass(frozen=True, slots=True)
class HalfValue:
    """An epilogue on vectors, and the dtype that its results are stored in; results may be `stored`
    as 8-bit numbers.
    """

    epilogue: VectorEpilogue
    dtype: str
    arch: str = 'aarch64'
    in_fours: bool = False
    stored: Stored | None = None

    @property
    def lanes(self) -> int:
        """Floats of a vector."""
        return LANES.get(self.arch, MOST_LANES)

    @property
    def put(self) -> str:
        """The function that stores a vector of results."""
        return f'put_{"bytes" if self.stored else self.dtype}'

    def write_functions(self, writer: Writer) -> None:
        """Vectors, their loads and stores, and what the expression calls."""
        if self.arch in HEADERS:
            writer.line(f'#include <{HEADERS[self.arch]}>')
        writer.lines += vector_type(self.lanes)
        write_functions(writer, self.epilogue, self.lanes)
        moves = MOVES[self.arch].items()
        for dtype, (text, _) in moves:
            kind, whole = C_TYPES[dtype], text if 'return' in text else f'return {text}'
            writer.line(f'{INLINE} row_v take_{dtype}(const {kind} *from) {{ {whole}; }}')
        for dtype, (_, text) in moves:
            kind = C_TYPES[dtype]
            writer.line(f'{INLINE} void put_{dtype}({kind} *to, row_v all) {{ {text}; }}')
        if self.stored:
            writer.lines += _bytes(self.stored, self.arch)
        writer.line()

    def write_block(
        self, writer: Writer, operands: tuple[Operand, ...], vector: str, first: int
    ) -> None:
        """C lines: a vector of sums from `acc`, through the expression, to `out`."""
        writer.open('')
        writer.line(f'const row_v value = take_f32(acc + {first});')
        for item in operands:
            text = f'take_{item.dtype}({item.name} + {first})'
            if not item.stride(vector):
                text = f'{widened(f"*{item.name}", item.dtype)} - zero_v'
            writer.line(f'const row_v {item.name}_v = {text};')
        writer.line(f'{self.put}(out + {first}, {self.epilogue.expression});')
        writer.close()


def _bytes(stored: Stored, arch: str) -> list[str]:
    """`put_bytes`: a vector of floats, quantised. Numbers are cut off as floats or as they are
    narrowed, so that what is beyond the limits saturates.
    """
    kind, inverse = C_TYPES[stored.dtype], number(1 / stored.scale, 'f32')
    body = {'aarch64': _neon_bytes, 'x86_64': _avx512_bytes}.get(arch, _plain_bytes)
    lines = body(stored, inverse).splitlines()
    return [f'{INLINE} void put_bytes({kind} *to, row_v all)', '{', *lines, '}']


def _neon_bytes(stored: Stored, inverse: str) -> str:
    letter, narrow = ('u', 'vqmovun_s16') if stored.dtype == 'u8' else ('s', 'vqmovn_s16')
    return f"""\
    const float32x4_t start = vdupq_n_f32({number(MAGIC + stored.zero, 'f32')});
    const float32x4_t made = vfmaq_n_f32(start, (float32x4_t)all, {inverse});
    const int32x4_t from = vdupq_n_s32({MAGIC_BITS});
    const int16x4_t whole = vqmovn_s32(vqsubq_s32(vreinterpretq_s32_f32(made), from));
    const uint32x2_t bytes = vreinterpret_u32_{letter}8({narrow}(vcombine_s16(whole, whole)));
    const uint32_t four = vget_lane_u32(bytes, 0);
    memcpy(to, &four, sizeof four);"""


def _avx512_bytes(stored: Stored, inverse: str) -> str:
    least, most = (number(limit - stored.zero, 'f32') for limit in limits(stored.dtype))
    return f"""\
    const __m512 made = _mm512_mul_ps((__m512)all, _mm512_set1_ps({inverse}));
    const __m512 cut = _mm512_min_ps(
        _mm512_max_ps(made, _mm512_set1_ps({least})), _mm512_set1_ps({most}));
    const __m512i whole = _mm512_add_epi32(
        _mm512_cvtps_epi32(cut), _mm512_set1_epi32({stored.zero}));
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(whole));"""


def _plain_bytes(stored: Stored, inverse: str) -> str:
    least, most = (number(limit - stored.zero, 'f32') for limit in limits(stored.dtype))
    return f"""\
    for (int i = 0; i < {MOST_LANES}; i++) {{
        const float made = all[i] * {inverse};
        const float cut = made > {least} ? (made < {most} ? made : {most}) : {least};
        to[i] = ({C_TYPES[stored.dtype]})((int)rintf(cut) + {stored.zero});
    }}"""


def half_value(group: Group, vector: str, isa: Isa) -> HalfValue | None:
    """[Group] -> [HalfValue]; None where operands are of other types, or do not lie along lanes."""
    made, stored = as_stored(group)
    found = plan_vector_epilogue(made, near=made.output.dtype == 'bf16')
    kinds = MOVES[isa.arch]
    strange = any(i.stride(vector) not in (0, 1) or i.dtype not in kinds for i in found.operands)
    if strange or made.output.dtype not in kinds:
        return None
    return HalfValue(found, made.output.dtype, isa.arch, stored=stored)
