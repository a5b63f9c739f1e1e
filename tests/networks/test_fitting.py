"""Time against memory: weights fit, at the least cost in time."""

from __future__ import annotations

import itertools

import graphs
import pytest

from tilewright.graph.fuse import fuse
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.winograd.plan import tile
from tilewright.machine.isa import host_isas
from tilewright.machine.measure import load_machine
from tilewright.ops.convolution import conv2d
from tilewright.ops.fully_connected import fully_connected
from tilewright.runtime.cpu.loaded import Library
from tilewright.schedule.choice import Choice
from tilewright.search.cpu.rank_winograd import weight_growth
from tilewright.targets.cpu.choose import GROWTHS, choose_frugal
from tilewright.targets.cpu.fitting import fit, packed_bytes, weight_limit
from tilewright.targets.cpu.kernels import build_each, distinct


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


def test_more_choices_are_asked_for_where_weights_do_not_fit(program):
    large = [(1.0, 10_000), (5.0, 5_000)]
    chosen, size = offers(program, [large])
    groups = distinct(program)
    asked = []

    def offer(wanted):
        asked.extend(group.digest for group in wanted)
        return [
            (Choice(general_schedule(group, host_isas()[0], 2, 1), 1.5, 1.5),) for group in wanted
        ]

    def known(group, schedule):
        return 6_000 if schedule.threads == 2 else size(group, schedule)

    assert fit(program, chosen, 10_000 * len(groups), known, offer) == chosen
    assert not asked
    fitted = fit(program, chosen, 10_000 * len(groups) - 1, known, offer)
    with_weights = [d for d, group in groups.items() if group.with_role('constant')]
    assert set(with_weights) <= set(asked)
    (changed,) = [d for d in groups if fitted[d][0] != chosen[d][0]]
    assert fitted[changed][0].predicted_s == 1.5


@pytest.mark.filterwarnings('ignore:.*nominal figures')
def test_frugal_kernels_have_fewer_weights():
    group = conv2d(c=16, h=14, w=14, k=16, r=3, s=3, pad=1, bias=True)
    machine, _ = load_machine(measure=False)
    (found,) = choose_frugal([group], machine, 1, 1e-3)
    assert found
    growths = [weight_growth(group, tile(choice.schedule)) for choice in found]
    assert all(schema == 'winograd' for schema in (c.schedule.schema for c in found))
    assert max(growths) <= max(GROWTHS)
    assert min(growths) <= min(GROWTHS)
    matrix = fully_connected(n=1, c=8, k=8)
    assert choose_frugal([matrix], machine, 1, 1e-3) == [()]


def test_sizes_are_those_of_the_kernels(program):
    groups = list(distinct(program).values())
    wanted = [(g, Choice(general_schedule(g, host_isas()[0], 1, 1), 1.0, 1.0)) for g in groups]
    for (group, choice), kernel in zip(wanted, build_each(wanted), strict=True):
        assert packed_bytes(group, choice.schedule) == Library(kernel.library).packed_bytes
        assert packed_bytes(group, choice.schedule) == Library(kernel.library).packed_bytes


def test_the_limit_grows_with_the_network(program):
    assert weight_limit(program) == 240 << 20
