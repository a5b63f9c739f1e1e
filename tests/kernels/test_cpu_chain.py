"""Chains of reducing parts, computed tile by tile, against the float64 reference.

Tiles are one below, at and above what divides the result, so that every halo, border and rest of a
tile occurs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sampling import TURNS, taken

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.chain.expand import block_of
from tilewright.kernels.cpu.schemas.chain.space import (
    across_schedule,
    chain_choices,
    nest_schedule,
    product_schedule,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.model.cpu.predict import predict
from tilewright.ops.blocked import blocked
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.pooling import max_pool
from tilewright.ops.reference import reference
from tilewright.ops.windows import windows
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import rank
from tilewright_lab.simulate.emulate import cannot_run, run_program


def conv(c: int, h: int, k: int, r: int, stride: int = 1, dilation: int = 1, **more) -> Group:
    sizes: dict[str, Any] = {'w': h, 'pad': dilation * (r // 2), **more}
    return conv2d(c=c, h=h, k=k, r=r, s=r, stride=stride, dilation=dilation, **sizes)


def tied(first: Group, second: Group) -> Group:
    made = chain(first, second, second.main.reads[0].tensor)
    assert made is not None
    return made.group


def depthwise(
    c: int, k: int, h: int, w: int, n: int = 1, out: int = 0, before: Group | None = None, **more
) -> Group:
    """A depthwise convolution with bias and activation, and a 1x1 convolution with both behind it;
    `out`: channels of a block of the result; `before`: what makes the image.
    """
    wanted = {'r': 3, 's': 3, 'pad': 1, 'bias': True, 'activation': 'relu'} | more
    first = conv2d(n=n, c=c, h=h, w=w, k=c, groups=c, **wanted)
    _, _, high, wide = first.output.shape
    second = conv2d(n=n, c=c, h=high, w=wide, k=k, r=1, s=1, bias=True, activation='relu')
    first = tied(before, first) if before else first
    return tied(first, blocked(second, {'Out': out}) if out else second)


def expanded(c: int, m: int, k: int, h: int, w: int, n: int = 1, **more) -> Group:
    """A 1x1 convolution to `m` channels before a depthwise and a 1x1 convolution."""
    first = conv2d(n=n, c=c, h=h, w=w, k=m, r=1, s=1, bias=True, activation='relu')
    return depthwise(m, k, h, w, n, before=first, **more)


CHAINS = {
    'conv+conv': tied(conv(3, 7, 4, 3, w=9), conv(4, 7, 5, 3, w=9, bias=True)),
    'strided': tied(conv(3, 11, 4, 3, stride=2), conv(4, 6, 5, 3, stride=2)),
    'dilated': tied(conv(3, 9, 4, 3), conv(4, 9, 2, 3, dilation=2, activation='relu')),
    'grouped': tied(
        conv(4, 9, 6, 3, groups=2, bias=True), conv(6, 9, 8, 3, groups=2, stride=2, bias=True)
    ),
    '1x1+dw+1x1': tied(
        tied(conv(3, 8, 4, 1, bias=True), conv(4, 8, 4, 3, groups=4)), conv(4, 8, 3, 1)
    ),
    'conv+pool': tied(conv(3, 10, 4, 3), max_pool((1, 4, 10, 10), windows((10, 10), 3, 2, 1))),
    'pool+conv': tied(max_pool((1, 3, 10, 10), windows((10, 10), 2, 2)), conv(3, 5, 4, 3)),
}


@pytest.mark.parametrize('tile', [{'h': 2}, {'h': 3, 'w': 4}, {'h': 1, 'w': 1}])
@pytest.mark.parametrize('name', CHAINS)
def test_plain_loops_compute_the_reference(name: str, tile: dict[str, int], check) -> None:
    """A halo that is too small, a border that is read as data, a tile whose rest is lost."""
    group = CHAINS[name]
    parallel = (('h', 2),) if tile['h'] < 3 else ()
    check(group, nest_schedule(group, 'portable', tile, parallel))


def products(isa: str) -> list[tuple[Group, Schedule]]:
    """Widths around whole strips, heights around whole tiles, windows, strides, rests of panels."""
    lanes = ISAS[isa].lanes

    def made(
        group: Group, reg: dict, tile: dict, rows: int, wide: int, *cuts, channels: int = 0
    ) -> tuple:
        vectors = {'k': lanes} | reg
        return group, product_schedule(
            group, isa, vectors, tile, rows=rows, lanes=wide, parallel=tuple(cuts),
            channels=channels,
        )  # fmt: skip

    block = block_of(ISAS[isa], 4 * 16)[2]

    edges = [
        made(depthwise(5, lanes + 3, 7, width), {'w': 6}, {'h': 3}, 2, 4, ('h', 2))
        for width in (11, 12, 13)
    ]
    return [
        *edges,
        made(depthwise(4, 2 * lanes, 9, 23, n=2), {'w': 5}, {'h': 4, 'n': 1}, 4, 4, ('n', 2)),
        made(depthwise(6, 9, 7, 7), {'w': 7, 'h': 2}, {'h': 4}, 3, 4, ('k', 2)),
        made(depthwise(3, 7, 13, 37, stride=2), {'w': 8}, {'h': 3}, 2, min(8, lanes), ('h', 3)),
        made(depthwise(3, 7, 12, 18, dilation=2, pad=2), {'w': 6}, {'h': 5}, 3, 4),
        made(depthwise(3, 7, 9, 20, r=5, s=4, pad=2), {'w': 4}, {'h': 1}, 1, 4),
        made(depthwise(3, 4, 2, 3), {'w': 3}, {'h': 2}, 2, 2),
        made(expanded(3, 5, lanes + 3, 9, 11), {'w': 6}, {'h': 2}, 2, 4, ('h', 2)),
        made(expanded(5, lanes + 2, 7, 8, 9, 2, stride=2), {'w': 4}, {'h': 3, 'n': 1}, 2, 4),
        made(expanded(4, 2 * lanes, 9, 7, 10, r=5, s=5, pad=2), {'w': 5}, {'h': 5}, 2, 4, ('k', 2)),
        made(
            expanded(3, 2 * block + 1, lanes + 3, 9, 16, 2), {'w': 6}, {'h': 2, 'n': 1}, 2, 4,
            ('h', 2), channels=block,
        ),
        made(
            expanded(2, 5 * block, 7, 9, 17, stride=2), {'w': 4}, {'h': 5}, 2, 4,
            channels=2 * block,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize('in_turn', TURNS)
def test_products_compute_the_reference(in_turn, isa, check) -> None:
    """Strips that a micro-kernel reads otherwise than the first part wrote them."""
    for group, schedule in taken(products(isa), isa, in_turn):
        check(group, schedule)


def test_products_write_blocks_of_channels(native_isa, check) -> None:
    """A result whose layout the network chose."""
    lanes = ISAS[native_isa].lanes
    group = depthwise(4, 16, 5, 9, out=8)
    reg = {'w': 4, 'kl': lanes}
    check(group, product_schedule(group, native_isa, reg, {'h': 2}, rows=2, lanes=4))


@pytest.mark.parametrize('number', [2, 4, 5, 8, 10, 12, 13])
def test_products_stay_inside_their_buffers(number, native_isa, whole_numbers, tools) -> None:
    """A vector that is loaded beyond a row of the image, or stored beyond a strip."""
    group, schedule = products(native_isa)[number]
    arrays = whole_numbers(group, 1)
    source, flags = generate(group, schedule), compiler_flags(schedule)
    for out in run_program(group, source, arrays, tools(native_isa), flags):
        np.testing.assert_array_equal(out, reference(group, arrays))


X86 = [isa for isa in ('avx512', 'avx2') if not cannot_run(isa)]


def rows_of_pixels(isa: str) -> list[tuple[Group, Schedule]]:
    """Rows around whole vectors and whole strips, strides, windows, blocks and parts of any height,
    tiles of channels that are not even, epilogues that micro-kernels do not know.
    """
    lanes = ISAS[isa].lanes

    def made(group: Group, tile: tuple[int, int], height: int, rows: int, wide: int, *cuts):
        return group, across_schedule(
            group, isa, tile, height, rows=rows, lanes=wide, parallel=tuple(cuts)
        )

    shape = (5, 11, 7)  # channels in, out, rows
    edges = [
        made(depthwise(*shape, width), (4, 2), 3, 2, 4, ('h', 2))
        for width in (lanes - 1, lanes, lanes + 1, 2 * lanes, 2 * lanes + 1)
    ]
    plain = tied(conv(4, 9, 4, 3, groups=4), conv(4, 9, 6, 1))
    odd = tied(conv(4, 9, 4, 3, groups=4), conv(4, 9, 6, 1, activation='sigmoid'))
    return [
        *edges,
        made(depthwise(4, 7, 9, 4 * lanes + 2, n=2), (3, 3), 4, 3, lanes, ('n', 2)),
        made(depthwise(6, 9, 7, 9 * lanes), (9, 1), 2, 2, lanes, ('k', 2)),
        made(depthwise(3, 7, 13, 2 * lanes + 5, stride=2), (7, 1), 3, 2, 8, ('h', 3)),
        made(depthwise(3, 7, 12, 18, dilation=2, pad=2), (2, 2), 12, 3, 4),
        made(depthwise(3, 7, 9, 20, r=5, s=4, pad=2), (7, 1), 1, 1, 4),
        made(depthwise(3, 5, 7, 7, stride=2), (5, 1), 4, 4, 4),
        made(plain, (3, 2), 5, 2, 8),
        made(odd, (3, 2), 4, 2, 8, ('k', 2)),
    ]


@pytest.mark.isa
@pytest.mark.parametrize('isa', X86)
def test_rows_of_pixels_compute_the_reference_inside_their_buffers(
    isa, whole_numbers, agrees, tools
) -> None:
    """Rows that end inside a strip, vectors that leave a row, a strip's rest that is stored."""
    for group, schedule in rows_of_pixels(isa):
        arrays = whole_numbers(group, 1)
        want = reference(group, arrays)
        source, flags = generate(group, schedule), compiler_flags(schedule)
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert agrees(group, out, want), (group.label, schedule.reg.tiles)


