"""A segment of a block's data-flow graph: what all threads do between two barriers, and who does
which share of it.

Goes in: the nodes of one part, its main stage and the region that a tile asks for. Comes out: a
`Segment`. A sum of products is shared as columns by pixels, whatever it multiplies:

    conv2d   columns k, pixels n h w     In is read along, Ker across
    matmul   columns i, pixels j         B is read along, A across

Other stages are shared point by point; where points are few and reductions long, several threads
take a point together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, BlockGraph, Combine, Load, Store
from tilewright.ops.chain import Region, Span
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Affine, Stage

FOUR = 4  # floats that are loaded at once
MOST_LANES = 32


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

    tk tp    sums of products that a thread holds       lanes   threads that share one point
    depth    points of the chunked reduction that are in shared memory at once, 0: none are
    staged   names of the loads that go through shared memory in such pieces
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
    packed: tuple[Packed, ...] = ()

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
        """Threads' shares of the region."""
        return self.size(self.batch) * self.column_units * self.pixel_units

    def turns(self, threads: int) -> int:
        return -(-self.units * self.lanes // threads)


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
    number: int, last: Mapping[str, int],
) -> Segment:  # fmt: skip
    """The segment of one part; `last`: where the last tile of every dimension begins."""
    roles = _roles(graph, stage)
    if roles is None:
        return _by_points(Segment(graph, stage, region), values['threads'])
    made = Segment(graph, stage, region, roles)
    tk = min(values['tk'], made.size(roles.columns))
    tp = min(values['tp'], made.size(roles.pixels))
    made = _busy(replace(made, tk=tk, tp=tp), values['threads'])
    for role in ('across', 'along'):
        made = _with_packed(group, made, role, number, last)
    return _with_stages(made, values)


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


def _roles(graph: BlockGraph, stage: Stage) -> Roles | None:
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
