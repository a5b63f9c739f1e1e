"""The fallback schema: one thread for each point of the result, for any stage with its epilogue.

It serves pooling, normalisations, element-wise operators, gathers and layout changes, of any dtype
and with every function (point.py), and is the yardstick of the tuned schemas (Boda Fig. 7).
Decisions of a schedule:

    threads   of a block
    lanes     threads that share the reduction of a point, a power of two; 1 if not given. They
              join their results in shared memory, in a fixed order. For few points with a long
              reduction: global pooling, a matrix times a vector.
    run       4: neighbouring points of a thread, loaded and stored at once, where nothing is
              reduced and float32 lies so (run.py); 1 if not given

Neighbouring threads are lanes of one point where operands are contiguous along the reduction, else
neighbouring points.
"""

from __future__ import annotations

import math

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import safe_iterators
from tilewright.kernels.cpu.schemas.general.plan import Loop, Piece, Tables, piece_of
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import BEGINS, ENDS, Kernel
from tilewright.kernels.gpu.module import Module, Step, joined, tensor_buffers
from tilewright.kernels.gpu.point import Point, outside_in, table_lines
from tilewright.kernels.gpu.schema import RESERVED
from tilewright.kernels.gpu.schemas.general.run import RUN, arguments, has_runs, run_kernel
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'general'
UNROLLED = 4  # turns of a lane whose loads are under way at once


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module], a kernel for each part."""
    if group.is_sequential:
        raise ScheduleError(f'{group.label}: its steps follow each other; use another schema')
    return joined(group, [_one(part, schedule) for part in parts(group)])


def _one(group: Group, schedule: GpuSchedule) -> Module:
    safe, _ = safe_iterators(group, RESERVED)
    given = dict(schedule.tiles)
    if given.get('run', 1) not in (1, RUN):
        raise ScheduleError(f'{group.label}: {given["run"]} points of a thread; give 1 or {RUN}')
    if given.get('run', 1) == RUN and has_runs(safe):
        made = run_kernel(safe, schedule['threads'])
    else:
        made = kernel(safe, schedule['threads'], _lanes(safe, schedule))
    return Module(group, tensor_buffers(group), (Step.of(made),))


def _lanes(group: Group, schedule: GpuSchedule) -> int:
    """Lanes of a point: as many as wanted, but no more than there is to reduce."""
    wanted, threads = dict(schedule.tiles).get('lanes', 1), schedule['threads']
    if threads < 1 or wanted < 1 or wanted & (wanted - 1) or threads % wanted:
        raise ScheduleError(
            f'{group.label}: {wanted} lanes in a block of {threads} threads; give at least one '
            f'thread, and a power of two that divides the threads'
        )
    length = math.prod(group.main.sizes[d] for d in group.main.reduction)
    while wanted > length:
        wanted //= 2
    return wanted


def kernel(group: Group, threads: int, lanes: int = 1) -> Kernel:
    """The main stage with its epilogue."""
    tables, typed = Tables(), GpuTyped.of(group)
    used: list[str] = []

    def pointer(tensor: str, access: Access) -> tuple[str, tuple[int, ...]]:
        used.append(tensor)
        return tensor, group.tensor(tensor).strides

    piece = piece_of(group, tables, pointer, {}, ())
    point = Point(piece, typed)
    points = math.prod(p.size for p in piece.parallel)
    owners = threads // lanes
    lines = [
        *_place(piece, points, threads, lanes),
        BEGINS,
        ENDS,
        *value_lines(point, lanes),
        *(_join(point, threads, lanes) if lanes > 1 else []),
        *(_leave(points, owners) if lanes > 1 else []),
        *point.finish(),
    ]
    helpers = '\n'.join(filter(None, [typed.helpers(), table_lines(tables)]))
    floats = threads * max(DTYPES[piece.dtype] // 4, 1)
    return Kernel(
        f'general_{group.main.name}',
        arguments(group, used),
        '\n'.join(lines),
        (-(-points // owners), 1, 1),
        threads,
        (('joined', floats),) if lanes > 1 else (),
        helpers,
    )


def _place(piece: Piece, points: int, threads: int, lanes: int) -> list[str]:
    """Which point this thread computes, and which share of its reductions."""
    loops = outside_in(piece, piece.parallel, [piece.write])
    owners = threads // lanes
    ragged = points % owners
    if lanes == 1:
        lines = [f'const int point = BLOCK_X * {threads} + THREAD;']
        if ragged:
            lines += [f'if (point >= {points})', '    return;']
    else:
        beside = lanes_beside(piece)
        lane = f'THREAD % {lanes}' if beside else f'THREAD / {owners}'
        mine = f'THREAD / {lanes}' if beside else f'THREAD % {owners}'
        lines = [
            f'const int lane = {lane};',
            f'const int mine = BLOCK_X * {owners} + {mine};',
            # All threads have to reach the barriers: those behind the end repeat the last point.
            f'const int point = mine < {points} ? mine : {points - 1};' if ragged
            else 'const int point = mine;',
        ]  # fmt: skip
    return [*lines, *pieces.decode('point', [(p.name, p.size) for p in loops])]


def reductions(piece: Piece) -> list[Loop]:
    """Reductions, the one along which most operands are contiguous inside."""
    return sorted(piece.reductions, key=lambda p: (_contiguous(piece, p), -abs(_step(piece, p))))


def _contiguous(piece: Piece, loop: Loop) -> int:
    return sum(abs(read.strides.get(loop.name, 0)) == 1 for read in piece.reads)


def _step(piece: Piece, loop: Loop) -> int:
    return piece.reads[0].strides.get(loop.name, 0) if piece.reads else 0


def lanes_beside(piece: Piece) -> bool:
    """Whether more operands are contiguous along the reduction than along the results."""
    inner = outside_in(piece, piece.parallel, [piece.write])[-1:]
    along = max((_contiguous(piece, p) for p in piece.reductions), default=0)
    return not inner or along >= _contiguous(piece, inner[0])


def value_lines(point: Point, lanes: int) -> list[str]:
    """Lines that compute `value_0` at one point, or a lane's share `value` of it."""
    piece = point.piece
    loops = reductions(piece)
    if not piece.stage.combiner:
        return [f'const {point.type} value_0 = {point.term()};']
    term = point.combined('value', point.term())
    sizes = [(p.name, p.size) for p in loops]
    lines = [f'{point.type} value = {point.neutral};']
    if lanes > 1:
        length = math.prod(size for _, size in sizes)
        lines += [
            f'#pragma unroll {UNROLLED}',
            f'for (int at = lane; at < {length}; at += {lanes}) {{',
            *(f'    {line}' for line in pieces.decode('at', sizes)),
            f'    value = {term};',
            '}',
        ]
        return lines
    lines += [f'for (int {name} = 0; {name} < {size}; {name}++) {{' for name, size in sizes]
    lines += [f'value = {term};', '}' * len(sizes)]
    return [*lines, f'const {point.type} value_0 = value;']


def _join(point: Point, threads: int, lanes: int) -> list[str]:
    """The results of a point's lanes, halves upon halves, into `value_0` of its first lane."""
    apart = 1 if lanes_beside(point.piece) else threads // lanes
    text = point.combined('sums[THREAD]', f'sums[THREAD + step * {apart}]')
    return [
        f'SHARED {point.type} *const sums = (SHARED {point.type} *)joined;',
        'sums[THREAD] = value;',
        'BARRIER;',
        f'for (int step = {lanes // 2}; step > 0; step /= 2) {{',
        '    if (lane < step)',
        f'        sums[THREAD] = {text};',
        '    BARRIER;',
        '}',
        f'const {point.type} value_0 = sums[THREAD];',
    ]


def _leave(points: int, owners: int) -> list[str]:
    """Only the first lane of a point that exists stores it."""
    return [f'if (lane != 0{f" || mine >= {points}" if points % owners else ""})', '    return;']
