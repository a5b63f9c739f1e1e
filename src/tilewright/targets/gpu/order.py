"""What every kernel of a call has to wait for, from the memory that each reads and writes.

Goes in: for each kernel, in an order in which they may run one after the other, the spans of the
arena that it touches. Comes out: for each the numbers of those it waits for, as few as say it all:
what one of them waits for itself is not repeated. Branches that touch different memory are free to
run side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # first byte, and the one behind the last


@dataclass(frozen=True, slots=True)
class Touched:
    """What one kernel reads and writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


def waits(kernels: Sequence[Touched]) -> tuple[tuple[int, ...], ...]:
    """[Touched] -> for each the earlier ones that it waits for."""
    before: list[int] = []  # for each, all that have ended when it starts, as bits
    found = []
    for number, kernel in enumerate(kernels):
        seen, own = 0, []
        for earlier in range(number - 1, -1, -1):
            if seen >> earlier & 1 or not _meet(kernels[earlier], kernel):
                continue
            own.append(earlier)
            seen |= before[earlier] | 1 << earlier
        before.append(seen)
        found.append(tuple(sorted(own)))
    return tuple(found)


def _meet(earlier: Touched, later: Touched) -> bool:
    """Whether the two may not change places or run at once."""
    return (
        _overlap(earlier.writes, later.reads)
        or _overlap(earlier.writes, later.writes)
        or _overlap(earlier.reads, later.writes)
    )


def _overlap(some: Iterable[Span], others: Sequence[Span]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)
