"""The attention schema by matrix instructions: a warp has 16 or 32 rows and all keys of a block.

Goes in: a plan whose intrinsic is `mma_tf32x3` or `mma_half` (whose products are in halves.py).
Comes out: lines of a kernel, between the copies that code.py writes. Lane 4 g + t holds rows g and
g + 8 of a tile, and of its 8 keys or columns 2 t and 2 t + 1 (PTX ISA, m16n8k8). So scores never
leave registers: as operand of the second product a lane holds keys 2 t and 2 t + 1 where the
instruction means depths t and t + 4, and reads the values of these two keys; the order of terms of
a sum does not matter. The maximum and the total of a row are joined by the four lanes that share
it. Several warps may share the rows, each with its keys of every block: where there are few rows,
they are what keeps a multiprocessor busy. Their sums are joined in the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.schemas.attention import halves
from tilewright.kernels.gpu.schemas.attention.common import (
    between,
    each,
    place_of,
    stored_at,
    tiles,
)
from tilewright.kernels.gpu.schemas.attention.plan import KEYS, ROWS, AttentionPlan
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.attention import COLUMN, ROW

DEPTHS = 8  # of one instruction
# Products of parts that make one of floats; f16 and bf16 have no lower parts.
THREE = (('low_y', 'high_x'), ('high_y', 'low_x'), ('high_y', 'high_x'))
RIGHT = (('low_y', 'high_x'), ('high_y', 'high_x'))
EXACT = (('high_y', 'high_x'),)
LOG2_E = 1.44269504
TOGETHER = 4  # tiles of keys or columns that are multiplied in turns: sums wait for each other


def begin(p: AttentionPlan) -> list[str]:
    """Where this lane reads, and its sums."""
    down, across, columns = tiles(p)
    return [
        f'const int lane = THREAD % {WARP}, warp = THREAD / {WARP * p.sharing};',
        f'const int part = THREAD / {WARP} % {p.sharing};',
        *(halves.places(p) if p.halves else _places(p)),
        f'float sums[{down}][{columns}][4], score[{down}][{across}][4];',
        f'float peak[{down}][2], added[{down}][2];',
        *each(
            'm',
            down,
            [
                *each('r', 2, ['peak[m][r] = -INFINITY;', 'added[m][r] = 0.0f;']),
                *each('c', columns, each('q', 4, ['sums[m][c][q] = 0.0f;'])),
            ],
        ),
    ]


def _places(p: AttentionPlan) -> list[str]:
    own = p.keys // p.sharing
    return [
        f'const SHARED float *const q_mine = q_tile + (warp * {p.own} + lane / 4) * '
        f'{p.depth_pitch} + lane % 4;',
        f'const SHARED float *const k_mine = k_tile + (part * {own} + lane / 4) * '
        f'{p.depth_pitch} + lane % 4;',
        f'const SHARED float *const v_mine = v_tile + (part * {own} + lane % 4 * 2) * '
        f'{p.column_pitch} + lane / 4;',
    ]


def scores(p: AttentionPlan) -> list[str]:
    """Rows by keys, eight depths at a time."""
    if p.halves:
        return halves.scores(p)
    down, across, _ = tiles(p)
    rows = [
        line
        for q in range(4)
        for line in pieces.cut(
            'y',
            f'm][{q}',
            f'q_mine[(m * {ROWS} + {q % 2 * 8}) * {p.depth_pitch} + e + {q // 2 * 4}]',
        )
    ]
    body = [
        f'unsigned high_y[{down}][4], low_y[{down}][4];',
        *each('m', down, rows),
    ]
    for first in range(0, across, TOGETHER):
        keys = [
            line
            for q in range(2)
            for line in pieces.cut(
                'x', f'n][{q}', f'k_mine[({first} + n) * {KEYS * p.depth_pitch} + e + {4 * q}]'
            )
        ]
        count = min(TOGETHER, across - first)
        made = _products('score', first, count, down, keys, EXACT if p.group.half else THREE)
        body += ['{', *pieces.indented(made), '}']
    zero = each('m', down, each('n', across, each('q', 4, ['score[m][n][q] = 0.0f;'])))
    return [
        *zero,
        f'for (int e = 0; e < {p.depth}; e += {DEPTHS}) {{',
        *pieces.indented(body),
        '}',
    ]


def _products(
    name: str, first: int, count: int, down: int, cuts: list[str], parts: Sequence[tuple[str, str]]
) -> list[str]:  # fmt: skip
    """Products of parts for some tiles, smallest first; `cuts` fills high_x[n], low_x[n]."""
    lines = [
        f'unsigned high_x[{count}][2], low_x[{count}][2];',
        *each('n', count, cuts),
    ]
    for y, x in parts:
        sums = ', '.join(f'{name}[m][{first} + n][{q}]' for q in range(4))
        lines += each('n', count, each('m', down, [f'MMA_TF32({sums}, {y}[m], {x}[n]);']))
    return lines


def weights(p: AttentionPlan, typed: GpuTyped) -> list[str]:
    """Scores through scale and mask, their exponentials, and sums scaled where a peak grew."""
    down, across, columns = tiles(p)
    inside = between(p, typed, 'score[m][n][2 * r + s]')
    if p.ragged:
        inside = ['if (j < end) {', *pieces.indented(inside), '}']
    masked = [
        f'const int j = j_block + part * {p.keys // p.sharing} + n * {KEYS} + lane % 4 * 2 + s;',
        'float value = -INFINITY;',
        *inside,
        'score[m][n][2 * r + s] = value;',
        'most = MAXIMUM(most, value);',
    ]
    weight, less = 'expf({} - by)', 'expf(peak[m][r] - by)'
    if p.halves:  # one multiply-add and one power of two
        weight = f'quick_power(FMA({{}}, {LOG2_E}f, -scaled_by))'
        less = weight.format('peak[m][r]')
    summed = [
        f'const float weight = {weight.format("score[m][n][2 * r + s]")};',
        'score[m][n][2 * r + s] = weight;',
        'own += weight;',
    ]
    row = [
        f'const int i = min({_row(p)}, {p.size(ROW) - 1});',
        'float most = peak[m][r], own = 0.0f;',
        *each('n', across, each('s', 2, masked)),
        'most = MAXIMUM(most, LANE_XOR(most, 1));',
        'most = MAXIMUM(most, LANE_XOR(most, 2));',
        'const float by = most == -INFINITY ? 0.0f : most;',
        *([f'const float scaled_by = {LOG2_E}f * by;'] if p.halves else []),
        f'const float less = {less};',
        *each('n', across, each('s', 2, summed)),
        'peak[m][r] = most;',
        'added[m][r] = added[m][r] * less + own;',
        *each('c', columns, each('s', 2, ['sums[m][c][2 * r + s] *= less;'])),
    ]
    return each('m', down, each('r', 2, row))


def _row(p: AttentionPlan) -> str:
    return f'i_block + warp * {p.own} + m * {ROWS} + lane / 4 + 8 * r'


def added_up(p: AttentionPlan) -> list[str]:
    """Weights by values, eight keys at a time."""
    if p.halves:
        return halves.added_up(p)
    down, across, columns = tiles(p)
    rows = [
        line
        for q, held in enumerate((0, 2, 1, 3))
        for line in pieces.cut('y', f'm][{q}', f'score[m][k][{held}]')
    ]
    body = [
        f'unsigned high_y[{down}][4], low_y[{down}][4];',
        *each('m', down, rows),
    ]
    for first in range(0, columns, TOGETHER):
        values = [
            line
            for q in range(2)
            for line in pieces.cut(
                'x',
                f'n][{q}',
                f'v_mine[(k * {KEYS} + {q}) * {p.column_pitch} + ({first} + n) * {KEYS}]',
            )
        ]
        count = min(TOGETHER, columns - first)
        made = _products('sums', first, count, down, values, RIGHT if p.group.half else THREE)
        body += ['{', *pieces.indented(made), '}']
    return each('k', across, body)


def store(p: AttentionPlan) -> list[str]:
    """Totals of the four lanes of a row, and the sums divided by them."""
    down, _, columns = tiles(p)
    target = place_of(p, 'i', 'v')
    run = 2 if p.is_wide(p.form.values.write, COLUMN) else 1
    stores = []
    for n in range(0, 2, run):
        values = [f'sums[m][c][2 * r + {n + s}] * part' for s in range(run)]
        stores += [
            '{',
            f'    const int v = c * {KEYS} + lane % 4 * 2 + {n};',
            f'    if (v < {p.size(COLUMN)})',
            f'        {stored_at(p, target, values)}',
            '}',
        ]
    row = [
        f'const int i = {_row(p)};',
        'float whole = added[m][r];',
        'whole += LANE_XOR(whole, 1);',
        'whole += LANE_XOR(whole, 2);',
        f'if (i < {p.size(ROW)}) {{',
        f'    const float part = {p.share};',
        *pieces.indented(each('c', columns, stores)),
        '}',
    ]
    lines = each('m', down, each('r', 2, row))
    if p.sharing == 1:
        return lines
    return [*_joined(p), 'if (part == 0) {', *pieces.indented(lines), '}']


def _joined(p: AttentionPlan) -> list[str]:
    """What other warps summed up of these rows, added to the sums of the first."""
    down, _, columns = tiles(p)
    step = p.apart * (p.sharing - 1) * WARP  # floats of one value: a slot for each lane
    slot = f'((warp * {p.sharing - 1} + {{}} - 1) * {WARP} + lane)'
    each_row = f'(m * 2 + r) * {2 + 2 * columns}'

    def place(value: str, part: str) -> str:
        return f'parts[({each_row} + {value}) * {step} + {slot.format(part)}]'

    leaves = [
        f'{place("0", "part")} = peak[m][r];',
        f'{place("1", "part")} = added[m][r];',
        *each(
            'c',
            columns,
            each('s', 2, [f'{place("2 + 2 * c + s", "part")} = sums[m][c][2 * r + s];']),
        ),
    ]
    takes = [
        f'const float other = {place("0", "from")};',
        'const float most = MAXIMUM(peak[m][r], other);',
        'const float by = most == -INFINITY ? 0.0f : most;',
        'const float less = expf(peak[m][r] - by), more = expf(other - by);',
        'peak[m][r] = most;',
        f'added[m][r] = added[m][r] * less + {place("1", "from")} * more;',
        *each(
            'c',
            columns,
            each(
                's',
                2,
                [
                    'sums[m][c][2 * r + s] = sums[m][c][2 * r + s] * less + '
                    f'{place("2 + 2 * c + s", "from")} * more;'
                ],
            ),
        ),
    ]
    return [
        'if (part > 0) {',
        *pieces.indented(each('m', down, each('r', 2, leaves))),
        '}',
        'BARRIER;',
        'if (part == 0) {',
        f'    for (int from = 1; from < {p.sharing}; from++) {{',
        *pieces.indented(each('m', down, each('r', 2, takes)), 2),
        '    }',
        '}',
    ]
