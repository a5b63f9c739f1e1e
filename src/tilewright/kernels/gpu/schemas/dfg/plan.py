"""What the dfg schema decides before it writes a line, and which schedules are legal.

Goes in: a group and a schedule. Comes out: a `DfgPlan`: the tile of the result that a block
computes, for each segment of the data-flow graph the region that this asks for (ops/chain.py) and
how threads share it, and where in shared memory the tensors between segments lie. Decisions:

    bn bk bh bw   the block's tile along the last four dimensions of the result; 0 is all of it.
                  Dimensions in front of those are walked by blocks alone
    threads       of a block
    tk tp         sums of products that a thread holds: columns (dimensions that only the operand
                  has which all lanes read alike) and pixels (those of the other one)
    format        how shared tensors lie: 0 as in memory; 1 the last axis filled up to an odd
                  length, against bank conflicts; 2 the first axis that is longer than 1 last, filled
                  up likewise

A block that does not fit is refused with the edge that needs most of its shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import rename_stage
from tilewright.kernels.gpu.language import padded
from tilewright.kernels.gpu.schemas.dfg.graph import (
    GLOBAL,
    SHARED,
    BlockGraph,
    Combine,
    Load,
    Store,
    block_graph,
    segments,
)
from tilewright.ops.chain import Region, Span, regions
from tilewright.ops.group import Group, Tensor, row_major_strides
from tilewright.ops.parts import depends_on_inputs, parts
from tilewright.ops.stage import Affine, Stage
from tilewright.schedule.gpu import GpuSchedule

NAME = 'dfg'
BLOCK = ('bn', 'bk', 'bh', 'bw')  # of the last four dimensions of the result
UNSAID = {'bn': 1, 'bk': 1, 'bh': 1, 'bw': 1, 'tk': 1, 'tp': 1, 'format': 0}
FORMATS = (0, 1, 2)
LARGEST_SHARED = 232448  # bytes of a block, on the largest GPU there is
MOST_THREADS = 1024
MOST_SUMS = 128  # of a thread


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor between segments: its window in shared memory, at `offset` floats.

    fill   what positions outside the tensor hold, where all readers agree; else None, and readers
           look at the bounds
    """

    tensor: Tensor
    window: tuple[Span, ...]
    strides: tuple[int, ...]
    floats: int
    offset: int
    fill: float | None

    @property
    def bytes(self) -> int:
        return 4 * self.floats


@dataclass(frozen=True, slots=True)
class Roles:
    """Operands and dimensions of a sum of products.

    along    the operand with the contiguous dimension of the result: lanes read neighbours
    across   the other one: lanes read the same
    columns  dimensions of `across` alone    pixels   of `along` alone    batch   of both
    """

    along: Load
    across: Load
    columns: tuple[str, ...]
    pixels: tuple[str, ...]
    batch: tuple[str, ...]


