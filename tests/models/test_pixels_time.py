"""The time of pixels across lanes, against figures made by hand."""

from __future__ import annotations

import pytest

from tilewright.kernels.cpu.schemas.pixels.plan import plan_pixels
from tilewright.kernels.cpu.schemas.pixels.space import pixels_schedule
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.model.cpu.pixels_time import missed, predict_pixels, step_cycles
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten

MACHINE = known_machine('xeon-2vcpu')


@pytest.mark.parametrize(
    ('isa', 'channels', 'vectors', 'split', 'cycles'),
    [
        ('avx512', 14, 2, 0.0, 14.0),  # 28 multiply-adds at 2 a cycle
        ('avx512', 9, 3, 1.0, 13.5),  # pixels across lines: 6 loads, 5 and 4 x 3 weights in 13.5
        ('avx512', 4, 1, 0.0, 4.0),  # one chain each: the latency of a multiply-add
        ('avx2', 12, 1, 1.0, 14 / (2 * 0.93)),  # 12 weights and a line that is crossed
    ],
)
def test_a_step_takes_as_long_as_its_busiest_units(isa, channels, vectors, split, cycles):
    assert step_cycles(ISAS[isa], channels, vectors, split) == pytest.approx(cycles)


def predicted(group, tile, block, cut=()):
    flat = flatten(group)
    return predict_pixels(flat, pixels_schedule(flat, 'avx512', tile, block, cut, 'l2'), MACHINE)


def test_threads_take_their_share_of_pixels():
    group = conv2d(c=64, h=64, w=64, k=56, r=1, s=1)
    one = predicted(group, (14, 1, 2), 1024)
    two = predicted(group, (14, 1, 2), 1024, (('hw', 2),))
    assert two.fork_s > one.fork_s == 0
    assert two.compute_s / one.compute_s == pytest.approx(
        MACHINE.peak_gflops(1) / MACHINE.peak_gflops(2), rel=0.01
    )


def test_weights_beyond_the_caches_are_read_again_for_every_block():
    group = conv2d(c=1024, h=16, w=16, k=16000, r=1, s=1)
    small, large = (predicted(group, (14, 1, 2), block) for block in (64, 128))
    weights = 4 * 1024 * 16000
    last = [p.boundaries[-1].bytes for p in (small, large)]
    assert last[0] - last[1] == pytest.approx(2 * weights, rel=0.01)


@pytest.mark.parametrize(
    ('name', 'isa', 'block', 'least', 'most'),
    [
        ('zen3-2vcpu', 'avx2', 320, 0.0, 0.0),  # 160 KiB in 512
        ('zen3-2vcpu', 'avx2', 784, 0.3, 0.7),  # 395 KiB
        ('zen3-2vcpu', 'avx2', 1056, 1.0, 1.0),  # more than there is
        ('xeon-2vcpu', 'avx512', 1248, 0.0, 0.0),  # 630 KiB in 1024, where such blocks were best
    ],
)
def test_copies_that_nearly_fill_a_cache_are_lost_in_part(name, isa, block, least, most):
    flat = flatten(conv2d(c=128, h=56, w=56, k=128, r=1, s=1))
    tile = (6, 1, 2) if isa == 'avx2' else (13, 1, 2)
    plan = plan_pixels(flat, pixels_schedule(flat, isa, tile, block, (('hw', 2),), 'l2'))
    assert least <= missed(plan, known_machine(name), 1) <= most


def test_the_thread_with_most_pixels_is_priced():
    """196 pixels are 12 vectors and 4 pixels: of two threads one has 96, the other 100."""
    group = conv2d(c=64, h=14, w=14, k=56, r=1, s=1)
    two = predicted(group, (12, 1, 2), 128, (('hw', 2),))
    whole = predicted(conv2d(c=64, h=1, w=192, k=56, r=1, s=1), (12, 1, 2), 128, (('hw', 2),))
    wider = predicted(conv2d(c=64, h=14, w=16, k=56, r=1, s=1), (12, 1, 2), 128, (('hw', 2),))
    assert whole.compute_s < two.compute_s < wider.compute_s


def test_more_products_hide_more_of_what_their_first_tile_copies():
    """An input beyond the second cache, in front of tiles of two and of fourteen channels."""
    group = conv2d(c=256, h=64, w=64, k=28, r=1, s=1)
    few, many = (
        predicted(group, (channels, 1, 2), 512).boundaries[2].seconds for channels in (2, 14)
    )
    assert many < few


def test_what_other_threads_have_written_is_brought_in():
    """128 KiB lie in any second cache, but not in that of the core that reads them."""
    group = conv2d(c=128, h=16, w=16, k=128, r=1, s=1)
    one, two = predicted(group, (14, 1, 2), 256), predicted(group, (14, 1, 2), 256, (('k', 2),))
    assert one.boundaries[2].seconds == 0
    assert two.boundaries[2].seconds > 0
    halves = predicted(group, (14, 1, 2), 256, (('hw', 2),))
    assert halves.boundaries[2].seconds < two.boundaries[2].seconds


def test_half_empty_vectors_cost_as_much_as_full_ones():
    full, empty = (
        predicted(conv2d(c=64, h=16, w=w, k=56, r=3, s=3, pad=1), (14, 2, 1), 16).compute_s
        for w in (16, 9)
    )
    assert full == pytest.approx(empty)
