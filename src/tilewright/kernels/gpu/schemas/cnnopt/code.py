"""CNNOpt's RS and S kernels (PACT'22, Secs. 3.1-3.2) in CUCL.

Goes in: a group and a schedule (kernels/gpu/schemas/cnnopt/plan.py says what is decided). Comes
out: a module. Per channel, a block stages the input plane of its outputs and its weights in shared
memory; a thread holds R^k x R^y x R^x outputs in registers and

    RS kernel   reads its whole input slice, then each weight once:      for r, s, k: all y, x
    S kernel    reads one row of the slice at a time, needs fewer
                registers, and reads the weights for each row again:     for r, y, s, k: all x

Weights are packed ahead as [group][C][R][S][K], zero behind K. Padding and partial tiles become
zeros as the plane is staged, so that a problem whose input was padded before (as in the paper)
needs no tests at all.

Lanes of a warp that differ in k read weights side by side, in fours where R^k is a multiple of
four; lanes that differ in y or x alone read the same weights, and those that differ in k the same
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module
from tilewright.kernels.gpu.product import module_of, pack_kernel
from tilewright.kernels.gpu.schemas.cnnopt import join as cnnopt_join
from tilewright.kernels.gpu.schemas.cnnopt.plan import Axis, CnnoptPlan, plan
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine
from tilewright.schedule.gpu import GpuSchedule


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    kernels = [*cnnopt_join.before(p), main_kernel(p), *cnnopt_join.behind(p)]
    return module_of(p, [p.packed, *cnnopt_join.workspaces(p)], _pack_kernel(p), kernels)


def _pack_kernel(p: CnnoptPlan) -> Kernel:
    """The weights into [group][C][R S][K], zeros behind K."""
    c, loop = p.contraction, p.contraction.loop or '_none'
    sizes = [
        ('g_', p.groups), (loop, p.channels), (p.y.window, p.y.taps), (p.x.window, p.x.taps),
        (c.vector, p.padded_columns),
    ]  # fmt: skip
    body = [
        *pieces.decode('flat', sizes),
        *(pieces.decode('g_', p.batch) if p.batch else []),
        f'@{p.packed.name}[g=0, c=0, tap=0, k=flat] = {c.vector} < {p.columns} ? '
        f'{pieces.element(p.group, c.b)} : 0.0f;',
    ]
    return pack_kernel('cnnopt_pack', p, replace(p.packed, written=True), body)


def main_kernel(p: CnnoptPlan) -> Kernel:
    rows, columns = p.plane
    shared = [
        ('in_tile', p.stages * p.cb * rows * columns),
        ('w_tile', p.stages * p.cb * p.taps * p.block[0]),
        *cnnopt_join.shared(p),
    ]
    body = [*_place(p), *_accumulate(p), *cnnopt_join.store(p)]
    return Kernel(
        f'{"s" if p.rows else "rs"}_{p.group.main.name}',
        (
            pieces.argument(p.group.tensor(p.contraction.a.tensor)),
            p.packed,
            *cnnopt_join.arguments(p),
        ),
        '\n'.join(body),
        p.grid,
        p.threads,
        tuple(shared),
        helpers(p.group, p.epilogue),
        cnnopt_join.needs(p),
    )


def _place(p: CnnoptPlan) -> list[str]:
    """Which tile this block owns, where it reads, and which outputs this thread holds."""
    (bk, by, bx), (rk, ry, rx) = p.block, p.registers
    (tk, _, tx), (wk, _, wx) = p.lanes, p.warps
    tiles_k, tiles_y, tiles_x = p.tiles
    tensor = p.group.tensor(p.contraction.a.tensor)
    spatial = (p.y.place, p.x.place)
    fixed = [
        scaled(f'({pieces.index(e)})', stride)
        for place, (e, stride) in enumerate(zip(_without(p), tensor.strides, strict=True))
        if place not in spatial and (e.terms or e.const)
    ]
    return [
        *pieces.decode('BLOCK_X', [*p.images, ('tile_y', tiles_y), ('tile_x', tiles_x)]),
        f'const int group = {f"BLOCK_Y / {tiles_k}" if p.groups > 1 else "0"};',
        *(pieces.decode('group', p.batch) if p.batch else []),
        f'const int first_k = (BLOCK_Y - group * {tiles_k}) * {bk};',
        f'const int first_y = tile_y * {by}, first_x = tile_x * {bx};',
        f'const int in_y = {_first(p.y, "first_y")}, in_x = {_first(p.x, "first_x")};',
        f'const int base = {total(fixed)};',
        f'const int lane = THREAD % {WARP}, warp = THREAD / {WARP};',
        f'const int my_k = warp % {wk} * {tk * rk} + lane % {tk} * {4 if rk % 4 == 0 else 1};',
        f'const int my_x = (warp / {wk} % {wx} * {tx} + lane / {tk} % {tx}) * {rx};',
        f'const int my_y = (warp / {wk * wx} * {p.lanes[1]} + lane / {tk * tx}) * {ry};',
        f'const int begin = BLOCK_Z * {p.share};',
        f'const int end = begin + {p.share} < {p.iterations} ? begin + {p.share} : {p.iterations};',
    ]


def _without(p: CnnoptPlan) -> Iterator[Affine]:
    """Indices of the input without the reduction that is looped over."""
    loop = p.contraction.loop
    for e in p.contraction.a.index:
        yield Affine(tuple((n, c) for n, c in e.terms if n != loop), e.const)


def _first(axis: Axis, tile: str) -> str:
    """Where a block's plane begins along an axis; outside the input where there is padding."""
    return total([scaled(tile, axis.stride), str(axis.const)])


