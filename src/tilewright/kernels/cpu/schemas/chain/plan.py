"""What the chain schema decides before it writes a line.

Goes in: a group of several parts (ops/chain.py) and a schedule with schema 'chain', whose levels
tile the last part's main stage. Comes out: a plan, or a ScheduleError that says why the schedule is
not legal.

    vector ''     `NestPlan`: plain loops. The register tile is a tile of the result; which region
                  of every inner tensor it needs follows from the accesses (`regions`). Regions lie
                  dense in a thread's scratch memory, computed again where tiles overlap.
    vector 'k'    `ProductPlan`: the last part by the outer schema, whose packed tile the part
                  before it computes, instead of a copy. Options `rows` and `lanes` say how. What
                  that part reads may be computed, too: rows of a 1x1 convolution (expand.py), of
                  as many channels at a time as the option `channels` says; without it, of all.
    vector 'w'    `AcrossPlan`: the last part by the schema of pixels, whose strips the part before
                  it computes (across.py). Options `rows` and `lanes` say how.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.operand import packed_tile
from tilewright.kernels.cpu.pointwise import axes_of
from tilewright.kernels.cpu.schemas.chain.across import AcrossPlan, plan_across
from tilewright.kernels.cpu.schemas.chain.expand import ExpandPlan, plan_expand
from tilewright.kernels.cpu.schemas.chain.rows import SlidingPlan, plan_sliding
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan, plan_outer
from tilewright.ops.chain import Region, is_chained, regions
from tilewright.ops.compose import placed
from tilewright.ops.group import Group, row_major_strides
from tilewright.ops.parts import parts
from tilewright.ops.stage import Affine, Stage
from tilewright.schedule.schedule import Schedule

MOST_BYTES = 1 << 24  # of a thread's scratch memory: more is not a cache


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a thread keeps its region of an inner tensor: `offset` floats into its scratch memory.

    `starts`: the first position along each axis, affine in the origin of the tile.
    """

    offset: int
    strides: tuple[int, ...]
    starts: tuple[Affine, ...]


@dataclass(frozen=True)
class NestPlan:
    """Everything that is decided before a line is written.

    ranges   part -> iterator -> (first, how many), affine in the origin of the tile; those that are
             not named are whole
    buffers  inner tensor that leaves its part -> where it lies
    """

    group: Group
    schedule: Schedule
    parts: tuple[Group, ...]
    ranges: tuple[Mapping[str, tuple[Affine, int]], ...]
    buffers: Mapping[str, Buffer]
    scratch_floats: int

    @property
    def stage(self) -> Stage:
        """The stage that the schedule tiles."""
        return self.parts[-1].main


