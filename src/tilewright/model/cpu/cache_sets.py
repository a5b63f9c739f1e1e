"""Which lines of results share sets of a cache, and push each other out.

Goes in: how many planes and rows of each have a line, how many lines apart, and a cache's sets and
ways. Comes out: how many lines find no place. Addresses that are a power of two apart fall into few
sets, so that a cache loses lines long before it is full.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import lru_cache

import numpy as np


def overflows(sets: int, ways: int, count: tuple[int, int], apart: tuple[int, int]) -> bool:
    """Whether a cache loses lines of so many planes and rows, so many lines apart."""
    ends = (
        (min(n, sets // math.gcd(a, sets)), a % sets) for n, a in zip(count, apart, strict=True)
    )
    return count[0] * count[1] > ways * _sets_used(sets, *ends)


@lru_cache(maxsize=4096)
def _sets_used(sets: int, planes: tuple[int, int], rows: tuple[int, int]) -> int:
    """Of a cache with so many sets, those of lines in (number, lines apart) of two directions."""
    down, across = (np.arange(n) * step for n, step in (planes, rows))
    return len(np.unique(np.add.outer(down, across) % sets))


@lru_cache(maxsize=4096)
def crowded(planes: int, plane: int, rows: int, row: int, sets: int, ways: int) -> int:
    """Of one line of each row of each plane, so many lines apart: those in sets that overflow."""
    held = Counter((p * plane + r * row) % sets for p in range(planes) for r in range(rows))
    return sum(count for count in held.values() if count > ways)
