"""The attention schema: scores, weights and sums of a block at a time, none of them stored.

Goes in: an attention group (ops/attention.py), a schedule. Comes out: a module of one kernel.

    for each stacked point and block of rows (a block)    copy the rows; Peak = -inf, Total = 0
      for each block of keys that one of them sees        scores, through scale and mask;
                                                          weights exp(score - Peak), Peak the
                                                          largest so far; Total and sums scaled
                                                          where Peak grew; sums += weights * values
      store                                               sums / Total

The running maximum and sum are those of Milakov and Gimelshein ("Online normalizer calculation for
softmax", 2018), the blocks those of FlashAttention (Dao et al., NeurIPS'22, Alg. 1). Keys of the
next block arrive while sums are added up, values while scores are computed. A row whose scores are
all -inf has a total of 0, and is NaN as a softmax is, or 0 where it is guarded. Decisions:

    bi bj   rows and keys of a block            ti    rows of a thread, or of a warp
    lanes   threads that share a row: each has its keys of a block, then its columns
    wide    1: operands are copied 16 bytes at a time where they lie side by side
    share   warps that have the same rows, each its keys of a block; 1 for `fma`

The intrinsic is `fma`, or `mma_tf32x3` (matrix.py) or `mma_half` (halves.py), whose lanes are 32.
"""

from __future__ import annotations

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import half, pieces
from tilewright.kernels.gpu.language import ENDS, Array, Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.schemas.attention import halves, matrix
from tilewright.kernels.gpu.schemas.attention.common import between, each, place_of, stored_at
from tilewright.kernels.gpu.schemas.attention.plan import FOUR, AttentionPlan, plan
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.ops.attention import COLUMN, DEPTH, KEY, ROW
from tilewright.ops.dtypes import HALVES
from tilewright.ops.group import Group
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

PARTS = ('x', 'y', 'z', 'w')
NEEDS: dict[str, frozenset[str]] = {
    'fma': frozenset(),
    'mma_tf32x3': frozenset({'mma_tf32', 'lane_xor'}),
    'mma_half': frozenset({'mma_half', 'lane_xor'}),
}


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    main = kernel(plan(group, schedule))
    return Module(group, tensor_buffers(group), (Step.of(main),))


def kernel(p: AttentionPlan) -> Kernel:
    typed = GpuTyped.of(p.group)
    typed.functions |= {'quick_power': None} if p.halves else {}
    if p.group.half:
        typed.functions |= {f'from_{p.group.half}': None, f'to_{p.group.half}': None}
    body = [
        *_place(p),
        *(matrix.begin(p) if p.matrix else _begin(p)),
        *copied(p, 'q_tile', 'q_at', p.form.queries, p.rows, (ROW, DEPTH), 'i_block'),
        *_keys(p, '0'),
        'COPY_COMMIT;',
        *(['COPY_WAIT(0);', 'BARRIER;', *halves.queries(p)] if p.halves else []),
        f'for (int j_block = 0; j_block < end; j_block += {p.keys}) {{',
        *pieces.indented(_turn(p, typed)),
        '}',
        ENDS,
        *(matrix.store(p) if p.matrix else _store(p)),
    ]
    args = tuple(
        Array(t.name, t.dims, t.shape, t.dtype, written=t.role == 'output')
        for t in p.group.tensors
        if t.role != 'inner'
    )
    return Kernel(
        'attention', args, '\n'.join(body), (p.blocks, 1, 1), p.threads, p.shared,
        typed.helpers(),
        NEEDS[p.intrinsic],
    )  # fmt: skip


def _place(p: AttentionPlan) -> list[str]:
    """Which rows this block has, and where its operands begin."""
    # The last rows see most keys under a causal mask: their blocks begin first.
    tile = f'{p.row_tiles - 1} - tile' if p.form.causal is not None else 'tile'
    end = str(p.size(KEY))
    if p.form.causal is not None:
        end = f'min({end}, i_block + {p.rows + p.form.causal})'
    lines = [
        *pieces.decode('BLOCK_X', [*p.stack, ('tile', p.row_tiles)]),
        f'const int i_block = ({tile}) * {p.rows};',
        f'const int end = {end};',
    ]
    form = p.form
    for name, access in (('q_at', form.queries), ('k_at', form.keys), ('v_at', form.columns)):
        kind = 'unsigned short' if p.dtype(access) in HALVES else 'float'
        lines.append(f'const GLOBAL {kind} *const {name} = {access.tensor} + {_first(p, access)};')
    return lines


