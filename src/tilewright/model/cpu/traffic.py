"""Data volume of a tiled loop nest, for any stage, loop order, tile sizes and number of levels.

Goes in: access maps (ops/stage.py), an order of the tile loops (outermost first), tile sizes.
Comes out: words moved between two levels of memory, after MOpt (ASPLOS'21) Secs. 3 to 5; in whole
lines on request (Sec. 12). Nothing here knows what a convolution is.

For one access A and one band of tile loops, let R be the innermost loop whose iterator occurs in A
(loops that make a single trip do not exist). Loops inside R leave A's slice in place. Each step of
R brings a new slice, less what it shares with the slice before it when R's iterator shares an index
expression with another (h + r: partial reuse, Sec. 3.2). Each step of a loop outside R starts over.

    DV_A = prod(trips of loops outside R) * (first slice + sum over R's further steps of new words)

Formulas are written once, over *weighted sizes*: a list of (tile size, how many such tiles). That
makes partial tiles exact (a remainder is one more size), makes numpy arrays work (weights may be
zero), and keeps the real-valued form of the paper (one size, weight outer/tile) a posynomial for
the solver. Values may be ints, floats, numpy arrays or symbols; see docs/model.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from numbers import Real
from typing import Any, Protocol

import numpy as np

from tilewright.errors import InputError
from tilewright.ops.stage import Access, Affine, Stage

Number = Any  # int, float, numpy array, or a symbol with + - * /
Tile = Mapping[str, Number]
Weighted = list[tuple[Number, Number]]  # (size, how many)
Count = Callable[[Affine, Tile], Number]
Layout = Mapping[str, int | str]  # tensor -> position of its fastest dimension, or PACKED

PACKED = 'packed'


class Band(Protocol):
    """One level's tile loops; `schedule.Level` is one."""

    @property
    def order(self) -> tuple[str, ...]: ...
    @property
    def tile(self) -> Tile: ...


