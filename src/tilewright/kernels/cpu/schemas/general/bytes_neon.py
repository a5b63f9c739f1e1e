"""Loops between floats and bytes on NEON: sixteen numbers at once.

    for blocks of 16:   e0_0 .. e0_3 = four vectors of each operand      kernels/cpu/whole_neon.py
                        16 results = finish(e0_0, ..) ..
    what is left:       number by number

Goes in: a piece without a sum that reads or writes whole numbers, such as QuantizeLinear of f16.
Comes out: the vectors of its expression, and C around a loop. Compilers (gcc 12) divide, round and
narrow such numbers one by one, which takes ten times as long on a Neoverse-N1.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.schemas.general.plan import Loop, Piece, Place
from tilewright.kernels.cpu.whole_neon import (
    AT_ONCE,
    LANES,
    read_lines,
    store_lines,
    write_neon_vectors,
)
from tilewright.kernels.cpu.whole_vectors import WholeValue, pointwise_value
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import ISAS
from tilewright.ops.dtypes import is_float

RUN = LANES * AT_ONCE  # numbers of a block
KINDS = ('f32', 'f16', 'u8', 'i8', 'i32')


@dataclass(frozen=True, slots=True)
class ByteRow:
    """What a piece makes of vectors; `places` are those of the operands, in the same order."""

    value: WholeValue
    operands: tuple[Operand, ...]
    places: tuple[Place, ...]
    write: Place
    along: str

    def write_functions(self, writer: Writer) -> None:
        write_neon_vectors(writer, self.value, self.operands, sums='')

    def write_block(self, writer: Writer) -> None:
        """C lines: the `RUN` numbers from the loop's iterator on."""
        vectors = list(range(AT_ONCE))
        for item, place in zip(self.operands, self.places, strict=True):
            source = f'({place.pointer} + {place.index({}) or 0})'
            for line in read_lines(item, source, self.along, vectors, LANES):
                writer.line(line)
        to = f'({self.write.pointer} + {self.write.index({}) or 0})'
        for line in store_lines(self.value, self.operands, dict.fromkeys(vectors, ''), to, LANES):
            writer.line(line)


def byte_row(piece: Piece, strip: Loop, isa: str) -> ByteRow | None:
    """[Piece] -> [ByteRow] on NEON; None where it has other types, or other functions than these,
    or where neighbours along the strip do not lie side by side.
    """
    if ISAS[isa].arch != 'aarch64' or piece.stage.combiner or strip.reduces or strip.size < RUN:
        return None
    places = piece.places
    if all(is_float(place.dtype) for place in places):
        return None
    along = strip.name
    if any(
        place.dtype not in KINDS or place.tests or place.tables or place.lookups
        or place.strides.get(along, 0) not in (0, 1)
        for place in places
    ) or piece.write.strides.get(along, 0) != 1:  # fmt: skip
        return None
    if piece.iterators or any(after.iterators for after in piece.after):
        return None
    found = places[:-1]
    operands = tuple(
        Operand(f'e{n}', place.tensor, ((along, place.strides.get(along, 0)),), 0, place.dtype)
        for n, place in enumerate(found)
    )
    first = len(piece.reads)
    stages = [(piece.stage.expr, tuple(range(first)), piece.dtype)]
    for after in piece.after:
        reads: list[int] = []
        for read in after.reads:
            if isinstance(read, int):
                reads.append(-1 - read)
            else:
                reads.append(first)
                first += 1
        stages.append((after.expr, tuple(reads), after.dtype))
    value = pointwise_value(operands, stages, piece.write.dtype)
    return ByteRow(value, operands, found, piece.write, along) if value else None
