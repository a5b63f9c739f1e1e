"""The schema of inner products: kernels of a plan (plan.py).

Goes in: a group and a schedule. Comes out: a module of one kernel, or of two where blocks share a
tile: the first leaves partial sums in a workspace, the second adds them in a fixed order, applies
the epilogue and stores. Products are those of `tiled`: matrix instructions on operands that are cut
into a high and a low part, three for each.
"""

from __future__ import annotations

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.product import buffers_of
from tilewright.kernels.gpu.schemas.inner.plan import InnerPlan, Operand, plan
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

NAME, JOIN = 'inner', 'inner_join'
JOIN_THREADS = 128


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    operands = {item.name: item.tensor for item in p.epilogue.operands}
    sums = [partial_sums(p)] if p.split > 1 else []
    kernels = [summing_kernel(p, sums), *(_join(p, one) for one in sums)]
    return Module(
        group,
        (*tensor_buffers(group), *buffers_of(sums)),
        tuple(Step.of(kernel, **operands) for kernel in kernels),
    )


def partial_sums(p: InnerPlan) -> Array:
    """What each of the blocks that share a tile leaves."""
    return Array('partial', ('part', 'i'), (p.split, p.results), written=True)


def summing_kernel(p: InnerPlan, sums: list[Array]) -> Kernel:
    """The products; they go to `sums` where that is given, and else through the epilogue."""
    columns, rows = p.own
    ahead = p.stages - 1
    body = [
        *_place(p),
        f'float acc[{columns}][{rows}];',
        *pieces.cleared(columns, rows),
        *pieces.pipelined(
            ahead,
            [f'COPY_WAIT({max(ahead - 1, 0)});', 'BARRIER;'],
            [line for side in p.sides for line in _copies(p, *side)],
            ['COPY_WAIT(0);', 'BARRIER;'],
            _multiplied(p),
        ),
        *_store(p, bool(sums)),
    ]
    tensors = dict.fromkeys(operand.access.tensor for _, operand, _ in p.sides)
    behind = [] if sums else [
        *pieces.epilogue_arrays(p.group, p.epilogue), pieces.argument(p.group.output, written=True)
    ]  # fmt: skip
    return Kernel(
        f'{NAME}_{p.group.main.name}',
        (*(pieces.argument(p.group.tensor(name)) for name in tensors), *sums, *behind),
        '\n'.join(body),
        (p.tiles[0], p.tiles[1] * p.groups, p.split),
        p.threads,
        tuple((f'{side}_tile', p.stages * count * p.pitch) for side, _, count in p.sides),
        '' if sums else helpers(p.group, p.epilogue),
        frozenset(['mma_tf32']),
    )


def _place(p: InnerPlan) -> list[str]:
    """Which tile and pieces this block has, and where the sums of this thread begin."""
    across = p.bp // p.tp
    return [
        f'const int group = BLOCK_Y / {p.tiles[1]};',
        f'const int first_y = BLOCK_X * {p.bk}, '
        f'first_x = (BLOCK_Y - group * {p.tiles[1]}) * {p.bp};',
        *pieces.decode('group', p.roles.apart),
        f'const int lane = THREAD % {WARP}, warp = THREAD / {WARP};',
        f'const int begin = BLOCK_Z * {p.share};',
        f'const int end = begin + {p.share} < {p.iterations} ? begin + {p.share} : {p.iterations};',
        f'const int my_y = warp / {across} * {p.tk}, my_x = warp % {across} * {p.tp};',
    ]


def _copies(p: InnerPlan, side: str, operand: Operand, count: int) -> list[str]:
    """Copy piece `next` of one operand: neighbouring threads along the depth, then down."""
    run = p.run(operand)
    across = p.kb // run
    down = p.threads // across
    tensor = f'@{operand.access.tensor}'
    fixed = [*p.roles.depth, *p.roles.apart]
    start = total(
        [*(scaled(d, operand.strides.get(d, 0)) for d, _ in fixed if operand.strides.get(d)),
         str(operand.const)]
    )  # fmt: skip
    own = total([scaled(d, operand.strides[d]) for d, _ in operand.own])
    deep = [f'e < {p.length}'] if p.length % p.kb else []
    outside = [] if operand.each else operand.tests
    there = ['inside'] if deep or outside else []
    there += operand.tests if operand.each else []
    there += [f'{side}_at < {operand.count}'] if operand.count % count else []
    known = ' && '.join(there) or 'true'
    source = f'from + ({own})'
    copy = [
        f'const int {side}_at = first_{side} + row;',
        *pieces.decode(f'{side}_at', operand.own),
        f'const bool there = {known};',
        f'COPY{run}(to + row * {p.pitch}, {f"there ? {source} : {tensor}" if there else source}, '
        f'there);',
    ]
    return [
        '{',
        f'    const int deep = THREAD % {across} * {run};',
        f'    const int e = next * {p.kb} + deep;',
        *pieces.indented(pieces.decode('e', p.roles.depth)),
        f'    const bool inside = {" && ".join([*deep, *outside]) or "true"};',
        f'    const GLOBAL float *const from = {tensor} + ({start});',
        f'    SHARED float *const to = {side}_tile + {pieces.slot("next", p.stages)} * '
        f'{count * p.pitch} + deep;',
        *pieces.indented(pieces.dealt('row', f'THREAD / {across}', count, down, copy)),
        '}',
    ]


