"""Whole kernels between guard pages: sizes one below, at and above each tile, in every direction.

`tw_pack` and `tw_part` run in a process of their own with inputs, constants, packed constants,
output and each part's scratch flush against pages that cannot be touched, at their start and at
their end. What is only read is read-only; scratch is full of NaN before every part.
"""

from __future__ import annotations

import itertools

import pytest
from sampling import TURNS, taken

from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.machine.isa import ISAS
from tilewright.ops.blocked import blocked
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.schedule.schedule import Level, Schedule
from tilewright_lab.simulate.emulate import run_program

AROUND = (-1, 0, 1)


def schedule_for(
    group: Group, isa: str, vector: str, reg: dict[str, int], *,
    inner: dict[str, int] | None = None, pack: str = '', parallel: tuple = (),
) -> Schedule:  # fmt: skip
    """Register tile `reg` (the vector dimension in vectors); `inner` are tiles of l1."""
    stage, lanes = group.main, ISAS[isa].lanes
    tile = dict.fromkeys(stage.sizes, 1) | reg | {vector: reg[vector] * lanes}
    whole = whole_tile(stage, tile)
    l1 = {d: max(size, tile[d]) for d, size in (whole | (inner or {})).items()}
    order = register_order(stage)
    levels = (
        Level.of('reg', order, tile),
        Level.of('l1', order, l1),
        Level.of('l2', order, {d: max(whole[d], l1[d]) for d in whole}),
    )
    return Schedule('outer', isa, vector, levels, parallel, pack)


def convolutions(isa: str) -> list[tuple[Group, Schedule]]:
    """Pixel tails x channel tails, for each way that the input may be read."""
    lanes, cases = ISAS[isa].lanes, []
    variants = [
        ({'r': 3, 's': 3, 'pad': 1}, {'w': 3, 'k': 2}, {'c': 2}, 'l1'),
        ({'r': 3, 's': 2, 'pad': (1, 0, 0, 2), 'stride': 2}, {'w': 3, 'k': 2}, {'w': 6}, 'l2'),
        ({'r': 2, 's': 3}, {'h': 2, 'w': 2, 'k': 1}, {}, ''),
    ]
    for kernel, reg, inner, pack in variants:
        for dw, dk in itertools.product(AROUND, AROUND):
            columns, channels = 2 * reg['w'] + dw, 2 * reg['k'] * lanes + dk
            stride = kernel.get('stride', 1)
            pad = kernel.get('pad', 0)
            sides = pad if isinstance(pad, tuple) else (pad,) * 4
            group = conv2d(
                c=3, k=channels, h=(3 + dk - 1) * stride + kernel['r'] - sides[0] - sides[2],
                w=(columns - 1) * stride + kernel['s'] - sides[1] - sides[3], bias=dw == 0,
                activation='relu' if dk == 0 else None, **kernel,
            )  # fmt: skip
            cases.append((group, schedule_for(group, isa, 'k', reg, inner=inner, pack=pack)))
    return cases


def products(isa: str) -> list[tuple[Group, Schedule]]:
    """Row tails x column tails, with the reduction tiled one below, at and above its size."""
    lanes, cases = ISAS[isa].lanes, []
    for di, dj in itertools.product(AROUND, AROUND):
        group = matmul(m=8 + di, n=2 * lanes + dj, k=6)
        inner = {'k': 6 + (di + dj) % 3 - 1}
        parallel = (('i', 2), ('j', 2)) if di == 1 else ()
        cases.append(
            (
                group,
                schedule_for(
                    group, isa, 'j', {'i': 4, 'j': 1}, inner=inner, parallel=parallel,
                    pack='l1' if dj else '',
                ),
            )
        )  # fmt: skip
    return cases