@pytest.mark.parametrize('name', ['1x1+dw+1x1', 'pool+conv'])
def test_plain_loops_stay_inside_their_buffers(name, whole_numbers, tools) -> None:
    """A region that is larger than the scratch memory that was asked for."""
    group = CHAINS[name]
    schedule, arrays = nest_schedule(group, 'portable', {'h': 3, 'w': 2}), whole_numbers(group, 1)
    source, flags = generate(group, schedule), compiler_flags(schedule)
    for out in run_program(group, source, arrays, tools('portable'), flags):
        np.testing.assert_array_equal(out, reference(group, arrays))


MACHINE = known_machine('i7-9700k')


def test_choices_are_few_legal_and_survive_json() -> None:
    """A search that prices what cannot be generated, or a stored choice that comes back changed."""
    for group in (depthwise(32, 64, 28, 28), CHAINS['conv+pool'], CHAINS['1x1+dw+1x1']):
        found = list(chain_choices(group, 'avx2', 2, 3))
        assert 0 < len(found) <= 260
        for schedule in found[::7]:
            assert Schedule.from_json(schedule.to_json()) == schedule
            assert 'tw_part' in generate(group, schedule)
            lines = SCHEMAS['chain'].lines(group, schedule)
            assert any('cache' in line or 'compute (conv2d' in line for line in lines)


