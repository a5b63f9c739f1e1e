"""Pixels across the lanes, between guard pages: extents around every tile edge, AVX-512 and AVX2.

A register tile of channels x rows x vectors may end early in each direction, a block that is
copied may end in a register tile, threads may end anywhere, and the last vector in any lane.
"""

from __future__ import annotations

import itertools

import pytest
from sampling import TURNS

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate, planned
from tilewright.kernels.cpu.isa.x86_rows import RowKernel, emit
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.pixels.plan import why_no_pixels
from tilewright.kernels.cpu.schemas.pixels.space import pixels_choices, pixels_schedule
from tilewright.machine.isa import ISAS
from tilewright.ops.compose import append
from tilewright.ops.convolution import conv1d, conv2d
from tilewright.ops.elementwise import elementwise
from tilewright.ops.flatten import flatten
from tilewright.ops.front import put_in_front
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.ops.stage import Expr, call, const, read
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate.emulate import cannot_run, run_program

SUM = call('add', read(0), read(1))
SCALED = call('max', call('add', call('mul', read(0), read(1)), read(2)), const(0.0))
SMOOTH = call('add', call('tanh', call('mul', read(0), read(1))), read(2))
X86 = [isa for isa in ('avx512', 'avx2') if not cannot_run(isa)]


def joined(group: Group) -> Group:
    """A residual, which lies as results do, behind a convolution."""
    found = append(group, elementwise(SUM, group.output.shape, group.output.shape), 'In0')
    assert found is not None
    return found.group


def fronted(expr: Expr, conv: Group) -> Group:
    """A convolution of what `expr` makes of its image and two numbers for each channel."""
    shape = conv.tensor('In').shape
    each, roles = (shape[1], 1, 1), ['input', 'constant', 'constant']
    before = elementwise(expr, shape, each, each, roles=roles, name='before')
    made = put_in_front(before, conv, 'In')
    assert made is not None
    return made.group


