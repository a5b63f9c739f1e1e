"""The explanation says what the generated code does, and its figures add up."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from random import Random

import pytest

import tilewright as tw
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.winograd.space import winograd_schedule
from tilewright.kernels.cpu.space import random_schedule
from tilewright.machine.known import known_machine
from tilewright.model.cpu.general_time import predict_general
from tilewright.model.cpu.prediction import Boundary, Prediction
from tilewright.model.cpu.winograd_time import predict_winograd
from tilewright.ops.winograd_error import predicted_error
from tilewright.report import explain
from tilewright.report.tables import OPTIMIZED, Columns, Figures, figures, optimized_row
from tilewright.report.words import loop_lines, quantity, summary
from tilewright.runtime.measure import Measurement
from tilewright.schedule.schedule import Level, Schedule
from tilewright.search.cpu.rank import rank
from tilewright.search.cpu.solver import solve
from tilewright.targets.plan import Candidate, Plan

pytestmark = pytest.mark.usefixtures('few_schedules')
MACHINE = known_machine('i9-10980xe')
DENSE = tw.conv2d(c=12, h=9, w=11, k=40, r=3, s=3, pad=1)
GROUPED = tw.conv2d(c=8, h=8, w=8, k=48, r=3, s=3, stride=2, groups=2, bias=True, activation='relu')
DEPTHWISE = tw.conv2d(c=6, h=8, w=8, k=6, r=3, s=3, pad=1, groups=6)
MATMUL = tw.matmul(m=20, n=40, k=24)
SPOKEN = re.compile(r'for each (?:block of \d+ )?.*?\(?(\w+)\)? of (\d+) \((\w+): (\d+) times')
WRITTEN = re.compile(r'for \(long (\w+)_(reg|l\d) = \w+; \w+ < \w+; \w+ \+= (\d+)\)')


@cache
def plan_of(group, threads=1):
    return tw.optimize(group, MACHINE, top=3, measure=False, threads=threads, algorithm='direct')


def plain_plan(group, machine, threads):
    """A plan without a search: bounds do not depend on the schedule."""
    schedule = general_schedule(group, machine.isa, threads, len(machine.caches))
    prediction = predict_general(group, schedule, machine)
    return Plan(group, machine, threads, (Candidate(schedule, prediction),))


def spoken(lines):
    return [(m[3], m[1], int(m[2]), int(m[4])) for m in map(SPOKEN.search, lines) if m]


def tiled_schedule(group, seed):
    """A random schedule whose loops are those of its levels, unlike a stencil's."""
    random = Random(seed)
    drawn = iter(lambda: random_schedule(group, 'avx2', random, levels=2), None)
    return next(s for s in drawn if s.schema not in ('stencil', 'pixels'))


