"""The depthwise schema: a window over each plane on its own, several outputs a thread.

Goes in: a group whose main stage multiplies an image's window by weights and sums over nothing else
(depthwise convolutions, with any channel multiplier), and a schedule. Comes out: a module of one
kernel. Such a stage does R*S multiply-adds for every number that it reads, so what counts is that
each number is loaded once, in fours, and that many loads are under way:

    for every row of the image that a thread's outputs need      rows are unrolled
        the row into registers, fours where they are aligned
        acc[i][j] += x[j*sw + s*ds] * weight[r][s]                for every output row i it serves

Decisions of a schedule:

    th tw    outputs of a thread: rows, columns           bp   planes of a block
    bh bw    threads of a block along rows and columns    shared   1: the block's part of the image
                                                          is copied to shared memory first, 0: rows
                                                          come from global memory (and its cache)

Stride, dilation, padding and window are any; weights may change from call to call.
"""

from __future__ import annotations

import math

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.schemas.depthwise.plan import DepthwisePlan, plan
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    operands = {item.name: item.tensor for item in p.epilogue.operands}
    return Module(group, tensor_buffers(group), (Step.of(kernel(p), **operands),))


def kernel(p: DepthwisePlan) -> Kernel:
    body = [
        *_place(p),
        *(_copy(p) if p.shared else []),
        *_weights(p),
        *_accumulate(p),
        *_store(p),
    ]
    return Kernel(
        f'depthwise_{p.stage.name}',
        (
            pieces.argument(p.group.tensor(p.image.tensor)),
            pieces.argument(p.group.tensor(p.weights.tensor)),
            *pieces.epilogue_arrays(p.group, p.epilogue),
            pieces.argument(p.group.output, written=True),
        ),
        '\n'.join(body),
        (math.prod(p.tiles), 1, 1),
        p.threads,
        (('tile', p.shared_floats),) if p.shared else (),
        helpers(p.group, p.epilogue),
    )


def _place(p: DepthwisePlan) -> list[str]:
    """Which block and which outputs these are; threads without a plane end where none waits."""
    deep, down, across = p.tiles
    lines = [
        *pieces.decode('BLOCK_X', [('block_plane', deep), ('block_y', down), ('block_x', across)]),
        *pieces.decode('THREAD', [('my_plane', p.bp), ('my_y', p.bh), ('my_x', p.bw)]),
        f'const int plane = block_plane * {p.bp} + my_plane;',
        f'const int my_row = (block_y * {p.bh} + my_y) * {p.th};',
        f'const int my_column = (block_x * {p.bw} + my_x) * {p.tw};',
    ]  # fmt: skip
    if not p.shared:
        lines += _leave(p)
    return [*lines, *pieces.decode('plane', p.planes), *_fixed(p)]


def _leave(p: DepthwisePlan) -> list[str]:
    """The end of threads whose outputs all lie behind the last plane, row or column."""
    down, across = p.bh * p.th, p.bw * p.tw
    tests = [
        text
        for text, needed in (
            (f'plane >= {p.plane_count}', p.plane_count % p.bp),
            (f'my_row >= {p.rows.outputs}', p.rows.outputs % down),
            (f'my_column >= {p.columns.outputs}', p.columns.outputs % across),
        )
        if needed
    ]
    return [f'if ({" || ".join(tests)})', '    return;'] if tests else []


def _fixed(p: DepthwisePlan) -> list[str]:
    """Reductions of one point, such as the one channel of a group."""
    window = (p.rows.tap, p.columns.tap)
    return [f'const int {d} = 0;' for d in p.stage.reduction if d not in window]


def _base(p: DepthwisePlan, prefix: str = '') -> str:
    """Where a plane of the image begins."""
    strides, _ = access_strides(p.group, p.image)
    known = dict(p.planes)
    shape = p.group.tensor(p.image.tensor).strides
    const = sum(e.const * s for e, s in zip(p.image.index[:-2], shape, strict=False))
    terms = [scaled(f'{prefix}{d}', strides[d]) for d in known if strides.get(d)]
    return total([*terms, str(const)])


