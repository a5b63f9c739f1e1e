"""The tiled schema: a sum of products as a blocked matrix product whose left side is never stored.

Goes in: a group whose main stage is a sum of products, and a schedule. Comes out: a module. The
roles of dimensions are those of kernels/cpu/contraction.py; for a convolution

    columns   k                       packed ahead: [batch][window and channels][k], zero behind K;
                                      where they are computed, in every call, or read as they are
    rows      n h w, flattened        gathered; padding becomes zeros in shared memory
    depth     r s (outer), c (inner)  in pieces of `kb`, through `stages` buffers of shared memory

so that any stride, dilation, padding, batch and group count are the same kernel, and a 1x1
convolution or a fully connected layer is one with an empty window. Element-wise stages before the
products (ops/front.py) are applied to the image in shared memory, by the threads that copied it.
Decisions of a schedule:

    bk bp      columns and rows of a block             tk tp    of a thread; of a warp for matrix
                                                                instructions
    kb stages  depth of a piece, pieces in flight      split    blocks that share a tile's depth
    joint      1: pieces run across window points (few channels), 0: each is inside one
    fresh      1: matrix units begin every eight depths at zero, and their sums are added in fp32;
               0 where it is not said

The intrinsic is `fma`, or `mma_tf32x3`: matrix instructions on operands that are cut into a high
and a low part of 11 bits each. Of the four products the low by low one is left out, which is 2^-22
of a product; the units cut off sums instead of rounding them, so that errors of deep sums reach
1e-5 of the largest result, where multiply-adds in fp32 have 1e-6, and TF32 alone 3e-4.

Blocks that share a tile leave partial sums in a workspace; the last one to arrive adds them up in a
fixed order, applies the epilogue and stores: no zeroing, no atomics on data, the same bits every
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Module
from tilewright.kernels.gpu.product import module_of, pack_kernel, workspace
from tilewright.kernels.gpu.schemas.tiled.copies import (
    changed,
    copies,
    depth_lines,
    front_arrays,
    loader_lines,
)
from tilewright.kernels.gpu.schemas.tiled.plan import TiledPlan, plan
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

NAME, PACK = 'tiled', 'tiled_pack'


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    sums = workspace(p.split, p.tiles, p.bk * p.bp)
    main = [main_kernel(p, sums)]
    if p.direct:
        return module_of(p, sums, None, main, p.front)
    return module_of(p, [p.packed, *sums], _pack_kernel(p), main, p.front)


def _pack_kernel(p: TiledPlan) -> Kernel:
    """The operand of columns into [batch][depth][columns], zeros where there is nothing."""
    c, packed = p.contraction, p.packed
    loop = c.loop or '_none'
    sizes = zip(('g_', 'e', c.vector), packed.sizes, strict=True)
    body = [
        *pieces.decode('flat', list(sizes)),
        *(pieces.decode('g_', p.batch) if p.batch else []),
        *depth_lines(p, 'e', loop),
        f'const bool there = {c.vector} < {p.columns} && {loop} < {p.channels} && '
        f'window < {p.window_points};',
        f'@{packed.name}[g=g_, e=e, k={c.vector}] = there ? {pieces.element(p.group, c.b)} : 0.0f;',
    ]
    return pack_kernel(PACK, p, replace(packed, written=True), body)


def main_kernel(p: TiledPlan, sums: Sequence[Array]) -> Kernel:
    stage = p.group.main
    body = [
        *_place(p),
        *loader_lines(p),
        *_accumulate(p),
        *(pieces.joined(*p.own, p.threads, p.tiles, p.split) if p.split > 1 else []),
        *_store(p),
    ]
    args = [
        pieces.argument(p.group.tensor(p.image)),
        p.packed,
        *front_arrays(p),
        *pieces.epilogue_arrays(p.group, p.epilogue),
        *sums,
        pieces.argument(p.group.output, written=True),
    ]
    wide, long = p.pitch
    shared = [('a_tile', p.stages * p.kb * long), ('b_tile', p.stages * p.kb * wide)]
    if p.split > 1:
        shared.append(('arrived', 4))
    return Kernel(
        f'tiled_{stage.name}',
        tuple(args),
        '\n'.join(body),
        (p.row_tiles, p.column_tiles * p.groups, p.split),
        p.threads,
        tuple(shared),
        helpers(p.group, p.epilogue, p.front),
        frozenset((['device_fence'] if p.split > 1 else []) + (['mma_tf32'] if p.matrix else [])),
    )


def _place(p: TiledPlan) -> list[str]:
    """Which tile this block owns, and which rows and columns of it this thread."""
    tiles = p.column_tiles
    lines = [
        f'const int first_row = BLOCK_X * {p.bp};',
        f'const int group = {f"BLOCK_Y / {tiles}" if p.groups > 1 else "0"};',
        f'const int first_column = (BLOCK_Y - group * {tiles}) * {p.bk};',
        *_own_place(p),
    ]
    if p.split > 1:
        share = -(-p.iterations // p.split)
        lines += [
            f'const int begin = BLOCK_Z * {share};',
            f'const int end = begin + {share} < {p.iterations} ? begin + {share} : {p.iterations};',
            f'const int tile = BLOCK_Y * {p.row_tiles} + BLOCK_X;',
        ]
    else:
        lines.append(f'const int begin = 0, end = {p.iterations};')
    return [*lines, *(pieces.decode('group', p.batch) if p.batch else [])]


def _own_place(p: TiledPlan) -> list[str]:
    """Where the sums of this thread begin in the block's tile."""
    across = p.bp // p.tp
    if not p.matrix:
        return [
            f'const int my_rows = THREAD % {across} * 4;',
            f'const int my_columns = THREAD / {across} * 4;',
        ]
    return [
        f'const int lane = THREAD % {WARP}, warp = THREAD / {WARP};',
        f'const int my_rows = warp % {across} * {p.tp} + lane % 4 * 2;',
        f'const int my_columns = warp / {across} * {p.tk} + lane / 4;',
    ]


