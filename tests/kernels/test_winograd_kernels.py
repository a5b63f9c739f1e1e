"""Generated Winograd kernels against the direct float64 reference, between guard pages.

Sizes are one below, at and above whole tiles, blocks, runs and panels. Transforms round, so results
are compared within a small multiple of what the error model expects.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from sampling import TURNS, taken

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.winograd.plan import (
    plan_winograd,
    split_runs,
    stretch_tiles,
    tile,
    transform_lanes,
)
from tilewright.kernels.cpu.schemas.winograd.space import winograd_schedule
from tilewright.kernels.cpu.schemas.winograd.transform import classes_of
from tilewright.machine.isa import ISAS
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import pointwise
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, call, read, var
from tilewright.ops.winograd import geometry
from tilewright.ops.winograd_error import predicted_error
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate.emulate import run_program


def arrays_of(group: Group, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.standard_normal(t.shape).astype(np.float32)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }


def sizes(isa: str) -> list[tuple[Group, Schedule]]:
    """Output sizes around whole tiles, channels around whole panels, for every m."""
    lanes, cases = ISAS[isa].lanes, []
    every = [(3, 0), (5, 0), (6, 0), *itertools.product((2, 4, 7), (-1, 0, 1))]
    for m, around in every:
        group = conv2d(c=3, k=2 * lanes + around, h=m + around, w=2 * m - around, r=3, s=3, pad=1)
        cases.append((group, winograd_schedule(group, isa, m, 3, 1, 2, (1, 2, 2))))
    return cases


def blocks(isa: str) -> list[tuple[Group, Schedule]]:
    """Blocks that do and do not divide the tiles, runs across rows, several panels, threads."""
    group = conv2d(n=2, c=5, k=3 * ISAS[isa].lanes - 1, h=11, w=25, r=3, s=3, pad=(1, 0, 2, 1))
    choices = [
        (4, 4, 2, 1, (1, 1, 7), ()),
        (4, 4, 1, 2, (1, 2, 3), (('ph', 2),)),
        (4, 5, 1, 1, (2, 3, 7), (('k', 2),)),
        (2, 4, 2, 3, (2, 5, 4), (('n', 2), ('pw', 3))),
        (6, 3, 2, 1, (1, 2, 5), (('ph', 2), ('k', 2))),
        (2, 3, 2, 1, (1, 6, 11), (('pw', 2), ('k', 2))),
    ]
    wide = conv2d(c=2, k=5, h=6, w=150, r=3, s=3, pad=1)  # its rows leave in several stretches
    return [
        *((group, winograd_schedule(group, isa, *choice)) for choice in choices),
        (wide, winograd_schedule(wide, isa, 7, 6, 1, 1, (1, 1, 22))),
    ]


def shapes(isa: str) -> list[tuple[Group, Schedule]]:
    """One-dimensional filters, larger ones, groups, padding of every kind, one-pixel images."""
    lanes = ISAS[isa].lanes
    problems = [
        ({'h': 5, 'w': 19, 'r': 1, 's': 3}, 4, ()),
        ({'h': 19, 'w': 5, 'r': 3, 's': 1, 'pad': (2, 1)}, 4, (('ph', 2),)),
        ({'h': 9, 'w': 10, 'r': 5, 's': 5, 'pad': 2}, 2, ()),
        ({'h': 9, 'w': 10, 'r': 2, 's': 3, 'pad': (1, 2, 0, 0)}, 4, ()),
        ({'h': 7, 'w': 7, 'r': 3, 's': 3, 'pad': (0, 3, 2, 0), 'groups': 2}, 4, (('g', 2),)),
        ({'h': 1, 'w': 1, 'r': 3, 's': 3, 'pad': 1}, 2, ()),
        ({'h': 3, 'w': 41, 'r': 3, 's': 3}, 4, (('pw', 2),)),
    ]
    cases = []
    for problem, m, parallel in problems:
        group = conv2d(c=4, k=2 * lanes + 2, **problem)
        cases.append((group, winograd_schedule(group, isa, m, 4, 2, 1, (1, 2, 4), parallel)))
    return cases


def strided(isa: str) -> list[tuple[Group, Schedule]]:
    """Strides of every kind, points that share weights, tiles that are not square."""
    lanes = ISAS[isa].lanes
    problems = [
        ({'h': 13, 'w': 25, 'stride': 2}, 4, 2, (1, 2, 2), (('k', 2),)),
        ({'h': 14, 'w': 26, 'stride': 2, 'pad': (0, 1, 1, 0)}, 7, 1, (1, 1, 2), ()),
        ({'h': 12, 'w': 25, 'stride': (2, 1), 'n': 2}, (3, 4), 3, (2, 2, 3), (('ph', 2),)),
        ({'h': 11, 'w': 24, 'stride': (1, 2), 'groups': 2}, (2, 5), 2, (1, 3, 2), ()),
        ({'h': 23, 'w': 22, 'stride': 3, 'r': 4, 's': 5}, (2, 3), 2, (1, 2, 2), ()),
        ({'h': 19, 'w': 30, 'stride': 2, 'r': 7, 's': 7, 'pad': 3}, 2, 2, (1, 3, 5), ()),
        ({'h': 9, 'w': 40, 'stride': 2, 'r': 1, 's': 3}, 6, 2, (1, 3, 2), (('pw', 2),)),
        ({'h': 13, 'w': 25}, (4, 2), 2, (1, 2, 4), (('k', 2),)),
        ({'h': 9, 'w': 15}, (1, 7), 2, (1, 3, 2), ()),
        ({'h': 15, 'w': 6, 'stride': 2}, (4, 1), 2, (1, 2, 3), ()),
    ]
    cases = []
    for problem, m, panels, block, parallel in problems:
        group = conv2d(**({'c': 4, 'k': 4 * lanes + 2, 'r': 3, 's': 3, 'pad': 1} | problem))
        cases.append((group, winograd_schedule(group, isa, m, 5, 1, panels, block, parallel)))
    return cases


def moving(isa: str) -> list[tuple[Group, Schedule]]:
    """Weights that are no constants: each thread transforms those of its part in every call."""
    found = [*blocks(isa), *shapes(isa), *strided(isa)]
    return [
        (replace(g, tensors=tuple(replace(t, role=t.role.replace('constant', 'input'))
                                  for t in g.tensors)), schedule)
        for g, schedule in found[::2]
    ]  # fmt: skip


def epilogues(isa: str) -> list[tuple[Group, Schedule]]:
    """Bias and activation; a residual read at the point that is written."""
    plain = conv2d(n=2, c=3, k=7, h=9, w=13, r=3, s=3, pad=1, bias=True, activation='relu')
    smooth = conv2d(c=6, k=6, h=6, w=6, r=3, s=3, pad=1, groups=2, bias=True, activation='silu')
    return [
        (plain, winograd_schedule(plain, isa, 4, 4, 1, 1, (1, 2, 2))),
        (smooth, winograd_schedule(smooth, isa, 2, 4, 1, 1, (1, 2, 3))),
        (with_residual(), winograd_schedule(with_residual(), isa, 4, 4, 1, 1, (1, 1, 2))),
    ]


def rows(isa: str) -> list[tuple[Group, Schedule]]:
    """Rows of results around whole blocks, whole vectors of channels and a few more; with nothing
    behind the sums, with a bias and limits, and with a residual.
    """
    cases = []
    for number, w in enumerate((4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 21, 33, 70)):
        k = 2 * ISAS[isa].lanes + number % 4
        size = {'c': 2, 'k': k, 'h': 5, 'w': w, 'r': 3, 's': 3, 'pad': 1}
        groups = (conv2d(**size), conv2d(**size, bias=True, activation='relu6'))
        for group in (*groups, with_residual(k=k, h=5, w=w)):
            m = 2 + (number + len(cases)) % 3
            cases.append((group, winograd_schedule(group, isa, m, 4, 2, 1, (1, 2, 40))))
    return cases


def with_residual(k: int = 5, h: int = 8, w: int = 9) -> Group:
    """A convolution to whose result another tensor of the same shape is added."""
    group = conv2d(c=3, k=k, h=h, w=w, r=3, s=3, pad=1)
    out = group.output
    dims = tuple(Dim(d, size) for d, size in zip('nkhw', out.shape, strict=True))
    here = tuple(var(d.name) for d in dims)
    inner = Tensor('Sum', out.dims, out.shape, 'inner')
    add = pointwise('add', dims, 'Out', 'Sum', call('add', read(0), read(1)), Access('Other', here))
    main = group.main
    moved = type(main)(
        main.name, main.dims, Access('Sum', main.write.index), main.reads, main.expr, 'sum'
    )
    other = Tensor('Other', out.dims, out.shape, 'input')
    tensors = (*group.tensors[:2], other, inner, out)
    return Group(f'{group.label}+residual', tensors, (moved, add), (('Sum', 'register'),))


@pytest.mark.parametrize('in_turn', TURNS)
@pytest.mark.parametrize('cases', [sizes, blocks, shapes, strided, moving, epilogues, rows])
def test_kernels_are_right_and_stay_inside_their_buffers(isa, cases, in_turn, tools):
    for number, (group, schedule) in enumerate(taken(cases(isa), isa, in_turn)):
        arrays = arrays_of(group, number)
        want = reference(group, arrays)
        limit = 8 * predicted_error(group, tile(schedule)) * np.abs(want).max() + 1e-7
        flags = (*compiler_flags(schedule), '-O1')
        for out in run_program(group, generate(group, schedule), arrays, tools(isa), flags):
            assert np.abs(out - want).max() <= limit, f'{group.label} {schedule.to_json()}'


def test_parts_write_disjoint_outputs_that_cover_all(native_isa, part_by_part):
    group = conv2d(c=3, k=9, h=10, w=11, r=3, s=3, pad=1)
    schedule = winograd_schedule(group, native_isa, 4, 4, 1, 1, (1, 1, 3), (('ph', 2), ('k', 2)))
    outputs = part_by_part(group, schedule, arrays_of(group, 1))
    written = sum((~np.isnan(out)).astype(int) for out in outputs)
    assert written.min() == written.max() == 1


def test_the_same_schedule_gives_the_same_source():
    group = conv2d(c=3, k=9, h=10, w=11, r=3, s=3, pad=1)
    schedule = winograd_schedule(group, 'avx2', 4, 4, 1, 1, (1, 1, 3))
    again = Schedule.from_json(schedule.to_json())
    assert again == schedule
    assert generate(group, schedule) == generate(group, again)


def test_runs_cover_a_block_in_about_equal_even_pieces():
    assert split_runs(28, 14) == (14, 14)
    assert split_runs(34, 14) == (12, 12, 10)
    assert split_runs(9, 9) == (9,)
    assert split_runs(5, 2) == (2, 2, 1)
    assert all(
        sum(split_runs(n, most)) == n and max(split_runs(n, most)) <= most
        for n in range(1, 60)
        for most in range(1, 29)
    )


def test_output_rows_leave_in_stretches_of_whole_vectors():
    # F(7, 3), 8 lanes: 49 * 8 floats a tile, ten tiles fit 4096, eight are a multiple of four.
    assert stretch_tiles(geometry(conv2d(c=2, k=5, h=6, w=150, r=3, s=3), 7), 8) == 8
    assert stretch_tiles(geometry(conv2d(c=2, k=5, h=6, w=150, r=3, s=3), 7), 64) == 4
    # As many for as many vectors of four times the lanes.
    assert stretch_tiles(geometry(conv2d(c=2, k=5, h=6, w=150, r=3, s=3), 7), 32, 16) == 8


def test_narrow_images_use_narrow_vectors():
    assert [transform_lanes(16, columns) for columns in (2, 4, 5, 8, 9, 30)] == [4, 4, 8, 8, 16, 16]
    assert transform_lanes(4, 1) == 4


def changed(schedule: Schedule, **fields) -> Schedule:
    data = schedule.to_json() | fields
    return Schedule.from_json(data)


def test_illegal_schedules_are_refused():
    group = conv2d(c=3, k=9, h=10, w=11, r=3, s=3, pad=1)
    good = winograd_schedule(group, 'neon', 4, 14, 2, 1, (1, 1, 3))
    cases = [
        (changed(good, options=[['m', 4]]), "needs the option 'run'"),
        (changed(good, options=[['m', 4], ['run', 20]]), 'need 43 registers'),
        (changed(good, options=[['m', 1], ['run', 4]]), 'saves nothing'),
        (changed(good, parallel=[['c', 2]]), 'cannot be cut'),
        (changed(good, parallel=[['t', 2]]), 'cannot be cut'),
        (changed(good, pack='l1'), 'no pack level'),
        (changed(good, vector='pw'), 'vector dimension k'),
    ]
    for schedule, words in cases:
        with pytest.raises(ScheduleError, match=words):
            generate(group, schedule)
    dilated = conv2d(c=3, k=9, h=10, w=11, r=3, s=3, pad=1, dilation=2)
    with pytest.raises(ScheduleError, match='dilated'):
        generate(dilated, good)


def test_weights_that_points_share_are_packed_once():
    # F(4, 3) at stride 2: five points of two taps, four of one tap: 36 weights for 81 points.
    group = conv2d(c=16, k=16, h=16, w=16, r=3, s=3, pad=1, stride=2)
    made = plan_winograd(group, winograd_schedule(group, 'neon', 4, 4, 2, 1, (1, 2, 2)))
    assert made.packed_weights == 36 * 16 * 16
    assert [(c.shared, c.weights) for c in made.classes] == [(1, 25), (4, 5), (4, 5), (16, 1)]


def test_the_products_of_a_tile_lie_together_where_no_weight_is_shared():
    group = conv2d(c=16, k=16, h=16, w=16, r=3, s=3, pad=1)
    (only,), floats = classes_of(geometry(group, 4), tiles=16, width=8)
    assert (only.place, only.weight_step) == (0, 8)
    assert only.index_step == 19 * 16  # 36 * 8 floats are 18 lines; an odd number uses every set
    assert floats == 16 * only.index_step
