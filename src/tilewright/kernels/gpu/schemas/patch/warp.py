"""The patch schema by the matrix instructions of a warp: 16 columns by 8 pixels by 8 depths.

Lane 4 g + t holds columns g and g + 8 and pixels 2 t and 2 t + 1 of a result, depths t and t + 4 of
the operands (PTX ISA, mma.m16n8k8).
"""

from __future__ import annotations

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.schemas.patch import pixels as patch_pixels
from tilewright.kernels.gpu.schemas.patch.plan import STEP, PatchPlan, window_stride

NEEDS = ('mma_tf32',)
UNROLLED = 9  # window points that are written out; more are a loop


def packed_element(p: PatchPlan) -> tuple[list[str], str]:
    """(lines that give depth `e` and the column, the value to store of `weight`)."""
    names = ('g_', 'depths', p.contraction.vector)
    return [
        *pieces.decode('flat', list(zip(names, p.packed.sizes, strict=True))),
        f'const int piece = depths / {p.depth}, e = depths % {p.depth};',
    ], 'weight'


def shared_weights(p: PatchPlan) -> int:
    """Floats of one piece of the constant operand in shared memory."""
    return p.depth * p.pitch


def offsets(p: PatchPlan) -> list[str]:
    """Where the pixels of this lane begin in the patch, one for every eight of the warp."""
    lines, chosen = patch_pixels.place(p)
    return [
        f'int offset[{p.tp // 8}];',
        '#pragma unroll',
        f'for (int j = 0; j < {p.tp // 8}; j++) {{',
        '    const int pixel = first_pixel + j * 8 + lane / 4;',
        *(f'    {line}' for line in lines),
        f'    offset[j] = {chosen};',
        '}',
    ]


def weight_copies(p: PatchPlan) -> list[str]:
    """Rows of the packed operand, sixteen bytes at a time."""
    width, per_row = p.column_tiles * p.bk, p.bk // 4
    fours = p.depth * per_row
    return [
        f'const GLOBAL float *const from_b = @{p.packed.name} + '
        f'(group * {p.iterations * p.depth} + next * {p.depth}) * {width} + first_column;',
        *pieces.dealt(
            'four', 'THREAD', fours, p.threads,
            [f'COPY4(to_b + four / {per_row} * {p.pitch} + four % {per_row} * 4, '
             f'from_b + four / {per_row} * {width} + four % {per_row} * 4, true);'],
        ),
    ]  # fmt: skip


def multiply(p: PatchPlan) -> list[str]:
    """One piece: for every eight depths the operands of this warp, cut, and their products."""
    slot = pieces.slot('now', p.stages)
    down, across = p.tk // 16, p.tp // 8
    stride = {d: window_stride(p, d) for d, _ in p.windows}
    lines = [
        f'const SHARED float *const a = a_tile + {slot} * {p.kb * p.plane_pitch};',
        f'const SHARED float *const b = b_tile + {slot} * {p.depth * p.pitch} + '
        f'lane % 4 * {p.pitch} + own_column + lane / 4;',
    ]
    if p.joint:
        opened = [
            '#pragma unroll 4',
            f'for (int depth = 0; depth < {p.depth}; depth += {STEP}) {{',
        ]
        place = []
        for q in range(2):
            place += [
                f'    const int e{q} = min(depth + lane % 4 + {4 * q}, '
                f'{p.kb * p.window_points - 1});',
                f'    const int window{q} = e{q} % {p.window_points};',
                *(f'    {x}' for x in pieces.decode(f'window{q}', p.windows, prefix=f'q{q}_')),
                f'    const int at{q} = '
                + total(
                    [
                        f'e{q} / {p.window_points} * {p.plane_pitch}',
                        *(scaled(f'q{q}_{d}', stride[d]) for d, _ in p.windows),
                    ]
                )
                + ';',
            ]
    else:
        unroll = '#pragma unroll' if p.window_points <= UNROLLED else '#pragma unroll 1'
        opened = [
            unroll,
            f'for (int window = 0; window < {p.window_points}; window++) {{',
            *(f'    {x}' for x in (pieces.decode('window', p.windows) if p.windows else [])),
            '#pragma unroll',
            f'for (int e = 0; e < {p.kb}; e += {STEP}) {{',
            f'    const int depth = window * {p.kb} + e;',
        ]
        moved = total([scaled(d, stride[d]) for d, _ in p.windows]) or '0'
        place = [
            f'    const int at{q} = (e + lane % 4 + {4 * q}) * {p.plane_pitch} + {moved};'
            for q in range(2)
        ]
    lines += [*opened, *place]
    lines += [
        f'    unsigned high_x[{across}][2], low_x[{across}][2];',
        f'    unsigned high_y[{down}][4], low_y[{down}][4];',
        '#pragma unroll',
        f'    for (int j = 0; j < {across}; j++) {{',
    ]
    for q in range(2):
        lines += [f'        {x}' for x in pieces.cut('x', f'j][{q}', f'a[at{q} + offset[j]]')]
    lines += ['    }', '#pragma unroll', f'    for (int i = 0; i < {down}; i++) {{']
    for q in range(4):
        value = f'b[(depth + {q // 2 * 4}) * {p.pitch} + i * 16 + {q % 2 * 8}]'
        lines += [f'        {x}' for x in pieces.cut('y', f'i][{q}', value)]
    lines += ['    }', *(f'    {x}' for x in pieces.multiplied(down, across, fresh=p.fresh)), '}']
    return [*lines, *([] if p.joint else ['}'])]


def store(p: PatchPlan) -> list[str]:
    """Through the epilogue into the result, pixel by pixel or in pairs."""
    c = p.contraction
    columns, rows = p.own
    run = 2 if _in_pairs(p) else 1
    lines = [
        '#pragma unroll',
        f'for (int j = 0; j < {rows}; j += {run}) {{',
        '    const int pixel = first_pixel + j / 2 * 8 + lane % 4 * 2 + j % 2;',
        *(f'    {line}' for line in patch_pixels.coordinates(p)),
        '#pragma unroll',
        f'    for (int i = 0; i < {columns}; i++) {{',
        f'        const int {c.vector} = first_column + own_column + lane / 4 + i * 8;',
    ]
    if p.columns % p.bk:
        lines += [f'        if ({c.vector} >= {p.columns})', '            continue;']
    lines += [f'        {line}' for line in pieces.epilogue_lines(p.epilogue)]
    values = []
    for lane in range(run):
        lines.append(f'        const float value{lane} = acc[i][j + {lane}];')
        text = p.epilogue.expression.replace('value', f'value{lane}')
        for item in p.epilogue.operands:
            if lane and item.stride(p.contraction.pixels[-1]):
                text = text.replace(f'{item.name}_at', f'{item.name}_at + {lane}')
        values.append(text)
    lines.append(f'        {pieces.stored(pieces.result(p.group), values)}')
    return [*lines, '    }', '}']


def _in_pairs(p: PatchPlan) -> bool:
    """Whether two neighbouring pixels of a lane are neighbours in the result, and aligned."""
    strides, const = access_strides(p.group, p.group.main.write)
    name, extent = p.contraction.pixels[-1], p.tile[-1][1]
    even = all(s % 2 == 0 for d, s in strides.items() if d != name) and const % 2 == 0
    return (
        strides[name] == 1
        and extent % 2 == 0
        and p.sizes[name] % 2 == 0
        and even
        and all(item.stride(name) in (0, 1) for item in p.epilogue.operands)
    )
