"""A segment of a block's data-flow graph: what all threads do between two barriers, and who does
which share of it.

Goes in: the nodes of one part, its main stage and the region that a tile asks for. Comes out: a
`Segment`. A sum of products is shared as columns by pixels, whatever it multiplies:

    conv2d   columns k, pixels n h w     In is read along, Ker across
    matmul   columns i, pixels j         B is read along, A across

By matrix instructions a warp has such a share, of 16 columns by 8 pixels at least. Windows without
columns of their own slide over what they read (windows.py). Other stages are shared point by point;
where points are few and reductions long, several threads take a point together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernels.gpu.schemas.dfg.fragments import (
    COLUMNS,
    DEPTHS,
    Depths,
    Fragments,
    fragments_of,
)
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, BlockGraph, Combine, Load, Store
from tilewright.kernels.gpu.schemas.dfg.windows import Slide, slide_of
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.chain import Region, Span
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Affine, Stage

FOUR = 4  # floats that are loaded at once
MOST_LANES = 32
PIXELS = 8  # of one matrix instruction
LEAST_COLUMNS = 8  # for which half of a matrix instruction is worth it
SUMS = 8  # of a thread along one side, where the other segments have matrix instructions
READ_CYCLES = 9  # of a multiprocessor's quarter, to read and cut an element of an operand
PRODUCT_CYCLES = 7  # for the three products of a matrix instruction


@dataclass(frozen=True, slots=True)
class Roles:
    """Operands and dimensions of a sum of products.

    along    the operand with the contiguous dimension of the result: lanes read neighbours
    across   the other one: lanes read the same
    columns  dimensions of `across` alone    pixels   of `along` alone    batch   of both
    chunk    the reduction that is cut into pieces for shared memory; '' if there is none
    """

    along: Load
    across: Load
    columns: tuple[str, ...]
    pixels: tuple[str, ...]
    batch: tuple[str, ...]
    chunk: str


@dataclass(frozen=True, slots=True)
class Packed:
    """A constant operand in the order in which it is read: the tensor, and where `load` finds what
    belongs there.
    """

    tensor: Tensor
    load: Load
    dims: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Segment:
    """A region of one part.

    tk tp    sums of products that a thread holds; by matrix instructions, that a warp does
    lanes    threads that share one point
    depth    points of the chunked reduction that are in shared memory at once, 0: none are
    staged   names of the loads that go through shared memory in such pieces
    depths   how matrix instructions walk the reductions; None: multiply-adds
    slide    the window that slides over what a thread reads, if one does
    """

    graph: BlockGraph
    stage: Stage
    region: Region
    roles: Roles | None = None
    tk: int = 1
    tp: int = 1
    lanes: int = 1
    depth: int = 0
    staged: tuple[str, ...] = ()
    packed: tuple[Packed | Fragments, ...] = ()
    depths: Depths | None = None
    slide: Slide | None = None

    @property
    def fragments(self) -> Fragments | None:
        """The packed operand of matrix instructions."""
        return next((item for item in self.packed if isinstance(item, Fragments)), None)

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

    @property
    def chunks(self) -> int:
        """Pieces of a sum, with barriers between them."""
        if not self.depth or self.roles is None:
            return 1
        size = self.stage.sizes[self.roles.chunk] if self.roles.chunk else 1
        return -(-size // self.depth)

    def size(self, dims: Sequence[str]) -> int:
        return math.prod(self.region.dims[d].size for d in dims)

    @property
    def ordered(self) -> tuple[str, ...]:
        """Parallel dimensions in the order of the axes that they write."""
        return ordered(self.stage)

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
    def pixel_units(self) -> int:
        return -(-self.size(self.pixels) // self.tp)

    @property
    def column_units(self) -> int:
        return -(-self.size(self.columns) // self.tk)

    @property
    def units(self) -> int:
        """Threads' shares of the region; warps' by matrix instructions."""
        if self.slide:
            return math.prod(size for _, size in self.strips)
        return self.size(self.batch) * self.column_units * self.pixel_units

    @property
    def strips(self) -> tuple[tuple[str, int], ...]:
        """(dimension, shares along it) where a window slides."""
        assert self.slide is not None
        runs = {axis.dim: axis.run for axis in (self.slide.rows, self.slide.columns)}
        return tuple((d, -(-self.size((d,)) // runs.get(d, 1))) for d in self.ordered)

    @property
    def unit_threads(self) -> int:
        """Threads that have a share together."""
        return WARP if self.depths else self.lanes

    def turns(self, threads: int) -> int:
        return -(-self.units // (threads // self.unit_threads))


def ordered(stage: Stage) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for e in stage.write.index for n, _ in e.terms))


def leaves(load: Load, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Whether a point of the reader's domain reads outside the tensor."""
    return any(
        e.const < 0 or e.const + e.extent(sizes) > extent
        for e, extent in zip(load.index, shape, strict=True)
    )


