"""Products of f16 on every instruction set that has them, against their definition.

On small whole numbers every sum is exact in f16, so that results are equal, element by element;
on others what is added in f16 is off by what its runs allow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.graph.half import half_group
from tilewright.graph.half_rows import ON_CPU, in_rows, row_form
from tilewright.graph.program import Task
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.half.plan import (
    MOST_PRODUCTS,
    RUN,
    draw_half,
    run_error,
    run_of,
    why_not,
)
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.ops.compose import append
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import elementwise
from tilewright.ops.flatten import flatten
from tilewright.ops.functions import leaky_relu, relu, swish
from tilewright.ops.group import Group
from tilewright.ops.integer import in_words, saturated
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import Expr, call, const, read
from tilewright.runtime import verify
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import rank
from tilewright_lab.simulate.emulate import Toolchain, run_program

QUICK, ALL = 10, 600
Tools = Callable[[str], Toolchain]
RELU6 = call('min', call('max', read(0), const(0.0)), const(6.0))
AFTER: tuple[Expr, ...] = (relu(), RELU6, leaky_relu(0.25))


def followed(group: Group, expr: Expr, *others: tuple[int, ...]) -> Group:
    """The group with a function of its result, and of other tensors, behind it."""
    shape = group.output.shape
    found = append(group, elementwise(expr, shape, *others), 'In0' if others else 'In')
    assert found is not None
    return found.group


def drawn(seed: int) -> Group:
    """A convolution or product with any border, stride, groups, epilogue, layout and result."""
    random = Random(seed)
    if random.random() < 0.25:
        group = fixed_product(random.randint(1, 20), random.randint(1, 60), random.randint(1, 90))
    else:
        groups = random.choice((1, 1, 1, 2))
        r, s = random.choice((1, 1, 2, 3)), random.choice((1, 1, 2, 3))
        border = tuple(random.randint(0, 2) for _ in range(4))
        group = conv2d(
            n=random.choice((1, 1, 2)),
            c=groups * (2 * random.randint(1, 5) if groups > 1 else random.randint(1, 40)),
            k=groups * random.choice((random.randint(1, 50), 8 * random.randint(1, 6))),
            h=r + random.randint(2, 9),
            w=s + random.randint(2, 9), r=r, s=s, stride=random.choice((1, 1, 2)),
            pad=random.choice((0, border)), dilation=random.choice((1, 1, 2)), groups=groups,
            bias=random.random() < 0.5,
        )  # fmt: skip
    return finished(group, 'f16', random)


def fixed_product(m: int, n: int, k: int) -> Group:
    """A matrix product with constant weights."""
    group = matmul(m=m, n=n, k=k)
    weights = group.main.reads[1].tensor
    tensors = (replace(t, role='constant') if t.name == weights else t for t in group.tensors)
    return replace(group, tensors=tuple(tensors))


def finished(group: Group, dtype: str, random: Random) -> Group:
    """The group in a 16-bit type, with or without another summand and a function behind it."""
    if random.random() < 0.4:
        group = followed(group, call('add', read(0), read(1)), group.output.shape)
    if random.random() < 0.6:
        group = followed(group, random.choice(AFTER))
    made = half_group(group, dtype, last=random.random() < 0.8)
    if random.random() < 0.2:  # results of networks stay as callers know them
        tensors = (replace(t, dtype='f32') if t.role == 'output' else t for t in made.tensors)
        made = replace(made, tensors=tuple(tensors))
    elif random.random() < 0.4:
        made = quantised(made, dtype, random)
    return made


def quantised(group: Group, half: str, random: Random) -> Group:
    """Results of f16 or bf16 as 8-bit numbers, by a scale of which whole numbers and quarters are
    exact multiples; many of them are beyond the limits.
    """
    dtype, zero = random.choice((('u8', 0), ('u8', 128), ('u8', 37), ('i8', -128), ('i8', 5)))
    expr = saturated(call('div', read(0), const(random.choice((0.25, 0.125)))), const(zero), dtype)
    after = elementwise(expr, group.output.shape, dtypes=[half], out=dtype, name='quantize')
    found = append(group, after, 'In')
    assert found is not None
    return found.group


def whole_numbers(group: Group, seed: int) -> dict[str, np.ndarray]:
    """Factors of -1, 0 and 1, so that sums stay exact; anything small beside them."""
    made = verify.random_arrays(group, seed)
    draw = np.random.default_rng(seed)
    factors = {a.tensor for a in group.main.reads}
    for name, array in made.items():
        most = 1 if name in factors else 8
        array[...] = draw.integers(-most, most + 1, array.shape)
    return verify.freeze_all(made)


def schedule_for(group: Group, isa: str, seed: int) -> Schedule | None:
    random = Random(seed)
    found = (draw_half(group, isa, random, 2, 3) for _ in range(20))
    return next((s for s in found if s is not None), None)


def check(seed: int, isa: str, tools: Tools) -> bool:
    """Whether a case was computed; buffers lie flush against pages that cannot be touched."""
    group = drawn(seed)
    if why_not(group):
        return False
    tiled = flatten(group) if seed % 2 else group
    schedule = schedule_for(tiled, isa, seed)
    if schedule is None:
        return False
    arrays = whole_numbers(group, seed)
    assert_exact(group, tiled, schedule, arrays, tools(isa), '-O1')
    return True


def assert_exact(
    group: Group, tiled: Group, schedule: Schedule, arrays: dict[str, np.ndarray],
    tools: Toolchain, level: str,
) -> None:  # fmt: skip
    """Every element is the definition's, with buffers flush against either guard page."""
    want = reference(group, arrays)
    flags = (*compiler_flags(schedule), level)
    for out in run_program(group, generate(tiled, schedule), arrays, tools, flags):
        differ = np.count_nonzero(out != want)
        assert np.array_equal(out, want), f'{group.label}, {differ} of {want.size} differ'


