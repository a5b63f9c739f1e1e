"""How the sums of CNNOpt's kernels reach the result (PACT'22, Sec. 3.2: split input channels).

Each block holds sums over its share of the input channels. Without a split they go through the
epilogue into the result; with one, there are three ways, each a different set of kernels

    0  atomics       zero the result, add to it, then the epilogue over it, where there is one
    1  second pass   every part leaves its sums; a second kernel adds them up in a fixed order
    2  last block    every part leaves its sums; a tile's last block adds them up in a fixed order

All kernels that a call needs are steps of the module, so that all are counted when it is timed.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.product import workspace
from tilewright.kernels.gpu.schemas.cnnopt.plan import CnnoptPlan

ATOMICS, SECOND_PASS, LAST_BLOCK = range(3)
THREADS = 256


def loops(p: CnnoptPlan) -> list[str]:
    """Loops over the outputs of a thread: i, j and l along k, y and x."""
    k, y, x = p.registers
    return [
        '#pragma unroll',
        f'for (int i = 0; i < {k}; i++)',
        '#pragma unroll',
        f'    for (int j = 0; j < {y}; j++)',
        '#pragma unroll',
        f'        for (int l = 0; l < {x}; l++)',
    ]


def column_at(p: CnnoptPlan, i: str) -> str:
    """Where output channel `i` of a thread lies behind its first one: lanes are side by side."""
    k, across = p.registers[0], p.lanes[0]
    if k % 4:
        return f'{i} * {across}'
    return f'{i} / 4 * {across * 4} + {i} % 4'


def _way(p: CnnoptPlan) -> int | None:
    return p.join if p.split > 1 else None


def _tiles(p: CnnoptPlan) -> int:
    return p.grid[0] * p.grid[1]


def workspaces(p: CnnoptPlan) -> list[Array]:
    """Where parts leave their sums, as the result lies or tile by tile, and what counts those of a
    tile.
    """
    if _way(p) == LAST_BLOCK:
        return workspace(p.split, _tiles(p), math.prod(p.registers) * p.threads)
    out = p.group.output
    whole = Array('partial', ('part', *out.dims), (p.split, *out.shape), written=True)
    return [whole] if _way(p) == SECOND_PASS else []


def shared(p: CnnoptPlan) -> list[tuple[str, int]]:
    return [('arrived', 4)] if _way(p) == LAST_BLOCK else []


def needs(p: CnnoptPlan) -> frozenset[str]:
    return frozenset({'device_fence'} if _way(p) == LAST_BLOCK else ())


def arguments(p: CnnoptPlan) -> list[Array]:
    """Arguments of the main kernel behind its operands."""
    out = pieces.argument(p.group.output, written=True)
    way = _way(p)
    if way == ATOMICS:
        return [out]
    if way == SECOND_PASS:
        return workspaces(p)
    operands = pieces.epilogue_arrays(p.group, p.epilogue)
    return [*operands, *workspaces(p), out]


def store(p: CnnoptPlan) -> list[str]:
    """What a block does with its sums."""
    way = _way(p)
    if way == LAST_BLOCK:
        return [*_gather(p), *_finish(p)]
    if way is None:
        return _finish(p)
    if way == ATOMICS:
        return _each(p, [f'ATOMIC_ADD(&{_target(p)}, acc[i][j][l]);'])
    return _each(p, [f'{_target(p, "partial", "part=BLOCK_Z, ")} = acc[i][j][l];'])


def _target(p: CnnoptPlan, name: str = '', first: str = '') -> str:
    """The element of the result (or of a workspace that lies like it) at the current iterators."""
    out = p.group.output
    places = zip(out.dims, p.group.main.write.index, strict=True)
    return f'@{name or out.name}[{first}{", ".join(f"{d}={pieces.index(e)}" for d, e in places)}]'


def _tests(p: CnnoptPlan) -> list[str]:
    names = (p.contraction.vector, p.y.pixel, p.x.pixel)
    limits = (p.columns, p.y.outputs, p.x.outputs)
    return [
        f'{name} < {limit}'
        for name, limit, block in zip(names, limits, p.block, strict=True)
        if limit % block
    ]


def _each(p: CnnoptPlan, lines: list[str], step: int = 1) -> list[str]:
    """Run lines for the outputs of a thread, `step` of them at a time along x."""
    k, y, x = p.registers
    tests = _tests(p)
    return [
        '#pragma unroll',
        f'for (int i = 0; i < {k}; i++) {{',
        f'    const int {p.contraction.vector} = first_k + my_k + {column_at(p, "i")};',
        '#pragma unroll',
        f'    for (int j = 0; j < {y}; j++) {{',
        f'        const int {p.y.pixel} = first_y + my_y + j;',
        '#pragma unroll',
        f'        for (int l = 0; l < {x}; l += {step}) {{',
        f'            const int {p.x.pixel} = first_x + my_x + l;',
        *([f'            if ({" && ".join(tests)}) {{'] if tests else []),
        *(f'            {line}' for line in lines),
        *(['            }'] if tests else []),
        '        }',
        '    }',
        '}',
    ]


def _finish(p: CnnoptPlan) -> list[str]:
    """Through the epilogue into the result, two or four at once where they lie side by side."""
    run = _run(p)
    lines = pieces.epilogue_lines(p.epilogue)
    values = []
    for lane in range(run):
        lines.append(f'const float value{lane} = acc[i][j][l + {lane}];')
        values.append(p.epilogue.expression.replace('value', f'value{lane}'))
    lines.append(pieces.stored(_target(p), values))
    return _each(p, lines, run)


def _run(p: CnnoptPlan) -> int:
    """Outputs along x that are stored at once: neighbours in the result, the same epilogue."""
    if any(item.stride(p.x.pixel) for item in p.epilogue.operands):
        return 1
    for run in (4, 2):
        whole = p.registers[2] % run == 0 and p.x.outputs % run == 0
        if whole and pieces.aligned(p.group, p.group.main.write, p.x.pixel, run):
            return run
    return 1


def _gather(p: CnnoptPlan) -> list[str]:
    """Leave this part's sums; go on in the block that comes last, with the sum of all parts."""
    k, y, x = p.registers
    tile = k * y * x * p.threads
    place = f'((i * {y} + j) * {x} + l) * {p.threads} + THREAD'
    return [
        f'const int tile = BLOCK_Y * {p.grid[0]} + BLOCK_X;',
        f'GLOBAL float *const mine = @partial + (BLOCK_Z * {_tiles(p)} + tile) * {tile};',
        *loops(p),
        f'            mine[{place}] = acc[i][j][l];',
        *pieces.last_block(p.split),
        *loops(p),
        '            acc[i][j][l] = 0.0f;',
        f'for (int part = 0; part < {p.split}; part++) {{',
        f'    const GLOBAL float *const from = @partial + (part * {_tiles(p)} + tile) * {tile};',
        *(f'    {line}' for line in loops(p)),
        f'                acc[i][j][l] += from[{place}];',
        '}',
    ]