def _accumulate(p: CnnoptPlan) -> list[str]:
    """The loop over pieces of channels: copy one that is needed later, multiply the one here."""
    ahead = p.stages - 1
    k, y, x = p.registers
    return [
        f'float acc[{k}][{y}][{x}];',
        *clear(p),
        *pieces.pipelined(
            ahead,
            ['if (now >= begin) {', f'    COPY_WAIT({max(ahead - 1, 0)});', '    BARRIER;', '}'],
            _copies(p),
            ['COPY_WAIT(0);', 'BARRIER;'],
            _multiply(p),
            [] if ahead else ['BARRIER;'],
        ),
    ]


def clear(p: CnnoptPlan) -> list[str]:
    return [*cnnopt_join.loops(p), '            acc[i][j][l] = 0.0f;']


def _slot(p: CnnoptPlan, piece: str, floats: int) -> str:
    return f'{piece} % {p.stages} * {floats}' if p.stages > 1 else '0'


def _copies(p: CnnoptPlan) -> list[str]:
    """Stage the channels of piece `next`: a plane of the input, and the weights of the block."""
    rows, columns = p.plane
    plane, width = rows * columns, p.block[0]
    strides = p.group.tensor(p.contraction.a.tensor).strides
    channel = sum(
        e.coefficient(p.contraction.loop) * stride
        for e, stride in zip(p.contraction.a.index, strides, strict=True)
    )
    source = total(
        [
            'base',
            scaled(f'(next * {p.cb} + channel)', channel),
            scaled('row', strides[p.y.place]),
            scaled('column', strides[p.x.place]),
        ]
    )
    tests = []
    if p.channels % p.cb:
        tests.append(f'next * {p.cb} + channel < {p.channels}')
    for axis, tiles, block, name in (
        (p.y, p.tiles[1], p.block[1], 'row'),
        (p.x, p.tiles[2], p.block[2], 'column'),
    ):
        if axis.const < 0 or axis.const + axis.slice(tiles * block) > axis.extent:
            tests.append(f'(unsigned){name} < {axis.extent}u')
    unit = 4 if width % 4 == 0 else 1
    weights = p.cb * p.taps * width // unit
    kept = f'next * {p.cb} + at / {p.taps * width // unit} < {p.channels}'
    return [
        f'SHARED float *const to_in = in_tile + {_slot(p, "next", p.cb * plane)};',
        f'SHARED float *const to_w = w_tile + {_slot(p, "next", p.cb * p.taps * width)};',
        f'const GLOBAL float *const from_w = &@{p.packed.name}[g=group, c=next * {p.cb}, tap=0, '
        f'k=first_k];',
        '#pragma unroll 4',
        f'for (int at = THREAD; at < {p.cb * plane}; at += {p.threads}) {{',
        f'    const int channel = {f"at / {plane}" if p.cb > 1 else "0"};',
        f'    const int row = in_y + at % {plane} / {columns}, column = in_x + at % {columns};',
        f'    COPY1(to_in + at, @{p.contraction.a.tensor} + ({source}), '
        f'{" && ".join(tests) or "true"});',
        '}',
        '#pragma unroll 4',
        f'for (int at = THREAD; at < {weights}; at += {p.threads})',
        f'    COPY{unit}(to_w + at * {unit}, '
        f'from_w + at / {width // unit} * {p.padded_columns} + at % {width // unit} * {unit}, '
        f'{kept if p.channels % p.cb else "true"});',
    ]