def _begin(p: AttentionPlan) -> list[str]:
    """Which rows and keys this thread has, and its sums."""
    return [
        f'const int across = THREAD % {p.lanes}, down = THREAD / {p.lanes};',
        f'float sums[{p.own}][{FOUR * p.fours}], score[{p.own}][{p.scores}];',
        f'float peak[{p.own}], added[{p.own}];',
        *each(
            'a',
            p.own,
            [
                'peak[a] = -INFINITY;',
                'added[a] = 0.0f;',
                *each('c', FOUR * p.fours, ['sums[a][c] = 0.0f;']),
            ],
        ),
    ]


def _first(p: AttentionPlan, access: Access) -> str:
    """Where the operand of this stacked point begins."""
    strides, const = p.strides(access)
    return total([*(scaled(d, strides[d]) for d in p.form.stack), str(const)])


def copied(
    p: AttentionPlan, to: str, source: str, access: Access, rows: int, dims: tuple[str, str],
    first: str,
) -> list[str]:  # fmt: skip
    """A block of rows of an operand into shared memory, zeros behind its end."""
    row, along = dims
    values = along == COLUMN
    length, pitch = (p.columns, p.column_pitch) if values else (p.depth, p.depth_pitch)
    strides, _ = p.strides(access)
    run = p.copied(access, along)
    each = length // run
    tests = [f'{first} + r < {p.size(row)}'] if p.size(row) % rows or first != 'i_block' else []
    tests += [f'c < {p.size(along)}'] if length > p.size(along) else []
    at = total([scaled(f'({first} + r)', strides[row]), scaled('c', strides[along])])
    there = ' && '.join(tests) or 'true'
    body = [f'const int r = at / {each}, c = {scaled(f"(at % {each})", run)};']
    if p.halves:
        body += halves.copied(to, f'{source} + {at}', f'({there})', run, pitch)
    elif p.dtype(access) in HALVES:  # widened on the way
        body += [
            f'float x[{run}] = {{{", ".join(["0.0f"] * run)}}};',
            f'if ({there}) {{',
            *pieces.indented(half.load('x', run, f'{source} + {at}', p.dtype(access))),
            '}',
            *(f'{to}[r * {pitch} + c + {n}] = x[{n}];' for n in range(run)),
        ]
    else:
        body.append(f'COPY{run}({to} + r * {pitch} + c, {source} + {at}, {there});')
    return pieces.dealt('at', 'THREAD', rows * each, p.threads, body)


def _keys(p: AttentionPlan, first: str) -> list[str]:
    return copied(p, 'k_tile', 'k_at', p.form.keys, p.keys, (KEY, DEPTH), first)


def _turn(p: AttentionPlan, typed: GpuTyped) -> list[str]:
    """One block of keys."""
    columns = p.form.columns
    return [
        'COPY_WAIT(0);',
        'BARRIER;',
        *copied(p, 'v_tile', 'v_at', columns, p.keys, (KEY, COLUMN), 'j_block'),
        'COPY_COMMIT;',
        *(matrix.scores(p) if p.matrix else [*_scores(p), *_masked(p, typed)]),
        'BARRIER;',
        f'if (j_block + {p.keys} < end) {{',
        *pieces.indented(_keys(p, f'(j_block + {p.keys})')),
        '}',
        'COPY_COMMIT;',
        *(matrix.weights(p, typed) if p.matrix else each('a', p.own, _weights(p))),
        'COPY_WAIT(1);',
        'BARRIER;',
        *(matrix.added_up(p) if p.matrix else _sums(p)),
    ]


def _scores(p: AttentionPlan) -> list[str]:
    """Rows by keys from shared memory, four depths at a time."""
    body = [
        f'float4 q[{p.own}];',
        *each(
            'a',
            p.own,
            [f'q[a] = LOAD4(SHARED, q_tile + (down + a * {p.apart}) * {p.depth_pitch} + e);'],
        ),
        *each(
            'b',
            p.scores,
            [
                f'const float4 k = LOAD4(SHARED, k_tile + (across + b * {p.lanes}) * '
                f'{p.depth_pitch} + e);',
                *each(
                    'a', p.own, [f'score[a][b] = FMA(q[a].{x}, k.{x}, score[a][b]);' for x in PARTS]
                ),
            ],
        ),
    ]
    return [
        *each('a', p.own, each('b', p.scores, ['score[a][b] = 0.0f;'])),
        '#pragma unroll 2',
        f'for (int e = 0; e < {p.depth}; e += {FOUR}) {{',
        *pieces.indented(body),
        '}',
    ]


