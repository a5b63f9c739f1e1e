"""What follows a sum of whole numbers, on vectors: requantisation, activations, residuals.

Goes in: a group of integer products and the operands of its epilogue (kernels/cpu/pointwise.py).
Comes out: a `WholeValue`, a C expression over the vector `value` and vectors `e0_v`, `e1_v` .., and
the functions that it calls; None where a stage has other functions than these: such an epilogue is
computed number by number. Whole numbers of any width are lanes of i32 inside, f16 on NEON and bf16
on AVX-512 are floats; both are narrowed as they are stored.

A float becomes a small whole number by three operations: it is cut off first, which rounding to a
whole limit allows, and adding 1.5 * 2^23 leaves it, rounded half to even, in its lowest bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.kernels.cpu.expression import C_TYPES, number, widened
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.dtypes import DTYPES, computed, dtype_of, is_float, limits, operand_dtype
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr

MAGIC = 12582912  # 1.5 * 2^23: a float at which neighbours are 1 apart
MAGIC_BITS = 0x4B400000
ABOVE = 1 << 23  # floats from here on have a whole number in their lowest bits
NEAR_LIMITS = 32000  # what fits in 16 bits, with a zero point
SMALLEST_DIVISOR = 2.0**-60  # far from where products of floats lose bits
WHOLE = ('u8', 'i8', 'i16', 'u16', 'i32')  # what lanes of i32 hold
BITS = {64: 512, 32: 256}  # by bytes of an x86 vector; NEON's are in whole_neon.py
WIDENED = {('aarch64', 16): 'f16', ('x86_64', 64): 'bf16'}  # by bytes of a vector: what is widened


class _NoVectorError(Exception):
    """An expression that is left to scalars."""


@dataclass(frozen=True, slots=True)
class WholeValue:
    """A vector; `limits` where it is a float that is still to be cut off there, rounded and moved
    by `zero`, which makes it a number of `dtype`. Where there is a `divisor`, it is divided first,
    by an own function of sets whose division is slow. What is `near` its limits fits in 16 bits
    (kernels/cpu/bounded.py); `most` is the size that a float is known to have at most.
    """

    text: str
    dtype: str
    limits: tuple[int, int] | None = None
    zero: int = 0
    divisor: float = 0.0
    near: bool = False
    most: float = math.inf

    @property
    def in_fours(self) -> bool:
        """Whether four vectors may be narrowed to bytes at once (`write_four`)."""
        return self.limits is not None and self.dtype in ('u8', 'i8')

    def rounded(self, bits: int = 512) -> str:
        """A vector of floats as whole numbers, not yet moved nor cut off below: what `four` takes,
        whose narrowing does that.
        """
        assert self.limits is not None
        high = number(self.limits[1] - self.zero, 'f32')
        return f'_mm{bits}_cvtps_epi32((__m{bits})real_min({self.text}, every_real({high})))'

    def made(self, last: bool = False) -> str:
        """The vector in C; of the `last` one only the lowest bits are stored."""
        if self.limits is None:
            return self.text if not self.divisor else f'({self.text} / {self._divisor})'
        cut = self._cut()
        even = self.zero - self.zero % 2 if last else 0  # what is odd would turn halves around
        rest = self.zero - even - (0 if last else MAGIC_BITS)
        whole = f'(whole_v)({cut} + {number(MAGIC + even, "f32")})'
        return f'({whole} + {rest})' if rest else f'({whole})'

    def settled(self) -> str:
        """What is near its limits, rounded in the lowest 16 bits of lanes; not yet moved."""
        text = f'quotient({self.text}, {self._divisor})' if self.divisor else self.text
        return f'(whole_v)(settled({text}) + {number(MAGIC, "f32")})'

    def as_float(self, less: int) -> WholeValue:
        """The whole number minus another, as a float: what adding leaves, subtracting gives."""
        assert self.limits is not None
        rest = number(MAGIC + less - self.zero, 'f32')
        text = f'(({self._cut()} + {number(MAGIC, "f32")}) - {rest})'
        return WholeValue(text, 'f32', most=max(abs(limit - less) for limit in self.limits))

    def _cut(self) -> str:
        """The float between its limits, as it will be rounded. A dividend is cut off at the
        products of divisor and limits, whose quotients round to the limits themselves.
        """
        assert self.limits is not None
        by = np.float32(self.divisor or 1.0)
        low, high = (
            number(float(np.float32(bound - self.zero) * by), 'f32') for bound in self.limits
        )
        cut = f'real_min(real_max({self.text}, every_real({low})), every_real({high}))'
        return f'quotient({cut}, {self._divisor})' if self.divisor else cut

    @property
    def _divisor(self) -> str:
        return number(self.divisor, 'f32')


@dataclass(frozen=True, slots=True)
class _Reads:
    """What an expression reads, and whether a set divides by an instruction."""

    values: tuple[WholeValue, ...]
    divides: bool

    @property
    def dtypes(self) -> list[str]:
        return [value.dtype for value in self.values]


def is_usual(divisor: float) -> bool:
    """Whether a number may divide by products: they lose no bits far from the ends of floats."""
    return SMALLEST_DIVISOR <= divisor <= 1 / SMALLEST_DIVISOR


def vector_value(
    group: Group, operands: Sequence[Operand], isa: Isa, value: str = 'value'
) -> WholeValue | None:
    """[Group] -> [WholeValue]; `operands` are those of its epilogue, in their order. x86 divides
    by an instruction, others by the function `quotient`.
    """
    tensor, half = group.main.write.tensor, WIDENED.get((isa.arch, isa.vector_bytes), '')
    divides = isa.arch == 'x86_64'
    return following(group, tensor, WholeValue(value, 'i32'), operands, divides, half)


def following(
    group: Group, tensor: str, value: WholeValue, operands: Sequence[Operand],
    divides: bool = False, half: str = 'f16',
) -> WholeValue | None:  # fmt: skip
    """What the stages behind a tensor make of its value; `operands` are those that they read.

    Numbers of the dtype `half` are widened as they are loaded, and results narrowed.
    """

    def in_vectors(tensor: str) -> str:
        """The dtype that a tensor's numbers have in vectors."""
        dtype = group.tensor(tensor).dtype
        return 'f32' if dtype == half else dtype

    names = iter(item.name for item in operands)
    values, result = {tensor: value}, value
    writers = [group.main.write.tensor, *(stage.write.tensor for stage in group.epilogue)]
    try:
        for stage in group.epilogue[writers.index(tensor) :]:
            reads = [
                values.get(access.tensor)
                or WholeValue(f'{next(names)}_v', in_vectors(access.tensor))
                for access in stage.reads
            ]
            if any(r.dtype not in (*WHOLE, 'f32') for r in reads):
                return None
            given = _Reads(tuple(reads), divides)
            result = _expr(stage.expr, given, dtype_of(stage.expr, given.dtypes))
            if result.dtype != in_vectors(stage.write.tensor):
                return None
            values[stage.write.tensor] = result
            result = replace(result, dtype=group.tensor(stage.write.tensor).dtype)
    except _NoVectorError:
        return None
    return result


