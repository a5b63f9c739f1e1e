"""Loops over neighbours that are stored as f16: eight are widened, computed and narrowed at once.

    for blocks of 8:   half_0_[i] = float of 8 halves ..      a load and two conversions
                       one loop over 8 floats, a vector       compilers do that
                       8 halves = made_[i]                    two conversions and a store
    what is left:      number by number

Goes in: elements of f16 that a loop reads and writes. Comes out: C around that loop. Compilers
convert single numbers only (gcc 12 does, whatever it may use), which takes several times as long.
Arithmetic is that of float32 on every machine: nothing here needs f16 arithmetic.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.kernels.cpu.schemas.general.plan import Piece, Place
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.dtypes import HALVES, NUMPY
from tilewright.ops.stage import read

RUN = 8  # numbers of a block
BITS = 'i16'

FUNCTIONS = f"""\
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif
static inline __attribute__((always_inline)) void widen_f16(float *to, const _Float16 *from)
{{
#ifdef __ARM_NEON
    const float16x8_t all = vld1q_f16((const float16_t *)from);
    vst1q_f32(to, vcvt_f32_f16(vget_low_f16(all)));
    vst1q_f32(to + 4, vcvt_high_f32_f16(all));
#else
    for (int i = 0; i < {RUN}; i++)
        to[i] = (float)from[i];
#endif
}}
static inline __attribute__((always_inline)) void narrow_f16(_Float16 *to, const float *from)
{{
#ifdef __ARM_NEON
    const float16x4_t low = vcvt_f16_f32(vld1q_f32(from));
    vst1q_f16((float16_t *)to, vcvt_high_f16_f32(low, vld1q_f32(from + 4)));
#else
    for (int i = 0; i < {RUN}; i++)
        to[i] = (_Float16)from[i];
#endif
}}
"""


def as_bits(piece: Piece) -> Piece:
    """A piece that only moves halves as one of 16-bit numbers: nothing is converted on the way."""
    stage = piece.stage
    places = (*piece.reads, piece.write)
    moves = stage.combiner is None and stage.expr == read(0) and not piece.after
    kinds = {place.dtype for place in places}
    if not moves or len(kinds) > 1 or not kinds <= set(HALVES):
        return piece
    beyond = float(np.asarray(stage.pad_value, NUMPY[kinds.pop()]).view(np.int16))
    first, write = (replace(place, dtype=BITS) for place in places)
    return replace(
        piece, stage=replace(stage, pad_value=beyond), dtype=BITS, reads=(first,), write=write
    )


def runs(place: Place, along: str) -> bool:
    """Whether neighbours along a loop are neighbouring halves, all of them inside or none."""
    return (
        place.dtype == 'f16'
        and place.strides.get(along, 0) == 1
        and not place.lookups
        and along not in place.names()
    )


class Block:
    """The arrays of one loop: what is read is widened in front of it, what is written behind."""

    def __init__(self) -> None:
        self._reads: dict[tuple[str, str, str], str] = {}
        self._write = ''

    def read(self, place: Place, beyond: str) -> str:
        """A lane of what is read; `beyond` is the number outside of the tensor."""
        tests = ' && '.join(dict.fromkeys(t.text() for t in place.tests))
        key = f'{place.pointer} + {place.index({})}', tests, beyond
        name = self._reads.setdefault(key, f'half_{len(self._reads)}_')
        return f'{name}[i_]'

    def write(self, place: Place) -> str:
        """A lane of what is written."""
        self._write = f'{place.pointer} + {place.index({})}'
        return 'made_[i_]'

    def before(self, writer: Writer) -> None:
        for (source, tests, beyond), name in self._reads.items():
            writer.line(f'float {name}[{RUN}];')
            if not tests:
                writer.line(f'widen_f16({name}, {source});')
                continue
            writer.line(f'if ({tests})')
            writer.line(f'    widen_f16({name}, {source});')
            writer.line('else')
            writer.line(f'    for (int i_ = 0; i_ < {RUN}; i_++)')
            writer.line(f'        {name}[i_] = {beyond};')
        if self._write:
            writer.line(f'float made_[{RUN}];')

    def after(self, writer: Writer) -> None:
        if self._write:
            writer.line(f'narrow_f16({self._write}, made_);')
