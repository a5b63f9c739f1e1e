"""Whole-numbered tiles from real-valued ones: neighbourhood search under an exact cost.

Goes in: starts (the solver's real-valued tiles, or `grid` when there is no solver) and a `cost` of
whole-numbered tiles, one dict for each cache level from the inside out. Comes out: the best tiles
found and everything else that was tried, ranked. Knows nothing of models, machines or runtimes.

MOpt rounds down (Algorithm 1, line 23). That wastes cache, leaves slivers (33 rows in tiles of 16
make a third pass over one row) and breaks register tiles. Here the floor is one start of several,
so the result is never worse than it. All steps are in a fixed order: equal input, equal output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from itertools import chain, islice, product
from typing import Any

import numpy as np

from tilewright.errors import InputError

Tiles = tuple[dict[str, int], ...]
# Seconds, or a tuple compared from the left (seconds first, then what breaks ties); inf: not legal.
# A vectorised cost takes arrays for some sizes (all of one length) and returns arrays.
Cost = Callable[[Any], Any]
_Price = tuple[float, ...]
_State = tuple[tuple[int, ...], ...]
BLOCK = 3000  # combinations of one level that are priced together


@dataclass(frozen=True)
class Space:
    """The tiles that may be chosen: `levels` cache levels over the dimensions of `sizes`.

    reg       register tile: the least size of every tile, and sizes to snap to multiples of.
    untiled   dimensions that are whole in every level.
    multiple  dimension -> number that every tile of less than the whole must be a multiple of.
    """

    sizes: Mapping[str, int]
    reg: Mapping[str, int]
    levels: int
    untiled: tuple[str, ...] = ()
    multiple: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.levels < 1:
            raise InputError(f'{self.levels} cache levels; there must be at least one')

    @cached_property
    def dims(self) -> tuple[str, ...]:
        return tuple(self.sizes)

    @cached_property
    def free(self) -> tuple[int, ...]:
        """Positions of the dimensions whose tiles can differ."""
        return tuple(
            i
            for i, d in enumerate(self.dims)
            if d not in self.untiled and self.least(d) < self.sizes[d]
        )

    def least(self, dim: str) -> int:
        return self.snap(dim, self.reg.get(dim, 1))

    def snap(self, dim: str, size: float) -> int:
        """The nearest allowed size at or below, at least the register tile, at most the whole."""
        whole, unit = self.sizes[dim], self.multiple.get(dim, 1)
        if dim in self.untiled or size >= whole:
            return whole
        down = max(int(size) // unit, 1) * unit
        return min(max(down, -(-min(self.reg.get(dim, 1), whole) // unit) * unit), whole)

    @cached_property
    def ladders(self) -> dict[str, tuple[int, ...]]:
        """Sizes worth trying: ceil(size/trips), the same in register tiles, powers of two."""
        return {d: self._ladder(d) for d in self.dims}

    def _ladder(self, dim: str) -> tuple[int, ...]:
        whole, unit = self.sizes[dim], max(self.reg.get(dim, 1), 1)
        even = {-(-whole // trips) for trips in range(1, math.isqrt(whole) + 2)}
        even |= set(range(1, math.isqrt(whole) + 2))
        binary = {unit << i for i in range(whole.bit_length())}
        wanted = even | {-(-v // unit) * unit for v in even} | binary
        return tuple(sorted({self.snap(dim, v) for v in wanted}))


@dataclass(frozen=True, slots=True)
class Refined:
    """The best tiles, their seconds, and every legal choice that was priced, best first."""

    tiles: Tiles
    seconds: float
    evaluations: int
    ranked: tuple[tuple[float, Tiles], ...]


def refine(
    starts: Iterable[Sequence[Mapping[str, float]]], cost: Cost, space: Space, *,
    vectorised: bool = False, budget: int | None = None, climbs: int = 3, keep: int = 1000,
) -> Refined:  # fmt: skip
    """[real tiles], cost -> [Refined]. `budget` is the number of tiles that may be priced.

    Every start is rounded in several ways; descent begins at the `climbs` cheapest of them. What is
    left of the budget goes to kicks: a dimension of the best tiles is made whole or least in one
    level, which is where loops appear and vanish, and descent begins again from there. With a
    `vectorised` cost, descent also tries all combinations of rungs of one level at once, so a
    budget of 20000 (the default then; 1000 otherwise) takes about as long. At most `keep` choices
    are ranked. Raises InputError if no legal tiles are found at all.
    """
    search = _Search(cost, space, budget or (20_000 if vectorised else 1000), vectorised)
    rounded = list(dict.fromkeys(s for start in starts for s in _roundings(start, space)))
    search.visit(rounded)
    for _, state in sorted((search.seen[s], s) for s in rounded if s in search.seen)[:climbs]:
        search.descend(state)
    search.kick()
    legal = ((price, state) for state, price in search.seen.items() if math.isfinite(price[0]))
    ranked = tuple((price[0], _tiles(state, space)) for price, state in nsmallest(keep, legal))
    if not ranked:
        raise InputError(
            f'none of {len(search.seen)} tile sizes tried is legal; use a smaller register tile or '
            f'leave a larger share of the caches to tiles'
        )
    return Refined(ranked[0][1], ranked[0][0], len(search.seen), ranked)


def floored(start: Sequence[Mapping[str, float]], space: Space) -> Tiles:
    """MOpt's rounding: every tile down to the allowed size below (Algorithm 1, line 23)."""
    return _tiles(_nested(_snapped(start, space, lambda _, v: v), space), space)