def pointwise_value(
    operands: Sequence[Operand], stages: Sequence[tuple[Expr, Sequence[int], str]], dtype: str
) -> WholeValue | None:
    """What stages without a sum make of vectors, to be stored as `dtype`, for sets without a
    division. A stage is its expression, what it reads and the dtype that it computes: numbers from
    0 on are operands, -1, -2 .. what the first stage made, the second ..
    """
    made: list[WholeValue] = []
    try:
        for expr, reads, kind in stages:
            values = tuple(
                made[-1 - n] if n < 0
                else WholeValue(f'{operands[n].name}_v', computed(operands[n].dtype))
                for n in reads
            )  # fmt: skip
            given = _Reads(values, False)
            found = _expr(expr, given, dtype_of(expr, given.dtypes))
            if found.dtype != kind:
                return None
            made.append(found)
    except _NoVectorError:
        return None
    return replace(made[-1], dtype=dtype) if made[-1].dtype == computed(dtype) else None


def _expr(expr: Expr, reads: _Reads, to: str) -> WholeValue:
    if expr.op == 'read':
        return reads.values[int(expr.value)]
    if expr.op in ('const', 'whole'):
        kind = 'real' if to == 'f32' else 'whole'
        if to not in (*WHOLE, 'f32'):
            raise _NoVectorError
        return WholeValue(
            f'every_{kind}({number(expr.value, "f32" if kind == "real" else "i32")})', to,
            most=abs(float(expr.value)),
        )  # fmt: skip
    dtypes = reads.dtypes
    if expr.op == 'cast':
        return _cast(expr, reads)
    within = operand_dtype(expr, dtypes)
    args = [_expr(a, reads, within) for a in expr.args]
    if len(args) != 2 or any(a.dtype != within for a in args):
        raise _NoVectorError
    if expr.op in ('max', 'min'):
        return _extreme(expr, args, within)
    sign = {'add': '+', 'sub': '-', 'mul': '*', 'div': '/'}.get(expr.op)
    if sign is None or within not in ('f32', 'i32') or (sign == '/' and within == 'i32'):
        raise _NoVectorError
    by = expr.args[1]
    if sign == '/' and not reads.divides and by.op == 'const' and is_usual(by.value):
        return WholeValue(args[0].made(), within, divisor=float(by.value))
    left, right = (a.made() for a in args)
    if within == 'f32':
        first, second = (a.most for a in args)
        most = {'+': first + second, '-': first + second, '*': first * second}.get(sign, math.inf)
        return WholeValue(f'({left} {sign} {right})', within, most=most)
    return WholeValue(f'(whole_v)((bits_v){left} {sign} (bits_v){right})', within)


