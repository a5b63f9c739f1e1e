"""Kernels of tiles (AMX) against their definition: in plain C everywhere, on tiles where they are.

Plain C has the instructions as they are defined, and stops where shapes of tiles do not agree. What
a processor does with them is tested on hosts that have tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from test_dot_kernels import appended, arrays_of, bound, with_scale
from test_half_kernels import assert_exact, finished, fixed_product, followed, whole_numbers

from tilewright.errors import InputError, ScheduleError
from tilewright.graph.half import half_group
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.isa.tiles import pieces
from tilewright.kernels.cpu.schemas.dot.plan import draw_dot, plan_dot, why_not
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.interleave.plan import interleave_choices
from tilewright.kernels.cpu.schemas.strip.plan import draw_byte_strip, draw_strip, plan_strip
from tilewright.kernels.cpu.schemas.strip.plan import why_not as why_no_strip
from tilewright.kernels.cpu.schemas.strip.plan import why_not_bytes as why_no_byte_strip
from tilewright.kernels.cpu.schemas.tiles.plan import draw_tiles
from tilewright.kernels.cpu.schemas.tiles.plan import why_not as why_not_bf16
from tilewright.kernels.cpu.schemas.wide.plan import draw_wide
from tilewright.kernels.cpu.schemas.wide.plan import why_not as why_not_wide
from tilewright.machine.isa import ISAS, host_isas, host_tiles, tile_isa
from tilewright.machine.known import known_machine
from tilewright.ops.channels_last import channels_last
from tilewright.ops.convolution import conv2d
from tilewright.ops.describe import dims_of
from tilewright.ops.flatten import flatten
from tilewright.ops.functions import swish
from tilewright.ops.group import Group, Tensor
from tilewright.ops.matmul import matmul
from tilewright.ops.pooling import max_pool
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Stage, call, cast, const, read, var
from tilewright.ops.windows import windows
from tilewright.runtime import verify
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank_dot import rank_dot
from tilewright.search.cpu.rank_tiles import rank_tiles
from tilewright_lab.simulate.emulate import native, run_program

QUICK, MANY = 14, 400
STORES_BF16 = ('portabletiles', 'avx512', 'avx512tiles')  # that integer products are stored from


def tile_rows() -> Iterator[str]:
    """Rows of tiles that this host can run: plain C, and tiles that it has."""
    yield tile_isa('portable')
    yield from (tile_isa(name) for name in host_isas() if host_tiles(name))


def drawn(seed: int) -> Group:
    """A convolution or product of several tiles in each direction, with any border and stride."""
    random = Random(seed)
    image = random.choice(('u8', 'i8'))
    pad = random.randint(0, 127)
    channels = random.choice((3, 4, 20, 24, 64, 72, 128, 200))
    outputs = random.choice((5, 16, 33, 64, 80))
    if random.random() < 0.25:
        rows = random.choice((1, 7, 16, 33, 50))
        group = bound(matmul(m=rows, n=outputs, k=4 * random.randint(1, 60)), image, 0)
    else:
        r, s = random.choice(((1, 1), (1, 1), (3, 3), (1, 3), (2, 5)))
        conv = conv2d(
            n=random.choice((1, 1, 2)), c=channels, k=outputs, h=r + random.randint(2, 5),
            w=s + random.choice((3, 14, 17, 30, 37)), r=r, s=s, stride=random.choice((1, 1, 2)),
            pad=random.choice((0, r // 2, (1, 0, 2, 1))), dilation=random.choice((1, 1, 2)),
            bias=random.random() < 0.5,
        )  # fmt: skip
        group = bound(conv, image, pad)
    if random.random() < 0.7:
        group = with_scale(group, random.choice(('u8', 'i8')), random.randint(0, 100))
    if len(group.output.shape) == 4:
        names = random.choice((set(), {'In'}, {'In', 'Out'}, {'In', 'Out'}))
        group = channels_last(group, names) if names else group
    return group


def schedule_for(group: Group, isa: str, seed: int) -> Schedule | None:
    random = Random(seed)
    image = group.tensor(group.main.reads[0].tensor).dtype
    for _ in range(40):
        found = draw_dot(group, isa, random, 2, 3)
        if found is not None and (found.dtype == image or seed % 5 == 0):
            return found
    return None


def check(seed: int, isa: str) -> bool:
    """Whether a case was computed, between guard pages; every element is the definition's."""
    group = drawn(seed)
    if why_not(group):
        return False
    tiled = flatten(group) if seed % 2 else group
    schedule = schedule_for(tiled, isa, seed)
    if schedule is None:
        return False
    arrays = arrays_of(group, seed)
    level = '-O2' if seed % 2 == 0 else '-O0'
    assert_exact(group, tiled, schedule, arrays, native(), level)
    return True