def grid(
    space: Space, words: Callable[[dict[str, int]], float], capacities: Sequence[float], *,
    rungs: int = 6, starts: int = 4,
) -> list[Tiles]:  # fmt: skip
    """Starts without a solver: at every level the tiles of a coarse grid with most work per word.

    `words` is the footprint of a tile, `capacities` what each level holds. Grid points are `rungs`
    sizes of every dimension, evenly spread over its ladder.
    """
    choices = [_spread(space.ladders[d], rungs) for d in space.dims]
    points = [dict(zip(space.dims, point, strict=True)) for point in product(*choices)]
    priced = [(math.prod(tile.values()) / words(tile), words(tile), tile) for tile in points]
    ranked = sorted(priced, key=lambda entry: (-entry[0], entry[1], tuple(entry[2].values())))
    smallest = {d: space.least(d) for d in space.dims}
    found = []
    for i in range(starts):
        tiles: list[dict[str, int]] = []
        for room in capacities:
            inner = tiles[-1] if tiles else smallest
            around = (
                tile
                for _, size, tile in ranked
                if size <= room and all(tile[d] >= inner[d] for d in inner)
            )
            # Starts differ in the innermost level; the others hold what is best around it.
            tiles.append(next(islice(around, 0 if tiles else i, None), inner))
        found.append(tuple(tiles))
    return list({str(tiles): tiles for tiles in found}.values())


