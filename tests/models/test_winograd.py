"""Winograd as data: matrices, lowering, error model, time model, ranking. Nothing is compiled."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from winograd_stages import lower, matrices

from tilewright.errors import InputError, SpecError
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.schemas.winograd.linear import linear, operations
from tilewright.kernels.cpu.schemas.winograd.plan import tile
from tilewright.kernels.cpu.schemas.winograd.space import winograd_schedule
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.model.cpu.outer_time import step_cycles
from tilewright.model.cpu.winograd_time import (
    ACCUMULATOR_CYCLES,
    CALL_CYCLES,
    cycles,
    lower_bound_winograd,
    needs,
    predict_winograd,
    seconds,
    transform_time,
    work_of,
)
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.ops.winograd import applies, geometry, matmul_stage
from tilewright.ops.winograd_error import (
    VARIANCE,
    direct_error,
    predicted_error,
    transform_error,
)
from tilewright.ops.winograd_matrices import check, transform
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu import rank_winograd as rank_winograd_module
from tilewright.search.cpu.rank_winograd import rank_winograd, tiles_within


def whole(rows: tuple) -> list[list[float]]:
    return [[float(x) for x in row] for row in rows]


def test_the_matrices_of_f23_are_the_known_ones():
    f = transform(2, 3)  # Lavin & Gray 2016, Sec. 4.1, up to the signs of rows
    assert whole(f.at) == [[1, 1, 1, 0], [0, 1, -1, 1]]
    assert whole(f.bt) == [[-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]]
    assert whole(f.g) == [[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]


def test_the_input_matrix_of_f43_is_the_known_one():
    f = transform(4, 3)
    assert whole(f.bt)[0] == [4, 0, -5, 0, 1, 0]
    assert whole(f.bt)[1] == [0, -4, -4, 1, 1, 0]
    assert whole(f.bt)[5] == [0, 4, 0, -5, 0, 1]
    assert whole(f.at)[3] == [0, 1, -1, 8, -8, 1]
    assert [str(x) for x in f.g[1]] == ['-1/6', '-1/6', '-1/6']


@pytest.mark.parametrize('r', [1, 2, 3, 4, 5])
@pytest.mark.parametrize('m', [1, 2, 3, 4, 5, 6, 7])
def test_the_matrices_compute_a_filter(m, r):
    f = transform(m, r)
    d, g = np.arange(1.0, m + r) ** 2, np.arange(1.0, r + 1)
    y = f.array('at') @ ((f.array('g') @ g) * (f.array('bt') @ d))
    assert y == pytest.approx(np.correlate(d, g, 'valid'), rel=1e-9)


@pytest.mark.parametrize('stride', [2, 3, 4])
@pytest.mark.parametrize('r', [1, 2, 3, 5, 7])
@pytest.mark.parametrize('m', [1, 2, 4, 7])
def test_the_matrices_compute_a_strided_filter(m, r, stride):
    f = transform(m, r, stride=stride)
    assert f.length == stride * (m - 1) + r
    d, g = np.arange(1.0, f.length + 1) ** 2, np.arange(1.0, r + 1)
    y = f.array('at') @ ((f.array('g') @ g) * (f.array('bt') @ d))
    assert y == pytest.approx(np.correlate(d, g, 'valid')[::stride], rel=1e-9)


def test_strided_filters_are_sums_of_filters_of_stride_one():
    f = transform(4, 3, stride=2)
    assert (f.t, f.length, f.step, f.kinds, f.name) == (9, 9, 8, 6, 'F(4,3)/2')
    even, odd = f.parts
    assert (even.first, even.f.t, even.shared, even.kinds) == (0, 5, 1, 5)  # taps 0 and 2
    assert (odd.first, odd.f.t, odd.shared, odd.kinds) == (5, 4, 4, 1)  # tap 1, one weight
    assert len({f.g[t] for t in range(5, 9)}) == 1
    assert len({f.g[t] for t in range(9)}) == f.kinds
    seven = transform(2, 7, stride=2)  # F(2, 4) and F(2, 3)
    assert [part.f.t for part in seven.parts] == [5, 4]
    assert [part.shared for part in seven.parts] == [1, 1]


def test_one_output_or_one_tap_needs_no_transform():
    assert (
        whole(transform(1, 3).bt) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]] == whole(transform(1, 3).g)
    )
    assert whole(transform(3, 1).at) == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert transform(3, 1).kinds == 1
    assert transform(1, 3).kinds == 3


def test_the_bilinear_identity_is_checked():
    f = transform(2, 3)
    wrong = replace(f, at=((*f.at[0][:-1], Fraction(1)), f.at[1]))
    with pytest.raises(SpecError, match='must give'):
        check(wrong)
    with pytest.raises(SpecError, match='distinct'):
        transform(2, 3, (Fraction(1), Fraction(1), Fraction(0)))
    with pytest.raises(SpecError, match='at least 1'):
        transform(0, 3)


@pytest.mark.parametrize('infinity', [True, False])
def test_any_points_will_do(infinity):
    points = tuple(Fraction(n, 3) for n in range(6 - infinity))
    check(transform(4, 3, points, infinity))


CONVOLUTIONS = [
    {'r': 3, 's': 3, 'pad': 1},
    {'r': 3, 's': 3, 'pad': (1, 0, 2, 1), 'groups': 2, 'bias': True, 'activation': 'relu'},
    {'r': 1, 's': 3},
    {'r': 3, 's': 1, 'pad': (2, 1), 'bias': True},
    {'r': 5, 's': 2, 'pad': 2},
    {'r': 3, 's': 3, 'pad': 1, 'stride': 2},
    {'r': 7, 's': 3, 'pad': 3, 'stride': (2, 3), 'groups': 2, 'bias': True},
]


@pytest.mark.parametrize('conv', CONVOLUTIONS)
@pytest.mark.parametrize('m', [2, 4, 5, (3, 1), (2, 4)])
def test_the_lowering_computes_the_convolution(conv, m):
    group = conv2d(n=2, c=4, h=9, w=11, k=6, **conv)
    rng = np.random.default_rng(5)
    arrays = {
        t.name: rng.standard_normal(t.shape)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }
    low = lower(group, m)
    got = reference(low, arrays | matrices(group, m))
    np.testing.assert_allclose(got, reference(group, arrays), atol=1e-10)
    assert Group.from_json(low.to_json()) == low


def test_the_lowering_counts_the_work():
    group = conv2d(c=8, h=12, w=12, k=16, r=3, s=3, pad=1)
    low = lower(group, 4)
    flops = {stage.name: stage.flops for stage in low.stages}
    assert flops['matmul'] == 2 * 36 * 9 * 8 * 16  # 36 points, 3 x 3 tiles
    assert flops['input_columns'] == 2 * 6 * (36 * 8 * 9)
    assert flops['output_columns'] == 2 * 6 * (16 * 16 * 9)
    assert group.flops / flops['matmul'] == 4  # 16 * 9 products became 36
    assert geometry(group, 4).saving == 4


def test_where_winograd_does_not_apply_it_says_why():
    dense = {'c': 4, 'h': 9, 'w': 9, 'k': 4, 'r': 3, 's': 3}
    assert applies(conv2d(**dense), 4) == ''
    assert applies(conv2d(**dense, stride=2), 4) == applies(conv2d(**dense), (1, 4)) == ''
    assert 'dilated' in applies(conv2d(**dense, dilation=2), 4)
    assert 'dense' in applies(conv2d(**dense, groups=4), 4)
    assert '1x1' in applies(conv2d(**(dense | {'r': 1, 's': 1})), 4)
    assert 'dense' in applies(matmul(m=4, n=4, k=4), 4)
    assert 'nothing' in applies(conv2d(**dense), 1)
    assert 'nothing' in applies(conv2d(**dense), (0, 4))
    assert 'points' in applies(conv2d(**dense), 12)
    with pytest.raises(SpecError, match='use the direct algorithm'):
        geometry(conv2d(**dense, dilation=2), 4)


@pytest.mark.parametrize('name', ['at', 'bt'])
@pytest.mark.parametrize('m', [2, 3, 4, 5, 6, 7])
def test_shared_sums_compute_the_matrix(m, name):
    matrix = getattr(transform(m, 3), name)
    inputs = [f'x{i}' for i in range(len(matrix[0]))]
    outputs = [f'y{i}' for i in range(len(matrix))]
    rng = np.random.default_rng(m)
    values = {x: float(v) for x, v in zip(inputs, rng.integers(-8, 9, len(inputs)), strict=True)}
    for line in linear(matrix, inputs, outputs, 'float', ''):
        target, expression = line.removeprefix('const float ').rstrip(';').split(' = ')
        values[target] = eval(expression.replace('f', ''), {}, values)
    want = np.array(whole(matrix)) @ np.array([values[x] for x in inputs])
    assert [values[y] for y in outputs] == pytest.approx(want.tolist())


def test_symmetric_points_halve_the_work():
    # F(4, 3): 2 + 2 for the rows of 0 and infinity, 4 for each pair; A^T has 4 + 2 + 1 + 1 + 2.
    assert operations(transform(4, 3).bt) == 12
    assert operations(transform(4, 3).at) == 10


def winograd_fp32(x: np.ndarray, w: np.ndarray, m: int) -> np.ndarray:
    """F(m, 3) in float32 throughout but for the weights; x is c x h x w, valid convolution."""
    f = transform(m, 3)
    at, bt = f.array('at').astype(np.float32), f.array('bt').astype(np.float32)
    u = np.einsum('ir,kcrs,js->ijkc', f.array('g'), w, f.array('g')).astype(np.float32)
    size = x.shape[1] - 2
    out = np.empty((w.shape[0], size, size), np.float32)
    for top in range(0, size, m):
        for left in range(0, size, m):
            v = bt @ x[:, top : top + m + 2, left : left + m + 2] @ bt.T
            total = np.zeros((m + 2, m + 2, w.shape[0]), np.float32)
            for c in range(x.shape[0]):
                total += u[:, :, :, c] * v[c][:, :, None]
            out[:, top : top + m, left : left + m] = at @ total.transpose(2, 0, 1) @ at.T
    return out


@pytest.mark.parametrize('m', [2, 3, 4, 5, 6, 7])
@pytest.mark.parametrize('kind', ['random', 'positive'])
def test_the_error_model_is_near_the_error(m, kind):
    rng = np.random.default_rng(10 * m)
    tiles = 24 // m
    size = tiles * m + 2
    x = rng.standard_normal((48, size, size)).astype(np.float32)
    if kind == 'positive':  # as behind a ReLU, smooth along the image
        x = np.maximum(x + np.roll(x, 1, 1) + np.roll(x, 1, 2) + 0.5, 0).astype(np.float32)
    w = rng.standard_normal((16, 48, 3, 3)).astype(np.float32)
    group = conv2d(c=48, h=size, w=size, k=16, r=3, s=3)
    want = reference(group, {'In': x[None], 'Ker': w})[0]
    error = np.abs(winograd_fp32(x, w, m) - want).max() / np.abs(want).max()
    predicted = predicted_error(group, m)
    assert predicted / 6 < error < 3 * predicted


def test_strided_and_narrow_tiles_are_more_accurate():
    dense = {'c': 64, 'h': 57, 'w': 57, 'k': 8, 'r': 3, 's': 3}
    plain, strided = conv2d(**dense), conv2d(**dense, stride=2)
    assert predicted_error(strided, 4) < predicted_error(plain, 4) / 2
    assert (
        predicted_error(plain, (4, 2)) < predicted_error(plain, (4, 3)) < predicted_error(plain, 4)
    )
    # F(2, 3) at stride 2 interpolates at 0, 1 and infinity or not at all: close to the direct sum.
    assert predicted_error(strided, 2) < 2 * direct_error(64, 3, 3)


def test_the_error_of_a_trivial_transform_is_that_of_the_sum():
    f = transform(1, 1)
    # F(1, 1): weights rounded once, C products summed in order.
    assert transform_error(f, f, 9) == pytest.approx(np.sqrt(VARIANCE * (1 + (9 + 1) / 2)))
    assert direct_error(9, 1, 1) == pytest.approx(np.sqrt(VARIANCE * (9 + 1) / 2))


def test_errors_grow_with_the_tile_and_the_channels():
    tiles = {m: transform(m, 3) for m in (2, 4, 7)}
    errors = [transform_error(f, f, 64) for f in tiles.values()]
    assert errors == sorted(errors)
    assert errors[-1] < 1e-4
    assert errors[1] < transform_error(tiles[4], tiles[4], 512)
    assert predicted_error(conv2d(c=4, h=9, w=9, k=4, r=3, s=3, dilation=2), 4) == float('inf')


GROUP = conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1)
MACHINE = known_machine('i7-9700k')


def test_products_are_priced_run_by_run():
    schedule = winograd_schedule(GROUP, 'avx2', 4, 6, 2, 1, (1, 1, 14))
    done = cycles(work_of(GROUP, schedule), MACHINE, 1)
    isa = ISAS['avx2']
    # 14 rows of 14 tiles in runs of 6, 4 and 4; 4 panels of 16; 36 points.
    runs = sum(
        64 * step_cycles(isa, run, run, 2) + CALL_CYCLES + ACCUMULATOR_CYCLES * 2 * run
        for run in (6, 4, 4)
    )
    assert done.multiply == pytest.approx(14 * 4 * 36 * runs)


def test_a_cut_over_k_repeats_the_input_transform_and_one_over_tiles_does_not():
    def predicted(parallel):
        schedule = winograd_schedule(GROUP, 'avx2', 4, 6, 2, 1, (1, 1, 14), parallel)
        return predict_winograd(GROUP, schedule, MACHINE)

    one, rows, columns = predicted(()), predicted((('ph', 2),)), predicted((('k', 2),))
    cycle = MACHINE.peak_gflops(1) / (MACHINE.peak_gflops(2) / 2)
    assert rows.pack_s == pytest.approx(one.pack_s / 2 * cycle)
    assert columns.pack_s == pytest.approx(one.pack_s * cycle)
    assert columns.compute_s == pytest.approx(rows.compute_s)


def test_the_bound_is_that_of_the_algorithm():
    bound = lower_bound_winograd(GROUP, 4, MACHINE, 1)
    assert bound == pytest.approx(matmul_stage(GROUP, 4).flops / (1e9 * MACHINE.peak_one_gflops))
    for candidate in rank_winograd(GROUP, MACHINE, 1, 5):
        assert candidate.prediction.seconds > candidate.prediction.bound_s


def test_a_shape_that_cannot_be_the_best_is_not_priced(monkeypatch):
    """Its bound is above the best time so far by more than the model may be wrong."""
    priced = []
    price = rank_winograd_module._price

    def counted(group, machine, isa, m, threads, model):
        priced.append(m)
        return price(group, machine, isa, m, threads, model)

    monkeypatch.setattr(rank_winograd_module, '_price', counted)
    monkeypatch.setattr(rank_winograd_module, 'HOPE', 0.0)
    assert len(tiles_within(GROUP, 1e-4)) > 1
    assert rank_winograd(GROUP, MACHINE, 1, 1)
    assert len(priced) == 1


WEIGHTS = conv2d(c=512, h=7, w=7, k=512, r=3, s=3, pad=1)  # transformed: 4 to 9 times 9.4 MB


@pytest.mark.parametrize('threads', [1, 2])
def test_shapes_with_few_weights_are_priced_where_weights_are_what_takes_time(threads, monkeypatch):
    """The first few shapes have the one that is best of all."""
    few = rank_winograd(WEIGHTS, MACHINE, threads, 1)[0]
    monkeypatch.setattr(rank_winograd_module, 'SHAPES', 100)
    every = rank_winograd(WEIGHTS, MACHINE, threads, 1)[0]
    assert few.schedule == every.schedule


# Memory that is too slow for micro-kernels to hide its transfers.
SLOW = replace(
    MACHINE,
    bandwidth_one_gbps=(*MACHINE.bandwidth_one_gbps[:-1], 0.2),
    bandwidth_all_gbps=(*MACHINE.bandwidth_all_gbps[:-1], 0.2),
)


@pytest.mark.parametrize('threads', [1, 4])
@pytest.mark.parametrize('m', [2, 4, 6, 7])
def test_traffic_that_is_hidden_still_takes_its_time(m, threads):
    parallel = () if threads == 1 else (('k', threads),)
    schedule = winograd_schedule(WEIGHTS, 'avx2', m, 4, 2, 1, (1, 1, 1), parallel)
    shape = geometry(WEIGHTS, m)
    moved = 4 * (2 * 512 * 7 * 7 + shape.t * 512 * 512)
    for machine in (MACHINE, SLOW):
        found = predict_winograd(WEIGHTS, schedule, machine)
        assert found.moved == moved
        assert found.bound_s == lower_bound_winograd(WEIGHTS, m, machine, threads)
        assert found.seconds >= found.bound_s
        parts = found.compute_s + found.pack_s + found.store_s + found.fork_s
        exposed = sum(b.seconds for b in found.boundaries[1:])
        assert parts + exposed == pytest.approx(found.seconds)
    if m > 2:  # with one block of tiles the weights are read once, and products wait for them
        once = winograd_schedule(WEIGHTS, 'avx2', m, 4, 2, 1, (1, 2, 2), parallel)
        found = predict_winograd(WEIGHTS, once, SLOW)
        assert 1 < found.seconds / (4 * shape.t * 512 * 512 / 0.2e9) < 1.05


IMAGE = conv2d(c=4, h=600, w=600, k=16, r=3, s=3, pad=1)  # 29 MB of image and result


def test_the_image_is_hidden_but_takes_its_time():
    found = predict_winograd(IMAGE, winograd_schedule(IMAGE, 'avx2', 4, 6, 1, 1, (1, 1, 50)), SLOW)
    outside = 4 * (20 * 600 * 600 + 36 * 4 * 16) - SLOW.caches[-1].bytes
    assert found.seconds == pytest.approx(outside / 0.2e9)
    assert found.limit == 'l3'


def test_ranking_goes_on_where_the_bound_makes_times_equal():
    ranked = rank_winograd(IMAGE, SLOW, 1, 5)
    times = [c.prediction.seconds for c in ranked]
    assert times == sorted(times)
    assert times[0] == pytest.approx(ranked[0].prediction.bound_s)
    same = [c for c in ranked if c.prediction.seconds == times[0]]
    assert len(same) > 1
    works = [work_of(IMAGE, c.schedule) for c in same]
    sums = [seconds(cycles(w, SLOW, 1), w.isa, SLOW, 1).total for w in works]
    assert sums == sorted(sums)


STRIDED = conv2d(c=64, h=56, w=56, k=128, r=3, s=3, pad=1, stride=2)


def test_weights_that_are_shared_are_moved_once():
    shape = geometry(STRIDED, 7)
    assert (shape.t, shape.weights, shape.name) == (225, 81, 'F(7,3)/2')
    flops, moved = needs(STRIDED, 7)
    assert flops == 2 * 225 * 16 * 64 * 128  # 4 x 4 tiles of 7 x 7 outputs
    assert moved == 4 * (64 * 56 * 56 + 128 * 28 * 28 + 81 * 64 * 128)


def test_a_block_of_k_saves_reads_of_the_inputs():
    def inputs(panels):
        schedule = winograd_schedule(GROUP, 'avx2', 7, 6, 2, panels, (1, 8, 8))
        return [w.inputs for w in cycles(work_of(GROUP, schedule), MACHINE, 1).words]

    one, four = inputs(1), inputs(4)
    v = 81 * 64 * 64
    assert one[0] == v * (1 + 4)  # written once, read for each of four panels of 16
    assert four[0] == v * (1 + 1)
    assert one[1] == v * (1 + 4)  # 1.3 MB and as many weights: beyond the second cache too
    assert four[1] == v * (1 + 1)


def test_few_tiles_to_a_weight_wait_for_it():
    # One tile: a weight is used once, and the products are faster than its way from memory.
    def exposed(machine):
        schedule = winograd_schedule(WEIGHTS, 'avx2', 7, 4, 2, 1, (1, 1, 1))
        work = work_of(WEIGHTS, schedule)
        return seconds(cycles(work, machine, 1), work.isa, machine, 1)

    slow = exposed(SLOW)
    words = 81 * 512 * 512
    assert slow.multiply + slow.exposed[-1] == pytest.approx(4 * words / 0.2e9)
    assert exposed(MACHINE).exposed[-1] < slow.exposed[-1]


def test_rectangular_tiles_read_back():
    schedule = winograd_schedule(GROUP, 'neon', (4, 2), 14, 2, 1, (1, 2, 14))
    assert dict(schedule.options) == {'m': 4, 'mw': 2, 'run': 14}
    assert tile(schedule) == (4, 2)
    assert tile(winograd_schedule(GROUP, 'neon', 4, 14, 2, 1, (1, 2, 14))) == (4, 4)
    assert work_of(GROUP, schedule).shape.name == 'F(4,3)xF(2,3)'


def test_strided_layers_are_ranked():
    ranked = rank_winograd(STRIDED, MACHINE, 2, 5)
    assert len(ranked) == 5
    for candidate in ranked:
        assert candidate.prediction.flops_done < STRIDED.flops
        assert 'tw_part' in generate(STRIDED, candidate.schedule)
    # A stride as long as the filter leaves nothing to save.
    assert rank_winograd(conv2d(c=8, h=12, w=12, k=8, r=2, s=2, stride=2), MACHINE, 1, 5) == ()


def test_schedules_without_options_still_read():
    schedule = winograd_schedule(GROUP, 'neon', 4, 14, 2, 1, (1, 2, 14))
    assert Schedule.from_json(schedule.to_json()) == schedule
    data = {k: v for k, v in schedule.to_json().items() if k != 'options'}
    assert Schedule.from_json(data).options == ()
    assert 'options' not in Schedule.from_json(data).to_json()


@pytest.mark.parametrize('threads', [1, 2, 8])
def test_ranked_schedules_are_legal_distinct_and_in_order(threads):
    ranked = rank_winograd(GROUP, MACHINE, threads, 5)
    assert ranked == rank_winograd(GROUP, MACHINE, threads, 5)
    assert len({c.schedule.digest for c in ranked}) == 5
    times = [c.prediction.seconds for c in ranked]
    assert times == sorted(times)
    for candidate in ranked:
        assert candidate.schedule.threads == threads
        assert 'tw_part' in generate(GROUP, candidate.schedule)


def test_the_error_limit_chooses_the_tile():
    assert {m for m in tiles_within(GROUP, 1e-6) if m[0] == m[1]} == {(2, 2), (3, 3)}
    assert (1, 2) in tiles_within(GROUP, 1e-6)
    assert (1, 1) not in tiles_within(GROUP, 1e-4)
    assert tiles_within(GROUP, 1e-9) == ()
    flat = conv2d(c=64, h=56, w=56, k=64, r=1, s=3)
    assert {m[0] for m in tiles_within(flat, 1e-4)} == {1}
    for candidate in rank_winograd(GROUP, MACHINE, 1, 5, max_rel_err=3e-6):
        assert predicted_error(GROUP, tile(candidate.schedule)) <= 3e-6
    assert rank_winograd(GROUP, MACHINE, 1, 5, max_rel_err=1e-9) == ()
    dilated = conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1, dilation=2)
    assert rank_winograd(dilated, MACHINE, 1, 5) == ()
    with pytest.raises(InputError, match='at least one'):
        rank_winograd(GROUP, MACHINE, 1, 0)


def test_more_threads_than_tiles_use_what_there_is():
    tiny = conv2d(c=3, h=4, w=4, k=2, r=3, s=3, pad=1)
    for candidate in rank_winograd(tiny, MACHINE, 7, 3):
        assert candidate.schedule.threads <= 7
        assert 'tw_part' in generate(tiny, candidate.schedule)


def test_a_machine_says_what_its_transforms_cost():
    """Products and traffic stay as they are; both transforms take as many times as long."""
    dear = replace(MACHINE, constants=replace(MACHINE.time_constants, transform=2.0))
    schedule = rank_winograd(GROUP, MACHINE, 1, 1)[0].schedule
    once, twice = (predict_winograd(GROUP, schedule, m) for m in (MACHINE, dear))
    assert twice.compute_s == once.compute_s
    assert twice.pack_s == pytest.approx(2 * once.pack_s)
    assert twice.store_s == pytest.approx(2 * once.store_s)
    assert transform_time(GROUP, (4, 4), ISAS['avx2'], dear, 1) == pytest.approx(
        2 * transform_time(GROUP, (4, 4), ISAS['avx2'], MACHINE, 1)
    )
