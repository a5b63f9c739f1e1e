"""The stencil model against figures counted by hand, and the choice that follows from it."""

from __future__ import annotations

import pytest

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.stencil.plan import StencilPlan, plan_stencil
from tilewright.kernels.cpu.schemas.stencil.space import stencil_schedule
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.model.cpu.prediction import lower_bound
from tilewright.model.cpu.stencil_time import (
    Work,
    predict_stencil,
    rows_apart,
    spilled,
    step_cycles,
    tile_work,
    traffic,
)
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.report.words import loop_lines
from tilewright.search.cpu.choose import choose
from tilewright.search.cpu.rank import rank_schema

MACHINE = known_machine('i7-9700k')


def depthwise(channels: int, size: int, **more) -> Group:
    sizes = {'h': size, 'w': size, 'r': 3, 's': 3, 'pad': 1, 'groups': channels} | more
    return conv2d(c=channels, k=channels, **sizes)


def rank_stencil(group, machine, threads, top):
    return rank_schema(SCHEMAS['stencil'], group, machine, threads, top, 1e-4)


def plan(group: Group, isa: str, lanes: int, rows: int, vectors: int) -> StencilPlan:
    return plan_stencil(group, stencil_schedule(group, isa, lanes, rows, vectors))


def test_a_tile_inside_the_image_counts_as_by_hand():
    made = plan(depthwise(4, 64), 'neon', 4, 4, 4)
    rows = next(r for r in made.rows if not r.fixed)
    strip = next(s for s in made.strips if not s.fixed)
    work = tile_work(made.shape, ISAS['neon'], rows, strip)
    # 4 x 4 vectors, nine taps; six input rows, three shifts of four vectors each.
    assert (work.fmas, work.loads, work.shuffles) == (144, 72, 0)
    assert (work.accumulators, work.streams) == (16, 10)
    assert step_cycles(work, ISAS['neon']) >= 144 / 2


def test_padding_costs_shifts_and_saves_rows():
    made = plan(depthwise(4, 8), 'neon', 4, 8, 2)
    (rows,), (strip,) = made.rows, made.strips
    work = tile_work(made.shape, ISAS['neon'], rows, strip)
    # Eight input rows; 8 * 3 - 2 pairs of output row and tap; one shift at either edge.
    assert (work.fmas, work.shuffles) == (22 * 3 * 2, 8 * 2)


def test_a_stride_of_two_shares_its_loads():
    made = plan(depthwise(4, 64, stride=2), 'neon', 4, 2, 2)
    strip = next(s for s in made.strips if not s.fixed)
    rows = next(r for r in made.rows if not r.fixed)
    work = tile_work(made.shape, ISAS['neon'], rows, strip)
    # A row: even and odd columns of 2 x 8 inputs from four loads, the third tap from four more.
    assert work.loads == 5 * (4 + 4)
    assert work.shuffles == 5 * 3 * 2


def test_small_tiles_are_computed_side_by_side_unless_sums_go_on():
    one = Work(fmas=9, loads=9, shuffles=0, accumulators=1, streams=4)
    alone, many = (step_cycles(one, ISAS['neon'], steps) for steps in (2, 1))
    assert alone - many == pytest.approx(9 * 2 - 9 / 2)  # latency, or the units
    tall = Work(fmas=144, loads=72, shuffles=0, accumulators=16, streams=10)
    assert step_cycles(tall, ISAS['neon'], 1) == step_cycles(tall, ISAS['neon'], 2)


@pytest.mark.parametrize(('rows', 'vectors', 'without'), [(4, 4, 0), (7, 4, 1), (8, 5, 13)])
def test_accumulators_beyond_the_registers_are_counted(rows, vectors, without):
    made = plan(depthwise(4, 64), 'neon', 4, rows, vectors)
    tall = max(made.rows, key=lambda tile: tile.count)
    wide = max(made.strips, key=lambda strip: len(strip.starts))
    work = tile_work(made.shape, ISAS['neon'], tall, wide)
    # Three registers of weights, two that vectors are loaded to, 32 in all.
    assert spilled(work, made.shape, ISAS['neon']) == without


