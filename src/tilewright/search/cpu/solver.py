"""Tile sizes for every cache level at once: MOpt's min-max problem (Sec. 5) as a geometric program.

Goes in: a stage, the part of it that one thread owns, a register tile, cache capacities, bandwidths
and loop orders. Comes out: real-valued tiles for every cache level, the time over every boundary,
and a lower bound. The only file that imports CasADi.

    minimise t   subject to   DV_l(T)/BW_l  <= t          for every boundary l, registers first
                              footprint(T_l) <= margin*C_l  for every cache l           (Eq. 4)
                              reg <= T_1 <= T_2 <= ... <= sizes

The paper solves one problem per level instead, since no solver takes a min-max objective; the
epigraph form above states it directly. With window dimensions (r, s) untiled every volume and
footprint is a posynomial, so in x = log T every constraint is log-sum-exp(A x + b) <= 0 or linear:
convex, and what Ipopt finds is the global optimum. Levels that do not bind are settled
lexicographically: the binding ones are held at their optimum and the largest of the rest is
minimised, and so on; what is free in the end takes the largest tiles (fewest loops).

The terms (A, b) come from model/cpu/traffic.py, evaluated over `Signomial` numbers. They enter the
solver as parameters, so it is built once for each size of problem, not once for each loop order.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from tilewright.errors import InputError, MissingError
from tilewright.model.cpu.orders import Signature, dominates, order_classes, signatures
from tilewright.model.cpu.traffic import Layout, capacity, level_volumes, posynomial
from tilewright.ops.stage import Stage

SOLVED = 'optimal'
INFEASIBLE = 'infeasible'
ABSENT = -300.0  # log coefficient of a padding term: its exponential vanishes
HELD = 1e-6  # relative room left to a level that is held at its optimum
SAME = 1e-6  # relative difference of objectives below which orders count as equal
FLAT = 1e-3  # a multiplier below this share does not make a level binding


@dataclass(frozen=True, slots=True)
class Problem:
    """One tile-size problem, for one thread (Sec. 7: the caller divides sizes, caches, bandwidths).

    capacities_words  one for each cache, from L1 outwards.
    bandwidths        words per second over each boundary, registers first: one more than caches.
    orders            loop order (outermost first) of each boundary, or a single one for all.
    untiled           dimensions kept whole in every cache; None: those `window_dims` finds.
    margin            share of each cache that tiles may fill.
    """

    stage: Stage
    sizes: Mapping[str, int]
    reg_tile: Mapping[str, int]
    capacities_words: tuple[float, ...]
    bandwidths: tuple[float, ...]
    orders: tuple[tuple[str, ...], ...]
    untiled: tuple[str, ...] | None = None
    margin: float = 1.0
    line_words: int = 1
    layout: Layout | None = None

    def __post_init__(self) -> None:
        caches, boundaries = len(self.capacities_words), len(self.bandwidths)
        if caches < 1 or boundaries != caches + 1:
            raise InputError(
                f'{caches} caches and {boundaries} bandwidths; give at least one cache and one '
                f'bandwidth more than caches'
            )
        if len(self.orders) not in (1, boundaries):
            raise InputError(f'{len(self.orders)} orders; give one for all, or {boundaries}')
        if min(*self.capacities_words, *self.bandwidths, self.margin) <= 0:
            raise InputError(
                f'capacities {self.capacities_words}, bandwidths {self.bandwidths} and margin '
                f'{self.margin} must be positive'
            )

    def order(self, boundary: int) -> tuple[str, ...]:
        return self.orders[boundary if len(self.orders) > 1 else 0]

    @property
    def whole(self) -> tuple[str, ...]:
        """Dimensions that no cache level tiles."""
        return window_dims(self.stage) if self.untiled is None else self.untiled


@dataclass(frozen=True, slots=True)
class Solution:
    """Real-valued tiles for each cache from L1 outwards; seconds over each boundary.

    `objective` is the largest of `times`. `bound` is what weak duality certifies: no tiles, real or
    whole, of the class named in docs/model.md take less. `seconds` is what solving took.
    """

    tiles: tuple[dict[str, float], ...]
    times: tuple[float, ...]
    objective: float
    bound: float
    seconds: float
    status: str


@dataclass(frozen=True, slots=True)
class Dual:
    """What proves `Solution.bound` (`_certified`): a point, and weights of all constraints there.

    tiles  real-valued, for each cache; with them the seconds over each boundary and the share that
           they fill of each cache
    times, fills, nest  weights of boundaries, which add up to 1, of caches, and of T_l <= T_l+1
    """

    tiles: tuple[dict[str, float], ...]
    seconds: tuple[float, ...]
    filled: tuple[float, ...]
    times: tuple[float, ...]
    fills: tuple[float, ...]
    nest: tuple[tuple[float, ...], ...]
    attained: float
    bound: float


def window_dims(stage: Stage) -> tuple[str, ...]:
    """Reduction dimensions that overlap another iterator in some index expression: r and s.

    These are left untiled; tiling both partners of h + r would not be a posynomial.
    """
    found: dict[str, None] = {}
    for access in stage.accesses:
        for expression in access.index:
            for name, _ in expression.terms:
                others = [(n, c) for n, c in expression.terms if n != name]
                overlaps = any(
                    stage.sizes[name] > c // math.gcd(c, expression.coefficient(name))
                    for _, c in others
                )
                if name in stage.reduction and overlaps:
                    found[name] = None
    return tuple(found)


def cache_orders(stage: Stage, untiled: tuple[str, ...] | None = None) -> list[tuple[str, ...]]:
    """The loop orders worth solving for when some dimensions have no loop: five for a dense 3x3.

    The classes of Sec. 4 hold for all tiles, so also for whole ones; without the loops of whole
    dimensions several of them coincide or become dominated.
    """
    whole = window_dims(stage) if untiled is None else untiled
    found: dict[tuple[Signature, ...], tuple[str, ...]] = {}
    for group in order_classes(stage):
        order = group.representative()
        order = (*(d for d in order if d in whole), *(d for d in order if d not in whole))
        reduced = tuple(
            Signature(s.loops - set(whole), None if s.partial in whole else s.partial)
            for s in signatures(stage, order)
        )
        found.setdefault(reduced, order)
    return [
        order for one, order in found.items() if not any(dominates(other, one) for other in found)
    ]


class Signomial:
    """A sum of coefficient * prod(variable^exponent), with the arithmetic that traffic.py uses."""

    __slots__ = ('terms',)

    def __init__(self, terms: dict[tuple[int, ...], float]) -> None:
        self.terms = terms

    @classmethod
    def variable(cls, number: int, of: int) -> Signomial:
        return cls({tuple(int(i == number) for i in range(of)): 1})

    def _lift(self, other: Signomial | float) -> Signomial:
        if isinstance(other, Signomial):
            return other
        width = len(next(iter(self.terms)))
        return Signomial({(0,) * width: other})

    def __add__(self, other: Signomial | float) -> Signomial:
        if not isinstance(other, Signomial) and other == 0:
            return self
        terms = dict(self.terms)
        for powers, coefficient in self._lift(other).terms.items():
            terms[powers] = terms.get(powers, 0) + coefficient
        # Only exact cancellation counts (whole coefficients), e.g. T*(N/T - 1) + T = N.
        kept = {p: c for p, c in terms.items() if c != 0}
        return Signomial(kept or dict.fromkeys(self.terms, 0))

    def __mul__(self, other: Signomial | float) -> Signomial:
        if not isinstance(other, Signomial):
            return Signomial({p: c * other for p, c in self.terms.items()})
        terms: dict[tuple[int, ...], float] = {}
        for p, a in self.terms.items():
            for q, b in other.terms.items():
                powers = tuple(map(int.__add__, p, q))
                terms[powers] = terms.get(powers, 0) + a * b
        return Signomial(terms)

    def __truediv__(self, other: Signomial | float) -> Signomial:
        return self * (1 / other)

    def __rtruediv__(self, other: float) -> Signomial:
        ((powers, coefficient),) = self.terms.items()  # only a monomial can divide
        return Signomial({tuple(-p for p in powers): other / coefficient})

    def __neg__(self) -> Signomial:
        return self * -1

    def __sub__(self, other: Signomial | float) -> Signomial:
        return self + -other

    def __rsub__(self, other: float) -> Signomial:
        return -self + other

    __radd__, __rmul__ = __add__, __mul__

    def posynomial(self) -> tuple[np.ndarray, np.ndarray]:
        """(exponents, log coefficients); every coefficient must be positive."""
        kept = [(p, c) for p, c in self.terms.items() if c != 0]
        if not kept or min(c for _, c in kept) < 0:
            raise InputError('a data volume is not a posynomial; leave window dimensions untiled')
        return np.array([p for p, _ in kept], float), np.log([c for _, c in kept])


@dataclass(frozen=True, slots=True)
class Terms:
    """Posynomials padded to one length: log f_i(x) = log sum_m exp(A[i, m] . x + b[i, m])."""

    A: np.ndarray
    b: np.ndarray

    @classmethod
    def of(cls, posynomials: list[tuple[np.ndarray, np.ndarray]]) -> Terms:
        longest, width = max(len(b) for _, b in posynomials), posynomials[0][0].shape[1]
        A = np.zeros((len(posynomials), longest, width))
        b = np.full((len(posynomials), longest), ABSENT)
        for i, (exponents, logs) in enumerate(posynomials):
            A[i, : len(logs)], b[i, : len(logs)] = exponents, logs
        return cls(A, b)

    def values(self, x: np.ndarray) -> np.ndarray:
        """log f_i(x)."""
        return np.log(np.exp(self.A @ x + self.b).sum(axis=1))

    def gradients(self, x: np.ndarray) -> np.ndarray:
        parts = np.exp(self.A @ x + self.b)
        return np.einsum('im,imv->iv', parts / parts.sum(axis=1, keepdims=True), self.A)


@dataclass(frozen=True, slots=True)
class Program:
    """The geometric program of a `Problem`: log times, log fill of each cache, box, nesting."""

    names: tuple[str, ...]
    times: Terms
    fills: Terms
    low: np.ndarray
    high: np.ndarray


@dataclass(frozen=True, slots=True)
class _Band:
    name: str
    order: tuple[str, ...]
    tile: dict[str, Any]


def program(problem: Problem) -> Program:
    """[Problem] -> [Program]. Variables are ordered by cache, then by tiled dimension."""
    sizes, whole = problem.sizes, problem.whole
    reg = {d: min(problem.reg_tile.get(d, 1), size) for d, size in sizes.items()}
    names = tuple(d for d, size in sizes.items() if d not in whole and size > reg[d])
    caches = len(problem.capacities_words)
    width = caches * len(names)
    tiles = [
        {
            d: Signomial.variable(level * len(names) + names.index(d), width) if d in names else s
            for d, s in sizes.items()
        }
        for level in range(caches)
    ]
    count = posynomial(sizes)
    bands = [_Band('reg', problem.order(0), reg)]
    bands += [_Band(f'l{i + 1}', problem.order(i + 1), tile) for i, tile in enumerate(tiles)]
    how = {'line_words': problem.line_words, 'layout': problem.layout, 'count': count}
    zero = Signomial({(0,) * width: 0})
    volumes = level_volumes(problem.stage, bands, sizes, exact=False, **how)
    times = [
        ((zero + sum(words.values())) * (1 / bandwidth)).posynomial()
        for words, bandwidth in zip(volumes, problem.bandwidths, strict=True)
    ]
    fills = [
        (
            (zero + capacity(problem.stage, tile, **how)) * (1 / (problem.margin * words))
        ).posynomial()
        for tile, words in zip(tiles, problem.capacities_words, strict=True)
    ]
    low = np.log(np.array([reg[d] for d in names], float))
    high = np.log(np.array([sizes[d] for d in names], float))
    return Program(
        names, Terms.of(times), Terms.of(fills), np.tile(low, caches), np.tile(high, caches)
    )


def solve(problem: Problem, *, settle: bool = True) -> Solution:
    """[Problem] -> [Solution], the global optimum of the relaxed problem; see the module's text.

    `settle=False` stops at the largest time: enough to rank loop orders, at a fifth of the effort.
    """
    start = time.perf_counter()
    given = program(problem)
    # Footprints grow with every tile size, so there is a feasible point if the smallest is one.
    if np.any(given.fills.values(given.low) > 0):
        empty = tuple(math.inf for _ in problem.bandwidths)
        return Solution((), empty, math.inf, math.inf, time.perf_counter() - start, INFEASIBLE)
    if not given.names:
        x, bound, status = given.low, math.inf, SOLVED
    else:
        x, bound, status = _lexicographic(given, settle)
    times = np.exp(given.times.values(x))
    logs = x.reshape(len(problem.capacities_words), -1)
    tiles = tuple(
        {d: float(s) for d, s in problem.sizes.items()}
        | dict(zip(given.names, (float(v) for v in np.exp(row)), strict=True))
        for row in logs
    )
    objective = float(times.max())
    return Solution(
        tiles,
        tuple(float(t) for t in times),
        objective,
        min(float(bound), objective),
        time.perf_counter() - start,
        status,
    )


def dual(problem: Problem) -> Dual | None:
    """[Problem] -> [Dual], for a checker that has no solver; None where nothing is to be solved."""
    given = program(problem)
    if not given.names or np.any(given.fills.values(given.low) > 0):
        return None
    boundaries, caches = len(given.times.b), len(given.fills.b)
    start = given.low + 0.25 * (given.high - given.low)
    x, _, multipliers, _ = _minimise(
        given, start, np.ones(boundaries), np.zeros(boundaries), towards_large=False
    )
    seconds = np.exp(given.times.values(x))
    attained = float(seconds.max())
    weights = _weights(given, multipliers)
    nest = weights[boundaries + caches :].reshape(caches - 1, len(given.names))
    return Dual(
        tuple(dict(zip(given.names, row, strict=True)) for row in _rows(np.exp(x), caches)),
        tuple(seconds.tolist()),
        tuple(np.exp(given.fills.values(x)).tolist()),
        tuple(weights[:boundaries].tolist()),
        tuple(weights[boundaries : boundaries + caches].tolist()),
        tuple(map(tuple, nest.tolist())),
        attained,
        min(math.exp(_certified(given, x, multipliers)), attained),
    )


def _rows(values: np.ndarray, caches: int) -> list[list[float]]:
    return values.reshape(caches, -1).tolist()


def rank_orders(
    problem: Problem, candidates: Sequence[tuple[str, ...]] | None = None, *, starts: int = 2
) -> list[tuple[float, Problem]]:
    """(objective, problem) for many choices of one order per cache, best first.

    The register boundary keeps its order. Every candidate is tried for all caches at once (the
    paper's Algorithm 1 stops there); from the `starts` best of these the order of one cache at a
    time is changed while that helps. docs/model.md says what this gains and costs.
    """
    orders = list(candidates or cache_orders(problem.stage, problem.whole))
    caches = len(problem.capacities_words)
    seen: dict[tuple[tuple[str, ...], ...], float] = {}

    def posed(choice: tuple[tuple[str, ...], ...]) -> Problem:
        return replace(problem, orders=(problem.order(0), *choice))

    def value(choice: tuple[tuple[str, ...], ...]) -> float:
        if choice not in seen:
            seen[choice] = solve(posed(choice), settle=False).objective
        return seen[choice]

    for start in sorted(((order,) * caches for order in orders), key=value)[:starts]:
        best, moved = start, True
        while moved:
            moved = False
            for cache_level, order in product(range(caches), orders):
                other = (*best[:cache_level], order, *best[cache_level + 1 :])
                if value(other) < value(best) * (1 - SAME):
                    best, moved = other, True
    ranked = sorted(seen.items(), key=lambda item: item[1])
    return [(objective, posed(choice)) for choice, objective in ranked]


def _lexicographic(given: Program, settle: bool) -> tuple[np.ndarray, float, str]:
    """Minimise the largest time; hold what binds; minimise the largest of the rest; and so on."""
    boundaries = len(given.times.b)
    free, held = np.ones(boundaries), np.zeros(boundaries)
    x = given.low + 0.25 * (given.high - given.low)
    bound, status = math.inf, SOLVED
    while free.any():
        x, t, multipliers, ok = _minimise(given, x, free, held, towards_large=False)
        if not ok:
            status = 'inaccurate'
        share = multipliers[:boundaries] * free
        if bound == math.inf:
            bound = math.exp(_certified(given, x, multipliers))
            if not settle:
                return x, bound, status
        binding = share >= FLAT * share.max()
        held = np.where(free * binding > 0, t + HELD, held)
        free = free * ~binding
    larger, _, _, ok = _minimise(given, x, free, held, towards_large=True)
    return (larger if ok else x), bound, status


def _certified(given: Program, x: np.ndarray, multipliers: np.ndarray) -> float:
    """A lower bound on log t*, by weak duality, whatever the accuracy of x and the multipliers.

    With weights adding up to 1 on the times and any non-negative ones elsewhere, the Lagrangian is
    at most t* for every feasible point; it is convex, so its tangent at x is below it, and the
    tangent's minimum over the box low <= x <= high is a matter of signs.
    """
    boundaries, caches = len(given.times.b), len(given.fills.b)
    weights = _weights(given, multipliers)
    on_time = weights[:boundaries]
    on_fill = weights[boundaries : boundaries + caches]
    nest = np.zeros((caches, len(given.names)))
    on_nest = weights[boundaries + caches :].reshape(caches - 1, len(given.names))
    nest[:-1] += on_nest
    nest[1:] -= on_nest
    value = on_time @ given.times.values(x) + on_fill @ given.fills.values(x) + nest.ravel() @ x
    slope = on_time @ given.times.gradients(x) + on_fill @ given.fills.gradients(x) + nest.ravel()
    return float(value + np.minimum(slope * (given.low - x), slope * (given.high - x)).sum())


def _weights(given: Program, multipliers: np.ndarray) -> np.ndarray:
    """Ipopt's multipliers, none negative, those of times adding up to 1."""
    weights = np.maximum(multipliers, 0)
    return weights / weights[: len(given.times.b)].sum()


def _minimise(
    given: Program, x: np.ndarray, free: np.ndarray, held: np.ndarray, *, towards_large: bool
) -> tuple[np.ndarray, float, np.ndarray, bool]:
    """One convex solve: least t over `free` boundaries, others at most `held`; or largest tiles."""
    caches, dims = len(given.fills.b), len(given.names)
    solver = _solver(caches, dims, given.times.b.shape, given.fills.b.shape)
    t = float(max(given.times.values(x)[free > 0], default=0.0))
    parameters = np.concatenate(
        [
            given.times.A.ravel(), given.times.b.ravel(), given.fills.A.ravel(),
            given.fills.b.ravel(), free, held, [0.0 if towards_large else 1.0],
        ]
    )  # fmt: skip
    rows = len(free) + caches + (caches - 1) * dims
    with _interrupts_later():
        result = solver(
            x0=np.append(x, t),
            p=parameters,
            lbx=np.append(given.low, t - 60.0 if free.any() else t),
            ubx=np.append(given.high, t + 60.0 if free.any() else t),
            lbg=np.full(rows, -np.inf),
            ubg=np.zeros(rows),
        )
    found = np.array(result['x']).ravel()
    inside = np.clip(found[:-1], given.low, given.high)
    return inside, float(found[-1]), np.array(result['lam_g']).ravel(), solver.stats()['success']


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Hold Ctrl-C back until a solve has ended, some milliseconds: Ipopt may swallow it."""
    if threading.current_thread() is not threading.main_thread():  # which alone has handlers
        yield
        return
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if seen:
        signal.raise_signal(signal.SIGINT)


@cache
def _solver(caches: int, dims: int, timed: tuple[int, int], filled: tuple[int, int]) -> Any:
    """Ipopt on min t, for any coefficients: built once for each size of problem."""
    try:
        import casadi as ca
    except ImportError:
        raise MissingError(
            'casadi is not installed, so tile sizes cannot be solved for; pip install casadi, or '
            'start the refinement from search.refine.grid'
        ) from None
    width = caches * dims
    x, t = ca.SX.sym('x', width), ca.SX.sym('t')
    free, held = ca.SX.sym('free', timed[0]), ca.SX.sym('held', timed[0])
    weight = ca.SX.sym('weight')
    parameters, logs = [], []
    for rows, terms in (timed, filled):
        A, b = ca.SX.sym('A', rows * terms * width), ca.SX.sym('b', rows * terms)
        parameters += [A, b]
        exponents = ca.reshape(A, width, rows * terms).T  # row-major, as numpy ravels
        parts = ca.reshape(ca.exp(exponents @ x + b), terms, rows)
        logs.append(ca.log(ca.sum1(parts)).T)
    nested = x[: width - dims] - x[dims:]
    constraints = ca.vertcat(logs[0] - free * t - (1 - free) * held, logs[1], nested)
    goal = weight * t - (1 - weight) * ca.sum1(x)
    options = {
        'print_time': False,
        'ipopt.print_level': 0,
        'ipopt.sb': 'yes',
        'ipopt.tol': 1e-9,
        'ipopt.max_iter': 200,
        'ipopt.mu_strategy': 'adaptive',
    }
    problem = {
        'x': ca.vertcat(x, t),
        'p': ca.vertcat(*parameters, free, held, weight),
        'f': goal,
        'g': constraints,
    }
    return ca.nlpsol('tiles', 'ipopt', problem, options)
