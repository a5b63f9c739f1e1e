"""Bank conflicts of a segment's reads, counted on the addresses of one warp.

Goes in: a plan, a segment, one of its loads. Comes out: cycles of a warp's load from shared memory
under the strides that the plan lays out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from tilewright.kernels.gpu.schemas.dfg.fragments import Depths
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Load
from tilewright.kernels.gpu.schemas.dfg.plan import DfgPlan
from tilewright.kernels.gpu.schemas.dfg.segment import Segment
from tilewright.kernels.gpu.schemas.dfg.storage import BANKS
from tilewright.kernels.gpu.schemas.dfg.text import place
from tilewright.kernels.gpu.schemas.dfg.windows import Slide
from tilewright.kernels.gpu.work import WARP


def bank_conflicts(p: DfgPlan, segment: Segment, load: Load) -> float:
    """Cycles of a warp's load from shared memory, by the addresses of its first warp; 1 elsewhere.

    Lanes that read one address, as those of a column do, are served together.
    """
    if load.level == GLOBAL and load.name not in p.staged and load.name not in p.early:
        return 1.0
    steps = place(p, segment, load).steps
    if segment.slide:
        points = _strip_points(segment, segment.slide)
    elif segment.depths:
        points = _fragment_points(segment, segment.depths)
    else:
        points = _thread_points(segment)
    addresses = {sum(step * point.get(d, 0) for d, step in steps.items()) for point in points}
    return float(max(Counter(a % BANKS for a in addresses).values()))


def _strip_points(segment: Segment, slide: Slide) -> Iterable[Mapping[str, int]]:
    """The first output of each lane."""
    runs = {axis.dim: axis.run for axis in (slide.rows, slide.columns)}
    strips = segment.strips[::-1]
    for lane in range(min(WARP, segment.units)):
        left, point = lane, {}
        for d, count in strips:
            left, own = divmod(left, count)
            point[d] = own * runs.get(d, 1)
        yield point


def _fragment_points(segment: Segment, depths: Depths) -> Iterable[Mapping[str, int]]:
    """Pixels and depths of the lanes of a warp."""
    for lane in range(WARP):
        left, point = min(lane // 4, segment.size(segment.pixels) - 1), {}
        for d in reversed(segment.pixels):
            left, point[d] = divmod(left, segment.region.dims[d].size)
        left = lane % 4
        for d, size in reversed(depths.over):
            left, point[d] = divmod(left, size)
        yield point


def _thread_points(segment: Segment) -> Iterable[Mapping[str, int]]:
    """Where each lane begins."""
    dims = segment.region.dims
    for lane in range(min(WARP, segment.units * segment.lanes)):
        unit, point = lane // segment.lanes, {}
        for names, units, run in (
            (segment.pixels, segment.pixel_units, 1),
            (segment.columns, segment.column_units, segment.tk),
            (segment.batch, segment.size(segment.batch), 1),
        ):
            unit, own = divmod(unit, units)
            own *= run
            for d in reversed(names):
                own, point[d] = divmod(own, dims[d].size)
        if segment.lanes > 1 and segment.combine:
            own = lane % segment.lanes
            for d, size in reversed(segment.combine.over):
                own, point[d] = divmod(own, size)
        yield point