def _extreme(expr: Expr, args: Sequence[WholeValue], dtype: str) -> WholeValue:
    """A maximum or minimum; with a number, of what is cut off anyway, another limit of that."""
    first, bound = args[0], expr.args[1]
    if first.limits and bound.op in ('whole', 'const'):
        pick = max if expr.op == 'max' else min
        return replace(first, limits=tuple(pick(limit, int(bound.value)) for limit in first.limits))
    kind = 'real' if dtype == 'f32' else 'whole'
    return WholeValue(f'{kind}_{expr.op}({first.made()}, {args[1].made()})', dtype)


def _cast(expr: Expr, reads: _Reads) -> WholeValue:
    inner, dtype = expr.args[0], expr.name
    given = dtype_of(inner, reads.dtypes)
    if given == 'f32' and dtype in ('u8', 'i8', 'u16', 'i16'):
        return _saturated(inner, reads, dtype)
    moved = _moved(inner, reads) if dtype == 'f32' else None
    if moved:
        return moved
    found = _expr(inner, reads, given)
    if found.dtype == dtype:
        return found
    if found.dtype in WHOLE and dtype == 'f32':
        return WholeValue(f'__builtin_convertvector({found.made()}, real_v)', 'f32')
    if found.dtype in WHOLE and dtype in WHOLE:
        (low, high), (least, most) = limits(found.dtype), limits(dtype)
        if least <= low and high <= most:
            return WholeValue(found.made(), dtype)
    raise _NoVectorError


def _moved(expr: Expr, reads: _Reads) -> WholeValue | None:
    """A small whole number, with or without a constant taken off, as a float without a conversion;
    None for others. What `made` adds to round is taken off again; bytes of an operand are read as
    floats from 2^23 on (`e0_r`). Both are exact.
    """
    less = 0
    if expr.op == 'sub' and dtype_of(expr, reads.dtypes) == 'i32' and _bare(expr.args[1]):
        less, expr = int(_inner(expr.args[1]).value), expr.args[0]
    expr = _inner(expr)
    if reads.divides or expr.op != 'read':
        return None
    value = reads.values[int(expr.value)]
    if value.limits:
        return value.as_float(less)
    if not value.text.endswith('_v') or value.dtype not in ('u8', 'i8'):
        return None
    low, high = (bound - less for bound in limits(value.dtype))
    first = number(ABOVE - low, 'f32')
    return WholeValue(
        f'({value.text[:-2]}_r - {first})', 'f32', most=float(max(abs(low), abs(high)))
    )


def _inner(expr: Expr) -> Expr:
    """What is widened to an i32."""
    return expr.args[0] if expr.op == 'cast' and expr.name == 'i32' else expr


def _bare(expr: Expr) -> bool:
    return _inner(expr).op == 'whole'


