"""Traffic of a complete nest: which loop's working set fits which cache, and what crosses then.

Goes in: the loops of a schedule, all bands in one list. Comes out: words over each boundary.

The model of Secs. 3-5 takes the tiles of a level as given and assumes that they fit. A schedule may
have tiles that do not, or that leave a cache half empty. So the tile of a cache is found instead:
growing the innermost tile by one loop after the other, outwards, the *working set* is the largest
such box that fits the cache (with a margin). Loops outside the box then move data by MOpt's rules:

    full reuse      loops directly around the box in which a tensor is absent cost it nothing
    no reuse        every other loop multiplies its volume
    partial reuse   the first present loop brings only the new part of an overlapping window

Rows of a box rarely begin on a cache line: unless rows of the tensor and steps of the box are whole
lines, a row of e words touches (e + L - 1) / L lines on average (Sec. 12 counts ceil(e / L)).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ops.stage import Access, Stage
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Loop:
    """One tile loop: `name` is cut from pieces of `outer` into pieces of `tile`."""

    name: str
    outer: int
    tile: int

    @property
    def trips(self) -> float:
        return self.outer / self.tile


@dataclass(frozen=True, slots=True)
class Rows:
    """How a tensor lies in memory: its fastest axis, the length of a row, whether it is packed.

    packed: consecutive in the order of use, so that lines are used whole.
    """

    axis: int
    length: int
    packed: bool = False


def flatten(
    stage: Stage, schedule: Schedule, part: Mapping[str, int]
) -> tuple[list[Loop], dict[str, int]]:
    """(loops, outermost first; the innermost box): what one micro-kernel call works on.

    The micro-kernel has the reductions of the register tile.
    """
    current = dict(part)
    loops = []
    for level in reversed(schedule.levels):
        tile = level.tile
        for name in level.order:
            if level.name == 'reg' and name in stage.reduction:
                continue
            if tile[name] < current[name]:
                loops.append(Loop(name, current[name], tile[name]))
                current[name] = tile[name]
    return loops, current


def boxes(loops: list[Loop], innermost: Mapping[str, int]) -> list[dict[str, int]]:
    """The innermost box, then boxes that grow by one loop each, outwards."""
    grown = [dict(innermost)]
    for loop in reversed(loops):
        grown.append({**grown[-1], loop.name: loop.outer})
    return grown


def words(access: Access, box: Mapping[str, int], rows: Rows, line_words: int) -> float:
    """Words of whole lines that one box touches."""
    extents = []
    for expression in access.index:
        reach, points = 1, 1
        for name, coefficient in expression.terms:
            reach += coefficient * (box[name] - 1)
            points *= box[name]
        extents.append(min(reach, points))
    count = math.prod(extents)
    if rows.packed or line_words == 1:
        return count
    extent = extents[rows.axis]
    if extent >= rows.length:
        return count
    name, coefficient = access.index[rows.axis].terms[0]
    if rows.length % line_words == 0 and coefficient * box[name] % line_words == 0:
        return count / extent * -(-extent // line_words) * line_words  # boxes begin on a line
    return count / extent * (extent + line_words - 1)


def crossing(access: Access, loops: list[Loop], box: Mapping[str, int], size: float) -> float:
    """Words moved when `box` (of `size` words) is visited by `loops` (outermost first)."""
    remaining = list(loops)
    while remaining and remaining[-1].name not in access.names:
        remaining.pop()
    if not remaining:
        return size
    first = remaining[-1]
    steps = first.trips
    for expression in access.index:
        coefficient = expression.coefficient(first.name)
        if coefficient:
            extent = expression.extent(box)
            fresh = min(1.0, coefficient * first.tile / extent)
            steps = 1 + (first.trips - 1) * fresh
    return size * steps * math.prod(loop.trips for loop in remaining[:-1])
