"""The schema of first places: where every number occurs first in a list, or how long the list is.

Goes in: a group Seen[x] = min over j of (f(In[j]) = x ? j : count), as the gradient of a table of
embeddings has it (ops/scatter.py). Comes out: a module of one kernel. By the definition every x
meets every j; here each thread owns those x that are `owners` apart, sets them to `count`, and
walks through the list backwards: it stores j where f(In[j]) is one of its own. What a thread writes
twice keeps the later store, the smaller j, so that no two threads ever meet. Decisions:

    threads   of a block            blocks    of the grid; owners = threads * blocks
"""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import safe_iterators
from tilewright.kernels.cpu.schemas.general.plan import Tables, affine_text, piece_of, read_texts
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.point import Point
from tilewright.kernels.gpu.schema import RESERVED
from tilewright.kernels.gpu.schemas.general.run import arguments
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Expr, Stage, index, whole
from tilewright.schedule.gpu import GpuSchedule

NAME = 'places'
THREADS, BLOCKS = 128, 64
LEAST = 1 << 16  # comparisons of the definition from which on this is shorter
UNROLLED = 8  # numbers of the list that are under way at once


def _number(stage: Stage) -> Expr | None:
    """f(In[j]) where the stage finds first places by it, else None."""
    if stage.combiner != 'min' or len(stage.parallel) != 1 or len(stage.reduction) != 1:
        return None
    (x,), (j,) = stage.parallel, stage.reduction
    expr = stage.expr
    if expr.op != 'where' or expr.args[1:] != (index(j), whole(stage.sizes[j])):
        return None
    test = expr.args[0]
    if test.op != 'eq' or test.args[1] != index(x) or x in test.args[0].iterators():
        return None
    return test.args[0] if all(x not in access.names for access in stage.reads) else None


def _applies(group: Group) -> bool:
    return len(group.stages) == 1 and _number(group.main) is not None


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]; raises ScheduleError where it does not fit."""
    if not _applies(group) or min(schedule['threads'], schedule['blocks']) < 1:
        raise ScheduleError(
            f'{group.label}: the {NAME} schema finds first places in a list, by at least one thread'
        )
    safe, _ = safe_iterators(group, RESERVED)
    made = _kernel(safe, schedule['threads'], schedule['blocks'])
    return Module(group, tensor_buffers(group), (Step.of(made),))


def _kernel(group: Group, threads: int, blocks: int) -> Kernel:
    tables, typed = Tables(), GpuTyped()
    used: list[str] = []

    def pointer(tensor: str, _: Access) -> tuple[str, tuple[int, ...]]:
        used.append(tensor)
        return tensor, group.tensor(tensor).strides

    stage = group.main
    piece = piece_of(group, tables, pointer, {}, ())
    point, number = Point(piece, typed), _number(stage)
    assert number is not None
    (x,), (j,) = stage.parallel, stage.reduction
    iterators = {name: affine_text(at) for name, at in piece.iterators.items()}
    text, dtype = typed.text(number, read_texts(piece.reads, [], point.element), iterators)
    value = narrow(typed.convert(text, dtype, 'i32'))
    owners, target = threads * blocks, f'{piece.write.pointer}[{piece.write.index({})}]'
    body = [
        f'const int own = BLOCK_X * {threads} + THREAD;',
        f'for (int {x} = own; {x} < {stage.sizes[x]}; {x} += {owners})',
        f'    {target} = {stage.sizes[j]};',
        f'#pragma unroll {UNROLLED}',
        f'for (int {j} = {stage.sizes[j] - 1}; {j} >= 0; {j}--) {{',
        f'    const int {x} = {value};',
        f'    if ((unsigned){x} < {stage.sizes[x]}u && {x} % {owners} == own)',
        f'        {target} = {j};',
        '}',
    ]
    return Kernel(
        f'{NAME}_{stage.name}', arguments(group, used), '\n'.join(body), (blocks, 1, 1), threads,
        (), typed.helpers(),
    )  # fmt: skip


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    if not _applies(group) or group.main.points < LEAST:
        return ()
    threads = min(THREADS, machine.threads_per_block)
    return (GpuSchedule.of(NAME, threads=threads, blocks=min(BLOCKS, machine.multiprocessors)),)