@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_random_products_in_tiles_are_the_definition(row: str) -> None:
    assert sum(check(seed, row) for seed in range(QUICK)) >= QUICK // 2


@pytest.mark.parametrize('isa', sorted({*tile_rows(), *host_isas()} & {*STORES_BF16}))
def test_sums_of_integers_are_stored_as_bf16(isa: str) -> None:
    """A layer of bytes among layers of bf16: scaled in float32, another bf16 added, rounded once;
    on vectors where a set has them.
    """
    group = bound(conv2d(c=24, k=40, h=5, w=9, r=3, s=3, pad=1), 'u8', 3)
    scaled = call('mul', cast(read(0), 'f32'), const(0.375))
    group = appended(group, scaled, out='f32')
    group = appended(group, call('add', read(0), read(1)), ('bf16', group.output.shape), out='bf16')
    group = channels_last(group, {'In', 'In1', 'Out'})
    arrays, schedule = arrays_of(group, 2), schedule_for(group, isa.removesuffix('tiles'), 5)
    assert schedule is not None
    arrays |= {'In1': np.rint(1e4 * arrays['In1'].astype(np.float32)).astype(arrays['In1'].dtype)}
    arrays, source = verify.freeze_all(arrays), generate(group, schedule)
    assert ('put_bf16' in source) == (ISAS[isa].arch == 'x86_64')
    want = reference(group, arrays)
    for out in run_program(group, source, arrays, native(), (*compiler_flags(schedule), '-O1')):
        assert np.array_equal(out, want.astype(out.dtype))


@pytest.mark.slow
@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_many_products_in_tiles(row: str) -> None:
    assert sum(check(seed, row) for seed in range(QUICK, MANY)) >= MANY // 2


