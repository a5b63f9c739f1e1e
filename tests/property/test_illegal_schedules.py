"""Schedules that are not legal are refused with ScheduleError: no crash, and never wrong code."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from problems import SEEDS, convolutions, groups, schedule_of

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.front import plan_front
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.pointwise import typed_epilogue
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.outer.space import assemble
from tilewright.kernels.cpu.space import whole_tile
from tilewright.machine.isa import ISAS, host_isas
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group, Tensor
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Access, Dim, Stage, call, const, read, var
from tilewright.schedule.schedule import Level, Schedule

CONV = conv2d(c=8, h=10, w=10, k=16, r=3, s=3, pad=1)
REG = dict.fromkeys(CONV.main.sizes, 1) | {'w': 4, 'k': 8}
WHOLE = whole_tile(CONV.main, REG)
ORDER = tuple(CONV.main.sizes)


def legal(**changes) -> Schedule:
    schedule = assemble(CONV, 'neon', 'k', REG, (WHOLE, WHOLE), (ORDER, ORDER), (('k', 2),), 'l1')
    return replace(schedule, **changes)


def level(name: str, order: tuple[str, ...] = ORDER, **tiles: int) -> Level:
    base = REG if name == 'reg' else WHOLE
    return Level.of(name, order, base | tiles)


def with_reg(order: tuple[str, ...] = ORDER, **tiles: int) -> Schedule:
    reg = level('reg', order, **tiles)
    outer = {d: max(WHOLE[d], t) for d, t in reg.tile.items()}
    return legal(levels=(reg, Level.of('l1', ORDER, outer), Level.of('l2', ORDER, outer)))


def test_the_schedule_that_the_others_change_is_legal():
    assert 'tw_part' in generate(CONV, legal())


@pytest.mark.parametrize(
    ('make', 'says'),
    [
        (lambda: legal(isa='sse9'), 'not an instruction set'),
        (
            lambda: legal(schema='guess'),
            'not a CPU schema.*outer, dot, half, tiles, strip, byte_strip, narrow, general',
        ),
        (lambda: legal(vector='w'), 'vector dimension'),
        (lambda: legal(vector=''), 'vector dimension'),
        (lambda: legal(vector='z'), 'vector dimension'),
        (lambda: legal(pack=''), 'must pack'),
        (lambda: legal(pack='reg'), 'pack'),
        (lambda: legal(pack='l7'), 'not a level'),
        (lambda: legal(parallel=(('c', 2),)), 'cannot be cut'),
        (lambda: legal(parallel=(('z', 2),)), 'cannot be cut'),
        (lambda: legal(parallel=(('k', 2), ('k', 2))), 'twice'),
        (lambda: legal(parallel=(('k', 0),)), 'at least 1'),
        (lambda: legal(levels=legal().levels[:1], pack=''), 'only the level reg'),
        (lambda: legal(levels=()), 'reg'),
        (lambda: legal(levels=legal().levels[1:], pack=''), 'reg'),
        (lambda: with_reg(k=6), 'multiple'),
        (lambda: with_reg(c=2), 'only pixel dimensions'),
        (lambda: with_reg(h=2, w=10), 'registers'),
        (lambda: with_reg(h=4, w=4), 'registers'),
        (lambda: with_reg(order=('c', *(d for d in ORDER if d != 'c'))), 'innermost'),
        (lambda: legal(levels=(level('reg'), level('l1', k=12), level('l2'))), 'neither'),
        (lambda: legal(levels=(level('reg'), level('l1', r=1), level('l2'))), 'unrolled'),
        (lambda: legal(levels=(level('reg'), level('l1'), level('l2', c=4))), 'shrink'),
        (lambda: level('l1', w=0), 'at least 1'),
        (lambda: level('l1', order=ORDER[1:]), 'orders'),
    ],
)
def test_an_illegal_schedule_is_refused(make, says):
    with pytest.raises(ScheduleError, match=says) as caught:
        generate(CONV, make())
    assert '\n' not in str(caught.value)


def test_a_schedule_of_another_operator_is_refused():
    product = matmul(m=8, n=8, k=8)
    general = general_schedule(product, 'portable', 1, 2)
    with pytest.raises(ScheduleError, match='tile'):
        generate(CONV, general)
    with pytest.raises(ScheduleError):
        generate(product, legal())


def test_doubles_are_refused():
    tensors = tuple(replace(t, dtype='f64') for t in CONV.tensors)
    with pytest.raises(ScheduleError, match='f32'):
        generate(replace(CONV, tensors=tensors), legal())


def pointwise_pair(index: tuple, *, before: bool = False) -> Group:
    """A row sum with a pointwise stage behind it, or before it."""
    i, j = Dim('i', 4), Dim('j', 4)
    flat = (Access('X', (var('i'), var('j'))),)
    double = call('mul', read(0), const(2.0))
    if before:
        stages = (
            Stage('twice', (i, j), Access('T', (var('i'), var('j'))), flat, double),
            Stage(
                'sum', (i, Dim('j', 4, 'reduction')), Access('Y', (var('i'),)),
                (Access('T', (var('i'), var('j'))),), read(0), 'sum',
            ),
        )  # fmt: skip
        tensors = (Tensor('T', ('i', 'j'), (4, 4), 'inner'), Tensor('Y', ('i',), (4,), 'output'))
    else:
        stages = (
            Stage(
                'sum', (i, j, Dim('c', 3, 'reduction')), Access('T', (var('i'), var('j'))),
                (Access('X', (var('i'), var('j'), var('c'))),), read(0), 'sum',
            ),
            Stage(
                'twice', (i, j), Access('Y', (var('i'), var('j'))), (Access('T', index),), double,
            ),
        )  # fmt: skip
        tensors = (
            Tensor('T', ('i', 'j'), (4, 4), 'inner'), Tensor('Y', ('i', 'j'), (4, 4), 'output'),
        )  # fmt: skip
    shape = (4, 4) if before else (4, 4, 3)
    return Group('pair', (Tensor('X', tuple('ijc'[: len(shape)]), shape), *tensors), stages)


def test_an_epilogue_that_reads_another_point_is_refused():
    straight, turned = (var('i'), var('j')), (var('j'), var('i'))
    good = pointwise_pair(straight)
    assert 'tw_part' in generate(good, general_schedule(good, 'portable', 1, 1))
    bad = pointwise_pair(turned)
    with pytest.raises(ScheduleError, match='another point'):
        typed_epilogue(bad)


def test_a_value_read_at_another_point_is_a_part_of_its_own(check):
    group = pointwise_pair((var('j'), var('i')))
    check(group, general_schedule(group, host_isas()[0], 1, 1))


def test_a_stage_before_the_main_one_is_for_the_general_schema(check):
    group = pointwise_pair((), before=True)
    schedule = general_schedule(group, host_isas()[0], 1, 1)
    check(group, schedule)
    with pytest.raises(ScheduleError, match='use the general schema'):
        generate(group, replace(schedule, schema='outer', vector='i'))
    with pytest.raises(ScheduleError, match='before sum'):
        plan_front(group)


def test_the_general_schema_does_not_tile():
    product = matmul(m=8, n=8, k=8)
    order = ('i', 'j', 'k')
    tile = Level.of('reg', order, {'i': 4, 'j': 8, 'k': 8})
    with pytest.raises(ScheduleError, match='does not'):
        generate(product, Schedule('general', 'portable', '', (tile,)))


TILE = st.integers(1, 40)


@settings(max_examples=60)
@given(group=groups(), seed=SEEDS, data=st.data())
def test_a_disturbed_schedule_is_refused_or_right(check, group, seed, data):
    """Change anything at random: what is still accepted still computes the reference."""
    isa = host_isas()[0]
    schedule = schedule_of(group, isa, seed)
    names = list(group.main.sizes)
    with contextlib.suppress(ScheduleError):
        number = data.draw(st.integers(0, len(schedule.levels) - 1))
        chosen = schedule.levels[number]
        tiles = chosen.tile | {data.draw(st.sampled_from(names)): data.draw(TILE)}
        order = tuple(data.draw(st.permutations(names)))
        levels = list(schedule.levels)
        levels[number] = Level.of(chosen.name, order, tiles)
        packs = st.sampled_from(['', *(v.name for v in levels)])
        ways = st.tuples(st.sampled_from(names), st.integers(1, 3))
        disturbed = replace(
            schedule,
            levels=tuple(levels),
            parallel=tuple(data.draw(st.lists(ways, max_size=2))),
            pack=data.draw(packs) if schedule.schema == 'outer' else '',
        )
        generate(group, disturbed)
        check(group, disturbed, seed)


@given(group=convolutions(), seed=SEEDS, name=st.sampled_from(list(ISAS)))
def test_generation_does_not_depend_on_what_came_before(group, seed, name):
    schedule = schedule_of(group, name, seed)
    assume(schedule.schema == 'outer')
    assert generate(group, schedule) == generate(group, schedule)
