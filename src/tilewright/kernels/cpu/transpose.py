"""Blocks of 4 x 4 results transposed on their way out, in C, with the epilogue between.

Goes in: a group, the dimension across vector lanes, the one along rows of the result. Comes out:
functions in C, and calls of them. The schemas whose vectors lie across channels store by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    broadcast,
    plan_vector_epilogue,
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


def quick_epilogue(group: Group, vector: str, lane: str) -> Quick | None:
    """The epilogue on vectors; None where it has functions that are not, or odd operands."""
    found = plan_vector_epilogue(group)
    straight = all(item.stride(lane) in (0, 1) for item in found.operands)
    return Quick(found, vector, lane) if straight and not found.helpers else None
