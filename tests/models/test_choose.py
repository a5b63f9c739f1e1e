"""Which algorithms compete, and within which error budget."""

import pytest

import tilewright as tw
from tilewright.errors import InputError
from tilewright.machine.known import known_machine
from tilewright.search.cpu.choose import choose

pytestmark = pytest.mark.usefixtures('few_schedules')
MACHINE = known_machine('i9-10980xe')


def schemas(layer, algorithm, top=4, max_rel_err=1e-4):
    found = choose(tw.parse(layer), MACHINE, 2, top, algorithm, max_rel_err)
    assert len({c.schedule.digest for c in found}) == len(found) <= top
    return [c.schedule.schema for c in found]


def test_each_algorithm_alone():
    assert set(schemas('mopt/R6', 'direct')) == {'outer', 'pixels'}
    assert set(schemas('mopt/R6', 'winograd')) == {'winograd'}


def test_auto_keeps_the_best_of_both():
    assert set(schemas('mopt/R6', 'auto')) == {'outer', 'winograd'}
    assert set(schemas('mopt/R6', 'auto', top=2)) == {'outer', 'winograd'}
    assert len(schemas('mopt/R6', 'auto', top=1)) == 1


@pytest.mark.parametrize('layer', ['mopt/R5', 'mopt/Y5', 'mopt/M3'])
def test_auto_is_direct_where_winograd_does_not_apply(layer):
    assert 'winograd' not in schemas(layer, 'auto')
    with pytest.raises(InputError, match='Winograd cannot be used'):
        schemas(layer, 'winograd')


def test_the_error_budget_decides():
    def largest(max_rel_err):
        found = choose(tw.parse('mopt/R6'), MACHINE, 2, 8, 'winograd', max_rel_err)
        return max(dict(c.schedule.options)['m'] for c in found)

    assert largest(1e-2) >= largest(1e-5) >= 2
    with pytest.raises(InputError, match='--max-rel-err'):
        choose(tw.parse('mopt/R6'), MACHINE, 2, 4, 'winograd', 1e-9)
    assert set(schemas('mopt/R6', 'auto', max_rel_err=1e-9)) == {'outer', 'pixels'}


def test_bad_requests_are_refused():
    with pytest.raises(InputError, match="algorithm 'karatsuba' is not known"):
        schemas('mopt/R6', 'karatsuba')
    with pytest.raises(InputError, match='must be positive'):
        schemas('mopt/R6', 'auto', max_rel_err=0.0)
