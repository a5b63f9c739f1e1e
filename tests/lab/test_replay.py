"""Schedules in the cache simulator: words counted by hand, packed operands, accumulators."""

from __future__ import annotations

import math

import pytest

from tilewright.machine.known import known_machine
from tilewright.ops.convolution import conv2d
from tilewright.schedule.schedule import Level, Schedule
from tilewright_lab.figures.replay import replayed, traffic

MACHINE = known_machine('i7-9700k')
SIZES = {'n': 1, 'k': 16, 'h': 4, 'w': 16, 'c': 6, 'r': 3, 's': 3}
GROUP = conv2d(c=6, h=4, w=16, k=16, r=3, s=3, pad=1)
ORDER = ('n', 'k', 'h', 'w', 'c', 'r', 's')


def schedule(l1=(), l2=(), **reg):
    tile = dict.fromkeys(SIZES, 1) | {'k': 8} | reg
    levels = [Level.of('reg', ORDER, tile)]
    for name, smaller in (('l1', l1), ('l2', l2), ('l3', ())):
        levels.append(Level.of(name, ORDER, SIZES | dict(smaller)))
    return Schedule('outer', 'avx2', 'k', tuple(levels), (), 'l2')


@pytest.mark.parametrize('reg', [{'w': 4}, {'w': 2, 'h': 2}, {'w': 8, 'k': 16}])
def test_register_words_are_those_of_the_micro_kernels(reg):
    made = schedule(**reg)
    tile = made.reg.tile
    pixels, width = tile['h'] * tile['w'], tile['k']
    tiles = math.prod(SIZES[d] // tile[d] for d in ('k', 'h', 'w'))
    steps = 6 * 3 * 3
    outputs = 16 * 4 * 16
    # Each step of each tile loads its pixels and its panel; accumulators go in and out once.
    wanted = tiles * steps * (pixels + width) + 2 * outputs
    assert traffic(GROUP, made, MACHINE).register_words == wanted


def test_accumulators_that_are_resumed_count_each_time():
    whole = traffic(GROUP, schedule(w=4), MACHINE).register_words
    cut = traffic(GROUP, schedule(l1={'c': 2}, l2={'c': 2}, w=4), MACHINE).register_words
    assert cut - whole == 2 * 2 * 16 * 4 * 16  # two more passes over all outputs


def test_caches_that_hold_everything_are_filled_once_with_packed_operands():
    stage, levels, layout = replayed(GROUP, schedule(w=4))
    assert stage.sizes['k_panel'] * stage.sizes['k_lane'] == 16
    assert [e.names for e in stage.reads[1].index] == [
        ('k_panel',), ('c',), ('r',), ('s',), ('k_lane',)
    ]  # fmt: skip
    assert levels[0].order[-3:] == ('c', 'r', 's')
    assert layout == {}

    def lines(words):
        return -(-words // 16)

    padded = lines(6 * (4 + 2) * (16 + 2))
    wanted = 64 * (padded + lines(16 * 6 * 9) + 2 * lines(16 * 4 * 16))
    assert traffic(GROUP, schedule(w=4), MACHINE).cache_bytes[-1] == wanted


def test_kept_accumulators_lie_with_channels_innermost():
    assert replayed(GROUP, schedule(l1={'c': 2}, w=4))[2] == {'Out': 1}


def test_a_last_panel_that_is_not_full_counts_as_full():
    group = conv2d(c=2, h=3, w=4, k=10, r=1, s=1)
    sizes = group.main.sizes
    tile = dict.fromkeys(sizes, 1) | {'k': 8, 'w': 4}
    whole = dict(sizes) | {'k': 16}
    levels = (Level.of('reg', ORDER, tile), Level.of('l1', ORDER, whole))
    made = Schedule('outer', 'avx2', 'k', levels, (), 'l1')
    assert traffic(group, made, MACHINE).register_words == 2 * 3 * 2 * (4 + 8) + 2 * 16 * 12


def test_other_schemas_are_replayed_as_they_are():
    group = conv2d(c=4, h=6, w=6, k=4, r=3, s=3, pad=1, groups=4)
    sizes = group.main.sizes
    order = tuple(sizes)
    levels = (Level.of('reg', order, dict.fromkeys(sizes, 1)), Level.of('l1', order, sizes))
    made = Schedule('general', 'avx2', '', levels)
    stage, replay, layout = replayed(group, made)
    assert (stage, tuple(replay), layout) == (group.main, levels, {})
    points, outputs = 4 * 36 * 9, 4 * 36
    assert traffic(group, made, MACHINE).register_words == 2 * points + 2 * outputs
