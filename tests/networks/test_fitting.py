"""Time against memory: weights fit, at the least cost in time."""

from __future__ import annotations

import itertools

import graphs
import pytest

from tilewright.fitting import fit, packed_bytes, weight_limit
from tilewright.graph.fuse import fuse
from tilewright.kernels import build_each, distinct
from tilewright.machine.isa import host_isas
from tilewright.runtime.network import _Library
from tilewright.schedule.space import general_schedule
from tilewright.store.choices import Choice


@pytest.fixture(scope='module')
def program():
    return fuse(graphs.lowered(graphs.branches()), lambda _: 0.0)


def offers(program, table):
    """digest -> choices; table: for every group (seconds, bytes) of its choices."""
    groups = distinct(program)
    chosen, sizes = {}, {}
    for (digest, group), rows in zip(groups.items(), itertools.cycle(table), strict=False):
        made = []
        for number, (seconds, size) in enumerate(rows):
            schedule = general_schedule(group, host_isas()[0], 1, 1 + number % 3)
            made.append(Choice(schedule, seconds, seconds))
            sizes[digest, schedule.digest] = size
        chosen[digest] = tuple(made)
    return chosen, lambda group, schedule: sizes[group.digest, schedule.digest]


TABLE = [
    [(1.0, 100), (1.1, 50), (3.0, 10)],
    [(2.0, 80), (2.5, 20)],
    [(1.0, 10)],
    [(4.0, 200), (4.05, 120)],
]


@pytest.mark.parametrize('limit', [1000, 390, 330, 300, 270, 200, 150, 0])
def test_exchanges_save_what_is_needed(program, limit):
    chosen, size = offers(program, TABLE)
    groups = distinct(program)
    fitted = fit(program, chosen, limit, size)

    def total(of):
        return sum(size(groups[d], found[0].schedule) for d, found in of.items())

    least = sum(min(size(groups[d], c.schedule) for c in found) for d, found in chosen.items())
    assert total(fitted) <= max(limit, least)
    if limit >= total(chosen):
        assert fitted == chosen
    for digest, found in fitted.items():
        assert set(found) <= set(chosen[digest])
        first = size(groups[digest], found[0].schedule)
        if limit < total(chosen):
            assert all(size(groups[digest], c.schedule) <= first for c in found)


def test_the_cheapest_exchange_comes_first(program):
    chosen, size = offers(program, TABLE)
    groups = distinct(program)
    total = sum(size(groups[d], found[0].schedule) for d, found in chosen.items())
    fitted = fit(program, chosen, total - 1, size)
    changed = [number for number, d in enumerate(chosen) if fitted[d][0] != chosen[d][0]]
    assert changed == [3]


def test_sizes_are_those_of_the_kernels(program):
    groups = list(distinct(program).values())
    wanted = [(g, Choice(general_schedule(g, host_isas()[0], 1, 1), 1.0, 1.0)) for g in groups]
    for (group, choice), kernel in zip(wanted, build_each(wanted), strict=True):
        assert packed_bytes(group, choice.schedule) == _Library(kernel.library).packed_bytes
        assert packed_bytes(group, choice.schedule) == _Library(kernel.library).packed_bytes


def test_the_limit_grows_with_the_network(program):
    assert weight_limit(program) == 240 << 20
