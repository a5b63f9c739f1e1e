"""Both products of an attention by matrix instructions of f16 or bf16 (`mma_half`).

Goes in: a plan. Comes out: lines of a kernel; what stands between the products is matrix.py's.
Operands lie in shared memory as in global memory, two halves in each word. A lane's scores of two
neighbouring tiles of keys are, rounded to halves, what the instruction takes as 16 depths of the
second product (PTX ISA, m16n8k16), so they never leave registers. `ROWS4` reads four tiles of keys
at once. Values have keys down their columns: `COLUMNS4` turns four tiles of them on the way.
Queries stay in registers for all keys.
"""

from __future__ import annotations

from tilewright.kernels.gpu.schemas.attention.common import each, tiles
from tilewright.kernels.gpu.schemas.attention.plan import KEYS, ROWS, STEPS, AttentionPlan

DEPTHS = STEPS['mma_half']
STEP_WORDS = DEPTHS // 2


def places(p: AttentionPlan) -> list[str]:
    """Where this lane reads."""
    own = p.keys // p.sharing
    words = 'const SHARED unsigned *const'
    return [
        f'{words} q_mine = (const SHARED unsigned *)q_tile + (warp * {p.own} + lane / 4) * '
        f'{p.depth_pitch} + lane % 4;',
        f'const SHARED float *const k_mine = k_tile + part * {own * p.depth_pitch};',
        f'const SHARED float *const v_mine = v_tile + part * {own * p.column_pitch};',
        f'unsigned queries[{p.own // ROWS}][{p.depth // DEPTHS}][4];',
    ]


def queries(p: AttentionPlan) -> list[str]:
    """This lane's queries, once they have come."""
    place = f'(m * {ROWS} + q % 2 * 8) * {p.depth_pitch} + e * {STEP_WORDS} + q / 2 * 4'
    loads = each('q', 4, [f'queries[m][e][q] = q_mine[{place}];'])
    return each('m', p.own // ROWS, each('e', p.depth // DEPTHS, loads))


def scores(p: AttentionPlan) -> list[str]:
    """Rows by keys, sixteen depths at a time."""
    down, across, _ = tiles(p)
    place = f'n * {2 * KEYS * p.depth_pitch} + e * {STEP_WORDS}'
    body = [
        'unsigned x[4];',
        f'ROWS4(x, k_mine + {place}, {p.depth_pitch});',
        *each('m', down, [_product(p, f'score[m][2 * n + {n}]', 'queries[m][e]', f'x + {2 * n}')
                          for n in range(2)]),
    ]  # fmt: skip
    zero = each('m', down, each('n', across, each('q', 4, ['score[m][n][q] = 0.0f;'])))
    return [*zero, *each('e', p.depth // DEPTHS, each('n', across // 2, body))]


def added_up(p: AttentionPlan) -> list[str]:
    """Weights by values, sixteen keys at a time."""
    down, across, columns = tiles(p)
    pair = f'pair_{p.group.half}'
    rounded = [
        f'y[m][{q}] = {pair}(score[m][{k}][{2 * (q % 2)}], score[m][{k}][{2 * (q % 2) + 1}]);'
        for q, k in enumerate(('2 * k', '2 * k', '2 * k + 1', '2 * k + 1'))
    ]
    values = [
        'unsigned x[4];',
        f'COLUMNS4(x, v_mine + k * {DEPTHS * p.column_pitch} + c * {KEYS}, {p.column_pitch});',
        *each('m', down, [_product(p, f'sums[m][2 * c + {n}]', 'y[m]', f'x + {2 * n}')
                          for n in range(2)]),
    ]  # fmt: skip
    body = [f'unsigned y[{down}][4];', *each('m', down, rounded), *each('c', columns // 2, values)]
    return each('k', across // 2, body)


def _product(p: AttentionPlan, to: str, y: str, x: str) -> str:
    sums = ', '.join(f'{to}[{q}]' for q in range(4))
    return f'MMA_{p.group.half.upper()}({sums}, {y}, ({x}));'


def copied(to: str, source: str, there: str, run: int, pitch: int) -> list[str]:
    """`run` halves of row r from c on into shared memory; zeros where they are not `there`."""
    if run > 1:
        address = f'(const GLOBAL float *)({source})'
        return [f'COPY4({to} + r * {pitch} + c / 2, {address}, {there});']
    place = f'((SHARED unsigned short *){to})[r * {2 * pitch} + c]'
    return [f'{place} = {there} ? *({source}) : (unsigned short)0;']