def odd_ones(isa: str) -> list[tuple[Group, Schedule]]:
    """Groups, dilation, tall tiles, tiles over the batch, one element, a large window, blocks."""
    grouped = conv2d(n=2, c=6, k=10, h=7, w=9, r=3, s=3, pad=1, groups=2, dilation=2, bias=True)
    tall = conv2d(c=5, k=5, h=11, w=4, r=3, s=1, pad=(1, 0, 1, 0))
    batch = conv2d(n=5, c=3, k=6, h=2, w=2, r=1, s=1)
    single = conv2d(c=1, k=1, h=1, w=1, r=1, s=1)
    large = conv2d(c=2, k=3, h=13, w=14, r=13, s=13, pad=(0, 0, 0, 3))
    blocks = blocked(
        conv2d(c=4, k=16, h=6, w=7, r=3, s=3, pad=1, bias=True, activation='relu'),
        {'In': 4, 'Out': 8},
    )
    lane = vector_candidates(blocks)[0]
    apart = conv2d(c=3, k=4, h=9, w=11, r=1, s=1, stride=3)
    return [
        (
            grouped,
            schedule_for(grouped, isa, 'k', {'w': 2, 'k': 1}, pack='l1', parallel=(('g', 2),)),
        ),
        (tall, schedule_for(tall, isa, 'k', {'h': 5, 'w': 2, 'k': 1}, inner={'c': 3}, pack='l2')),
        (tall, schedule_for(tall, isa, 'k', {'h': 7, 'k': 1}, pack='l1', parallel=(('w', 3),))),
        (batch, schedule_for(batch, isa, 'k', {'n': 5, 'w': 2, 'k': 1})),
        (batch, schedule_for(batch, isa, 'k', {'n': 3, 'h': 2, 'k': 1}, inner={'c': 2})),
        (single, schedule_for(single, isa, 'k', {'k': 1})),
        (large, schedule_for(large, isa, 'k', {'w': 4, 'k': 1}, pack='l1')),
        (blocks, schedule_for(blocks, isa, lane, {'w': 3, lane: 1}, pack='l1')),
        (apart, schedule_for(apart, isa, 'k', {'w': 3, 'k': 1})),
        (apart, schedule_for(apart, isa, 'k', {'h': 2, 'w': 2, 'k': 1}, pack='l2')),
    ]


def plain(isa: str) -> list[tuple[Group, Schedule]]:
    """The general schema: depthwise and dense, padded on some sides, cut."""
    cases = []
    for stride, pad in ((1, 1), (2, (0, 2, 1, 0)), (3, 0)):
        group = conv2d(
            c=4, k=4, h=7, w=8, r=3, s=3, groups=4, stride=stride, pad=pad, bias=True,
        )  # fmt: skip
        cases.append((group, general_schedule(group, isa, 2, 2)))
    group = matmul(m=5, n=7, k=3)
    tile = {'i': 5, 'j': 3, 'k': 3}
    levels = (Level.of('reg', ('i', 'j', 'k'), tile), Level.of('l1', ('i', 'j', 'k'), tile))
    cases.append((group, Schedule('general', isa, '', levels, (('j', 3),))))
    return cases


@pytest.mark.parametrize('in_turn', TURNS)
@pytest.mark.parametrize('cases', [convolutions, products, odd_ones, plain])
def test_kernels_stay_inside_their_buffers(isa, cases, in_turn, tools, whole_numbers, agrees):
    for number, (group, schedule) in enumerate(taken(cases(isa), isa, in_turn)):
        arrays = whole_numbers(group, number)
        want = reference(group, arrays)
        source, flags = generate(group, schedule), compiler_flags(schedule)
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert agrees(group, out, want), (group.label, schedule.to_json())


def test_the_cases_are_what_they_say():
    """Tails of every kind occur: full and partial pixel tiles, narrow and padded last vectors."""
    cases = convolutions('portable')
    widths = {group.main.sizes['w'] for group, _ in cases}
    channels = {group.main.sizes['k'] for group, _ in cases}
    assert widths == {3, 4, 5, 6, 7}
    assert channels == {7, 8, 9, 15, 16, 17}
    assert {schedule.pack for _, schedule in cases} == {'', 'l1', 'l2'}