def touched(expression: Affine, tile: Tile) -> Number:
    """Distinct values of an index expression over one tile.

    One iterator: the tile size. Two, c1*a + c2*b over A x B points: with p = c1/g, q = c2/g,
    g = gcd(c1, c2), points (a, b) and (a - q, b + p) coincide, so

        touched = A*B - max(A - q, 0) * max(B - p, 0)

    which is MOpt's A + B - 1 for unit coefficients (Sec. 3.1), and, unlike the range
    c1*(A-1) + c2*(B-1) + 1, counts no word that a stride larger than the window skips. With three
    or more iterators: the smaller of the range and the number of points, an upper estimate.
    """
    terms = expression.terms
    if len(terms) == 1:
        return tile[terms[0][0]]
    if not terms:
        return 1
    if len(terms) == 2:
        (a, c1), (b, c2) = terms
        g = math.gcd(c1, c2)
        return tile[a] * tile[b] - _positive(tile[a] - c2 // g) * _positive(tile[b] - c1 // g)
    return _least(_range(expression, tile), math.prod(tile[name] for name in expression.names))


def _mixed_radix(expression: Affine, limits: Mapping[str, int]) -> bool:
    """Whether every coefficient steps over all that the smaller ones reach: nothing overlaps."""
    reach = 0
    for name, coefficient in sorted(expression.terms, key=lambda term: term[1]):
        if coefficient <= reach or name not in limits:
            return False
        reach += coefficient * (limits[name] - 1)
    return True


def posynomial(limits: Mapping[str, int]) -> Count:
    """`touched` without maxima, for symbols: p*A + q*(B - p) for a number B > p, else A*B.

    `limits` bounds every iterator from above: c1*a + c2*b with b < p never overlaps (grouped
    channels), so A*B holds there too. Equal to `touched` unless A < q (a tile smaller than the
    dilation), where it overestimates. Two tiled iterators that overlap have no posynomial.
    """

    def count(expression: Affine, tile: Tile) -> Number:
        if len(expression.terms) < 2:
            return touched(expression, tile)
        if len(expression.terms) > 2:
            if not any(_symbolic(tile[n]) for n in expression.names):
                return touched(expression, tile)
            if _mixed_radix(expression, limits):
                return math.prod(tile[n] for n in expression.names)
            raise InputError(
                f'an index expression of {expression.names} has no posynomial form; '
                f'leave all but one of these dimensions untiled'
            )
        (a, c1), (b, c2) = expression.terms
        g = math.gcd(c1, c2)
        for one, other, p, q in ((a, b, c1 // g, c2 // g), (b, a, c2 // g, c1 // g)):
            fixed = not _symbolic(tile[other])
            if limits.get(other, p + 1) <= p or (fixed and tile[other] <= p):
                return tile[one] * tile[other]
            if fixed:
                if not _symbolic(tile[one]):
                    return touched(expression, tile)
                return tile[one] * p + q * (tile[other] - p)
        raise InputError(
            f'dimensions {a} and {b} share an index expression and are both tiled, which has no '
            f'posynomial form; leave one of them untiled'
        )

    return count


@dataclass(frozen=True, slots=True)
class Lines:
    """Words of whole lines along a tensor's fastest dimension (MOpt Sec. 12: ceil(T/L) lines).

    A line per touched word when the stride exceeds the line. Symbols get extent + L - 1, the mean
    over all alignments and an upper bound of the rounded extent. A sweep is rounded once: the line
    in which one tile ends and the next begins is still there.
    """

    line_words: int
    count: Count

    def __call__(self, expression: Affine, tile: Tile) -> Number:
        words = self.count(expression, tile)
        if _symbolic(words):
            return words + (self.line_words - 1)
        spanned = _ceil(_range(expression, tile) / self.line_words)
        return _least(words, spanned) * self.line_words


def footprint(access: Access, tile: Tile, *, count: Count = touched) -> Number:
    """Words of `access` touched by one tile: the product over its index expressions (Sec. 3.1)."""
    return math.prod(count(expression, tile) for expression in access.index)


def capacity(
    stage: Stage, tile: Tile, *, line_words: int = 1, layout: Layout | None = None,
    count: Count = touched,
) -> Number:  # fmt: skip
    """Words that one tile needs in its level: the left-hand side of Eq. 4, for any stage."""
    return sum(
        math.prod(_counted(access, tile, _counters(access, count, line_words, layout)))
        for access in stage.accesses
    )


def volume(
    access: Access, order: Sequence[str], tile: Tile, outer: Tile, *, written: bool = False,
    exact: bool = False, window_reuse: bool = True, zero_start: bool = False,
    count: Count = touched,
) -> Number:  # fmt: skip
    """Words moved for one access while tiles are visited in `order` inside one tile `outer`.

    `order` names every loop, outermost first. `exact` counts ceilings and true remainders of whole
    numbers; otherwise trips are outer/tile, as in the paper. A `written` tensor moves twice, in and
    out (Sec. 2.2); with `zero_start` words are not read the first time (accumulators that begin at
    zero; `outer` is then taken to be visited for the first time). `window_reuse=False` leaves out
    the partial reuse of Sec. 3.2: registers cannot be shifted along.
    """
    loops = {d: _Loop.over(tile[d], [(outer[d], 1)], exact, window_reuse) for d in order}
    moved = _total(access, order, loops, (count,) * len(access.index))
    if not written:
        return moved
    return 2 * moved - (footprint(access, outer, count=count) if zero_start else 0)


def level_volumes(
    stage: Stage, levels: Sequence[Band], sizes: Tile, *, line_words: int = 1,
    layout: Layout | None = None, exact: bool = True, zero_start: bool = False,
    window_reuse: Sequence[bool] | None = None, count: Count = touched,
) -> list[dict[str, Number]]:  # fmt: skip
    """Words over every boundary, by tensor, for all of `sizes` (the part that one thread owns).

    `levels` go from the inside out. Boundary i is crossed to fill tiles of level i: its volume is
    the one inside a tile of level i + 1, summed over all such tiles, partial ones included
    (Sec. 5). The result of a stage without combiner is only written, any other moves twice.
    `line_words` > 1 counts whole lines along each tensor's fastest dimension: the last one, the one
    at the position that `layout` gives, or none in particular if the tensor is PACKED. Registers
    hold words, so lines do not apply to a level called 'reg', nor, unless `window_reuse` says so,
    does partial reuse.
    """
    parts: dict[str, Weighted] = {name: [(sizes[name], 1)] for name in sizes}
    result = []
    for i in range(len(levels) - 1, -1, -1):
        level, tile = levels[i], levels[i].tile
        in_registers = getattr(level, 'name', '') == 'reg'
        reuse = not in_registers if window_reuse is None else window_reuse[i]
        loops = {d: _Loop.over(tile[d], parts[d], exact, reuse) for d in level.order}
        words: dict[str, Number] = {}
        for number, access in enumerate(stage.accesses):
            counters = _counters(access, count, 1 if in_registers else line_words, layout)
            moved = _total(access, level.order, loops, counters)
            if number == 0 and stage.combiner is not None:
                first = math.prod(_counted(access, sizes, counters)) if zero_start else 0
                moved = 2 * moved - first
            words[access.tensor] = words.get(access.tensor, 0) + moved
        result.append(words)
        parts = {name: loop.tiles for name, loop in loops.items()}
    return result[::-1]


def _counters(
    access: Access, count: Count, line_words: int, layout: Layout | None
) -> tuple[Count, ...]:
    """One counter for each index expression: lines along the fastest dimension, words elsewhere."""
    fastest = (layout or {}).get(access.tensor, len(access.index) - 1)
    if line_words == 1 or fastest == PACKED:
        return (count,) * len(access.index)
    if not isinstance(fastest, int) or not -len(access.index) <= fastest < len(access.index):
        raise InputError(
            f'layout {access.tensor}={fastest!r}: give the position of the fastest of its '
            f'{len(access.index)} dimensions, or {PACKED!r}'
        )
    fastest %= len(access.index)
    whole = Lines(line_words, count)
    return tuple(whole if i == fastest else count for i in range(len(access.index)))


def _counted(access: Access, tile: Tile, counters: Sequence[Count]) -> list[Number]:
    return [count(e, tile) for e, count in zip(access.index, counters, strict=True)]


@dataclass(frozen=True, slots=True)
class _Loop:
    """One tile loop inside every outer tile: sizes and how many, for each role it can play."""

    parts: Weighted  # the outer tiles
    tiles: Weighted  # every tile inside them
    still: Weighted  # the outer tiles that one tile covers: there the loop does not exist
    moving: Weighted  # the other outer tiles
    swept: Weighted  # in those: sizes that add up to the new words of a sweep

    @classmethod
    def over(cls, tile: Number, parts: Weighted, exact: bool, reuse: bool) -> _Loop:
        flags = [_exceeds(outer, tile) for outer, _ in parts]
        moving, still = _masked(parts, flags), _masked(parts, [1 - flag for flag in flags])
        swept = (_sweep if reuse else _tiles)(tile, moving, exact) if moving else []
        return cls(parts, _tiles(tile, parts, exact), still, moving, swept)


def _total(
    access: Access, order: Sequence[str], loops: Mapping[str, _Loop], counters: Sequence[Count]
) -> Number:
    """Volume inside every outer tile, summed.

    Whether a loop makes a single trip, and so which loop is R, depends on the outer tile. The sum
    is therefore split by R: loops of A inside R run once, R more than once, the others as they do.
    """
    present = set(access.names)
    total: Number = 0
    inside: set[str] = set()  # loops inside the one at hand
    for turning in (*reversed(order), None):  # None: no loop of A moves, one slice per outer tile
        if turning is not None and (turning not in present or not loops[turning].swept):
            inside.add(turning)
            continue
        times: Number = 1
        chosen: dict[str, Weighted] = {}
        for d in order:
            loop = loops[d]
            if d not in present:
                times = times * _how_many(loop.parts if d in inside else loop.tiles)
            elif d != turning:
                chosen[d] = loop.still if d in inside else loop.tiles
        for expression, count in zip(access.index, counters, strict=True):
            if turning in expression.names:
                loop = loops[turning]
                chosen[turning] = loop.moving if isinstance(count, Lines) else loop.swept
            times = times * _summed(expression, chosen, count)
        total = total + times
        if turning is not None:
            inside.add(turning)
            if not loops[turning].still:
                break  # this loop moves in every outer tile, so no other can be R
    return total


def _summed(expression: Affine, chosen: Mapping[str, Weighted], count: Count) -> Number:
    """Sum of count(expression) over every combination of the weighted sizes of its iterators."""
    names = expression.names
    if not names:
        return 1
    if len(names) == 1:
        (name,) = names
        return sum(weight * count(expression, {name: size}) for size, weight in chosen[name])
    total: Number = 0
    for combination in product(*(chosen[name] for name in names)):
        weight = math.prod(w for _, w in combination)
        sizes = {name: size for name, (size, _) in zip(names, combination, strict=True)}
        total = total + weight * count(expression, sizes)
    return total


def _tiles(tile: Number, parts: Weighted, exact: bool) -> Weighted:
    """Every tile of size `tile` inside the parts: full ones, and a remainder of each part."""
    if not exact:
        return [(tile, sum(weight * (outer / tile) for outer, weight in parts))]
    full = sum(weight * (outer // tile) for outer, weight in parts)
    sizes: Weighted = [(tile, full)]
    for outer, weight in parts:
        rest = outer % tile
        if _occurs(rest):
            sizes.append((rest, weight * ((rest > 0) * 1)))
    return sizes


def _sweep(tile: Number, parts: Weighted, exact: bool) -> Weighted:
    """Weighted sizes whose counts add up to the new words of a loop that sweeps over the parts.

    Two tiles side by side are one tile of twice the size, so a step brings count(2T) - count(T)
    new words: weights may be negative. Steps: count(T) + (f-1)*(count(2T) - count(T)), and a
    remainder m adds count(T+m) - count(T). In real numbers f = outer/tile, and the one step of a
    loop of less than two trips ends at outer: count(outer). Symbols, whose counts are linear, need
    no such distinction.
    """
    swept: Weighted = []
    for outer, weight in parts:
        if exact:
            trips, rest = outer // tile, outer % tile
            some = (rest > 0) * 1
            steps = [(tile, 2 - trips - some), (2 * tile, trips - 1), (tile + rest, some)]
        else:
            trips = outer / tile
            few = 0 if _symbolic(trips) else (trips < 2) * 1
            steps = [(tile, (1 - few) * (2 - trips)), (2 * tile, (1 - few) * (trips - 1))]
            steps.append((outer, few))
        swept += [(size, weight * times) for size, times in steps if _occurs(times)]
    return swept


def _exceeds(outer: Number, tile: Number) -> Number:
    """1 where there is more than one tile. A symbol is smaller than its outer unless it *is* it."""
    if outer is tile:
        return 0
    if _symbolic(outer) or _symbolic(tile):
        return 1
    return (outer > tile) * 1


def _masked(weighted: Weighted, flags: Sequence[Number]) -> Weighted:
    """Weights times flags of 0 and 1, less those known to be 0."""
    return [
        (size, weight * flag)
        for (size, weight), flag in zip(weighted, flags, strict=True)
        if _occurs(flag)
    ]


def _occurs(times: Number) -> bool:
    """False for 0 everywhere; a symbol may be anything."""
    if isinstance(times, np.ndarray):
        return bool(times.any())
    return _symbolic(times) or bool(times)


def _how_many(weighted: Weighted) -> Number:
    return sum(weight for _, weight in weighted)


def _range(expression: Affine, tile: Tile) -> Number:
    return sum(c * (tile[n] - 1) for n, c in expression.terms) + 1


def _symbolic(value: Number) -> bool:
    return type(value) not in (int, float) and not isinstance(value, Real | np.ndarray)


def _positive(value: Number) -> Number:
    return np.maximum(value, 0) if isinstance(value, np.ndarray) else max(value, 0)


def _least(a: Number, b: Number) -> Number:
    arrays = isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
    return np.minimum(a, b) if arrays else min(a, b)


def _ceil(value: Number) -> Number:
    return np.ceil(value) if isinstance(value, np.ndarray) else math.ceil(value)