def _masked(p: AttentionPlan, typed: GpuTyped) -> list[str]:
    """Scores through what stands between product and softmax; the largest of each row."""
    row = f'i_block + down + a * {p.apart}'
    body = [
        f'const int j = j_block + across + b * {p.lanes};',
        'float value = -INFINITY;',
        'if (j < end) {',
        *pieces.indented(between(p, typed, 'score[a][b]')),
        '}',
        'score[a][b] = value;',
        'top = value > top ? value : top;',
    ]
    return each(
        'a',
        p.own,
        [
            f'const int i = min({row}, {p.size(ROW) - 1});',
            'float top = -INFINITY;',
            *each('b', p.scores, body),
            f'tops[(down + a * {p.apart}) * {p.lanes} + across] = top;',
        ],
    )


def _weights(p: AttentionPlan) -> list[str]:
    """Exponentials of a row's scores; what was summed up so far is scaled where its peak grew."""
    row = f'(down + a * {p.apart})'
    return [
        'float most = peak[a];',
        *each(
            'c',
            p.lanes // FOUR,
            [
                f'const float4 t = LOAD4(SHARED, tops + {row} * {p.lanes} + c * {FOUR});',
                'most = MAXIMUM(MAXIMUM(MAXIMUM(most, t.x), MAXIMUM(t.y, t.z)), t.w);',
            ],
        ),
        'const float by = most == -INFINITY ? 0.0f : most;',
        'const float less = expf(peak[a] - by);',
        'float own = 0.0f;',
        *each(
            'b',
            p.scores,
            [
                'const float weight = expf(score[a][b] - by);',
                f'weights[{row} * {p.weight_pitch} + across + b * {p.lanes}] = weight;',
                'own += weight;',
            ],
        ),
        'peak[a] = most;',
        'added[a] = added[a] * less + own;',
        *each('c', FOUR * p.fours, ['sums[a][c] *= less;']),
    ]


def _sums(p: AttentionPlan) -> list[str]:
    """Weights by values from shared memory, four keys at a time."""
    column = f'across * {FOUR} + c * {FOUR * p.lanes}'
    multiplied = []
    for number, x in enumerate(PARTS):
        added = [
            f'sums[a][{FOUR} * c + {n}] = FMA(w[a].{x}, v_{x}.{y}, sums[a][{FOUR} * c + {n}]);'
            for n, y in enumerate(PARTS)
        ]
        multiplied += [
            f'const float4 v_{x} = LOAD4(SHARED, v_tile + (e + {number}) * {p.column_pitch} + '
            f'{column});',
            *each('a', p.own, added),
        ]
    body = [
        f'float4 w[{p.own}];',
        *each(
            'a',
            p.own,
            [f'w[a] = LOAD4(SHARED, weights + (down + a * {p.apart}) * {p.weight_pitch} + e);'],
        ),
        *each('c', p.fours, multiplied),
    ]
    return [
        '#pragma unroll 2',
        f'for (int e = 0; e < {p.keys}; e += {FOUR}) {{',
        *pieces.indented(body),
        '}',
    ]


def _store(p: AttentionPlan) -> list[str]:
    """Totals of a row's lanes, and the sums divided by them."""
    target = place_of(p, 'i', 'v')
    run = FOUR if p.is_wide(p.form.values.write, COLUMN) else 1
    stores = []
    for n in range(0, FOUR, run):
        values = [f'sums[a][{FOUR} * c + {n + lane}] * part' for lane in range(run)]
        stored = stored_at(p, target, values)
        stores += [
            '{',
            f'    const int v = across * {FOUR} + c * {FOUR * p.lanes} + {n};',
            f'    if (v < {p.size(COLUMN)})',
            f'        {stored}',
            '}',
        ]
    row = f'(down + a * {p.apart})'
    return [
        *each('a', p.own, [f'tops[{row} * {p.lanes} + across] = added[a];']),
        'BARRIER;',
        *each(
            'a',
            p.own,
            [
                f'const int i = i_block + {row};',
                f'if (i < {p.size(ROW)}) {{',
                '    float whole = 0.0f;',
                *pieces.indented(
                    each('c', p.lanes, [f'whole += tops[{row} * {p.lanes} + c];']),
                ),
                f'    const float part = {p.share};',
                *pieces.indented(each('c', p.fours, stores)),
                '}',
            ],
        ),
    ]