def halves(seed: int) -> Group:
    """A convolution or product of bf16, with any border, stride, epilogue and layout."""
    random = Random(seed)
    outputs = random.choice((5, 16, 33, 64, 80))
    if random.random() < 0.25:
        group = fixed_product(random.choice((1, 7, 33, 50)), outputs, random.randint(1, 90))
    else:
        r, s = random.choice(((1, 1), (1, 1), (3, 3), (1, 3), (2, 5)))
        group = conv2d(
            n=random.choice((1, 1, 2)), c=random.choice((1, 2, 3, 12, 24, 64, 72)), k=outputs,
            h=r + random.randint(2, 5), w=s + random.choice((3, 14, 17, 30)), r=r, s=s,
            stride=random.choice((1, 1, 2)), pad=random.choice((0, r // 2, (1, 0, 2, 1))),
            dilation=random.choice((1, 1, 2)), bias=random.random() < 0.5,
        )  # fmt: skip
    return finished(group, 'bf16', random)


def check_bf16(seed: int, base: str) -> bool:
    """Whether a case was computed: on small whole numbers sums are exact, and so are results."""
    group = halves(seed)
    if why_not_bf16(group):
        return False
    tiled = flatten(group) if seed % 2 else group
    drawings = (draw_tiles(tiled, base, Random(seed), 2, 3) for _ in range(20))
    schedule = next((s for s in drawings if s is not None), None)
    if schedule is None:
        return False
    arrays = whole_numbers(group, seed)
    level = '-O2' if seed % 2 == 0 else '-O0'
    assert_exact(group, tiled, schedule, arrays, native(), level)
    return True


@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_random_products_of_bf16_are_the_definition(row: str) -> None:
    base = row.removesuffix('tiles')
    assert sum(check_bf16(seed, base) for seed in range(QUICK)) >= QUICK // 2


@pytest.mark.slow
@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_many_products_of_bf16(row: str) -> None:
    base = row.removesuffix('tiles')
    assert sum(check_bf16(seed, base) for seed in range(QUICK, MANY)) >= MANY // 2


def in_strips(seed: int) -> Group:
    """A convolution of bf16 or bytes, channels last, with any window, border and epilogue."""
    random = Random(seed)
    r, s = random.choice(((1, 1), (3, 3), (3, 3), (1, 3), (2, 5), (5, 5)))
    stride = random.choice((1, 1, 2, 3))
    conv = conv2d(
        n=random.choice((1, 1, 2)), c=random.choice((4, 8, 24, 64, 72, 160)),
        k=random.choice((5, 16, 33, 64, 80)), h=stride * random.randint(1, 7) + 2 * r,
        w=stride * random.choice((3, 7, 14, 17, 30)) + 2 * s, r=r, s=s, stride=stride,
        pad=random.choice((0, r // 2, (1, 0, 2, 1))), dilation=random.choice((1, 1, 2)),
        bias=random.random() < 0.5,
    )  # fmt: skip
    if seed % 2:
        return finished(conv, 'bf16', random)
    image = random.choice(('u8', 'i8'))
    group = bound(conv, image, random.randint(0, 127))
    if random.random() < 0.7:
        group = with_scale(group, random.choice(('u8', 'i8')), random.randint(0, 100))
    return channels_last(group, {'In', 'Out'})


def check_strip(seed: int, base: str) -> bool:
    """Whether a case was computed, between guard pages; every element is the definition's."""
    group, whole = in_strips(seed), seed % 2 == 0
    if (why_no_byte_strip if whole else why_no_strip)(group):
        return False
    tiled = flatten(group) if seed % 3 else group
    schedule = (draw_byte_strip if whole else draw_strip)(tiled, base, Random(seed), 2, 3)
    if schedule is None:
        return False
    arrays = arrays_of(group, seed) if whole else whole_numbers(group, seed)
    assert_exact(group, tiled, schedule, arrays, native(), '-O0' if seed % 5 == 0 else '-O2')
    return True


@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_random_strips_are_the_definition(row: str) -> None:
    """Tiles that end between rows, begin earlier than they should or look behind an image."""
    base = row.removesuffix('tiles')
    assert sum(check_strip(seed, base) for seed in range(QUICK)) >= QUICK // 2


@pytest.mark.slow
@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_many_strips(row: str) -> None:
    base = row.removesuffix('tiles')
    assert sum(check_strip(seed, base) for seed in range(QUICK, MANY)) >= MANY // 2


def slid(seed: int) -> Group:
    """A depthwise convolution or pooling of bf16, with any window, border, stride and epilogue."""
    random = Random(seed)
    c, r, s = 16 * random.randint(1, 5), random.randint(1, 5), random.randint(1, 5)
    n, h, w = random.choice((1, 2)), 2 * r + random.randint(4, 9), 2 * s + random.randint(4, 20)
    if random.random() < 0.4:
        pad = random.choice((0, 1)) * (r > 2 < s)
        return half_group(
            max_pool((n, c, h, w), windows((h, w), (r, s), random.choice((1, 2)), pad)), 'bf16'
        )
    group = conv2d(
        n=n, c=c, k=c, groups=c, h=h, w=w, r=r, s=s, stride=random.choice((1, 1, 2, 3)),
        dilation=random.choice((1, 1, 2)), bias=random.random() < 0.7,
        pad=random.choice((0, min(r, s) // 2, (1, 0, 2, 1))),
    )  # fmt: skip
    return finished(group, 'bf16', random)


def check_wide(seed: int, base: str) -> bool:
    """Whether a case was computed, between guard pages; every element is the definition's."""
    group = slid(seed)
    schedule = None if why_not_wide(group) else draw_wide(group, base, Random(seed), 2, 3)
    if schedule is None:
        return False
    arrays = whole_numbers(group, seed)
    assert_exact(group, group, schedule, arrays, native(), '-O0' if seed % 5 == 0 else '-O2')
    return True


@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_random_windows_of_bf16_are_the_definition(row: str) -> None:
    """Windows that leave an image, and tiles at the end of a row."""
    base = row.removesuffix('tiles')
    assert sum(check_wide(seed, base) for seed in range(QUICK)) >= QUICK // 2


@pytest.mark.parametrize('row', tuple(tile_rows()))
@pytest.mark.parametrize('draw', [draw_tiles, draw_strip, draw_wide])
def test_one_number_of_bf16_for_all_channels_of_a_pixel_is_widened(draw, row: str) -> None:
    """What follows a sum on vectors reads it as a number, not as its bits."""
    groups = 32 if draw is draw_wide else 1
    group = conv2d(c=32, k=32, h=9, w=17, r=3, s=3, pad=1, groups=groups)
    group = half_group(followed(group, call('mul', read(0), read(1)), (1, 1, 9, 17)), 'bf16')
    isa = row.removesuffix('tiles')
    schedule = next(s for s in (draw(group, isa, Random(n), 2, 2) for n in range(40)) if s)
    assert_exact(group, group, schedule, whole_numbers(group, 3), native(), '-O1')


@pytest.mark.slow
@pytest.mark.parametrize('row', tuple(tile_rows()))
def test_many_windows_of_bf16(row: str) -> None:
    base = row.removesuffix('tiles')
    assert sum(check_wide(seed, base) for seed in range(QUICK, MANY)) >= MANY // 2


@pytest.mark.parametrize('row', tuple(tile_rows()))
@pytest.mark.parametrize('width', [10, 32, 33, 70])
@pytest.mark.parametrize('channels', [1, 2, 3, 4])
def test_inputs_become_pixels_of_bf16(row: str, width: int, channels: int) -> None:
    """Rounded as the definition rounds, with a border, NaN and subnormal numbers among them; rows
    around whole vectors of 32 pixels.
    """
    dims = dims_of((2, 9, width + 3, channels))
    n, y, x, c = (var(d.name) for d in dims)
    image = (n, c, replace(y, const=-2), replace(x, const=-1))
    stage = Stage('convert', dims, Access('Out', (n, y, x, c)), (Access('In', image),), read(0))
    tensors = (
        Tensor('In', ('n', 'c', 'h', 'w'), (2, channels, 6, width)),
        Tensor('Out', tuple(d.name for d in dims), (2, 9, width + 3, channels), 'output', 'bf16'),
    )
    group = Group('convert', tensors, (stage,))
    (schedule,) = interleave_choices(group, row.removesuffix('tiles'), 2, 2)
    arrays = dict(verify.random_arrays(group, channels))
    arrays['In'].ravel()[:5] = np.nan, np.inf, 1e-40, -0.0, 3.4e38
    arrays = verify.freeze_all(arrays)
    want = reference(group, arrays)
    flags = (*compiler_flags(schedule), '-O2')
    for out in run_program(group, generate(group, schedule), arrays, native(), flags):
        rounded = want.astype(out.dtype).astype(np.float32)
        assert np.array_equal(out.astype(np.float32), rounded, equal_nan=True)


def test_strips_share_their_border() -> None:
    """Rows of 14 pixels with a border of one lie 15 pixels apart."""
    group = half_group(conv2d(c=64, k=48, h=14, w=14, r=3, s=3, pad=1), 'bf16')
    drawn = (draw_strip(group, 'portable', Random(seed), 2, 1) for seed in range(40))
    plan = plan_strip(group, next(s for s in drawn if s and s.pack))
    assert plan.copy is not None
    assert (plan.copy.pitch, plan.copy.rows) == (15, 16)


def test_sums_of_bf16_are_added_in_float32() -> None:
    """Off by the rounding of the result and by nothing else, with a function behind the sum."""
    group = followed(conv2d(c=64, k=48, h=6, w=20, r=3, s=3, pad=1, bias=True), swish())
    group = half_group(group, 'bf16')
    schedule = draw_tiles(group, 'portable', Random(4), 2, 1)
    assert schedule is not None
    arrays = verify.freeze_all(verify.random_arrays(group, 3))
    want = reference(group, arrays).astype(np.float32)
    flags = (*compiler_flags(schedule), '-O2')
    (out,) = run_program(group, generate(group, schedule), arrays, native(), flags, ('end',))
    off = np.abs(out.astype(np.float32) - want) / np.maximum(np.abs(want), 1e-3)
    assert off.max() <= 2.0**-7


@pytest.mark.parametrize(
    'group',
    [
        conv2d(c=24, k=24, h=7, w=9, r=2, s=3, pad=1, groups=24, stride=2),
        conv2d(c=24, k=24, h=7, w=9, r=3, s=3, pad=1, groups=24, bias=True, activation='relu'),
    ],
    ids=['strided', 'depthwise'],
)
def test_loops_of_bf16_are_the_definition(group: Group) -> None:
    """Windows and whatever else is not a product of tiles."""
    made = half_group(group, 'bf16')
    arrays = whole_numbers(made, 5)
    schedule = general_schedule(made, 'portable', 1, 2)
    want = reference(made, arrays)
    for out in run_program(made, generate(made, schedule), arrays, native(), ('-O2',)):
        assert np.array_equal(out, want)


def test_pixels_are_cut_into_even_tiles() -> None:
    """28 neighbours in two tiles of 14; rows that are not evenly spaced in tiles of their own."""
    row = list(range(0, 28 * 16, 16))
    assert [p.rows for p in pieces(row, row)] == [14, 14]
    two = [*range(0, 7 * 16, 16), *range(9 * 16, 16 * 16, 16)]
    assert [p.rows for p in pieces(two, list(range(0, 14 * 32, 32)))] == [7, 7]
    assert [p.rows for p in pieces([5], [0])] == [1]


def layer(c: int = 64) -> Group:
    conv = conv2d(c=c, k=64, h=14, w=14, r=3, s=3, pad=1, bias=True)
    return channels_last(with_scale(bound(conv, 'u8', 3), 'u8', 4), {'In', 'Out'})


def test_a_machine_with_tiles_chooses_them() -> None:
    tiles = known_machine('xeon-16vcpu')
    plain = replace(tiles, tile_one_gops=0.0, tile_all_gops=0.0)
    assert rank_dot(layer(), plain, 2, 1)[0].schedule.isa == 'avx512'
    best = rank_dot(layer(), tiles, 2, 1)[0]
    assert best.schedule.isa == 'avx512tiles'
    source = generate(flatten(layer()), best.schedule)
    assert 'tdpbusd' in source
    assert 'tilerelease' in source
    # Faster than vectors, and not than the peak.
    seconds = best.prediction.seconds
    peak = 1e9 * tiles.tile_all_gops * 2 / tiles.cores
    assert (
        2 * layer().main.points / peak
        < seconds
        < rank_dot(layer(), plain, 2, 1)[0].prediction.seconds
    )


@pytest.mark.parametrize('depth', [1024, 1025])
def test_products_of_any_depth_have_schedules_that_can_be_planned(depth: int) -> None:
    """With an odd depth the words of a row do not lie in place: rows are copied."""
    machine = known_machine('xeon-16vcpu')
    for group, rank in (
        (half_group(fixed_product(64, 1024, depth), 'bf16'), rank_tiles),
        (bound(matmul(m=64, n=1024, k=depth), 'u8', 0), rank_dot),
    ):
        for candidate in rank(group, machine, 2, 4):
            assert 'tw_part' in generate(flatten(group), candidate.schedule)


def test_tiles_that_cut_words_are_refused() -> None:
    group, isa = flatten(layer(128)), tile_isa('portable')
    schedule = next(s for s in (draw_dot(group, isa, Random(n), 2, 1) for n in range(99)) if s)
    levels = tuple(
        replace(level, tiles=tuple((d, 5 if d == 'c' else t) for d, t in level.tiles))
        if level.name == 'l1' else level
        for level in schedule.levels
    )  # fmt: skip
    with pytest.raises(ScheduleError, match='not a multiple of the 16 words'):
        plan_dot(group, replace(schedule, levels=levels))


def test_peaks_of_tiles_belong_to_instruction_sets_with_tiles() -> None:
    with pytest.raises(InputError, match='neon has no tiles'):
        replace(known_machine('neoverse-n1'), tile_one_gops=100.0)
    assert not any(ISAS[row].rows for row in ISAS)
    assert ISAS['avx512tiles'].rows == 16