def _copy(p: DepthwisePlan) -> list[str]:
    """The block's part of its planes into shared memory, zeros where there is no image."""
    rows, columns = p.rows, p.columns
    four = 4 if p.fours else 1
    across = p.pitch // four
    count = p.bp * p.block_rows * across
    image = p.image.tensor
    top = f'block_y * {p.bh * p.th * rows.stride} + ({rows.const}) + line'
    left = f'block_x * {p.bw * p.tw * columns.stride} + ({columns.const - p.phase}) + x * {four}'
    known = [f'block_plane * {p.bp} + q < {p.plane_count}'] if p.plane_count % p.bp else []
    tests = [f'(unsigned)from_row < {rows.extent}u', f'(unsigned)from_column < {columns.extent}u']
    lines = [
        *pieces.decode('at', [('q', p.bp), ('line', p.block_rows), ('x', across)]),
        f'const int from_plane = block_plane * {p.bp} + q;',
        *pieces.decode('from_plane', p.planes, prefix='from_'),
        f'const int from_row = {top}, from_column = {left};',
        f'const bool there = {" && ".join([*known, *tests])};',
        f'const int from = there ? {_base(p, "from_")} + from_row * {columns.extent} + from_column '
        f': 0;',
        f'COPY{four}(tile + at * {four}, @{image} + from, there);',
    ]
    return [
        f'for (int at = THREAD; at < {count}; at += {p.threads}) {{',
        *(f'    {line}' for line in lines),
        '}',
        'COPY_COMMIT;',
        'COPY_WAIT(0);',
        'BARRIER;',
        *_leave(p),
    ]


def _weight(p: DepthwisePlan, r: str, s: str) -> str:
    """The weight of a window's point, as a reference to the argument."""
    names = {p.rows.tap: r, p.columns.tap: s}
    tensor = p.group.tensor(p.weights.tensor)
    places = zip(tensor.dims, p.weights.index, strict=True)
    return f'@{tensor.name}[{", ".join(f"{d}={pieces.index(e, names)}" for d, e in places)}]'


def _weights(p: DepthwisePlan) -> list[str]:
    if not p.kept:
        return []
    across = p.columns.taps
    return [
        f'float weight[{p.rows.taps * across}];',
        '#pragma unroll',
        f'for (int i = 0; i < {p.rows.taps}; i++)',
        '#pragma unroll',
        f'    for (int j = 0; j < {across}; j++)',
        f'        weight[i * {across} + j] = {_weight(p, "i", "j")};',
    ]


