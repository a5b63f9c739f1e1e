"""Strassen's products: right for every cut, tile and remainder; one kernel for many sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate, planned
from tilewright.kernels.cpu.schemas.strassen.plan import why_not
from tilewright.kernels.cpu.schemas.strassen.space import strassen_schedule
from tilewright.kernels.cpu.sized import SizedSource, read_source
from tilewright.machine.isa import ISAS
from tilewright.machine.known import known_machine
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group, Tensor
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Stage, call, const, read, var
from tilewright.ops.strassen import LEFT, RIGHT, gather, product_error, spread
from tilewright.schedule.choice import Choice
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.choose import choose
from tilewright.targets.cpu.ranged import cut, for_sizes
from tilewright_lab.simulate.emulate import run_program


def with_residual(group: Group) -> Group:
    """The product, a number for each column and a matrix added to it, then cut off at zero."""
    stage, (m, n) = group.main, group.output.shape
    i, j = var('i'), var('j')
    value = call('add', call('add', read(0), read(1)), read(2))
    more = Stage(
        'finish',
        tuple(d for d in stage.dims if d.kind == 'parallel'),
        Access('D', (i, j)),
        (Access('C', (i, j)), Access('bias', (j,)), Access('more', (i, j))),
        call('max', value, const(0.0)),
        None,
    )
    inner = Tensor('C', ('i', 'j'), (m, n), 'inner')
    tensors = tuple(inner if t.name == 'C' else t for t in group.tensors)
    added = (
        Tensor('bias', ('j',), (n,), 'constant'), Tensor('more', ('i', 'j'), (m, n)),
        Tensor('D', ('i', 'j'), (m, n), 'output'),
    )  # fmt: skip
    return Group(f'{group.label}+more', (*tensors, *added), (stage, more))


def small(group: Group, isa: str, levels: int, parallel=(), high: int = 3, **more) -> Schedule:
    """Three rows by one vector in registers, six rows and two vectors together, pieces of four."""
    lanes = ISAS[isa].lanes
    reg = dict.fromkeys(group.main.sizes, 1) | {'i': high, 'j': lanes}
    chosen = {'rows': 2 * high, 'columns': 2 * lanes, 'deep': 4} | more
    return strassen_schedule(group, isa, 'j', levels, reg, **chosen, parallel=parallel)


@pytest.mark.parametrize('levels', [0, 1, 2, 3])
def test_blocks_of_sums_make_the_product(levels):
    parts, random = 1 << levels, np.random.default_rng(levels)
    a, b = random.normal(size=(3 * parts, 2 * parts)), random.normal(size=(2 * parts, 4 * parts))

    def blocks(x: np.ndarray) -> dict[tuple[int, int], np.ndarray]:
        rows = [np.split(row, parts, axis=1) for row in np.split(x, parts)]
        return {(r, c): rows[r][c] for r in range(parts) for c in range(parts)}

    def combine(terms):
        return sum(sign * value for sign, value in terms)

    left, right = (
        spread(blocks(x), signs, combine, levels) for x, signs in ((a, LEFT), (b, RIGHT))
    )
    assert len(left) == 7**levels
    found = gather([x @ y for x, y in zip(left, right, strict=True)], combine, levels)
    for place, block in blocks(a @ b).items():
        np.testing.assert_allclose(found[place], block, atol=1e-12)


@pytest.mark.isa
@pytest.mark.parametrize('levels', [1, 2])
def test_every_remainder_computes_the_reference(levels, isa, tools, whole_numbers, agrees):
    """Rows that no block has, panels that are not full, pieces of all lengths, parts of threads."""
    lanes, parts = ISAS[isa].lanes, 1 << levels
    for number, (rows, columns, terms, parallel) in enumerate(
        (
            (16 * parts, 2 * lanes, 4, ()),
            (16 * parts + 1, 5 * lanes, 6, (('j', 2),)),
            (16 * parts + parts - 1, 3 * lanes - 1, 9, (('i', 2),)),
        )
    ):
        group = with_residual(matmul(m=rows, n=columns * parts, k=terms * parts))
        schedule = small(group, isa, levels, parallel)
        arrays = whole_numbers(group, number)
        want = reference(group, arrays)
        flags = (*compiler_flags(schedule), '-O1')
        for out in run_program(group, generate(group, schedule), arrays, tools(isa), flags):
            assert agrees(group, out, want), f'{group.label} {schedule.to_json()}'


def test_results_may_be_turned(native_isa, tools, whole_numbers, agrees):
    """Stores that transpose, whose last block reads behind the end of its buffer."""
    lanes = ISAS[native_isa].lanes
    group = matmul(m=67, n=4 * lanes, k=16)
    stage = replace(group.main, write=Access('C', (var('j'), var('i'))))
    turned = Tensor('C', ('j', 'i'), (4 * lanes, 67), 'output')
    group = Group('turned', (*group.tensors[:2], turned), (stage,))
    schedule = small(group, native_isa, 2)
    arrays = whole_numbers(group, 5)
    flags = (*compiler_flags(schedule), '-O1')
    want = reference(group, arrays)
    for out in run_program(group, generate(group, schedule), arrays, tools(native_isa), flags):
        assert agrees(group, out, want)


def test_one_kernel_serves_every_number_of_rows(native_isa, tools, whole_numbers, agrees):
    lanes = ISAS[native_isa].lanes

    def at(rows: int) -> tuple[Group, Schedule]:
        few, many, here = (matmul(m=m, n=4 * lanes, k=16) for m in (2, 200, rows))
        choice = Choice(small(many, native_isa, 2), 1.0, 1.0, 'compute')
        return here, cut(for_sizes(choice, few, many).schedule, here)

    sources = [read_source(generate(*at(rows))) for rows in (*range(64, 72), 130, 200)]
    assert len({source.form for source in sources}) == 1
    made = SizedSource.of([sources[0], sources[3], sources[-1]])
    assert all(made.numbers(source) is not None for source in sources)
    for rows in (64, 67, 101):
        group, schedule = at(rows)
        arrays = whole_numbers(group, rows)
        flags = (*compiler_flags(schedule), '-O1')
        want = reference(group, arrays)
        for out in run_program(group, generate(group, schedule), arrays, tools(native_isa), flags):
            assert agrees(group, out, want)


@pytest.mark.parametrize('levels', [1, 2])
def test_errors_are_as_large_as_expected(levels, native_isa, tools):
    lanes = ISAS[native_isa].lanes
    group = matmul(m=64, n=4 * lanes, k=256)
    random = np.random.default_rng(3)
    arrays = {t.name: random.normal(size=t.shape).astype('f4') for t in group.tensors[:2]}
    want = arrays['A'].astype('f8') @ arrays['B'].astype('f8')
    schedule = small(group, native_isa, levels, deep=64)
    source, flags = generate(group, schedule), compiler_flags(schedule)
    for out in run_program(group, source, arrays, tools(native_isa), flags):
        error = np.abs(out - want).max() / np.abs(want).max()
        assert error < 2 * product_error(256, levels)


def test_large_products_are_computed_so_and_small_ones_are_not():
    machine = known_machine('neoverse-n1')
    large, tiny = matmul(m=384, n=3072, k=768), matmul(m=64, n=64, k=64)
    best = choose(large, machine, 2, 1)[0]
    assert best.schedule.schema == 'strassen'
    assert best.prediction.flops_done == large.flops * 49 // 64
    assert choose(tiny, machine, 2, 1)[0].schedule.schema == 'outer'
    strict = choose(large, machine, 2, 1, max_rel_err=1e-7)[0]
    assert strict.schedule.schema == 'outer'


def test_what_it_does_not_compute_is_said():
    assert 'side by side' in why_not(conv2d(c=64, h=14, w=14, k=64, r=1, s=1))
    assert 'no product of two matrices' in why_not(conv2d(c=8, h=14, w=14, k=64, r=3, s=3, pad=1))
    assert 'fewer than 16 rows' in why_not(matmul(m=31, n=64, k=64))
    assert 'j=65 is no multiple of 2' in why_not(matmul(m=64, n=65, k=64))
    group = matmul(m=64, n=64, k=64)
    good = small(group, 'neon', 2)
    with pytest.raises(ScheduleError, match='the option levels, from 1 to 2'):
        planned(group, Schedule('strassen', 'neon', 'j', good.levels))
    with pytest.raises(ScheduleError, match='leave no registers'):
        planned(group, small(group, 'neon', 2, high=16))
    with pytest.raises(ScheduleError, match='not made of whole register tiles'):
        planned(group, small(group, 'neon', 2, columns=9))