def _saturated(expr: Expr, reads: _Reads, dtype: str) -> WholeValue:
    """min(max(round(x) + zero, low), high), as ops/integer.py writes it."""
    bounds = []
    for op in ('min', 'max'):
        if expr.op != op or expr.args[1].op != 'const':
            raise _NoVectorError
        bounds.append(int(expr.args[1].value))
        expr = expr.args[0]
    zero = 0
    if expr.op == 'add' and expr.args[1].op == 'const':
        zero, expr = int(expr.args[1].value), expr.args[0]
    if expr.op != 'round' or dtype_of(expr, reads.dtypes) != 'f32':
        raise _NoVectorError
    found = _expr(expr.args[0], reads, 'f32')
    if found.dtype != 'f32':
        raise _NoVectorError
    most = found.most / (found.divisor or 1.0)
    return WholeValue(
        found.text, dtype, (bounds[1], bounds[0]), zero, found.divisor,
        near=not reads.divides and dtype in ('u8', 'i8') and most < NEAR_LIMITS,
    )  # fmt: skip


def write_vectors(writer: Writer, isa: str, dtypes: Sequence[str]) -> None:
    """Vectors, what expressions call, and for each dtype `take_*` and `put_*`: so many numbers from
    and to memory, all lanes of a vector or the first few.
    """
    bytes_ = ISAS[isa].vector_bytes
    call, size = f'_mm{BITS[bytes_]}', f'vector_size({bytes_}), aligned(4), may_alias'
    writer.line('#include <immintrin.h>')
    for name, kind in (('real_v', 'float'), ('whole_v', 'int32_t'), ('bits_v', 'uint32_t')):
        writer.line(f'typedef {kind} {name} __attribute__(({size}));')
    for kind, plain, suffix, of in (
        ('real', 'float', 'ps', ''),
        ('whole', 'int32_t', 'epi32', 'i'),
    ):
        writer.line(f'{INLINE} {kind}_v every_{kind}({plain} x) {{ return x - ({kind}_v){{0}}; }}')
        inner = f'__m{BITS[bytes_]}{of}'
        for op in ('max', 'min'):
            text = f'({kind}_v){call}_{op}_{suffix}(({inner})a, ({inner})b)'
            writer.line(
                f'{INLINE} {kind}_v {kind}_{op}({kind}_v a, {kind}_v b) {{ return {text}; }}'
            )
    for dtype in dict.fromkeys(dtypes):
        _write_memory(writer, dtype, bytes_)
    writer.line()


def write_four(writer: Writer, value: WholeValue) -> None:
    """`four`: what `rounded` makes of four vectors as 64 bytes. Every 16 of them are four of a
    vector, then four of the next.
    """
    writer.open(f'{INLINE} __m512i four(__m512i a, __m512i b, __m512i c, __m512i d)')
    writer.line('__m512i low = _mm512_packs_epi32(a, b), high = _mm512_packs_epi32(c, d);')
    if value.zero:
        writer.line(f'low = _mm512_adds_epi16(low, _mm512_set1_epi16({value.zero}));')
        writer.line(f'high = _mm512_adds_epi16(high, _mm512_set1_epi16({value.zero}));')
    writer.line(f'return {narrowed(value, 512)};')
    writer.close()
    writer.line()


def narrowed(value: WholeValue, bits: int) -> str:
    """`low` and `high`, 16-bit numbers that were moved by the zero point, as bytes."""
    assert value.limits is not None
    kind, least = ('epu8', 0) if value.dtype == 'u8' else ('epi8', -128)
    call, pack = f'_mm{bits}', 'packus' if value.dtype == 'u8' else 'packs'
    text = f'{call}_{pack}_epi16(low, high)'
    if value.limits[0] > least:
        text = f'{call}_max_{kind}({text}, {call}_set1_epi8({value.limits[0]}))'
    return text


def _write_memory(writer: Writer, dtype: str, bytes_: int) -> None:
    kind, wide = C_TYPES[dtype], 'real_v' if is_float(dtype) else 'whole_v'
    texts = _masked(dtype) if bytes_ == 64 else _copied(dtype)
    for head, lines in zip(
        (f'{wide} take_{dtype}(const {kind} *from, ', f'void put_{dtype}({kind} *to, {wide} all, '),
        texts, strict=True,
    ):  # fmt: skip
        writer.open(f'{INLINE} {head}unsigned long count)')
        for line in lines:
            writer.line(line)
        writer.close()