@dataclass(frozen=True)
class Segment:
    """What all threads of a block do between two barriers: a region of one part."""

    graph: BlockGraph
    stage: Stage
    region: Region
    roles: Roles | None
    tk: int
    tp: int
    lanes: int

    @property
    def store(self) -> Store:
        return self.graph.stores[0]

    @property
    def loads(self) -> tuple[Load, ...]:
        return tuple(n for n in self.graph.nodes if isinstance(n, Load))

    @property
    def combine(self) -> Combine | None:
        return next((n for n in self.graph.nodes if isinstance(n, Combine)), None)

    @property
    def reduced(self) -> int:
        """Points of a sum."""
        return math.prod(size for _, size in self.combine.over) if self.combine else 1

    def size(self, dims: Sequence[str]) -> int:
        return math.prod(self.region.dims[d].size for d in dims)

    @property
    def pixels(self) -> tuple[str, ...]:
        """Dimensions that neighbouring threads walk."""
        return self.roles.pixels if self.roles else self.ordered

    @property
    def columns(self) -> tuple[str, ...]:
        return self.roles.columns if self.roles else ()

    @property
    def batch(self) -> tuple[str, ...]:
        return self.roles.batch if self.roles else ()

    @property
    def ordered(self) -> tuple[str, ...]:
        """Parallel dimensions in the order of the axes that they write."""
        return ordered(self.stage)

    @property
    def pixel_units(self) -> int:
        return -(-self.size(self.pixels) // self.tp)

    @property
    def column_units(self) -> int:
        return -(-self.size(self.columns) // self.tk)

    @property
    def units(self) -> int:
        """Threads' shares of the region."""
        return self.size(self.batch) * self.column_units * self.pixel_units


@dataclass(frozen=True)
class DfgPlan:
    """Everything that is decided before a line is written. `ahead`: parts without an input."""

    group: Group
    graph: BlockGraph
    tile: Mapping[str, int]
    segments: tuple[Segment, ...]
    kept: Mapping[str, Kept]
    threads: int
    ahead: tuple[Group, ...]

    @property
    def last(self) -> Stage:
        return self.group.stages[-1]

    @property
    def tiles(self) -> list[tuple[str, int]]:
        """(dimension, how many tiles cover it), outermost first."""
        return [(d, -(-self.last.sizes[d] // self.tile[d])) for d in ordered(self.last)]

    @property
    def blocks(self) -> int:
        return math.prod(count for _, count in self.tiles)

    @property
    def joins(self) -> bool:
        """Whether threads share the reduction of a point."""
        return any(s.lanes > 1 for s in self.segments)

    @property
    def shared(self) -> tuple[tuple[str, int], ...]:
        """Shared arrays of the kernel, in floats."""
        floats = max((k.offset + k.floats for k in self.kept.values()), default=0)
        found = [('kept', floats)] if floats else []
        return tuple([*found, *([('joined', self.threads)] if self.joins else [])])

    @property
    def shared_bytes(self) -> int:
        return sum(4 * padded(floats) for _, floats in self.shared)

    def leaves(self, span: Span, extent: int) -> bool:
        """Whether a span may reach outside an axis, at any tile."""
        last = {d: (count - 1) * self.tile[d] for d, count in self.tiles}
        return span.start.const < 0 or span.start.at(last) + span.size > extent


def ordered(stage: Stage) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for e in stage.write.index for n, _ in e.terms))


def plan(group: Group, schedule: GpuSchedule) -> DfgPlan:
    """[Group, GpuSchedule] -> [DfgPlan]; raises ScheduleError where the schedule is not legal."""
    values = {**UNSAID, **dict(schedule.tiles)}
    _check(group, schedule, values)
    moving = (*depends_on_inputs(group)[:-1], True)
    ahead = tuple(p for p, runs in zip(parts(group), moving, strict=True) if not runs)
    group = _moving(_renamed(group), tuple(p.output.name for p in ahead))
    tile = _tile(group, values)
    found = regions(group, tile)
    graph = block_graph(group)
    made = tuple(
        _segment(piece, part.main, found[part.main.name], values, group)
        for piece, part in zip(segments(graph), parts(group), strict=True)
    )
    kept = _kept(group, made, values['format'])
    p = DfgPlan(group, graph, tile, made, kept, schedule['threads'], ahead)
    _check_regions(p)
    _check_fits(p, LARGEST_SHARED)
    return p


def _check(group: Group, schedule: GpuSchedule, values: Mapping[str, int]) -> None:
    if not group.is_plain:
        raise ScheduleError(
            f'{group.label}: {NAME} computes float32 at affine indices only; use general'
        )
    threads = schedule['threads']
    asked = [name for name, level in group.storage if level == 'global']
    wrong = [
        text
        for text, broken in (
            (f'a block has 1 to {MOST_THREADS} threads', not 1 <= threads <= MOST_THREADS),
            ('a thread holds at least one sum', values['tk'] < 1 or values['tp'] < 1),
            (f'a thread holds at most {MOST_SUMS} sums', values['tk'] * values['tp'] > MOST_SUMS),
            (f'format is one of {FORMATS}', values['format'] not in FORMATS),
            (f'nothing between stages is stored in memory, as {asked} should be', bool(asked)),
            ('the intrinsic is fma', schedule.intrinsic != 'fma'),
        )
        if broken
    ]
    if wrong:
        raise ScheduleError(f'{group.label}: schedule {schedule.tiles}: it must be that {wrong[0]}')


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


def _tile(group: Group, values: Mapping[str, int]) -> dict[str, int]:
    """Decisions as sizes along the last stage's dimensions; 0 is the whole of one."""
    last = group.stages[-1]
    dims = ordered(last)
    named = dict(zip(reversed(dims), reversed(BLOCK), strict=False))
    tile = {d: min(values[named[d]] if d in named else 1, s) or s
            for d, s in last.sizes.items() if d in dims}  # fmt: skip
    main = parts(group)[-1].main
    if main is not last:
        # Groups of channels in front of an epilogue, which sees one axis: all of it.
        for here, there in zip(last.write.index, main.write.index, strict=True):
            if len(there.terms) > 1:
                tile |= {d: last.sizes[d] for d in here.names}
    return tile


def _segment(
    graph: BlockGraph, stage: Stage, region: Region, values: Mapping[str, int], group: Group
) -> Segment:
    roles = _roles(graph, stage)
    if roles is None:
        return Segment(graph, stage, region, None, 1, 1, 1)
    made = Segment(graph, stage, region, roles, 1, 1, 1)
    tk = min(values['tk'], made.size(roles.columns))
    tp = min(values['tp'], made.size(roles.pixels))
    return Segment(graph, stage, region, roles, tk, tp, 1)


def _roles(graph: BlockGraph, stage: Stage) -> Roles | None:
    """Who plays what in a sum of products; None for other stages."""
    if not stage.is_product_sum:
        return None
    combine = next(n for n in graph.nodes if isinstance(n, Combine))
    first, second = (graph.node(name) for name in combine.inputs)
    assert isinstance(first, Load)
    assert isinstance(second, Load)
    inner = ordered(stage)[-1:]
    if _has(second, inner) and not _has(first, inner):
        first, second = second, first
    one, other = _names(first), _names(second)
    dims = ordered(stage)
    return Roles(
        first, second,
        tuple(d for d in dims if d in other and d not in one),
        tuple(d for d in dims if d in one and d not in other),
        tuple(d for d in dims if (d in one) == (d in other)),
    )  # fmt: skip


def _names(load: Load) -> set[str]:
    return {n for e in load.index for n in e.names}


def _has(load: Load, names: Sequence[str]) -> bool:
    return any(n in _names(load) for n in names)


def _kept(group: Group, made: Sequence[Segment], form: int) -> dict[str, Kept]:
    """Windows and places of all tensors that are stored to shared memory."""
    found: dict[str, Kept] = {}
    taken: list[tuple[int, int, int, int]] = []  # first and last segment, first and last float
    for number, segment in enumerate(made):
        store = segment.store
        if store.level != SHARED:
            continue
        tensor = group.tensor(store.tensor)
        readers = [
            (n, load, reader)
            for n, reader in enumerate(made)
            for load in reader.loads
            if load.tensor == tensor.name and load.level == SHARED
        ]
        window = _window(tensor, segment, [(load, reader) for _, load, reader in readers])
        strides, floats = _laid_out(tuple(s.size for s in window), form)
        pads = {load.pad for _, load, reader in readers if _leaves(tensor, load, reader)}
        fill = pads.pop() if len(pads) == 1 else None if pads else 0.0
        until = max(n for n, _, _ in readers)
        offset = _free(taken, number, until, floats)
        taken.append((number, until, offset, offset + padded(floats)))
        found[tensor.name] = Kept(tensor, window, strides, floats, offset, fill)
    return found


def _window(
    tensor: Tensor, segment: Segment, readers: Sequence[tuple[Load, Segment]]
) -> tuple[Span, ...]:
    """What is computed of each axis; with the border that readers see, where it stays in place."""
    spans = []
    for axis, extent in enumerate(tensor.shape):
        written = segment.region.written[axis]
        asked = [_reach(load.index[axis], reader) for load, reader in readers]
        low = min([s.start.const for s in asked], default=0)
        high = max([s.start.const + s.size for s in asked], default=extent)
        if any(s.start.terms for s in asked) or written.start.terms or written.size < extent:
            spans.append(written)
        else:
            low, high = min(low, 0), max(high, extent)
            spans.append(Span(Affine((), low), high - low))
    return tuple(spans)


def _reach(index: Affine, reader: Segment) -> Span:
    """Where an index of a segment goes in the region that a block computes of it."""
    dims = reader.region.dims
    terms: dict[str, int] = {}
    const = index.const
    for name, factor in index.terms:
        const += factor * dims[name].start.const
        for term, inner in dims[name].start.terms:
            terms[term] = terms.get(term, 0) + factor * inner
    return Span(
        Affine(tuple(terms.items()), const),
        index.extent({name: dims[name].size for name in index.names}),
    )


def _leaves(tensor: Tensor, load: Load, reader: Segment) -> bool:
    """Whether a point of the reader's domain reads outside the tensor."""
    return any(
        e.const < 0 or e.const + e.extent(reader.stage.sizes) > extent
        for e, extent in zip(load.index, tensor.shape, strict=True)
    )


def _laid_out(sizes: tuple[int, ...], form: int) -> tuple[tuple[int, ...], int]:
    """Strides of a window's axes, 0 for those of one element, and all its floats."""
    order = list(range(len(sizes)))
    if form == 2:
        first = next((axis for axis in order if sizes[axis] > 1), 0)
        order = [*(axis for axis in order if axis != first), first]
    lengths = [sizes[axis] for axis in order]
    if form and lengths[-1] > 1:
        lengths[-1] |= 1
    steps = row_major_strides(tuple(lengths))
    strides = {a: s if sizes[a] > 1 else 0 for a, s in zip(order, steps, strict=True)}
    return tuple(strides[axis] for axis in range(len(sizes))), math.prod(lengths)


def _free(
    taken: Sequence[tuple[int, int, int, int]], first: int, last: int, floats: int
) -> int:  # fmt: skip
    """The lowest place for `floats` beside all that lives at the same time."""
    beside = sorted((low, high) for a, b, low, high in taken if a <= last and first <= b)
    place = 0
    for low, high in beside:
        if place + floats <= low:
            break
        place = max(place, high)
    return place


def reads_inside(p: DfgPlan, segment: Segment, load: Load, axis: int) -> bool:
    """Whether whatever a block computes of a segment finds its element along an axis: in the tensor
    (global), or in the window (shared), whose positions outside the tensor are filled.
    """
    tensor = p.group.tensor(load.tensor)
    if load.level == GLOBAL:
        # Points outside the segment's domain are moved into it before anything is read.
        e = load.index[axis]
        return e.const >= 0 and e.const + e.extent(segment.stage.sizes) <= tensor.shape[axis]
    kept, reach = p.kept[load.tensor], _reach(load.index[axis], segment)
    window = kept.window[axis]
    if kept.fill is None or kept.fill != load.pad:
        e = load.index[axis]
        if e.const < 0 or e.const + e.extent(segment.stage.sizes) > tensor.shape[axis]:
            return False
    if dict(reach.start.terms) != dict(window.start.terms):
        return window.size == tensor.shape[axis] and not p.leaves(reach, tensor.shape[axis])
    return (
        reach.start.const >= window.start.const
        and reach.start.const + reach.size <= window.start.const + window.size
    )


def _check_regions(p: DfgPlan) -> None:
    """ScheduleError where a tile may need only what lies outside a tensor of the segment."""
    last = {d: (count - 1) * p.tile[d] for d, count in p.tiles}
    for segment in p.segments:
        for dim in segment.ordered:
            span, size = segment.region.dims[dim], segment.stage.sizes[dim]
            if span.start.const + span.size <= 0 or span.start.at(last) >= size:
                raise ScheduleError(
                    f'{p.group.label}: some tiles of {dict(p.tile)} need nothing but padding of '
                    f'what {segment.stage.name} computes; choose larger tiles'
                )


def _check_fits(p: DfgPlan, limit: int) -> None:
    """ScheduleError where shared memory is too small: which edge needs how much of it."""
    if p.shared_bytes <= limit:
        return
    worst = max(p.kept.values(), key=lambda k: k.bytes)
    sizes = 'x'.join(str(s.size) for s in worst.window)
    raise ScheduleError(
        f'{p.group.label}: a tile of {dict(p.tile)} needs {p.shared_bytes} bytes of shared memory, '
        f'of which the edge {worst.tensor.name} ({sizes}) takes {worst.bytes}, and a block has '
        f'{limit}; choose smaller tiles, or keep {worst.tensor.name} in memory'
    )