def why_no_chain(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can."""
    if not is_chained(group):
        return f'no inner tensor of {group.label} is to be kept in a cache'
    if not group.is_plain:
        return f'{group.label} has tables, lookups, iterators in expressions or other dtypes'
    if len(parts(group)) < 2:
        return f'{group.label} is one part, with nothing between two'
    try:
        tile_regions(group, {})
    except ScheduleError as error:
        return str(error)
    return ''


def tiled_stage(group: Group) -> Stage:
    """The stage whose dimensions a schedule tiles: the main one of the last part."""
    return parts(group)[-1].main


def tile_regions(group: Group, tile: Mapping[str, int]) -> dict[str, Region]:
    """`regions` for a tile of the last part's main stage, whose iterators the starts are over."""
    main, last = tiled_stage(group), group.stages[-1]
    if last is main or last.dims == main.dims:
        return regions(group, tile)
    place = axes_of(last, main.write.index)
    wanted = {}
    for name, at in place.items():
        cut = [d for d in at.names if tile.get(d, main.sizes[d]) < main.sizes[d]]
        if not cut:
            continue
        if at != Affine(((cut[0], 1),)):
            raise ScheduleError(
                f'{group.label}: the tile cuts {cut}, which stage {last.name} has as {at.terms}; '
                f'only dimensions of their own can be cut'
            )
        wanted[name] = tile[cut[0]]
    found = regions(group, wanted)
    return {name: _moved(region, place) for name, region in found.items()}


def _moved(region: Region, place: Mapping[str, Affine]) -> Region:
    """A region whose starts are over the iterators of the main stage."""
    dims = {d: replace(s, start=placed(s.start, place)) for d, s in region.dims.items()}
    written = tuple(replace(s, start=placed(s.start, place)) for s in region.written)
    return Region(dims, written)


def check(group: Group, schedule: Schedule) -> None:
    """Raise ScheduleError where the schedule is not legal for this schema."""
    why = why_no_chain(group)
    if why:
        raise ScheduleError(f'{why}; the chain schema cannot compute it')
    stage, label = tiled_stage(group), group.label
    if set(schedule.reg.tile) != set(stage.sizes):
        raise ScheduleError(
            f'{label}: the schedule tiles {sorted(schedule.reg.tile)}; the last part has '
            f'{sorted(stage.sizes)}'
        )
    bad = [d for d, _ in schedule.parallel if d not in stage.parallel]
    if bad:
        raise ScheduleError(f'{label}: {bad} cannot be cut between threads')


@dataclass(frozen=True)
class ProductPlan:
    """A sliding part, and an outer product that reads what it made; `expand` comes before both."""

    group: Group
    schedule: Schedule
    outer: OuterPlan
    sliding: SlidingPlan
    expand: ExpandPlan | None = None

    @property
    def scratch_floats(self) -> int:
        own = abi.aligned(self.outer.scratch_floats)
        return own + (self.expand.region_floats if self.expand else 0)


def plan_chain(group: Group, schedule: Schedule) -> NestPlan | ProductPlan | AcrossPlan:
    """[Group, Schedule] -> what will be generated: micro-kernels where there is a vector."""
    check(group, schedule)
    if not schedule.vector:
        return _plan_nests(group, schedule)
    if schedule.vector in vector_candidates(parts(group)[-1]):
        return _plan_product(group, schedule)
    return plan_across(group, schedule)


def _plan_product(group: Group, schedule: Schedule) -> ProductPlan:
    *before, slides, last = parts(group)
    if len(before) > 1:
        raise ScheduleError(
            f'{group.label} has {len(before) + 2} parts; with a vector dimension at most three are '
            f'chained'
        )
    if not schedule.pack:
        raise ScheduleError(
            f'{group.label}: the schedule packs nothing; name the level whose tile is chained'
        )
    outer = plan_outer(last, schedule)
    sliding = plan_sliding(slides, outer)
    if not before:
        return ProductPlan(group, schedule, outer, sliding)
    expand = _plan_before(before[0], outer, sliding)
    return ProductPlan(group, schedule, outer, replace(sliding, plane=expand.pitch), expand)


def _plan_before(part: Group, outer: OuterPlan, sliding: SlidingPlan) -> ExpandPlan:
    """The part whose result the sliding one reads, for the rows of one tile."""
    shape, label = sliding.shape, part.label
    if part.output.name != shape.a.tensor:
        raise ScheduleError(f'{label}: {shape.a.tensor} is slid over, not {part.output.name}')
    if shape.down_axis != 2:
        raise ScheduleError(f'{label}: rows are not the third axis of {part.output.name}')
    schedule = outer.schedule
    tile = packed_tile(schedule, part_extents(outer.group.main, schedule))
    wanted = [expression.extent(tile) for expression in outer.contraction.a.index]
    image, channels, height, _ = wanted
    if image > 1 or channels < part.output.shape[1]:
        raise ScheduleError(
            f'{label}: the tile has {image} images and {channels} of {part.output.shape[1]} '
            f'channels; with three parts choose one image and all channels'
        )
    down = shape.down
    held = dict(schedule.options).get('channels', 0)
    made = plan_expand(part, min(down.reach(height), down.extent), schedule.isa, held)
    if 4 * made.region_floats > MOST_BYTES:
        raise ScheduleError(
            f'{label} needs {4 * made.region_floats} bytes in the cache for {made.rows} rows; the '
            f'limit is {MOST_BYTES}: choose a smaller tile'
        )
    return made


def _plan_nests(group: Group, schedule: Schedule) -> NestPlan:
    stage, tile = tiled_stage(group), schedule.reg.tile
    cut = [d for d in stage.reduction if tile[d] < stage.sizes[d]]
    if cut:
        raise ScheduleError(
            f'{group.label}: the tile cuts {cut}, which are summed over; without a vector '
            f'dimension only {list(stage.parallel)} are tiled'
        )
    found = tile_regions(group, tile)
    cut_up = parts(group)
    buffers, offset = {}, 0
    for part in cut_up[:-1]:
        region = found[part.stages[-1].name]
        shape = tuple(span.size for span in region.written)
        starts = tuple(span.start for span in region.written)
        buffers[part.output.name] = Buffer(offset, row_major_strides(shape), starts)
        offset += abi.aligned(math.prod(shape))
        if 4 * offset > MOST_BYTES:
            raise ScheduleError(
                f'{group.label}: {part.output.name} needs {4 * math.prod(shape)} bytes in the '
                f'cache for a tile of {dict(tile)}, {4 * offset} with those before it; the limit '
                f'is {MOST_BYTES}: choose a smaller tile'
            )
    ranges = tuple(
        {
            name: (span.start, span.size)
            for name, span in found[part.main.name].dims.items()
            if span.start.terms or span.size < part.main.sizes[name]
        }
        for part in cut_up
    )
    return NestPlan(group, schedule, cut_up, ranges, buffers, offset)