def before(p: CnnoptPlan) -> list[Kernel]:
    """Zeros for atomics."""
    if _way(p) != ATOMICS:
        return []
    out = p.group.output
    return [_pointwise(p, 'cnnopt_zero', [], [f'{_target(p)} = 0.0f;'], (), out.name)]


def behind(p: CnnoptPlan) -> list[Kernel]:
    """The sum of the parts, or the epilogue that atomics leave undone."""
    way = _way(p)
    out = p.group.output
    operands = pieces.epilogue_arrays(p.group, p.epilogue)
    last = [
        *pieces.epilogue_lines(p.epilogue),
        f'{_target(p)} = {p.epilogue.expression};',
    ]
    if way == ATOMICS and p.group.epilogue:
        value = [f'const float value = {_target(p)};']
        return [_pointwise(p, 'cnnopt_finish', operands, value, last, out.name)]
    if way == SECOND_PASS:
        value = [
            'float value = 0.0f;',
            '#pragma unroll 4',
            f'for (int part = 0; part < {p.split}; part++)',
            f'    value += {_target(p, "partial", "part=part, ")};',
        ]
        arrays = [*(replace(space, written=False) for space in workspaces(p)), *operands]
        return [_pointwise(p, 'cnnopt_join', arrays, value, last, out.name)]
    return []


def _pointwise(
    p: CnnoptPlan, name: str, arrays: list[Array], first: list[str], last: list[str] | tuple[()],
    result: str,
) -> Kernel:  # fmt: skip
    """A kernel with one thread for each point of the result."""
    stage = p.group.main
    parallel = [(d, stage.sizes[d]) for d in stage.parallel]
    points = math.prod(size for _, size in parallel)
    body = [
        f'const int point = BLOCK_X * {THREADS} + THREAD;',
        *([f'if (point >= {points})', '    return;'] if points % THREADS else []),
        *pieces.decode('point', parallel),
        *first,
        *last,
    ]
    out = pieces.argument(p.group.tensor(result), written=True)
    return Kernel(
        name, (*arrays, out), '\n'.join(body), (-(-points // THREADS), 1, 1), THREADS,
        helpers=helpers(p.group, p.epilogue),
    )  # fmt: skip
