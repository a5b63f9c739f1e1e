"""Attention in one kernel of a GPU, around the edges of its tiles, against float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from devices import device
from test_attention_kernels import arrays_of, attention, masks, sized

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.schemas.attention.counts import work
from tilewright.kernels.gpu.schemas.attention.plan import plan
from tilewright.machine.gpu import known_gpu
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.modules import Runner
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.choose import search

SMALL = {'bi': 4, 'bj': 16, 'ti': 2, 'lanes': 8, 'wide': 1}


def scheduled(tiles: dict[str, int], matrix: str = 'mma_tf32x3') -> GpuSchedule:
    """Matrix instructions where a warp has rows: ti is 16 or 32."""
    if tiles.get('ti', 0) < 16:
        return GpuSchedule.of('attention', **(SMALL | tiles))
    return GpuSchedule.of('attention', matrix, **(SMALL | {'lanes': 32} | tiles))


def computed(group: Group, arrays: dict[str, np.ndarray], **tiles: int) -> np.ndarray:
    on = device('host')
    with Runner(generate(group, scheduled(tiles)), on, {}) as runner:
        on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
        return runner(**{t.name: arrays[t.name] for t in group.with_role('input')})


def agrees(group: Group, **tiles: int) -> None:
    arrays = arrays_of(group)
    got, want = computed(group, arrays, **tiles), reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max(), (group.label, tiles)


@pytest.mark.parametrize(
    ('sizes', 'tiles'),
    [
        ((1, 1, 1, 1), {}),
        ((3, 15, 7, 31), {}),
        ((4, 16, 8, 32), {'ti': 1}),
        ((5, 33, 9, 33), {'lanes': 4}),
        ((2, 40, 256, 12), {'bi': 2, 'bj': 32, 'lanes': 32}),
        ((1, 1, 1, 1), {'bi': 16, 'ti': 16}),
        ((15, 17, 7, 9), {'bi': 16, 'bj': 8, 'ti': 16}),
        ((33, 40, 8, 40), {'bi': 32, 'bj': 24, 'ti': 32}),
        ((17, 50, 8, 9), {'bi': 16, 'bj': 32, 'ti': 16, 'share': 2}),
    ],
)
def test_blocks_of_every_size_agree(sizes, tiles):
    """Rows, keys, depth and columns one below, at and above tiles; several blocks of keys."""
    agrees(attention(sized(1, 2, *sizes)), **tiles)


@pytest.mark.parametrize('tiles', [{}, {'bi': 16, 'ti': 16}])
def test_masks_between_the_products(tiles):
    sizes = sized(2, 2, 7, 37, 8, 6)
    agrees(attention(sizes, between=masks(sizes, 25)), **tiles)


@pytest.mark.parametrize(
    'layout',
    [
        ('bihd', 'bjhd', 'bjhv', 'bihv'),
        ('bhdi', 'bhdj', 'bhvj', 'bvhi'),
        ('bhid', 'bjd', 'bjv', 'bhiv'),
    ],
)
def test_any_order_of_axes_and_heads_that_share_keys(layout):
    agrees(attention(sized(2, 2, 6, 20, 8, 12), *layout))
    agrees(attention(sized(2, 2, 6, 20, 8, 12), *layout), wide=0, bi=16, ti=16)


@pytest.mark.parametrize(
    'tiles', [{}, {'bi': 16, 'ti': 16}, {'bi': 16, 'bj': 32, 'ti': 16, 'share': 4}]
)
def test_rows_that_see_nothing_and_numbers_that_are_none(tiles):
    """A row of -inf alone, or with NaN, is NaN; a block of -inf before others changes nothing."""
    sizes = sized(1, 1, 4, 48, 2, 3)
    whole = tuple(sizes[n] for n in 'bhij')
    group = attention(sizes, between=((elementwise('add', whole, whole), 'In0'),))
    arrays = arrays_of(group)
    mask = arrays['Mask']
    mask[...] = 0
    mask[0, 0, 0] = -np.inf
    mask[0, 0, 1, :32] = -np.inf
    mask[0, 0, 2, 5] = np.nan
    got, want = computed(group, arrays, **tiles), reference(group, arrays)
    assert np.isnan(got[0, 0, [0, 2]]).all()
    assert np.isnan(want[0, 0, [0, 2]]).all()
    np.testing.assert_allclose(got[0, 0, [1, 3]], want[0, 0, [1, 3]], rtol=1e-5, atol=1e-6)


def test_work_of_a_block_counted_by_hand():
    """64 rows and keys of 8 and 16: each score and each sum once, less under a causal mask."""
    sizes = sized(1, 1, 64, 64, 8, 16)
    tiles = GpuSchedule.of('attention', **(SMALL | {'bi': 32, 'ti': 4, 'lanes': 4}))
    done = work(attention(sizes), tiles, None)
    assert done.products * 32 == 32 * 64 * (8 + 16)
    assert done.blocks == 2
    warps = GpuSchedule.of('attention', 'mma_tf32x3', **(SMALL | {'bi': 32, 'ti': 16, 'lanes': 32}))
    assert work(attention(sizes), warps, None).matrix * 16 * 8 * 8 == 3 * 32 * 64 * (8 + 16)
    half = work(attention(sizes, between=masks(sizes, 0)[-1:]), tiles, None)
    assert half.products == 0.75 * done.products


def test_what_is_chosen_for_a_gpu_and_what_is_refused():
    """One kernel without the square matrix, also where arrays begin anywhere."""
    h200, group = known_gpu('h200'), attention(sized(1, 12, 384, 384, 64, 64))
    found = search(group, h200, 2, 1e-4)
    assert {c.schedule.schema for c in found} == {'attention'}
    (plain,) = search(group, h200, 1, 1e-4, products=False)
    body = generate(group, plain.schedule).kernels[0].body
    assert 'COPY4(' not in body
    assert 'STORE4(GLOBAL' not in body
    for tiles, why in (
        ({'ti': 3}, 'ti divides bi'), ({'lanes': 6}, 'power of two'), ({'bj': 4}, 'lanes divides'),
    ):  # fmt: skip
        with pytest.raises(ScheduleError, match=why):
            plan(group, GpuSchedule.of('attention', **(SMALL | tiles)))
    with pytest.raises(ScheduleError, match='at most 256'):
        plan(attention(sized(1, 1, 4, 4, 300, 4)), GpuSchedule.of('attention', **SMALL))


@pytest.mark.parametrize('dtype', ['f16', pytest.param('bf16', marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    'tiles', [{}, {'wide': 0}, {'bi': 16, 'bj': 16, 'ti': 16, 'share': 2}], ids=str
)
def test_operands_of_16_bits_are_widened(dtype, tiles):
    """Queries, keys, values and the result; what is between stays float32."""
    compare_halves(dtype, sized(1, 2, 17, 40, 8, 12), scheduled(tiles))


@pytest.mark.parametrize('dtype', ['f16', pytest.param('bf16', marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ('sizes', 'tiles'),
    [
        ((1, 1, 1, 1), {'bi': 16, 'ti': 16}),
        ((15, 17, 7, 9), {'bi': 16, 'bj': 16, 'ti': 16}),
        ((33, 40, 16, 40), {'bi': 32, 'bj': 48, 'ti': 32}),
        ((17, 50, 24, 8), {'bi': 32, 'bj': 32, 'ti': 16, 'share': 2}),
    ],
    ids=str,
)
def test_products_of_16_bits(dtype, sizes, tiles):
    compare_halves(dtype, sized(1, 2, *sizes), scheduled(tiles, 'mma_half'))
    with pytest.raises(ScheduleError, match='operands of one half type'):
        plan(attention(sized(1, 2, *sizes)), scheduled(tiles, 'mma_half'))


def compare_halves(dtype, sizes, schedule):
    pytest.importorskip('ml_dtypes')
    plain = attention(sizes)
    ends = {t.name for t in plain.tensors if t.role in ('input', 'output')}
    tensors = tuple(replace(t, dtype=dtype) if t.name in ends else t for t in plain.tensors)
    group = replace(plain, tensors=tensors)
    arrays = {n: a.astype(NUMPY[dtype]) for n, a in arrays_of(plain).items() if n in ends}
    on = device('host')
    with Runner(generate(group, schedule), on, {}) as runner:
        got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    apart = np.abs(got.astype(np.float64) - want.astype(np.float64)).max()
    assert apart <= {'f16': 1e-3, 'bf16': 8e-3}[dtype] * np.abs(want.astype(np.float64)).max()
