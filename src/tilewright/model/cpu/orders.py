"""Tile-loop orders: the few that can be best, derived from a stage's access maps (MOpt, Sec. 4).

Goes in: a stage. Comes out: classes of loop orders such that, under the traffic model, for any tile
sizes no order moves less data than the best of the classes. Nothing here knows a convolution.

**Signature.** By Sec. 3, one tensor's volume depends on the order p through two things only:

- `loops`: the loops at or outside R, the innermost loop whose iterator is *present* in the access
  (loops inside R are *absent*: full reuse). Each multiplies the volume by its trip count.
- `partial`: the iterator at R, if consecutive tiles along it overlap (*partial reuse*: w in `w+s`),
  else None. Then the extent along that index grows to the whole loop's, and is not multiplied.

      None:     V = prod_{j in loops} N_j/T_j        * footprint(T)
      partial:  V = prod_{j in loops - x} N_j/T_j    * footprint(T with T_x := N_x)     (Sec. 3.2)

Orders with equal signatures for every access are *equivalent*: their cost expressions are equal.

**Dominance.** Signature a is at most b for all tile sizes when a.loops is a subset of b.loops and
b.partial is None or equal to a.partial:

- fewer loops multiply by fewer factors N_j/T_j >= 1;
- on the same loops, partial reuse along x replaces N_x/T_x * extent(T_x) by extent(N_x), which is
  at most that, since N_x/T_x tiles cover the whole range (MOpt: N_w/T_w (T_w + T_s - 1) >=
  N_w + T_s - 1). So partial reuse never costs more than none;
- partial reuse along x and along y are not comparable: either wins for some tiles.

An order is *dominated* when another's signatures are at most its own for every access, and one
differs. The classes are what is left. Dimensions of size 1 have no loop and take part in no class.

**Construction.** Loops are placed from the inside out. An access is settled by the first present
loop that is placed, and its `loops` are then exactly the loops not placed before. So what can still
happen depends on the set of remaining loops alone: 2^d states instead of d! orders, dominated
signatures dropped in each state (legal: what is settled further in is equal for all of them).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from tilewright.ops.stage import Access, Affine, Stage


@dataclass(frozen=True, slots=True)
class Signature:
    """What one access's volume depends on: the loops that multiply, the iterator that overlaps."""

    loops: frozenset[str]
    partial: str | None = None

    def at_most(self, other: Signature) -> bool:
        """True when this volume is at most the other's for all tile sizes."""
        return self.loops <= other.loops and other.partial in (None, self.partial)


@dataclass(frozen=True, slots=True)
class OrderClass:
    """Orders that cost the same: bands of dimensions, outermost first, in any order inside a band.

    `idle` are the dimensions of size 1: they have no loop, and stand outermost in an order.
    """

    bands: tuple[frozenset[str], ...]
    idle: tuple[str, ...] = ()

    def representative(self) -> tuple[str, ...]:
        """One order of the class, over every dimension of the stage."""
        return (*self.idle, *(name for band in self.bands for name in sorted(band)))

    def __contains__(self, order: object) -> bool:
        """Whether an order (over every dimension) keeps to the bands; idle dimensions are free."""
        if not isinstance(order, tuple):
            return False
        rest = [name for name in order if name not in self.idle]
        if len(rest) != sum(map(len, self.bands)):
            return False
        at = 0
        for band in self.bands:
            if set(rest[at : at + len(band)]) != band:
                return False
            at += len(band)
        return True

    def __str__(self) -> str:
        return f'<{",".join(_show(band) for band in self.bands)}>'


def _show(band: frozenset[str]) -> str:
    text = ','.join(sorted(band))
    return text if len(band) == 1 else f'{{{text}}}'


def order_classes(stage: Stage) -> tuple[OrderClass, ...]:
    """The undominated classes of tile-loop orders of a stage, in alphabetical order of their text.

    Equal structures share the work: the answer depends on sizes only through which are 1 and which
    iterators overlap, so it is cached by that.
    """
    active = tuple(d.name for d in stage.dims if d.size > 1)
    idle = tuple(d.name for d in stage.dims if d.size == 1)
    present = tuple(frozenset(a.names) & frozenset(active) for a in stage.accesses)
    partial = tuple(overlapping(a, stage.sizes) for a in stage.accesses)
    return _classes(active, idle, present, partial)


