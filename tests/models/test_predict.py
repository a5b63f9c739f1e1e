"""The time model: hand-computed cycles, working sets and bounds."""

from collections import Counter
from dataclasses import replace

import pytest

import tilewright as tw
from tilewright.graph.half import half_group
from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.schemas.outer.space import assemble
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.model.cpu import outer_time
from tilewright.model.cpu.copies import copies_of, tile_counts
from tilewright.model.cpu.outer_time import source_words, step_cycles
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.prediction import Prediction, lower_bound
from tilewright.model.cpu.working_set import Loop, Rows, boxes, crossing, flatten, words
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Access, affine, var
from tilewright.search.cpu.rank import rank

IN = Access('In', (var('n'), var('c'), affine(('h', 1), ('r', 1)), affine(('w', 1), ('s', 1))))


def schedule_of(group, isa='avx2', reg=None, tiles=(), parallel=(), pack='l2'):
    stage = group.main
    reg = dict.fromkeys(stage.sizes, 1) | (reg or {'k': 16, 'w': 6})
    tiles = tuple(dict(stage.sizes) | t for t in tiles) or (dict(stage.sizes),) * 3
    order = ('n', 'k', 'h', 'w', 'c', 'r', 's')
    return assemble(group, isa, 'k', reg, tiles, (order,) * len(tiles), parallel, pack)


@pytest.mark.parametrize(
    ('isa', 'pixels', 'run', 'vectors', 'steps', 'cycles'),
    [
        # 12 FMAs at 2 a cycle, but 8 loads and 4 of a loop beside them: bound by issue
        ('avx2', 6, 6, 2, 1, 24 / (4 * 0.93) + 0.2 * 2),
        ('avx2', 6, 6, 2, 9, 6 + 0.2 * 2),
        ('avx512', 30, 30, 1, 1, (30 + 31 + 4) / (4 * 0.93) + 0.2),
        ('avx2', 1, 1, 1, 9, 4 + 0.2),  # one chain: the latency of an FMA
        ('neon', 1, 1, 1, 9, 2 + 0.2),  # the same, the sum forwarded late
        ('neon', 1, 1, 1, 1, (3 + 9) / 4 + 0.2),  # one step in an iteration: the loop takes longer
        ('avx512', 14, 14, 2, 1, 14 + 0.2 * 2),
        ('neon', 14, 14, 2, 9, 14 + 0.2 * 2),
        # 14 rows of two, each a load, 13 with an address of its own: bound by issue
        ('neon', 28, 2, 1, 9, (28 + 15 + 26 + 22 / 9) / 4 + 0.2),
    ],
)
def test_step_cycles(isa, pixels, run, vectors, steps, cycles):
    assert step_cycles(ISAS[isa], pixels, run, vectors, steps) == pytest.approx(cycles)


def test_register_tiles_are_counted_with_their_remainders():
    group = tw.conv2d(c=4, h=12, w=12, k=16, r=1, s=1)
    schedule = schedule_of(group, tiles=({'w': 6}, {'w': 9}, {'w': 12}))
    # 12 = 9 + 3; 9 = 6 + 3; the register tile is 6 wide.
    assert tile_counts(schedule, 'w', 12) == Counter({6: 1, 3: 2})


@pytest.mark.parametrize(
    ('width', 'cut', 'lines'),
    [
        (20, 'h', 32),  # six rows of 20 end within a line, in each of 32 planes
        (20, 'w', 32 * 12),  # the middle of every row
        (32, 'h', 0),  # rows of two lines
        (32, 'w', 32 * 12),  # pieces of 18 and 14
        (20, 'k', 0),  # planes of 15 lines
    ],
)
def test_lines_that_two_threads_write_take_longer(width, cut, lines, monkeypatch):
    """They move between the threads: a cut between rows is better than one through all of them."""
    group, machine = tw.conv2d(c=4, h=12, w=width, k=32, r=1, s=1), known_machine('i7-9700k')
    schedule = schedule_of(group, parallel=((cut, 2),))
    store = predict(group, schedule, machine).store_s
    monkeypatch.setattr(outer_time, 'SHARED_LINE_CYCLES', 0.0)
    alone = predict(group, schedule, machine).store_s
    cycle_s = ISAS['avx2'].flops_per_cycle / (1e9 * machine.peak_gflops(2) / 2)
    assert store - alone == pytest.approx(70.0 * lines * cycle_s)


def test_boxes_grow_by_one_loop():
    group = tw.conv2d(c=4, h=12, w=12, k=32, r=3, s=3)
    schedule = schedule_of(group, tiles=({'h': 2}, {'h': 5}, {}))
    loops, innermost = flatten(group.main, schedule, group.main.sizes)
    assert [(v.name, v.outer, v.tile) for v in loops] == [
        ('h', 10, 5), ('h', 5, 2), ('k', 32, 16), ('h', 2, 1), ('w', 10, 6),
    ]  # fmt: skip
    assert innermost == {'n': 1, 'k': 16, 'h': 1, 'w': 6, 'c': 4, 'r': 3, 's': 3}
    grown = boxes(loops, innermost)
    assert grown[1]['w'] == 10
    assert grown[-1] == group.main.sizes