def _multiply(p: CnnoptPlan) -> list[str]:
    """All products of one piece."""
    rows, columns = p.plane
    width = p.block[0]
    return [
        f'const SHARED float *const in_at = in_tile + {_slot(p, "now", p.cb * rows * columns)} '
        f'+ my_y * {p.y.stride * columns} + my_x * {p.x.stride};',
        f'const SHARED float *const w_at = w_tile + {_slot(p, "now", p.cb * p.taps * width)} '
        '+ my_k;',
        '#pragma unroll 1',
        f'for (int channel = 0; channel < {p.cb}; channel++) {{',
        f'    const SHARED float *const input = in_at + channel * {rows * columns};',
        f'    const SHARED float *const weight = w_at + channel * {p.taps * width};',
        *(f'    {line}' for line in (_by_rows(p) if p.rows else _by_windows(p))),
        '}',
    ]


def _by_windows(p: CnnoptPlan) -> list[str]:
    """RS kernel (Fig. 1c): the input slice once, then every weight once."""
    _, pitch = p.plane
    rows, columns = p.slice
    y, x = p.y, p.x
    return [
        f'float v[{rows}][{columns}];',
        '#pragma unroll',
        f'for (int j = 0; j < {rows}; j++)',
        '#pragma unroll',
        f'    for (int l = 0; l < {columns}; l++)',
        f'        v[j][l] = input[j * {pitch} + l];',
        '#pragma unroll',
        f'for (int a = 0; a < {y.taps}; a++)',
        '#pragma unroll',
        f'    for (int b = 0; b < {x.taps}; b++) {{',
        *(f'        {line}' for line in _weights(p, f'(a * {x.taps} + b)')),
        *(f'    {line}' for line in cnnopt_join.loops(p)),
        f'                acc[i][j][l] = FMA(v[{scaled("j", y.stride)} + {scaled("a", y.dilation)}]'
        f'[{scaled("l", x.stride)} + {scaled("b", x.dilation)}], u[i], acc[i][j][l]);',
        '    }',
    ]


def _by_rows(p: CnnoptPlan) -> list[str]:
    """S kernel (Fig. 1d): a row of the slice at a time, the weights again for each."""
    _, pitch = p.plane
    _, columns = p.slice
    k, rows, points = p.registers
    y, x = p.y, p.x
    row = f'{scaled("j", y.stride)} + {scaled("a", y.dilation)}'
    return [
        '#pragma unroll 1',
        f'for (int a = 0; a < {y.taps}; a++) {{',
        '#pragma unroll',
        f'    for (int j = 0; j < {rows}; j++) {{',
        f'        float v[{columns}];',
        '#pragma unroll',
        f'        for (int l = 0; l < {columns}; l++)',
        f'            v[l] = input[({row}) * {pitch} + l];',
        '#pragma unroll',
        f'        for (int b = 0; b < {x.taps}; b++) {{',
        *(f'            {line}' for line in _weights(p, f'(a * {x.taps} + b)')),
        '#pragma unroll',
        f'            for (int i = 0; i < {k}; i++)',
        '#pragma unroll',
        f'                for (int l = 0; l < {points}; l++)',
        f'                    acc[i][j][l] = FMA(v[{scaled("l", x.stride)} + '
        f'{scaled("b", x.dilation)}], u[i], acc[i][j][l]);',
        '        }',
        '    }',
        '}',
    ]


def _weights(p: CnnoptPlan, tap: str) -> list[str]:
    """Declare `u`, the weights of this thread at one tap."""
    k, width = p.registers[0], p.block[0]
    lines = [f'float u[{k}];']
    if k % 4:
        return [
            *lines,
            '#pragma unroll',
            f'for (int i = 0; i < {k}; i++)',
            f'    u[i] = weight[{tap} * {width} + {cnnopt_join.column_at(p, "i")}];',
        ]
    lines += ['#pragma unroll', f'for (int i = 0; i < {k}; i += 4) {{']
    place = f'weight + {tap} * {width} + {cnnopt_join.column_at(p, "i")}'
    lines.append(f'    const float4 four = LOAD4(SHARED, {place});')
    lines += [f'    u[i + {lane}] = four.{part};' for lane, part in enumerate('xyzw')]
    return [*lines, '}']