@pytest.mark.parametrize('group', [depthwise(4, 20, 4, 4), expanded(4, 4, 20, 4, 4)])
def test_every_choice_for_a_small_image_computes_the_reference(group, native_isa, check) -> None:
    """Register tiles as high as wide: what lies side by side in a strip is not a row."""
    found = list(chain_choices(group, native_isa, 2, 3))
    assert found
    for schedule in found[:: max(1, len(found) // 4)]:
        check(group, schedule)


def test_halos_cost_time() -> None:
    """A model to which rows that are computed again are free."""
    group = depthwise(32, 64, 28, 28)
    times = [
        predict(group, product_schedule(
            group, 'avx2', {'w': 6, 'k': 16}, {'h': rows}, rows=min(rows, 2), lanes=8), MACHINE,
        ).seconds
        for rows in (1, 2, 4)
    ]  # fmt: skip
    assert times == sorted(times, reverse=True)
    group = CHAINS['conv+conv']
    small, large = (
        predict(group, nest_schedule(group, 'avx2', tile), MACHINE)
        for tile in ({'h': 1, 'w': 1}, {})
    )
    assert small.seconds > large.seconds > large.bound_s


def test_regions_cost_time() -> None:
    """A model to which a region is free, whatever its size; an image that is read again as well."""
    group = expanded(16, 96, 24, 112, 112, stride=2)
    made = {
        (height, channels): predict(group, product_schedule(
            group, 'neon', {'w': 4, 'h': 2, 'k': 12}, {'h': height}, rows=4, lanes=4,
            channels=channels), known_machine('neoverse-n1'),
        ).seconds
        for height, channels in ((28, 6), (28, 0), (4, 6), (4, 0))
    }  # fmt: skip
    assert made[28, 6] < made[28, 0]  # six planes stay in the second cache, all of them do not
    assert made[4, 0] < made[4, 6]  # either way in a cache, so that reading again is all there is


def test_blocks_that_no_cache_holds_cost_time() -> None:
    """A model to which strips are near, however large they are, or halos of small blocks free."""
    group, machine = depthwise(256, 256, 56, 56), known_machine('i9-10980xe')
    times = {
        height: predict(
            group, across_schedule(group, 'avx512', (9, 3), height, rows=4, lanes=16), machine
        ).seconds
        for height in (1, 8, 56)
    }
    assert times[8] < times[1]
    assert times[8] < times[56]


def test_chains_alone_are_searched() -> None:
    """Groups without a chain whose kernels would change, or a chain that is not found."""
    alone = conv2d(c=8, h=12, w=12, k=8, r=3, s=3, pad=1, groups=8)
    assert SCHEMAS['chain'].why_not(alone)
    assert {c.schedule.schema for c in rank(alone, MACHINE, 1, 20)} == {'stencil'}
    group = depthwise(8, 16, 12, 12)
    assert {c.schedule.schema for c in rank(group, MACHINE, 2, 20)} == {'chain'}


def _changed(**changes) -> Schedule:
    return replace(PRODUCT, **changes)


SMALL = depthwise(4, 8, 6, 9)
PRODUCT = product_schedule(SMALL, 'portable', {'w': 4, 'k': 4}, {'h': 2}, rows=2, lanes=4)
CUT = product_schedule(SMALL, 'portable', {'w': 4, 'k': 4}, {'w': 4}, rows=2, lanes=4)
TURNED = product_schedule(SMALL, 'portable', {'h': 2, 'w': 1, 'k': 4}, {'h': 2}, rows=2, lanes=4)
EXPANDED = expanded(3, 6, 8, 6, 9, 2)
SEVERAL = product_schedule(EXPANDED, 'portable', {'w': 4, 'k': 4}, {'h': 2}, rows=2, lanes=4)
ODD = product_schedule(
    EXPANDED, 'portable', {'w': 4, 'k': 4}, {'h': 2, 'n': 1}, rows=2, lanes=4, channels=5
)
FOUR = depthwise(4, 8, 6, 6, before=tied(conv(2, 6, 3, 1), conv(3, 6, 4, 1)))
ACROSS = across_schedule(SMALL, 'avx2', (4, 1), 2, rows=2, lanes=4)
POOLED = nest_schedule(CHAINS['conv+pool'], 'portable', {})
SUMMED = nest_schedule(CHAINS['conv+conv'], 'portable', {'c': 2})


@pytest.mark.parametrize(
    ('group', 'schedule', 'why'),
    [
        (conv(3, 8, 4, 3), nest_schedule(SMALL, 'portable', {}), 'no inner tensor .* cache'),
        (SMALL, _changed(pack=''), 'packs nothing; name the level'),
        (SMALL, _changed(options=(('lanes', 4),)), "needs the option 'rows'"),
        (SMALL, _changed(options=(('rows', 2), ('lanes', 3))), 'lanes=3 is not a vector'),
        (SMALL, _changed(options=(('rows', 0), ('lanes', 4))), 'rows=0 .* at least 1'),
        (SMALL, _changed(parallel=(('c', 2),)), r"\['c'\] cannot be cut between threads"),
        (SMALL, CUT, 'has 4 of 9 columns; choose whole rows'),
        (SMALL, TURNED, 'hold h side by side; choose a register tile that is longer along w'),
        (SMALL, POOLED, 'the schedule tiles .*; the last part has'),
        (CHAINS['conv+conv'], SUMMED, r"cuts \['c'\], which are summed over"),
        (EXPANDED, SEVERAL, 'has 2 images and 6 of 6 channels; .* one image and all channels'),
        (EXPANDED, ODD, 'channels=5 of a region are not made of whole blocks of'),
        (EXPANDED, replace(SEVERAL, vector='w', isa='avx2'), 'as the vector dimension two are'),
        (SMALL, replace(ACROSS, options=(('rows', 0), ('lanes', 4))), 'rows=0 .* at least 1'),
        (SMALL, replace(ACROSS, options=(('rows', 2), ('lanes', 16))), 'lanes=16 is not a vector'),
        (SMALL, replace(ACROSS, isa='portable'), 'no micro-kernels along rows'),
        (SMALL, replace(ACROSS, parallel=(('w', 2),)), 'blocks are whole rows'),
        (SMALL, replace(ACROSS, pack=''), 'has one level around reg'),
        (FOUR, PRODUCT, 'has 4 parts; with a vector dimension at most three are chained'),
    ],
)
def test_illegal_schedules_are_refused(group: Group, schedule: Schedule, why: str) -> None:
    """A kernel that computes something else, or an error that does not say what to do."""
    with pytest.raises(ScheduleError, match=why):
        generate(group, schedule)


def test_a_region_that_no_cache_holds_is_refused() -> None:
    """Scratch memory of a thread that is as large as the tensor it should replace."""
    group = tied(conv(64, 512, 64, 1), conv(64, 512, 64, 3))
    with pytest.raises(ScheduleError, match=r'needs \d+ bytes in the cache .* smaller tile'):
        generate(group, nest_schedule(group, 'portable', {}))