@pytest.mark.isa
def test_random_products_of_whole_numbers_are_the_definition(half, tools: Tools) -> None:
    """Sums, borders, runs, layouts, epilogues and what is stored."""
    assert sum(check(seed, half[1], tools) for seed in range(QUICK)) >= QUICK // 2


@pytest.mark.isa
def test_what_the_model_prefers_of_a_layer_in_place_is_right(half, tools: Tools) -> None:
    """Many tiles of pixels that share weights: floats would ask for the next weights there."""
    group = half_group(conv2d(c=96, k=200, h=14, w=13, r=1, s=1, bias=True), 'f16')
    arrays = whole_numbers(group, 3)
    found = rank(group, known_machine('neoverse-n1'), 1, 2)
    assert found
    for candidate in found:
        flags, tiled = compiler_flags(candidate.schedule), flatten(group)
        source = generate(tiled, candidate.schedule)
        for out in run_program(group, source, arrays, tools(half[1]), flags):
            assert np.array_equal(out, reference(group, arrays))


@pytest.mark.isa
@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_six_hundred_products_of_whole_numbers(half, quarter: int, tools: Tools) -> None:
    seeds = range(QUICK + quarter, QUICK + ALL, 4)
    assert sum(check(seed, half[1], tools) for seed in seeds) >= ALL // 8


@pytest.mark.isa
@pytest.mark.parametrize('run', [1, 4, 8, 64])
def test_errors_are_those_that_runs_allow(half, run: int, tools: Tools) -> None:
    """Longer runs are off by more, and by no more than is expected of them."""
    group = half_group(conv2d(c=128, k=40, h=9, w=9, r=3, s=3, pad=1), 'f16')
    drawings = (schedule_for(group, half[1], seed) for seed in range(100))
    whole = next(s for s in drawings if s and s.levels[1].tile['c'] == 64)
    schedule = replace(whole, options=((RUN, run),))
    draw = np.random.default_rng(7)
    arrays = verify.random_arrays(group, 1)
    for array in arrays.values():
        array[...] = draw.standard_normal(array.shape)
    want = reference(group, arrays)
    (out,) = run_program(
        group, generate(group, schedule), verify.freeze_all(arrays), tools(half[1]),
        (*compiler_flags(schedule), '-O1'), ('end',),
    )  # fmt: skip
    off = np.sqrt(np.mean((out.astype(np.float64) - want) ** 2) / np.mean(want**2))
    expected = run_error(group, schedule)
    assert 0.3 * expected < off < 2 * expected + 2.0**-11


