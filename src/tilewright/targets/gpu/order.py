"""What every kernel of a call has to wait for, from the memory that each reads and writes.

Goes in: for each kernel, in an order in which they may run one after the other, the spans of the
arena that it touches. Comes out: for each the numbers of those it waits for, as few as say it all:
what one of them waits for itself is not repeated. Branches that touch different memory are free to
run side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Bytes from `first` to before `end`; of these, with a `step`, `run` in every `step`."""

    first: int
    end: int
    step: int = 0
    run: int = 0


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
    return any(
        a[0] < b[1] and b[0] < a[1] and not _is_beside(Span(*a), Span(*b))
        for a in some
        for b in others
    )


def _is_beside(one: Span, other: Span) -> bool:
    """Whether they are different channels of the same pixels."""
    if not one.step or one.step != other.step:
        return False
    apart = (other.first - one.first) % one.step
    return one.run <= apart and apart + other.run <= one.step
