"""The tile-size optimum found in five ways, for ten layers of the MOpt suite, and the time of each.

    python -m tilewright_lab.scripts.solver_table [--machine i7-9700k] [--layers R2,R9] [--json \
        FILE]
                                 [--per-level] [--caches-only]

All columns solve one problem: one thread, fp32, a register tile (k x w) of 16 x 6 with AVX2 and of
32 x 14 with AVX-512, windows untiled, caches filled up to `--margin`; time is the largest over all
boundaries of words / bandwidth.

    gp          epigraph form, a geometric program: best of the orders, one order for all caches
    alg.1       the paper's procedure (corrected, tests/models/algorithm1.py), same orders
    orders      epigraph form with an order per cache, found by `rank_orders`; bound: its dual bound
    floor       the tiles of `orders` rounded down (the paper's way), priced with the exact model
    refined     our integer refinement for the `--top` best order choices, priced the same
    exhaust.    for the same order choices all tiles of L1 and of L2 together whose sizes divide the
                dimension or are even shares of it in whole register tiles; outer caches as refined;
                '-' when there are more than `--limit` nested pairs

`--per-level` also solves for every combination of one order per cache, to check `orders`. The
register boundary binds on most layers, whatever the caches do; `--caches-only` leaves it out.

gp and algorithm 1 are real-valued relaxations in which loops of one trip still count, so refined
values may lie on either side of them; docs/model.md says when gp's bound applies.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from tilewright.machine.known import known_machine
from tilewright.machine.machine import Machine
from tilewright.model.cpu.traffic import capacity, level_volumes
from tilewright.ops.convolution import conv2d
from tilewright.ops.stage import Stage
from tilewright.search.cpu.refine import Space, Tiles, floored, refine
from tilewright.search.cpu.solver import Problem, Solution, cache_orders, rank_orders, solve
from tilewright_lab.simulate.algorithm1 import algorithm1

WORD = 4
NEVER_BINDS = 1e15  # words per second
REG = {'avx2': {'k': 16, 'w': 6}, 'avx512': {'k': 32, 'w': 14}}
# MOpt Table 1: (K, C, H/W, R/S, stride), padding R/2.
LAYERS = {
    'Y4': (128, 64, 136, 3, 1),
    'Y5': (64, 128, 136, 1, 1),
    'Y8': (256, 128, 68, 3, 1),
    'Y12': (512, 256, 34, 3, 1),
    'Y18': (1024, 512, 17, 3, 1),
    'R1': (64, 3, 224, 7, 2),
    'R2': (64, 64, 56, 3, 1),
    'R6': (128, 128, 28, 3, 1),
    'R9': (256, 256, 14, 3, 1),
    'R12': (512, 512, 7, 3, 1),
}


@dataclass(frozen=True, slots=True)
class Row:
    """Times in ms of the layer under the model, and what finding each took."""

    layer: str
    gp_ms: float
    bound_ms: float
    gp_took_ms: float
    algorithm1_ms: float
    algorithm1_took_ms: float
    orders_ms: float
    orders_took_ms: float
    orders_solved: int
    floor_ms: float
    refined_ms: float
    refined_took_ms: float
    refined_evaluations: int
    exhaustive_ms: float | None
    exhaustive_took_ms: float
    exhaustive_combinations: int
    orders: tuple[tuple[str, ...], ...]
    tiles: Tiles
    per_level_ms: float | None = None
    per_level_took_ms: float | None = None


def layer(k: int, c: int, size: int, r: int, stride: int) -> Stage:
    return conv2d(c=c, h=size, w=size, k=k, r=r, s=r, stride=stride, pad=r // 2).main


def problem_of(stage: Stage, machine: Machine, margin: float, caches_only: bool) -> Problem:
    """One thread's problem; the register level keeps its accumulators over the whole reduction."""
    caches = tuple(machine.capacity_bytes(i, 1) / WORD for i in range(len(machine.caches)))
    speeds = tuple(
        machine.bandwidth_gbps(i, 1) * 1e9 / WORD for i in range(len(machine.boundaries))
    )
    if caches_only:
        speeds = (NEVER_BINDS, *speeds[1:])
    inner = (*stage.parallel, *stage.reduction)
    return Problem(stage, stage.sizes, REG[machine.isa], caches, speeds, (inner,), margin=margin)


def with_orders(problem: Problem, orders: Sequence[tuple[str, ...]]) -> Problem:
    return replace(problem, orders=(problem.orders[0], *orders))


@dataclass(frozen=True, slots=True)
class _Band:
    name: str
    order: tuple[str, ...]
    tile: dict


