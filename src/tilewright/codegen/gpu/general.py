"""The fallback schema: one thread for each point of the result, for any stage with its epilogue.

It serves pooling, normalisations, element-wise operators and layout changes, and is the yardstick
of the tuned schemas (Boda Fig. 7). Decisions of a schedule:

    threads   of a block
    lanes     threads that share the reduction of a point, a power of two; 1 if not given. They
              join their results in shared memory, in a fixed order. For few points with a long
              reduction: softmax, global pooling.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.codegen.cpu.pointwise import Epilogue, c_expr, c_float, plan_epilogue
from tilewright.codegen.gpu import pieces
from tilewright.codegen.gpu.language import Kernel
from tilewright.codegen.gpu.module import Module, Step, tensor_buffers
from tilewright.errors import ScheduleError
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

NAME = 'general'
_START = {'sum': '0.0f', 'max': '-INFINITY'}
_COMBINE = {'sum': '{0} + {1}', 'max': 'MAXIMUM({0}, {1})'}


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group of one part, GpuSchedule] -> [Module]"""
    epilogue = plan_epilogue(group)
    made = kernel(group, epilogue, schedule['threads'], _lanes(group, schedule))
    operands = {item.name: item.tensor for item in epilogue.operands}
    return Module(group, tensor_buffers(group), (Step.of(made, **operands),))


def _lanes(group: Group, schedule: GpuSchedule) -> int:
    """Lanes of a point: as many as wanted, but no more than there is to reduce."""
    wanted, threads = dict(schedule.tiles).get('lanes', 1), schedule['threads']
    if wanted < 1 or wanted & (wanted - 1) or threads % wanted:
        raise ScheduleError(
            f'{group.label}: {wanted} lanes in a block of {threads} threads; give a power of two '
            f'that divides the threads'
        )
    length = math.prod(group.main.sizes[d] for d in group.main.reduction)
    while wanted > length:
        wanted //= 2
    return wanted


def kernel(group: Group, epilogue: Epilogue, threads: int, lanes: int = 1) -> Kernel:
    """The main stage with its epilogue."""
    stage = group.main
    parallel = [(d, stage.sizes[d]) for d in stage.parallel]
    points = math.prod(size for _, size in parallel)
    owners = threads // lanes
    ragged = points % owners
    if lanes == 1:
        body = [f'const int point = BLOCK_X * {threads} + THREAD;']
        if ragged:
            body += [f'if (point >= {points})', '    return;']
    else:
        body = [
            f'const int lane = THREAD % {lanes};',
            f'const int mine = BLOCK_X * {owners} + THREAD / {lanes};',
            # All threads have to reach the barriers: those behind the end repeat the last point.
            f'const int point = mine < {points} ? mine : {points - 1};' if ragged
            else 'const int point = mine;',
        ]  # fmt: skip
    body += pieces.decode('point', parallel)
    body += _value(group, lanes)
    if lanes > 1:
        body += [*_join(stage.combiner or 'sum', lanes)]
        body += [f'if (lane != 0{f" || mine >= {points}" if ragged else ""})', '    return;']
    body += pieces.epilogue_lines(epilogue)
    result = replace(stage.write, tensor=group.output.name)
    body.append(f'{pieces.element(group, result)} = {epilogue.expression};')
    reads = dict.fromkeys(access.tensor for access in stage.reads)
    return Kernel(
        f'general_{stage.name}',
        (
            *(pieces.argument(group.tensor(name)) for name in reads),
            *pieces.epilogue_arrays(group, epilogue),
            pieces.argument(group.output, written=True),
        ),
        '\n'.join(body),
        (-(-points // owners), 1, 1),
        threads,
        (('joined', threads),) if lanes > 1 else (),
    )


def _value(group: Group, lanes: int) -> list[str]:
    """Lines that compute `value` at one point: loops over the reductions, guarded reads."""
    stage = group.main
    sizes = [(d, stage.sizes[d]) for d in stage.reduction]
    lines = [f'float value = {_START[stage.combiner]};'] if stage.combiner else []
    if lanes > 1:
        length = math.prod(size for _, size in sizes)
        lines.append(f'for (int at = lane; at < {length}; at += {lanes}) {{')
        lines += pieces.decode('at', sizes)
    else:
        lines += [f'for (int {name} = 0; {name} < {size}; {name}++) {{' for name, size in sizes]
    operands = []
    for access in stage.reads:
        tests = pieces.guards(group, access, stage.sizes)
        element = pieces.element(group, access)
        operands.append(
            f'({" && ".join(tests)} ? {element} : {c_float(stage.pad_value)})' if tests else element
        )
    text = c_expr(stage.expr, operands)
    if stage.combiner:
        lines.append(f'value = {_COMBINE[stage.combiner].format("value", text)};')
        lines.append('}' * (1 if lanes > 1 else len(sizes)))
    else:
        lines.append(f'float value = {text};')
    return lines


def _join(combiner: str, lanes: int) -> list[str]:
    """The results of a point's lanes, halves upon halves, into `value` of its first lane."""
    joined = _COMBINE[combiner].format('joined[THREAD]', 'joined[THREAD + step]')
    return [
        'joined[THREAD] = value;',
        'BARRIER;',
        f'for (int step = {lanes // 2}; step > 0; step /= 2) {{',
        '    if (lane < step)',
        f'        joined[THREAD] = {joined};',
        '    BARRIER;',
        '}',
        'value = joined[THREAD];',
    ]
