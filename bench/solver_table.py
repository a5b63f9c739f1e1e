"""The tile-size optimum found in five ways, for ten layers of the MOpt suite, and the time of each.

    python bench/solver_table.py [--machine i7-9700k] [--layers R2,R9] [--per-level] [--json FILE]

All columns solve one problem: one thread, fp32, a register tile (k x w) of 16 x 6 with AVX2 and of
32 x 14 with AVX-512, windows untiled, caches filled up to `--margin`; time is the largest over all
boundaries of words / bandwidth.

    gp          epigraph form, a geometric program: best of the orders, one order for all levels
    algorithm 1 the paper's procedure (corrected, tests/models/algorithm1.py), same orders
    floor       gp's tiles rounded down (the paper's way), priced with the exact model
    refined     our integer refinement of every order's tiles, priced with the exact model
    exhaustive  every order x all tiles of L1 and of L2 together whose sizes divide the dimension
                or are even shares of it in whole register tiles; the outer caches as refined;
                '-' when there are more than `--limit` nested pairs for one order

gp and algorithm 1 are real-valued relaxations in which loops of one trip still count, so refined
values may lie on either side of them; docs/model.md says when gp's bound applies.
"""

from __future__ import annotations

import argparse
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
from tilewright.model.traffic import capacity, level_volumes
from tilewright.ops.convolution import conv2d
from tilewright.ops.stage import Stage
from tilewright.search.refine import Space, Tiles, floored, refine
from tilewright.search.solver import Problem, Solution, cache_orders, solve

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / 'tests' / 'models'))
from algorithm1 import algorithm1

WORD = 4
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
    floor_ms: float
    refined_ms: float
    refined_took_ms: float
    refined_evaluations: int
    exhaustive_ms: float | None
    exhaustive_took_ms: float
    exhaustive_combinations: int
    order: tuple[str, ...]
    tiles: Tiles
    per_level_ms: float | None = None
    per_level_took_ms: float | None = None


def layer(k: int, c: int, size: int, r: int, stride: int) -> Stage:
    return conv2d(c=c, h=size, w=size, k=k, r=r, s=r, stride=stride, pad=r // 2).main


def problem_of(stage: Stage, machine: Machine, margin: float) -> Problem:
    """One thread's problem; the register level keeps its accumulators over the whole reduction."""
    caches = tuple(machine.capacity_bytes(i, 1) / WORD for i in range(len(machine.caches)))
    speeds = tuple(
        machine.bandwidth_gbps(i, 1) * 1e9 / WORD for i in range(len(machine.boundaries))
    )
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


def price(problem: Problem, tiles: Tiles) -> tuple[float, ...]:
    """(largest time, sum of times), or inf when a tile does not fit its cache."""
    for tile, room in zip(tiles, problem.capacities_words, strict=True):
        if capacity(problem.stage, tile) > room * problem.margin:
            return (math.inf,)
    found = times(problem, tiles)
    return max(found), sum(found)


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
    name: str, stage: Stage, machine: Machine, *, margin: float, budget: int, limit: int,
    per_level: bool,
) -> Row:  # fmt: skip
    base = problem_of(stage, machine, margin)
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
    best = min(range(len(problems)), key=lambda i: solutions[i].objective)
    space = space_of(base)
    floor = price(problems[best], floored(solutions[best].tiles, space))[0]
    start = time.perf_counter()
    refined = [
        refine([s.tiles], lambda t, p=p: price(p, t), space, budget=budget)
        for p, s in zip(problems, solutions, strict=True)
        if s.tiles
    ]
    refined_took = took(start)
    chosen = min(range(len(refined)), key=lambda i: refined[i].seconds)
    start = time.perf_counter()
    searched = [exhaustive(p, refined[chosen].tiles, limit) for p in problems]
    found = [t for t, _ in searched if t is not None]
    row = Row(
        layer=name,
        gp_ms=solutions[best].objective * 1e3,
        bound_ms=min(s.bound for s in solutions) * 1e3,
        gp_took_ms=gp_took,
        algorithm1_ms=printed * 1e3,
        algorithm1_took_ms=algorithm1_took,
        floor_ms=floor * 1e3,
        refined_ms=refined[chosen].seconds * 1e3,
        refined_took_ms=refined_took,
        refined_evaluations=sum(r.evaluations for r in refined),
        exhaustive_ms=min(found) * 1e3 if len(found) == len(searched) else None,
        exhaustive_took_ms=took(start),
        exhaustive_combinations=sum(n for _, n in searched),
        order=problems[chosen].order(1),
        tiles=refined[chosen].tiles,
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
    lines = [
        f'{"layer":6}{"gp ms":>9}{"bound":>9}{"alg.1":>9}{"floor":>9}{"refined":>9}{"exhaust.":>9}'
        f' | took ms: {"gp":>7}{"alg.1":>8}{"refined":>8}{"exhaust.":>10}  combinations'
    ]
    for r in rows:
        best = '-' if r.exhaustive_ms is None else f'{r.exhaustive_ms:.4f}'
        lines.append(
            f'{r.layer:6}{r.gp_ms:9.4f}{r.bound_ms:9.4f}{r.algorithm1_ms:9.4f}{r.floor_ms:9.4f}'
            f'{r.refined_ms:9.4f}{best:>9} |          {r.gp_took_ms:7.0f}'
            f'{r.algorithm1_took_ms:8.0f}{r.refined_took_ms:8.0f}{r.exhaustive_took_ms:10.0f}'
            f'  {r.exhaustive_combinations}'
        )
    if all(r.per_level_ms is not None for r in rows):
        lines.append('orders per level against one for all: objective in ms, time in ms')
        lines += [
            f'{r.layer:6} one {r.gp_ms:8.4f} ({r.gp_took_ms:6.0f})   '
            f'per level {r.per_level_ms:8.4f} ({r.per_level_took_ms:6.0f})   '
            f'gain {100 * (1 - (r.per_level_ms or 0) / r.gp_ms):.2f}%'
            for r in rows
        ]
    return '\n'.join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--machine', default='i7-9700k')
    parser.add_argument('--layers', default=','.join(LAYERS), help='names, or KxCxHxRxSTRIDE')
    parser.add_argument('--margin', type=float, default=0.8)
    parser.add_argument('--budget', type=int, default=600, help='prices for each loop order')
    parser.add_argument('--limit', type=int, default=1_000_000)
    parser.add_argument('--per-level', action='store_true')
    parser.add_argument('--json', type=Path)
    given = parser.parse_args(arguments)
    machine = known_machine(given.machine)
    rows = []
    for name in given.layers.split(','):
        shape = LAYERS.get(name) or tuple(int(part) for part in name.split('x'))
        rows.append(
            measure(
                name, layer(*shape), machine, margin=given.margin, budget=given.budget,
                limit=given.limit, per_level=given.per_level,
            )
        )  # fmt: skip
    print(show(rows))
    if given.json:
        record = {
            'machine': machine.to_json(),
            'margin': given.margin,
            'budget': given.budget,
            'exhausted': 'every order; in the two innermost caches together divisors and even '
            'shares in whole register tiles; outer caches as refined',
            'rows': [asdict(r) for r in rows],
        }
        given.json.write_text(json.dumps(record, indent=1) + '\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
