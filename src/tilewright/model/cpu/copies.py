"""How many tiles a schedule makes, and what copying them does: exact counts, no constants.

Goes in: an extent and the tiles of all levels; for copies a contraction and the buffer that it is
copied into (MOpt Sec. 6, "Packing"). Comes out: counts of tiles by their extents, `Copies`.
Tiles that do not divide what they cut leave partial ones at every level, each with partial ones of
its own; all are counted by their own extents, as the generated loops run them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.contraction import Contraction
from tilewright.schedule.schedule import Schedule


def tile_counts(schedule: Schedule, name: str, extent: int) -> Counter[int]:
    """How many register tiles of which extent cover `extent`, partial tiles of every level."""
    return pieces_of(extent, tuple([level.tile[name] for level in reversed(schedule.levels)]))


@lru_cache(maxsize=65536)
def pieces_of(extent: int, tiles: tuple[int, ...]) -> Counter[int]:
    """How many pieces of which extent are left behind all cuts, largest tiles first."""
    pieces = Counter({extent: 1})
    for tile in tiles:
        cut: Counter[int] = Counter()
        for size, count in pieces.items():
            if size >= tile:
                cut[tile] += count * (size // tile)
            if size % tile:
                cut[size % tile] += count
        pieces = cut
    return pieces


@dataclass(frozen=True, slots=True)
class Copies:
    """All that copying input tiles does, tiles of every size counted: partial ones are many.

    passes: how often the whole operand is copied; calls: tiles; rows: of any tile; strips: of any
    row (rows, where there are none), and those of them that are not whole.
    """

    passes: float
    calls: float
    rows: float
    strips: float
    broken: float
    elements: float


def copies_of(
    contraction: Contraction, schedule: Schedule, part: Mapping[str, int], buffer: operand.Operand
) -> Copies:
    """[Schedule] -> [Copies]: a tile is copied behind the last loop that moves the operand."""
    index = [level.name for level in schedule.levels].index(schedule.pack)
    levels = [level.tile for level in reversed(schedule.levels[index:])]
    names = contraction.a.names
    passes, around, largest = 1, {}, dict(part)
    for level in reversed(schedule.levels[index:]):
        tile = level.tile
        for name in level.order:
            if tile[name] >= largest[name]:
                continue
            largest[name] = tile[name]
            if name in names:
                passes = math.prod(
                    sum(pieces_of(part[d], tuple(tiles)).values()) for d, tiles in around.items()
                )
            else:
                around.setdefault(name, []).append(tile[name])
    calls = rows = elements = passes
    strips = broken = 0.0
    for split in buffer.splits:
        tiles = [(1, 1)]
        for name, step in contraction.a.index[split.axis].terms:
            counts = pieces_of(part[name], tuple(tile[name] for tile in levels))
            tiles = [(e + step * (n - 1), m * k) for e, m in tiles for n, k in counts.items()]
        runs = [((extent - 1) // split.factor + 1, times) for extent, times in tiles]
        calls *= sum(times for _, times in runs)
        if split is buffer.splits[-1]:
            rows *= len(split.phases)
            strip = split.strip or math.inf
            strips = rows * sum(math.ceil(n / strip) * times for n, times in runs)
            broken = rows * sum(times for n, times in runs if split.strip and n % strip)
            rows *= sum(times for _, times in runs)
        else:
            rows *= len(split.phases) * sum(n * times for n, times in runs)
        elements *= len(split.phases) * sum(n * times for n, times in runs)
    return Copies(passes, calls, rows, strips, broken, elements)
