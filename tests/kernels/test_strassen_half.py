"""Strassen's products of f16: right for every cut and remainder, off by what is predicted.

Against the reference, in memory between pages that cannot be touched. On small whole numbers every
sum is exact in f16, so that results have to be equal.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from test_half_images import Tools, finished, results, whole_numbers
from test_half_kernels import fixed_product

from tilewright.errors import ScheduleError
from tilewright.graph.half import half_group
from tilewright.graph.lowering.result import part_written
from tilewright.kernels.cpu.generate import planned
from tilewright.kernels.cpu.schemas.strassen_half.plan import (
    draw_strassen_half,
    plan_strassen_half,
    predicted_error,
    strassen_half_schedule,
    why_not,
)
from tilewright.machine.known import known_machine
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice, out_of_slice
from tilewright.ops.strassen import half_product_error
from tilewright.runtime import verify
from tilewright.search.cpu.choose import choose
from tilewright.search.cpu.rank import rank
from tilewright.search.cpu.rank_strassen_half import rank_strassen_half

QUICK, ALL = 10, 400


def machine():
    return replace(known_machine('neoverse-n1'), half_one_gflops=80.0, half_all_gflops=160.0)


def pointwise(c: int, k: int, h: int, w: int, **more) -> Group:
    return conv2d(c=c, k=k, h=h, w=w, r=1, s=1, **more)


def drawn(seed: int) -> Group:
    """A 1x1 convolution or a product, of any number of rows, with any epilogue; of some channels of
    a larger image, or into some of them.
    """
    random = Random(seed)
    c, k = 16 * random.randint(1, 6), 16 * random.randint(1, 8)
    if random.random() < 0.25:
        return finished(fixed_product(random.randint(8, 60), k, c), random)
    sizes = {'h': random.randint(3, 9), 'w': random.randint(3, 9), 'n': random.choice((1, 1, 2))}
    made = finished(pointwise(c, k, **sizes, bias=random.random() < 0.6), random)
    if random.random() < 0.3:
        found = out_of_slice(made, 'In', 3, 5, made.tensor('In').shape[3] + 9)
        assert found is not None
        made = found
    elif random.random() < 0.3:
        found = into_slice(made, 3, 8, k + 24)
        assert found is not None
        made = found
    return made


def check(seed: int, isa: str, tools: Tools) -> bool:
    group = drawn(seed)
    schedule = draw_strassen_half(flatten(group), isa, Random(seed), 2, 3)
    if schedule is None:
        return False
    arrays, where = whole_numbers(group, seed), part_written(group)
    want = reference(group, arrays)[where]
    for out in results(group, schedule, arrays, tools(isa)):
        differ = np.count_nonzero(out[where] != want)
        assert not differ, f'case {seed}: {group.label}, {differ} of {want.size} differ'
    return True


@pytest.mark.isa
def test_products_of_whole_numbers_are_the_definition(half, tools: Tools) -> None:
    """Rows that no block has, narrow panels, runs, cuts between threads, epilogues, slices."""
    assert sum(check(seed, half[1], tools) for seed in range(QUICK)) > QUICK // 2


@pytest.mark.isa
@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_hundreds_of_products(half, quarter: int, tools: Tools) -> None:
    seeds = range(QUICK + quarter, QUICK + ALL, 4)
    assert sum(check(seed, half[1], tools) for seed in seeds) > ALL // 8


@pytest.mark.isa
@pytest.mark.parametrize('levels', [1, 2])
@pytest.mark.parametrize('words', [8, 64])
def test_errors_are_those_that_are_predicted(half, levels: int, words: int, tools: Tools) -> None:
    """Off by no more than the model says, and the model does not say too much."""
    group = half_group(pointwise(512, 32, 7, 9), 'f16')
    schedule = strassen_half_schedule(flatten(group), half[1], levels, 8, 1, 8, words)
    arrays = verify.random_arrays(group, 2)
    want = reference(group, arrays)
    for out in results(group, schedule, arrays, tools(half[1])):
        # The model is of the blocks that are made of most products.
        off = np.abs(out.astype(float) - want).std() / want.std()
        assert predicted_error(group, schedule) / 4 < off < predicted_error(group, schedule)


@pytest.mark.isa
def test_sums_of_large_inputs_do_not_overflow(half, tools: Tools) -> None:
    """Four of these inputs together are beyond f16; their products with the weights are not."""
    group = half_group(pointwise(32, 32, 5, 5), 'f16')
    schedule = strassen_half_schedule(flatten(group), half[1], 2, 8, 1, 8, 64)
    arrays = verify.random_arrays(group, 4)
    image, weights = (a.tensor for a in group.main.reads)
    arrays[image][...] = np.where(arrays[image] > 0, 60000.0, 50000.0)
    arrays[weights][...] *= 2.0**-7
    want = reference(group, arrays)
    assert np.abs(want).max() < 2.0**13
    for out in results(group, schedule, arrays, tools(half[1])):
        assert np.isfinite(out).all()
        assert np.abs(out.astype(float) - want).max() < 0.02 * 60000 * 2**-7 * 32**0.5


def test_levels_are_ranked_within_their_error_and_weights() -> None:
    group = half_group(pointwise(512, 512, 14, 14), 'f16')

    def levels(limit: float) -> set[int]:
        found = rank(group, machine(), 2, 50, 'strassen', limit)
        return {dict(c.schedule.options)['levels'] for c in found}

    assert levels(1e-4) == {1, 2}
    assert levels(5e-5) == {1}
    assert not levels(1e-6)
    frugal = rank_strassen_half(group, machine(), 2, 50, 1e-4, 2.0)
    assert {dict(c.schedule.options)['levels'] for c in frugal} == {1}
    assert half_product_error(512, 1, 32) < half_product_error(512, 1, 128)
    assert half_product_error(512, 1, 64) < half_product_error(512, 2, 64)


def test_large_products_take_it_and_short_sums_do_not() -> None:
    for sizes, schema in (((512, 512, 14, 14), 'strassen_half'), ((32, 128, 28, 28), 'half')):
        best = choose(half_group(pointwise(*sizes), 'f16'), machine(), 2, 1)[0].schedule
        assert best.schema == schema


def test_it_refuses_what_it_does_not_have() -> None:
    assert 'product of two matrices' in why_not(
        half_group(conv2d(c=32, k=32, h=9, w=9, r=3, s=3), 'f16')
    )
    assert 'no vectors' in why_not(half_group(pointwise(24, 32, 9, 9), 'f16'))
    assert 'rows for each block' in why_not(half_group(pointwise(32, 32, 1, 7), 'f16'))
    assert 'products of f16' in why_not(pointwise(32, 32, 9, 9))
    assert why_not(half_group(pointwise(32, 32, 9, 9, stride=2), 'f16'))
    group = flatten(half_group(pointwise(64, 64, 9, 9), 'f16'))
    good = strassen_half_schedule(group, 'neon', 2, 8, 2, 8, 8)
    assert planned(group, good).rows == 8
    for bad, words in (
        ({'isa': 'neon'}, 'no arithmetic of f16'),
        ({'parallel': (('c', 2),)}, 'cut between threads'),
        ({'options': (('levels', 3), ('rows', 8), ('run', 8), ('words', 8))}, 'levels'),
        ({'options': (('levels', 2), ('rows', 8), ('run', 40), ('words', 8))}, 'registers'),
        ({'options': (('levels', 2), ('rows', 8), ('run', 8), ('words', 6))}, 'multiple of 4'),
    ):
        with pytest.raises(ScheduleError, match=words):
            plan_strassen_half(group, replace(good, **bad))
