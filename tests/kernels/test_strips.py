"""Copies in strips: 1x1 convolutions of any stride, between guard pages, around each tile edge."""

from __future__ import annotations

import itertools

import pytest
from sampling import TURNS, taken

from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.outer.plan import plan_outer
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.machine.isa import ISAS
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.schedule.schedule import Level, Schedule
from tilewright_lab.simulate.emulate import run_program


def schedule_for(
    group: Group, isa: str, reg: dict[str, int], inner: dict[str, int], *,
    parallel: tuple = (), pack: str = 'l2',
) -> Schedule:  # fmt: skip
    """Register tile `reg` (k in vectors); `inner` are tiles of l1, l2 is four of them in pixels."""
    stage = flatten(group).main
    tile = dict.fromkeys(stage.sizes, 1) | reg | {'k': reg['k'] * ISAS[isa].lanes}
    whole, order = whole_tile(stage, tile), register_order(stage)
    l1 = {d: max(size, tile[d]) for d, size in (whole | inner).items()}
    l2 = whole | {d: max(min(4 * l1[d], whole[d]), l1[d]) for d in reg if d != 'k'}
    levels = (
        Level.of('reg', order, tile),
        Level.of('l1', order, l1),
        Level.of('l2', order, l2),
        Level.of('l3', order, {d: max(whole[d], l2[d]) for d in whole}),
    )
    return Schedule('outer', isa, 'k', levels, parallel, pack)


def strips(group: Group, schedule: Schedule) -> dict[str, int]:
    flat = flatten(group)
    roles = contract(flat, 'k')
    tile = operand.packed_tile(schedule, part_extents(flat.main, schedule))
    return operand.strips_of(roles, schedule, tile)


def cases(isa: str) -> list[tuple[Group, Schedule]]:
    lanes, made = ISAS[isa].lanes, []
    for around, channels in itertools.product((-1, 0, 1), (0, 1)):
        joined = conv2d(n=2, c=3, h=3, w=7 + around, k=2 * lanes + channels, r=1, s=1)
        made.append((joined, schedule_for(joined, isa, {'hw': 5, 'k': 1}, {'hw': 5})))
        apart = conv2d(c=3, h=7, w=11 + 2 * around, k=lanes + channels, r=1, s=1, stride=2)
        tile = {'h': 2, 'w': 2, 'k': 1}
        made.append((apart, schedule_for(apart, isa, tile, {'h': 2, 'w': 4})))
    # Whole blocks of pixels, which micro-kernels may store themselves, in one row or in two.
    for tile, limit in (({'w': 8, 'k': 1}, 'relu6'), ({'h': 2, 'w': 4, 'k': 1}, 'relu')):
        blocks = conv2d(
            c=3, h=9, w=26, k=3 * lanes, r=1, s=1, stride=2, bias=True, activation=limit
        )
        made.append(
            (blocks, schedule_for(blocks, isa, tile, {d: tile[d] for d in tile if d != 'k'}))
        )
    padded = conv2d(c=4, h=6, w=9, k=lanes, r=1, s=1, pad=(1, 0, 0, 2), stride=(1, 2), bias=True)
    made.append((padded, schedule_for(padded, isa, {'w': 3, 'k': 1}, {'w': 3, 'c': 2})))
    cut = conv2d(c=6, h=5, w=8, k=3 * lanes, r=1, s=1, activation='relu')
    made.append((cut, schedule_for(cut, isa, {'hw': 6, 'k': 2}, {'hw': 12}, parallel=(('hw', 3),))))
    return made


@pytest.mark.isa
@pytest.mark.parametrize('in_turn', TURNS)
def test_strips_compute_the_reference_inside_their_buffers(
    isa, in_turn, tools, whole_numbers, agrees
):
    for group, schedule in taken(cases(isa), isa, in_turn):
        assert strips(group, schedule)
        arrays = whole_numbers(group, 0)
        want = reference(group, arrays)
        source, flags = generate(group, schedule), compiler_flags(schedule)
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert agrees(group, out, want)


def test_no_strips_where_a_tile_ends_inside_one():
    group = conv2d(c=3, h=4, w=8, k=8, r=1, s=1)
    even = schedule_for(group, 'portable', {'hw': 4, 'k': 1}, {'hw': 8})
    odd = schedule_for(group, 'portable', {'hw': 4, 'k': 1}, {'hw': 6})
    assert strips(group, even) == {'n': 1, 'hw': 4}
    assert strips(group, odd) == {}


def test_no_strips_under_a_window():
    group = conv2d(c=3, h=4, w=8, k=8, r=1, s=3, pad=(0, 1))
    assert strips(group, schedule_for(group, 'portable', {'w': 4, 'k': 1}, {'w': 4})) == {}


def test_a_strip_is_one_run_of_memory():
    """[strip][c][4 pixels]: channels are neighbours, whatever lies between them in the tensor."""
    group = conv2d(c=3, h=4, w=8, k=8, r=1, s=1)
    schedule = schedule_for(group, 'portable', {'hw': 4, 'k': 1}, {'hw': 4})
    flat = flatten(group)
    buffer = operand.buffer_of(contract(flat, 'k'), schedule, part_extents(flat.main, schedule))
    assert buffer.strides['c'] == 4
    assert buffer.strides['hw'] == 1
    assert buffer.strips['hw'] == (4, 12)
    assert buffer.size == 4 * 12  # four strips of three channels


@pytest.mark.parametrize(('floats', 'padded'), [(8, 8), (32, 32), (33, 48), (64, 80), (80, 80)])
def test_channels_lie_an_odd_number_of_lines_apart(floats, padded):
    assert operand.odd_lines(floats) == padded


@pytest.mark.parametrize('pixels', [4, 5, 6, 8])
def test_short_sums_are_turned_whatever_the_rows(pixels, check):
    """Rows of four pixels need no transposition; others are rounded up where sums are short."""
    group = conv2d(c=3, h=5, w=7, k=12, r=1, s=1, bias=True, activation='relu')
    schedule = schedule_for(group, 'portable', {'hw': pixels, 'k': 1}, {'hw': pixels})
    assert 'finish4(1' in generate(group, schedule)
    check(group, schedule)


def test_long_sums_are_not_rounded_up(check):
    group = conv2d(c=64, h=5, w=7, k=12, r=1, s=1, bias=True)
    schedule = schedule_for(group, 'portable', {'hw': 5, 'k': 1}, {'hw': 5})
    source = generate(group, schedule)
    assert 'finish4(0' in source
    assert 'finish4(1' not in source
    check(group, schedule)
    # Sums in pieces stay where they are: blocks are turned in their own place.
    pieces = schedule_for(group, 'portable', {'hw': 8, 'k': 1}, {'hw': 8, 'c': 16})
    assert 'finish4(1' in generate(group, pieces)
    check(group, pieces)


def test_channels_that_fill_no_vector_are_not_turned(check):
    group = conv2d(c=3, h=5, w=7, k=10, r=1, s=1, bias=True)
    schedule = schedule_for(group, 'portable', {'hw': 8, 'k': 1}, {'hw': 8})
    assert 'finish4(1' not in generate(group, schedule)
    check(group, schedule)


@pytest.mark.parametrize(('stride', 'turned'), [(1, True), (2, False)])
def test_only_pixels_side_by_side_lie_across_vectors(stride: int, turned: bool) -> None:
    group = conv2d(c=4, h=16, w=16, k=8, r=3, s=3, stride=stride)
    schedule = schedule_for(group, 'neon', {'k': 1, 'h': 1, 'w': 4}, {}, pack='')
    assert plan_outer(group, schedule).turned((4,), 1) == turned
