"""Matrix products that read rows where they lie, and ask for the next piece of the weights."""

from __future__ import annotations

import pytest

from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.operand import rows_in_place
from tilewright.kernels.cpu.schemas.outer.plan import Ahead, plan_outer
from tilewright.kernels.cpu.sized import SizedSource, SourceAtSize, read_source
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.machine.isa import ISAS
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.schedule.schedule import Level, Schedule
from tilewright_lab.simulate.emulate import run_program


def in_place(
    group: Group, isa: str, inner: dict[str, int], order: tuple[str, ...], **options: int
) -> Schedule:
    """Two rows by one vector in registers; `inner` are tiles of l1, walked over in `order`."""
    stage = group.main
    tile = dict.fromkeys(stage.sizes, 1) | {'i': 2, 'j': ISAS[isa].lanes}
    whole = whole_tile(stage, tile)
    levels = (
        Level.of('reg', register_order(stage), tile),
        Level.of('l1', order, whole | {'j': tile['j']} | inner),
        Level.of('l2', order, whole),
    )
    return Schedule('outer', isa, 'j', levels, (('j', 2),), options=tuple(options.items()))


@pytest.mark.isa
def test_rows_in_place_compute_the_reference_whatever_is_asked_for(
    isa, tools, whole_numbers, agrees
):
    lanes = ISAS[isa].lanes
    for more, inner, order, options in (
        (0, {}, 'jki', {}),
        (1, {'k': 4}, 'kji', {}),
        (1, {'k': 3}, 'jki', {'every_i': 1}),  # as a kernel for many sizes
    ):
        group = matmul(m=8 + more, n=3 * lanes + more, k=10)
        schedule = in_place(group, isa, inner, tuple(order), **options)
        ahead = plan_outer(group, schedule).ahead
        assert ahead
        arrays = whole_numbers(group, 0)
        want = reference(group, arrays)
        source, flags = generate(group, schedule), compiler_flags(schedule)
        assert 'next' in source
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert agrees(group, out, want)


def test_the_next_piece_is_along_the_loop_around_the_tiles():
    group = matmul(m=8, n=48, k=10)

    def ahead(inner: dict[str, int], order: str, **options: int) -> Ahead | None:
        return plan_outer(group, in_place(group, 'avx2', inner, tuple(order), **options)).ahead

    assert ahead({}, 'jki') == Ahead('i', '0', 2, 10 * 8, 2, shares=4)  # the next panel: all of k
    assert ahead({'k': 4}, 'jki') == Ahead('i', '0', 2, 4 * 8, 2, shares=4)  # the next four of k
    assert ahead({'k': 4}, 'kji') == Ahead(
        'i', '0', 2, 10 * 8, 2, shares=4
    )  # the same four, next panel
    assert ahead({'i': 4}, 'ijk') is None  # two tiles of a piece
    assert ahead({}, 'jki', every_i=1) == Ahead('i', 'i_l2', 2, 10 * 8, 2, most=2, shares=4)


def test_kernels_for_many_sizes_are_told_how_much_to_ask_for():
    def at(rows: int) -> SourceAtSize:
        group = matmul(m=rows, n=48, k=10)
        return read_source(generate(group, in_place(group, 'avx2', {}, tuple('jki'), every_i=1)))

    few, many, more = at(5), at(10), at(40)
    assert many.form == more.form != few.form  # three tiles ask for none
    joined = SizedSource.of([many, more])
    assert joined.numbers(many) != joined.numbers(more)


def test_only_rows_along_the_reduction_are_read_in_place():
    rows, pixels = matmul(m=8, n=16, k=10), conv2d(c=4, h=4, w=8, k=8, r=1, s=1)
    assert rows_in_place(rows, contract(rows, 'j'))
    assert not rows_in_place(pixels, contract(pixels, 'k'))
