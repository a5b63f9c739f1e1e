"""Strassen along pixels, between guard pages: sizes around every tile edge, AVX-512 and AVX2.

Pairs of strips, the narrower pair and single vectors behind them, threads and blocks that end among
them, what comes before and behind the products.
"""

from __future__ import annotations

import numpy as np
import pytest
from sampling import TURNS
from test_pixel_kernels import SCALED, SMOOTH, fronted, joined

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate, planned
from tilewright.kernels.cpu.schemas.strassen_pixels.plan import why_not
from tilewright.kernels.cpu.schemas.strassen_pixels.space import (
    strassen_pixels_choices,
    strassen_pixels_schedule,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.strassen import LEFT, SINGLE, product_error, spread
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.choose import choose
from tilewright.search.cpu.rank import rank
from tilewright_lab.simulate.emulate import cannot_run, run_program

X86 = [isa for isa in ('avx512', 'avx2') if not cannot_run(isa)]


def cases(isa: str) -> list[tuple[Group, Schedule]]:
    lanes, made = ISAS[isa].lanes, []

    def take(group: Group, tile: tuple[int, int], pairs: int, cut: tuple = ()) -> None:
        flat = flatten(group)
        made.append((group, strassen_pixels_schedule(flat, isa, tile, pairs, cut, 'l2')))

    # Every rest behind whole pairs of two vectors, with tails of lanes and of channels.
    for vectors in range(9):
        for more in (-1, 0, 1):
            size = max(32, 8 * lanes + vectors * lanes + more)
            more_channels = 2 * (vectors % 3)
            group = conv2d(n=2, c=10, h=1, w=size, k=10 + more_channels, r=1, s=1, bias=True)
            take(group, (3, 2), 1 + vectors % 3)
    # Threads along images, channels and pixels; one strip for each pair, three, and four.
    take(conv2d(n=3, c=6, h=7, w=7, k=8, r=1, s=1), (4, 1), 2, (('n', 2),))
    take(conv2d(c=12, h=9, w=2 * lanes, k=18, r=1, s=1), (4, 3), 1, (('k', 2),))
    take(conv2d(c=12, h=7, w=4 * lanes + 3, k=6, r=1, s=1), (2, 4), 2, (('hw', 3),))
    take(conv2d(c=4, h=5, w=3 * lanes, k=24, r=1, s=1), (5, 2), 1, (('hw', 2), ('k', 2)))
    # Fewer pixels than a pair of whole strips has.
    take(conv2d(c=8, h=1, w=33, k=6, r=1, s=1, activation='relu6'), (2, 4), 1)
    # Weights that are asked for: lines behind the last, too.
    take(conv2d(c=520, h=2, w=2 * lanes + 1, k=80, r=1, s=1), (4, 2), 1)
    # Residuals, activations as vectors, and those that go lane by lane.
    for more in (-1, 0, 1):
        size = 6 * lanes + more
        take(joined(conv2d(n=2, c=6, h=1, w=size, k=6, r=1, s=1, bias=True)), (3, 2), 1)
        for activation in ('relu6', 'silu', 'leaky_relu'):
            conv = conv2d(c=6, h=1, w=size, k=6, r=1, s=1, bias=True, activation=activation)
            take(joined(conv), (3, 1), 2)
        for expr in (SCALED, SMOOTH):
            flat = conv2d(n=2, c=10, h=3, w=2 * lanes + more, k=6, r=1, s=1, bias=True)
            take(fronted(expr, flat), (3, 2), 1, (('n', 2),))
    return made


@pytest.mark.parametrize('in_turn', TURNS)
@pytest.mark.parametrize('isa', X86)
def test_results_are_the_reference_inside_their_buffers(
    isa, in_turn, tools, whole_numbers, agrees
):  # fmt: skip
    place = X86.index(isa)
    for number, (group, schedule) in enumerate(cases(isa)):
        if (number % len(X86) == place) != in_turn:
            continue
        arrays = whole_numbers(group, 0)
        want = reference(group, arrays)
        source, flags = generate(group, schedule), compiler_flags(schedule)
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert agrees(group, out, want), (group.label, schedule.to_json())


@pytest.mark.parametrize('odd', [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_reaches_its_pixel_and_the_one_that_is_summed_with_it(
    odd, native_isa, tools, whole_numbers
):  # fmt: skip
    if not ISAS[native_isa].rows_emit:
        pytest.skip(f'{native_isa} has no micro-kernels along rows')
    strip = 2 * ISAS[native_isa].lanes
    group = conv2d(n=2, c=8, h=1, w=2 * strip + 3, k=6, r=1, s=1)
    schedule = strassen_pixels_schedule(flatten(group), native_isa, (3, 2), 1, (), 'l2')
    source, flags = generate(group, schedule), compiler_flags(schedule)
    arrays = whole_numbers(group, 0)
    for channel, pixel, others in ((1, 1, {1 + strip}), (5, strip, {0}), (5, 2 * strip, set())):
        arrays['In'][...] = 1
        arrays['In'][1, channel, 0, pixel] = odd
        for out in run_program(group, source, arrays, tools(native_isa), flags, ('end',)):
            lost = ~np.isfinite(out)
            assert lost[1, :, 0, pixel].all()
            assert {(n, x) for n, _, _, x in np.argwhere(lost)} == {
                (1, x) for x in others | {pixel}
            }


def test_a_column_of_blocks_takes_four_of_the_products():
    """Sums that lack one would leave out terms at the end of each image."""
    random = np.random.default_rng(0)
    weights = {(r, c): random.normal() for r in (0, 1) for c in (0, 1)}
    upper, lower = random.normal(size=2)
    sums = spread(weights, LEFT, lambda terms: sum(s * w for s, w in terms), 1)
    found = [0.0, 0.0]
    for product, (u, low), row in SINGLE:
        found[row] += sums[product] * (u * upper + low * lower)
    for r in (0, 1):
        assert found[r] == pytest.approx(weights[r, 0] * upper + weights[r, 1] * lower)


def test_errors_are_as_large_as_expected(native_isa, tools):
    if not ISAS[native_isa].rows_emit:
        pytest.skip(f'{native_isa} has no micro-kernels along rows')
    group = conv2d(c=256, h=8, w=9, k=64, r=1, s=1)
    random = np.random.default_rng(3)
    arrays = {t.name: random.normal(size=t.shape).astype('f4') for t in group.tensors[:2]}
    want = reference(group, arrays)
    schedule = next(strassen_pixels_choices(flatten(group), native_isa, 2, 3))
    source, flags = generate(group, schedule), compiler_flags(schedule)
    for out in run_program(group, source, arrays, tools(native_isa), flags):
        assert np.abs(out - want).max() / np.abs(want).max() < 2 * product_error(256, 1)


def test_many_channels_are_computed_so_and_few_are_not():
    machine = known_machine('zen3-2vcpu')
    large = conv2d(c=512, h=14, w=14, k=512, r=1, s=1, bias=True, activation='relu')
    best = choose(large, machine, 2, 1)[0]
    assert best.schedule.schema == 'strassen_pixels'
    assert best.prediction.flops_done == pytest.approx(large.main.flops * 7 / 8, rel=1e-3)
    small = conv2d(c=16, h=56, w=56, k=96, r=1, s=1)
    assert choose(small, machine, 2, 1)[0].schedule.schema == 'pixels'
    strict = choose(large, machine, 2, 1, max_rel_err=1e-7)[0]
    assert strict.schedule.schema == 'pixels'
    assert not rank(large, known_machine('neoverse-n1'), 2, 1, 'strassen')


def test_what_it_does_not_compute_is_said():
    assert 'one run of memory' in why_not(conv2d(c=8, h=14, w=14, k=64, r=3, s=3, pad=1))
    assert 'one run of memory' in why_not(conv2d(c=8, h=14, w=14, k=64, r=1, s=1, stride=2))
    assert 'at least 32' in why_not(conv2d(c=8, h=5, w=5, k=64, r=1, s=1))
    assert 'k=65 is not a multiple of 2' in why_not(conv2d(c=8, h=14, w=14, k=65, r=1, s=1))
    group = flatten(conv2d(c=8, h=14, w=14, k=64, r=1, s=1))
    good = strassen_pixels_schedule(group, 'avx2', (6, 2), 2, (), 'l2')
    assert planned(group, good).pieces(196) == (6, 0, 1)
    assert planned(group, good).pieces(64) == (2, 0, 0)
    with pytest.raises(ScheduleError, match=r'one level \(levels=1\)'):
        planned(group, Schedule('strassen_pixels', 'avx2', 'hw', good.levels, pack='l2'))
    with pytest.raises(ScheduleError, match='registers'):
        planned(group, strassen_pixels_schedule(group, 'avx2', (9, 2), 2, (), 'l2'))
