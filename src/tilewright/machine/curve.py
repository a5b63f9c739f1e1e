"""From a measured bandwidth curve to what the models need: usable cache sizes, boundary bandwidths.

Goes in: the caches as reported, and a curve of points (bytes read over and over by each core,
GB/s of one core alone, GB/s of all cores together). Comes out: bytes of every cache that are
really ours, and the bandwidth over every boundary, one core and all (MOpt Secs. 5 and 7 take both
from synthetic benchmarks). Pure functions; `docs/machine.md` says how they were chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median

from tilewright.machine.machine import Cache

Point = tuple[int, float, float]
Series = Sequence[tuple[int, float]]

# A level that is less than this much faster than the next leaves no edge to find in the curve.
LEAST_STEP = 1.5
SMALLEST_BYTES = 8 << 10
GRAIN_BYTES = 4 << 10


def sweep_sizes(caches: Sequence[Cache], largest: int) -> tuple[int, ...]:
    """Working sets to measure: 2^i and 3*2^i, and every cache's size, up to `largest`."""
    wanted = {cache.bytes for cache in caches} | {largest}
    size = SMALLEST_BYTES
    while size <= largest:
        wanted |= {size, size * 3 // 2}
        size *= 2
    return tuple(sorted({s - s % GRAIN_BYTES for s in wanted if SMALLEST_BYTES <= s <= largest}))


def _series(curve: Sequence[Point]) -> tuple[Series, Series]:
    """One core's and all cores' curve, each point raised to the best of the larger working sets.

    What is read at some rate from far away can be read at that rate from nearby; a lower figure
    there was a disturbance, since those only ever slow a run down.
    """
    falling = curve[::-1]
    sizes = [size for size, _, _ in falling]
    one = accumulate((gbps for _, gbps, _ in falling), max)
    together = accumulate((gbps for _, _, gbps in falling), max)
    return (
        list(zip(sizes, one, strict=True))[::-1],
        list(zip(sizes, together, strict=True))[::-1],
    )


def _within(series: Series, low: float, high: float) -> list[float]:
    return [gbps for size, gbps in series if low <= size <= high]


def _edge(series: Series, inner: float, size: float) -> int | None:
    """Where the bandwidth leaves the level that reports `size` bytes, behind one of `inner` bytes.

    The level's own rate is the best between 2*inner and size/2, the next level's the median
    between 2*size and 4*size. The edge is the largest working set, no larger than reported, that
    is read at more than the mean of the two: a disturbance can hide such a rate, but not make it.
    None where the two rates are too close for an edge to show.
    """
    own = _within(series, 2 * inner, size / 2) or _within(series, inner * 1.01, size)
    if not own:
        return None
    rate = max(own)
    next_rate = median(_within(series, 2 * size, 4 * size) or [series[-1][1]])
    if rate < LEAST_STEP * next_rate:
        return None
    half_way = (rate + next_rate) / 2
    return max(bytes_ for bytes_, gbps in series if bytes_ <= size and gbps >= half_way)


def with_usable_sizes(caches: Sequence[Cache], curve: Sequence[Point]) -> tuple[Cache, ...]:
    """The caches with `usable_bytes` derived from the curve.

    L1 and L2 are inside the core and reported truly, so the curve may take away at most half (a
    neighbour on the same core); with no edge to be seen the report stands. A level further out
    belongs to us only as far as the curve shows, alone and with all cores (the lesser counts), and
    with no edge to be seen it counts for no more than what the levels inside it hold together.
    """
    one, together = _series(curve)
    found: list[Cache] = []
    for level, cache in enumerate(caches, start=1):
        inner = found[-1] if found else None
        alone_inside = inner.usable_bytes if inner else 0
        share_inside = inner.usable_bytes / inner.shared_by if inner else 0
        alone = _edge(one, alone_inside, cache.bytes)
        share = _edge(together, share_inside, cache.bytes / cache.shared_by)
        edges = [e for e in (alone, share and share * cache.shared_by) if e]
        least = max(alone_inside, int(share_inside * cache.shared_by))
        if level <= 2:
            usable = max(*edges, cache.bytes // 2, least) if edges else cache.bytes
        else:
            usable = max(min(edges, default=least), least)
        found.append(replace(cache, usable_bytes=max(1, min(usable, max(cache.bytes, least)))))
    return tuple(found)


def boundary_bandwidths(
    caches: Sequence[Cache], curve: Sequence[Point]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(one core, all cores): GB/s over every boundary, innermost first, for `usable_bytes` set.

    Data comes from a level when the working set fits it but is at least twice the next level in:
    the median over those points (for L1 their best; for memory the points beyond twice the
    outermost cache). Noise cannot make an outer boundary faster than an inner one, nor all cores
    slower than one.
    """
    one, together = _series(curve)
    alone = _rates(one, [(c.usable_bytes, c.bytes) for c in caches])
    shares = [(c.usable_bytes / c.shared_by, c.bytes / c.shared_by) for c in caches]
    joint = [max(a, b) for a, b in zip(_rates(together, shares), alone, strict=True)]
    return tuple(accumulate(alone, min)), tuple(accumulate(joint, min))


def _rates(series: Series, capacities: Sequence[tuple[float, float]]) -> list[float]:
    """One rate per boundary, for levels of (usable, reported) bytes."""
    rates: list[float] = []
    inside = 0.0
    for usable, _ in capacities:
        inner_points = _within(series, 2 * inside, usable) or _within(series, inside * 1.01, usable)
        points = inner_points or [_first_beyond(series, inside)]
        rates.append(median(points) if inside else max(points))
        inside = usable
    outermost = capacities[-1][1] if capacities else 0.0
    rates.append(median(_within(series, 2 * outermost, float('inf')) or [series[-1][1]]))
    return rates


def _first_beyond(series: Series, size: float) -> float:
    return next((gbps for bytes_, gbps in series if bytes_ > size), series[-1][1])