def signatures(stage: Stage, order: Iterable[str]) -> tuple[Signature, ...]:
    """The signature of every access (the written one first) under an order, outermost first."""
    loops = [name for name in order if stage.sizes[name] > 1]
    found = []
    for access in stage.accesses:
        inner = max((i for i, name in enumerate(loops) if name in access.names), default=-1)
        at = loops[inner] if inner >= 0 else None
        partial = at if at in overlapping(access, stage.sizes) else None
        found.append(Signature(frozenset(loops[: inner + 1]), partial))
    return tuple(found)


def dominates(a: tuple[Signature, ...], b: tuple[Signature, ...]) -> bool:
    """True when order a moves at most as much as b for every tensor and all tiles, and differs."""
    return a != b and all(x.at_most(y) for x, y in zip(a, b, strict=True))


def overlapping(access: Access, sizes: Mapping[str, int]) -> frozenset[str]:
    """Iterators along which tiles of some size share words: those with partial reuse.

    x overlaps in an index c_x x + sum c_y y when c_x dx = sum c_y dy for some 1 <= dx < N_x and
    |dy| < N_y: two different values of x then meet at one index. A stride of at least the window, a
    1x1 window, and the (group, channel) pairs of grouped convolutions have no such solution.
    """
    found = set()
    for name in access.names:
        shared = [e for e in access.index if e.coefficient(name)]
        if all(_meets(e, name, sizes) for e in shared):
            found.add(name)
    return frozenset(found)


def _meets(expression: Affine, name: str, sizes: Mapping[str, int]) -> bool:
    others = [(c, sizes[n]) for n, c in expression.terms if n != name and sizes[n] > 1]
    own, size = expression.coefficient(name), sizes[name]
    if not others or size < 2:
        return False
    if len(others) == 1:
        ((other, extent),) = others
        common = math.lcm(own, other)
        return common // own < size and common // other < extent
    reach = {0}
    for coefficient, extent in others:
        reach = {v + coefficient * d for v in reach for d in range(1 - extent, extent)}
    return any(own * d in reach for d in range(1, size))


@cache
def _classes(
    active: tuple[str, ...],
    idle: tuple[str, ...],
    present: tuple[frozenset[str], ...],
    partial: tuple[frozenset[str], ...],
) -> tuple[OrderClass, ...]:
    memo: dict[frozenset[str], list[tuple[Signature | None, ...]]] = {}

    def futures(remaining: frozenset[str]) -> list[tuple[Signature | None, ...]]:
        """Undominated signatures that orders of the remaining loops give to unsettled accesses."""
        if remaining in memo:
            return memo[remaining]
        open_ = [p <= remaining and bool(p) for p in present]
        found: dict[tuple[Signature | None, ...], None] = {}
        if not any(open_):
            found[(None,) * len(present)] = None
        else:
            for name in sorted(remaining):
                here = tuple(
                    Signature(remaining, name if name in overlap else None)
                    if is_open and name in names
                    else None
                    for is_open, names, overlap in zip(open_, present, partial, strict=True)
                )
                for later in futures(remaining - {name}):
                    found[tuple(a or b for a, b in zip(here, later, strict=True))] = None
        memo[remaining] = _undominated(list(found))
        return memo[remaining]

    best = futures(frozenset(active))
    classes = [OrderClass(_bands(frozenset(active), s, present, partial), idle) for s in best]
    return tuple(sorted(classes, key=str))


def _undominated(found: list[tuple[Signature | None, ...]]) -> list[tuple[Signature | None, ...]]:
    def beats(a: tuple[Signature | None, ...], b: tuple[Signature | None, ...]) -> bool:
        return a != b and all(
            x is None or y is None or x.at_most(y) for x, y in zip(a, b, strict=True)
        )

    return [b for b in found if not any(beats(a, b) for a in found)]


def _bands(
    active: frozenset[str],
    signature: tuple[Signature | None, ...],
    present: tuple[frozenset[str], ...],
    partial: tuple[frozenset[str], ...],
) -> tuple[frozenset[str], ...]:
    """The bands whose orders have this signature.

    Each access's loops are a prefix of the order, so the prefixes nest; the last loop of a prefix
    must be present (and be the overlapping iterator, or not overlap). Between two prefixes lies a
    band, of which those that may stand last are split off where that is not all of it.
    """
    last: dict[frozenset[str], frozenset[str]] = {}
    for found, names, overlap in zip(signature, present, partial, strict=True):
        if found is not None:
            allowed = frozenset({found.partial}) if found.partial else names - overlap
            last[found.loops] = last.get(found.loops, active) & allowed
    bands, done = [], frozenset()
    for prefix in sorted(last, key=len):
        band = prefix - done
        inner = band & last[prefix]
        bands += [part for part in (band - inner, inner) if part]
        done = prefix
    return tuple(bands) + ((active - done,) if active - done else ())
