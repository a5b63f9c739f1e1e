"""MOpt's Algorithm 1 for one loop order, kept for comparison with the epigraph form.

Goes in: a solver `Problem`. Comes out: what the paper's procedure finds. Each pass solves one
problem per level not yet visited: least DV_l/BW_l subject to DV_l/BW_l >= DV_k/BW_k for the other
unvisited levels k (Sec. 5); the level with the least cost is the binding one, and its tiles are
fixed (lines 6-18). Corrections to the printed text:

- Line 7 resets MinCost in every pass, so line 19 would compare loop orders by the level fixed last,
  the least binding. `objective` is the cost of the first pass.
- DV_l depends on the tiles of level l + 1 too, so fixing the tiles of a visited level does not keep
  its cost: visited levels are also held at or below the cost they were visited with.

The regions DV_l >= DV_k are not convex, so each problem is tried from several starts and the best
is taken; there is no certificate. Terms come from the same `program` as the epigraph form, which
isolates what is compared: the formulation of min-max.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cache

import casadi as ca
import numpy as np

from tilewright.search.cpu.solver import Problem, Program, program

STARTS = (0.2, 0.5, 0.8)
SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Outcome:
    objective: float
    tiles: tuple[dict[str, float], ...]
    visited: tuple[int, ...]
    solves: int
    seconds: float


def algorithm1(problem: Problem) -> Outcome:
    start = time.perf_counter()
    given = program(problem)
    boundaries, dims = len(given.times.b), len(given.names)
    unvisited, held = np.ones(boundaries), np.zeros(boundaries)
    low, high = given.low.copy(), given.high.copy()
    x, visited, objective, solves = given.low, [], math.inf, 0
    while unvisited.any():
        best = (math.inf, -1, x)
        for level in np.flatnonzero(unvisited):
            for share in STARTS:
                solves += 1
                cost, found = _arg_min(given, int(level), unvisited, held, low, high, share)
                if cost < best[0] - 1e-9:
                    best = (cost, int(level), found)
        cost, level, x = best
        if level < 0:
            break
        objective = cost if not visited else objective
        visited.append(level)
        unvisited[level], held[level] = 0.0, cost + SLACK
        if level > 0:  # the register tile is given; cache level l is filled over boundary l
            own = slice((level - 1) * dims, level * dims)
            low[own] = high[own] = x[own]
    rows = np.exp(x).reshape(len(problem.capacities_words), dims)
    tiles = tuple(
        {d: float(s) for d, s in problem.sizes.items()}
        | dict(zip(given.names, map(float, row), strict=True))
        for row in rows
    )
    return Outcome(math.exp(objective), tiles, tuple(visited), solves, time.perf_counter() - start)


def _arg_min(
    given: Program, level: int, unvisited: np.ndarray, held: np.ndarray, low: np.ndarray,
    high: np.ndarray, share: float,
) -> tuple[float, np.ndarray]:  # fmt: skip
    """Line 9: (log cost, log tiles) with `level` the most constrained; inf if Ipopt finds none."""
    solver = _solver(len(given.fills.b), len(given.names), given.times.b.shape, given.fills.b.shape)
    chosen = np.eye(len(unvisited))[level]
    rows = len(unvisited) + len(given.fills.b) + (len(given.fills.b) - 1) * len(given.names)
    result = solver(
        x0=low + share * (high - low),
        p=np.concatenate(
            [given.times.A.ravel(), given.times.b.ravel(), given.fills.A.ravel(),
             given.fills.b.ravel(), chosen, unvisited, held]
        ),
        lbx=low, ubx=high, lbg=np.full(rows, -np.inf), ubg=np.zeros(rows),
    )  # fmt: skip
    if not solver.stats()['success']:
        return math.inf, low
    return float(result['f']), np.clip(np.array(result['x']).ravel(), low, high)


@cache
def _solver(caches: int, dims: int, timed: tuple[int, int], filled: tuple[int, int]):
    width = caches * dims
    x = ca.SX.sym('x', width)
    chosen, unvisited, held = (ca.SX.sym(n, timed[0]) for n in ('chosen', 'unvisited', 'held'))
    parameters, logs = [], []
    for rows, terms in (timed, filled):
        A, b = ca.SX.sym('A', rows * terms * width), ca.SX.sym('b', rows * terms)
        parameters += [A, b]
        parts = ca.exp(ca.reshape(A, width, rows * terms).T @ x + b)
        logs.append(ca.log(ca.sum1(ca.reshape(parts, terms, rows))).T)
    cost = ca.dot(chosen, logs[0])
    others = (unvisited - chosen) * (logs[0] - cost) + (1 - unvisited) * (logs[0] - held)
    nested = x[: width - dims] - x[dims:]
    problem = {
        'x': x,
        'p': ca.vertcat(*parameters, chosen, unvisited, held),
        'f': cost,
        'g': ca.vertcat(others, logs[1], nested),
    }
    options = {
        'print_time': False, 'ipopt.print_level': 0, 'ipopt.sb': 'yes', 'ipopt.tol': 1e-8,
        'ipopt.max_iter': 150,
    }  # fmt: skip
    return ca.nlpsol('algorithm1', 'ipopt', problem, options)