def cases(isa: str) -> list[tuple[Group, Schedule]]:
    lanes, made = ISAS[isa].lanes, []

    def take(group: Group, tile: tuple[int, int, int], block: int, cut: tuple = ()) -> None:
        made.append((group, pixels_schedule(flatten(group), isa, tile, block, cut, 'l2')))

    # One run of pixels: tails of lanes, of vectors, of strips in a block, of channels.
    for more, channels in itertools.product((-1, 0, 1), (5, 6, 7)):
        group = conv2d(n=2, c=5, h=1, w=4 * lanes + more, k=channels, r=1, s=1, bias=True)
        take(group, (3, 1, 2), 2 * lanes)
    take(conv2d(c=9, h=5, w=lanes, k=4, r=1, s=1), (4, 1, 3), 3 * lanes, (('hw', 2),))
    take(conv2d(c=4, h=3, w=2 * lanes, k=4, r=1, s=1), (4, 1, 2), 2 * lanes, (('k', 2),))  # idle
    take(conv2d(c=12, h=3, w=3 * lanes, k=9, r=1, s=1), (3, 1, 3), 3 * lanes, (('k', 2), ('hw', 2)))
    # Rows shorter than a vector: several that follow are in reach of a load behind the last pixel.
    for pixels, channels in itertools.product((1, 2, 3, 7), (2, 5, 9)):
        take(conv2d(c=channels, h=1, w=pixels, k=4, r=1, s=1), (3, 1, 2), 2 * lanes)
    take(conv2d(c=4, h=3, w=7, k=7, r=1, s=1, activation='relu6'), (2, 1, 1), 1, (('k', 2),))
    take(joined(conv2d(n=2, c=6, h=5, w=lanes + 1, k=5, r=1, s=1, bias=True)), (3, 1, 2), 64)
    # Weights that the next tile of channels will read are asked for: lines behind the last, too.
    take(conv2d(c=515, h=2, w=lanes, k=600, r=1, s=1), (4, 1, 1), 64)
    # The last few pixels: with the strip before them, in a block of their own, and by themselves
    # where registers are full; weights that are asked for with several lines at a time.
    for more, block in itertools.product((1, 2, 4), (2 * lanes, 64)):
        group = conv2d(n=2, c=7, h=1, w=2 * lanes + more, k=9, r=1, s=1, bias=True)
        take(joined(group), (3, 1, 2), block, (('hw', 2),))
        take(group, (lanes // 2 - 2, 1, 2), block)
        take(conv2d(c=6, h=1, w=lanes + more, k=8, r=1, s=1, activation='silu'), (4, 1, 1), 64)
    take(conv2d(c=515, h=1, w=lanes + 1, k=135, r=1, s=1, bias=True), (7, 1, 1), 64)
    # Windows: rows of several vectors, several rows of one, and what is padded.
    for rows, more in itertools.product((4, 5), (-1, 0, 1)):
        window = {'r': 3, 's': 3, 'pad': 1, 'bias': True, 'activation': 'relu'}
        take(conv2d(c=3, h=rows, w=2 * lanes + more, k=5, **window), (3, 1, 2), 2)
        take(conv2d(c=3, h=rows, w=lanes + more, k=4, **window), (2, 2, 1), 4, (('h', 2),))
    strided = {'r': 3, 's': 3, 'pad': (1, 0, 0, 2), 'stride': 2}
    take(conv2d(c=3, h=9, w=2 * lanes + 3, k=3, **strided), (2, 2, 1), 2)
    take(conv2d(c=2, h=11, w=31, k=5, r=5, s=4, pad=2, stride=(2, 3)), (3, 1, 1), 3)
    take(conv2d(c=2, h=17, w=40, k=5, r=7, s=7, pad=3, stride=2, bias=True), (5, 2, 1), 4)
    take(conv2d(c=6, h=7, w=9, k=5, r=1, s=1, stride=2), (5, 2, 1), 2, (('h', 2), ('k', 1)))
    take(conv2d(c=2, h=9, w=lanes + 4, k=3, r=3, s=2, dilation=(2, 3), pad=2), (3, 1, 2), 3)
    take(joined(conv2d(n=3, c=3, h=5, w=9, k=6, r=3, s=3, pad=1)), (3, 2, 1), 2, (('n', 2),))
    take(conv1d(n=2, c=4, w=2 * lanes + 5, k=5, s=3, pad=1, bias=True), (3, 1, 2), 64)
    # An epilogue that micro-kernels do not know, with operands of channels and of results.
    take(
        joined(conv2d(c=3, h=5, w=19, k=6, r=3, s=3, pad=1, bias=True, activation='silu')),
        (3, 2, 1),
        2,
    )
    take(
        conv2d(n=2, c=6, h=5, w=9, k=5, r=1, s=1, bias=True, activation='leaky_relu'), (3, 1, 2), 64
    )
    # What comes before the products, as vectors and element by element.
    for expr, more in itertools.product((SCALED, SMOOTH), (-1, 0, 1)):
        flat = conv2d(n=2, c=5, h=1, w=3 * lanes + more, k=6, r=1, s=1, bias=True)
        take(fronted(expr, flat), (3, 1, 2), 2 * lanes)
        rows = conv2d(n=2, c=3, h=5, w=2 * lanes + more, k=5, r=1, s=1, stride=2)
        take(fronted(expr, rows), (5, 2, 1), 2, (('h', 2),))
    take(fronted(SCALED, conv2d(c=9, h=5, w=lanes, k=4, r=1, s=1)), (4, 1, 3), 64, (('k', 2),))
    return made


@pytest.mark.parametrize('in_turn', TURNS)
@pytest.mark.parametrize('isa', X86)
def test_pixels_compute_the_reference_inside_their_buffers(
    isa, in_turn, tools, whole_numbers, agrees
):
    found = cases(isa)
    place = X86.index(isa)
    for number, (group, schedule) in enumerate(found):
        if (number % len(X86) == place) != in_turn:
            continue
        arrays = whole_numbers(group, 0)
        want = reference(group, arrays)
        source, flags = generate(group, schedule), compiler_flags(schedule)
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert agrees(group, out, want), (group.label, schedule.reg.tiles)


@pytest.mark.parametrize('size', [1, 7, 9, 63, 64, 65, 120])
def test_channels_are_shared_out_evenly(size):
    group = conv2d(c=3, h=4, w=16, k=size, r=1, s=1)
    schedule = pixels_schedule(flatten(group), 'avx512', (min(9, size), 1, 1), 16, (), 'l2')
    counts = planned(group, schedule).counts
    assert sum(counts) == size
    assert max(counts) - min(counts) <= 1
    assert len(counts) == -(-size // 9)
    half = len(counts) // 2
    assert abs(sum(counts[:half]) - size * half / len(counts)) < 1  # of each of two threads


def test_whole_strips_are_copied_as_they_are_multiplied():
    """Where nothing comes before the products; what is left of a run is copied by itself."""

    def source(group: Group, tile: tuple[int, int, int]) -> int:
        schedule = pixels_schedule(flatten(group), 'avx512', tile, 64, (), 'l2')
        text = generate(group, schedule)
        copying = '_copy(weights, pixels' in text
        assert copying == (planned(flatten(group), schedule).source_pitch > 0)
        assert ('copy_tile(image, (float *)pixels, x, end)' in text) == copying
        return planned(flatten(group), schedule).source_pitch

    assert source(conv2d(c=5, h=4, w=17, k=6, r=1, s=1), (3, 1, 2)) == 68
    assert source(conv2d(c=5, h=1, w=31, k=6, r=1, s=1), (3, 1, 2)) == 0  # no strip is whole
    assert source(conv2d(c=5, h=1, w=36, k=6, r=1, s=1), (3, 1, 2)) == 0  # nor alone
    assert source(conv2d(c=5, h=1, w=3, k=6, r=1, s=1), (3, 1, 2)) == 0  # nor is there any
    assert source(conv2d(c=5, h=4, w=16, k=6, r=3, s=3, pad=1), (3, 1, 1)) == 0
    assert source(fronted(SCALED, conv2d(c=5, h=4, w=17, k=6, r=1, s=1)), (3, 1, 2)) == 0


def test_masks_are_for_vectors_that_are_not_whole():
    """Zen takes twelve cycles for a masked store, so whole vectors of AVX2 have stores without."""
    kernel = RowKernel('avx2', 3, (0, 8), (0, 8), (1,), (0,), 1, 0, 16, 64, 'rows', True, low=0.0)
    whole, cut = emit(kernel).split('7:')
    assert 'vmaskmov' not in whole
    assert cut.count('vmaskmov') == 3


def test_a_stride_keeps_its_columns_apart_and_leaves_out_rows():
    """Of a 1x1 window with stride 2 one row and one column of two is copied."""
    group = conv2d(c=4, h=8, w=32, k=4, r=1, s=1, stride=2)
    plan = planned(group, pixels_schedule(group, 'avx512', (4, 1, 1), 4, (), 'l2'))
    assert (plan.jump, plan.phases, plan.copied_rows, plan.row) == (2, (0,), 4, 16)
    window = conv2d(c=4, h=8, w=32, k=4, r=3, s=3, stride=2, pad=1)
    plan = planned(window, pixels_schedule(window, 'avx512', (4, 1, 1), 4, (), 'l2'))
    assert (plan.jump, plan.phases, plan.copied_rows, plan.columns) == (1, (0, 1), 9, 32)


def test_choices_fill_the_registers_and_none_are_illegal():
    group = flatten(conv2d(c=64, h=56, w=56, k=64, r=1, s=1))
    for isa in ('avx512', 'avx2'):
        found = list(pixels_choices(group, isa, 2, 3))
        assert found
        for schedule in found:
            plan = planned(group, schedule)
            sums = plan.most * plan.high * plan.wide
            assert ISAS[isa].fma_per_cycle * ISAS[isa].fma_latency_cycles <= sums
            assert sums < ISAS[isa].registers
    assert not list(pixels_choices(group, 'neon', 2, 3))


@pytest.mark.parametrize(
    ('group', 'why'),
    [
        (conv2d(c=4, h=6, w=6, k=4, r=3, s=3, groups=4), 'no convolution'),
        (matmul(m=6, n=5, k=4), 'no convolution'),
    ],
)
def test_other_groups_are_refused(group, why):
    assert why in why_no_pixels(group)
    assert not list(SCHEMAS['pixels'].choices(group, 'avx512', 1, 3))


def test_windows_are_not_copied_by_micro_kernels():
    with pytest.raises(ScheduleError, match='one point of a window'):
        RowKernel(
            'avx2', 2, (0,), (0,), (0,), (0, 1), 1, 0, 16, 64, 'rows', source_pitch=16
        )  # fmt: skip


def test_a_tile_that_needs_more_registers_is_refused():
    group = flatten(conv2d(c=4, h=6, w=64, k=16, r=1, s=1))
    with pytest.raises(ScheduleError, match='10 x 3 vectors need 34 registers; avx512 has 32'):
        planned(group, pixels_schedule(group, 'avx512', (10, 1, 3), 48, (), 'l2'))
    with pytest.raises(ScheduleError, match='has no micro-kernels along rows'):
        RowKernel('neon', 2, (0,), (0,), (0,), (0,), 1, 0, 16, 64, 'rows_neon')
