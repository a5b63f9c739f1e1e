"""Blocks of results transposed on their way out, in C, with the epilogue between.

Goes in: a group, the dimension across vector lanes, the one along rows of the result. Comes out:
functions in C, and calls of them. The schemas whose vectors lie across channels store by these.
Blocks are 4 x 4, or as wide as vectors are on AVX2 and AVX-512.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    broadcast,
    plan_vector_epilogue,
    renamed,
    vector_type,
    write_functions,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.group import Group

TRANSPOSE = """\
typedef float vec4 __attribute__((vector_size(16), aligned(4), may_alias));

/* rows[j][i] = from[i * step + j] for i, j < 4. */
static inline __attribute__((always_inline)) void turn4(const float *from, long step, vec4 *rows)
{
    const vec4 a = *(const vec4 *)from, b = *(const vec4 *)(from + step);
    const vec4 c = *(const vec4 *)(from + 2 * step), d = *(const vec4 *)(from + 3 * step);
    const vec4 ab_low = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const vec4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const vec4 cd_low = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const vec4 cd_high = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(ab_low, cd_low, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(ab_low, cd_low, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 6, 7);
}

/* rows[j][i] = from[j * step + i] for i, j < 4. */
static inline __attribute__((always_inline)) void take4(const float *from, long step, vec4 *rows)
{
    for (long j = 0; j < 4; j++)
        rows[j] = *(const vec4 *)(from + j * step);
}

/* to[j * pitch + i] = from[j * step + i] for j < 4 and i < count, count at most 4. */
static inline __attribute__((always_inline)) void copy4(const float *from, long step, float *to,
                                                        long pitch, long count)
{
    for (long j = 0; j < 4; j++)
        memcpy(to + j * pitch, from + j * step, 4 * (unsigned long)count);
}

/* to[j * pitch + i] = from[i * step + j] for j < 4 and i < count, count at most 4; reads 4 x 4. */
static inline __attribute__((always_inline)) void transpose4(const float *from, long step,
                                                             float *to, long pitch, long count)
{
    vec4 rows[4];
    turn4(from, step, rows);
    for (long j = 0; j < 4; j++)
        memcpy(to + j * pitch, &rows[j], 4 * (unsigned long)count);
}
"""

# Rows four apart come side by side as they are loaded, so that what is left is 4 x 4 in quarters.
_BESIDE = {
    8: """\
/* Four numbers of two rows that are four rows apart. */
static inline __attribute__((always_inline)) wide_v beside(const float *from, long step)
{
    const vec4 a = *(const vec4 *)from, b = *(const vec4 *)(from + 4 * step);
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
}

static inline __attribute__((always_inline)) wide_v take_wide(const float *from, long count)
{
    (void)count; /* blocks are whole */
    return *(const wide_v *)from;
}

static inline __attribute__((always_inline)) void put_wide(float *to, wide_v row, long count)
{
    (void)count;
    *(wide_v *)to = row;
}
""",
    16: """\
/* Four numbers of four rows that are four rows apart each. Insertions from memory take either unit
   for vectors; compilers make shuffles of them, which take one. */
static inline __attribute__((always_inline)) wide_v beside(const float *from, long step)
{
    const vec4 *a = (const vec4 *)from, *b = (const vec4 *)(from + 4 * step);
    const vec4 *c = (const vec4 *)(from + 8 * step), *d = (const vec4 *)(from + 12 * step);
    wide_v all;
#if defined(__AVX512F__)
    __asm__("vmovups %1, %x0" : "=v"(all) : "m"(*a));
    __asm__("vinsertf32x4 $1, %1, %0, %0" : "+v"(all) : "m"(*b));
    __asm__("vinsertf32x4 $2, %1, %0, %0" : "+v"(all) : "m"(*c));
    __asm__("vinsertf32x4 $3, %1, %0, %0" : "+v"(all) : "m"(*d));
#else
    for (int i = 0; i < 4; i++) {
        all[i] = (*a)[i];
        all[4 + i] = (*b)[i];
        all[8 + i] = (*c)[i];
        all[12 + i] = (*d)[i];
    }
#endif
    return all;
}

/* The first `count` numbers, and zeros. */
static inline __attribute__((always_inline)) wide_v take_wide(const float *from, long count)
{
    wide_v row = {0.0f};
#if defined(__AVX512F__)
    const unsigned short mask = (unsigned short)(0xffffu >> (16 - count));
    __asm__("vmovups (%1), %0 %{%2%}%{z%}" : "=v"(row) : "r"(from), "Yk"(mask) : "memory");
#else
    memcpy(&row, from, 4 * (unsigned long)count);
#endif
    return row;
}

static inline __attribute__((always_inline)) void put_wide(float *to, wide_v row, long count)
{
#if defined(__AVX512F__)
    const unsigned short mask = (unsigned short)(0xffffu >> (16 - count));
    __asm__ volatile("vmovups %0, (%1) %{%2%}" : : "v"(row), "r"(to), "Yk"(mask) : "memory");
#else
    memcpy(to, &row, 4 * (unsigned long)count);
#endif
}
""",
}


def _pairs(lanes: int, picks: tuple[int, ...]) -> str:
    """Numbers of two vectors by their place in each quarter: those from 4 on are the second's."""
    places = ((q + n % 4 + (lanes if n > 3 else 0)) for q in range(0, lanes, 4) for n in picks)
    return ', '.join(map(str, places))


def wide_transpose(lanes: int) -> list[str]:
    """C lines: `turn_wide`, blocks of lanes x lanes, and how their rows are read and written."""
    low, high = _pairs(lanes, (0, 4, 1, 5)), _pairs(lanes, (2, 6, 3, 7))
    first, second = _pairs(lanes, (0, 1, 4, 5)), _pairs(lanes, (2, 3, 6, 7))
    size = f'vector_size({4 * lanes}), aligned(4), may_alias'
    return [
        f'typedef float wide_v __attribute__(({size}));',
        '',
        *_BESIDE[lanes].splitlines(),
        '',
        f'/* rows[j][i] = from[i * step + j] for i, j < {lanes}. */',
        'static inline __attribute__((always_inline)) void turn_wide(const float *from, long step,',
        '                                                            wide_v *rows)',
        '{',
        f'    for (long q = 0; q < {lanes}; q += 4) {{',
        '        const float *const at = from + q;',
        '        const wide_v a = beside(at, step), b = beside(at + step, step);',
        '        const wide_v c = beside(at + 2 * step, step), d = beside(at + 3 * step, step);',
        f'        const wide_v ab_low = __builtin_shufflevector(a, b, {low});',
        f'        const wide_v ab_high = __builtin_shufflevector(a, b, {high});',
        f'        const wide_v cd_low = __builtin_shufflevector(c, d, {low});',
        f'        const wide_v cd_high = __builtin_shufflevector(c, d, {high});',
        f'        rows[q] = __builtin_shufflevector(ab_low, cd_low, {first});',
        f'        rows[q + 1] = __builtin_shufflevector(ab_low, cd_low, {second});',
        f'        rows[q + 2] = __builtin_shufflevector(ab_high, cd_high, {first});',
        f'        rows[q + 3] = __builtin_shufflevector(ab_high, cd_high, {second});',
        '    }',
        '}',
    ]


@dataclass(frozen=True, slots=True)
class Quick:
    """An epilogue on blocks of 4 x 4: lanes of dimension `vector`, pixels of dimension `lane`."""

    epilogue: VectorEpilogue
    vector: str
    lane: str

    @property
    def is_plain(self) -> bool:
        return self.epilogue.expression == 'value'

    def write(self, writer: Writer) -> None:
        """`finish4`: transpose4 with the epilogue between."""
        if self.is_plain:
            return
        writer.line('typedef vec4 row_v;')
        writer.line('static const row_v zero_v;')
        write_functions(writer, self.epilogue, 4)
        operands = ''.join(f', const float *{item.name}' for item in self.epilogue.operands)
        writer.line('/* transpose4, or copy4 of what is turned, through what follows the sums. */')
        writer.open(
            'static inline __attribute__((always_inline)) void finish4(int turned, '
            f'const float *from, long step, float *to, long pitch, long count{operands})'
        )
        writer.line('vec4 rows[4];')
        writer.line('(turned ? take4 : turn4)(from, step, rows);')
        writer.open('for (long j = 0; j < 4; j++)')
        writer.line('const vec4 value = rows[j];')
        for item in self.epilogue.operands:
            at = total([item.name, scaled('j', item.stride(self.vector))])
            if item.stride(self.lane) == 0:
                writer.line(f'const vec4 {item.name}_v = {broadcast(f"*({at})")};')
            else:
                writer.line(f'vec4 {item.name}_v = zero_v;')
                writer.line(f'memcpy(&{item.name}_v, {at}, 4 * (unsigned long)count);')
        writer.line(f'const vec4 result = {self.epilogue.expression};')
        writer.line('memcpy(to + j * pitch, &result, 4 * (unsigned long)count);')
        writer.close(2)
        writer.line()

    def call(self, block: str, places: Mapping[str, str], turned: bool = False) -> str:
        """The C call for a block; `places` are the operands' first elements in it.

        A block that is `turned` has been transposed before.
        """
        if self.is_plain:
            return f'{"copy4" if turned else "transpose4"}({block});'
        operands = ''.join(f', {places[item.name]}' for item in self.epilogue.operands)
        return f'finish4({int(turned)}, {block}{operands});'

    def write_wide(self, writer: Writer, lanes: int) -> None:
        """`finish_wide`: a block of lanes x lanes, of which `count` pixels are stored, through the
        epilogue. `wide_transpose` is there.
        """
        apart = Writer()
        if not self.is_plain:
            apart.lines += vector_type(lanes)
            write_functions(apart, self.epilogue, lanes)
        operands = ''.join(f', const float *{item.name}' for item in self.epilogue.operands)
        apart.open(
            'static inline __attribute__((always_inline)) void finish_wide(const float *from, '
            f'long step, float *to, long pitch, long count{operands})'
        )
        apart.line(f'wide_v rows[{lanes}];')
        apart.line('turn_wide(from, step, rows);')
        apart.open(f'for (long j = 0; j < {lanes}; j++)')
        apart.line('const wide_v value = rows[j];')
        for item in self.epilogue.operands:
            at = total([item.name, scaled('j', item.stride(self.vector))])
            along = item.stride(self.lane)
            text = f'take_wide({at}, count)' if along else broadcast(f'*({at})')
            apart.line(f'const wide_v {item.name}_v = {text};')
        apart.line(f'const wide_v result = {self.epilogue.expression};')
        apart.line('put_wide(to + j * pitch, result, count);')
        apart.close(2)
        apart.line()
        writer.lines += renamed(apart.lines, 'wide')

    def call_wide(self, block: str, places: Mapping[str, str]) -> str:
        """The C call for a block; `places` are the operands' first elements in it."""
        operands = ''.join(f', {places[item.name]}' for item in self.epilogue.operands)
        return f'finish_wide({block}{operands});'


def quick_epilogue(group: Group, vector: str, lane: str) -> Quick | None:
    """The epilogue on vectors; None where it has functions that are not, or odd operands."""
    found = plan_vector_epilogue(group)
    straight = all(item.stride(lane) in (0, 1) for item in found.operands)
    return Quick(found, vector, lane) if straight and not found.helpers else None
