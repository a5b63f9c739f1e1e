"""Address translations: what a nest costs because memory comes in pages.

Goes in: a nest, as loops and boxes (model/cpu/working_set.py). Comes out: misses of one thread.

A translation buffer is a cache of pages, so the rules for caches hold: the largest box whose pages
it holds stays translated, and loops around it bring in what is new. Two levels matter:

    first     some forty pages; a micro-kernel call walks over all channels of a tile
    second    a thousand or more; results larger than that are walked in the order of the nest
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.model.cpu.working_set import Loop
from tilewright.ops.group import Tensor
from tilewright.ops.stage import Access

PAGE_BYTES = 4096
PAGE_WORDS = PAGE_BYTES // 4
FIRST_PAGES = 40  # a first-level TLB, less what weights and results take of it
SECOND_PAGES = 1024  # a second-level TLB, less what everything else takes of it


def first_misses(channels: float, channel_bytes: float, own_pages: float, walks: float) -> float:
    """First-level misses: `walks` calls that each walk over `channels`, `channel_bytes` apart.

    The next call walks over nearly the same pages: they all hit while one walk stays within the
    first-level TLB, and all miss beyond. `own_pages` is what one channel touches on average, were
    it alone.
    """
    pages = channels * min(own_pages, channel_bytes / PAGE_BYTES)
    return walks * pages if pages > FIRST_PAGES else 0.0


def second_misses(
    access: Access, tensor: Tensor, loops: list[Loop], nested: list[dict[str, int]]
) -> float:
    """Second-level misses of a tensor that is visited by `loops`; `nested` as of `boxes`."""
    if pages(access, tensor, nested[-1]) <= SECOND_PAGES:
        return 0.0
    fits = 0
    while pages(access, tensor, nested[fits + 1]) <= SECOND_PAGES:
        fits += 1
    outside = loops[: len(loops) - fits]
    while outside[-1].name not in access.names:
        outside = outside[:-1]
    box, last = nested[fits], outside[-1]
    held = pages(access, tensor, box)
    fresh = pages(access, tensor, box | {last.name: 2 * box[last.name]}) - held
    visits = held + (last.trips - 1) * fresh
    return visits * math.prod(loop.trips for loop in outside[:-1])


def pages(access: Access, tensor: Tensor, box: Mapping[str, int]) -> float:
    """Pages that a box touches: rows that begin anywhere, or the whole range around them."""
    extents = [
        min(expression.extent(box), size)
        for expression, size in zip(access.index, tensor.shape, strict=True)
    ]
    least = math.inf
    span = 1
    for axis in reversed(range(len(extents))):
        span += (extents[axis] - 1) * tensor.strides[axis]
        rows = math.prod(extents[:axis])
        least = min(least, rows * (span + PAGE_WORDS - 1) / PAGE_WORDS)
    return least