def _accumulate(p: TiledPlan) -> list[str]:
    """The loop over pieces: copy one that is needed later, multiply the one that is here."""
    ahead = p.stages - 1
    columns, rows = p.own
    arrived, alone = [f'COPY_WAIT({max(ahead - 1, 0)});'], ['COPY_WAIT(0);']
    if p.front and ahead:
        arrived = ['if (now >= begin) {', *pieces.indented(changed(p, p.front, arrived)), '}']
    elif p.front:
        alone = ['{', *pieces.indented(changed(p, p.front, alone)), '}']
    return [
        f'float acc[{columns}][{rows}];',
        *pieces.cleared(columns, rows),
        *pieces.pipelined(
            ahead,
            [*arrived, 'BARRIER;'],
            copies(p),
            [*alone, 'BARRIER;'],
            (_matrix if p.matrix else _multiply)(p),
        ),
    ]


def _multiply(p: TiledPlan) -> list[str]:
    """One piece: a thread's rows and columns from shared memory, fours at a time."""
    slot = pieces.slot('now', p.stages)
    lines = [
        f'const SHARED float *const a = a_tile + {slot} * {p.kb * p.pitch[1]} + my_rows;',
        f'const SHARED float *const b = b_tile + {slot} * {p.kb * p.pitch[0]} + my_columns;',
        '#pragma unroll',
        f'for (int e = 0; e < {p.kb}; e++) {{',
        f'    float x[{p.tp}], y[{p.tk}];',
    ]
    for name, source, own, whole in (('x', 'a', p.tp, p.bp), ('y', 'b', p.tk, p.bk)):
        for four in range(own // 4):
            place = f'{source} + e * {whole} + {four * (whole // (own // 4))}'
            lines.append('    {')
            lines.append(f'        const float4 v = LOAD4(SHARED, {place});')
            for lane, part in enumerate('xyzw'):
                lines.append(f'        {name}[{four * 4 + lane}] = v.{part};')
            lines.append('    }')
    return [
        *lines,
        '#pragma unroll',
        f'    for (int i = 0; i < {p.tk}; i++)',
        '#pragma unroll',
        f'        for (int j = 0; j < {p.tp}; j++)',
        '            acc[i][j] = FMA(x[j], y[i], acc[i][j]);',
        '}',
    ]


def _matrix(p: TiledPlan) -> list[str]:
    """One piece by matrix instructions: 16 columns by 8 rows by 8 depths each, three times.

    Lane 4 g + t holds columns g and g + 8 and rows 2 t and 2 t + 1 of a result, depths t and t + 4
    of the operands (PTX ISA, mma.m16n8k8).
    """
    slot = pieces.slot('now', p.stages)
    wide, long = p.pitch
    across, down = p.tp // 8, p.tk // 16
    first_row = f'warp % {p.bp // p.tp} * {p.tp} + lane / 4'
    first_column = f'warp / {p.bp // p.tp} * {p.tk} + lane / 4'
    lines = [
        f'const SHARED float *const a = a_tile + {slot} * {p.kb * long} + lane % 4 * {long} '
        f'+ {first_row};',
        f'const SHARED float *const b = b_tile + {slot} * {p.kb * wide} + lane % 4 * {wide} '
        f'+ {first_column};',
        *pieces.fragments(
            p.kb, down, across,
            lambda q: f'a[(e + {4 * q}) * {long} + j * 8]',
            lambda q: f'b[(e + {q // 2 * 4}) * {wide} + i * 16 + {q % 2 * 8}]',
        ),
        *pieces.multiplied(down, across, fresh=p.fresh),
    ]  # fmt: skip
    return [*lines, '}']


def _column_at(p: TiledPlan, i: str) -> str:
    """Where column `i` of a thread lies behind its first one."""
    if p.matrix:
        return f'{i} / 2 * 16 + {i} % 2 * 8'
    return _fours(p.tk, p.bk, i)


def _row_at(p: TiledPlan, j: str) -> str:
    if p.matrix:
        return f'{j} / 2 * 8 + {j} % 2'
    return _fours(p.tp, p.bp, j)


def _fours(own: int, whole: int, i: str) -> str:
    """Fours of a thread are apart by those of all others: neighbours read side by side."""
    fours = own // 4
    return f'{i} % 4' if fours == 1 else f'{i} / 4 * {whole // fours} + {i} % 4'


def _store(p: TiledPlan) -> list[str]:
    """Through the epilogue into the result; rows outside, so that each run is decoded once."""
    c = p.contraction
    columns, rows = p.own
    run = p.run if _side_by_side(p) else 1
    lines = [
        '#pragma unroll',
        f'for (int j = 0; j < {rows}; j += {run}) {{',
        f'    const int row = first_row + my_rows + {_row_at(p, "j")};',
        *(f'    {line}' for line in pieces.decode('row', p.rows)),
        '#pragma unroll',
        f'    for (int i = 0; i < {columns}; i++) {{',
        f'        const int {c.vector} = first_column + my_columns + {_column_at(p, "i")};',
    ]
    tests = [f'row < {p.points}'] if p.points % p.bp else []
    tests += [f'{c.vector} < {p.columns}'] if p.columns % p.bk else []
    if tests:
        lines.append(f'        if ({" && ".join(tests)}) {{')
    lines += [f'        {line}' for line in pieces.epilogue_lines(p.epilogue)]
    values = []
    for lane in range(run):
        lines.append(f'        const float value{lane} = acc[i][j + {lane}];')
        text = p.epilogue.expression.replace('value', f'value{lane}')
        for item in p.epilogue.operands:
            moving = any(item.stride(d) for d, _ in p.rows)
            if moving and lane:
                text = text.replace(f'{item.name}_at', f'{item.name}_at + {lane}')
        values.append(text)
    lines.append(f'        {pieces.stored(pieces.result(p.group), values)}')
    return [*lines, *(['        }'] if tests else []), '    }', '}']


def _side_by_side(p: TiledPlan) -> bool:
    """Whether runs of rows are neighbours in the result, aligned, and so is what it reads."""
    strides, const = access_strides(p.group, p.group.main.write)
    joined, step, inner = 1, 1, set()
    for name, size in reversed(p.rows):
        if size > 1 and strides[name] != step:
            break
        joined, step = joined * size, step * size
        inner.add(name)
    outer = [s for d, s in strides.items() if d not in inner]
    if any(n % p.run for n in (joined, p.points, const, *outer)):
        return False
    return all(
        not any(item.stride(d) for d, _ in p.rows)
        or all(item.stride(d) == strides[d] for d, _ in p.rows)
        for item in p.epilogue.operands
    )
