"""What the dfg schema decides before it writes a line, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `DfgPlan`: the tile of the result that a block
computes, for each segment of the data-flow graph the region that this asks for (ops/chain.py) and
how threads share it, and what lies where in shared memory. Decisions, by DeepCuts' Table 4:

    bn bk bh bw   the block's tile along the last four dimensions of the result; 0 is all of it.
                  Dimensions in front of those are walked by blocks alone
    threads       of a block
    tk tp         sums of products that a thread holds, or a warp by matrix instructions, at most:
                  columns by pixels (segment.py)
    sh sw         outputs of a thread where a window slides: rows, columns (windows.py)
    ci            C_input: points of a reduction whose operands are in shared memory at once; 0:
                  operands in global memory are read there, as caches have them
    cw            1: those of the operand that is read across as well (weights), 0: not those
    stages        pieces of an operand in flight: 2 fetches the next one while one is used
    early         1: constants that are read behind the first barrier are copied to shared memory
                  before all else, so that nobody waits for them later
    hc            points of the last product's sum (channels) for which the stages before it are
                  computed at once: their results take as much less shared memory; 0: all of them
    format        FORMAT_shared, how shared tensors lie: 0 as in memory; 1 the last axis filled up
                  to an odd length, against bank conflicts; 2 the first axis that is longer than 1
                  last, filled up likewise; 3 rows filled up to fours, which are read at once, and
                  planes 8 banks apart, as operands of matrix instructions are read

The intrinsic is `fma`, or `mma_tf32x3` (kernels/gpu/schemas/tiled): sums of products with enough
columns and pixels by matrix instructions, all other stages as ever.

A block that does not fit is refused with the edge that needs most of its shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import rename_stage
from tilewright.kernels.gpu.language import padded
from tilewright.kernels.gpu.schemas.dfg.fragments import COLUMNS, Fragments
from tilewright.kernels.gpu.schemas.dfg.graph import (
    GLOBAL,
    BlockGraph,
    Load,
    block_graph,
    segments,
)
from tilewright.kernels.gpu.schemas.dfg.segment import (
    LEAST_COLUMNS,
    PIXELS,
    Packed,
    Segment,
    ordered,
    reach,
    roles_of,
    segment_of,
)
from tilewright.kernels.gpu.schemas.dfg.storage import Kept, Staged, Walk, stored
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.chain import Region, Span, regions
from tilewright.ops.group import Group, Tensor
from tilewright.ops.parts import depends_on_inputs, parts
from tilewright.ops.stage import Stage
from tilewright.schedule.gpu import GpuSchedule

NAME = 'dfg'
BLOCK = ('bn', 'bk', 'bh', 'bw')  # of the last four dimensions of the result
UNSAID = {
    'bn': 1, 'bk': 1, 'bh': 1, 'bw': 1, 'tk': 1, 'tp': 1, 'sh': 1, 'sw': 1, 'ci': 0, 'cw': 0,
    'stages': 1, 'format': 0, 'early': 0, 'hc': 0,
}  # fmt: skip
FORMATS = (0, 1, 2, 3)
INTRINSICS = ('fma', 'mma_tf32x3')
LARGEST_SHARED = 232448  # bytes of a block, on the largest GPU there is
MOST_THREADS = 1024
MOST_SUMS = 128  # of a thread
MOST_SLID = 16


@dataclass(frozen=True)
class DfgPlan:
    """Everything that is decided before a line is written.

    tile    of the result; and of the reduction that is walked in parts
    early   constants that are copied to shared memory before all else
    ahead   parts without an input
    """

    group: Group
    graph: BlockGraph
    tile: Mapping[str, int]
    segments: tuple[Segment, ...]
    kept: Mapping[str, Kept]
    staged: Mapping[str, Staged]
    threads: int
    ahead: tuple[Group, ...]
    early: Mapping[str, Staged]
    walk: Walk | None

    @property
    def last(self) -> Stage:
        return self.group.stages[-1]

    @property
    def tiles(self) -> list[tuple[str, int]]:
        """(dimension, how many tiles cover it), outermost first."""
        return [(d, -(-self.last.sizes[d] // self.tile[d])) for d in ordered(self.last)]

    @property
    def results(self) -> int:
        """Elements of a tile of the result."""
        return math.prod(self.tile[d] for d, _ in self.tiles)

    @property
    def blocks(self) -> int:
        return math.prod(count for _, count in self.tiles)

    @property
    def packed(self) -> tuple[Packed | Fragments, ...]:
        return tuple(item for s in self.segments for item in s.packed)

    def tensor(self, name: str) -> Tensor:
        """A tensor of the group, or a packed one."""
        found = [item.tensor for item in self.packed if item.tensor.name == name]
        return found[0] if found else self.group.tensor(name)

    @property
    def joins(self) -> bool:
        """Whether threads share the reduction of a point."""
        return any(s.lanes > 1 for s in self.segments)

    @property
    def shared(self) -> tuple[tuple[str, int], ...]:
        """Shared arrays of the kernel, in floats."""
        ends = [k.offset + k.floats for k in self.kept.values()]
        copied = (*self.staged.values(), *self.early.values())
        ends += [s.offset + padded(s.floats) * s.buffers for s in copied]
        found = [('kept', max(ends))] if ends else []
        return (*found, *([('joined', self.threads)] if self.joins else []))

    @property
    def shared_bytes(self) -> int:
        return sum(4 * padded(floats) for _, floats in self.shared)

    @property
    def ends(self) -> dict[str, int]:
        """Where the last tile of every dimension begins."""
        walked = {self.walk.name: self.walk.size - self.walk.part} if self.walk else {}
        return {d: (count - 1) * self.tile[d] for d, count in self.tiles} | walked

    def leaves(self, span: Span, extent: int) -> bool:
        """Whether a span may reach outside an axis, at any tile."""
        return span.start.const < 0 or span.start.at(self.ends) + span.size > extent


@lru_cache(maxsize=1024)
def plan(group: Group, schedule: GpuSchedule) -> DfgPlan:
    """[Group, GpuSchedule] -> [DfgPlan]; raises ScheduleError where the schedule is not legal."""
    values = {**UNSAID, **dict(schedule.tiles), 'threads': schedule['threads']}
    values['matrix'] = int(schedule.intrinsic != 'fma')
    _check(group, schedule, values)
    group, ahead, found = _parted(group)
    tile = _tile(group, found[-1][1], values)
    last = {d: (group.stages[-1].sizes[d] - 1) // size * size for d, size in tile.items()}
    walk = _walk(group, schedule, found, values)
    if walk:
        last |= {walk.name: walk.size - walk.part}
        tile |= {walk.name: walk.part}
    asked = _regions(group, tuple(tile.items()), walk and (found[-1][1].name, walk))
    made = tuple(
        segment_of(
            group,
            graph,
            stage,
            asked[stage.name],
            values,
            number,
            last,
            walk.parts if walk and number == len(found) - 1 else 1,
        )
        for number, (graph, stage) in enumerate(found)
    )
    graph = BlockGraph(tuple(n for s in made for n in s.graph.nodes))
    tensors = {t.name: t for t in group.tensors}
    tensors |= {item.tensor.name: item.tensor for s in made for item in s.packed}
    kept, staged, early = stored(
        tensors, made, values['format'], values['stages'], bool(values['early']), walk
    )
    if values['matrix'] and not any(s.depths for s in made):
        raise ScheduleError(
            f'{group.label}: schedule {schedule.tiles}: no stage has products of at least '
            f'{LEAST_COLUMNS} columns that begin at multiples of 16; use the intrinsic fma'
        )
    p = DfgPlan(
        group, graph, tile, made, kept, staged, values['threads'], ahead, early, walk
    )  # fmt: skip
    _check_regions(p)
    _check_walk(p)
    check_fits(p, LARGEST_SHARED)
    return p


@lru_cache(maxsize=1024)
def _regions(
    group: Group, tile: tuple[tuple[str, int], ...], walked: tuple[str, Walk] | None
) -> dict[str, Region]:
    """Kept, since schedules of one search have few tiles."""
    cut = {walked[0]: {walked[1].name: walked[1].part}} if walked else None
    return regions(group, dict(tile), cut)


def _walk(
    group: Group, schedule: GpuSchedule, found: Sequence[tuple[BlockGraph, Stage]],
    values: Mapping[str, int],
) -> Walk | None:  # fmt: skip
    """The reduction of the last product that a block walks in parts of `hc`."""
    part = values['hc']
    if not part:
        return None
    graph, stage = found[-1]
    roles = roles_of(graph, stage)
    size = stage.sizes[roles.chunk] if roles and roles.chunk else 0
    if len(found) == 1 or not values['matrix'] or part % COLUMNS or size % part or size <= part:
        raise ScheduleError(
            f'{group.label}: schedule {schedule.tiles}: hc={part} must be a multiple of {COLUMNS} '
            f'that divides the {size} channels of the last product, which matrix instructions '
            f'multiply; 0 is all of them'
        )
    assert roles is not None
    return Walk(roles.chunk, size, part)


def _check_walk(p: DfgPlan) -> None:
    """ScheduleError where parts of the walk do not share the work of the segments before it."""
    if p.walk is None:
        return
    *before, last = p.segments
    name = p.walk.name
    apart = all(any(s.start.coefficient(name) for s in one.region.written) for one in before)
    warps = p.threads // WARP
    if not apart or not last.depths or last.units > warps or last.store.level != GLOBAL:
        raise ScheduleError(
            f'{p.group.label}: with hc every stage has to be needed a part at a time, and the '
            f'{warps} warps hold all sums of the last product ({last.units} shares); choose '
            f'smaller tiles, or hc=0'
        )


@lru_cache(maxsize=64)
def _parted(
    group: Group,
) -> tuple[Group, tuple[Group, ...], tuple[tuple[BlockGraph, Stage], ...]]:
    """What no schedule changes: the group with safe names and without the parts that need no input;
    those; and the graph and the main stage of every segment.
    """
    moving = (*depends_on_inputs(group)[:-1], True)
    ahead = tuple(p for p, runs in zip(parts(group), moving, strict=True) if not runs)
    group = _moving(_renamed(group), tuple(p.output.name for p in ahead))
    mains = [part.main for part in parts(group)]
    return group, ahead, tuple(zip(segments(block_graph(group)), mains, strict=True))


def _check(group: Group, schedule: GpuSchedule, values: Mapping[str, int]) -> None:
    if not group.is_plain:
        raise ScheduleError(
            f'{group.label}: {NAME} computes float32 at affine indices only; use general'
        )
    threads, ci, two = values['threads'], values['ci'], values['stages'] == 2
    matrix = bool(values['matrix'])
    sums = values['tk'] * values['tp'] // (WARP if matrix else 1)
    asked = [name for name, level in group.storage if level == 'global']
    wrong = [
        text
        for text, broken in (
            (f'a block has 1 to {MOST_THREADS} threads', not 1 <= threads <= MOST_THREADS),
            ('a thread holds at least one sum', values['tk'] < 1 or values['tp'] < 1),
            (f'a thread holds at most {MOST_SUMS} sums', sums > MOST_SUMS),
            (
                f'a window slides over 1 to {MOST_SLID} outputs',
                not 1 <= values['sh'] * values['sw'] <= MOST_SLID,
            ),
            (
                f'tk is a multiple of {COLUMNS} and tp of {PIXELS}, powers of two times that, and '
                f'threads of {WARP}, for matrix instructions',
                matrix
                and (
                    not _is_power(values['tk'], COLUMNS)
                    or not _is_power(values['tp'], PIXELS)
                    or threads % WARP
                ),
            ),
            (f'format is one of {FORMATS}', values['format'] not in FORMATS),
            ('stages is 1 or 2', values['stages'] not in (1, 2)),
            ('nothing is copied in stages without ci', not ci and (values['cw'] or two)),
            (f'nothing between stages is stored in memory, as {asked} should be', bool(asked)),
            (f'the intrinsic is one of {INTRINSICS}', schedule.intrinsic not in INTRINSICS),
        )
        if broken
    ]
    if wrong:
        raise ScheduleError(f'{group.label}: schedule {schedule.tiles}: it must be that {wrong[0]}')


def _is_power(size: int, unit: int) -> bool:
    return size >= unit and size % unit == 0 and (size // unit).bit_count() == 1


def _renamed(group: Group) -> Group:
    """The group with iterators that end in an underscore, as no identifier of a kernel does."""
    names = dict.fromkeys(d.name for s in group.stages for d in s.dims)
    new = {
        name: f'{name}_' if name.isidentifier() and not name.endswith('_') else f'd{number}_'
        for number, name in enumerate(names)
    }
    stages = tuple(rename_stage(s, {d.name: new[d.name] for d in s.dims}) for s in group.stages)
    return Group(group.label, group.tensors, stages, group.storage)


def _moving(group: Group, known: Sequence[str]) -> Group:
    """The group without the parts that write the tensors `known`, which are constants then."""
    if not known:
        return group
    stages = tuple(s for part in parts(group) if part.output.name not in known for s in part.stages)
    touched = {a.tensor for s in stages for a in s.accesses}
    tensors = tuple(
        Tensor(t.name, t.dims, t.shape, 'constant', t.dtype) if t.name in known else t
        for t in group.tensors
        if t.name in touched
    )
    storage = tuple((n, level) for n, level in group.storage if n in touched and n not in known)
    return Group(group.label, tensors, stages, storage)


def _tile(group: Group, main: Stage, values: Mapping[str, int]) -> dict[str, int]:
    """Decisions as sizes along the last stage's dimensions; 0 is the whole of one."""
    last = group.stages[-1]
    dims = ordered(last)
    named = dict(zip(reversed(dims), reversed(BLOCK), strict=False))
    tile = {d: min(values[named[d]] if d in named else 1, last.sizes[d]) or last.sizes[d]
            for d in dims}  # fmt: skip
    if main is not last:
        # Groups of channels in front of an epilogue, which sees one axis: all of it.
        for here, there in zip(last.write.index, main.write.index, strict=True):
            if len(there.terms) > 1:
                tile |= {d: last.sizes[d] for d in here.names}
    return tile