def times(problem: Problem, tiles: Sequence[dict]) -> list:
    """Seconds over each boundary under the exact model; tiles may be numbers or arrays."""
    reg = {d: min(problem.reg_tile.get(d, 1), s) for d, s in problem.sizes.items()}
    bands = [_Band('reg', problem.order(0), reg)]
    bands += [_Band(f'l{i + 1}', problem.order(i + 1), t) for i, t in enumerate(tiles)]
    volumes = level_volumes(problem.stage, bands, problem.sizes)
    return [sum(v.values()) / bw for v, bw in zip(volumes, problem.bandwidths, strict=True)]


def price(problem: Problem, tiles: Sequence[dict]) -> tuple:
    """(largest time, sum of times); inf where a tile does not fit its cache. Arrays or numbers."""
    rooms = [c * problem.margin for c in problem.capacities_words]
    fill = [capacity(problem.stage, t) / room for t, room in zip(tiles, rooms, strict=True)]
    found = times(problem, tiles)
    fits = functools.reduce(np.maximum, fill) <= 1
    return np.where(fits, functools.reduce(np.maximum, found), np.inf), sum(found)


def space_of(problem: Problem) -> Space:
    return Space(problem.sizes, problem.reg_tile, len(problem.capacities_words), problem.whole)


def grid_sizes(size: int, unit: int) -> list[int]:
    """Divisors, and even shares in whole register tiles."""
    unit = min(unit, size)
    divisors = {v for v in range(unit, size + 1) if size % v == 0}
    shares = {math.ceil(size / trips / unit) * unit for trips in range(1, size // unit + 1)}
    return sorted(divisors | {min(v, size) for v in shares if unit > 1})


def exhaustive(problem: Problem, outer: Tiles, limit: int) -> tuple[float | None, int]:
    """(best time, pairs tried) over `grid_sizes` in the two innermost caches; None: too many pairs.

    `outer` gives the tiles of the caches beyond; it is raised where the inner tiles exceed it.
    """
    dims, whole = tuple(problem.sizes), problem.whole
    choices = [
        [size] if d in whole else grid_sizes(size, problem.reg_tile.get(d, 1))
        for d, size in problem.sizes.items()
    ]
    single = np.array(list(product(*choices)), dtype=np.int64)

    def named(rows: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(dims, rows.T, strict=True))

    def fits(level: int, rows: np.ndarray) -> np.ndarray:
        room = problem.capacities_words[level] * problem.margin
        return np.broadcast_to(capacity(problem.stage, named(rows)) <= room, len(rows))

    small = single[fits(0, single)]
    large = single[fits(1, single)]
    pairs = [(tile, large[np.all(large >= tile, axis=1)]) for tile in small]
    tried = sum(len(others) for _, others in pairs)
    if tried > limit:
        return None, tried
    first = np.repeat(small, [len(others) for _, others in pairs], axis=0)
    rows = [first, np.concatenate([others for _, others in pairs])]
    for tile in outer[2:]:
        rows.append(np.maximum(rows[-1], np.array([tile[d] for d in dims])))
    best = math.inf
    for at in range(0, tried, 100_000):
        block = [r[at : at + 100_000] for r in rows]
        legal = np.all([fits(i, r) for i, r in enumerate(block)], axis=0)
        found = times(problem, [named(r) for r in block])
        worst = np.max([np.broadcast_to(t, len(legal)) for t in found], axis=0)
        best = min(best, float(np.where(legal, worst, np.inf).min()))
    return best, tried


def took(start: float) -> float:
    return (time.perf_counter() - start) * 1e3


def measure(
    name: str, stage: Stage, machine: Machine, *, margin: float, budget: int, limit: int, top: int,
    per_level: bool, caches_only: bool,
) -> Row:  # fmt: skip
    base = problem_of(stage, machine, margin, caches_only)
    caches = len(base.capacities_words)
    problems = [with_orders(base, (order,) * caches) for order in cache_orders(stage)]
    solve(problems[0])  # builds the solver, once for each size of problem
    algorithm1(problems[0])
    start = time.perf_counter()
    solutions = [solve(p) for p in problems]
    gp_took = took(start)
    start = time.perf_counter()
    printed = min(algorithm1(p).objective for p in problems)
    algorithm1_took = took(start)
    start = time.perf_counter()
    ranked = rank_orders(base)
    orders_took = took(start)
    chosen = [p for _, p in ranked[:top]]
    space = space_of(base)
    start = time.perf_counter()
    settled = [solve(p) for p in chosen]
    refined = [
        refine([s.tiles], functools.partial(price, p), space, vectorised=True, budget=budget)
        for p, s in zip(chosen, settled, strict=True)
    ]
    refined_took = took(start)
    floor = float(price(chosen[0], floored(settled[0].tiles, space))[0])
    best = min(range(len(refined)), key=lambda i: refined[i].seconds)
    start = time.perf_counter()
    searched = [exhaustive(p, refined[best].tiles, limit) for p in chosen]
    found = [t for t, _ in searched if t is not None]
    row = Row(
        layer=name,
        gp_ms=min(s.objective for s in solutions) * 1e3,
        bound_ms=settled[0].bound * 1e3,
        gp_took_ms=gp_took,
        algorithm1_ms=printed * 1e3,
        algorithm1_took_ms=algorithm1_took,
        orders_ms=ranked[0][0] * 1e3,
        orders_took_ms=orders_took,
        orders_solved=len(ranked),
        floor_ms=floor * 1e3,
        refined_ms=refined[best].seconds * 1e3,
        refined_took_ms=refined_took,
        refined_evaluations=sum(r.evaluations for r in refined),
        exhaustive_ms=min(found) * 1e3 if len(found) == len(searched) else None,
        exhaustive_took_ms=took(start),
        exhaustive_combinations=sum(n for _, n in searched),
        orders=chosen[best].orders,
        tiles=refined[best].tiles,
    )
    return _with_levels(row, base, stage) if per_level else row


def _with_levels(row: Row, base: Problem, stage: Stage) -> Row:
    """The optimum when every cache may have its own loop order."""
    start = time.perf_counter()
    solutions: list[Solution] = [
        solve(with_orders(base, orders), settle=False)
        for orders in product(cache_orders(stage), repeat=len(base.capacities_words))
    ]
    best = min(s.objective for s in solutions)
    return replace(row, per_level_ms=best * 1e3, per_level_took_ms=took(start))


def show(rows: Sequence[Row]) -> str:
    columns = ('gp', 'bound', 'alg.1', 'orders', 'floor', 'refined', 'exhaust.')
    clocks = ('gp', 'alg.1', 'orders', 'refined', 'exhaust.')
    lines = [
        'ms     '
        + ''.join(f'{c:>9}' for c in columns)
        + '  | took ms'
        + ''.join(f'{c:>9}' for c in clocks)
        + '  exhausted'
    ]
    for r in rows:
        values = (r.gp_ms, r.bound_ms, r.algorithm1_ms, r.orders_ms, r.floor_ms, r.refined_ms)
        took_ms = (
            r.gp_took_ms, r.algorithm1_took_ms, r.orders_took_ms, r.refined_took_ms,
            r.exhaustive_took_ms,
        )  # fmt: skip
        best = '-' if r.exhaustive_ms is None else f'{r.exhaustive_ms:.4f}'
        lines.append(
            f'{r.layer:7}' + ''.join(f'{v:9.4f}' for v in values) + f'{best:>9}  |        '
            + ''.join(f'{t:9.0f}' for t in took_ms) + f'  {r.exhaustive_combinations}'
        )  # fmt: skip
    if all(r.per_level_ms is not None for r in rows):
        lines.append('every choice of one order per cache: objective in ms, time in ms')
        lines += [
            f'{r.layer:7} one for all {r.gp_ms:8.4f}   by descent {r.orders_ms:8.4f} '
            f'({r.orders_took_ms:5.0f}, {r.orders_solved:3} solved)   '
            f'all {r.per_level_ms:8.4f} ({r.per_level_took_ms:6.0f})'
            for r in rows
        ]
    return '\n'.join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--machine', default='i7-9700k')
    parser.add_argument('--layers', default=','.join(LAYERS), help='names, or KxCxHxRxSTRIDE')
    parser.add_argument('--margin', type=float, default=0.8)
    parser.add_argument('--budget', type=int, default=10_000, help='prices for each order choice')
    parser.add_argument('--limit', type=int, default=1_000_000)
    parser.add_argument('--top', type=int, default=5, help='order choices that are refined')
    parser.add_argument('--per-level', action='store_true', help='also one order per cache')
    parser.add_argument('--caches-only', action='store_true', help='registers do not count')
    parser.add_argument('--json', type=Path)
    given = parser.parse_args(arguments)
    machine = known_machine(given.machine)
    rows = []
    for name in given.layers.split(','):
        shape = LAYERS.get(name) or tuple(int(part) for part in name.split('x'))
        rows.append(
            measure(
                name, layer(*shape), machine, margin=given.margin, budget=given.budget,
                limit=given.limit, top=given.top, per_level=given.per_level,
                caches_only=given.caches_only,
            )
        )  # fmt: skip
    print(show(rows))
    if given.json:
        record = {
            'machine': machine.to_json(),
            'margin': given.margin,
            'budget': given.budget,
            'caches_only': given.caches_only,
            'exhausted': 'every order; in the two innermost caches together divisors and even '
            'shares in whole register tiles; outer caches as refined',
            'rows': [asdict(r) for r in rows],
        }
        given.json.write_text(json.dumps(record, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
