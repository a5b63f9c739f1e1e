"""The rows schema: all parts of a group in one kernel, one block for each point that they share.

Goes in: a group of several parts (ops/parts.py) that share dimensions (kernels/cpu/shared.py):
softmax, layer and group normalisation. Comes out: a module of one kernel; parts that need no input
run ahead, as kernels of the general schema.

    softmax over w, for n, h (a block):    Peak | Total | Out[w]    barriers between them

What lies between the parts stays in shared memory. A part with a single point left is reduced by
all threads together, halves upon halves; others are dealt out, a point to a thread. Decisions:

    threads   of a block, a power of two
    lanes     32: a warp for each row (lanes.py); unsaid: the whole block
    run       neighbours that a lane moves at once: 1, 2, 4 or 8
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.names import rename_stage, safe_iterators
from tilewright.kernels.cpu.schemas.general.plan import Tables, local_strides, piece_of
from tilewright.kernels.cpu.shared import Shared, shared_dims
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import BEGINS, ENDS, Array, Kernel
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers
from tilewright.kernels.gpu.point import Point, outside_in, table_lines
from tilewright.kernels.gpu.schema import RESERVED
from tilewright.kernels.gpu.schemas.general import code as general
from tilewright.kernels.gpu.schemas.rows import lanes as by_lanes
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.ops.parts import depends_on_inputs, parts
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'rows'
MOST_SHARED = 8192  # floats between the parts that a block keeps
LONGEST_ROW = 1 << 16  # elements that one block walks sooner than several kernels start
THREADS_OF_LANES = 128
LONGEST_OF_LANES = 4096  # elements that one warp walks sooner than a block
_OWN = frozenset({'here', 'made', 'turn'})


@dataclass(frozen=True)
class RowsPlan:
    """Parts with shared dimensions under one name each; `local` tensors are in shared memory.

    local   tensor -> (elements, strides)
    teams   rows of a block: 1, or one for each warp      run   neighbours that a lane moves
    """

    ahead: tuple[Group, ...]
    running: tuple[Group, ...]
    shared: tuple[tuple[str, int], ...]
    local: Mapping[str, tuple[int, tuple[int, ...]]]
    threads: int
    teams: int
    run: int

    @property
    def rows(self) -> int:
        return math.prod(size for _, size in self.shared)


def plan(group: Group, schedule: GpuSchedule) -> RowsPlan:
    """[Group, GpuSchedule] -> [RowsPlan]; raises ScheduleError where parts do not go together."""
    found, threads = parts(group), schedule['threads']
    if threads < 1 or threads & (threads - 1):
        raise ScheduleError(f'{group.label}: {threads} threads of a block; give a power of two')
    lanes, run = (
        dict(schedule.tiles).get(n, value) for n, value in (('lanes', threads), ('run', 1))
    )
    if lanes not in (threads, by_lanes.LANES) or threads % lanes or run not in by_lanes.RUNS:
        raise ScheduleError(
            f'{group.label}: {lanes} lanes of a row, runs of {run}; give {by_lanes.LANES} lanes '
            f'that divide the {threads} threads, and one of {by_lanes.RUNS}'
        )
    needed = (*depends_on_inputs(group)[:-1], True)
    running = tuple(part for part, runs in zip(found, needed, strict=True) if runs)
    ahead = tuple(part for part, runs in zip(found, needed, strict=True) if not runs)
    if len(running) < 2:
        raise ScheduleError(f'{group.label}: the rows schema joins several parts; it has one')
    shared = shared_dims(running)
    names = tuple(f's{number}_' for number in range(len(shared)))
    renamed = tuple(_renamed(p, n, shared, names) for n, p in enumerate(running))
    sizes = tuple((name, renamed[-1].main.sizes[name]) for name in names)
    local = {}
    for number, part in enumerate(running[:-1]):
        kept = {item.axes[number]: 1 for item in shared}
        shape = part.output.shape
        count = math.prod(kept.get(axis, extent) for axis, extent in enumerate(shape))
        local[part.output.name] = count, local_strides(shape, kept)
    teams = threads // lanes
    if sum(count * teams for count, _ in local.values()) > MOST_SHARED:
        raise ScheduleError(
            f'{group.label}: more than {MOST_SHARED} elements lie between its parts; use '
            f'{general.NAME}'
        )
    return RowsPlan(ahead, renamed, sizes, local, threads, teams, run)


def _renamed(part: Group, number: int, shared: Sequence[Shared], names: Sequence[str]) -> Group:
    """The part with shared dimensions under their common names, the others under safe ones."""
    own = {item.names[number]: name for item, name in zip(shared, names, strict=True)}
    safe = safe_iterators(part, RESERVED | _OWN)[1]
    mapping = {d.name: own.get(d.name) or safe[d.name] for d in part.main.dims}
    stages = tuple(rename_stage(s, mapping) if s is part.main else s for s in part.stages)
    return replace(part, stages=stages)


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    first = GpuSchedule.of(general.NAME, threads=128)
    ahead = [general.generate(part, first).steps[0] for part in p.ahead]
    made = [Buffer(t.name, t.dims, t.shape, t.dtype) for t in (part.output for part in p.ahead)]
    main = kernel(group, p)
    return Module(group, (*tensor_buffers(group), *made), (Step.of(main),), tuple(ahead))


def kernel(group: Group, p: RowsPlan) -> Kernel:
    tables, typed = Tables(), GpuTyped.of(group)
    used: dict[str, None] = {}
    body, arrays = _place(p), [('joined', p.threads * 2)] * (p.teams == 1)
    for name, (count, _) in p.local.items():
        dtype = group.tensor(name).dtype
        kind, place = C_TYPES[dtype], f'{name}_kept'
        if p.teams > 1 and count == 1:
            body.append(f'{kind} {name}_here[1];')
            continue
        arrays.append((place, -(-p.teams * count * DTYPES[dtype] // 4)))
        mine = f' + THREAD / {by_lanes.LANES} * {count}' if p.teams > 1 else ''
        body.append(f'SHARED {kind} *const {name}_here = (SHARED {kind} *){place}{mine};')
    first: list[str] = []
    rest: list[str] = []
    constants = {tensor.name for tensor in group.with_role('constant')}
    for number, part in enumerate(p.running):

        def pointer(tensor: str, access: Access, part: Group = part) -> tuple[str, tuple[int, ...]]:
            if tensor in p.local:
                return f'{tensor}_here', p.local[tensor][1]
            used[tensor] = None
            return tensor, part.tensor(tensor).strides

        piece = piece_of(part, tables, pointer, {}, [name for name, _ in p.shared])
        point = Point(piece, typed)
        if p.teams > 1:
            last = number == len(p.running) - 1  # the others leave a number each for a row
            by = by_lanes.part(point, p.run, constants if last else ())
            first, lines = [*first, *by.first], by.lines
        else:
            lines = _part(point, p.threads)
        rest += ['{', *pieces.indented(lines), '}']
        if number < len(p.running) - 1 and arrays:
            rest.append('BARRIER;')
    body += [*first, BEGINS, ENDS, *rest]
    written = group.output.name
    args = tuple(
        Array(t.name, t.dims, t.shape, t.dtype, written=t.name == written)
        for t in (group.tensor(name) for name in used)
    )
    return Kernel(
        f'rows_{group.main.name}',
        args,
        '\n'.join(body),
        (-(-p.rows // p.teams), 1, 1),
        p.threads,
        tuple(arrays),
        '\n'.join(filter(None, [typed.helpers(), table_lines(tables)])),
        frozenset({'lane_xor'} if p.teams > 1 else ()),
    )


def _place(p: RowsPlan) -> list[str]:
    """Which row this block, or this warp, has; warps behind the last one repeat it."""
    if p.teams == 1:
        return pieces.decode('BLOCK_X', p.shared)
    row = f'BLOCK_X * {p.teams} + THREAD / {by_lanes.LANES}'
    if p.rows % p.teams:
        row = f'min({row}, {p.rows - 1})'
    return [
        f'const int lane = THREAD % {by_lanes.LANES}, row = {row};',
        *pieces.decode('row', p.shared),
    ]


def _part(point: Point, threads: int) -> list[str]:
    """All points of one part that belong to this block."""
    piece = point.piece
    loops = outside_in(piece, piece.parallel, [piece.write])
    sizes = [(p.name, p.size) for p in loops]
    points = math.prod(size for _, size in sizes)
    if points == 1 and piece.stage.combiner:
        return _together(point, threads)
    return [
        f'for (int point = THREAD; point < {points}; point += {threads}) {{',
        *(f'    {line}' for line in pieces.decode('point', sizes)),
        *(f'    {line}' for line in general.value_lines(point, 1)),
        *(f'    {line}' for line in point.finish()),
        '}',
    ]


def _together(point: Point, threads: int) -> list[str]:
    """One point by all threads; the first one stores it."""
    text = point.combined('sums[THREAD]', 'sums[THREAD + step]')
    return [
        'const int lane = THREAD;',
        *general.value_lines(point, threads),
        f'SHARED {point.type} *const sums = (SHARED {point.type} *)joined;',
        'sums[THREAD] = value;',
        'BARRIER;',
        f'for (int step = {threads // 2}; step > 0; step /= 2) {{',
        '    if (lane < step)',
        f'        sums[THREAD] = {text};',
        '    BARRIER;',
        '}',
        'if (THREAD == 0) {',
        f'    const {point.type} value_0 = sums[0];',
        *(f'    {line}' for line in point.finish()),
        '}',
    ]


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """All parts in one kernel, where they go together and there are rows for the device.

    A launch costs as much as some hundred thousand bytes: with few rows it is still worth it unless
    each of them is long.
    """
    if len(parts(group)) == 1:
        return ()
    schedule = GpuSchedule.of(NAME, threads=min(256, machine.threads_per_block))
    try:
        rows = plan(group, schedule).rows
    except ScheduleError:
        return ()
    length = max(stage.points for stage in group.stages) / rows
    if length > LONGEST_ROW and rows < machine.multiprocessors:
        return ()
    # Lanes exchange values on NVIDIA's alone. A few long rows need all threads for each.
    few = rows < machine.multiprocessors and length > by_lanes.LANES * max(by_lanes.RUNS)
    if machine.capability < (7, 0) or length > LONGEST_OF_LANES or few:
        return (schedule,)
    of_lanes = (
        GpuSchedule.of(NAME, threads=THREADS_OF_LANES, lanes=by_lanes.LANES, run=run)
        for run in (8 if group.half else 4, 1)
    )
    return (*of_lanes, schedule)