def reads_inside(p: DfgPlan, segment: Segment, load: Load, axis: int) -> bool:
    """Whether whatever a block computes of a segment finds its element along an axis: in the tensor
    (global), or in the window (shared), whose positions outside the tensor are filled.
    """
    if load.name in p.staged or load.name in p.early:
        return True
    e, extent = load.index[axis], p.tensor(load.tensor).shape[axis]
    stays = e.const >= 0 and e.const + e.extent(segment.stage.sizes) <= extent
    if load.level == GLOBAL:
        # Points outside the segment's domain are moved into it before anything is read.
        return stays
    kept, span = p.kept[load.tensor], reach(e, segment)
    window = kept.window[axis]
    if kept.fill != load.pad and not stays:
        return False
    if dict(span.start.terms) != dict(window.start.terms):
        return window.size == extent and not p.leaves(span, extent)
    return (
        span.start.const >= window.start.const
        and span.start.const + span.size <= window.start.const + window.size
    )


def _check_regions(p: DfgPlan) -> None:
    """ScheduleError where a tile may need only what lies outside a tensor of the segment."""
    for segment in p.segments:
        for dim in segment.ordered:
            span, size = segment.region.dims[dim], segment.stage.sizes[dim]
            if span.start.const + span.size <= 0 or span.start.at(p.ends) >= size:
                raise ScheduleError(
                    f'{p.group.label}: some tiles of {dict(p.tile)} need nothing but padding of '
                    f'what {segment.stage.name} computes; choose larger tiles'
                )


def check_fits(p: DfgPlan, limit: int) -> None:
    """ScheduleError where shared memory is too small: which edge needs how much of it."""
    if p.shared_bytes <= limit:
        return
    worst = max(
        (*p.kept.values(), *p.staged.values(), *p.early.values()), key=lambda k: k.bytes
    )  # fmt: skip
    sizes = 'x'.join(str(s.size) for s in worst.window)
    instead = (
        f'keep {worst.tensor.name} in memory' if isinstance(worst, Kept)
        else f'stage less of {worst.tensor.name} at once'
    )  # fmt: skip
    raise ScheduleError(
        f'{p.group.label}: a tile of {dict(p.tile)} needs {p.shared_bytes} bytes of shared memory, '
        f'of which the edge {worst.tensor.name} ({sizes}) takes {worst.bytes}, and a block has '
        f'{limit}; choose smaller tiles, or {instead}'
    )
