"""The schema of long sums: few results, each of very many terms, which several blocks share.

Goes in: a part of a group whose main stage combines over much more than it has results: gradients
of depthwise weights, statistics of a batch norm and its gradients, gradients of biases. Comes out:
a module of one kernel. For the weights of a depthwise convolution

    a block    some channels k, and a share of all (n, h, w)
    a thread   every so-manieth (n, h, w) of that share, for all (r, s) at once: `kept` sums

A block joins the sums of its threads in shared memory, halves upon halves; blocks that share
results leave theirs in a workspace, and the last one to arrive adds them in a fixed order, applies
what follows and stores: the same bits every time. Decisions of a schedule:

    threads   of a block, a power of two
    owners    results of a block beside those that are kept, a power of two: threads / owners lanes
              share each
    split     blocks that share a result
    run       4: neighbouring terms that a thread loads at once; 1 if not given
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.schemas.general.plan import Loop, Piece, Place, Tables, piece_of
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.point import Point, outside_in, table_lines
from tilewright.kernels.gpu.product import buffers_of, require, workspace
from tilewright.kernels.gpu.schemas.general.code import lanes_beside, reductions
from tilewright.kernels.gpu.schemas.general.run import (
    RUN,
    RunPoint,
    arguments,
    declared,
    is_run,
)
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.ops.group import Group
from tilewright.ops.stage import Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'sums'
MOST_KEPT = 25  # results that a thread sums up at once: a window of five by five
UNROLLED = 4  # terms of a thread whose loads are under way at once; of few sums
MOST_SPLIT = 1024


@dataclass(frozen=True)
class SumsPlan:
    """Everything that is decided before a line is written.

    kept    results that each thread sums up at once, in registers
    across  the other results, those that are contiguous inside
    along   what is summed up, flattened, contiguous terms inside
    used    tensors that are read, in the order of the kernel's arguments
    """

    group: Group
    piece: Piece
    tables: Tables
    used: tuple[str, ...]
    kept: tuple[Loop, ...]
    across: tuple[Loop, ...]
    along: tuple[Loop, ...]
    threads: int
    owners: int
    split: int
    run: int

    @property
    def results(self) -> int:
        return math.prod(loop.size for loop in self.across)

    @property
    def held(self) -> int:
        """Sums of a thread."""
        return math.prod(loop.size for loop in self.kept)

    @property
    def length(self) -> int:
        return math.prod(loop.size for loop in self.along)

    @property
    def has_runs(self) -> bool:
        """Whether a thread may load four neighbouring terms at once."""
        inner = self.along[-1]
        plain = all(
            is_run(read, inner) or not (read.strides.get(inner.name) or inner.name in read.names())
            for read in self.piece.reads
        )
        fours = self.held == 1 and lanes_beside(self.piece) and inner.size % RUN == 0
        return plain and fours and inner.name not in self.piece.iterators

    @property
    def share(self) -> int:
        """Runs of terms of one block."""
        return -(-self.length // self.run // self.split)

    @property
    def lanes(self) -> int:
        return self.threads // self.owners

    @property
    def tiles(self) -> int:
        return -(-self.results // self.owners)


def plan(group: Group, schedule: GpuSchedule) -> SumsPlan:
    """[Group, GpuSchedule] -> [SumsPlan]; raises ScheduleError where it is not legal."""
    if not group.main.combiner or not group.main.reduction:
        raise ScheduleError(f'{group.label}: the {NAME} schema needs a stage that combines')
    tables, used = Tables(), []

    def pointer(tensor: str, _: Access) -> tuple[str, tuple[int, ...]]:
        used.append(tensor)
        return tensor, group.tensor(tensor).strides

    piece = piece_of(group, tables, pointer, {}, ())
    kept = _kept(piece)
    loops = [loop for loop in piece.parallel if loop not in kept]
    p = SumsPlan(
        group, piece, tables, tuple(used), kept, tuple(outside_in(piece, loops, [piece.write])),
        tuple(reductions(piece)), schedule['threads'], schedule['owners'], schedule['split'],
        dict(schedule.tiles).get('run', 1),
    )  # fmt: skip
    numbers = (p.threads, p.owners, p.split)
    require(
        group,
        schedule,
        [
            ('every decision is at least 1', min(numbers) >= 1),
            (
                f'run is 1, or {RUN} where neighbours lie so',
                p.run == 1 or (p.run == RUN and p.has_runs),
            ),
            ('threads and owners are powers of two', not any(n & (n - 1) for n in numbers[:2])),
            ('a result has two lanes or more', p.lanes >= 2),
            (f'a block of {p.lanes} lanes has as many terms', p.lanes <= max(p.share, 2)),
            (f'split is at most {MOST_SPLIT}', p.split <= MOST_SPLIT),
            ('every block has terms', (p.split - 1) * p.share < p.length // p.run),
        ],
    )
    return p


def _kept(piece: Piece) -> tuple[Loop, ...]:
    """The results that share an operand, as many as registers hold, the smallest first."""
    found: list[Loop] = []
    for loop in sorted(piece.parallel, key=lambda loop: loop.size):
        shared = any(not _varies(read, loop.name) for read in piece.reads)
        size = math.prod(one.size for one in (*found, loop))
        if shared and len(piece.reads) > 1 and size <= MOST_KEPT:
            found.append(loop)
    return tuple(loop for loop in piece.parallel if loop in found)


def _varies(place: Place, name: str) -> bool:
    return bool(place.strides.get(name, 0)) or name in place.names()


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    sums = workspace(p.split, p.tiles, p.owners * p.held)
    made = kernel(p)
    return Module(group, (*tensor_buffers(group), *buffers_of(sums)), (Step.of(made),))


def kernel(p: SumsPlan) -> Kernel:
    typed = GpuTyped()
    point = Point(p.piece, typed)
    body = [*_place(p), *_terms(p, point), *_joined(p, point), *_finished(p, point)]
    helpers = '\n'.join(filter(None, [typed.helpers(), table_lines(p.tables)]))
    shared = [('joined', p.threads * p.held), *([('arrived', 4)] if p.split > 1 else [])]
    given = arguments(p.group, p.used)
    return Kernel(
        f'{NAME}_{p.group.main.name}',
        (*given[:-1], *workspace(p.split, p.tiles, p.owners * p.held), given[-1]),
        '\n'.join(body),
        (p.tiles, p.split, 1),
        p.threads,
        tuple(shared),
        helpers,
        frozenset(['device_fence'] if p.split > 1 else []),
    )


def _place(p: SumsPlan) -> list[str]:
    """Which result this thread works for, and which of its terms."""
    beside = lanes_beside(p.piece)
    own, lane = f'THREAD % {p.owners}', f'THREAD / {p.owners}'
    if beside:
        own, lane = f'THREAD / {p.lanes}', f'THREAD % {p.lanes}'
    return [
        f'const int lane = {lane}, own = {own}, tile = BLOCK_X;',
        f'const int first = BLOCK_X * {p.owners} + own;',
        # Threads behind the end repeat the last result: all of them have to reach the barriers.
        f'const int point = first < {p.results} ? first : {p.results - 1};'
        if p.results % p.owners else 'const int point = first;',
        f'const int begin = BLOCK_Y * {p.share};',
        f'const int end = begin + {p.share} < {p.length // p.run} ? begin + {p.share} : '
        f'{p.length // p.run};',
        *pieces.decode('point', [(loop.name, loop.size) for loop in p.across]),
    ]  # fmt: skip


def _each_kept(p: SumsPlan, lines: list[str]) -> list[str]:
    """`lines` for all that a thread keeps, its number is `kept`."""
    head, at = [], '0'
    for loop in p.kept:
        head += [
            '#pragma unroll',
            f'for (int {loop.name} = 0; {loop.name} < {loop.size}; {loop.name}++)',
        ]
        at = f'({at}) * {loop.size} + {loop.name}'
    return [*head, '{', f'    const int kept = {at};', *pieces.indented(lines), '}']


def _terms(p: SumsPlan, point: Point) -> list[str]:
    """A lane's share of the terms of all results that it keeps."""
    sizes = [(loop.name, loop.size) for loop in p.along]
    if p.run > 1:
        inside = _four_terms(p, point.typed)
    else:
        added = point.combined('value[kept]', point.term())
        inside = [*pieces.decode('at', sizes), *_each_kept(p, [f'value[kept] = {added};'])]
    return [
        f'{point.type} value[{p.held}];',
        '#pragma unroll',
        f'for (int i = 0; i < {p.held}; i++)',
        f'    value[i] = {point.neutral};',
        f'#pragma unroll {UNROLLED if p.held == 1 else 1}',
        f'for (int at = begin + lane; at < end; at += {p.lanes}) {{',
        *pieces.indented(inside),
        '}',
    ]