def reach(index: Affine, segment: Segment, other: Mapping[str, int] | None = None) -> Span:
    """Where an index goes in the region of a segment; `other`: sizes of some reductions, whose
    start is left out.
    """
    dims, short = segment.region.dims, other or {}
    terms: dict[str, int] = {}
    const = index.const
    for name, factor in index.terms:
        const += factor * dims[name].start.const
        for term, inner in dims[name].start.terms:
            terms[term] = terms.get(term, 0) + factor * inner
    sizes = {name: short.get(name, dims[name].size) for name in index.names}
    return Span(Affine(tuple(terms.items()), const), index.extent(sizes))


def segment_of(
    group: Group, graph: BlockGraph, stage: Stage, region: Region, values: Mapping[str, int],
    number: int, last: Mapping[str, int], parts: int = 1,
) -> Segment:  # fmt: skip
    """The segment of one part; `last`: where the last tile of every dimension begins; `parts` of
    the chunked reduction that a block walks.
    """
    roles = roles_of(graph, stage)
    made = _slid(Segment(graph, stage, region, roles), values, last)
    if made.slide:
        return _with_stages(made, {**values, 'cw': 0}) if roles else made
    if roles is None:
        return _by_points(made, values['threads'])
    if values['matrix']:
        found = _by_matrix(group, made, values, number, last, parts)
        if found is not None:
            return found
        values = {**values, **{name: min(values[name], SUMS) for name in ('tk', 'tp')}}
    tk = min(values['tk'], made.size(roles.columns))
    tp = min(values['tp'], made.size(roles.pixels))
    made = _busy(replace(made, tk=tk, tp=tp), values['threads'])
    for role in ('across', 'along'):
        made = _with_packed(group, made, role, number, last)
    return _with_stages(made, values)


def _slid(segment: Segment, values: Mapping[str, int], last: Mapping[str, int]) -> Segment:
    """With a window that slides, where results have no columns, and none lies outside the domain
    of the stage: a thread's outputs are not moved to others then.
    """
    dims, sizes = segment.region.dims, segment.stage.sizes
    if len(segment.ordered) < 2 or segment.size(segment.columns) > 1:
        return segment
    inner = segment.ordered[-2:]
    if any(
        dims[d].start.const < 0 or dims[d].start.at(last) + dims[d].size > sizes[d] for d in inner
    ):
        return segment
    runs = min(values['sh'], dims[inner[0]].size), min(values['sw'], dims[inner[1]].size)
    slide = slide_of(segment.graph, segment.stage, segment.ordered, runs)
    long = segment.roles and segment.roles.chunk and sizes[segment.roles.chunk] > 1
    return segment if slide is None or long else replace(segment, slide=slide)