def test_crossing_follows_present_absent_and_partial_reuse():
    box = {'n': 1, 'c': 8, 'h': 4, 'w': 10, 'r': 3, 's': 3}
    size = 8 * 6 * 12
    assert words(IN, box, Rows(3, 12), 1) == size
    absent = [Loop('h', 16, 4), Loop('k', 64, 16)]
    # k is absent: full reuse. h is present and overlaps by two rows of six.
    assert crossing(IN, absent, box, size) == pytest.approx(size * (1 + 3 * 4 / 6))
    # With c between them nothing is kept from one h to the next.
    kept = [Loop('h', 16, 4), Loop('c', 32, 8)]
    assert crossing(IN, kept, box, size) == size * 4 * 4
    assert crossing(IN, [Loop('k', 64, 16)], box, size) == size


def test_rows_that_begin_anywhere_touch_more_lines():
    box = {'n': 1, 'c': 2, 'h': 1, 'w': 14, 'r': 1, 's': 3}
    assert words(IN, box, Rows(3, 58), 16) == 2 * (16 + 15)
    assert words(IN, box, Rows(3, 64), 16) == 2 * (16 + 15)  # rows are whole lines, steps are not
    assert words(IN, box | {'w': 16}, Rows(3, 64), 16) == 2 * 32
    assert words(IN, box, Rows(3, 16), 16) == 2 * 16
    assert words(IN, box, Rows(0, 0, packed=True), 16) == 2 * 16


def test_the_bound_is_arithmetic_or_compulsory_traffic():
    machine = known_machine('i7-9700k')
    dense = tw.conv2d(c=64, h=56, w=56, k=64, r=3, s=3, pad=1)
    assert lower_bound(dense, machine, 1) == dense.flops / (1e9 * machine.peak_one_gflops)
    # A depthwise layer of 100 MB: memory decides.
    huge = tw.conv2d(n=8, c=256, h=112, w=112, k=256, r=3, s=3, pad=1, groups=256)
    outside = huge.compulsory_bytes - machine.caches[-1].bytes
    assert lower_bound(huge, machine, 1) == outside / (1e9 * machine.bandwidth_one_gbps[-1])


def test_nothing_is_predicted_to_beat_the_bound():
    machine = known_machine('i9-10980xe')
    for layer in ('mopt/R2', 'mopt/R9', 'mopt/Y5', 'mopt/R1'):
        group = tw.parse(layer)
        schedule = schedule_of(group, 'avx512', {'k': 32, 'w': 7})
        prediction = predict(group, schedule, machine)
        assert prediction.seconds >= prediction.bound_s > 0
        assert prediction.compute_s <= prediction.seconds


def test_a_prediction_below_its_bound_is_raised_to_it():
    machine = known_machine('i7-9700k')
    # Curves that promise more than the caches have: the model sees no traffic from memory.
    caches = tuple(replace(c, usable_bytes=2**40) for c in machine.caches)
    boastful = replace(
        machine, caches=caches, bandwidth_one_gbps=(*machine.bandwidth_one_gbps[:-1], 0.5)
    )
    group = tw.conv2d(n=4, c=64, h=112, w=112, k=64, r=1, s=1)
    found = predict(group, schedule_of(group), boastful)
    outside = 4 * (2 * 4 * 64 * 112 * 112 + 64 * 64) - machine.caches[-1].bytes
    assert outside > 0
    assert found.boundaries[-1].bytes == 0
    assert found.seconds == found.bound_s == pytest.approx(outside / 0.5e9)
    assert found.limit == 'l3'
    assert (found.flops_done, found.moved) == (group.flops, group.compulsory_bytes)


def test_no_prediction_can_be_made_below_its_bound():
    with pytest.raises(AssertionError, match='below the bound'):
        Prediction(1.0, 1.0, 0.0, 0.0, 0.0, (), bound_s=1.01, flops_done=1.0, moved=1.0)


def test_uneven_cuts_cost_what_the_largest_part_costs():
    machine = known_machine('i7-9700k')
    group = tw.conv2d(c=32, h=9, w=12, k=32, r=3, s=3, pad=1)
    even = predict(group, schedule_of(group, parallel=(('k', 2),)), machine)
    uneven = predict(group, schedule_of(group, parallel=(('h', 2),)), machine)
    assert uneven.compute_s == pytest.approx(even.compute_s * 5 / 4.5)


def test_contraction_roles_of_a_convolution():
    group = tw.conv2d(n=2, c=8, h=9, w=9, k=16, r=3, s=3, groups=2)
    roles = contract(group, 'k')
    assert (roles.batch, roles.pixels, roles.columns) == (('g',), ('n', 'h', 'w'), ())
    assert (roles.loop, roles.unrolled, roles.outer) == ('c', ('r', 's'), ())


