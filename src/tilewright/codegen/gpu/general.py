"""The fallback schema: one thread for each point of the result, for any stage of any group.

Every stage becomes a kernel of its own, except that the pointwise stages directly behind a stage
are inlined at its store. It serves pooling, normalisations, element-wise operators and layout
changes, and is the yardstick of the tuned schemas (Boda Fig. 7).
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.codegen.cpu.pointwise import Epilogue, c_expr, c_float, plan_epilogue
from tilewright.codegen.gpu import pieces
from tilewright.codegen.gpu.language import Kernel
from tilewright.codegen.gpu.module import Module, Step, tensor_buffers
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

NAME = 'general'
_START = {'sum': '0.0f', 'max': '-INFINITY'}
_COMBINE = {'sum': 'value += {};', 'max': 'value = MAXIMUM(value, {});'}


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]; the schedule's `threads` is the size of a block."""
    epilogue = plan_epilogue(group)
    made = kernel(group, epilogue, schedule['threads'])
    operands = {item.name: item.tensor for item in epilogue.operands}
    return Module(group, tensor_buffers(group), (Step.of(made, **operands),))


def kernel(group: Group, epilogue: Epilogue, threads: int) -> Kernel:
    """The main stage with its epilogue."""
    stage = group.main
    parallel = [(d, stage.sizes[d]) for d in stage.parallel]
    points = math.prod(size for _, size in parallel)
    body = [f'const int point = BLOCK_X * {threads} + THREAD;']
    if points % threads:
        body += [f'if (point >= {points})', '    return;']
    body += pieces.decode('point', parallel)
    body += _value(group)
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
        (-(-points // threads), 1, 1),
        threads,
    )


def _value(group: Group) -> list[str]:
    """Lines that compute `value` at one point: loops over the reductions, guarded reads."""
    stage = group.main
    lines = [f'float value = {_START[stage.combiner]};' if stage.combiner else '']
    for name in stage.reduction:
        lines.append(f'for (int {name} = 0; {name} < {stage.sizes[name]}; {name}++) {{')
    operands = []
    for access in stage.reads:
        tests = pieces.guards(group, access, stage.sizes)
        element = pieces.element(group, access)
        operands.append(
            f'({" && ".join(tests)} ? {element} : {c_float(stage.pad_value)})' if tests else element
        )
    text = c_expr(stage.expr, operands)
    lines.append(
        _COMBINE[stage.combiner].format(text) if stage.combiner else f'float value = {text};'
    )
    lines.append('}' * len(stage.reduction))
    return [line for line in lines if line]