def _accumulate(p: DepthwisePlan) -> list[str]:
    """Row by row of the image: load what the thread needs, serve every output it belongs to."""
    rows, columns = p.rows, p.columns
    lines = [f'float acc[{p.th}][{p.tw}];', *pieces.cleared(p.th, p.tw)]
    if p.shared:
        lines.append(
            f'const SHARED float *const from = tile + {p.phase} + my_x * {p.tw * columns.stride} '
            f'+ (my_plane * {p.block_rows} + my_y * {p.th * rows.stride}) * {p.pitch};'
        )
    else:
        lines += [
            f'const int top = {total([scaled("my_row", rows.stride), str(rows.const)])};',
            f'const int left = {total([scaled("my_column", columns.stride), str(columns.const)])};',
            f'const int from = {_base(p)} + top * {columns.extent} + left;',
        ]
    for y in range(rows.span(p.th)):
        served = [
            (i, (y - i * rows.stride) // rows.dilation)
            for i in range(p.th)
            if 0 <= y - i * rows.stride <= (rows.taps - 1) * rows.dilation
            and (y - i * rows.stride) % rows.dilation == 0
        ]
        if served:
            lines += ['{', *(f'    {line}' for line in _row(p, y)), *_multiply(p, served), '}']
    return lines


def _row(p: DepthwisePlan, y: int) -> list[str]:
    """Row `y` of those that a thread needs into `x`, in fours as far as they are aligned."""
    span = p.columns.span(p.tw)
    lines, j = [f'float x[{span}];'], 0
    while j < span:
        start = j - (j + p.phase) % 4
        wanted = [q for q in range(4) if j <= start + q < span]
        if p.fours and len(wanted) > 1:
            lines += _four(p, y, start, wanted)
            j = start + 4
        else:
            lines.append(f'x[{j}] = {_element(p, y, j)};')
            j += 1
    return lines


def _element(p: DepthwisePlan, y: int, j: int) -> str:
    if p.shared:
        return f'from[{y * p.pitch + j}]'
    element = f'(@{p.image.tensor})[from + {y * p.columns.extent + j}]'
    tests = _tests(p, y, j)
    return f'{" && ".join(tests)} ? {element} : 0.0f' if tests else element


def _four(p: DepthwisePlan, y: int, start: int, wanted: list[int]) -> list[str]:
    """Elements `start` to `start + 4` at once; a four is inside the image or outside as a whole."""
    if p.shared:
        value = f'LOAD4(SHARED, from + ({y * p.pitch + start}))'
    else:
        value = f'LOAD4(GLOBAL, @{p.image.tensor} + from + ({y * p.columns.extent + start}))'
        tests = _tests(p, y, start)
        zeros = 'FLOAT4(0.0f, 0.0f, 0.0f, 0.0f)'
        value = f'{" && ".join(tests)} ? {value} : {zeros}' if tests else value
    return [
        '{',
        f'    const float4 v = {value};',
        *(f'    x[{start + q}] = v.{"xyzw"[q]};' for q in wanted),
        '}',
    ]


def _tests(p: DepthwisePlan, y: int, j: int) -> list[str]:
    """Bounds that element (y, j) of a thread may leave, given all threads that come this far."""
    tests = []
    for axis, own, offset, first in (
        (p.rows, p.th, y, 'top'), (p.columns, p.tw, j, 'left'),
    ):  # fmt: skip
        last = (axis.outputs - 1) // own * own * axis.stride + axis.const + offset
        if axis.const + offset < 0 or last >= axis.extent:
            tests.append(f'(unsigned)({first} + {offset}) < {axis.extent}u')
    return tests


def _multiply(p: DepthwisePlan, served: list[tuple[int, int]]) -> list[str]:
    step, apart, taps = p.columns.stride, p.columns.dilation, p.columns.taps
    lines = []
    for i, r in served:
        weight = f'weight[{r * taps} + q]' if p.kept else _weight(p, str(r), 'q')
        lines += [
            '#pragma unroll',
            f'    for (int q = 0; q < {taps}; q++)',
            '#pragma unroll',
            f'        for (int j = 0; j < {p.tw}; j++)',
            f'            acc[{i}][j] = FMA(x[j * {step} + q * {apart}], {weight}, acc[{i}][j]);',
        ]
    return lines


def _store(p: DepthwisePlan) -> list[str]:
    """Through the epilogue into the result, as many neighbours at once as rows allow."""
    rows, columns = p.rows, p.columns
    run = next(
        n
        for n in (4, 2, 1)
        if columns.outputs % n == 0
        and p.tw % n == 0
        and (n == 1 or pieces.aligned(p.group, p.stage.write, columns.out, n))
    )
    out = p.group.output
    lines = [f'const int {columns.out} = my_column;']
    for i in range(p.th):
        lines += ['{', f'    const int {rows.out} = my_row + {i};']
        lines += [f'    {line}' for line in pieces.epilogue_lines(p.epilogue)]
        places = zip(out.dims, p.stage.write.index, strict=True)
        target = f'@{out.name}[{", ".join(f"{d}={pieces.index(e)}" for d, e in places)}]'
        lines.append(f'    GLOBAL float *const to = &{target};')
        for j in range(0, p.tw, run):
            low = i and rows.outputs % p.th
            right = j and columns.outputs % p.tw
            tests = [f'{rows.out} < {rows.outputs}'] if low else []
            tests += [f'my_column + {j} < {columns.outputs}'] if right else []
            values = [_stored(p, i, j + lane) for lane in range(run)]
            store = {
                1: f'to[{j}] = {values[0]};',
                2: f'STORE2(GLOBAL, to + {j}, {", ".join(values)});',
                4: f'STORE4(GLOBAL, to + {j}, FLOAT4({", ".join(values)}));',
            }[run]
            guard = f'if ({" && ".join(tests)}) ' if tests else ''
            lines.append(f'    {guard}{store}')
        lines.append('}')
    return lines


def _stored(p: DepthwisePlan, i: int, j: int) -> str:
    """Output (i, j) of a thread behind the epilogue."""
    text = p.epilogue.expression.replace('value', f'acc[{i}][{j}]')
    for item in p.epilogue.operands:
        step = j * item.stride(p.columns.out)
        if step:
            text = text.replace(f'{item.name}_at', f'{item.name}_at + {step}')
    return text
