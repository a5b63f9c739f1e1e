"""Ranking: deterministic, legal, distinct, never better than the bound, with or without solver."""

from functools import cache

import pytest
from sampling import covering

import tilewright as tw
from tilewright.errors import InputError, MissingError
from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.schemas.outer.space import assemble, register_tiles
from tilewright.kernels.cpu.space import CACHE_LEVELS, thread_cuts, whole_tile
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.model.cpu.outer_time import predict_outer
from tilewright.search.cpu import rank, rank_outer


@cache
def ranked(layer, threads):
    """Candidates for one processor, which several tests look at."""
    return rank.rank(tw.parse(layer), known_machine('i7-9700k'), threads, 4)


@pytest.mark.parametrize(
    ('threads', 'layer'), covering([1, 3], ['mopt/R9', 'mopt/R1', 'mopt/Y5', 'mopt/M9'])
)
def test_candidates_are_distinct_legal_and_ranked(layer, threads):
    group, found = tw.parse(layer), ranked(layer, threads)
    assert 1 <= len(found) <= 4
    assert len({c.schedule.digest for c in found}) == len(found)
    times = [c.prediction.seconds for c in found]
    assert times == sorted(times)
    for candidate in found:
        assert candidate.schedule.threads <= threads
        assert candidate.prediction.seconds >= candidate.prediction.bound_s
        assert 'tw_part' in generate(group, candidate.schedule)


def test_ranking_is_deterministic():
    assert ranked.__wrapped__('mopt/Y5', 1) == ranked('mopt/Y5', 1)


def test_a_missing_solver_is_no_obstacle(monkeypatch):
    def missing(*_args, **_options):
        raise MissingError('no casadi')

    group, machine = tw.parse('mopt/Y5'), known_machine('i7-9700k')
    monkeypatch.setattr(rank_outer, 'SHAPES', 1)
    with_solver = rank.rank(group, machine, 1, 1)[0]
    monkeypatch.setattr(rank_outer, 'solve', missing)
    without = rank.rank(group, machine, 1, 1)[0]
    assert without.prediction.seconds <= 1.1 * with_solver.prediction.seconds


@pytest.mark.parametrize('layer', ['mb1ic3ih64oc32oh32kh3sh2ph1', 'mb1ic64ih28oc64oh14kh1sh2ph0'])
def test_strides_are_priced_as_copies_that_have_none(layer):
    """Register tiles that pass to the solver: among them is one of those that the model of the
    whole schedule likes best, though pixels of a row do not lie side by side in the image.
    """
    group, machine = rank_outer.flatten(tw.parse(layer)), known_machine('neoverse-n1')
    roles = contract(group, 'k')
    pack, seconds = CACHE_LEVELS[0], {}
    ranked = rank_outer.shapes(group, roles, machine, 1)
    for shape in ranked:
        whole = (whole_tile(group.main, shape.reg),)
        orders = (tuple(group.main.sizes),)
        schedule = assemble(group, 'neon', 'k', shape.reg, whole, orders, shape.parallel, pack)
        seconds[str(shape.reg)] = predict_outer(group, schedule, machine).seconds
    kept = min(seconds[str(shape.reg)] for shape in ranked[: rank_outer.SHAPES])
    assert kept <= 1.06 * min(seconds.values())


def test_register_tiles_fit_and_hide_latency():
    for name in ('avx512', 'avx2', 'neon'):
        isa, roles = ISAS[name], contract(tw.parse('mopt/R2'), 'k')
        tiles = list(register_tiles(roles, isa))
        assert tiles
        for tile in tiles:
            pixels, vectors = tile['h'] * tile['w'], tile['k'] // isa.lanes
            assert registers_needed(pixels, vectors) <= isa.registers
            assert pixels * vectors >= isa.fma_per_cycle * isa.fma_latency_cycles


def test_thread_cuts_multiply_to_the_threads():
    stage = tw.parse('mopt/R2').main
    cuts = list(thread_cuts(stage, 6))
    assert (('k', 6),) in cuts
    assert (('k', 2), ('h', 3)) in cuts
    for cut in cuts:
        product = 1
        for name, ways in cut:
            assert name in stage.parallel
            product *= ways
        assert product == 6


def test_top_must_be_positive():
    with pytest.raises(InputError, match='top=0'):
        rank.rank(tw.parse('mopt/R9'), known_machine('i7-9700k'), 1, 0)
