"""Kernels for ranges: code for every remainder, right at each size, in few forms for many sizes.

Schedules have the options `every_DIM`. Sizes are around whole vectors, strips, blocks and tiles,
and kernels run between guard pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.chain.space import product_schedule
from tilewright.kernels.cpu.schemas.stencil.space import stencil_schedule
from tilewright.kernels.cpu.schemas.winograd.space import winograd_schedule
from tilewright.kernels.cpu.sized import SizedSource, joined, read_source
from tilewright.machine.isa import ISAS
from tilewright.ops.chain import chain
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.schedule.choice import Choice
from tilewright.schedule.schedule import Schedule
from tilewright.targets.cpu.ranged import cut, for_sizes
from tilewright_lab.simulate.emulate import run_program

Kind = Callable[[str, int, int], tuple[Group, Schedule]]


def depthwise(taps: int, stride: int) -> Kind:
    """A stencil: tiles of three rows by two vectors."""

    def made(isa: str, h: int, w: int) -> tuple[Group, Schedule]:
        sizes = {'h': h * stride, 'w': w * stride, 'r': taps, 's': taps, 'pad': taps // 2}
        group = conv2d(c=2, k=2, groups=2, stride=stride, bias=True, activation='relu', **sizes)
        return group, stencil_schedule(group, isa, 4, 3, 2, (('h', 2),))

    return made


def separable(taps: int, stride: int) -> Kind:
    """A chain: strips of seven pixels, two rows at a time."""

    def made(isa: str, h: int, w: int) -> tuple[Group, Schedule]:
        sizes = {'h': h * stride, 'w': w * stride, 'r': taps, 's': taps, 'pad': taps // 2}
        first = conv2d(c=3, k=3, groups=3, stride=stride, bias=True, **sizes)
        lanes = ISAS[isa].lanes
        second = conv2d(c=3, h=h, w=w, k=lanes + 1, r=1, s=1, bias=True, activation='relu')
        tied = chain(first, second, second.main.reads[0].tensor)
        assert tied is not None
        reg, tile = {'k': lanes, 'w': 7}, {'h': 3}
        return tied.group, product_schedule(
            tied.group, isa, reg, tile, rows=2, lanes=4, parallel=(('h', 2),)
        )

    return made


def winograd(isa: str, h: int, w: int) -> tuple[Group, Schedule]:
    """Blocks of one by three tiles of 2 x 2 outputs."""
    group = conv2d(c=3, k=ISAS[isa].lanes, h=h, w=w, r=3, s=3, pad=1)
    return group, winograd_schedule(group, isa, 2, 3, 1, 2, (1, 1, 3))


KINDS = {
    'stencil': depthwise(3, 1),
    'wide stencil': depthwise(5, 1),
    'stencil in steps': depthwise(3, 2),
    'chain': separable(3, 1),
    'wide chain': separable(5, 1),
    'chain in steps': separable(3, 2),
    'winograd': winograd,
}


def at(kind: Kind, isa: str, h: int, w: int, most: int = 40) -> tuple[Group, Schedule]:
    """The group of a size, and the schedule that it gets from that of the largest size."""
    group, _ = kind(isa, h, w)
    return group, cut(schedule_for(kind, isa, most), group)


@cache
def schedule_for(kind: Kind, isa: str, most: int) -> Schedule:
    (small, _), (large, schedule) = kind(isa, 4, 4), kind(isa, most, most)
    return for_sizes(Choice(schedule, 1.0, 1.0, 'compute'), small, large).schedule


@pytest.mark.parametrize('name', KINDS)
def test_kernels_are_right_and_stay_inside_their_buffers(
    name, native_isa, tools, whole_numbers, agrees
):
    """A remainder that is computed by the wrong piece of code, or read outside of its row."""
    for number, (h, w) in enumerate([(4, 4), (5, 5), (6, 7), (7, 9), (8, 14), (9, 23), (3, 30)]):
        group, schedule = at(KINDS[name], native_isa, h, w)
        arrays = whole_numbers(group, number)
        flags = (*compiler_flags(schedule), '-O1')
        want = reference(group, arrays)
        for out in run_program(group, generate(group, schedule), arrays, tools(native_isa), flags):
            if name == 'winograd':
                np.testing.assert_allclose(out, want, rtol=0, atol=1e-4 * np.abs(want).max())
            else:
                assert agrees(group, out, want), f'{group.label} {schedule.to_json()}'


@pytest.mark.parametrize('isa', ['neon', 'avx2', 'avx512'])
@pytest.mark.parametrize('name', KINDS)
def test_forms_do_not_grow_with_the_number_of_sizes(name, isa):
    """A library for each size: compilation that takes as long as all sizes by themselves."""

    def form(h: int, w: int) -> str:
        return read_source(generate(*at(KINDS[name], isa, h, w, 90))).form

    # In steps of three sizes have every remainder by 16.
    few = {form(4, w) for w in range(4, 54, 3)} | {form(h, 40) for h in range(4, 54, 3)}
    more = {form(4, w) for w in range(54, 91, 3)} | {form(h, 40) for h in range(54, 91, 3)}
    assert more <= few
    assert len(few) < 16  # of 82 sizes, and most of those of the smallest sizes


@pytest.mark.parametrize('name', KINDS)
def test_few_sizes_show_all_numbers(name):
    """A number that is taken for a constant, since it is the same at the sizes looked at."""
    some = {w: read_source(generate(*at(KINDS[name], 'neon', 20, w))) for w in range(12, 41)}
    forms: dict[str, list[int]] = {}
    for w, source in some.items():
        forms.setdefault(source.form, []).append(w)
    for widths in forms.values():
        shown = [some[w] for w in (*widths[:5], *widths[-2:])]
        (one,) = joined(shown)
        made = SizedSource.of(one)
        assert [w for w in widths if some[w].tables == () and made.numbers(some[w]) is None] == []


def test_tables_that_are_no_beginnings_are_two_libraries():
    text = (
        '/* */\nlong tw_parts(void) { return 1; }\nlong tw_scratch_bytes(void) { return 0; }\n'
        'long tw_packed_bytes(void) { return 0; }\nstatic const int table_0[] = {TABLE};\n'
    )
    tables = ('0, 0, 1, 1', '0, 0, 1', '0, 1, 2, 3', '0, 1')
    sources = [read_source(text.replace('TABLE', table)) for table in tables]
    assert len({source.form for source in sources}) == 1
    parts = joined(sources)
    assert sorted(len(part) for part in parts) == [2, 2]
    assert all(SizedSource.of(p).numbers(m) is not None for p in parts for m in p)