def _by_matrix(
    group: Group, segment: Segment, values: Mapping[str, int], number: int,
    last: Mapping[str, int], parts: int,
) -> Segment | None:  # fmt: skip
    """The segment by matrix instructions; None where it is too small for them, or where its
    reductions cannot be walked in eights.
    """
    roles, stage = segment.roles, segment.stage
    assert roles is not None
    if segment.size(roles.columns) < LEAST_COLUMNS or segment.size(roles.pixels) < PIXELS:
        return None
    made = segment if parts > 1 else _with_stages(segment, values)
    depths = _depths(made, roles, stage, parts)
    if depths is None or depths.points < DEPTHS or roles.along.pad or roles.across.pad:
        return None
    made = replace(made, depths=depths, tk=values['tk'], tp=values['tp'])
    made = _balanced(made, values['threads'] // WARP)
    return _with_fragments(group, made, number, last, depths)


def _depths(segment: Segment, roles: Roles, stage: Stage, parts: int) -> Depths | None:
    over = [(d, stage.sizes[d]) for d in stage.reduction]
    over = tuple(sorted(over, key=lambda one: one[0] == roles.chunk))
    size = stage.sizes[roles.chunk] if roles.chunk else 1
    filled = roles.along.name in segment.staged  # zeros behind the end
    if segment.chunks > 1:
        fits = segment.depth % DEPTHS == 0 and (filled or size % segment.depth == 0)
        return Depths(over, roles.chunk, segment.depth, segment.chunks) if fits else None
    if roles.chunk and size % (DEPTHS * parts) == 0:
        return Depths(over, roles.chunk, size // parts, parts)
    return Depths(over, '', 0, 1)


def _balanced(segment: Segment, warps: int) -> Segment:
    """The share of a warp, at most as large as it was, with which all warps end soonest."""

    def cycles(one: Segment) -> tuple[int, int]:
        down, across = one.tk // COLUMNS, one.tp // PIXELS
        step = PRODUCT_CYCLES * down * across + READ_CYCLES * (4 * down + 2 * across)
        return -(-one.units // warps) * step, -one.tk * one.tp

    sizes = [
        (tk, tp)
        for tk in _halves(segment.tk, COLUMNS)
        for tp in _halves(segment.tp, PIXELS)
    ]  # fmt: skip
    return min((replace(segment, tk=tk, tp=tp) for tk, tp in sizes), key=cycles)


def _halves(size: int, least: int) -> list[int]:
    return [size] if size <= least else [size, *_halves(size // 2, least)]


def _with_fragments(
    group: Group, segment: Segment, number: int, last: Mapping[str, int], depths: Depths
) -> Segment | None:  # fmt: skip
    """With the constant operand packed for matrix instructions; None where tiles of columns do not
    begin at sixteens.
    """
    roles = segment.roles
    assert roles is not None
    load, sizes = roles.across, segment.stage.sizes
    tensor = group.tensor(load.tensor)
    constant = load.level == GLOBAL and tensor.role == 'constant'
    if not constant or len(roles.columns) != 1 or leaves(load, tensor.shape, sizes):
        return segment if load.name not in segment.staged else None
    (column,) = roles.columns
    span = segment.region.dims[column]
    if span.start.const % COLUMNS or (span.start.terms and span.size % COLUMNS):
        return None
    width = max(sizes[column], span.start.at(last) + segment.column_units * segment.tk)
    batch = tuple((d, sizes[d]) for d in roles.batch if d in _names(load))
    item = fragments_of(
        f'{tensor.name}_{number}', load, batch, column, sizes[column], width, depths
    )
    there = replace(load, tensor=item.tensor.name, index=item.index, pad=0.0)
    graph = BlockGraph(tuple(there if n is load else n for n in segment.graph.nodes))
    return replace(
        segment, graph=graph, roles=replace(roles, across=there), packed=(*segment.packed, item)
    )


def _busy(segment: Segment, threads: int) -> Segment:
    """Fewer sums of a thread, where half of the threads would have none: pixels first, since
    columns are read in fours.
    """
    while segment.tp > 1 and 2 * segment.units <= threads:
        segment = replace(segment, tp=segment.tp // 2)
    while segment.tk > 1 and 2 * segment.units <= threads:
        segment = replace(segment, tk=segment.tk // 2)
    return segment


def _by_points(segment: Segment, threads: int) -> Segment:
    """As many lanes for each point as there are threads for, if it has so much to reduce."""
    lanes = 1
    while (
        lanes < MOST_LANES
        and 2 * lanes * segment.units <= threads
        and 4 * lanes <= segment.reduced
        and threads % (2 * lanes) == 0
    ):
        lanes *= 2
    return replace(segment, lanes=lanes)


def roles_of(graph: BlockGraph, stage: Stage) -> Roles | None:
    """Who plays what in a sum of products; None for other stages."""
    if not stage.is_product_sum:
        return None
    combine = next(n for n in graph.nodes if isinstance(n, Combine))
    first, second = (graph.node(name) for name in combine.inputs)
    assert isinstance(first, Load)
    assert isinstance(second, Load)
    dims = ordered(stage)
    inner = dims[-1] if dims else ''
    if inner in _names(second) and inner not in _names(first):
        first, second = second, first
    one, other = _names(first), _names(second)
    return Roles(
        first, second,
        tuple(d for d in dims if d in other and d not in one),
        tuple(d for d in dims if d in one and d not in other),
        tuple(d for d in dims if (d in one) == (d in other)),
        _chunk(stage, first, second),
    )  # fmt: skip


def _names(load: Load) -> set[str]:
    return {n for e in load.index for n in e.names}


def _chunk(stage: Stage, *loads: Load) -> str:
    """The largest reduction that no operand reads in windows: channels, not taps."""
    windowed = {
        n
        for load in loads
        for e in load.index
        if len(set(e.names) & set(stage.reduction)) and len(set(e.names) & set(stage.parallel))
        for n in e.names
        if e.coefficient(n) and not _apart(e, n, stage)
    }
    plain = [d for d in stage.reduction if d not in windowed]
    return max(plain, key=lambda d: stage.sizes[d]) if plain else ''


def _apart(e: Affine, name: str, stage: Stage) -> bool:
    """Whether a reduction walks places of its own, as channels of a group do: steps of the others
    are longer than all of it.
    """
    reach_of = e.coefficient(name) * stage.sizes[name]
    return all(c >= reach_of for n, c in e.terms if n != name)


def _with_packed(
    group: Group, segment: Segment, role: str, number: int, last: Mapping[str, int]
) -> Segment:  # fmt: skip
    """Constants in the order in which threads read them: [batch][reductions][columns or pixels]."""
    roles = segment.roles
    assert roles is not None
    load = roles.across if role == 'across' else roles.along
    tensor, stage = group.tensor(load.tensor), segment.stage
    own = roles.columns if role == 'across' else roles.pixels
    constant = load.level == GLOBAL and tensor.role == 'constant'
    if not constant or len(own) != 1 or leaves(load, tensor.shape, stage.sizes):
        return segment
    span = segment.region.dims[own[0]]
    units, run = (
        (segment.column_units, segment.tk) if role == 'across'
        else (segment.pixel_units, segment.tp)
    )  # fmt: skip
    width = max(stage.sizes[own[0]], span.start.at(last) + units * run)
    names = _names(load)
    over = sorted(stage.reduction, key=lambda d: d != roles.chunk)
    dims = (
        *((d, stage.sizes[d]) for d in (*roles.batch, *over) if d in names),
        (own[0], -(-width // FOUR) * FOUR),
    )
    packed = Tensor(
        f'{tensor.name}_{number}', tuple(d for d, _ in dims), tuple(s for _, s in dims), 'constant'
    )
    there = replace(
        load, tensor=packed.name, index=tuple(Affine(((d, 1),)) for d, _ in dims), pad=0.0
    )  # fmt: skip
    graph = BlockGraph(tuple(there if n is load else n for n in segment.graph.nodes))
    return replace(
        segment, graph=graph, roles=replace(roles, **{role: there}),
        packed=(*segment.packed, Packed(packed, load, dims)),
    )  # fmt: skip


def _with_stages(segment: Segment, values: Mapping[str, int]) -> Segment:
    """Operands in global memory that go through shared memory, in pieces of `ci`."""
    roles = segment.roles
    assert roles is not None
    if not values['ci']:
        return segment
    wanted = [load for load, yes in ((roles.along, True), (roles.across, values['cw'])) if yes]
    staged = tuple(load.name for load in wanted if load.level == GLOBAL and load.pad == 0.0)
    if not staged or not roles.chunk:
        return segment
    depth = min(values['ci'], segment.stage.sizes[roles.chunk])
    return replace(segment, depth=depth, staged=staged)