class _Search:
    """Prices seen so far, what is left of the budget, and descent from one state."""

    def __init__(self, cost: Cost, space: Space, budget: int, vectorised: bool) -> None:
        self.cost, self.space, self.left, self.vectorised = cost, space, budget, vectorised
        self.seen: dict[_State, _Price] = {}

    def visit(self, states: Iterable[_State]) -> None:
        """Price those states that are new, as far as the budget goes."""
        new = [s for s in dict.fromkeys(states) if s not in self.seen][: max(self.left, 0)]
        self.left -= len(new)
        if self.vectorised and new:
            prices = self.cost(_arrays(new, self.space))
            columns = prices if isinstance(prices, tuple) else (prices,)
            spread = [np.broadcast_to(c, len(new)).tolist() for c in columns]
            self.seen.update(zip(new, zip(*spread, strict=True), strict=True))
            return
        for state in new:
            price = self.cost(_tiles(state, self.space))
            self.seen[state] = price if isinstance(price, tuple) else (price,)

    def price(self, state: _State) -> _Price:
        self.visit([state])
        return self.seen.get(state, (math.inf,))

    def best_of(self, states: Iterable[_State]) -> tuple[_Price, _State] | None:
        """The cheapest of many, priced together."""
        states = list(states)
        self.visit(states)
        return min(((self.seen[s], s) for s in states if s in self.seen), default=None)

    def descend(self, state: _State) -> None:
        """Down to where no block, single move or trade is cheaper."""
        space = self.space
        price, moved = self.price(state), True
        while moved and self.left > 0:
            moved = False
            if self.vectorised:
                for level in reversed(range(space.levels)):
                    found = self.best_of(_block(state, level, space))
                    if found and found[0] < price:
                        (price, state), moved = found, True
                if not moved:
                    found = self.best_of(chain(_singles(state, space), _trades(state, space)))
                    if found and found[0] < price:
                        (price, state), moved = found, True
                continue
            for other in chain(_singles(state, space), _trades(state, space)):
                if self.left <= 0:
                    return
                if self.price(other) < price:
                    state, price, moved = other, self.seen[other], True
                    break

    def kick(self) -> None:
        """Descend from kicks of the best state, as long as that finds a better one."""
        best, before = min((p, s) for s, p in self.seen.items()), None
        while best != before:
            before = best
            for level in range(self.space.levels):
                for i in self.space.free:
                    dim = self.space.dims[i]
                    for size in (self.space.sizes[dim], self.space.least(dim)):
                        state = self.repaired(
                            _with(best[1], level, {i: size}, self.space), level, i
                        )
                        if state is not None:
                            self.descend(state)
            best = min((p, s) for s, p in self.seen.items())

    def repaired(self, state: _State, level: int, kept: int) -> _State | None:
        """The state made legal by shrinking other dimensions, the relatively largest first."""
        space = self.space
        for at in range(level, space.levels):
            while self.left > 0:
                if math.isfinite(self.price(state)[0]):
                    return state
                room = [
                    (state[at][j] / space.least(space.dims[j]), -j)
                    for j in space.free
                    if j != kept and state[at][j] > space.least(space.dims[j])
                ]
                if not room:
                    break
                j = -max(room)[1]
                state = _with(state, at, {j: _rung(state[at][j], space.dims[j], -1, space)}, space)
        return None