def _four_terms(p: SumsPlan, typed: GpuTyped) -> list[str]:
    """Four neighbouring terms, loaded at once and added one after the other."""
    *outer, inner = p.along
    first = f'{inner.name}_first'
    loads: dict[str, str] = {}
    lines = []
    for lane in range(p.run):
        point = RunPoint(p.piece, typed, inner, lane)
        added = point.combined('value[0]', point.term())
        lines.append(
            f'{{ const int {inner.name} = {first} + {lane}; (void){inner.name}; '
            f'value[0] = {added}; }}'
        )
        loads |= point.loaded
    sizes = [*((loop.name, loop.size) for loop in outer), (first, inner.size)]
    return [*pieces.decode(f'(at * {p.run})', sizes), *declared(loads, inner), *lines]


def _joined(p: SumsPlan, point: Point) -> list[str]:
    """The sums of the lanes of each result, halves upon halves; those of lane 0 are the block's."""
    apart = 1 if lanes_beside(p.piece) else p.owners
    mine = f'sums[i * {p.threads} + THREAD]'
    text = point.combined(mine, f'sums[i * {p.threads} + THREAD + step * {apart}]')
    return [
        f'SHARED {point.type} *const sums = (SHARED {point.type} *)joined;',
        '#pragma unroll',
        f'for (int i = 0; i < {p.held}; i++)',
        f'    {mine} = value[i];',
        'BARRIER;',
        f'for (int step = {p.lanes // 2}; step > 0; step /= 2) {{',
        '    if (lane < step) {',
        '#pragma unroll',
        f'        for (int i = 0; i < {p.held}; i++)',
        f'            {mine} = {text};',
        '    }',
        '    BARRIER;',
        '}',
    ]