@pytest.mark.parametrize('group', [DENSE, GROUPED, DEPTHWISE, MATMUL], ids=lambda g: g.label)
@pytest.mark.parametrize('seed', range(8))
def test_the_loops_in_words_are_those_of_the_generated_code(group, seed):
    schedule = tiled_schedule(group, seed)
    lines = loop_lines(group, schedule)
    source = generate(group, schedule).split('void tw_part(const tw_args *args, long part) {')[1]
    written = [(level, name, int(tile)) for name, level, tile in WRITTEN.findall(source)]
    # A loop that the source has and the words have not must be one that runs only once.
    largest = part_extents(group.main, schedule)
    expected = []
    for level, name, tile in written:
        if tile < largest[name]:
            expected.append((level, name, largest[name], -(-largest[name] // tile)))
            largest[name] = tile
    assert spoken(lines) == expected


@pytest.mark.parametrize('seed', range(8))
def test_the_copy_is_where_the_generated_code_packs(seed):
    schedule = tiled_schedule(DENSE, seed)
    lines = loop_lines(DENSE, schedule)
    said = [i for i, line in enumerate(lines) if line.strip().startswith('copy a tile of In')]
    source = generate(DENSE, schedule).split('void tw_part(')[-1]
    if not schedule.pack:
        assert said == []
        return
    before = source.split('pack_tile(')[0]
    assert len(spoken(lines[: said[0]])) == len(WRITTEN.findall(before))


def test_quantities_have_words_for_convolutions_only():
    assert quantity(DENSE, 'k', 8) == '8 output channels (k)'
    assert quantity(DENSE, 'h', 1) == '1 output row (h)'
    assert quantity(MATMUL, 'k', 8) == '8 of k'


def schedule_with(h):
    """A register tile of 16 k x 6 w, and h rows in L1."""
    order = tuple('nkhwcrs')
    reg = Level.of('reg', order, dict(zip(order, (1, 16, 1, 6, 1, 1, 1), strict=True)))
    l1 = Level.of('l1', order, dict(zip(order, (1, 16, h, 6, 12, 3, 3), strict=True)))
    return Schedule('outer', 'avx2', 'k', (reg, l1), (), 'l1')


def test_summary_names_cut_and_tiles():
    schedule = replace(schedule_with(4), parallel=(('k', 2),))
    # 40 output channels are 3 tiles of 16: one thread owns 16 of them, the other 24.
    assert summary(DENSE, schedule) == 'k/2 | l1 k16 h4 w6 | reg k16 w6'


def test_winograd_in_words():
    group = tw.conv2d(c=12, h=16, w=16, k=32, r=3, s=3, pad=1, activation='relu')
    order = ('n', 'k', 'ph', 'pw', 't', 'c')  # F(4 x 4, 3 x 3): 4 x 4 tiles of 36 points
    tiles = ((1, 8, 1, 1, 1, 1), (1, 16, 2, 4, 1, 12), (1, 16, 2, 4, 36, 12), (1, 32, 2, 4, 36, 12))
    levels = tuple(
        Level.of(name, order, dict(zip(order, sizes, strict=True)))
        for name, sizes in zip(('reg', 'l1', 'l2', 'l3'), tiles, strict=True)
    )
    schedule = Schedule('winograd', 'neon', 'k', levels, (), '', (('m', 4), ('run', 8)))
    # 16 x 16 x 9 products against 4 x 4 x 36: four times fewer
    assert loop_lines(group, schedule) == [
        'one thread does everything',
        'for each block of 2 rows of tiles (ph) of 4 (l3: 2 times):',
        '  transform tiles of 6 x 6 inputs, one for 4 x 4 outputs (4.00 times fewer products)',
        '  for each block of 16 output channels (k) of 32 (l2: 2 times):',
        '    for each point (t) of 36 (l1: 36 times):',
        '      for each block of 8 output channels (k) of 16 (reg: 2 times):',
        '        micro-kernels: at most 8 tiles x 8 output channels (k), loop over 12 input '
        'channels (c)',
        '    transform back and store the results through relu',
    ]
    assert summary(group, schedule).startswith('winograd m4 run8 | one thread | l3 ph2')
    assert 'void tw_part(' in generate(group, schedule)


@pytest.mark.parametrize('machine', ['i7-9700k', 'i9-10980xe'])
@pytest.mark.parametrize('threads', [1, 4])
@pytest.mark.parametrize('name', ['mopt/R9', 'mopt/Y0', 'mopt/M1'])
def test_the_largest_general_bound_is_the_one_that_plans_use(name, threads, machine):
    plan = plain_plan(tw.parse(name), known_machine(machine), threads)
    most = explain.bounds(plan)[0].time_ms
    assert most == pytest.approx(plan.bound_ms)
    assert most <= 1e3 * plan.best.prediction.seconds * (1 + 1e-9)


def test_arithmetic_bound_by_hand():
    plan = plain_plan(tw.parse('mopt/R9'), MACHINE, 18)
    # 14 * 14 * 256 * 256 * 9 multiply-adds at 18 cores x 192 GFLOP/s
    want_ms = 2 * 14 * 14 * 256 * 256 * 9 / (18 * 192e9) * 1e3
    found = {b.name: b.time_ms for b in explain.bounds(plan)}
    assert found['arithmetic at peak'] == pytest.approx(want_ms)


@pytest.mark.parametrize('group', [DENSE, DEPTHWISE, MATMUL], ids=lambda g: g.label)
def test_the_breakdown_adds_up(group):
    plan = plan_of(group, threads=2)
    total = sum(ms for _, ms in explain.breakdown(plan))
    assert total == pytest.approx(1e3 * plan.best.prediction.seconds)


def test_uses_name_every_boundary_and_the_work_around():
    plan = plan_of(DENSE)
    names = [use.name for use in explain.uses(plan.best.prediction, MACHINE)]
    assert names == [
        'compute', 'L1 -> registers', 'L2 -> L1', 'L3 -> L2', 'memory -> L3', 'copying inputs',
        'storing results', 'fork and join',
    ]  # fmt: skip


def prediction(compute=8.0, l1=1.0, pack=0.5, seconds=10.0):
    boundaries = tuple(
        Boundary(name, 1024.0 * size, 1e-3 * size)
        for name, size in (('reg', 2), ('l1', l1), ('l2', 1), ('l3', 1))
    )
    return Prediction(
        1e-3 * seconds, 1e-3 * compute, 1e-3 * pack, 0.0, 0.0, boundaries, bound_s=4e-3,
        flops_done=4e-3 * 192e9, moved=0.0,
    )  # fmt: skip


def two(best, other, measured=(None, None)):
    candidates = tuple(
        Candidate(schedule_with(h), p, m)
        for h, p, m in zip((4, 2), (best, other), measured, strict=True)
    )
    return Plan(DENSE, MACHINE, 1, candidates)


def test_the_runner_up_loses_where_its_resources_are_busier():
    plan = two(prediction(), prediction(compute=8.25, l1=3.0, seconds=11.0))
    second = explain.runner_up(plan)
    assert second is not None
    assert second.differences == ('l1 tile h=2 instead of 4',)
    assert second.losses == ('L2 -> L1 +2.000 ms (1 KiB -> 3 KiB)', 'compute +0.250 ms')
    text = explain.explain_plan(plan)
    assert 'predicted 11.000 ms (+10.0%)' in text
    assert 'It loses on L2 -> L1 +2.000 ms' in text


def test_a_runner_up_that_the_model_preferred():
    def timed(ms):
        return Measurement('x', samples_ms=(ms,))

    plan = two(prediction(), prediction(seconds=9.0), (timed(10.0), timed(12.5)))
    text = explain.explain_plan(plan)
    assert 'measured 12.500 ms (+25.0%)' in text
    assert 'The model preferred it; the measurement did not.' in text
    assert 'The measured time is 150.0% above the bound of 4.000 ms.' in text


def test_one_candidate_has_no_runner_up():
    plan = tw.optimize(DEPTHWISE, MACHINE, top=1, measure=False, threads=1)
    assert explain.runner_up(plan) is None
    assert 'Runner-up: none' in plan.explain()
    assert "solver's dual does not apply" in plan.explain()


@cache
def winograd_plan(threads):
    """The schedule that `explain mopt/R9` once gave a time below its own bound."""
    group = tw.parse('mopt/R9')
    candidates = [
        Candidate(s, predict_winograd(group, s, MACHINE))
        for s in (
            winograd_schedule(group, 'avx512', 5, 6, 4, 1, (1, 3, 3), parallel(threads)),
            winograd_schedule(group, 'avx512', 4, 6, 4, 1, (1, 1, 4), parallel(threads)),
        )
    ]
    direct = rank(group, MACHINE, threads, 1)[0]
    candidates.append(Candidate(direct.schedule, direct.prediction))
    return Plan(group, MACHINE, threads, tuple(candidates), direct.solver_bound_s, max_rel_err=1e-4)


def parallel(threads):
    return () if threads == 1 else (('k', threads),)


@pytest.mark.parametrize('threads', [1, 4])
def test_a_winograd_plan_is_explained_by_its_own_operations(threads):
    plan = winograd_plan(threads)
    found = plan.best.prediction
    peak = 1e9 * MACHINE.peak_gflops(threads)
    parts = dict(explain.breakdown(plan))
    # 14 x 14 outputs are 3 x 3 tiles of 5 x 5: 49 products for each, instead of 25 x 9
    assert found.flops_done == 2 * 49 * 9 * 256 * 256
    assert parts['arithmetic at peak'] == pytest.approx(1e3 * found.flops_done / peak)
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(1e3 * found.seconds)
    assert set(parts) >= {'transforming inputs', 'transforming results'}
    shares = [u.share for u in explain.uses(found, MACHINE) if u.note != 'part of compute']
    assert sum(shares) == pytest.approx(1)
    text = plan.explain()
    for absent in ('copying', 'storing results', 'overlap', "solver's dual"):
        assert absent not in text
    assert 'Times add up' in text
    assert 'GFLOP/s count the direct operations; Winograd and FFT perform fewer' in text


@pytest.mark.parametrize('threads', [1, 4])
def test_the_bounds_of_a_winograd_plan(threads):
    plan = winograd_plan(threads)
    found = explain.bounds(plan)
    assert all('Winograd' in b.holds_for for b in found)
    assert found[0].time_ms == pytest.approx(plan.algorithm_bound_ms)
    assert found[0].time_ms <= 1e3 * plan.best.prediction.seconds * (1 + 1e-9)
    assert [b.time_ms for b in explain.other_bounds(plan)] == [plan.bound_ms]
    direct = plain_plan(plan.group, MACHINE, threads)
    assert plan.bound_ms == direct.bound_ms == direct.algorithm_bound_ms
    assert plan.algorithm_bound_ms < plan.bound_ms
    shown = figures(plan)
    assert shown.percent_of_bound <= 100 + 1e-9
    assert plan.to_json()['algorithm_bound_ms'] == shown.algorithm_bound_ms
    assert 'Binding limit: ' in plan.explain()
    if threads == 1:  # fewer operations than the definition has
        assert shown.percent_of_peak > 100


def test_the_error_that_winograd_is_expected_to_have():
    plan = winograd_plan(1)
    predicted = predicted_error(plan.group, 5)
    assert explain.explanation(plan)['error'] == {'predicted': predicted, 'budget': 1e-4}
    line = f'Expected error: {predicted:.1e} of the largest output; the budget is 1.0e-04.'
    assert line in plan.explain()
    unknown = replace(plan, max_rel_err=None)
    assert f'Expected error: {predicted:.1e} of the largest output.' in unknown.explain()
    assert 'Expected error' not in plan_of(GROUPED).explain()


def test_two_algorithms_are_compared_by_parts_that_mean_the_same():
    plan = winograd_plan(1)
    best, _, direct = plan.candidates
    second = explain.runner_up(replace(plan, candidates=(best, direct)))
    assert second is not None
    assert second.differences[0] == 'outer schema instead of winograd'
    assert second.losses[0].startswith('arithmetic at peak +')
    other_way = explain.runner_up(replace(plan, candidates=(direct, best)))
    assert other_way is not None
    assert any(loss.startswith('transforming inputs +') for loss in other_way.losses)


def test_the_dual_is_that_of_all_solves_whatever_is_kept():
    group = tw.parse('mopt/R9')
    few, many = (rank(group, MACHINE, 1, top) for top in (1, 8))
    assert {c.solver_bound_s for c in (*few, *many)} == {few[0].solver_bound_s}
    assert few[0].solver_bound_s > 0


def test_the_dual_is_the_least_of_all_solves(monkeypatch):
    duals = []

    def recorded(problem, **options):
        solution = solve(problem, **options)
        duals.append(solution.bound)
        return solution

    monkeypatch.setattr('tilewright.search.cpu.rank_outer.solve', recorded)
    monkeypatch.setattr('tilewright.search.cpu.rank_outer.SHAPES', 3)
    ranked = rank(DENSE, MACHINE, 1, 1)
    assert len(duals) > 1
    assert ranked[0].solver_bound_s == min(duals)


def test_the_dual_of_moved_data_may_exceed_the_prediction():
    plan = replace(plan_of(DENSE), solver_bound_s=1.0)
    assert 1e3 * plan.best.prediction.seconds < 1000
    assert max(b.time_ms for b in explain.bounds(plan)) < 1000
    text = plan.explain()
    lower, _, rest = text.partition('Bounds on something else')
    assert "solver's dual" not in lower
    assert "solver's dual" in rest
    assert '1000.000 ms' in rest


def test_a_measured_time_below_the_bound_is_called_so():
    plan = two(prediction(), prediction(), (Measurement('x', samples_ms=(3.0,)), None))
    assert 'The measured time is 25.0% below the bound of 4.000 ms.' in plan.explain()


@pytest.mark.parametrize('group', [DENSE, GROUPED, MATMUL], ids=lambda g: g.label)
def test_the_text_is_complete_and_always_the_same(group):
    plan = plan_of(group, threads=2)
    text = plan.explain()
    for part in ('Schedule ', 'Predicted time', 'Binding limit: ', 'Runner-up', 'Lower bounds',
                 "solver's dual", 'above the bound'):  # fmt: skip
        assert part in text
    again = tw.optimize(group, MACHINE, top=3, measure=False, threads=2, algorithm='direct')
    assert text == again.explain()
    assert all(line == line.rstrip() for line in text.splitlines())


def test_explanation_for_json_has_units_in_its_keys():
    data = explain.explanation(plan_of(DENSE))
    assert set(data) == {
        'loops', 'uses', 'limit', 'runner_up', 'bounds', 'other_bounds', 'breakdown_ms', 'error',
    }  # fmt: skip
    assert data['error'] is None
    assert set(data['uses'][0]) == {'name', 'bytes', 'time_ms', 'share', 'note'}
    assert set(data['bounds'][0]) == {'name', 'time_ms', 'holds_for'}


def test_figures_by_hand():
    shown = Figures(2_000_000_000, 8.0, 10.0, 5.0, 4.0, 400.0, 'ok')
    assert shown.gflops == pytest.approx(200.0)
    assert shown.percent_of_peak == pytest.approx(50.0)
    assert shown.percent_of_bound == pytest.approx(40.0)
    unmeasured = Figures(2_000_000_000, 8.0, None, 5.0, 4.0, 400.0, 'not measured')
    assert unmeasured.time_ms == 8.0
    assert unmeasured.to_json()['gflops_per_s'] == pytest.approx(250.0)


def test_rows_stay_under_their_headings():
    plan = plan_of(DENSE)
    columns = Columns(['short', 'a much longer name'], OPTIMIZED)
    note, head = columns.head().splitlines()
    assert note == 'GFLOP/s count the direct operations; Winograd and FFT perform fewer'
    assert '\n' not in Columns(['short'], ('predicted',)).head()
    row = optimized_row(columns, 'short', plan)
    for heading in OPTIMIZED:
        end = head.index(heading) + len(heading)
        assert row[end - 1] != ' '
        assert row[end] == ' '
    assert f'{figures(plan).predicted_ms:.3f}' in row
