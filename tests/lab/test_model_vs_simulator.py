"""The LRU model and its predicate, against hand-worked counts and against the cache simulator.

The sampling is that of src/tilewright_lab/scripts/model_vs_simulator.py, on smaller problems and
fewer samples.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tilewright.errors import InputError
from tilewright.model.cpu.traffic import level_volumes
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.schedule.schedule import Level
from tilewright_lab.simulate.cachesim import SimCache, simulate
from tilewright_lab.simulate.predicate import claims, mopt_agrees
from tilewright_lab.simulate.reuse import Loop, dense_strides, lru_volumes, nest


def _bench():
    path = (
        Path(__file__).parents[2] / 'src' / 'tilewright_lab' / 'scripts' / 'model_vs_simulator.py'
    )
    spec = importlib.util.spec_from_file_location('model_vs_simulator', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


bench = _bench()


def untiled(order, stage):
    """Single steps in this order, inside a cache tile that is the whole problem."""
    return [
        Level.of('reg', tuple(order), dict.fromkeys(stage.sizes, 1)),
        Level.of('l1', tuple(order), stage.sizes),
    ]


def test_the_nest_has_no_loop_of_one_trip():
    stage = matmul(m=8, n=6, k=5).main
    levels = [
        Level.of('reg', ('i', 'j', 'k'), {'i': 2, 'j': 6, 'k': 1}),
        Level.of('l1', ('k', 'j', 'i'), {'i': 8, 'j': 6, 'k': 2}),
    ]
    assert nest(levels, stage.sizes) == (Loop('k', 2, 5), Loop('i', 2, 8), Loop('k', 1, 2))


def test_strides_of_another_fastest_index():
    assert dense_strides((2, 3, 4), 2) == (12, 4, 1)
    assert dense_strides((2, 3, 4), 0) == (1, 8, 2)
    assert dense_strides((2, 3, 4), 1) == (12, 1, 3)
    assert dense_strides((), 0) == ()


@pytest.mark.parametrize(
    ('capacity', 'expected'),
    [
        # all 768 words fit: each moves once, C twice
        (768, {'C': 512, 'A': 256, 'B': 256}),
        # A's row is reused over j (window: the row, a column of B, C: 34), B's columns are not
        # reused over i (window: all of B)
        (100, {'C': 512, 'A': 256, 'B': 4096}),
        # not even the row of A survives, and accumulators are evicted while they are in registers:
        # filled to be read, filled again to be written, written back
        (20, {'C': 768, 'A': 4096, 'B': 4096}),
    ],
)
def test_matrix_product_by_hand(capacity, expected):
    """C[i,j] += A[i,k] B[k,j], 16 x 16 x 16, loops i j k: three regimes, by hand and replayed."""
    stage = matmul(m=16, n=16, k=16).main
    levels = untiled('ijk', stage)
    assert lru_volumes(stage, levels, stage.sizes, [capacity]) == [expected]
    assert simulate(stage, levels, [SimCache(capacity)]).words(0) == expected


def test_partial_reuse_of_a_window_by_hand():
    """Loops h, w, then r, s: rows of the window survive from w to w, and from h to h if all fit."""
    stage = conv2d(c=1, k=1, h=12, w=12, r=3, s=3).main
    levels = untiled('nkchwrs', stage)
    small, large = (lru_volumes(stage, levels, stage.sizes, [c])[0] for c in (25, 60))
    # two columns of three words stay from w to w: each row of outputs reads 3 rows of 12
    assert small == {'Out': 200, 'In': 10 * 3 * 12, 'Ker': 9}
    # two rows stay from h to h: everything is read once
    assert large == {'Out': 200, 'In': 144, 'Ker': 9}
    for capacity, volumes in ((25, small), (60, large)):
        assert simulate(stage, levels, [SimCache(capacity)]).words(0) == volumes


def test_a_second_cache_keeps_what_the_first_loses():
    stage = matmul(m=16, n=16, k=16).main
    levels = untiled('ijk', stage)
    first, second = lru_volumes(stage, levels, stage.sizes, [100, 768])
    assert first == {'C': 512, 'A': 256, 'B': 4096}
    assert second == {'C': 512, 'A': 256, 'B': 256}


def test_lines_count_whole():
    """Rows of 16 words in lines of 8: a column step of B touches 16 lines, half of them used."""
    stage = matmul(m=4, n=16, k=16).main
    levels = untiled('ijk', stage)
    (found,) = lru_volumes(stage, levels, stage.sizes, [8 * 24], line_words=8)
    assert found == {'C': 128, 'A': 64, 'B': 4 * 256}
    replayed = simulate(stage, levels, [SimCache(24)], line_words=8).words(0)
    assert replayed == found
    (column_major,) = lru_volumes(
        stage, levels, stage.sizes, [8 * 24], line_words=8, layout={'B': 0}
    )
    assert column_major == {'C': 128, 'A': 64, 'B': 4 * 256}


CASES = [
    bench.Case('dense', conv2d(n=1, c=8, k=10, h=10, w=9, r=3, s=3).main, (304,), 1, {}),
    bench.Case('product', matmul(m=48, n=40, k=56).main, (400,), 1, {}),
    bench.Case('product', matmul(m=40, n=64, k=48).main, (2048,), 16, {}),
    bench.Case('product', matmul(m=40, n=32, k=36).main, (152, 900), 1, {}),
    bench.Case(
        'depthwise',
        conv2d(n=1, c=10, k=10, h=15, w=14, r=3, s=3, groups=10).main,
        (400,),
        1,
        {},
    ),
    bench.Case(
        'strided', conv2d(n=1, c=6, k=8, h=15, w=17, r=3, s=3, stride=2).main, (400,), 1, {}
    ),
]


@pytest.mark.parametrize(
    'case',
    [pytest.param(c, marks=[pytest.mark.slow] * (c.name in ('dense', 'strided'))) for c in CASES],
    ids=[f'{c.name}-{len(c.capacities)}-{c.line}' for c in CASES],
)
def test_volumes_within_a_tenth_of_the_simulation_where_claimed(case):
    found = bench.compare(case, 8, seed=3)
    assert found['claimed'] > 0.7
    assert found['within'] >= 0.9


def test_mopt_and_the_simulator_agree_where_its_assumptions_hold():
    """A tile of 16 x 8 x 8 (320 words) in 400: adjacent tiles together exceed the cache."""
    stage = matmul(m=64, n=64, k=64).main
    levels = [
        Level.of('reg', ('k', 'i', 'j'), {'i': 4, 'j': 4, 'k': 1}),
        Level.of('l1', ('i', 'j', 'k'), {'i': 16, 'j': 8, 'k': 8}),
    ]
    assert claims(stage, levels, stage.sizes, [400])
    assert mopt_agrees(stage, levels, stage.sizes, [400])
    plain = level_volumes(stage, levels, stage.sizes)[1]
    assert plain == {'C': 2 * 64 * 64, 'A': 8 * 64 * 64, 'B': 4 * 64 * 64}
    replayed = simulate(stage, levels, [SimCache(400)]).words(0)
    assert sum(replayed.values()) == pytest.approx(sum(plain.values()), rel=0.1)


def test_mopt_gives_up_reuse_that_a_roomy_cache_keeps():
    stage = matmul(m=64, n=64, k=64).main
    levels = [
        Level.of('reg', ('k', 'i', 'j'), {'i': 4, 'j': 4, 'k': 1}),
        Level.of('l1', ('i', 'j', 'k'), {'i': 16, 'j': 8, 'k': 8}),
    ]
    verdict = mopt_agrees(stage, levels, stage.sizes, [6000])
    assert not verdict
    assert 'keeps reuse that MOpt gives up' in verdict.reason


def test_the_predicate_says_why_not():
    stage = matmul(m=16, n=16, k=16).main
    levels = [untiled('ijk', stage)[0], Level.of('l1', ('i', 'j', 'k'), {'i': 4, 'j': 4, 'k': 4})]
    assert claims(stage, levels, stage.sizes, [100])
    tight = claims(stage, levels, stage.sizes, [49])
    assert not tight
    assert 'needs 48 words, more than 95% of 49' in tight.reason
    # B (8 x 64) is reused over i through all of B, two rows of A and a row of C: about 650 words
    deep = matmul(m=8, n=8, k=64).main
    rows = [untiled('ijk', deep)[0], Level.of('l1', ('i', 'j', 'k'), {'i': 1, 'j': 1, 'k': 64})]
    assert claims(deep, rows, deep.sizes, [560])
    assert claims(deep, rows, deep.sizes, [700])
    edge = claims(deep, rows, deep.sizes, [648])
    assert not edge
    assert 'cache 0 is at an edge' in edge.reason
    with pytest.raises(InputError, match='1 levels were given for 1 caches'):
        claims(stage, levels[:1], stage.sizes, [100])
