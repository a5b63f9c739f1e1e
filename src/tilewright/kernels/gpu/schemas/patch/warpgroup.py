"""The patch schema by Hopper's warpgroup instructions: 64 pixels by `bk` columns by 8 depths.

Pixels come from registers, cut into high and low parts on the way; the constant operand comes from
shared memory, where its high and low parts lie in the order that the instruction wants (PTX ISA,
wgmma: K-major without swizzling, core matrices of 8 columns by 4 depths):

    [step of 8 depths][high, low][four of a step][column / 8][column % 8][depth % 4]

Warp v of a group holds pixels 16 v .. 16 v + 15. Lane 4 g + t has pixels g and g + 8, depths t and
t + 4 of the first operand, columns 8 j + 2 t and 8 j + 2 t + 1 of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.schemas.patch import pixels as patch_pixels
from tilewright.kernels.gpu.schemas.patch.plan import (
    STEP,
    UNROLLED,
    WARPGROUP,
    PatchPlan,
    window_stride,
)
from tilewright.kernels.gpu.work import WARP

NEEDS = ('wgmma_tf32',)


def packed_element(p: PatchPlan) -> tuple[list[str], str]:
    """(lines that give depth `e` and the column, the value to store of `weight`)."""
    names = ('g_', 'piece', 'tile', 'step', 'low', 'four', 'row8', 'row', 'q')
    return [
        *pieces.decode('flat', list(zip(names, p.packed.sizes, strict=True))),
        f'const int e = step * {STEP} + four * 4 + q;',
        f'const int {p.contraction.vector} = tile * {p.bk} + row8 * 8 + row;',
    ], 'low ? weight - BITS_FLOAT(FLOAT_BITS(weight) & 0xffffe000u) : weight'


def shared_weights(p: PatchPlan) -> int:
    """Floats of one piece of the constant operand in shared memory."""
    return math.prod(p.packed.sizes[3:])


def offsets(p: PatchPlan) -> list[str]:
    """Where the pixels of this lane begin in the patch: two for every 64 of the warpgroup."""
    lines, chosen = patch_pixels.place(p)
    return [
        f'int offset[{p.tp // 64}][2];',
        '#pragma unroll',
        f'for (int j = 0; j < {p.tp // 32}; j++) {{',
        f'    const int pixel = {_pixel("j / 2", "j % 2")};',
        *(f'    {line}' for line in lines),
        f'    offset[j / 2][j % 2] = {chosen};',
        '}',
    ]


def _pixel(tile: str, half: str) -> str:
    """A pixel of this lane in the block: in which 64, and in the upper or lower eight of 16."""
    warps = WARPGROUP // WARP
    return f'first_pixel + {tile} * 64 + warp % {warps} * 16 + {half} * 8 + lane / 4'


def weight_copies(p: PatchPlan) -> list[str]:
    """A piece lies in memory as it will lie in shared memory."""
    floats = shared_weights(p)
    piece = f'(group * {p.iterations} + next) * {p.column_tiles} + first_column / {p.bk}'
    begin = f'const GLOBAL float *const from_b = @{p.packed.name} + ({piece}) * {floats};'
    if p.bulk:
        slot = f' + next % {p.stages} * 2' if p.stages > 1 else ''
        return [begin, 'if (THREAD == 0)', f'    BULK_COPY(to_b, from_b, {floats}, full{slot});']
    return [
        begin,
        *pieces.dealt(
            'four', 'THREAD * 4', floats, 4 * p.threads,
            ['COPY4(to_b + four, from_b + four, true);'],
        ),
    ]  # fmt: skip


def multiply(p: PatchPlan, meanwhile: Sequence[str] = ()) -> list[str]:
    """One piece: while a step is multiplied, the pixels of the next one are loaded and cut, and
    what there is to do `meanwhile` is done during the first.

    With a queue of two, the next step is handed over before the one before it has ended, so that
    the matrix units need not wait for the hand-over; its pixels are in the other half of the
    registers, which is free once all but the youngest step have ended.
    """
    slot = pieces.slot('now', p.stages)
    tiles, steps = p.tp // 64, p.steps
    lines = [
        f'const SHARED float *const a = a_tile + {slot} * {p.piece_floats};',
        f'const SHARED float *const b = b_tile + {slot} * {shared_weights(p)};',
    ]
    if p.queue > 1:
        return [
            *lines,
            f'unsigned high_x[2][{tiles}][4], low_x[2][{tiles}][4];',
            '{',
            '    const int step = 0;',
            *(f'    {line}' for line in _pixels(p, 'high_x[0]', 'low_x[0]')),
            '}',
            '#pragma unroll',
            f'for (int now_step = 0; now_step < {steps}; now_step++) {{',
            *(f'    {line}' for line in _products(p, '[now_step % 2]')),
            *(f'    {line}' for line in handed('now_step', meanwhile)),
            f'    if (now_step + 1 < {steps}) {{',
            '        MATRIX_WAIT(1);',
            '        const int step = now_step + 1;',
            *(f'        {line}' for line in _pixels(p, 'high_x[step % 2]', 'low_x[step % 2]')),
            '    }',
            '}',
            'MATRIX_WAIT(0);',
        ]
    return [
        *lines,
        f'unsigned high_x[{tiles}][4], low_x[{tiles}][4];',
        '{',
        '    const int step = 0;',
        *(f'    {line}' for line in _pixels(p, 'high_x', 'low_x')),
        '}',
        '#pragma unroll' if steps <= UNROLLED else '#pragma unroll 4',
        f'for (int now_step = 0; now_step < {steps}; now_step++) {{',
        *(f'    {line}' for line in _products(p, '')),
        *(f'    {line}' for line in handed('now_step', meanwhile)),
        f'    unsigned next_high[{tiles}][4], next_low[{tiles}][4];',
        f'    if (now_step + 1 < {steps}) {{',
        '        const int step = now_step + 1;',
        *(f'        {line}' for line in _pixels(p, 'next_high', 'next_low')),
        '    }',
        '    MATRIX_WAIT(0);',
        f'    if (now_step + 1 < {steps}) {{',
        '#pragma unroll',
        f'        for (int i = 0; i < {tiles}; i++)',
        '#pragma unroll',
        '            for (int q = 0; q < 4; q++) {',
        '                high_x[i][q] = next_high[i][q];',
        '                low_x[i][q] = next_low[i][q];',
        '            }',
        '    }',
        '}',
    ]


def sums(p: PatchPlan) -> str:
    """What matrix units add to."""
    return 'fresh' if p.fresh else 'acc'


def handed(step: str, meanwhile: Sequence[str]) -> list[str]:
    """What is done once, when the first step has been handed to the matrix units."""
    inside = [f'    {line}' for line in meanwhile]
    return [f'if ({step} == 0) {{', *inside, '}'] if meanwhile else []


def _products(p: PatchPlan, half: str) -> list[str]:
    """The three products of `now_step`, smallest first, in one group."""
    per_step = 2 * STEP * p.bk  # floats of high and low part
    lines = ['MATRIX_BEGIN;']
    for x, low in (('low_x', 0), ('high_x', 1), ('high_x', 0)):
        place = f'b + now_step * {per_step}' + (f' + {per_step // 2}' if low else '')
        lines += [
            '#pragma unroll',
            f'for (int i = 0; i < {p.tp // 64}; i++)',
            f'    WGMMA_TF32({p.bk}, {sums(p)}[i], {x}{half}[i], {place}, {p.bk * 4}, 32);',
        ]
    return [*lines, 'MATRIX_COMMIT;']


def places(p: PatchPlan) -> list[str]:
    """at0 and at1: where depths t and t + 4 of `step` begin in the patch."""
    stride = {d: window_stride(p, d) for d, _ in p.windows}
    lines = []
    for q in range(2):
        if p.joint:
            lines += [
                f'const int e{q} = min(step * {STEP} + lane % 4 + {4 * q}, '
                f'{p.kb * p.window_points - 1});',
                f'const int window{q} = e{q} % {p.window_points};',
                *pieces.decode(f'window{q}', p.windows, prefix=f'q{q}_'),
            ]
            channel = f'e{q} / {p.window_points}'
        else:
            per_window = p.kb // STEP
            lines.append(f'const int window{q} = step / {per_window};')
            lines += pieces.decode(f'window{q}', p.windows, prefix=f'q{q}_') if p.windows else []
            channel = f'(step % {per_window} * {STEP} + lane % 4 + {4 * q})'
        moved = [scaled(f'q{q}_{d}', stride[d]) for d, _ in p.windows]
        lines.append(f'const int at{q} = {total([scaled(channel, p.channel_pitch), *moved])};')
    return lines


def _pixels(p: PatchPlan, high: str, low: str) -> list[str]:
    """Load and cut the pixels of `step`: element h + 2 q is pixel half h at depth half q."""
    lines = [*places(p), '#pragma unroll', f'for (int i = 0; i < {p.tp // 64}; i++) {{']
    for q in range(2):
        for h in range(2):
            lines += [
                '    {',
                f'        const float whole = a[at{q} + offset[i][{h}]];',
                '        const unsigned upper = FLOAT_BITS(whole) & 0xffffe000u;',
                f'        {high}[i][{h + 2 * q}] = upper;',
                f'        {low}[i][{h + 2 * q}] = FLOAT_BITS(whole - BITS_FLOAT(upper));',
                '    }',
            ]
    return [*lines, '}']


def store(p: PatchPlan) -> list[str]:
    """Through the epilogue into the result; eight lanes write neighbouring pixels of a column."""
    c = p.contraction
    lines = [
        '#pragma unroll',
        f'for (int j = 0; j < {p.tp // 32}; j++) {{',
        f'    const int pixel = {_pixel("j / 2", "j % 2")};',
        *(f'    {line}' for line in patch_pixels.coordinates(p)),
        '#pragma unroll',
        f'    for (int i = 0; i < {p.bk // 4}; i++) {{',
        f'        const int {c.vector} = first_column + i / 2 * 8 + lane % 4 * 2 + i % 2;',
    ]
    if p.columns % p.bk:
        lines += [f'        if ({c.vector} >= {p.columns})', '            continue;']
    return [
        *lines,
        *(f'        {line}' for line in pieces.epilogue_lines(p.epilogue)),
        '        const float value = acc[j / 2][i / 2 * 4 + j % 2 * 2 + i % 2];',
        f'        {pieces.result(p.group)} = {p.epilogue.expression};',
        '    }',
        '}',
    ]