def test_accumulators_that_are_taken_up_again_are_priced():
    group = tw.conv2d(c=16, h=58, w=58, k=64, r=3, s=3)
    machine = known_machine('i7-9700k')
    whole, halves, quarters = (
        predict(group, schedule_of(group, tiles=({'c': c}, {'c': c}, {'c': c})), machine).compute_s
        for c in (16, 8, 4)
    )
    assert halves > whole
    assert quarters - whole == pytest.approx(3 * (halves - whole))


@pytest.mark.parametrize(('reg', 'together'), [({'w': 6}, True), ({'h': 6}, False)])
def test_results_of_a_column_are_stored_one_by_one(reg, together):
    group = tw.conv2d(c=4, h=14, w=14, k=32, r=3, s=3)
    machine = known_machine('i7-9700k')
    row, tile = (
        predict(group, schedule_of(group, reg={'k': 16} | shape), machine)
        for shape in ({'w': 6}, reg)
    )
    assert (tile.store_s == pytest.approx(row.store_s)) == together
    assert (tile.pack_s == pytest.approx(row.pack_s)) == together


def test_lines_under_a_narrow_tile_are_counted_whole():
    group = tw.conv2d(c=8, h=34, w=34, k=32, r=3, s=3)
    (read,) = (a for a in group.main.reads if a.tensor == 'In')
    tile = dict(group.main.sizes) | {'w': 2, 'h': 4, 'c': 2}
    assert source_words(group, read, tile, 16) == 2 * 6 * (4 + 15)
    whole = dict(group.main.sizes) | {'h': 4, 'c': 2}
    assert source_words(group, read, whole, 16) == 2 * (6 * 34 + 15)


def pieces(first: int, end: int, tile: int) -> list[tuple[int, int]]:
    return [(x, min(x + tile, end)) for x in range(first, end, tile)]


def test_copies_are_counted_as_a_walk_over_the_tiles_counts_them():
    group = tw.conv2d(c=10, h=13, w=13, k=40, r=1, s=1, stride=2)
    inner, outer = {'k': 16, 'h': 2, 'w': 6, 'c': 4}, {'k': 32, 'h': 5, 'w': 7, 'c': 7}
    schedule = schedule_of(group, 'neon', {'k': 8, 'w': 3}, (inner, inner, outer))
    contraction, sizes = contract(group, 'k'), group.main.sizes
    calls = rows = strips = broken = elements = 0
    regions = [{}]
    for tile in (outer, inner):  # loops in the order k, h, w, c: every tile is copied for every k
        regions = [
            {'k': k, 'h': h, 'w': w, 'c': c}
            for r in regions
            for k in pieces(*r.get('k', (0, sizes['k'])), tile['k'])
            for h in pieces(*r.get('h', (0, sizes['h'])), tile['h'])
            for w in pieces(*r.get('w', (0, sizes['w'])), tile['w'])
            for c in pieces(*r.get('c', (0, sizes['c'])), tile['c'])
        ]
    for region in regions:
        high, wide, deep = (region[d][1] - region[d][0] for d in 'hwc')
        calls, rows, elements = calls + 1, rows + high * deep, elements + high * deep * wide
        strips += high * deep * -(-wide // 3)
        broken += high * deep * (wide % 3 > 0)
    buffer = operand.buffer_of(contraction, schedule, sizes)
    made = copies_of(contraction, schedule, sizes, buffer)
    assert (made.calls, made.rows, made.elements) == (calls, rows, elements)
    assert (made.strips, made.broken) == (strips, broken)


def test_f16_results_that_leave_registers_are_stored_sooner_than_sums():
    """One run that is the whole sum is finished in registers; of two, sums pass through memory."""
    group = half_group(conv2d(c=32, k=96, h=56, w=56, r=1, s=1), 'f16')
    machine = known_machine('neoverse-n1')
    (best,) = rank(group, machine, 1, 1)
    assert best.schedule.schema == 'half'
    assert dict(best.schedule.options)['run'] == 16
    cut = replace(best.schedule, options=(('run', 8),))
    whole, halved = (predict(group, s, machine) for s in (best.schedule, cut))
    assert whole.store_s < 0.5 * halved.store_s
    assert whole.seconds < halved.seconds


def test_weights_that_are_read_once_are_best_read_in_one_run() -> None:
    """Of schedules that move the same, the one that jumps between panels asks for more."""
    group, machine = matmul(m=1, n=50257, k=768), known_machine('xeon-2vcpu')
    best, *_ = rank(group, machine, 2, 1)
    jumping = []
    for level in best.schedule.levels:
        tiles = tuple((d, min(t, 32) if d == 'k' else t) for d, t in level.tiles)
        jumping.append(replace(level, order=('i', 'k', 'j'), tiles=tiles))
    outermost = replace(jumping[-1], tiles=best.schedule.levels[-1].tiles)
    apart = predict(group, replace(best.schedule, levels=(*jumping[:-1], outermost)), machine)
    assert apart.boundaries[-1].bytes > best.prediction.boundaries[-1].bytes
    assert apart.seconds > 1.1 * best.prediction.seconds
    assert best.prediction.seconds < 1.02 * best.prediction.bound_s