def _block(state: _State, level: int, space: Space) -> Iterator[_State]:
    """Every combination of rungs in one level, between the levels around it; at most BLOCK."""
    choices: list[list[int]] = []
    for i, dim in enumerate(space.dims):
        low = state[level - 1][i] if level else space.least(dim)
        high = state[level + 1][i] if level + 1 < space.levels else space.sizes[dim]
        rungs = {v for v in space.ladders[dim] if low <= v <= high} if i in space.free else set()
        choices.append(sorted(rungs | {state[level][i]}))
    while math.prod(map(len, choices)) > BLOCK:
        widest = max(range(len(choices)), key=lambda i: len(choices[i]))
        choices[widest] = _spread(choices[widest], len(choices[widest]) * 3 // 4)
    for row in product(*choices):
        yield (*state[:level], row, *state[level + 1 :])


def _singles(state: _State, space: Space) -> Iterator[_State]:
    """One dimension of one level changed; levels around it give way, so two may move together."""
    for level in range(space.levels):
        for i in space.free:
            for size in _nearby(state[level][i], space.dims[i], space):
                yield _with(state, level, {i: size}, space)
    for level in range(space.levels - 1):
        for i in space.free:
            for step in (-1, 1):
                lower = _rung(state[level][i], space.dims[i], step, space)
                upper = _rung(state[level + 1][i], space.dims[i], step, space)
                yield _with(_with(state, level, {i: lower}, space), level + 1, {i: upper}, space)


def _trades(state: _State, space: Space) -> Iterator[_State]:
    """In one level, one dimension a rung up and another one or two down: along the capacity."""
    for level in range(space.levels):
        for i in space.free:
            for j in space.free:
                if i != j:
                    up = _rung(state[level][i], space.dims[i], 1, space)
                    for step in (-1, -2):
                        down = _rung(state[level][j], space.dims[j], step, space)
                        yield _with(state, level, {i: up, j: down}, space)


def _nearby(size: int, dim: str, space: Space) -> list[int]:
    unit = space.multiple.get(dim, 1)
    reg = max(space.reg.get(dim, 1), 1)
    near = [_rung(size, dim, step, space) for step in (1, -1, 2, -2)]
    near += [size + unit, size - unit, size + reg, size - reg, 2 * size, size // 2]
    near += [space.sizes[dim], space.least(dim)]
    return [v for v in dict.fromkeys(space.snap(dim, n) for n in near) if v != size]


def _rung(size: int, dim: str, step: int, space: Space) -> int:
    """The size `step` rungs up or down the ladder from `size`, which need not be on it."""
    ladder = space.ladders[dim]
    above = [v for v in ladder if v > size]
    below = [v for v in ladder if v < size]
    if step > 0:
        return above[min(step, len(above)) - 1] if above else size
    return below[-min(-step, len(below))] if below else size


def _with(state: _State, level: int, changes: Mapping[int, int], space: Space) -> _State:
    """The state with some tiles of one level changed, inner and outer levels giving way."""
    rows = [list(row) for row in state]
    for i, size in changes.items():
        for at in range(space.levels):
            if at == level:
                rows[at][i] = size
            elif at < level:
                rows[at][i] = min(rows[at][i], size)
            else:
                rows[at][i] = max(rows[at][i], size)
    return tuple(tuple(row) for row in rows)


def _roundings(start: Sequence[Mapping[str, float]], space: Space) -> Iterator[_State]:
    """Down, nearest, up, to powers of two, to register tiles, to even shares of the whole."""

    def power(dim: str, size: float) -> float:
        return 2.0 ** round(math.log2(max(size, 1)))

    def registers(dim: str, size: float) -> float:
        unit = max(space.reg.get(dim, 1), 1)
        return max(math.floor(size / unit), 1) * unit

    def even(dim: str, size: float) -> float:
        return -(-space.sizes[dim] // max(math.ceil(space.sizes[dim] / max(size, 1)), 1))

    def rung(dim: str, size: float) -> float:
        return max((v for v in space.ladders[dim] if v <= size + 1e-6), default=size)

    ways: list[Callable[[str, float], float]] = [
        lambda _, v: v,
        lambda _, v: round(v),
        lambda _, v: math.ceil(v),
        power,
        registers,
        even,
        rung,
    ]
    for way in ways:
        yield _nested(_snapped(start, space, way), space)


def _snapped(
    start: Sequence[Mapping[str, float]], space: Space, way: Callable[[str, float], float]
) -> _State:
    if len(start) != space.levels:
        raise InputError(f'a start has {len(start)} levels; the space has {space.levels}')
    # Solvers stop a hair short of round numbers: 63.9999999 is 64.
    return tuple(tuple(space.snap(d, way(d, tile[d]) + 1e-6) for d in space.dims) for tile in start)


def _nested(state: _State, space: Space) -> _State:
    """Outer tiles raised to what they contain."""
    rows = [state[0]]
    for row in state[1:]:
        rows.append(tuple(max(a, b) for a, b in zip(rows[-1], row, strict=True)))
    return tuple(rows)


def _arrays(states: Sequence[_State], space: Space) -> tuple[dict[str, Any], ...]:
    """The states as arrays; a size that is the same in all of them stays a number."""
    table = np.array(states)
    alike = (table == table[0]).all(axis=0)
    return tuple(
        {
            d: int(table[0, level, i]) if alike[level, i] else table[:, level, i]
            for i, d in enumerate(space.dims)
        }
        for level in range(space.levels)
    )


def _tiles(state: _State, space: Space) -> Tiles:
    return tuple(dict(zip(space.dims, row, strict=True)) for row in state)


def _spread(ladder: Sequence[int], rungs: int) -> list[int]:
    """At most `rungs` entries of a ladder, evenly spread in logarithm, both ends included."""
    if len(ladder) <= rungs:
        return list(ladder)
    low, high = math.log(ladder[0]), math.log(ladder[-1])
    marks = [math.exp(low + (high - low) * i / (rungs - 1)) for i in range(rungs)]
    return sorted({min(ladder, key=lambda v: (abs(math.log(v / mark)), v)) for mark in marks})
