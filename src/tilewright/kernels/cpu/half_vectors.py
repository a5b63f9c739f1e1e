"""What follows a sum of f16 products, on vectors of float32: bias, activations, residuals.

Goes in: a group. Comes out: a `HalfValue`: the expression of its epilogue over vectors of four
floats (kernels/cpu/vector_epilogue.py), and what is loaded and stored around it. Operands of f16
are widened as they are loaded, and results are narrowed, rounded once, as they are stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    plan_vector_epilogue,
    vector_type,
    write_functions,
)
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.group import Group

LANES = 4  # floats of a vector
KINDS = ('f32', 'f16')  # what is loaded and stored


@dataclass(frozen=True, slots=True)
class HalfValue:
    """An epilogue on vectors, and the dtype that its results are stored in."""

    epilogue: VectorEpilogue
    dtype: str
    in_fours: bool = False

    def write_functions(self, writer: Writer) -> None:
        """Vectors, their loads and stores, and what the expression calls."""
        writer.line('#include <arm_neon.h>')
        writer.lines += vector_type(LANES)
        write_functions(writer, self.epilogue, LANES)
        loads = (
            ('f32', '(row_v)vld1q_f32(from)'),
            ('f16', '(row_v)vcvt_f32_f16(vld1_f16((const float16_t *)from))'),
        )
        for dtype, text in loads:
            kind = C_TYPES[dtype]
            writer.line(f'{INLINE} row_v take_{dtype}(const {kind} *from) {{ return {text}; }}')
        stores = (
            ('f32', 'vst1q_f32(to, (float32x4_t)all)'),
            ('f16', 'vst1_f16((float16_t *)to, vcvt_f16_f32((float32x4_t)all))'),
        )
        for dtype, text in stores:
            kind = C_TYPES[dtype]
            writer.line(f'{INLINE} void put_{dtype}({kind} *to, row_v all) {{ {text}; }}')
        writer.line()

    def write_block(
        self, writer: Writer, operands: tuple[Operand, ...], vector: str, first: int
    ) -> None:
        """C lines: four sums from `acc`, through the expression, to `out`."""
        writer.open('')
        writer.line(f'const row_v value = take_f32(acc + {first});')
        for item in operands:
            text = f'take_{item.dtype}({item.name} + {first})'
            if not item.stride(vector):
                text = f'(float)*{item.name} - zero_v'
            writer.line(f'const row_v {item.name}_v = {text};')
        writer.line(f'put_{self.dtype}(out + {first}, {self.epilogue.expression});')
        writer.close()


def half_value(group: Group, vector: str) -> HalfValue | None:
    """[Group] -> [HalfValue]; None where operands are of other types, or do not lie along lanes."""
    found = plan_vector_epilogue(group)
    strange = any(i.stride(vector) not in (0, 1) or i.dtype not in KINDS for i in found.operands)
    if strange or group.output.dtype not in KINDS:
        return None
    return HalfValue(found, group.output.dtype)
