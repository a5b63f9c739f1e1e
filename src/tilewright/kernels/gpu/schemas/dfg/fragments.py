"""Constant operands of matrix instructions, packed as a warp reads them.

Goes in: a segment whose products are matrix instructions. Comes out: a `Fragments` of its constant
operand: [batch][piece][16 columns][step of 8 depths][lane][4], so that a lane has its part of a
16 x 8 operand (PTX ISA, mma.m16n8k8) in one load of 16 bytes, and a warp 512 bytes in a row:

    lane 4 g + t, element q:   column g + 8 (q % 2),   depth t + 4 (q / 2)

Depths walk the window outside and the chunked reduction inside, in eights, for each piece of it
that is in shared memory at once. Where channels are no multiple of eight all reductions are walked
as one (`joint`). What lies behind the last column or depth is zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.kernels.cpu.writer import total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.schemas.dfg.graph import Load
from tilewright.ops.group import Tensor
from tilewright.ops.stage import Affine

COLUMNS, DEPTHS = 16, 8  # of the operand of one matrix instruction
WORDS = COLUMNS * DEPTHS
PER_COLUMN = WORDS // COLUMNS  # floats of one column and step


@dataclass(frozen=True, slots=True)
class Depths:
    """How the reductions of a sum are walked by steps of eight.

    over     (reduction, size), the chunked one last
    chunk    the chunked reduction, '' where all are walked as one
    depth    points of it in one of `chunks` pieces
    """

    over: tuple[tuple[str, int], ...]
    chunk: str
    depth: int
    chunks: int

    @property
    def joint(self) -> bool:
        return not self.chunk

    @property
    def window(self) -> tuple[tuple[str, int], ...]:
        return self.over[:-1]

    @property
    def points(self) -> int:
        return math.prod(size for _, size in self.over)

    @property
    def steps(self) -> int:
        """Of one piece."""
        if self.joint:
            return -(-self.points // DEPTHS)
        return math.prod(size for _, size in self.window) * (self.depth // DEPTHS)


@dataclass(frozen=True, slots=True)
class Fragments:
    """The packed operand: its tensor has the dimensions of `batch`, pieces, columns in whole
    sixteens, and what belongs to one of these.
    """

    tensor: Tensor
    load: Load
    batch: tuple[tuple[str, int], ...]
    column: str
    columns: int
    depths: Depths

    @property
    def index(self) -> tuple[Affine, ...]:
        """Where the columns of a point begin."""
        zero = Affine(())
        own = Affine(((self.column, 1),))
        return (*(Affine(((d, 1),)) for d, _ in self.batch), zero, own, zero)

    @property
    def piece_axis(self) -> int:
        return len(self.batch)


def fragments_of(
    name: str, load: Load, batch: tuple[tuple[str, int], ...], column: str, columns: int,
    width: int, depths: Depths,
) -> Fragments:  # fmt: skip
    """The operand `load`, whose `columns` of the stage are filled up to `width`."""
    whole = -(-width // COLUMNS) * COLUMNS
    shape = (*(size for _, size in batch), depths.chunks, whole, depths.steps * PER_COLUMN)
    dims = (*(d for d, _ in batch), 'piece', column, 'word')
    return Fragments(Tensor(name, dims, shape, 'constant'), load, batch, column, columns, depths)


def packed_lines(item: Fragments, source: Tensor) -> list[str]:
    """Element `flat` of the packed operand, from where `source` has it."""
    whole = item.tensor.shape[-2]
    sizes = [*item.batch, ('part', item.depths.chunks), ('tile', whole // COLUMNS),
             ('step', item.depths.steps), ('lane', 32), ('q', 4)]  # fmt: skip
    at = total([
        _scaled(e, stride) for e, stride in zip(item.load.index, source.strides, strict=True)
    ])  # fmt: skip
    lines = [
        *pieces.decode('flat', sizes),
        f'const int {item.column} = tile * {COLUMNS} + lane / 4 + q % 2 * 8;',
        'const int inner = lane % 4 + q / 2 * 4;',
        *depth_lines(item.depths),
    ]
    tests = [f'{item.column} < {item.columns}', behind_test(item.depths)]
    there = ' && '.join(test for test in tests if test)
    return [*lines, f'{item.tensor.name}[flat] = {there} ? {source.name}[{at}] : 0.0f;']


def _scaled(index: Affine, stride: int) -> str:
    text = pieces.index(index)
    return '' if text == '0' or not stride else f'({text}) * {stride}'


def depth_lines(d: Depths) -> list[str]:
    """Iterators of depth `inner` in step `step` of piece `part`."""
    if d.joint:
        return [f'const int point = step * {DEPTHS} + inner;', *pieces.decode('point', d.over)]
    each = d.depth // DEPTHS
    return [
        *(pieces.decode(f'(step / {each})', d.window) if d.window else []),
        f'const int {d.chunk} = part * {d.depth} + step % {each} * {DEPTHS} + inner;',
    ]


def behind_test(d: Depths) -> str:
    """Whether the depth of `depth_lines` is one of the sum."""
    if d.joint:
        return f'point < {d.points}' if d.points % DEPTHS else ''
    size = d.over[-1][1]
    return f'{d.chunk} < {size}' if size < d.depth * d.chunks else ''
