"""Generated stencil kernels against the float64 reference, between guard pages.

Sizes are one below, at and above whole vectors and tiles, so that every edge occurs: shifted
vectors on either side, overlapping ones, rows shorter than a vector, rows of padding.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sampling import TURNS, taken

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.stencil.cover import (
    Axis,
    cover_columns,
    cover_rows,
    gather,
    stencil,
    why_not,
)
from tilewright.kernels.cpu.schemas.stencil.space import stencil_schedule
from tilewright.machine.isa import ISAS
from tilewright.ops.blocked import blocked
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group, Tensor
from tilewright.ops.matmul import matmul
from tilewright.ops.pointwise import pointwise
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate.emulate import run_program


def depthwise(channels: int = 2, **sizes) -> Group:
    return conv2d(c=channels, k=channels, groups=channels, **{'r': 3, 's': 3, 'pad': 1, **sizes})


def edges(isa: str) -> list[tuple[Group, Schedule]]:
    """Widths around whole vectors, heights around whole tiles, stride one and two."""
    lanes, cases = ISAS[isa].lanes, []
    for around, stride in itertools.product((-1, 0, 1), (1, 2)):
        group = depthwise(h=4 * stride + around, w=stride * (3 * lanes + around), stride=stride)
        cases.append((group, stencil_schedule(group, isa, lanes, 2, 2)))
    return cases


def shapes(isa: str) -> list[tuple[Group, Schedule]]:
    """Windows, dilation, strides beyond two, asymmetric and wide padding, images of one pixel."""
    problems = [
        {'h': 9, 'w': 40, 'r': 5, 's': 5, 'pad': 2},
        {'h': 9, 'w': 30, 'dilation': 2, 'pad': 2},
        {'h': 5, 'w': 33, 'r': 2, 's': 4, 'pad': (0, 1, 2, 3)},
        {'h': 10, 'w': 41, 'stride': 3, 'pad': 0},
        {'h': 10, 'w': 41, 'stride': (1, 4), 'pad': 2, 'dilation': (3, 1), 'r': 2},
        {'h': 3, 'w': 5, 'pad': 3},
        {'h': 1, 'w': 1},
        {'h': 2, 'w': 19, 'r': 1, 's': 1, 'pad': 0},
        {'h': 12, 'w': 2, 'r': 3, 's': 1, 'pad': (1, 0)},
    ]
    groups = [depthwise(n=2, **problem) for problem in problems]
    lanes = ISAS[isa].lanes
    return [(group, stencil_schedule(group, isa, lanes, 3, 2)) for group in groups]


def every_other(isa: str) -> list[tuple[Group, Schedule]]:
    """Every other column: zeros on either side of one vector and of two, windows and dilation that
    leave the even ones, residuals that are added behind sums, vectors of all lengths.
    """
    lanes, cases = ISAS[isa].lanes, []
    problems = [
        {'h': 5, 'w': 4 * lanes, 'pad': 0},
        {'h': 5, 'w': 4 * lanes + 1, 'pad': (0, 2, 2, 3)},
        {'h': 7, 'w': 2 * lanes + 3, 's': 5, 'pad': 2, 'bias': True, 'activation': 'relu6'},
        {'h': 7, 'w': 3 * lanes, 'dilation': 2, 'pad': 2},
        {'h': 4, 'w': lanes, 's': 1, 'r': 1, 'pad': 0},
        {'h': 3, 'w': lanes + 1, 'pad': 1},
    ]
    for problem in problems:
        group = depthwise(n=2, stride=2, **problem)
        cases.append((group, stencil_schedule(group, isa, lanes, 3, 2)))
    for few in (2, 4):
        group = depthwise(h=5, w=27, stride=2)
        cases.append((group, stencil_schedule(group, isa, min(few, lanes), 2, 2)))
    for order in ('nkhw', 'nkwh'):
        group = with_residual(order, stride=2)
        cases.append((group, stencil_schedule(group, isa, lanes, 2, 2)))
    return cases


def channels(isa: str) -> list[tuple[Group, Schedule]]:
    """Several filters for a channel, several channels for a filter, narrow vectors, threads."""
    many = conv2d(c=3, k=6, groups=3, h=7, w=18, r=3, s=3, pad=1, bias=True, activation='relu')
    small = conv2d(n=2, c=6, k=4, groups=2, h=7, w=18, r=3, s=3, pad=1, stride=2)
    dense = conv2d(c=3, k=2, h=9, w=20, r=3, s=3, pad=1, bias=True, activation='silu')
    return [
        (many, stencil_schedule(many, isa, 4, 3, 2, (('g', 3),))),
        (many, stencil_schedule(many, isa, 2, 2, 3, (('k', 2), ('h', 2)))),
        (small, stencil_schedule(small, isa, ISAS[isa].lanes, 2, 1, (('n', 2), ('h', 2)))),
        (dense, stencil_schedule(dense, isa, 4, 4, 2, (('h', 3),))),
    ]


def others(isa: str) -> list[tuple[Group, Schedule]]:
    """A residual read along rows and one read along columns; a stencil with no second axis."""
    groups = [with_residual('nkhw'), with_residual('nkwh'), one_axis()]
    return [(group, stencil_schedule(group, isa, ISAS[isa].lanes, 2, 2)) for group in groups]


def with_residual(order: str, stride: int = 1) -> Group:
    """A depthwise convolution to whose result a tensor in this order of dimensions is added."""
    group = depthwise(h=6 * stride, w=21 * stride, stride=stride)
    out = group.output
    dims = tuple(Dim(d, size) for d, size in zip('nkhw', out.shape, strict=True))
    sizes = {d.name: d.size for d in dims}
    other = Tensor('Other', tuple(order), tuple(sizes[d] for d in order))
    inner = Tensor('Sum', out.dims, out.shape, 'inner')
    place = Access('Other', tuple(var(d) for d in order))
    add = pointwise('add', dims, 'Out', 'Sum', call('add', read(0), read(1)), place)
    main = group.main
    moved = Stage(
        main.name, main.dims, Access('Sum', main.write.index), main.reads, main.expr, 'sum'
    )
    tensors = (*group.tensors[:2], other, inner, out)
    return Group(f'{group.label}+residual', tensors, (moved, add), (('Sum', 'register'),))


def one_axis() -> Group:
    """A filter along rows, with names that mean something in C."""
    stage = Stage(
        'smooth',
        (Dim('vec', 3), Dim('out', 37), Dim('zero', 4, 'reduction')),
        Access('Y', (var('vec'), var('out'))),
        (
            Access('X', (var('vec'), affine(('out', 1), ('zero', 1), const=-2))),
            Access('F', (var('zero'),)),
        ),
        call('mul', read(0), read(1)),
        'sum',
    )
    tensors = (
        Tensor('X', ('c', 'x'), (3, 36)),
        Tensor('F', ('s',), (4,), 'constant'),
        Tensor('Y', ('c', 'x'), (3, 37), 'output'),
    )
    return Group('smooth', tensors, (stage,))


@pytest.mark.parametrize('in_turn', TURNS)
@pytest.mark.parametrize('cases', [edges, shapes, every_other, channels, others])
def test_kernels_are_right_and_stay_inside_their_buffers(
    isa, cases, in_turn, tools, whole_numbers, agrees
):
    for number, (group, schedule) in enumerate(taken(cases(isa), isa, in_turn)):
        arrays = whole_numbers(group, number)
        want = reference(group, arrays)
        flags = (*compiler_flags(schedule), '-O1')
        for out in run_program(group, generate(group, schedule), arrays, tools(isa), flags):
            assert agrees(group, out, want), f'{group.label} {schedule.to_json()}'


def test_the_optimised_build_is_right(native_isa, whole_numbers, check):
    for stride in (1, 2):
        group = depthwise(channels=4, h=15, w=30, stride=stride, bias=True, activation='relu6')
        check(group, stencil_schedule(group, native_isa, ISAS[native_isa].lanes, 4, 3), stride)


def test_parts_write_disjoint_outputs_that_cover_all(native_isa, part_by_part, whole_numbers):
    group = depthwise(channels=4, h=11, w=13)
    schedule = stencil_schedule(group, native_isa, 4, 2, 2, (('k', 2), ('h', 3)))
    written = sum((~np.isnan(o)).astype(int) for o in
                  part_by_part(group, schedule, whole_numbers(group, 1)))  # fmt: skip
    assert written.min() == written.max() == 1


def test_tiles_inside_come_as_one_and_edges_on_their_own():
    axis = Axis('h', 12, 12, 1, ('r',), ((0,), (1,), (2,)), (-1, 0, 1))
    top, inside, bottom = cover_rows(axis, 3)
    assert (top.start, top.count, top.times) == (0, 3, 1)
    assert top.reads == ((None, 0, 1), (0, 1, 2), (1, 2, 3))
    assert (inside.start, inside.times) == (3, 2)
    assert inside.reads == ((0, 1, 2), (1, 2, 3), (2, 3, 4))
    assert bottom.reads[-1] == (10, 11, None)


def test_the_last_vector_overlaps_the_one_before():
    axis = Axis('w', 14, 14, 1, ('s',), ((0,), (1,), (2,)), (-1, 0, 1))
    starts = [x for strip in cover_columns(axis, 4, 2) for x in strip.starts]
    assert starts == [0, 4, 8, 10]
    narrow = cover_columns(Axis('w', 3, 3, 1, (), ((),), (0,)), 4, 2)
    assert [strip.width for strip in narrow] == [3]


def test_vectors_are_loaded_inside_the_row():
    assert gather((None, 0, 1, 2), 1, 9).loads == (0,)  # shifted by one lane
    assert gather((6, 7, 8, None), 1, 9).loads == (5,)
    assert gather((3, 4, 5, 6), 1, 9).plain
    even, odd = gather((2, 4, 6, 8), 2, 20), gather((3, 5, 7, 9), 2, 20)
    assert even.loads == odd.loads == (2, 6)
    assert gather((3, 5, 7, 9), 2, 9 + 1).loads == (2, 6)
    assert gather((0, 3, 6, 9), 3, 20).loads == ()  # element by element
    assert gather((0, 1, None, None), 1, 2).loads == ()  # the row is shorter than a vector


def test_roles_follow_from_the_description():
    shape = stencil(conv2d(c=4, k=8, groups=4, h=9, w=9, r=3, s=2, pad=(1, 0)))
    assert (shape.across.name, shape.down.name) == ('w', 'h')
    assert (shape.outer, shape.loops, shape.taps) == (('n', 'g', 'k'), ('c',), 6)
    assert shape.down.taps == (-1, 0, 1)


@pytest.mark.parametrize(
    ('group', 'says'),
    [
        (matmul(m=8, n=8, k=8), 'slide along'),
        (blocked(conv2d(c=4, k=4, h=6, w=6, r=3, s=3), {'Out': 4}), 'slide along'),
        (depthwise(h=20, w=20, r=13, s=13, pad=0), '169 taps'),
    ],
)
def test_what_does_not_slide_is_refused(group, says):
    assert says in why_not(group)
    with pytest.raises(ScheduleError, match='cannot compute it'):
        stencil(group)


def changed(schedule: Schedule, **fields) -> Schedule:
    return Schedule.from_json(schedule.to_json() | fields)


def test_illegal_schedules_are_refused():
    group = depthwise(h=8, w=20)
    good = stencil_schedule(group, 'neon', 4, 2, 2)
    wide = stencil_schedule(group, 'neon', 4, 2, 3)
    reg, l1 = good.to_json()['levels']
    cases = [
        (changed(good, options=[]), "needs the option 'lanes'"),
        (changed(good, options=[['lanes', 8]]), 'not a vector of neon'),
        (changed(good, options=[['lanes', 3]]), 'not a vector of neon'),
        (changed(good, vector='h'), 'rows lie along w'),
        (changed(good, pack='l1'), 'in place'),
        (changed(good, parallel=[['w', 2]]), 'cannot be cut'),
        (changed(good, parallel=[['r', 3]]), 'cannot be cut'),
        (changed(wide, options=[['lanes', 4]], isa='avx2',
                 levels=[with_tile(reg, w=6), with_tile(l1, w=24)]), 'multiple of 4 lanes'),
        (changed(good, levels=[with_tile(reg, k=2), l1]), 'must be 1'),
        (changed(good, levels=[with_tile(reg, r=1), l1]), 'cuts'),
        (changed(good, levels=[reg, with_tile(l1, h=4)]), 'cuts'),
    ]  # fmt: skip
    for schedule, words in cases:
        with pytest.raises(ScheduleError, match=words):
            generate(group, schedule)
    large = depthwise(h=40, w=400, r=7, s=7, pad=3)
    with pytest.raises(ScheduleError, match='smaller register tiles'):
        generate(large, stencil_schedule(large, 'neon', 4, 20, 20))


def with_tile(level: list, **tiles: int) -> list:
    name, order, old = level
    return [name, order, [[d, tiles.get(d, size)] for d, size in old]]
