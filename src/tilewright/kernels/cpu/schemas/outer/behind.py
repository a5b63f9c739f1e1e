"""What follows the sums of a register tile, computed while the next one is multiplied.

Goes in: a plan of tiles (AMX) whose sums are whole in one call. Comes out: C: `pending`, the sums
of a tile and where what follows them reads and writes, and `finish`, which takes some of its pixels
through it. Micro-kernels call that in every step: products and vectors have units of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.half_vectors import HalfValue
from tilewright.kernels.cpu.schemas.outer.store import (
    stores_fours,
    write_half_vectors,
    write_whole_vectors,
)
from tilewright.kernels.cpu.writer import Writer

if TYPE_CHECKING:
    from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan


def write_behind(writer: Writer, p: OuterPlan) -> None:
    """`pending` and `finish`."""
    vector, (row,), items = p.contraction.vector, p.contraction.pixels, p.epilogue.operands
    vectors, lanes = p.panels.vectors, p.panels.lanes
    assert p.whole is not None
    if isinstance(p.whole, HalfValue):
        write_half_vectors(writer, p, p.whole)
    else:
        write_whole_vectors(writer, p, p.whole)
    writer.open('typedef struct')
    writer.line('const float *acc;')
    writer.line(f'{p.result} *out;')
    for item in items:
        writer.line(f'const {C_TYPES[item.dtype]} *{item.name};')
    writer.line('long left;')
    writer.depth -= 1
    writer.lines += ['} pending;', '']
    # Bytes that are stored may be anything, the pending sums as well: a copy stays in registers.
    writer.open(f'{INLINE} void finish(pending *f, long pixels)')
    writer.line('pending now = *f;')
    writer.line('const long count = pixels < now.left ? pixels : now.left;')
    writer.open('for (long i = 0; i < count; i++)')
    if stores_fours(vectors, lanes, p.whole):
        given = ''.join(f', now.{i.name}' for i in items)
        writer.line(f'store_{vectors}(now.acc, now.out, {lanes}{given});')
    else:
        for first in range(0, vectors * lanes, lanes):
            given = ''.join(f', now.{i.name} + {first * i.stride(vector)}' for i in items)
            writer.line(f'store_vector(now.acc + {first}, now.out + {first}, {lanes}{given});')
    steps = [('acc', vectors * lanes), ('out', p.out_strides.get(row, 0))]
    for name, step in (*steps, *((i.name, i.stride(row)) for i in items)):
        if step:
            writer.line(f'now.{name} += {step};')
    writer.close()
    writer.line('now.left -= count;')
    writer.line('*f = now;')
    writer.close()
    writer.line()
