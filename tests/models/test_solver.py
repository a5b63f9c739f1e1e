"""The geometric program, the paper's Algorithm 1, integer refinement, the table of all three."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import math
import signal
import sys
from dataclasses import replace
from functools import reduce
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tilewright.errors import InputError, MissingError
from tilewright.model.cpu.traffic import capacity, level_volumes
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var
from tilewright.search.cpu import solver as solver_module
from tilewright.search.cpu.refine import Space, floored, grid, refine
from tilewright.search.cpu.solver import (
    INFEASIBLE,
    SOLVED,
    Problem,
    Signomial,
    cache_orders,
    rank_orders,
    solve,
    window_dims,
)

needs_casadi = pytest.mark.skipif(
    importlib.util.find_spec('casadi') is None, reason='casadi is not installed'
)
CACHES = (2048.0, 16384.0, 262144.0)
SPEEDS = (8e9, 2e9, 8e8, 2e8)


def conv_problem(order=None, **sizes) -> Problem:
    given = {'c': 32, 'h': 28, 'w': 28, 'k': 32, 'r': 3, 's': 3, 'pad': 1} | sizes
    stage = conv2d(**given).main
    inner = (*stage.parallel, *stage.reduction)
    order = order or cache_orders(stage)[0]
    reg = {'k': 8, 'w': 4}
    return Problem(stage, stage.sizes, reg, CACHES, SPEEDS, (inner, order, order, order))


def times(problem: Problem, tiles, **how) -> list:
    reg = {d: min(problem.reg_tile.get(d, 1), s) for d, s in problem.sizes.items()}
    bands = [SimpleNamespace(name='reg', order=problem.order(0), tile=reg)]
    bands += [
        SimpleNamespace(name='', order=problem.order(i + 1), tile=t) for i, t in enumerate(tiles)
    ]
    volumes = level_volumes(problem.stage, bands, problem.sizes, **how)
    return [sum(v.values()) / bw for v, bw in zip(volumes, problem.bandwidths, strict=True)]


def price(problem: Problem):
    def cost(tiles):
        for tile, room in zip(tiles, problem.capacities_words, strict=True):
            if capacity(problem.stage, tile) > problem.margin * room:
                return (math.inf,)
        found = times(problem, tiles)
        return max(found), sum(found)

    return cost


def prices(problem: Problem):
    """The same for arrays of tiles."""

    def cost(tiles):
        fits = np.array(True)
        for tile, room in zip(tiles, problem.capacities_words, strict=True):
            fits = fits & (capacity(problem.stage, tile) <= problem.margin * room)
        found = times(problem, tiles)
        return np.where(fits, reduce(np.maximum, found), math.inf), sum(found)

    return cost


def space_of(problem: Problem, **more) -> Space:
    levels = len(problem.capacities_words)
    return Space(problem.sizes, problem.reg_tile, levels, problem.whole, **more)


# The program.


def test_signomials_cancel_exactly():
    t = Signomial.variable(0, 2)
    n = Signomial.variable(1, 2)
    swept = t + (n / t - 1) * t  # T + (N/T - 1) T = N
    assert swept.terms == {(0, 1): 1}
    assert (3 - (t - t)).terms == {(0, 0): 3}
    with pytest.raises(InputError, match='not a posynomial'):
        (t - n).posynomial()


def test_window_dims_are_the_overlapping_reductions():
    assert window_dims(conv2d(c=4, h=8, w=8, k=4, r=3, s=3).main) == ('r', 's')
    assert window_dims(conv2d(c=4, h=8, w=8, k=4, r=3, s=1).main) == ('r',)
    assert window_dims(conv2d(c=4, h=8, w=8, k=4, r=3, s=3, groups=2).main) == ('r', 's')
    assert window_dims(conv2d(c=4, h=9, w=9, k=4, r=3, s=3, stride=3).main) == ()
    assert window_dims(matmul(m=4, n=4, k=4).main) == ()


def test_orders_left_when_windows_have_no_loop():
    dense = conv2d(c=8, h=8, w=8, k=8, r=3, s=3).main
    innermost = {order[-2:] for order in cache_orders(dense)}
    assert innermost == {('h', 'w'), ('w', 'h'), ('w', 'c'), ('w', 'k'), ('h', 'k')}
    assert len(cache_orders(conv2d(c=8, h=8, w=8, k=8, r=1, s=1).main)) == 3
    assert len(cache_orders(conv2d(c=8, h=8, w=8, k=8, r=3, s=3, groups=8).main)) == 2
    assert len(cache_orders(matmul(m=8, n=8, k=8).main)) == 3


@needs_casadi
def test_square_matmul_meets_its_closed_form():
    """min N^3 (1/Ti + 1/Tj) + 2 N^2, Ti Tj + (Ti + Tj) Tk <= C: Tk = 1, Ti = Tj = sqrt(C+1) - 1."""
    n, room, speed = 1000, 1023.0, 1e9
    stage = matmul(m=n, n=n, k=n).main
    problem = Problem(stage, stage.sizes, {}, (room,), (1e15, speed), (('i', 'j', 'k'),))
    found = solve(problem)
    side = math.sqrt(room + 1) - 1
    assert found.status == SOLVED
    assert found.objective == pytest.approx((2 * n**3 / side + 2 * n**2) / speed, rel=1e-6)
    assert found.tiles[0] == pytest.approx({'i': side, 'j': side, 'k': 1}, rel=1e-3)
    assert found.objective * (1 - 1e-6) <= found.bound <= found.objective


@needs_casadi
@pytest.mark.parametrize(
    'sizes', [{}, {'r': 1, 's': 1, 'pad': 0}, {'stride': 2}, {'groups': 4}, {'groups': 32}]
)
def test_no_sampled_tiles_beat_the_optimum(sizes):
    stage = conv_problem(**sizes).stage
    rng = np.random.default_rng(7)
    for order in cache_orders(stage):
        problem = conv_problem(order, **sizes)
        found = solve(problem)
        assert found.status == SOLVED
        assert found.objective == pytest.approx(max(found.times))
        assert found.objective == pytest.approx(max(times(problem, found.tiles, exact=False)))
        assert found.objective * (1 - 1e-5) <= found.bound <= found.objective
        many = 4000
        tiles, below = [], {d: problem.reg_tile.get(d, 1) for d in problem.sizes}
        for _ in CACHES:
            tile = {}
            for d, size in problem.sizes.items():
                low, high = np.log(np.minimum(below[d], size)), math.log(size)
                drawn = np.exp(low + rng.random(many) * (high - low) * rng.random(many))
                tile[d] = np.full(many, float(size)) if d in problem.whole else drawn
            tiles.append(tile)
            below = tile
        fits = np.all(
            [capacity(stage, t) <= room for t, room in zip(tiles, CACHES, strict=True)], axis=0
        )
        assert fits.any()
        cost = np.max(
            [np.broadcast_to(t, many) for t in times(problem, tiles, exact=False)], axis=0
        )
        # Arrays treat a loop of exactly one trip as absent; drawn tiles are never exactly whole.
        assert cost[fits].min() >= found.bound


@needs_casadi
def test_tiles_are_nested_fit_and_contain_the_register_tile():
    problem = conv_problem()
    found = solve(problem)
    below = {d: min(problem.reg_tile.get(d, 1), s) for d, s in problem.sizes.items()}
    for tile, room in zip(found.tiles, CACHES, strict=True):
        assert capacity(problem.stage, tile) <= room * (1 + 1e-6)
        for d, size in problem.sizes.items():
            assert below[d] * (1 - 1e-6) <= tile[d] <= size * (1 + 1e-6)
        assert tile['r'] == tile['s'] == 3
        below = tile


@needs_casadi
def test_margin_and_lines_cost_time():
    problem = conv_problem()
    problem = replace(problem, bandwidths=(1e12, 1e9, 1e12, 1e12))  # so that L1 binds
    free = solve(problem).objective
    assert solve(replace(problem, margin=0.5)).objective > 1.05 * free
    assert solve(replace(problem, line_words=16)).objective > 1.05 * free


@needs_casadi
def test_levels_that_do_not_bind_are_settled_in_turn():
    for order in cache_orders(conv_problem().stage):
        problem = conv_problem(order)
        settled, first = solve(problem), solve(problem, settle=False)
        assert settled.objective == pytest.approx(first.objective, rel=1e-5)
        ours, theirs = sorted(settled.times, reverse=True), sorted(first.times, reverse=True)
        for a, b in zip(ours, theirs, strict=True):
            if abs(a / b - 1) > 1e-4:
                assert a < b  # the first place where they differ
                break


@needs_casadi
def test_solving_is_deterministic():
    first, second = solve(conv_problem()), solve(conv_problem())
    assert first.tiles == second.tiles
    assert first.times == second.times


@needs_casadi
def test_bound_holds_for_every_dividing_tile_and_order():
    """One cache, all divisor tiles, all orders: none is below the least bound of the classes."""
    stage = conv2d(c=8, h=8, w=8, k=8, r=3, s=3, pad=1).main
    inner = (*stage.parallel, *stage.reduction)
    bounds, best = [], math.inf
    divisors = [[v for v in range(1, s + 1) if s % v == 0] for d, s in stage.sizes.items()]
    points = [dict(zip(stage.sizes, p, strict=True)) for p in itertools.product(*divisors)]
    points = [p for p in points if p['r'] == p['s'] == 3 and capacity(stage, p) <= 400]
    for order in cache_orders(stage):
        problem = Problem(stage, stage.sizes, {}, (400.0,), (1e9, 1e8), (inner, order))
        bounds.append(solve(problem).bound)
        best = min(best, *(max(times(problem, [p])) for p in points))
    assert min(bounds) <= best * (1 + 1e-9)
    assert best < 1.5 * min(bounds)  # and it is not an empty bound


@needs_casadi
def test_problems_without_a_choice_and_without_a_solution():
    stage = matmul(m=4, n=4, k=4).main
    whole = Problem(
        stage, stage.sizes, {'i': 4, 'j': 4, 'k': 4}, (100.0,), (1e9, 1e8), (('i', 'j', 'k'),)
    )
    found = solve(whole)
    assert found.tiles == ({'i': 4, 'j': 4, 'k': 4},)
    assert found.objective == found.bound == pytest.approx((16 + 16 + 32) / 1e8)
    tight = Problem(stage, stage.sizes, {'i': 4, 'j': 4}, (10.0,), (1e9, 1e8), (('i', 'j', 'k'),))
    assert solve(tight).status == INFEASIBLE
    assert solve(tight).objective == math.inf


def test_bad_problems_are_refused():
    stage = matmul(m=4, n=4, k=4).main
    order = (('i', 'j', 'k'),)
    with pytest.raises(InputError, match='one bandwidth more'):
        Problem(stage, stage.sizes, {}, (10.0,), (1e9,), order)
    with pytest.raises(InputError, match='one for all, or 2'):
        Problem(stage, stage.sizes, {}, (10.0,), (1e9, 1e8), order * 3)
    with pytest.raises(InputError, match='must be positive'):
        Problem(stage, stage.sizes, {}, (10.0,), (1e9, 0.0), order)


def test_a_missing_casadi_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, 'casadi', None)
    solver_module._solver.cache_clear()
    with pytest.raises(MissingError, match='casadi'):
        solve(conv_problem())


@needs_casadi
def test_an_operator_unknown_to_the_package_is_solved():
    stage = Stage(
        'correlate',
        (Dim('i', 512), Dim('j', 256), Dim('k', 9, 'reduction')),
        Access('Out', (var('i'), var('j'))),
        (Access('A', (affine(('i', 1), ('k', 1)), var('j'))), Access('B', (var('k'), var('j')))),
        call('mul', read(0), read(1)),
        'sum',
    )
    found = [
        solve(Problem(stage, stage.sizes, {}, (2000.0,), (1e9, 1e8), (order,)))
        for order in cache_orders(stage)
    ]
    best = min(found, key=lambda s: s.objective)
    # A and B once, Out in and out: nothing is moved twice when i is swept inside j.
    assert best.times[1] == pytest.approx((520 * 256 + 9 * 256 + 2 * 512 * 256) / 1e8, rel=1e-3)


@needs_casadi
@pytest.mark.parametrize('sizes', [{}, {'c': 64, 'k': 64, 'h': 14, 'w': 14}, {'r': 1, 's': 1}])
def test_algorithm_1_agrees_with_the_epigraph_form(sizes):
    from tilewright_lab.simulate.algorithm1 import algorithm1

    for order in cache_orders(conv_problem(**sizes).stage)[:2]:
        problem = conv_problem(order, **sizes)
        ours, printed = solve(problem), algorithm1(problem)
        assert printed.objective == pytest.approx(ours.objective, rel=2e-3)
        assert printed.objective >= ours.bound * (1 - 1e-6)
        assert sorted(printed.visited) == [0, 1, 2, 3]


# Refinement.


@needs_casadi
@pytest.mark.parametrize(
    'sizes', [{}, {'h': 13, 'w': 17, 'k': 24, 'c': 19}, {'c': 64, 'k': 64, 'h': 14, 'w': 14}]
)
def test_refined_tiles_are_legal_nested_and_never_worse_than_the_floor(sizes):
    for order in cache_orders(conv_problem(**sizes).stage)[:2]:
        problem = conv_problem(order, **sizes)
        space, cost, start = space_of(problem), price(problem), solve(problem).tiles
        found = refine([start], cost, space, budget=200)
        assert found.seconds <= cost(floored(start, space))[0]
        assert found.evaluations <= 200
        assert found.seconds == cost(found.tiles)[0]
        for inner, outer in itertools.pairwise((*found.tiles, problem.sizes)):
            assert all(isinstance(v, int) and v <= outer[d] for d, v in inner.items())
        assert refine([start], cost, space, budget=200) == found


@needs_casadi
def test_an_order_per_cache_is_never_worse_than_one_for_all():
    problem = replace(conv_problem(), bandwidths=(1e12, 2e9, 4e8, 8e7))
    ranked = rank_orders(problem)
    objectives = [objective for objective, _ in ranked]
    assert objectives == sorted(objectives)
    inner, candidates = problem.order(0), cache_orders(problem.stage)
    for order in candidates:
        alone = solve(replace(problem, orders=(inner, order, order, order)), settle=False)
        assert objectives[0] <= alone.objective
    assert all(posed.order(0) == inner for _, posed in ranked)
    every = min(
        solve(replace(problem, orders=(inner, *choice)), settle=False).objective
        for choice in itertools.product(candidates[:3], repeat=3)
    )
    assert rank_orders(problem, candidates[:3])[0][0] == pytest.approx(every, rel=1e-5)


@needs_casadi
def test_a_vectorised_cost_prices_the_same_tiles_and_finds_no_less():
    problem = replace(conv_problem(h=13, w=17), bandwidths=(1e12, 2e9, 4e8, 8e7))
    space, start = space_of(problem), solve(problem).tiles
    found = refine([start], prices(problem), space, vectorised=True, budget=4000)
    assert found.evaluations <= 4000
    for seconds, tiles in found.ranked[::100]:
        assert price(problem)(tiles)[0] == pytest.approx(seconds, rel=1e-12)
    assert found.seconds <= price(problem)(floored(start, space))[0]
    assert found == refine([start], prices(problem), space, vectorised=True, budget=4000)
    one_by_one = refine([start], price(problem), space, budget=300)
    assert found.seconds <= one_by_one.seconds


@needs_casadi
def test_refinement_reaches_the_exhaustive_optimum_of_a_small_problem():
    stage = matmul(m=30, n=20, k=24).main
    problem = Problem(
        stage, stage.sizes, {}, (150.0,), (1e9, 1e8), (('k', 'i', 'j'), ('i', 'k', 'j'))
    )
    cost = price(problem)
    points = itertools.product(*(range(1, s + 1) for s in stage.sizes.values()))
    tiles = np.array(list(points)).T
    arrays = dict(zip(stage.sizes, tiles, strict=True))
    worst = np.max([np.broadcast_to(t, len(tiles.T)) for t in times(problem, [arrays])], axis=0)
    best = worst[capacity(stage, arrays) <= 150].min()
    found = refine([solve(problem).tiles], cost, space_of(problem), budget=2000)
    assert found.seconds == pytest.approx(best)


def test_hard_multiples_are_kept():
    problem = conv_problem(k=40, w=30, pad=0)
    space = space_of(problem, multiple={'k': 8, 'w': 4})
    start = [{d: s / 2.3 for d, s in problem.sizes.items()}] * 3
    found = refine(grid(space, lambda t: capacity(problem.stage, t), CACHES), price(problem), space)
    for _, tiles in found.ranked:
        for tile in tiles:
            assert tile['k'] % 8 == 0
            assert tile['w'] % 4 == 0 or tile['w'] == problem.sizes['w']
    assert floored(start, space)[0]['k'] == 16


@needs_casadi
def test_starts_without_a_solver_end_close_to_those_with_it():
    problem = conv_problem()
    space, cost = space_of(problem), price(problem)
    starts = grid(space, lambda t: capacity(problem.stage, t), CACHES)
    assert all(math.isfinite(cost(tiles)[0]) for tiles in starts)
    without = refine(starts, cost, space, budget=800)
    with_solver = refine([solve(problem).tiles], cost, space, budget=800)
    assert without.seconds <= 1.1 * with_solver.seconds


def test_refinement_without_a_legal_choice_says_so():
    problem = conv_problem()
    start = [dict.fromkeys(problem.sizes, 1.0)] * 3
    with pytest.raises(InputError, match='smaller register tile'):
        refine([start], lambda _: math.inf, space_of(problem), budget=20)
    with pytest.raises(InputError, match='the space has 3'):
        refine([start[:1]], lambda _: 1.0, space_of(problem))
    with pytest.raises(InputError, match='at least one'):
        Space(problem.sizes, {}, 0)


# The table.


@needs_casadi
@pytest.mark.slow
def test_the_table_of_two_tiny_layers(tmp_path, capsys, monkeypatch):
    script = (
        Path(__file__).resolve().parents[2]
        / 'src'
        / 'tilewright_lab'
        / 'scripts'
        / 'solver_table.py'
    )
    spec = importlib.util.spec_from_file_location('solver_table', script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, 'solver_table', module)
    spec.loader.exec_module(module)
    target = tmp_path / 'table.json'
    arguments = [
        '--layers',
        '32x16x8x3x1,16x16x8x1x1',
        '--budget',
        '200',
        '--top',
        '2',
        '--json',
        str(target),
    ]
    assert module.main(arguments) == 0
    assert '32x16x8x3x1' in capsys.readouterr().out
    rows = json.loads(target.read_text())['rows']
    assert len(rows) == 2
    for row in rows:
        assert row['bound_ms'] <= row['orders_ms'] <= row['gp_ms'] * (1 + 1e-6)
        assert row['algorithm1_ms'] == pytest.approx(row['gp_ms'], rel=5e-3)
        assert row['refined_ms'] <= row['floor_ms']
        assert row['refined_ms'] <= row['exhaustive_ms'] * 1.02
        assert row['exhaustive_combinations'] > 0


def test_an_interrupt_that_the_solver_swallows_comes_afterwards(monkeypatch):
    """Ipopt's callbacks may eat the exception that Ctrl-C raises in them."""
    real = solver_module._solver

    class Swallowing:
        def __init__(self, *size: object) -> None:
            self.solve = real(*size)
            self.stats = self.solve.stats

        def __call__(self, **given: object) -> object:
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            return self.solve(**given)

    monkeypatch.setattr(solver_module, '_solver', Swallowing)
    stage = matmul(m=64, n=64, k=64).main
    order = tuple(stage.sizes)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            solve(Problem(stage, stage.sizes, {}, (2000.0,), (1e9, 1e8), (order,)))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