def _masked(dtype: str) -> tuple[list[str], list[str]]:
    """`take` and `put` of AVX-512: what is left of a vector by masks."""
    width, mask = 8 * DTYPES[dtype], '(1u << count) - 1'
    if dtype in ('f32', 'i32'):
        suffix, wide = ('ps', 'real_v') if dtype == 'f32' else ('epi32', 'whole_v')
        some = f'({wide})_mm512_maskz_loadu_{suffix}({mask}, from)'
        inner = f'(__m512{"" if dtype == "f32" else "i"})all'
        return (
            [f'return count == 16 ? *(const {wide} *)from : {some};'],
            ['if (count == 16)', f'    *({wide} *)to = all;', 'else',
             f'    _mm512_mask_storeu_{suffix}(to, {mask}, {inner});'],
        )  # fmt: skip
    if dtype == 'bf16':
        return _BF16
    call = '_mm' if width == 8 else '_mm256'
    widen = f'(whole_v)_mm512_cvtep{"u" if dtype[0] == "u" else "i"}{width}_epi32'
    return (
        [f'return {widen}({call}_maskz_loadu_epi{width}({mask}, from));'],
        [f'_mm512_mask_cvtepi32_storeu_epi{width}(to, {mask}, (__m512i)all);'],
    )


# Rounded as by `float_bf16`, which keeps NaN: plain AVX-512 has no instruction for it.
_BF16 = (
    ['const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((1u << count) - 1, from));',
     'return (real_v)_mm512_slli_epi32(x, 16);'],
    ['const __m512i bits = (__m512i)all, one = _mm512_set1_epi32(1);',
     'const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);',
     'const __m512i more = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));',
     'const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, more), 16);',
     'const __mmask16 nan = _mm512_cmp_ps_mask((__m512)all, (__m512)all, _CMP_UNORD_Q);',
     'const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));',
     'const __m512i made = _mm512_mask_mov_epi32(rounded, nan, quiet);',
     '_mm512_mask_cvtepi32_storeu_epi16(to, (1u << count) - 1, made);'],
)  # fmt: skip

# Bytes or words of eight lanes of 32 bits side by side: AVX2 has no instruction that narrows.
_NARROW = {
    8: '_mm_packus_epi16(_mm_packus_epi32({low}, {high}), _mm_setzero_si128())',
    16: '_mm_packus_epi32({low}, {high})',
}


def _copied(dtype: str) -> tuple[list[str], list[str]]:
    """`take` and `put` of AVX2: what is left of a vector by copies of so many bytes. Whole vectors
    of 32 bits are not copied: gcc does that in halves, which the load behind them waits for.
    """
    width = 8 * DTYPES[dtype]
    if width == 32:
        narrow = 'real_v' if dtype == 'f32' else 'whole_v'
        return (
            ['if (count == 8)', f'    return *(const {narrow} *)from;', f'{narrow} x = {{0}};',
             'memcpy(&x, from, count * sizeof(*from));', 'return x;'],
            ['if (count == 8)', f'    *({narrow} *)to = all;', 'else',
             '    memcpy(to, &all, count * sizeof(*to));'],
        )  # fmt: skip
    taken = f'(whole_v)_mm256_cvtep{"u" if dtype[0] == "u" else "i"}{width}_epi32(x)'
    low, high = (
        f'_mm_and_si128(_mm256_extracti128_si256((__m256i)all, {half}), '
        f'_mm_set1_epi32({(1 << width) - 1}))'
        for half in (0, 1)
    )
    put = _NARROW[width].format(low=low, high=high)
    return (
        ['__m128i x = {0};', 'memcpy(&x, from, count * sizeof(*from));', f'return {taken};'],
        [f'const __m128i x = {put};', 'memcpy(to, &x, count * sizeof(*to));'],
    )


def vector_operands(operands: Sequence[Operand], vector: str) -> list[str]:
    """C lines: the operands of an expression as vectors `e0_v` .., from pointers `e0` ..; a stride
    of 0 along lanes is one number for all of them.
    """
    lines = []
    for item in operands:
        kind = 'real' if is_float(item.dtype) else 'whole'
        read = f'take_{item.dtype}({item.name}, count)'
        every = f'every_{kind}({widened(f"*{item.name}", item.dtype)})'
        text = read if item.stride(vector) else every
        lines.append(f'const {kind}_v {item.name}_v = {text};')
    return lines
