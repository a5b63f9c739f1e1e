"""Copied tiles whose micro-kernels ask for the panels that come next, where caches are far."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.outer import plan
from tilewright.kernels.cpu.schemas.outer.plan import Ahead, plan_outer
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.machine.isa import ISAS
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.schedule.schedule import Level, Schedule
from tilewright_lab.simulate.emulate import run_program

ORDER = ('n', 'k', 'c', 'r', 's', 'h', 'w')
WINDOW = conv2d(c=6, h=9, w=5, k=40, r=3, s=3, pad=1)
POINT = conv2d(c=6, h=1, w=21, k=40, r=1, s=1)


def copied(group: Group, isa: str, rows: int, columns: int, **inner: int) -> Schedule:
    """Tiles of `rows` x `columns` pixels by one vector, panel by panel."""
    stage = group.main
    tile = dict.fromkeys(stage.sizes, 1) | {'h': rows, 'w': columns, 'k': ISAS[isa].lanes}
    whole = whole_tile(stage, tile)
    levels = (
        Level.of('reg', register_order(stage), tile),
        Level.of('l1', ORDER, whole | {'k': tile['k']} | inner),
        Level.of('l2', ORDER, whole),
    )
    return Schedule('outer', isa, 'k', levels, (('k', 2),), pack='l2')


@pytest.mark.isa
@pytest.mark.parametrize('inner', [{}, {'c': 4}])
@pytest.mark.parametrize(('group', 'tile'), [(WINDOW, (2, 5)), (POINT, (1, 4))])
def test_kernels_that_ask_ahead_compute_the_reference(
    isa, tools, whole_numbers, agrees, monkeypatch, group, tile, inner
):
    monkeypatch.setattr(plan, 'FAR_BYTES', 0)
    schedule = copied(group, isa, *tile, **inner)
    asks = not ISAS[isa].by_lane
    assert bool(plan_outer(group, schedule).ahead) == asks
    arrays = whole_numbers(group, 0)
    want = reference(group, arrays)
    source, flags = generate(group, schedule), compiler_flags(schedule)
    assert ('*next' in source) == asks
    for out in run_program(group, source, arrays, tools(isa), flags):
        assert agrees(group, out, want)


def test_tiles_share_what_comes_next(monkeypatch):
    """Five tiles along h, or six along w; an iteration has all taps of a window."""
    small = plan_outer(WINDOW, copied(WINDOW, 'avx512', 2, 5))
    assert small.ahead is None  # caches keep panels that are so small
    monkeypatch.setattr(plan, 'FAR_BYTES', 0)

    def ahead(group: Group, rows: int, columns: int, **inner: int) -> Ahead | None:
        return plan_outer(group, copied(group, 'avx512', rows, columns, **inner)).ahead

    assert ahead(WINDOW, 2, 5) == Ahead('h', '0', 2, 6 * 9 * 16, 29, shares=5)  # of 9 x 16 floats
    assert ahead(POINT, 1, 4) == Ahead('w', '0', 4, 6 * 16, 3, shares=6)
    # With channels in two pieces the second piece of the same panel comes next.
    assert ahead(WINDOW, 2, 5, c=4) == Ahead('h', '0', 2, 4 * 9 * 16, 29, shares=5)
    assert ahead(WINDOW, 3, 5) is None  # three tiles are too few


def test_only_kernels_of_floats_that_broadcast_ask_ahead(monkeypatch):
    monkeypatch.setattr(plan, 'FAR_BYTES', 0)
    assert plan_outer(WINDOW, copied(WINDOW, 'neon', 2, 5)).ahead is None
    words = replace(copied(WINDOW, 'avx2', 2, 5), dtype='i16', accumulation='i32')
    assert plan_outer(WINDOW, words).ahead is None
