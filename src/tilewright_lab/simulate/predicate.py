"""Where a traffic model is claimed to be right: a function, so that a claim can be tested.

Goes in: a stage, its tiled nest, the caches. Comes out: a verdict with its reason.

An LRU cache falls off a cliff: a window of reuse that fits by one line hits always, one that is
too long by one line never does. Near the edge no closed formula is within 10%, and no real cache
(shared with a stack, a prefetcher, another thread) stays on one side. So volumes are claimed where

- every level's tile fits its cache, with room to spare (Eq. 4 of MOpt, with a margin), and
- the volumes are about the same for a cache somewhat smaller and one somewhat larger.

MOpt's own volumes (traffic.py) are claimed where, besides, they agree with those of reuse.py: where
LRU keeps the reuse that MOpt counts on, and loses the rest, as its Sec. 3.1 assumes.
The figures below are fixed; docs/cachesim.md says what they exclude and how good the rest is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import InputError
from tilewright.model.cpu.traffic import Band, capacity, level_volumes
from tilewright.ops.stage import Stage
from tilewright_lab.simulate.reuse import lru_volumes

ROOM = 0.95  # share of a cache that a tile may fill
SPREAD = 0.03  # how much smaller and larger a cache the volumes must bear
CHANGE = 1.20  # largest ratio of the volumes of these two caches
AGREEMENT = 0.10  # how far MOpt's volume may be from that of reuse.py


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the model is claimed for a configuration, and if not, why not."""

    ok: bool
    reason: str = ''

    def __bool__(self) -> bool:
        return self.ok


def claims(
    stage: Stage,
    levels: Sequence[Band],
    sizes: Mapping[str, int],
    capacities_words: Sequence[int],
    line_words: int = 1,
    *,
    layout: Mapping[str, int] | None = None,
) -> Verdict:
    """Whether `reuse.lru_volumes` is claimed: tiles fit, and no cache is at the edge of a cliff.

    `levels` are the register tile and one level for each cache, from the inside out.
    """
    if len(levels) != len(capacities_words) + 1:
        raise InputError(
            f'{len(levels)} levels were given for {len(capacities_words)} caches; give the '
            f'register tile and one level for each cache'
        )
    for number, (level, words) in enumerate(zip(levels[1:], capacities_words, strict=True)):
        tile = {d: min(level.tile[d], sizes[d]) for d in sizes}
        needed = capacity(stage, tile, line_words=line_words, layout=layout)
        if needed > ROOM * words:
            return Verdict(
                False,
                f'the tile of cache {number} needs {needed} words, more than {ROOM:.0%} of {words}',
            )
    small, large = (
        lru_volumes(
            stage,
            levels,
            sizes,
            [int(words * scale) for words in capacities_words],
            line_words=line_words,
            layout=layout,
        )
        for scale in (1 - SPREAD, 1 + SPREAD)
    )
    for number, (less, more) in enumerate(zip(small, large, strict=True)):
        ratio = sum(less.values()) / sum(more.values())
        if ratio > CHANGE:
            return Verdict(
                False,
                f'cache {number} is at an edge: {SPREAD:.0%} less of it moves {ratio:.2f} times '
                f'what {SPREAD:.0%} more would',
            )
    return Verdict(True)


def mopt_agrees(
    stage: Stage,
    levels: Sequence[Band],
    sizes: Mapping[str, int],
    capacities_words: Sequence[int],
    line_words: int = 1,
    *,
    layout: Mapping[str, int] | None = None,
) -> Verdict:
    """Whether MOpt's volumes, `traffic.level_volumes`, are those of an LRU cache.

    They are claimed where this and `claims` hold.
    """
    plain = level_volumes(stage, levels, sizes, line_words=line_words, layout=layout)[1:]
    kept = lru_volumes(stage, levels, sizes, capacities_words, line_words=line_words, layout=layout)
    for number, (ours, theirs) in enumerate(zip(kept, plain, strict=True)):
        ratio = sum(theirs.values()) / sum(ours.values())
        if abs(ratio - 1) > AGREEMENT:
            what = 'keeps reuse that MOpt gives up' if ratio > 1 else 'loses reuse that MOpt counts'
            return Verdict(False, f'cache {number} {what}: {ratio:.2f} times the volume')
    return Verdict(True)
