"""Bounds and the first estimate of GPU schedules, against figures worked out by hand."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.codegen.gpu.generate import generate
from tilewright.errors import ScheduleError
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu_bounds import compute_gflops, gpu_bounds
from tilewright.model.gpu_estimate import demand, estimate
from tilewright.schedule.gpu import GpuSchedule

H200, V100 = known_gpu('h200'), known_gpu('v100')
TILES = {'bk': 64, 'bp': 64, 'tk': 8, 'tp': 8, 'kb': 8, 'stages': 3, 'split': 1, 'joint': 0}
# 128 rows (8 x 16 pixels), 128 columns, a depth of 9 x 32
GROUP = tw.conv2d(c=32, h=8, w=16, k=128, r=3, s=3, pad=1)


def test_bounds_by_hand() -> None:
    flops = 2 * 128 * 128 * 9 * 32
    moved = 4 * (32 * 8 * 16 + 128 * 32 * 9 + 128 * 128)
    bound = gpu_bounds(GROUP, H200)
    assert bound.compute_s == pytest.approx(flops / (2 * 132 * 128 * 1.98e9))
    assert bound.l2_s == pytest.approx(moved / 5700e9)
    assert bound.dram_s == pytest.approx(moved / 4300e9)
    assert bound.resident
    assert bound.by == 'compute'
    assert bound.seconds == bound.compute_s


def test_bounds_of_what_does_not_stay_in_l2() -> None:
    group = tw.conv2d(n=64, c=16, h=128, w=128, k=16, r=1, s=1)
    bound = gpu_bounds(group, H200)
    assert not bound.resident
    assert bound.by == 'DRAM'
    assert bound.seconds == bound.dram_s
    assert bound.to_json()['by'] == 'DRAM'


def test_matrix_units_have_a_peak_of_their_own() -> None:
    assert compute_gflops(H200, 'fma') == H200.peak_gflops
    assert compute_gflops(H200, 'mma_tf32x3') == pytest.approx(2 * 132 * 1024 * 1.98 / 3)
    assert compute_gflops(V100, 'mma_tf32x3') == 0
    assert gpu_bounds(GROUP, V100, 'mma_tf32x3') == gpu_bounds(GROUP, V100)


def test_what_a_tiled_block_needs() -> None:
    need = demand(GROUP, GpuSchedule.of('tiled', **TILES))
    assert need.blocks == 2 * 2
    assert need.threads == 64
    assert need.pieces == 9 * 4
    assert need.products == 64 * 64 * 9 * 32
    assert need.copied == 9 * 32 * (64 + 64)
    assert need.joined_bytes == 0
    shared = demand(GROUP, GpuSchedule.of('tiled', **(TILES | {'split': 4})))
    assert shared.blocks == 16
    assert shared.pieces == 9
    assert shared.joined_bytes == 2 * 4 * 4 * 128 * 128


def test_what_a_patch_block_needs() -> None:
    """The patch under 4 x 16 pixels is 6 x 18 for all nine window points."""
    tiles = {'bk': 64, 'bn': 1, 'bh': 4, 'bw': 16, 'tk': 32, 'tp': 32, 'kb': 8, 'stages': 2,
             'split': 1, 'joint': 0}  # fmt: skip
    need = demand(GROUP, GpuSchedule.of('patch', 'mma_tf32x3', **tiles))
    assert need.blocks == 2 * 2
    assert need.threads == 4 * 32
    assert need.copied == 4 * 8 * 6 * 18 + 9 * 32 * 64
    assert need.products == 64 * 64 * 9 * 32


def test_what_an_rs_block_needs() -> None:
    tiles = {'rk': 4, 'ry': 2, 'rx': 2, 'tk': 8, 'ty': 2, 'tx': 2, 'wk': 1, 'wy': 2, 'wx': 1,
             'cb': 2, 'stages': 1, 'split': 1, 'join': 0}  # fmt: skip
    need = demand(GROUP, GpuSchedule.of('rs', **tiles))
    assert need.threads == 64
    assert need.blocks == (128 // 32) * (8 // 8) * (16 // 4)
    assert need.copied == 32 * (10 * 6 + 9 * 32)
    assert need.products == 32 * 9 * 32 * 8 * 4


def test_occupancy_and_waves() -> None:
    schedule = GpuSchedule.of('tiled', **TILES)
    found = estimate(GROUP, schedule, H200)
    shared = generate(GROUP, schedule).steps[0].kernel.shared_bytes
    assert shared == 3 * 8 * (64 + 64) * 4
    registers = H200.registers // ((64 + 16 + 32) * 64)
    assert found.resident == min(registers, H200.shared_bytes // shared, 32, 2048 // 64)
    assert found.resident_by == 'registers'
    assert found.occupancy == pytest.approx(found.resident * 64 / 2048)
    assert found.waves == pytest.approx(4 / (132 * found.resident))
    assert found.l2_bytes == 4 * 4 * 9 * 32 * 128 + GROUP.output.bytes
    assert found.dram_bytes == 0
    assert found.limit in found.breakdown
    assert found.seconds >= max(found.breakdown.values())


def test_an_estimate_is_never_below_the_bound() -> None:
    for change in ({}, {'split': 9}, {'bk': 128, 'bp': 128}, {'kb': 16, 'stages': 2}):
        schedule = GpuSchedule.of('tiled', **(TILES | change))
        for machine in (H200, V100):
            assert estimate(GROUP, schedule, machine).seconds > gpu_bounds(GROUP, machine).seconds


def test_an_illegal_schedule_has_no_estimate() -> None:
    with pytest.raises(ScheduleError, match='tk divides bk'):
        estimate(GROUP, GpuSchedule.of('tiled', **(TILES | {'tk': 3})), H200)


def test_the_fallback_has_an_estimate() -> None:
    found = estimate(GROUP, GpuSchedule.of('general', threads=128), H200)
    assert found.blocks == 128
    assert found.seconds > gpu_bounds(GROUP, H200).seconds
