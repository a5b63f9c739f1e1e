"""Counts of many schedules at once against the model's counts of each; features; evaluation."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.kernels.gpu.columns import Batch, Counts
from tilewright.kernels.gpu.schemas.cnnopt.plan import plan
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.occupancy import occupancy, waves
from tilewright.model.gpu.pul import pul
from tilewright.model.gpu.transactions import work
from tilewright.ops.convolution import conv2d
from tilewright.rank.counts import batches_of, count
from tilewright.rank.features import FEATURES, NAMES, View, matrix_of
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.space import draw
from tilewright_lab.figures.cnnopt_volumes import cnnopt_volumes, volumes
from tilewright_lab.train.evaluate import means, ranking_of
from tilewright_lab.train.forest import BLACK_BOX

TURING = known_gpu('rtx2080ti')
HOPPER = known_gpu('h200')
LAYER = conv2d(c=12, h=30, w=30, k=64, r=3, s=3)
SHARED = {f.name for f in fields(Work)} & {f.name for f in fields(Counts)}
STRIDED = conv2d(c=6, h=33, w=33, k=64, r=5, s=5, stride=2)


def some(group, schema: str, step: int) -> list[GpuSchedule]:
    return factor_space(group, TURING, schema)[0][::step]


@pytest.mark.parametrize('group', [LAYER, STRIDED])
@pytest.mark.parametrize('schema', ['rs', 's'])
def test_columns_count_what_the_model_counts_for_each(group, schema: str) -> None:
    schedules = some(group, schema, 9)
    # lanes along rows and columns, deeper pieces and other joins, which CNNOpt's space has not got
    schedules += draw(group, HOPPER, schema, 'fma', 40, 3)[0]
    for batch, places in batches_of(group, schedules):
        counted = count(batch)
        for number, place in enumerate(places):
            one = work(group, schedules[place])
            for name in SHARED:
                got = getattr(counted, name)[number]
                assert got == pytest.approx(getattr(one, name)), (name, schedules[place])
            assert counted.global_bytes[number] == pytest.approx(one.global_bytes)


def test_volumes_are_those_of_the_paper() -> None:
    for schema in ('rs', 's'):
        schedules = some(LAYER, schema, 13)
        ((batch, _),) = batches_of(LAYER, schedules)
        staged, read = volumes(batch)
        for number, schedule in enumerate(schedules):
            want = cnnopt_volumes(plan(LAYER, schedule))
            assert (staged[number], read[number]) == (
                want.global_to_shared, want.shared_to_register,
            )  # fmt: skip


def test_features_agree_with_the_models_that_they_come_from() -> None:
    schedules = some(LAYER, 'rs', 11)
    ((batch, _),) = batches_of(LAYER, schedules)
    x, _ = matrix_of(batch, TURING)
    column = {name: x[:, i] for i, name in enumerate(NAMES)}
    for number, schedule in enumerate(schedules):
        one = work(LAYER, schedule)
        held = occupancy(TURING, one.threads, one.registers, one.shared_bytes)
        grid = waves(TURING, one.blocks, held.blocks)
        ratios = pul(LAYER, schedule, TURING)
        for name, want in (
            ('resident', held.blocks), ('occupancy', held.share), ('whole_waves', grid.whole),
            ('busiest', grid.busiest), ('global_ratio', ratios.global_memory),
            ('shared_ratio', ratios.shared_memory), ('k', 64), ('h', 28), ('stride', 1),
        ):  # fmt: skip
            assert column[name][number] == pytest.approx(want, rel=1e-5), name


@pytest.mark.parametrize('width', [28, 30, 31])
def test_sectors_of_rows_are_those_that_their_addresses_touch(width: int) -> None:
    """Rows of all blocks' results, address by address; a whole number of blocks along x."""
    group = conv2d(c=12, h=30, w=width + 2, k=64, r=3, s=3)
    ((batch, _),) = batches_of(group, some(group, 'rs', 7))
    view = View(batch, TURING)
    for number, run in enumerate(view.outputs_x('block').tolist()):
        if width % run:
            continue
        starts = [y * width + x for y in range(8) for x in range(0, width, run)]
        touched = sum((start + run - 1) // 8 - start // 8 + 1 for start in starts)
        rows = view.done.blocks[number] * view.at_least_one('block_k')[number]
        rows *= view.at_least_one('block_y')[number]
        want = 32 * rows * touched / len(starts) / TURING.global_gbps / 1e3
        assert view.rows_us[number] == pytest.approx(want)


def test_stores_by_hand() -> None:
    """Two by four outputs of a thread, 32 lanes along k: each lane's store is a sector."""
    one = {name: np.array([1]) for name in ('ty', 'tx', 'wk', 'wx', 'cb', 'stages')}
    tiles = one | {
        'rk': np.array([1]), 'ry': np.array([2]), 'rx': np.array([4]), 'tk': np.array([32]),
        'wy': np.array([7]), 'join': np.array([0]),
    }  # fmt: skip
    whole, parts = (
        View(Batch(LAYER, 'rs', 'fma', tiles | {'split': np.array([n])}), TURING) for n in (1, 2)
    )
    assert (whole.store_width[0], whole.store_sectors[0]) == (4, 32)
    stores = 28 * 28 * 64 / 32 / 4  # of a warp: lanes times four results each
    assert whole.store_us[0] == pytest.approx(stores * 32 * 32 / TURING.l2_gbps / 1e3)
    assert parts.store_width[0] == 1  # atomics
    assert parts.store_us[0] == pytest.approx(2 * 4 * whole.store_us[0])


def test_every_schema_has_finite_features() -> None:
    group = conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
    for schema, intrinsic in (
        ('tiled', 'fma'), ('tiled', 'mma_tf32x3'), ('patch', 'mma_tf32x3'),
        ('patch', 'wgmma_tf32x3'), ('general', 'fma'),
    ):  # fmt: skip
        schedules, _ = draw(group, HOPPER, schema, intrinsic, 4, 1)
        assert schedules
        for batch, _ in batches_of(group, schedules):
            x, base = matrix_of(batch, HOPPER)
            assert x.shape == (len(batch), len(FEATURES))
            assert np.isfinite(x).all()
            assert np.isfinite(base).all()


def test_the_table_of_features_is_documented_and_has_no_twins() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert all(f.formula for f in FEATURES)
    assert set(BLACK_BOX) < set(NAMES)
    assert 'analytical_us' not in BLACK_BOX


def test_a_block_that_does_not_fit_counts_as_one() -> None:
    one = {name: np.array([1]) for name in ('ty', 'tx', 'wk', 'wy', 'cb', 'stages', 'split')}
    batch = Batch(
        LAYER, 'rs', 'fma',
        one | {'rk': np.array([2]), 'ry': np.array([14]), 'rx': np.array([14]),
               'tk': np.array([32]), 'wx': np.array([2]), 'join': np.array([0])},
    )  # fmt: skip
    assert View(batch, TURING).held.tolist() == [1]


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(InputError, match='rows'):
        Batch(LAYER, 'rs', 'fma', {'rk': np.array([1, 2]), 'ry': np.array([1])})


def test_rankings_by_hand() -> None:
    seconds = np.array([4.0, 1.0, 1.04, 2.0])
    found = ranking_of(np.array([0.1, 0.9, 0.5, 0.2]), seconds)  # tried: 4, 2, 1.04, 1
    assert found.loss(1) == pytest.approx(3.0)
    assert found.loss(10) == pytest.approx(0.0)
    assert (found.trials_95, found.trials_100, found.size) == (3, 4, 4)
    counts = sum(1 / n for n in range(1, 31))
    assert found.cost == pytest.approx((np.log(4) + np.log(2) / 2 + np.log(1.04) / 3) / counts)
    perfect = ranking_of(seconds, seconds)
    assert (perfect.trials_95, perfect.trials_100, perfect.cost) == (1, 1, 0.0)
    assert means([found, perfect])['loss_1'] == pytest.approx(1.5)
    with pytest.raises(InputError, match='give one for each'):
        ranking_of(np.array([1.0]), seconds)
