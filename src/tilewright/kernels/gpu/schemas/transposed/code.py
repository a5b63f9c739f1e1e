"""The transposing schema: another layout, through squares in shared memory.

Goes in: a group that reads one tensor element by element, in another order of dimensions than it
writes. Comes out: a module of one kernel. With `a` the dimension that is contiguous in what is read
and `b` the one that is contiguous in what is written, a block takes a square of both

    tile[b][a] = In[.., b, .., a]        neighbouring threads along a
    Out[.., a, .., b] = f(tile[b][a])    neighbouring threads along b

so that both sides move whole lines. Rows of the square are one float longer than they have to be:
threads along b then read different banks. Decisions of a schedule:

    side   of a square                    rows   of a square that the block's threads take at once
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.pointwise import Epilogue
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import device_text, gpu_epilogue, helpers
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.gpu import GpuSchedule

NAME = 'transposed'
LEAST = 8  # of the shorter side, for squares that pay


@dataclass(frozen=True)
class TransposedPlan:
    """Everything that is decided before a line is written."""

    group: Group
    epilogue: Epilogue
    a: str
    b: str
    side: int
    rows: int

    @property
    def stage(self) -> Stage:
        return self.group.main

    @property
    def grid(self) -> list[tuple[str, int]]:
        """Squares along both dimensions, and all others, as blocks."""
        sizes = self.stage.sizes
        others = [(d, sizes[d]) for d in self.stage.parallel if d not in (self.a, self.b)]
        squares = [(f'block_{d}', -(-sizes[d] // self.side)) for d in (self.a, self.b)]
        return [*others, *squares]


def plan(group: Group, schedule: GpuSchedule) -> TransposedPlan:
    """[Group, GpuSchedule] -> [TransposedPlan]; raises ScheduleError where it does not fit."""
    why = _why_not(group)
    if why:
        raise ScheduleError(f'{group.label}: the transposing schema needs {why}')
    side, rows = schedule['side'], schedule['rows']
    if side < 1 or rows < 1 or side % rows:
        raise ScheduleError(f'{group.label}: {rows} rows do not divide a square of {side}')
    a, b = _ends(group.main)
    return TransposedPlan(group, gpu_epilogue(group), a, b, side, rows)


def _why_not(group: Group) -> str:
    """What is missing for this schema; '' where it fits."""
    stage = group.main
    if stage.combiner is not None or len(stage.reads) != 1:
        return 'a stage without a sum that reads one tensor'
    source = stage.reads[0]
    if pieces.guards(group, source, stage.sizes):
        return 'reads that stay inside their tensor'
    ends = [access.index[-1] for access in (source, stage.write)]
    if any([c for _, c in end.terms] != [1] for end in ends) or ends[0].names == ends[1].names:
        return 'one dimension that is contiguous before and another that is contiguous behind'
    return ''


def _ends(stage: Stage) -> tuple[str, str]:
    """The iterators that are contiguous in what is read and in what is written."""
    return stage.reads[0].index[-1].names[0], stage.write.index[-1].names[0]


def pays(group: Group) -> bool:
    """Whether the schema fits, and squares are filled to some extent."""
    return not _why_not(group) and min(group.main.sizes[d] for d in _ends(group.main)) >= LEAST


def propose(group: Group, _: GpuMachine) -> tuple[GpuSchedule, ...]:
    return (GpuSchedule.of(NAME, side=32, rows=8),) if group.is_plain and pays(group) else ()


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    operands = {item.name: item.tensor for item in p.epilogue.operands}
    return Module(group, tensor_buffers(group), (Step.of(kernel(p), **operands),))


def kernel(p: TransposedPlan) -> Kernel:
    stage, group = p.stage, p.group
    source = stage.reads[0]
    taken = pieces.element(group, source)
    result = replace(stage.write, tensor=group.output.name)
    value = device_text(GpuTyped(), stage.expr, [f'tile[lane * {p.side + 1} + row]'])
    body = [
        *pieces.decode('BLOCK_X', p.grid),
        f'const int lane = THREAD % {p.side}, first = THREAD / {p.side};',
        *_each(p, p.a, p.b, [f'tile[row * {p.side + 1} + lane] = {taken};']),
        'BARRIER;',
        *_each(
            p, p.b, p.a,
            [
                f'const float value = {value};',
                *pieces.epilogue_lines(p.epilogue),
                f'{pieces.element(group, result)} = {p.epilogue.expression};',
            ],
        ),
    ]  # fmt: skip
    return Kernel(
        f'transposed_{stage.name}',
        (
            pieces.argument(group.tensor(source.tensor)),
            *pieces.epilogue_arrays(group, p.epilogue),
            pieces.argument(group.output, written=True),
        ),
        '\n'.join(body),
        (math.prod(size for _, size in p.grid), 1, 1),
        p.side * p.rows,
        (('tile', p.side * (p.side + 1)),),
        helpers(group, p.epilogue),
    )


def _each(p: TransposedPlan, along: str, down: str, lines: list[str]) -> list[str]:
    """`lines` for every element of the square, neighbouring threads along `along`."""
    sizes = p.stage.sizes
    tests = [f'{d} < {sizes[d]}' for d in (along, down) if sizes[d] % p.side]
    return [
        '#pragma unroll',
        f'for (int row = first; row < {p.side}; row += {p.rows}) {{',
        f'    const int {along} = block_{along} * {p.side} + lane;',
        f'    const int {down} = block_{down} * {p.side} + row;',
        *([f'    if ({" && ".join(tests)}) {{'] if tests else []),
        *(f'        {line}' for line in lines),
        *(['    }'] if tests else []),
        '}',
    ]