@pytest.mark.isa
@pytest.mark.parametrize(('r', 'stride'), [(3, 2), (7, 2), (11, 4)])
def test_windows_that_are_runs_of_words(half, r: int, stride: int, tools: Tools) -> None:
    """First layers read pixels and channels as one row (graph/half_rows.py)."""
    plain = conv2d(c=3, k=24, h=23, w=26, r=r, s=r, stride=stride, pad=1, bias=True)
    form = row_form(Task('conv', plain, {n: n for n in ('In', 'Ker', 'Bias')}, 'Out'), 'In', ON_CPU)
    assert form is not None
    group = half_group(in_rows(plain, form), 'f16')
    assert why_not(group) == ''
    schedule = schedule_for(group, half[1], r)
    assert schedule is not None
    arrays = whole_numbers(group, r)
    want = reference(group, arrays)
    flags = (*compiler_flags(schedule), '-O1')
    for out in run_program(group, generate(group, schedule), arrays, tools(half[1]), flags):
        assert np.array_equal(out, want)


@pytest.mark.isa
@pytest.mark.parametrize('algorithm', ['direct', 'winograd'])
def test_slices_are_written_in_place(half, algorithm: str, tools: Tools) -> None:
    """A part of a concatenation has the numbers that it has alone, and nothing beside it."""
    alone = half_group(conv2d(c=32, k=40, h=13, w=14, r=3, s=3, pad=1, bias=True), 'f16')
    part = into_slice(alone, 3, 24, 96)
    (found,) = rank(alone, known_machine('neoverse-n1'), 2, 1, algorithm)
    arrays = verify.freeze_all(verify.random_arrays(alone, 1))
    flags = (*compiler_flags(found.schedule), '-O1')
    (want,), (out,) = (
        run_program(g, generate(g, found.schedule), arrays, tools(half[1]), flags, ('end',))
        for g in (alone, part)
    )
    assert np.array_equal(out[..., 24:64], want)
    untouched = verify.poison(np.empty(1, np.float16)).view(np.uint16)[0]
    for rest in (out[..., :24], out[..., 64:]):
        assert (np.ascontiguousarray(rest).view(np.uint16) == untouched).all()


@pytest.mark.isa
def test_functions_follow_on_vectors(half, tools: Tools) -> None:
    """Whatever follows a sum is computed in float32, and rounded as it is stored."""
    group = followed(conv2d(c=16, k=20, h=5, w=7, r=1, s=1, bias=True), swish())
    made = half_group(group, 'f16')
    schedule = schedule_for(made, half[1], 1)
    arrays = verify.freeze_all(verify.random_arrays(made, 1))
    want = reference(made, arrays)
    (out,) = run_program(
        made, generate(made, schedule), arrays, tools(half[1]), compiler_flags(schedule), ('end',)
    )
    assert verify.compare(made, out, want, tolerance=5e-3).ok


def test_runs_are_even_and_bounded():
    """A window of nine takes words of 18 products."""
    for c, r, expected in ((64, 1, 32), (512, 1, 128), (600, 1, 100), (256, 3, 13), (8, 3, 4)):
        form = in_words(flatten(half_group(conv2d(c=c, k=8, h=9, w=9, r=r, s=r), 'f16')), 2)
        assert form is not None
        run = run_of(form.group, 'k')
        assert run == expected
        assert 2 * run * r * r <= MOST_PRODUCTS


def test_what_is_not_a_product_of_f16_is_refused():
    plain = conv2d(c=4, k=8, h=5, w=5, r=3, s=3)
    assert 'not one sum of products of f16' in why_not(plain)
    group = half_group(plain, 'f16')
    assert why_not(group) == ''
    assert 'not one sum of products of f16' in why_not(half_group(plain, 'bf16'))
    schedule = draw_half(group, 'neon', Random(1), 2, 1)
    assert schedule is not None
    with pytest.raises(ScheduleError, match='run=0'):
        generate(group, replace(schedule, options=()))
    assert draw_half(group, 'avx2', Random(1), 2, 1) is None
    assert 'neonhalf' not in list(ISAS)
    assert ISAS['neonhalf'].dtype == 'f16'
