"""The winograd schema: a 3x3 convolution by F(m x m, 3x3), for images that are many or large.

Goes in: a group whose main stage is a dense 3x3 convolution with stride 1, and a schedule. Comes
out: a module. Three kernels a call, the matrices of ops/winograd_matrices.py written out:

    V[g][c][p] = B^T d B        one thread for each channel and tile; (m + 2)^2 points g
    M[g][k][p] = U[g] V[g]      a matrix product for each point, by another schema
    Out = A^T M A               one thread for each output channel and tile, then the epilogue

p counts the tiles of all images, innermost, so that threads side by side read and write side by
side at every point. Tiles reach beyond the image: zeros are read there, and nothing is written.
(m + 2)^2 products do the work of 9 m^2, 2.25 and 4 times fewer, but V and M are (m + 2)^2 / m^2
times the image and the result, and pass through memory. Ahead, once: U = G g G^T, in double, then
whatever the schema of the products packs. Decisions of a schedule:

    m      outputs of a tile each way: 2 or 4
    ...    those of the products: `fma` is the tiled schema, others are the patch schema, whose only
           pixel dimension is p (bp)

(Lavin & Gray 2016; docs/winograd.md has the matrices and their errors.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from tilewright.kernels.cpu.schemas.winograd.linear import linear
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.schemas.winograd.plan import (
    PRODUCTS,
    PointsPlan,
    WinogradPlan,
    cut,
    plan,
    result,
)
from tilewright.ops.group import Group, Tensor
from tilewright.schedule.gpu import GpuSchedule

THREADS = 256


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    product = PRODUCTS[schedule.intrinsic].generate(p.product, p.schedule)
    return around(group, product, _transforms(group, p.shape.down.m))


@lru_cache(maxsize=256)
def _transforms(group: Group, m: int) -> tuple[Step, Step, Step]:
    """Of weights, image and products: the same for all schedules of the products."""
    p = cut(group, m)
    return Step.of(filter_kernel(p)), Step.of(input_kernel(p)), last_step(p, output_kernel(p))


def around(group: Group, product: Module, transforms: tuple[Step, Step, Step]) -> Module:
    """The products between the transforms of the image and of the result; that of weights ahead."""
    ahead, first, last = transforms
    return Module(
        group,
        (*tensor_buffers(group), *product.buffers),
        (first, *product.steps, last),
        (ahead, *product.ahead),
    )


def last_step(p: PointsPlan, kernel: Kernel) -> Step:
    """The kernel that writes the result, with what its epilogue reads."""
    return Step.of(kernel, **{item.name: item.tensor for item in p.epilogue.operands})


def flat_threads(count: int) -> tuple[list[str], tuple[int, int, int]]:
    """(lines that give each thread its number `flat` below `count`, the grid)."""
    lines = [f'const int flat = BLOCK_X * {THREADS} + THREAD;']
    if count % THREADS:
        lines += [f'if (flat >= {count})', '    return;']
    return lines, (-(-count // THREADS), 1, 1)


def tile_of_thread(p: PointsPlan, channel: str, channels: int) -> list[str]:
    """The channel, the image and the tile in it of thread `flat`."""
    shape = p.shape
    sizes = [(channel, channels), ('n', shape.n), ('py', shape.ph), ('px', shape.pw)]
    return pieces.decode('flat', sizes)


def filter_kernel(p: WinogradPlan) -> Kernel:
    """U = G g G^T of every filter, in double, rounded once."""
    shape, weights = p.shape, p.weights
    points = p.product.tensor(p.product.main.reads[1].tensor)
    down, across, taps = shape.down, shape.across, shape.down.r
    count = shape.k * shape.c
    lines, grid = flat_threads(count)
    lines += [
        f'const GLOBAL float *const from = @{weights.name} + flat * {taps * across.r};',
        f'GLOBAL float *const to = @{points.name} + flat;',
        *(f'const double g{i} = from[{i}];' for i in range(taps * across.r)),
    ]
    for i, row in enumerate(down.g):
        for s in range(across.r):
            names = [f'g{r * across.r + s}' for r in range(taps)]
            lines.append(f'const double x{i}_{s} = {_weighted(row, names)};')
    for i in range(down.t):
        for j, row in enumerate(across.g):
            names = [f'x{i}_{s}' for s in range(across.r)]
            place = (i * across.t + j) * count
            lines.append(f'to[{place}] = (float)({_weighted(row, names)});')
    args = (pieces.argument(weights), pieces.argument(points, written=True))
    return Kernel('winograd_filter', args, '\n'.join(lines), grid, THREADS)


def _weighted(row: Sequence[Fraction], names: Sequence[str]) -> str:
    """A sum in double."""
    return ' + '.join(f'{float(c)!r} * {name}' for c, name in zip(row, names, strict=True) if c)


def input_kernel(p: WinogradPlan) -> Kernel:
    """V = B^T d B: row by row along the image, then down each column of points."""
    shape, image = p.shape, p.image
    down, across = shape.down, shape.across
    points = p.product.tensor(p.product.main.reads[0].tensor)
    lines, grid = flat_threads(shape.c * p.tiles)
    plane = shape.height * shape.width
    place = f'(n * {image.shape[1]} + c) * {plane} + top * {shape.width} + left'
    lines += [
        *tile_of_thread(p, 'c', shape.c),
        f'const int top = py * {down.m} - {shape.pad_top};',
        f'const int left = px * {across.m} - {shape.pad_left};',
        f'const int at = {place};',
        f'GLOBAL float *const to = @{points.name} + flat;',
    ]
    rows = _leaving('top', down.length, down.m, shape.ph, shape.pad_top, shape.height)
    columns = _leaving('left', across.length, across.m, shape.pw, shape.pad_left, shape.width)
    for name, tests in (('row', rows), ('column', columns)):
        lines += [f'const bool {name}{i} = {test};' for i, test in tests.items()]
    for i in range(down.length):
        for j, run in _runs(p):
            guards = [f'row{i}'] * (i in rows) + [f'column{j}'] * (j in columns)
            lines += _loaded(p, i, j, run, ' && '.join(guards))
        inputs = [f'x{i}_{j}' for j in range(across.length)]
        outputs = [f'y{i}_{j}' for j in range(across.t)]
        lines += linear(across.bt, inputs, outputs, 'float', f'r{i}')
    for j in range(across.t):
        inputs = [f'y{i}_{j}' for i in range(down.length)]
        outputs = [f'v{i}_{j}' for i in range(down.t)]
        lines += linear(down.bt, inputs, outputs, 'float', f'c{j}')
        for i, value in enumerate(outputs):
            lines.append(f'to[{_point(p, i, j, points)}] = {value};')
    args = (pieces.argument(image), pieces.argument(points, written=True))
    return Kernel('winograd_input', args, '\n'.join(lines), grid, THREADS)


def _runs(p: WinogradPlan) -> list[tuple[int, int]]:
    """(first column, how many) of what is loaded at once of a tile's row, four or two if aligned.

    Rows are whole numbers of these, so that each is inside the image or outside as a whole.
    """
    across, found, j = p.shape.across, [], 0
    while j < across.length:
        run = next(
            n
            for n in (4, 2, 1)
            if across.m % n == p.shape.width % n == (j - p.shape.pad_left) % n == 0
            and j + n <= across.length
        )
        found.append((j, run))
        j += run
    return found


def _loaded(p: WinogradPlan, i: int, j: int, run: int, guard: str) -> list[str]:
    """Row i of a tile from column j on, zeros where the guard does not hold."""
    place = f'at + {i * p.shape.width + j}'
    if run == 1:
        value, zeros = f'(@{p.image.name})[{place}]', '0.0f'
    else:
        value = f'LOAD{run}(GLOBAL, @{p.image.name} + ({place}))'
        zeros = f'FLOAT{run}({", ".join(["0.0f"] * run)})'
    text = f'{guard} ? {value} : {zeros}' if guard else value
    if run == 1:
        return [f'const float x{i}_{j} = {text};']
    return [
        f'const float{run} q{i}_{j} = {text};',
        *(f'const float x{i}_{j + lane} = q{i}_{j}.{"xyzw"[lane]};' for lane in range(run)),
    ]


def _leaving(
    first: str, length: int, step: int, tiles: int, before: int, extent: int
) -> dict[int, str]:
    """place in a tile -> C test that it is inside the image, for those that may be outside."""
    return {
        i: f'(unsigned)({first} + {i}) < {extent}u'
        for i in range(length)
        if i < before or (tiles - 1) * step - before + i >= extent
    }


def _point(p: WinogradPlan, i: int, j: int, points: Tensor) -> int:
    """Where row i and column j of a tile's points lie behind its first one."""
    return (i * p.shape.across.t + j) * points.strides[0]