@pytest.mark.parametrize(
    ('more', 'vectors', 'between'),
    [({}, 4, 56 - 18), ({'stride': 2}, 5, 56 - 41), ({'dilation': 2, 'pad': 2}, 4, 56 - 20)],
)
def test_rows_of_wide_tiles_lie_close_together(more, vectors, between):
    made = plan(depthwise(4, 56, **more), 'neon', 4, 2, vectors)
    assert rows_apart(made) == 4 * between


def test_traffic_is_counted_beyond_the_cache_that_holds_it():
    group = depthwise(64, 64)
    made = plan(group, 'avx2', 8, 4, 2)
    words = traffic(made, MACHINE, part_extents(group.main, made.schedule))
    inputs = results = 64 * 64 * 64
    assert words[1] == pytest.approx(inputs + results + 64 * 9, rel=0.01)
    assert words[-1] == 0  # two megabytes stay in the last cache


def test_the_prediction_adds_up_and_respects_the_bound():
    group = depthwise(64, 28)
    schedule = stencil_schedule(group, 'avx2', 8, 4, 2, (('k', 2),))
    found = predict_stencil(group, schedule, MACHINE)
    around = found.pack_s + found.store_s + found.fork_s
    traffic_s = sum(b.seconds for b in found.boundaries[1:])
    assert found.seconds == pytest.approx(found.compute_s + around + traffic_s)
    assert found.bound_s == lower_bound(group, MACHINE, 2) <= found.seconds


def test_more_channels_take_longer():
    times = [
        predict_stencil(g, stencil_schedule(g, 'avx2', 8, 4, 2), MACHINE).seconds
        for g in (depthwise(8, 28), depthwise(16, 28), depthwise(16, 56))
    ]
    assert times == sorted(times)


def test_ranking_is_ordered_distinct_and_deterministic():
    group = depthwise(32, 28)
    found = rank_stencil(group, MACHINE, 2, 5)
    times = [c.prediction.seconds for c in found]
    assert times == sorted(times)
    assert len({c.schedule.digest for c in found}) == 5
    assert found == rank_stencil(group, MACHINE, 2, 5)
    assert all(c.schedule.threads == 2 for c in found)


def test_narrow_images_use_narrow_vectors():
    best = rank_stencil(depthwise(64, 7), MACHINE, 1, 1)[0]
    assert dict(best.schedule.options)['lanes'] == 4


def test_it_is_not_offered_where_it_does_not_apply():
    assert rank_stencil(matmul(m=8, n=8, k=8), MACHINE, 1, 3) == ()


@pytest.mark.usefixtures('few_schedules')
@pytest.mark.parametrize('algorithm', ['auto', 'direct'])
def test_the_model_chooses_it_for_depthwise_and_not_for_dense(algorithm):
    sliding = choose(depthwise(32, 28), MACHINE, 2, 3, algorithm)
    assert {c.schedule.schema for c in sliding} == {'stencil'}
    dense = conv2d(c=64, k=64, h=14, w=14, r=3, s=3, pad=1)
    assert choose(dense, MACHINE, 1, 1, 'direct')[0].schedule.schema == 'outer'


def test_the_loops_are_told_in_words():
    group = conv2d(c=8, k=8, groups=8, h=20, w=20, r=3, s=3, pad=1, bias=True)
    lines = loop_lines(group, stencil_schedule(group, 'neon', 4, 4, 3, (('k', 2),)))
    text = '\n'.join(lines)
    assert 'for each output channel (k) of 4' in text
    assert 'for each block of 4 output rows (h) of 20 (reg: 5 times)' in text
    assert 'tile: 4 x 3 vectors of 4 lanes, 12 accumulators in 32 neon registers' in text
    assert lines[-1].strip() == 'store the results through bias'