def _multiplied(p: InnerPlan) -> list[str]:
    """One piece by matrix instructions; fragments as in `tiled`, depths side by side."""
    slot, pitch = pieces.slot('now', p.stages), p.pitch
    across, down = p.tp // 8, p.tk // 16
    lines = [
        f'const SHARED float *const {side} = {side}_tile + {slot} * {count * pitch} + '
        f'(my_{side} + lane / 4) * {pitch} + lane % 4;'
        for side, _, count in p.sides
    ]
    lines += pieces.fragments(
        p.kb, down, across,
        lambda q: f'x[j * {8 * pitch} + e + {4 * q}]',
        lambda q: f'y[(i * 16 + {q % 2 * 8}) * {pitch} + e + {q // 2 * 4}]',
    )  # fmt: skip
    return [*lines, *pieces.multiplied(down, across, fresh=p.fresh), '}']


def _store(p: InnerPlan, partial: bool) -> list[str]:
    """Sums through the epilogue into the result, or into the workspace."""
    columns, rows = p.own
    tests = ' && '.join(
        f'{side}_at < {operand.count}' for side, operand, count in p.sides if operand.count % count
    )
    if partial:
        index = f'(group * {p.roles.tall.count} + y_at) * {p.roles.wide.count} + x_at'
        inside = [f'@partial[part=BLOCK_Z, i={index}] = acc[i][j];']
    else:
        inside = ['const float value = acc[i][j];', *_finished(p)]
    return [
        '#pragma unroll',
        f'for (int i = 0; i < {columns}; i++) {{',
        '    const int y_at = first_y + my_y + lane / 4 + i / 2 * 16 + i % 2 * 8;',
        '#pragma unroll',
        f'    for (int j = 0; j < {rows}; j++) {{',
        '        const int x_at = first_x + my_x + lane % 4 * 2 + j / 2 * 8 + j % 2;',
        f'        {f"if ({tests}) " if tests else ""}{{',
        *pieces.indented(inside, 3),
        '        }',
        '    }',
        '}',
    ]


def _finished(p: InnerPlan) -> list[str]:
    """From `value` at (y_at, x_at) through the epilogue into the result."""
    return [
        *pieces.decode('y_at', p.roles.tall.own),
        *pieces.decode('x_at', p.roles.wide.own),
        *pieces.epilogue_lines(p.epilogue),
        f'{pieces.result(p.group)} = {p.epilogue.expression};',
    ]


def _join(p: InnerPlan, sums: Array) -> Kernel:
    """The partial sums of every result, in a fixed order, and what follows them."""
    wide, tall = p.roles.wide.count, p.roles.tall.count
    body = [
        f'const int flat = BLOCK_X * {JOIN_THREADS} + THREAD;',
        f'if (flat >= {p.results})',
        '    return;',
        f'const int x_at = flat % {wide}, y_at = flat / {wide} % {tall};',
        f'const int group = flat / {wide * tall};',
        *pieces.decode('group', p.roles.apart),
        'float value = 0.0f;',
        '#pragma unroll 8',
        f'for (int part = 0; part < {p.split}; part++)',
        f'    value += @{sums.name}[part=part, i=flat];',
        *_finished(p),
    ]
    return Kernel(
        JOIN,
        (
            Array(sums.name, sums.dims, sums.sizes),
            *pieces.epilogue_arrays(p.group, p.epilogue),
            pieces.argument(p.group.output, written=True),
        ),
        '\n'.join(body),
        (-(-p.results // JOIN_THREADS), 1, 1),
        JOIN_THREADS,
        (),
        helpers(p.group, p.epilogue),
    )