def output_kernel(p: WinogradPlan) -> Kernel:
    """Out = A^T M A: down each column of points, then row by row through the epilogue."""
    shape = p.shape
    down, across = shape.down, shape.across
    points = p.product.output
    lines, grid = flat_threads(shape.k * p.tiles)
    lines += [
        *tile_of_thread(p, 'k', shape.k),
        f'const GLOBAL float *const from = @{points.name} + flat;',
        f'const int w = px * {across.m};',
    ]
    for j in range(across.t):
        inputs = [f'x{i}_{j}' for i in range(down.t)]
        outputs = [f'y{i}_{j}' for i in range(down.m)]
        for i, name in enumerate(inputs):
            lines.append(f'const float {name} = from[{_point(p, i, j, points)}];')
        lines += linear(down.at, inputs, outputs, 'float', f'c{j}')
    for i in range(down.m):
        lines += _row(p, i)
    args = (
        Array(points.name, points.dims, points.shape),
        *pieces.epilogue_arrays(p.group, p.epilogue),
        pieces.argument(p.group.output, written=True),
    )
    return Kernel(
        'winograd_output', args, '\n'.join(lines), grid, THREADS, (), helpers(p.group, p.epilogue)
    )


def _row(p: WinogradPlan, i: int) -> list[str]:
    """Row i of a tile's outputs, as many neighbours at once as rows of the result allow."""
    shape, across = p.shape, p.shape.across
    run = next(
        n
        for n in (4, 2, 1)
        if across.m % n == 0
        and shape.out_w % n == 0
        and (n == 1 or pieces.aligned(p.group, result(p.group), 'w', n))
    )
    ragged = shape.out_h % shape.down.m
    values = [f'value{j}' for j in range(across.m)]
    inputs = [f'y{i}_{j}' for j in range(across.t)]
    lines = [
        f'const int h = py * {shape.down.m} + {i};',
        *linear(across.at, inputs, values, 'float', f'r{i}'),
        *pieces.epilogue_lines(p.epilogue),
        f'GLOBAL float *const to = &{pieces.element(p.group, result(p.group))};',
    ]
    for j in range(0, across.m, run):
        texts = [_stored(p, j + lane) for lane in range(run)]
        store = {
            1: f'to[{j}] = {texts[0]};',
            2: f'STORE2(GLOBAL, to + {j}, {", ".join(texts)});',
            4: f'STORE4(GLOBAL, to + {j}, FLOAT4({", ".join(texts)}));',
        }[run]
        guard = f'if (w + {j} < {shape.out_w}) ' if j and shape.out_w % across.m else ''
        lines.append(f'{guard}{store}')
    opened = f'if (py * {shape.down.m} + {i} < {shape.out_h}) {{' if i and ragged else '{'
    return [opened, *(f'    {line}' for line in lines), '}']


def _stored(p: WinogradPlan, j: int) -> str:
    """Output j of a row behind the epilogue."""
    text = p.epilogue.expression.replace('value', f'value{j}')
    for item in p.epilogue.operands:
        step = j * item.stride('w')
        if step:
            text = text.replace(f'{item.name}_at', f'{item.name}_at + {step}')
    return text