def _finished(p: SumsPlan, point: Point) -> list[str]:
    """What blocks share is added up by the last one; then what follows the sums, and the store."""
    items = p.owners * p.held
    apart = p.lanes if lanes_beside(p.piece) else 1
    here = f'sums[item % {p.held} * {p.threads} + item / {p.held} * {apart}]'
    each = f'for (int item = THREAD; item < {items}; item += {p.threads})'
    lines, value = [], here
    if p.split > 1:
        lines = [
            each,
            f'    @partial[part=BLOCK_Y, tile=tile, i=item] = {here};',
            *pieces.last_block(p.split),
        ]
        value = 'whole'
    added = point.combined('whole', '@partial[part=part, tile=tile, i=item]')
    inside = [
        *pieces.decode('point', [(loop.name, loop.size) for loop in p.across]),
        *pieces.decode(f'(item % {p.held})', [(loop.name, loop.size) for loop in p.kept]),
        *(
            [
                f'{point.type} whole = {point.neutral};',
                '#pragma unroll 8',
                f'for (int part = 0; part < {p.split}; part++)',
                f'    whole = {added};',
            ] if p.split > 1 else []
        ),
        f'const {point.type} value_0 = {value};',
        *point.finish(),
    ]  # fmt: skip
    point_at = f'const int point = tile * {p.owners} + item / {p.held};'
    test = f'if (point < {p.results}) ' if p.results % p.owners else ''
    return [
        *lines,
        f'{each} {{',
        f'    {point_at}',
        f'    {test}{{',
        *pieces.indented(inside, 2),
        '    }',
        '}',
    ]
