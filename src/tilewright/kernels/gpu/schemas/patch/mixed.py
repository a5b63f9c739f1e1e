"""The patch schema by warpgroup instructions of two precisions: one TF32 product, two of bf16.

In a b = a_h b_h + a_l b + a b_l, where a_h and b_h are a and b rounded to the 11 bits of TF32, the
second and third product are some 2^-12 of the first: eight bits of their factors are enough, and
bf16 has those at twice the speed. An fp32 product takes the time of two of TF32 instead of three
(warpgroup.py); kernels/gpu/matrix_units.py says what the rounding costs.

A step is sixteen depths: two of TF32 instructions, one of bf16's. What a lane loads for the first
is what it needs for the second, since the order of depths is free. Lane 4 g + t has depths t and
t + 4 of either eight; it takes them as depths 2 t and 2 t + 1 of that half of bf16's sixteen.
The constant operand lies in shared memory as

    [TF32 of each eight depths, then high and low part in bf16 of each sixteen]
    [four words of a half][column / 8][column % 8][word % 4]

where word q of a bf16 part holds depths q (low half) and q + 4 (high half) of its eight.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.schemas.patch.plan import STEP, UNROLLED, PatchPlan
from tilewright.kernels.gpu.schemas.patch.warpgroup import (
    handed,
    offsets,
    places,
    shared_weights,
    store,
    sums,
    weight_copies,
)

__all__ = [
    'NEEDS', 'both', 'multiply', 'offsets', 'packed_element', 'shared_weights', 'store',
    'weight_copies',
]  # fmt: skip
NEEDS = ('wgmma_tf32', 'wgmma_bf16')
ROUNDED = '(FLOAT_BITS({0}) + 0x1000u) & 0xffffe000u'  # to the 11 bits that TF32 looks at


def packed_element(p: PatchPlan) -> tuple[list[str], str]:
    """(lines that give the first depth and the column, the value to store of `weights`)."""
    names = ('g_', 'piece', 'tile', 'part', 'four', 'row8', 'row', 'q')
    return [
        *pieces.decode('flat', list(zip(names, p.packed.sizes, strict=True))),
        f'const bool whole = part < {p.steps};',
        f'const int pair = (part - {p.steps}) / 2, low = (part - {p.steps}) % 2;',
        f'const int first = whole ? part * {STEP} + four * 4 + q '
        f': pair * {2 * STEP} + four * {STEP} + q;',
        f'const int {p.contraction.vector} = tile * {p.bk} + row8 * 8 + row;',
    ], 'BITS_FLOAT(whole ? highs[0] : (low ? lows : rounds)[0] | (low ? lows : rounds)[1] << 16)'


def both(one: Sequence[str]) -> list[str]:
    """The weights at depths `first` and `first + 4`: in TF32, and in bf16 whole and what is left.

    Rounded here by whole numbers, since what packs is not a kernel for matrix instructions.
    """
    return [
        'unsigned highs[2], rounds[2], lows[2];',
        'for (int i = 0; i < 2; i++) {',
        '    const int e = first + 4 * i;',
        *(f'    {line}' for line in one),
        f'    highs[i] = {ROUNDED.format("weight")};',
        '    const unsigned all = FLOAT_BITS(weight);',
        '    const unsigned left = FLOAT_BITS(weight - BITS_FLOAT(highs[i]));',
        # Rounding may carry out of a NaN, which then is a zero.
        '    rounds[i] = weight == weight ? (all + 0x7fffu + (all >> 16 & 1u)) >> 16 : 0x7fffu;',
        '    lows[i] = weight == weight ? (left + 0x7fffu + (left >> 16 & 1u)) >> 16 : 0x7fffu;',
        '}',
    ]


def multiply(p: PatchPlan, meanwhile: Sequence[str] = ()) -> list[str]:
    """One piece, as patch_warpgroup.multiply: with a queue of two, a step is handed over before the
    one before it has ended; what there is to do `meanwhile` is done during the first.
    """
    slot = pieces.slot('now', p.stages)
    tiles, unroll = p.tp // 64, '#pragma unroll' if p.steps <= UNROLLED else '#pragma unroll 2'
    sets = 2 if p.queue > 1 else 1
    lines = [
        f'const SHARED float *const a = a_tile + {slot} * {p.piece_floats};',
        f'const SHARED float *const b = b_tile + {slot} * {shared_weights(p)};',
        f'unsigned high_x[{sets}][2][{tiles}][4];',
        f'unsigned round_x[{sets}][{tiles}][4], low_x[{sets}][{tiles}][4];',
        '{',
        '    const int pair = 0;',
        *(f'    {line}' for line in _pixels(p, 'high_x[0]', 'round_x[0]', 'low_x[0]')),
        '}',
        unroll,
        f'for (int now_pair = 0; now_pair < {p.pairs}; now_pair++) {{',
        *(f'    {line}' for line in _products(p, f'now_pair % {sets}' if sets > 1 else '0')),
        *(f'    {line}' for line in handed('now_pair', meanwhile)),
    ]
    if sets > 1:
        set_ = ('high_x[pair % 2]', 'round_x[pair % 2]', 'low_x[pair % 2]')
        return [
            *lines,
            f'    if (now_pair + 1 < {p.pairs}) {{',
            '        MATRIX_WAIT(1);',
            '        const int pair = now_pair + 1;',
            *(f'        {line}' for line in _pixels(p, *set_)),
            '    }',
            '}',
            'MATRIX_WAIT(0);',
        ]
    return [
        *lines,
        f'    unsigned next_high[2][{tiles}][4], next_round[{tiles}][4], next_low[{tiles}][4];',
        f'    if (now_pair + 1 < {p.pairs}) {{',
        '        const int pair = now_pair + 1;',
        *(f'        {line}' for line in _pixels(p, 'next_high', 'next_round', 'next_low')),
        '    }',
        '    MATRIX_WAIT(0);',
        f'    if (now_pair + 1 < {p.pairs}) {{',
        '#pragma unroll',
        f'        for (int i = 0; i < {tiles}; i++)',
        '#pragma unroll',
        '            for (int q = 0; q < 4; q++) {',
        '                high_x[0][0][i][q] = next_high[0][i][q];',
        '                high_x[0][1][i][q] = next_high[1][i][q];',
        '                round_x[0][i][q] = next_round[i][q];',
        '                low_x[0][i][q] = next_low[i][q];',
        '            }',
        '    }',
        '}',
    ]


def _products(p: PatchPlan, set_: str) -> list[str]:
    """The products of `now_pair`, smallest first, in one group."""
    part = STEP * p.bk  # floats
    behind = f'b + {p.steps * part} + now_pair * {2 * part}'
    lines = ['MATRIX_BEGIN;']
    for kind, x, place, always in (
        ('BF16', f'low_x[{set_}]', behind, True),
        ('BF16', f'round_x[{set_}]', f'{behind} + {part}', True),
        ('TF32', f'high_x[{set_}][0]', f'b + now_pair * {2 * part}', True),
        ('TF32', f'high_x[{set_}][1]', f'b + now_pair * {2 * part} + {part}', p.steps % 2 == 0),
    ):
        test = [] if always else [f'if (now_pair + 1 < {p.pairs})']
        lines += [
            *test,
            '#pragma unroll',
            f'for (int i = 0; i < {p.tp // 64}; i++)',
            f'    WGMMA_{kind}({p.bk}, {sums(p)}[i], {x}[i], {place}, {p.bk * 4}, 32);',
        ]
    return [*lines, 'MATRIX_COMMIT;']


def _pixels(p: PatchPlan, high: str, rounded: str, low: str) -> list[str]:
    """Load and cut the pixels of `pair`: element h + 2 q of a part is pixel half h, and depth half
    q in TF32, the q-th eight depths in bf16.
    """
    last = f'2 * pair + two < {p.steps}' if p.steps % 2 else ''
    values = [(h, q) for q in range(2) for h in range(2)]
    loads = [f'values[{h + 2 * q}] = a[at{q} + offset[i][{h}]];' for h, q in values]
    cuts = []
    for h in range(2):
        pair = f'values[{h}]', f'values[{h + 2}]'
        cuts += [
            *(f'{high}[two][i][{h + 2 * q}] = {ROUNDED.format(pair[q])};' for q in range(2)),
            f'{rounded}[i][{h} + 2 * two] = BF16_PAIR({pair[0]}, {pair[1]});',
            f'{low}[i][{h} + 2 * two] = BF16_PAIR('
            f'{pair[0]} - BITS_FLOAT({high}[two][i][{h}]), '
            f'{pair[1]} - BITS_FLOAT({high}[two][i][{h + 2}]));',
        ]
    return [
        '#pragma unroll',
        'for (int two = 0; two < 2; two++) {',
        '    const int step = 2 * pair + two;',
        *(f'    {line}' for line in places(p)),
        '#pragma unroll',
        f'    for (int i = 0; i < {p.tp // 64}; i++) {{',
        '        float values[4] = {0.0f, 0.0f, 0.0f, 0.0f};',
        *([f'        if ({last}) {{'] if last else []),
        *(f'        {"    " if last else ""}{line}' for line in loads),
        *(['        }'] if last else []),
        *(f'        {line}' for line in cuts),
        '    }',
        '}',
    ]
